"""torch_xla.experimental: scan, scan_layers, fori_loop, assume_pure and what is built on them.

Units: dispatch/functions/joint, _src/functions/joint, _src/functions/nested.
"""

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torch_xla import _XLAC
from torch_xla.experimental.assume_pure import PureModule, assume_pure
from torch_xla.experimental.fori_loop import _xla_while_loop, fori_loop, while_loop
from torch_xla.experimental.gradient_accumulation import gradient_accumulation
from torch_xla.experimental.gru import GRU
from torch_xla.experimental.pytreeify import pytreeify
from torch_xla.experimental.scan import (
    _SCAN_COMPUTATION_CACHE,
    default_partition,
    min_cut_rematerialization_partition,
    scan,
    value_and_grad_partitioned,
)
from torch_xla.experimental.scan_layers import scan_layers

PARTITIONS = [default_partition, min_cut_rematerialization_partition]


def close(found, expected, **tolerance):
    to_cpu = lambda tree: torch.utils._pytree.tree_map_only(  # noqa: E731
        torch.Tensor, lambda t: t.detach().cpu(), tree
    )
    torch.testing.assert_close(to_cpu(found), to_cpu(expected), **tolerance)


def text(*tensors):
    return _XLAC._get_stablehlo(list(tensors), "cpu")


# --- scan ----------------------------------------------------------------------------------


def leaves(device, *shapes):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(s, generator=generator).to(device).requires_grad_() for s in shapes]


def everything(device, partition, pure):
    """A scan that returns its carry, its row, None, and an integer, and closes over a weight."""
    init, xs, weight = leaves(device, (4,), (6, 4), (4, 4))
    scale = torch.tensor(2.0, device=device)  # without a gradient

    def fn(carry, x):
        h = torch.tanh(carry["h"] @ weight + x["x"]) * scale
        h += 1
        following = {"h": carry["h"] + h, "n": carry["n"] + 1}
        return following, (h.relu(), None, carry["h"], x["x"], carry["n"])

    for _ in range(2):
        start = {"h": init, "n": torch.tensor(0, device=device)}
        carry, ys = scan(fn, start, {"x": xs}, partition, pure)
        loss = carry["h"].sum() + (ys[0] ** 2).sum() + (ys[2] * ys[3]).sum()
        gradients = torch.autograd.grad(loss, (init, xs, weight))
    assert ys[1] is None and not ys[4].requires_grad
    return carry, ys, gradients


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("pure", [False, True])
def test_scan(partition, pure):
    close(
        everything("xla", partition, pure),
        everything("cpu", partition, pure),
        rtol=1e-4,
        atol=1e-4,
    )


def test_a_scan_is_one_loop_each_way():
    texts = []
    for length in (3, 300):
        init, xs = leaves("xla", (4,), (length, 4))
        carry, ys = scan(lambda c, x: (c + x.sin(), c * x), init, xs)
        (gradient,) = torch.autograd.grad(carry.sum() + ys.sum(), xs)
        texts.append(text(gradient))
    assert texts[0].count("stablehlo.while") == 2
    assert texts[0].count("\n") == texts[1].count("\n")


def test_what_is_kept_for_the_backward_pass():
    def kept(partition):
        init, xs = leaves("xla", (4,), (6, 4))
        forward, _, _ = value_and_grad_partitioned(
            lambda c, x: ((c.exp() * c.sin() + c.cos() * c.tanh()).sigmoid() + x, None),
            init,
            xs[0:1],
            partition,
        )
        _, (_, kept) = forward(init.detach(), xs[0].detach())
        return len(kept)

    assert kept(min_cut_rematerialization_partition) < kept(default_partition)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("device", ["xla"])
