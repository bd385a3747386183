"""torch.compile(backend="openxla"): values, gradients, writes and random numbers as without it.

Units: _src/dynamo.
"""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla import _XLAC
from torch_xla._dynamo import dynamo_bridge

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch_xla.sync(wait=True)


def close(found, expected):
    assert found.device.type == "xla"
    torch.testing.assert_close(found.detach().cpu(), expected.detach(), **TOLERANCE)


def compiles():
    return met.counter_value("UncachedCompile") or 0


def compiled(function, **options):
    return torch.compile(function, backend="openxla", **options)


def calls_traced():
    return met.counter_value("xla::traced_function") or 0


def model():
    torch.manual_seed(0)
    layers = (nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 4))
    on_cpu = nn.Sequential(*layers)
    return on_cpu, copy.deepcopy(on_cpu).to("xla")


def test_inference_is_one_program():
    on_cpu, on_xla = model()
    run = compiled(on_xla.eval())
    on_cpu.eval()
    with torch.no_grad():
        for i in range(4):
            before = compiles(), calls_traced()
            x = torch.randn(5, 8)
            close(run(x.to("xla")), on_cpu(x))
            assert (compiles() - before[0], calls_traced() - before[1]) == (int(i == 0), 1)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_training(optimizer):
    on_cpu, on_xla = model()
    run = compiled(on_xla)
    ours, theirs = optimizer(on_xla.parameters(), lr=0.05), optimizer(on_cpu.parameters(), lr=0.05)
    for step in range(5):
        x, target = torch.randn(32, 8), torch.randint(4, (32,))
        before = compiles()
        for module, o, device in ((run, ours, "xla"), (on_cpu, theirs, "cpu")):
            o.zero_grad()
            loss = F.cross_entropy(module(x.to(device)), target.to(device))
            loss.backward()
            o.step()
        torch_xla.sync()
        assert step < 2 or compiles() == before
        for name, expected in on_cpu.state_dict().items():
            close(on_xla.state_dict()[name], expected)


def test_buffers_are_updated():
    """The batch norm's statistics, at the same place and in the same version."""
    on_cpu, on_xla = model()
    run, mean = compiled(on_xla), on_xla[2].running_mean
    for _ in range(3):
        x = torch.randn(32, 8)
        run(x.to("xla")), on_cpu(x)
        close(mean, on_cpu[2].running_mean)
    assert on_xla[2].running_mean is mean
    assert on_xla[2].num_batches_tracked.item() == 3


def write_in_place(cache, x, i):
    cache[i] = x
    cache[:, 1].add_(1)
    return cache.sum(0), cache[i:]


def test_written_arguments():
    run, cache = compiled(write_in_place), torch.zeros(6, 3)
    on_xla = cache.to("xla")
    alias = on_xla[2:4]
    with torch.no_grad():
        for i in range(6):
            x = torch.randn(3)
            version = on_xla._version
            found, expected = run(on_xla, x.to("xla"), i), write_in_place(cache, x, i)
            close(found[0], expected[0]), close(found[1], expected[1])
            close(on_xla, cache)
            close(alias, cache[2:4])
            assert on_xla._version > version


def test_results_share_memory_as_without_it():
    def function(x):
        y = x * 2
        return y, y[1:], y.t(), x, x[0], x.view(-1)

    x = torch.randn(3, 4)
    on_xla = x.to("xla")
    found, expected = compiled(function)(on_xla), function(x)
    for f, e in zip(found, expected, strict=True):
        close(f, e)
        assert f.stride() == e.stride() and f.storage_offset() == e.storage_offset()
    assert found[3] is on_xla
    for results in (found, expected):
        results[0].add_(1)
        results[4].mul_(3)
    for f, e in zip([*found, on_xla], [*expected, x], strict=True):
        close(f, e)


def test_arguments_that_share_memory():
    def function(x, y):
        return x + y, x * 2

    run = compiled(function)
    base = torch.arange(12.0).view(3, 4)
    on_xla = base.to("xla")
    for x, y in ((0, 1), (1, 1), (2, 0)):
        for f, e in zip(run(on_xla[x], on_xla[y]), function(base[x], base[y]), strict=True):
            close(f, e)
    on_xla.add_(1), base.add_(1)
    for f, e in zip(run(on_xla[2], on_xla[2]), function(base[2], base[2]), strict=True):
        close(f, e)


