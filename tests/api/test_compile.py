"""torch_xla.compile and eager mode: graphs, values, limits, errors.

Units: executor/step/compiled_region, _src/functions/compiling.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla import _XLAC
from torch_xla.experimental import eager_mode, eager_mode_context, is_eager_mode

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def lazy_and_idle():
    torch_xla.sync(wait=True)
    yield
    eager_mode(False)


def close(found, expected):
    assert found.device.type == "xla"
    torch.testing.assert_close(found.detach().cpu(), expected.detach(), **TOLERANCE)


def is_pending(tensor):
    return "aten::" in _XLAC._get_xla_tensors_text([tensor])


@contextlib.contextmanager
def runs(expected):
    """The block launches so many programs."""

    def count():
        names = ("ExecuteTime", "EagerOpExecuteTime")
        return sum((met.metric_data(name) or (0,))[0] for name in names)

    before = count()
    yield
    torch_xla.sync(wait=True)
    assert count() - before == expected


def names_of_programs():
    return {p["name"] for p in _XLAC._xla_programs()}


def trained(step_maker, steps=6):
    """Losses, parameters and statistics of a training on xla, beside the CPU's."""
    torch.manual_seed(0)
    layers = (nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    models = [nn.Sequential(*layers)]
    models.append(copy.deepcopy(models[0]).to("xla"))
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.05) for m in models]
    steps_of = []
    for model, optimizer in zip(models, optimizers, strict=True):

        def step(x, y, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        steps_of.append(step)
    steps_of[1] = step_maker(steps_of[1])
    for i in range(steps):
        x, y = torch.randn(32, 8), torch.randint(4, (32,))
        expected = steps_of[0](x, y)
        found = steps_of[1](x.to("xla"), y.to("xla"))
        assert not is_pending(found), i
        close(found, expected)
    for name, expected in models[0].state_dict().items():
        close(models[1].state_dict()[name], expected)


@pytest.mark.parametrize("eager", [False, True])
def test_a_training_step_is_one_graph(eager):
    def make(step):
        one_graph = torch_xla.compile(step, full_graph=True, max_different_graphs=2)
        if not eager:
            return one_graph

        is_first = [True]  # moments of zeros are made data by a program of their own

        def counted(*batch):
            with runs(2 if is_first.pop(0) else 1):
                is_first.append(False)
                return one_graph(*batch)

        return counted

    with eager_mode_context(eager):
        trained(make)
    assert any("step" in name for name in names_of_programs())


def test_without_parentheses_with_them_and_as_a_block():
    @torch_xla.compile
    def one(x):
        return x.sin() + 1

    @torch_xla.compile(name="named", full_graph=True)
    def two(x):
        return x.cos() + 1

    x = torch.randn(5)
    on_xla = x.to("xla")
    for function, expected in ((one, x.sin() + 1), (two, x.cos() + 1)):
        with runs(1):
            y = function(on_xla)
            assert not is_pending(y)
        close(y, expected)
    with runs(1), torch_xla.compile():
        y = on_xla.exp() * 2
        assert is_pending(y)
    close(y, x.exp() * 2)
    assert (one.__name__, two.__name__) == ("one", "two")
    assert {"named", "compile"} <= names_of_programs()
    assert "one" in names_of_programs()


def test_a_module():
    on_cpu = nn.Linear(3, 2)
    run = torch_xla.compile(copy.deepcopy(on_cpu).to("xla"))
    x = torch.randn(4, 3)
    close(run(x.to("xla")), on_cpu(x))
    assert "Linear" in names_of_programs()


def test_what_was_recorded_before_is_another_graph():
    x = torch.ones(3, device="xla")
    before = x + 1
    with runs(2):
        after = torch_xla.compile(lambda y: y * 2)(before)
    close(after, torch.full((3,), 4.0))


def test_an_inner_function_belongs_to_the_outer_graph():
    inner = torch_xla.compile(lambda x: x.sinh(), full_graph=True, max_different_graphs=1)

    @torch_xla.compile(full_graph=True)
    def outer(x):
        return inner(inner(x)) + inner(x + 1)

    x = torch.randn(4)
    with runs(1):
        y = outer(x.to("xla"))
    close(y, x.sinh().sinh() + (x + 1).sinh())


@pytest.mark.parametrize(
    "breaks",
    [
        lambda y: y.sum().item(),
        lambda y: bool(y.sum() > 0),
        lambda y: y.cpu(),
        lambda y: print(y),
        lambda y: torch_xla.sync(),
        lambda y: torch.nonzero(y > 0),
    ],
    ids=["item", "bool", "cpu", "print", "sync", "nonzero"],
)
def test_full_graph_refuses_a_break(breaks):
    x = torch.randn(4)

    def broken(x):
        y = x.tan()
        breaks(y)
        return y * 2

    whole = torch_xla.compile(broken, full_graph=True)
    with pytest.raises(
        RuntimeError, match='expected "broken" to be one graph, got a .* inside'
    ) as e:
        whole(x.to("xla"))
    assert str(e.value).startswith(
        "Unexpected execution happens inside the compiled function, exiting\n"
    )
    # Nothing is lost, and the next call is as before.
    close(torch_xla.compile(broken)(x.to("xla")), x.tan() * 2)
    close(torch_xla.compile(lambda x: x.tan(), full_graph=True)(x.to("xla")), x.tan())


def test_a_break_in_backward_is_refused():
    x = torch.ones(3, device="xla", requires_grad=True)

    @torch_xla.compile(full_graph=True)
    def step():
        y = x.sin()
        y.register_hook(lambda g: g * g.sum().item())
        y.sum().backward()

    with pytest.raises(RuntimeError, match="full_graph=True"):
        step()


def test_values_that_are_there_may_be_read():
    scale = torch.tensor(3.0, device="xla")
    torch_xla.sync()
    scaled = torch_xla.compile(lambda x: x * scale.item(), full_graph=True)
    close(scaled(torch.ones(2, device="xla")), torch.full((2,), 3.0))


def test_the_number_of_graphs():
    @torch_xla.compile(max_different_graphs=2)
    def rows(x):
        return x.sqrt().sum(0)

    for size in (3, 4, 3, 4):
        close(rows(torch.ones(size, 2, device="xla")), torch.full((2,), float(size)))
    with pytest.raises(RuntimeError) as raised:
        rows(torch.ones(5, 2, device="xla"))
    text = str(raised.value)
    assert text.startswith(
        "Maximum number of different graphs allowed per function exceeded: 2\n"
        "Got: [] aten::sqrt, xla_shape=f32[5,2]{1,0}, dynamic_dims: ()\n"
        "Expected either of:\n"
        "  - [] aten::sqrt, xla_shape=f32[3,2]{1,0}, dynamic_dims: ()\n"
        "  - [] aten::sqrt, xla_shape=f32[4,2]{1,0}, dynamic_dims: ()\n"
        'torch_xla.compile of "rows": '
    )
    assert "`self` of aten::sqrt is Float[5,2], was Float[4,2], at " + __file__ in text
    close(rows(torch.ones(4, 2, device="xla")), torch.full((2,), 4.0))


def test_graphs_are_those_of_a_function():
    def rows(x):
        return x.sqrt()

    def call(most, size):
        torch_xla.compile(rows, max_different_graphs=most)(torch.ones(size, device="xla"))

    torch_xla.compile(rows)(torch.ones(2, device="xla"))  # without a limit none are counted
    call(1, 3)
    call(1, 3)
    with pytest.raises(RuntimeError) as raised:
        call(1, 4)
    assert str(raised.value).startswith(
        "Maximum number of different graphs allowed per function exceeded: 1\n"
        "Got: [] aten::sqrt, xla_shape=f32[4]{0}, dynamic_dims: ()\n"
        "Expected: [] aten::sqrt, xla_shape=f32[3]{0}, dynamic_dims: ()\n"
    )
    call(2, 4)
    with pytest.raises(RuntimeError, match="exceeded: 2\n"):
        call(2, 5)
    torch_xla.compile(lambda x: x.sqrt(), max_different_graphs=1)(torch.ones(6, device="xla"))


def test_a_function_whose_graphs_are_counted_is_let_go():
    def twice(x):
        return x * 2

    torch_xla.compile(twice, max_different_graphs=1)(torch.ones(6, device="xla"))
    seen = weakref.ref(twice)
    del twice
    gc.collect()
    assert seen() is None


def test_a_graph_that_ends_early_or_goes_on():
    calls = 1

    def steps(x):
        x = x.sqrt()
        for _ in range(calls):
            x = x.sin()
        return x

    x = torch.ones(3, device="xla")
    compiled = torch_xla.compile(steps, max_different_graphs=1)
    compiled(x)
    calls = 0
    end = "Reached the end of the function at: .* aten::sqrt, .*\nExpected: .* aten::sin, xla_shape"
    with pytest.raises(RuntimeError, match=end):
        compiled(x)
    calls = 2
    with pytest.raises(
        RuntimeError, match="Got: .* aten::sin.*\nExpected: the end of the function\n"
    ):
        compiled(x)


def test_its_old_name():
    rows = torch_xla.experimental.compile(lambda x: x + 1, num_different_graphs_allowed=1)
    rows(torch.ones(2, device="xla"))
    with pytest.raises(RuntimeError, match="graphs allowed per function exceeded: 1\n"):
        rows(torch.ones(3, device="xla"))


def test_arguments_are_checked():
    def generator():
        yield 1

    async def coroutine():
        pass

    for wrong in (3, generator, coroutine):
        with pytest.raises(TypeError, match="expected a function"):
            torch_xla.compile(wrong)
    with pytest.raises(ValueError, match="at least one"):
        torch_xla.compile(lambda: None, max_different_graphs=0)
    with pytest.raises(ValueError, match="both"):
        torch_xla.compile(lambda: None, max_different_graphs=1, num_different_graphs_allowed=1)


@pytest.mark.parametrize(
    "make", [lambda f: torch_xla.compile(f, full_graph=True), lambda f: torch_xla.step()(f)]
)
def test_what_was_recorded_before_an_exception_is_launched(make):
    kept = []

    def raises(x):
        kept.append(x.sin())
        raise KeyError("mine")

    x = torch.randn(3)
    with pytest.raises(KeyError, match="mine"):
        make(raises)(x.to("xla"))
    assert not _XLAC._xla_in_region()
    assert not is_pending(kept[0])
    close(kept[0], x.sin())


def test_a_block_that_raises_ends_its_step():
    x = torch.zeros(3, device="xla")
    torch_xla.sync()
    with pytest.raises(KeyError), torch_xla.step():
        x += 1
        raise KeyError
    assert not is_pending(x)
    assert x.tolist() == [1, 1, 1]


def test_step_closures_run_after_a_compiled_function():
    seen = []

    @torch_xla.compile(full_graph=True)
    def step(x):
        loss = (x * 2).sum()
        xm.add_step_closure(lambda value: seen.append(value.item()), args=(loss,))
        return loss

    x = torch.ones(3).to("xla")
    with runs(1):
        step(x)
        assert seen == [6.0]


def test_threads_have_regions_of_their_own():
    x = torch.randn(3)
    inside, outside = threading.Event(), threading.Event()

    @torch_xla.compile(full_graph=True)
    def waits(x):
        y = x.sin()
        inside.set()
        assert outside.wait(30)
        return y

    found = []
    thread = threading.Thread(target=lambda: found.append(waits(x.to("xla"))))
    thread.start()
    assert inside.wait(30)
    assert (x.to("xla") + 1).sum().item() == pytest.approx((x + 1).sum().item(), rel=1e-5)
    outside.set()
    thread.join()
    close(found[0], x.sin())


def test_torch_compile_inside_is_a_part_of_the_graph():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.sin() * 2, backend="openxla")

    @torch_xla.compile(full_graph=True)
    def outer(x):
        return compiled(x + 1) - 1

    x = torch.randn(3)
    for _ in range(2):
        with runs(1):
            y = outer(x.to("xla"))
        close(y, (x + 1).sin() * 2 - 1)