def test_the_functions_of_a_row(partition, device):
    def fn(carry, x):
        a, b = carry
        return (a * x["w"].exp(), b + a.sin()), {"y": a * b * x["w"], "none": None}

    torch.manual_seed(0)
    a, b, w = (torch.rand(3, device=device) for _ in range(3))
    xs = {"w": w.clone()[None].requires_grad_()}
    forward, alias_input, backward = value_and_grad_partitioned(fn, (a, b), xs, partition)
    (c, d), (y, partial) = forward((a, b), {"w": w})
    assert y["none"] is None
    kept = alias_input(partial, {"w": w})
    ones = torch.ones(3, device=device)
    of_carry, of_x = backward((ones, ones * 2), ({"y": ones * 3, "none": None}, kept))
    leaves_of = [t.detach().cpu().requires_grad_() for t in (a, b, w)]
    (e, f), z = fn(leaves_of[:2], {"w": leaves_of[2]})
    (e + f * 2 + z["y"] * 3).sum().backward()
    for found, expected in ((c, e), (d, f), (y["y"], z["y"])):
        close(found, expected, rtol=1e-4, atol=1e-5)
    for found, leaf in zip((*of_carry, of_x["w"]), leaves_of, strict=True):
        close(found, leaf.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_a_body_may_write_its_carry(device):
    def body(accumulated, element):
        accumulated += element * 2
        return accumulated, accumulated

    carry = torch.zeros(2, device=device, requires_grad=True)
    xs = torch.arange(6.0).view(3, 2).to(device).requires_grad_()
    for _ in range(2):
        last, ys = scan(body, carry, xs, is_fn_pure=True)
        close(ys, (xs * 2).cumsum(0))
        close(last, ys[-1])
        close(carry, torch.zeros(2))
        found = torch.autograd.grad((ys * ys).sum() + last.sum(), (carry, xs))
        inputs = [t.detach().cpu().requires_grad_() for t in (carry, xs)]
        ys = inputs[0] + (inputs[1] * 2).cumsum(0)
        expected = torch.autograd.grad((ys * ys).sum() + ys[-1].sum(), inputs)
        for mine, other in zip(found, expected, strict=True):
            close(mine, other)
    with torch.no_grad():
        close(scan(body, carry, xs)[0], torch.tensor([12.0, 18.0]))
        close(carry, torch.zeros(2))


def test_what_pure_functions_have_recorded():
    def fn(carry, x):
        return carry + x, None

    carry, xs = torch.ones(2, device="xla", requires_grad=True), torch.ones(3, 2, device="xla")
    scan(fn, carry, xs)
    assert fn not in _SCAN_COMPUTATION_CACHE
    for partition in (*PARTITIONS, PARTITIONS[0]):
        scan(fn, carry, xs, partition, is_fn_pure=True)
    assert len(_SCAN_COMPUTATION_CACHE[fn]) == len(PARTITIONS)
    count = len(_SCAN_COMPUTATION_CACHE)
    del fn
    gc.collect()
    assert len(_SCAN_COMPUTATION_CACHE) == count - 1


def test_equal_functions_of_other_tensors_are_told_apart():
    first, second = leaves("xla", (3,), (3,))
    xs = torch.ones(2, 3, device="xla")

    def run(a, b):
        def fn(carry, x):
            b.sin()  # changes the order in which they are seen, and no result
            return carry * a + b + x, None

        return scan(fn, torch.ones(3, device="xla"), xs)[0]

    for a, b in ((first, second), (second, first), (first, first)):
        expected = torch.ones(3)
        for _ in range(2):
            expected = expected * a.cpu() + b.cpu() + 1
        result = run(a, b)
        close(result, expected)
        close(torch.autograd.grad(result.sum(), a), torch.autograd.grad(expected.sum(), a))


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_functions_that_differ_in_aliases_or_gradients_alone_are_told_apart():
    def both(t, other):
        return (t, other)

    functions = [
        lambda c, x: (c, x),
        lambda c, x: (x, c),
        lambda c, x: (c, c),
        lambda c, x: (x, x),
        lambda c, x: (c + x, x),
        lambda c, x: (c + x, x.t()),
        lambda c, x: both(c * x, (c * x).t()),
        lambda c, x: ((c * x).t(), c * x),
        lambda c, x: (c * x.sin(), c * 2),
        lambda c, x: (c * x.sin().detach(), c * 2),
        lambda c, x: (c + x.round(), x * 2),
        lambda c, x: (c + Straight.apply(x), x * 2),
    ]

    def run(device, fn):
        init, xs = leaves(device, (3, 3), (4, 3, 3))
        carry, ys = scan(fn, init, xs)
        weights = torch.arange(9.0, device=device).reshape(3, 3)
        loss = (carry * weights).sum() + (ys * weights.exp().t()).sum()
        return carry, ys, torch.autograd.grad(loss, (init, xs), allow_unused=True)

    for fn in functions:
        close(run("xla", fn), run("cpu", fn), rtol=1e-4, atol=1e-4)


def gradients_of(device, fn, *shapes, rows=4):
    """Results and all gradients of a scan of fn(*captured)(carry, x)."""
    init, xs, *captured = leaves(device, (3,), (rows, 3), *shapes)
    carry, ys = scan(fn(*captured), init, xs)
    loss = carry.double().sin().sum() + ys.double().square().sum()
    return carry, ys, torch.autograd.grad(loss, (init, xs, *captured), allow_unused=True)


def of_inner_scan(weight):
    def fn(carry, x):
        return scan(lambda c, r: (c * weight + r, (c * weight).sin().sum()), carry, x.expand(2, 3))

    return fn


def of_own_gradient(weight):
    def fn(carry, x):
        y = (carry * weight).sin().sum()
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (g,) = torch.autograd.grad((leaf**3).sum(), leaf)
        return carry + g, y * x

    return fn


@pytest.mark.parametrize(
    "fn",
    [
        of_inner_scan,
        of_own_gradient,
        lambda w: lambda c, x: (c + x, w * 1),
        lambda w: lambda c, x: (c + x, w),
        lambda w: lambda c, x: (w, c),
        lambda w: lambda c, x: (c + Straight.apply(w), x * w),
        lambda w: lambda c, x: (c * torch.tensor(2.0), x * w),
        lambda w: lambda c, x: (c.detach() * 2, x * w + c),
        lambda w: lambda c, x: (torch.ones_like(c), x * w * c),
        lambda w: (
            lambda c, x: (c + nn.functional.batch_norm(x[None], w.detach(), w.detach() ** 2)[0], w)
        ),
        lambda w: (
            lambda c, x: (
                c
                + nn.functional.cross_entropy(x * w, torch.tensor(1, device=x.device), w.detach()),
                x,
            )
        ),
        lambda w: (
            lambda c, x: (checkpoint(lambda a, b: (a * b).sin(), c, w, use_reentrant=False), x)
        ),
    ],
)
def test_gradients_of(fn):
    close(gradients_of("xla", fn, (3,)), gradients_of("cpu", fn, (3,)), rtol=1e-4, atol=1e-5)


def test_a_weight_that_is_computed_outside():
    def run(device):
        init, xs, weight = leaves(device, (3,), (4, 3), (6,))
        view, made = weight[1:4], weight[::2] * 2
        carry, ys = scan(lambda c, x: (c * view + x, (c * made).sin()), init, xs)
        return torch.autograd.grad(carry.sum() + ys.sum(), (init, xs, weight))

    close(run("xla"), run("cpu"), rtol=1e-4, atol=1e-5)


def test_a_gradient_twice_and_of_a_gradient():
    init, xs = leaves("xla", (3,), (4, 3))
    carry, ys = scan(lambda c, x: (c * x, (c * x).sin()), init, xs)
    first = torch.autograd.grad(ys.sum(), xs, retain_graph=True)
    close(torch.autograd.grad(ys.sum(), xs, retain_graph=True), first)
    (gradient,) = torch.autograd.grad(ys.sum(), xs, create_graph=True)
    with pytest.raises(RuntimeError, match="scan: expected one derivative"):
        gradient.square().sum().backward()


def test_a_body_that_seeds_is_refused():
    xs = torch.ones(2, 3, device="xla")

    def fn(carry, x):
        torch.manual_seed(3)
        return carry + torch.rand_like(x), None

    torch.rand(3, device="xla")
    with pytest.raises(RuntimeError, match="leaves the random state"):
        scan(fn, torch.zeros(3, device="xla"), xs)


def test_threads_scan_at_once():
    expected = gradients_of("cpu", lambda w: lambda c, x: (c * w + x, c.sin()), (3,))

    def run(_):
        return gradients_of("xla", lambda w: lambda c, x: (c * w + x, c.sin()), (3,))

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(run, range(8)):
            close(found, expected, rtol=1e-4, atol=1e-5)


def test_autocast_inside_the_body_holds_in_both_passes():
    init, xs, weight = leaves("xla", (4, 4), (3, 4, 4), (4, 4))

    def fn(carry, x):
        with torch.autocast("xla", enabled=False):
            return carry + x, carry @ weight

    with torch.autocast("xla", torch.bfloat16):
        _, ys = scan(fn, init, xs)
    assert ys.dtype == torch.float32
    with torch.no_grad():
        close(ys, scan(fn, init, xs)[1])


def test_dropout_differs_from_row_to_row_and_its_gradient_does_not():
    torch.manual_seed(0)
    xs = torch.ones(8, 100, device="xla", requires_grad=True)
    carry = torch.zeros((), device="xla")
    _, ys = scan(lambda c, x: (c, nn.functional.dropout(x, 0.5)), carry, xs)
    (gradient,) = torch.autograd.grad(ys.sum(), xs)
    assert len({tuple(row.tolist()) for row in ys.cpu()}) == 8
    close(gradient, ys)
    assert 0.4 < (ys > 0).float().mean().item() < 0.6


def test_a_function_that_changes_is_seen():
    factor = [1.0]
    xs = torch.ones(2, 3, device="xla", requires_grad=True)

    def fn(carry, x):
        return carry + x * factor[0], None

    for factor[0] in (1.0, 2.0):
        close(scan(fn, torch.zeros(3, device="xla"), xs)[0], torch.full((3,), 2 * factor[0]))


def test_scan_under_autocast():
    init, xs, weight = leaves("xla", (4, 4), (3, 4, 4), (4, 4))

    def run():
        return scan(lambda c, x: ((c @ weight).float() + x, c @ x), init, xs)

    with torch.autocast("xla", torch.bfloat16):
        carry, ys = run()
    assert ys.dtype == torch.bfloat16 and carry.dtype == torch.float32
    assert run()[1].dtype == torch.float32


def test_scan_says_what_is_wrong():
    c, xs = torch.zeros(3, device="xla"), torch.ones(2, 3, device="xla")
    with pytest.raises(ValueError, match="`fn` must be callable"):
        scan(1000, c, xs)
    with pytest.raises(ValueError, match="at least one tensor"):
        scan(lambda c, x: (c, x), c, ())
    with pytest.raises(ValueError, match="xs of one length, got tensors of shapes"):
        scan(lambda c, x: (c, x), c, (xs, xs[:1]))
    with pytest.raises(TypeError, match="trees of tensors, got a float"):
        scan(lambda c, x: (c, x), 1.0, xs)
    with pytest.raises(RuntimeError, match="return \\(carry, y\\), got a Tensor"):
        scan(lambda c, x: c, c, xs)
    with pytest.raises(RuntimeError, match="keep the carry's structure"):
        scan(lambda c, x: ((c, c), x), c, xs)
    with pytest.raises(RuntimeError, match="keep dtypes and sizes, got Float\\[2\\]"):
        scan(lambda c, x: (c[:2], x), c, xs)
    with pytest.raises(RuntimeError, match="trees of tensors and None, got a int"):
        scan(lambda c, x: (c, 3), c, xs)
    with pytest.raises(RuntimeError, match="placeholder"):
        scan(lambda c, x: (c + x.sum().item(), x), c, xs)
    with pytest.raises(RuntimeError, match="write"):
        scan(lambda c, x: (c + xs.add_(1)[0], x), c, xs)
    close(xs, torch.ones(2, 3))


# --- scan_layers -----------------------------------------------------------------------------


def transformer_layers(count):
    return nn.ModuleList(
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(count)
    )


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("pure", [False, True])
def test_scan_layers(partition, pure):
    torch.manual_seed(0)
    here = transformer_layers(3)
    there = copy.deepcopy(here).to("xla")
    x = torch.randn(2, 5, 16)
    for _ in range(2):
        h = x
        for layer in here:
            h = layer(h)
        h.square().mean().backward()
        found = scan_layers(there, x.to("xla"), partition, pure)
        found.square().mean().backward()
        close(found, h, rtol=1e-4, atol=1e-5)
        for p, q in zip(there.parameters(), here.parameters(), strict=True):
            close(p.grad, q.grad, rtol=1e-3, atol=1e-5)
        with torch.no_grad():
            for p in (*here.parameters(), *there.parameters()):
                p.sub_(0.1)


def test_the_program_does_not_grow_with_the_layers():
    lines = []
    for count in (2, 12):
        layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(count)).to("xla")
        result = scan_layers(layers, torch.ones(4, device="xla"))
        lines.append(text(result).count("stablehlo.dot_general"))
    assert lines == [1, 1]