def test_pending_arguments_are_part_of_the_program():
    run = compiled(lambda x: x.sin().sum())
    x = torch.randn(50)
    on_xla = x.to("xla")
    with torch.no_grad():
        run(on_xla)
        for _ in range(2):
            before = met.metric_data("ExecuteTime")[0]
            close(run(on_xla * 3 + 1), (x * 3 + 1).sin().sum())
            assert met.metric_data("ExecuteTime")[0] == before + 1


def test_random_numbers_are_those_of_lazy_mode():
    def function(x):
        return F.dropout(x, 0.5) + torch.rand_like(x), torch.randn(3, device=x.device)

    run, x = compiled(function), torch.ones(40, device="xla")
    torch.manual_seed(7)
    expected = [[t.cpu() for t in function(x)] for _ in range(3)]
    torch.manual_seed(7)
    found = [[t.cpu() for t in run(x)] for _ in range(3)]
    for f, e in zip(found, expected, strict=True):
        for a, b in zip(f, e, strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(found[0][0], found[1][0])
    before = compiles()
    run(x)
    assert compiles() == before


def test_shapes_and_numbers_have_programs_of_their_own():
    run = compiled(lambda x, n: x * n, dynamic=True)
    with torch.no_grad():
        for _ in range(2):
            for size in (3, 5, 8):
                for n in (2, 4):
                    x = torch.randn(size)
                    close(run(x.to("xla"), n), x * n)
        before = compiles()
        run(x[:5].to("xla"), 4)
        assert compiles() == before


@pytest.mark.parametrize("wants", [True, False])
def test_layers_of_dynamic_shapes_have_one_graph(wants):
    def function(x, weight):
        q = F.linear(x, weight).unflatten(-1, (2, 4)).transpose(1, 2)
        mask = q.new_ones(q.shape[2], q.shape[2]).tril().bool()
        masked = F.scaled_dot_product_attention(q, q[:1], q[:1], attn_mask=mask)
        grouped = F.scaled_dot_product_attention(q.repeat(1, 2, 1, 1), q, q, enable_gqa=True)
        return masked.sum(1) + grouped.sum(1) + F.linear(x[:, :, :4].flip(1), weight[:4, :4])

    torch.manual_seed(0)
    torch._dynamo.utils.counters.clear()
    run, weight = compiled(function, dynamic=True, fullgraph=True), torch.randn(8, 8)
    own = weight.to("xla").requires_grad_()
    weight.requires_grad_()
    for batch, length in ((3, 5), (5, 7), (6, 9)):
        x = torch.randn(batch, length, 8)
        sent = x.to("xla").requires_grad_(wants)
        x.requires_grad_(wants)
        got, want = run(sent, own), function(x, weight)
        close(got, want)
        got.mean().backward()
        want.mean().backward()
        close(own.grad, weight.grad)
        if wants:
            close(sent.grad, x.grad)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def transfers():
    return met.metric_data("TransferToDeviceTime")[0]


def test_constants_of_the_host_are_sent_once():
    def function(x):
        return x + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)

    run, x = compiled(function), torch.randn(4)
    close(run(x.to("xla")), function(x))
    on_xla = x.to("xla")
    before = transfers()
    close(run(on_xla), function(x))
    assert transfers() == before


def test_arguments_of_the_host():
    """Numbers in tensors, indices, and what is moved: one program, of their present values."""

    def function(x, number, table, index):
        return x * number + table.to(x.device), x[index], number + 1

    run = compiled(function)
    x, table = torch.randn(4), torch.randn(4)
    number, index = torch.tensor(2.0), torch.tensor([2, 0])
    for i in range(4):
        number += 1
        table *= 2
        index = index.flip(0)
        before = calls_traced(), compiles()
        found = run(x.to("xla"), number, table, index)
        expected = function(x, number, table, index)
        close(found[0], expected[0]), close(found[1], expected[1])
        assert found[2].device.type == "cpu" and torch.equal(found[2], expected[2])
        assert i < 1 or compiles() == before[1]


def test_host_arguments_are_part_of_the_program():
    run = compiled(lambda x, number, index: (x * number)[index])
    x, index = torch.randn(4), torch.tensor([2, 0])
    for i in range(3):
        number = torch.tensor(2.0 + i)
        before = calls_traced(), compiles()
        close(run(x.to("xla"), number, index), (x * number)[index])
        assert calls_traced() == before[0] + 1 and compiles() - before[1] == int(i == 0)