# --- eager mode -------------------------------------------------------------------------------


def test_eager_mode_runs_each_operation():
    assert not is_eager_mode()
    x = torch.randn(4, 3)
    on_xla = x.to("xla")
    eager_mode(True)
    assert is_eager_mode()
    with runs(3):
        y = on_xla.sin()
        assert not is_pending(y)
        z = y + 1
        z.mul_(2)
        assert not is_pending(z)
    close(z, (x.sin() + 1) * 2)
    eager_mode(False)
    assert not is_eager_mode()
    assert is_pending(on_xla.cos())


def test_eager_mode_launches_what_was_recorded():
    y = torch.ones(3, device="xla") + 1
    assert is_pending(y)
    eager_mode(True)
    assert not is_pending(y)


@pytest.mark.parametrize("before", [False, True])
def test_the_context_returns_to_the_mode_before(before):
    eager_mode(before)
    with pytest.raises(KeyError), eager_mode_context(not before):
        assert is_eager_mode() is not before
        raise KeyError
    assert is_eager_mode() is before


def test_views_and_writes_in_eager_mode():
    x = torch.arange(12.0).view(3, 4)
    on_xla = x.to("xla")
    with eager_mode_context(True):
        for t in (x, on_xla):
            row = t[1]
            row += 10
            t.t()[2] *= 3
            t[:, 0].copy_(torch.ones(3, device=t.device))
        close(on_xla, x)
        close(on_xla[1], x[1])
        close(torch.zeros(3, device="xla").fill_(2), torch.full((3,), 2.0))