def test_layers_of_several_arguments_and_of_none():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.rand(3))

        def forward(self, a, b):
            return b * self.scale, a + b

    here = [Two() for _ in range(3)]
    there = [copy.deepcopy(layer).to("xla") for layer in here]
    a, b = torch.rand(3), torch.rand(3)
    expected = (a, b)
    for layer in here:
        expected = layer(*expected)
    close(scan_layers(there, (a.to("xla"), b.to("xla"))), expected)
    x = torch.rand(3, device="xla")
    assert scan_layers([], x) is x
    close(scan_layers([nn.ReLU(), nn.ReLU()], x - 0.5), (x.cpu() - 0.5).relu())
    close(scan_layers(here, (a, b)), expected)  # not on xla


def test_layers_that_share_a_part():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.b = self.a
            self.tied = self.a.weight

        def forward(self, x):
            return self.b(self.a(x).sin()) + x @ self.tied

    torch.manual_seed(0)
    here = nn.ModuleList(Shared() for _ in range(3))
    there = copy.deepcopy(here).to("xla")
    names = list(there.state_dict())
    x = torch.rand(2, 3)
    for run in (scan_layers, lambda layers, x: PureModule(layers[0])(x)):
        count = 3 if run is scan_layers else 1
        here.zero_grad()
        there.zero_grad()
        expected = x
        for layer in here[:count]:
            expected = layer(expected)
        expected.square().sum().backward()
        found = run(there, x.to("xla"))
        found.square().sum().backward()
        close(found, expected, rtol=1e-4, atol=1e-5)
        for layer, other in zip(there[:count], here[:count], strict=True):
            for p, q in zip(layer.parameters(), other.parameters(), strict=True):
                close(p.grad, q.grad, rtol=1e-4, atol=1e-4)
    assert list(there.state_dict()) == names and there[0].a is there[0].b
    assert isinstance(there[0].a.weight, nn.Parameter)