def test_a_graph_that_needs_values_is_recorded_at_each_call():
    """nonzero's shape is a value: PyTorch breaks the graph, or the bridge records it anew."""

    def function(x):
        return x[x > 0] * 2, torch.histc(x, 4, -1, 1)

    run = compiled(function)
    for _ in range(3):
        x = torch.randn(20)
        for f, e in zip(run(x.to("xla")), function(x), strict=True):
            close(f, e)


def test_graph_breaks():
    def function(x):
        y = x.sin()
        if y.sum().item() > 0:
            return y + 1
        return y - 1

    run = compiled(function)
    for sign in (1.0, -1.0, 1.0):
        x = torch.full((3,), sign)
        close(run(x.to("xla")), function(x))


def test_errors_name_what_is_wrong():
    run = compiled(lambda x, y: x @ y)
    with pytest.raises(Exception, match="size|shape"):
        run(torch.ones(2, 3, device="xla"), torch.ones(2, 3, device="xla"))


def test_openxla_eval():
    on_cpu, on_xla = model()
    on_cpu.eval(), on_xla.eval()
    run = torch.compile(on_xla, backend="openxla_eval")
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(5, 8)
            close(run(x.to("xla")), on_cpu(x))


@pytest.mark.parametrize("backend", ["torchxla_trace_once", "aot_torchxla_trace_once"])
def test_old_names_of_the_backends(backend):
    on_cpu, on_xla = model()
    on_cpu.eval(), on_xla.eval()
    run, x = torch.compile(on_xla, backend=backend), torch.randn(5, 8)
    before = calls_traced()
    with torch.no_grad():
        close(run(x.to("xla")), on_cpu(x))
    assert calls_traced() == before + 1


def test_the_example_of_the_documents():
    import torch_xla.core.xla_model as xm

    def add(a, b):
        a_xla = a.to(xm.xla_device())
        b_xla = b.to(xm.xla_device())
        return a_xla + b_xla

    run = compiled(add)
    for i in range(3):
        a, b = torch.randn(10), torch.randn(10)
        before = calls_traced(), compiles()
        close(run(a, b), a + b)
        assert calls_traced() == before[0] + 1 and compiles() - before[1] == int(i == 0)


def test_a_whole_training_step():
    """Forward, backward and optimizer inside: the optimizer breaks the graph in three."""
    on_cpu, on_xla = model()
    ours = torch.optim.SGD(on_xla.parameters(), lr=0.1, weight_decay=1e-2)
    theirs = torch.optim.SGD(on_cpu.parameters(), lr=0.1, weight_decay=1e-2)

    def train(model, data, target, optimizer):
        optimizer.zero_grad()
        prediction = model(data)
        F.cross_entropy(prediction, target).backward()
        optimizer.step()
        return prediction

    run = compiled(train)
    for _ in range(4):
        x, target = torch.randn(32, 8), torch.randint(4, (32,))
        found = run(on_xla, x.to("xla"), target.to("xla"), ours)
        close(found, train(on_cpu, x, target, theirs))
    for name, expected in on_cpu.state_dict().items():
        close(on_xla.state_dict()[name], expected)


def test_a_module_that_is_updated():
    """What a graph holds is read at each call."""
    module = torch.fx.symbolic_trace(nn.Linear(3, 2)).to("xla")
    run = dynamo_bridge.extract_compiled_graph(module, ())
    x = torch.randn(4, 3)
    for _ in range(3):
        with torch.no_grad():
            expected = F.linear(x, module.weight.cpu(), module.bias.cpu())
            close(run(x.to("xla")), expected)
            module.weight.mul_(2)
            module.bias = nn.Parameter(module.bias + 1)


def test_traced_functions_refuse_what_they_cannot_keep():
    functions = _XLAC._TracedFunctions()
    x = torch.ones(3, device="xla")
    generator = torch.Generator("xla").manual_seed(1)
    for body, words in (
        (lambda x: [x.sum().item()], "placeholder"),
        (lambda x: [x.cpu()], "placeholder"),
        (lambda x: [torch.ones(3)], "expected xla tensors"),
        (lambda x: [x.resize_(5)], "geometry"),
        (lambda x: [torch.rand(3, generator=generator, device="xla")], "generator of its own"),
    ):
        with pytest.raises(RuntimeError, match=words):
            functions.trace(body, x)
    assert len(functions) == 0
    close(x + 1, torch.full((3,), 2.0))