def test_training_in_eager_mode():
    with eager_mode_context(True):
        trained(lambda step: step)


def test_a_compiled_function_in_eager_mode():
    x = torch.randn(6)
    on_xla = x.to("xla")

    @torch_xla.compile
    def function(x):
        assert not is_eager_mode()
        y = x.sin() + x.cos()
        assert is_pending(y)
        return y * 2

    with eager_mode_context(True):
        with runs(1):
            y = function(on_xla)
        close(y, (x.sin() + x.cos()) * 2)
        with runs(1):
            y = y + 1


def test_a_step_in_eager_mode():
    x = torch.randn(3)
    on_xla = x.to("xla")
    with eager_mode_context(True), runs(1), torch_xla.step():
        y = on_xla.sin() + on_xla.cos()
        assert is_pending(y)
    close(y, x.sin() + x.cos())


def test_random_numbers_are_the_same_in_both_modes():
    def numbers():
        torch_xla.manual_seed(3)
        return torch.rand(4, device="xla"), torch.randn(3, device="xla")

    lazily = [t.cpu() for t in numbers()]
    with eager_mode_context(True):
        for expected, found in zip(lazily, numbers(), strict=True):
            assert torch.equal(expected, found.cpu())


def test_a_failure_is_reported_in_eager_mode():
    with eager_mode_context(True):
        with pytest.raises(RuntimeError):
            torch.ones(2, device="xla") + torch.ones(3, device="xla")
        with pytest.raises(torch.linalg.LinAlgError):
            torch.linalg.inv(torch.zeros(2, 2, device="xla")).sum().item()
        close(torch.ones(2, device="xla") + 1, torch.full((2,), 2.0))


def test_replay_says_what_to_use():
    for call in (
        lambda: torch_xla.compile(replay=True),
        lambda: torch_xla.compile(abs, replay=True),
    ):
        with pytest.raises(ValueError, match=r'torch.compile\(step, backend="openxla"\)'):
            call()
    assert (
        torch_xla.compile(lambda x: x + 1, replay=False)(torch.ones((), device="xla")).item() == 2
    )