def test_frozen_parameters_and_statistics():
    torch.manual_seed(0)
    here = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)) for _ in range(3)).eval()
    for layer in here:
        layer[0].weight.requires_grad_(False)
    there = copy.deepcopy(here).to("xla")
    x = torch.rand(2, 3)
    expected = x
    for layer in here:
        expected = layer(expected)
    expected.square().sum().backward()
    found = scan_layers(there, x.to("xla"))
    found.square().sum().backward()
    close(found, expected, rtol=1e-4, atol=1e-5)
    for p, q in zip(there.parameters(), here.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if q.grad is not None:
            close(p.grad, q.grad, rtol=1e-4, atol=1e-4)


def test_scan_layers_says_what_differs():
    with pytest.raises(ValueError, match="same parts in the same mode"):
        scan_layers([nn.ReLU().to("xla"), nn.Tanh().to("xla")], torch.ones(4, device="xla"))
    with pytest.raises(ValueError, match="same parts in the same mode"):
        scan_layers([nn.Dropout(), nn.Dropout().eval()], torch.ones(4, device="xla"))
    x = torch.ones(4, device="xla")
    layers = [nn.Linear(4, 4), nn.Linear(4, 4, bias=False)]
    with pytest.raises(ValueError, match="layer 1, which differs in bias"):
        scan_layers([layer.to("xla") for layer in layers], x)
    layers = [nn.Linear(4, 4), nn.Linear(4, 5)]
    with pytest.raises(ValueError, match="weight of shape \\(4, 4\\) and torch.float32"):
        scan_layers([layer.to("xla") for layer in layers], x)


def test_layers_that_were_scanned_are_freed():
    layers = [nn.Linear(4, 4).to("xla") for _ in range(2)]
    weight = weakref.ref(layers[0].weight)
    scan_layers(layers, torch.ones(4, device="xla"), is_layer_pure=True).sum().backward()
    del layers
    gc.collect()
    assert weight() is None


# --- loops ---------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_fori_loop(device):
    lower, upper = torch.tensor([2], device=device), torch.tensor([52], device=device)
    plus, start = torch.tensor([3.0], device=device), torch.tensor([1.0], device=device)
    found = fori_loop(lower, upper, lambda a, b: a + b, plus, start)
    assert [t.item() for t in found] == [52, 52, 3.0, 151.0]
    found = fori_loop(0, 5, lambda a, b: (b, a + b), plus, start)
    expected = (3.0, 1.0)
    for _ in range(5):
        expected = (expected[1], sum(expected))
    assert [t.item() for t in found[2:]] == list(expected)
    assert fori_loop(5, 5, lambda a: a + 1, start)[2].item() == 1.0
    with pytest.raises(ValueError, match="at least one value"):
        fori_loop(0, 5, lambda: ())
    with pytest.raises(ValueError, match="bounds of one integer, got torch.float32"):
        fori_loop(0.5, 5, lambda a: a, start)


def test_while_loop_with_additional_inputs():
    def run(device):
        x, step = torch.ones(3, device=device), torch.tensor(2.0, device=device)
        return while_loop(lambda x, step: x.sum() < 20, lambda x, step: (x + step,), (x,), (step,))

    close(run("xla"), run("cpu"))
    x = torch.ones(3, device="xla")
    found = _xla_while_loop(lambda x, s: x.sum() < 20, lambda x, s: (x + s,), (x,), (x * 2,))
    assert isinstance(found, tuple)
    close(found, run("cpu"))


def test_gradient_accumulation():
    torch.manual_seed(0)
    here = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    there = copy.deepcopy(here).to("xla")
    x, y = torch.randn(4, 6, 5), torch.randint(3, (4, 6))
    count = torch.zeros((), dtype=torch.int64)
    loss = nn.functional.cross_entropy(here(x.reshape(24, 5)), y.reshape(24))
    for _ in range(2):  # the second adds to the first
        loss.backward(retain_graph=True)

        def step(x, y, count):
            return nn.functional.cross_entropy(there(x), y), count + len(x)

        found, total = gradient_accumulation(
            step, (x.to("xla"), y.to("xla")), there, count.to("xla")
        )
        close(found, loss)
        assert total.item() == 24
        for p, q in zip(there.parameters(), here.parameters(), strict=True):
            close(p.grad, q.grad, rtol=1e-4, atol=1e-6)
    two = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)]).to("xla")
    gradient_accumulation(lambda x: two[0](x).sum(), (torch.ones(3, 4, device="xla"),), two)
    close(two[0].bias.grad, torch.ones(2))
    assert two[1].weight.grad is None
    double = nn.Linear(4, 2).double().to("xla")
    total = gradient_accumulation(
        lambda x: double(x).sum(), (torch.ones(3, 2, 4, device="xla").double(),), double
    )
    assert total.dtype == torch.float64
    close(double.weight.grad, torch.full((2, 4), 2.0, dtype=torch.float64))
    alone = gradient_accumulation(
        lambda x, y: nn.functional.cross_entropy(there(x), y), (x.to("xla"), y.to("xla")), there
    )
    close(alone, loss)
    with pytest.raises(RuntimeError, match="the loss and 1 carried tensors, got 0"):
        gradient_accumulation(
            lambda x, count: there(x).sum(), (x.to("xla"),), there, count.to("xla")
        )