def traced_programs():
    return sum("traced_function" in p["calls"][-1] for p in _XLAC._xla_programs() if p["calls"])


def test_reset_frees_what_was_compiled():
    gc.collect()
    before = traced_programs()  # PyTorch itself keeps graphs that break
    functions = [compiled(lambda x, i=i: x.sin() * 2 + i) for i in range(3)]
    for function in functions:
        function(torch.ones(3, device="xla"))
    assert traced_programs() == before + 3
    torch._dynamo.reset()
    gc.collect()
    assert traced_programs() == before
    close(functions[2](torch.zeros(3, device="xla")), torch.full((3,), 2.0))


def test_a_function_that_dies_is_freed():
    def compile_one(size):
        layer = nn.Linear(8, 8).to("xla")
        compiled(lambda x: layer(x) * 2)(torch.ones(size, 8, device="xla"))
        return weakref.ref(layer.weight)

    weights = [compile_one(4 + i) for i in range(3)]
    gc.collect()
    torch.ones(3, device="xla").sin()  # gives back what threads without Python's lock let go
    gc.collect()
    assert not any(weight() is not None for weight in weights)


def test_an_equal_function_keeps_the_programs():
    def double(x):
        return x * 2 + 1

    x = torch.ones(3, device="xla")
    first, second = compiled(double), compiled(double, dynamic=False)
    close(first(x), torch.full((3,), 3.0))
    close(second(x), torch.full((3,), 3.0))
    before = compiles()
    close(first(x), torch.full((3,), 3.0))
    close(second(x), torch.full((3,), 3.0))
    assert compiles() == before


@pytest.mark.parametrize("device", ["xla", torch.device("xla"), "xla:0"])
def test_tensors_made_on_the_current_device(device):
    def function(x):
        return x + torch.ones(3, device=device) * torch.arange(3, device=device)

    close(compiled(function)(torch.ones(3, device="xla")), torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.quantile(x, 0.4, dim=-1),
        lambda x: torch.nanquantile(x, torch.tensor([0.1, 0.7], device=x.device), dim=0),
        lambda x: torch.view_as_real(torch.stft(x, 8, 4, return_complex=True)),
        lambda x: x.clone().t_().unsqueeze_(0).squeeze_() * 2,
        lambda x: x.clone().as_strided_((3, 4), (5, 2)) + 1,
    ],
    ids=["quantile", "nanquantile", "stft", "t_", "as_strided_"],
)
def test_views_in_place_are_captured(function):
    x = torch.randn(4, 32)
    close(compiled(function)(x.to("xla")), function(x))


def test_no_decomposition_is_traced(run_python):
    """An operator that breaks the graph runs while torch._dynamo looks at each frame."""
    run_python(
        """
        import warnings
        import torch, torch_xla
        from torch.nn.functional import ctc_loss

        @torch.compile(backend="openxla")
        def loss(scores, targets, lengths, target_lengths):
            return ctc_loss(scores.log_softmax(2), targets, lengths, target_lengths)

        def arguments(device):
            torch.manual_seed(0)
            lengths = torch.full((2,), 8), torch.tensor([3, 4])
            given = torch.randn(8, 2, 5), torch.randint(1, 5, (2, 4)), *lengths
            return [t.to(device) for t in given]

        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = loss(*arguments("xla"))
        assert not [w for w in said if "decompositions.py" in str(w.message)]
        plain = loss._torchdynamo_orig_callable
        torch.testing.assert_close(found.cpu(), plain(*arguments("cpu")))
        """
    )


def test_what_capturing_leaves_in_circles_is_no_result_of_the_step():
    """torch._dynamo's circles hold tensors of the step in which it captures, here one does."""
    weight = torch.randn(4, 4, device="xla", requires_grad=True)
    run = compiled(lambda x: (x @ weight).sin())
    x = torch.randn(3, 4).to("xla")
    torch_xla.sync(wait=True)
    made = []
    gc.disable()
    try:
        for step in range(3):
            before = compiles()
            y = run(x)
            y.sum().backward()
            if step == 0:
                circle = [y]
                circle.append(circle)
                del circle
            del y
            torch_xla.sync(wait=True)
            made.append(compiles() - before)
            weight.grad = None
    finally:
        gc.enable()
    assert made == [1, 0, 0]