def test_gru():
    torch.manual_seed(0)
    here = GRU(4, 5, num_layers=2, batch_first=True)
    there = copy.deepcopy(here).to("xla")
    x = torch.randn(3, 6, 4)
    close(there(x.to("xla")), here(x), rtol=1e-4, atol=1e-5)


# --- assume_pure, pytreeify --------------------------------------------------------------------


def test_assume_pure_runs_python_once_for_equal_shapes():
    weight = torch.rand(3, device="xla", requires_grad=True)
    calls = []

    @assume_pure
    def function(x, *, factor, pair):
        """Doc."""
        calls.append(x.shape)
        return {"y": (x * weight * factor).sin(), "n": 3, "p": [pair[0] + pair[1], None]}

    assert function.__doc__ == "Doc."
    for size in (2, 2, 5, 2, 5):
        x = torch.rand(size, 3, device="xla", requires_grad=True)
        pair = (torch.ones(2, device="xla"), torch.rand(2, device="xla"))
        before = len(calls)
        result = function(x, factor=2.0, pair=pair)
        expected = (x.cpu() * weight.cpu() * 2).sin()
        close(result, {"y": expected, "n": 3, "p": [pair[0].cpu() + pair[1].cpu(), None]})
        close(
            torch.autograd.grad(result["y"].sum(), (x, weight)),
            torch.autograd.grad(expected.sum(), (x, weight)),
        )
        with torch.no_grad():
            weight.mul_(1.5)  # its value is read at each call
    first = len(calls)
    for size in (2, 5):
        function(torch.rand(size, 3, device="xla"), factor=2.0, pair=pair)
        function(torch.rand(size, 3, device="xla"), factor=2.0, pair=pair)
    assert len(calls) == first or len(calls) > before  # forward alone may have been new
    again = len(calls)
    function(torch.rand(2, 3, device="xla"), factor=2.0, pair=pair)
    assert len(calls) == again
    function(torch.rand(2, 3, device="xla"), factor=3.0, pair=pair)
    assert len(calls) > again


def test_assume_pure_is_recorded_and_its_random_numbers_are_new():
    noise = assume_pure(lambda x: x + torch.rand_like(x))
    x = torch.zeros(50, device="xla")
    results = [noise(x) for _ in range(3)]
    assert "traced_function" in _XLAC._get_xla_tensors_text(results)  # nothing has run
    assert len({tuple(r.tolist()) for r in results}) == 3
    seeded = assume_pure(lambda x: x + torch.rand_like(x), add_rng_seed_argument=True)
    first, second, again = (seeded(x, rng_seed=seed) for seed in (1, 2, torch.tensor(1)))
    assert torch.equal(first.cpu(), again.cpu()) and not torch.equal(first.cpu(), second.cpu())


def test_a_captured_tensor_is_not_taken_for_an_argument():
    weight = torch.full((3,), 2.0, device="xla", requires_grad=True)
    function = assume_pure(lambda x: x * x + weight.sin() * weight)
    for x in (weight, torch.full((3,), 5.0, device="xla", requires_grad=True), weight):
        result = function(x)
        expected = x * x + weight.sin() * weight
        close(result, expected)
        close(
            torch.autograd.grad(result.sum(), (x, weight)),
            torch.autograd.grad(expected.sum(), (x, weight)),
        )


def test_pure_functions_draw_as_others_do():
    def run(module):
        torch.manual_seed(4)
        x = torch.ones(2, 40, device="xla", requires_grad=True)
        first = module(x)
        first.sum().backward()
        return first, module(x)

    dropout = nn.Dropout(0.5)
    close(run(PureModule(dropout)), run(dropout))


def test_arguments_of_pure_functions_are_told_apart():
    divide = assume_pure(lambda a, s: a / s)
    ones = torch.ones(2, device="xla")
    for number in (0.0, -0.0, 1, True, 1.0, 2.0):
        close(divide(ones, number), torch.ones(2) / number)
    with pytest.raises(TypeError, match="assume_pure: expected arguments .* got a set"):
        assume_pure(lambda a, s: a)(ones, {1})
    part = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).to("xla")
    module = PureModule(part)
    part.eval()
    close(module(ones), module(ones))
    part[1].train()
    assert any((module(ones) == 0).any().item() for _ in range(20))


def test_results_of_pure_functions_are_new():
    def function(x):
        return x, x[:1], x * 2

    x = torch.ones(2, device="xla")
    results = assume_pure(function)(x)
    for result in results:
        result.add_(1)
    close(x, torch.ones(2))
    with pytest.raises(RuntimeError, match="does not write its arguments"):
        assume_pure(lambda x: x.add_(1))(x)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(assume_pure(lambda x: x * x)(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="assume_pure: expected one derivative"):
        gradient.sum().backward()


def test_pure_module():
    torch.manual_seed(0)
    here = transformer_layers(1)[0]
    there = PureModule(copy.deepcopy(here).to("xla"))
    x = torch.randn(2, 5, 16)
    for _ in range(2):
        expected, found = here(x), there(x.to("xla"))
        close(found, expected, rtol=1e-4, atol=1e-5)
        expected.square().sum().backward()
        found.square().sum().backward()
        with torch.no_grad():
            for p, q in zip(there.parameters(), here.parameters(), strict=True):
                close(p.grad, q.grad, rtol=1e-3, atol=1e-4)
                p.sub_(0.1)
                q.sub_(0.1)


def test_under_torch_compile():
    torch._dynamo.reset()
    weight = torch.rand(3, device="xla", requires_grad=True)
    xs = torch.rand(2, 3, device="xla")
    pure = assume_pure(lambda x: (x * weight).sin())
    compiled = torch.compile(lambda x: (x * weight).sin(), backend="openxla")
    functions = (
        lambda x: scan(lambda c, r: (c + r, c * weight + r * weight), x[0], x)[1],
        pure,
        assume_pure(lambda x: compiled(x) + 1),
        lambda x: scan(lambda c, r: (compiled(c), r * weight), x[0], x)[0],
    )
    for function in functions:
        expected = function(xs)
        gradient = torch.autograd.grad(expected.sum(), weight)
        found = torch.compile(function, backend="openxla")(xs)
        close(found, expected)
        close(torch.autograd.grad(found.sum(), weight), gradient)


def test_pytreeify():
    @pytreeify
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tree, factor):
            ctx.save_for_backward(factor)
            return {"a": tree["a"] * factor, "b": [tree["b"] + 1]}

        @staticmethod
        def backward(ctx, gradients):
            (factor,) = ctx.saved_tensors
            return {"a": gradients["a"] * factor, "b": gradients["b"][0] * 10}, None

    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    result = Scale.apply({"a": a, "b": b}, torch.tensor(3.0))
    close(result, {"a": torch.full((2,), 3.0), "b": [torch.full((2,), 2.0)]})
    close(
        torch.autograd.grad(result["a"].sum() + result["b"][0].sum(), (a, b)),
        (torch.full((2,), 3.0), torch.full((2,), 10.0)),
    )
