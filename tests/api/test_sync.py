"""Lazy execution, barriers, step closures and the optimizer's step.

Units: _src/functions/step.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import nn, optim

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr
from torch_xla import _XLAC


@pytest.fixture(autouse=True)
def clean():
    torch_xla.sync(wait=True)
    met.clear_all()
    yield
    torch_xla.sync(wait=True)


def counter(name: str) -> int:
    return met.counter_value(name) or 0


def samples(name: str) -> int:
    data = met.metric_data(name)
    return data[0] if data else 0


def pending(tensor: torch.Tensor) -> bool:
    return "aten::" in torch_xla._XLAC._get_xla_tensors_text([tensor])


# Barriers and the device

LONG = {  # programs that the CPU plugin takes for cheap
    "kernels of PyTorch's": ((600, 600), lambda x: torch.tanh(x @ x), 60),
    "a copy": ((2000, 4, 2000), lambda x: x.transpose(0, 2).contiguous(), 1),
}


def launch_long(x: torch.Tensor, step: Callable[[torch.Tensor], torch.Tensor], repeats: int):
    for _ in range(repeats):
        x = step(x)
    torch_xla.sync()
    return x


@pytest.mark.parametrize("kind", LONG)
def test_a_barrier_returns_before_its_run_is_done(kind: str):
    shape, step, repeats = LONG[kind]
    x = (torch.arange(math.prod(shape)).view(shape) % 7 / 1000).to("xla")
    launch_long(x, step, repeats)  # compiles
    is_done = True
    for _ in range(5):  # this thread may be kept from looking in time
        torch_xla.sync(wait=True)
        met.clear_all()
        y = launch_long(x, step, repeats)
        runs, sum_of_times, times = met.metric_data("ExecuteTime")
        is_done = torch.xla.current_stream().query()
        if not is_done:
            assert (runs, sum_of_times, times) == (1, 0, [])
            break
    assert not is_done
    torch_xla.sync(wait=True)
    runs, sum_of_times, times = met.metric_data("ExecuteTime")
    assert runs == len(times) == 1 and sum_of_times > 0
    want = x.cpu()
    for _ in range(repeats):
        want = step(want)
    torch.testing.assert_close(y.cpu(), want)


# Lazy execution


def test_operations_wait_for_the_barrier():
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    executed = samples("ExecuteTime")
    y = x * 2 + 1
    assert pending(y) and samples("ExecuteTime") == executed
    torch_xla.sync()
    assert not pending(y) and samples("ExecuteTime") == executed + 1
    assert y.tolist() == [3, 3, 3]
    assert counter("MarkStep") == 2


@pytest.mark.parametrize("barrier", [torch_xla.sync, xm.mark_step])
def test_barriers_are_interchangeable(barrier):
    y = torch.full((2,), 4.0, device="xla") + 1
    barrier()
    assert not pending(y)
    y += 1
    barrier(wait=True)
    barrier(True, True)
    barrier(reset_scope=False)
    assert y.tolist() == [6, 6]


def test_reading_a_value_evaluates_only_what_it_needs():
    x = torch.arange(4.0, device="xla")
    torch_xla.sync()
    y, z = x + 1, x * 3
    transfers = samples("TransferFromDeviceTime")
    assert y.sum().item() == 10
    assert samples("TransferFromDeviceTime") == transfers + 1
    assert pending(z)
    assert z.tolist() == [0, 3, 6, 9]


def test_a_loop_of_reads_computes_nothing_twice():
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    met.clear_all()
    for i in range(6):
        x = x * 2
        assert x.sum().item() == 3 * 2 ** (i + 1)
        assert not pending(x)
    # Were x left pending, each turn would compile a longer program.
    assert counter("UncachedCompile") <= 1 and samples("ExecuteTime") == 6


def test_a_read_runs_what_needs_what_it_computed():
    x = torch.arange(4.0, device="xla")
    torch_xla.sync()
    cache = torch.zeros(1, 4, device="xla")
    met.clear_all()
    for i in range(4):
        # As in a beam search: no tensor holds `joined` when `best` is read.
        joined = torch.cat([cache[:1], (x + i)[None]])
        best = joined.sum(1)
        cache = joined.index_select(0, torch.tensor([1, 0], device="xla"))
        del joined
        best.tolist()
        assert not pending(cache)
    assert counter("UncachedCompile") <= 2 and samples("ExecuteTime") == 4
    assert cache.tolist() == [[3, 4, 5, 6], [2, 3, 4, 5]]


def test_a_read_keeps_what_it_computed_on_the_way_to_others():
    """As in a sampler that looks at the time: `noise` waits for it, and x lies on the way there."""
    times, x = torch.arange(6.0, device="xla"), torch.ones(3, device="xla")
    torch_xla.sync()
    met.clear_all()
    calls = []
    for _ in range(6):
        time = times[0] * 2
        noise = x.tanh() * time
        assert (time - 1 < 0).item()
        assert not pending(noise) and not pending(x)
        x = (x - noise) / 2
        calls.append(len(_XLAC._xla_programs()[0]["calls"]))
    # Were x left out, each turn would compute it from the first one on.
    assert calls[1:] == [calls[1]] * 5
    assert counter("UncachedCompile") <= 2 and samples("ExecuteTime") == 6
    torch.testing.assert_close(x.cpu(), torch.full((3,), 2.0**-6))


def test_a_loss_read_before_its_gradients_runs_once():
    model = torch.nn.Linear(3, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(2, 3, device="xla")
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        executed = samples("ExecuteTime")
        loss.item()
        torch_xla.sync()
        assert samples("ExecuteTime") == executed + 1


def test_a_read_keeps_views_of_what_it_computed():
    x = torch.arange(6.0, device="xla").view(2, 3)
    torch_xla.sync()
    y = x + 1
    z = y.t()
    assert z.tolist() == [[1, 4], [2, 5], [3, 6]]
    executed = samples("ExecuteTime")
    assert z.tolist() == [[1, 4], [2, 5], [3, 6]]
    assert y.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert samples("ExecuteTime") == executed
    y.mul_(2)
    assert z.tolist() == [[2, 8], [4, 10], [6, 12]]


def test_printing_works_anywhere_and_keeps_the_graph():
    x = torch.ones(2, device="xla")
    torch_xla.sync()
    y, z = x + 1, x + 2
    assert repr(y) == "tensor([2., 2.], device='xla:0')"
    assert pending(z)


def test_a_loop_without_barrier_is_one_graph():
    x = torch.ones(2, device="xla")
    z = torch.zeros(2, device="xla")
    torch_xla.sync()
    compiled = counter("UncachedCompile")
    for _ in range(10):
        z = z + x
    torch_xla.sync()
    assert counter("UncachedCompile") == compiled + 1
    assert z.tolist() == [10, 10]


def test_a_loop_with_barriers_compiles_once():
    x = torch.ones(7, device="xla")
    z = torch.zeros(7, device="xla")
    torch_xla.sync()
    met.clear_all()
    for _ in range(10):
        z += x
        xm.mark_step()
    assert counter("UncachedCompile") <= 1
    assert counter("UncachedCompile") + counter("CachedCompile") == 10
    assert z.tolist() == [10.0] * 7


def test_new_shapes_compile_and_old_ones_do_not():
    def step(n: int) -> int:
        met.clear_all()
        x = torch.ones(n, device="xla")
        (x * x + 3).sum()
        y = (x * x + 3).sum()
        torch_xla.sync()
        assert y.item() == 4 * n
        return counter("UncachedCompile")

    xr.clear_computation_cache()
    assert [step(31) > 0, step(32) > 0, step(31) > 0, step(32) > 0] == [True, True, False, False]


def test_changing_scalars_do_not_recompile():
    x = torch.ones(5, device="xla")
    torch_xla.sync()
    compiles = []
    for i in range(6):
        met.clear_all()
        y = x * (1.5 + i) + 0.25 * i
        torch_xla.sync()
        compiles.append(counter("UncachedCompile"))
        assert y[0].item() == 1.5 + i + 0.25 * i
    assert compiles[2:] == [0, 0, 0, 0]


def test_python_control_flow_follows_the_values():
    x = torch.ones(1, device="xla")
    steps = 0
    while x.item() < 100:
        x = x * 3
        steps += 1
    assert steps == 5 and x.item() == 243


def test_barrier_does_not_wait_for_the_device(share_of_the_launch):
    # On a busy machine this thread may be the one that waits; were it to wait for the device, its
    # share would be about 1 each time.
    assert min(share_of_the_launch() for _ in range(10)) < 0.5


def test_wait_device_ops_launches_nothing():
    y = torch.ones(2, device="xla") + 1
    xm.wait_device_ops()
    xm.wait_device_ops([])
    xm.wait_device_ops(["xla:0"])
    xm.wait_device_ops([torch.device("xla:0")])
    assert pending(y)


def test_unlazy():
    y, z = torch.ones(2, device="xla") + 1, torch.ones(3, device="xla") + 1
    xm.unlazy([y])
    assert not pending(y) and pending(z)


def test_computation_cache():
    x = torch.ones(3, device="xla")
    (x + 1).tolist()
    assert xr.get_num_cached_compilation_graph() > 0
    xr.clear_computation_cache()
    assert xr.get_num_cached_compilation_graph() == 0
    assert (x + 1).tolist() == [2, 2, 2]


def test_stablehlo():
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    y, z = x + 1, torch.sin(x)
    text = xm.get_stablehlo([y])
    assert "func.func" in text and "@main" in text
    assert "stablehlo.add" in text and "sine" not in text
    assert "sine" in xm.get_stablehlo()
    assert pending(y) and pending(z)


# step


def test_step_as_context_manager_and_decorator():
    x = torch.ones(3, device="xla")
    y = x + 1
    with torch_xla.step():
        assert not pending(y)
        z = y + 1
        assert pending(z)
    assert not pending(z)

    @torch_xla.step()
    def with_parentheses(t, factor=2):
        """doc"""
        result = t * factor
        assert pending(result)
        return result

    @torch_xla.step
    def without(t):
        return t * 3

    assert not pending(with_parentheses(z, factor=4))
    assert not pending(without(z))
    assert with_parentheses.__name__ == "with_parentheses" and with_parentheses.__doc__ == "doc"
    assert with_parentheses(z).tolist() == [6, 6, 6]


def test_step_that_raises_is_launched_as_well():
    x = torch.ones(3, device="xla")
    with pytest.raises(ZeroDivisionError), torch_xla.step():
        y = x + 1
        _ = 1 / 0
    assert not pending(y)
    assert y.tolist() == [2, 2, 2]


# Step closures


def test_closures_run_after_the_barrier_in_order_with_one_execution():
    x = torch.arange(3.0, device="xla")
    torch_xla.sync()
    met.clear_all()
    seen = []
    loss, other = (x * 2).sum(), (x + 1).sum()
    for name, value in (("loss", loss), ("other", other)):
        xm.add_step_closure(lambda n, v: seen.append((n, v.item())), args=(name, value))
    xm.add_step_closure(seen.append, args=["a list of arguments"])
    xm.add_step_closure(lambda: seen.append("none"))
    assert seen == []
    torch_xla.sync()
    assert seen == [("loss", 6.0), ("other", 6.0), "a list of arguments", "none"]
    assert samples("ExecuteTime") == 1
    torch_xla.sync()
    assert len(seen) == 4


def test_closure_sees_the_tensor_after_the_step():
    x = torch.zeros(2, device="xla")
    seen = []
    xm.add_step_closure(lambda t: seen.append(t.tolist()), args=(x,))
    x += 5
    xm.mark_step()
    assert seen == [[5, 5]]


def test_closure_added_by_a_closure_runs_in_the_same_barrier():
    seen = []
    xm.add_step_closure(lambda: xm.add_step_closure(seen.append, args=(1,)))
    torch_xla.sync()
    assert seen == [1]


def test_exception_in_a_closure_keeps_the_later_ones():
    x = torch.ones(2, device="xla")
    seen = []
    xm.add_step_closure(seen.append, args=("before",))
    xm.add_step_closure(lambda: {}["missing"])
    xm.add_step_closure(seen.append, args=("after",))
    y = x + 1
    with pytest.raises(KeyError, match="missing"):
        torch_xla.sync()
    assert seen == ["before"]
    assert not pending(y)  # the step itself was done
    torch_xla.sync()
    assert seen == ["before", "after"]
    assert (y * 2).tolist() == [4, 4]
    torch_xla.sync()


def test_asynchronous_closures_run_in_order_on_another_thread():
    x = torch.ones(2, device="xla")
    go, seen = threading.Event(), []

    def first(t):
        go.wait(30)
        seen.append((t.sum().item(), threading.current_thread() is threading.main_thread()))

    xm.add_step_closure(first, args=(x + 1,), run_async=True)
    xm.add_step_closure(seen.append, args=("second",), run_async=True)
    torch_xla.sync()
    assert seen == []  # the barrier did not wait
    go.set()
    xm.wait_device_ops()
    assert seen == [(4.0, False), "second"]


def test_exception_in_an_asynchronous_closure_reaches_the_next_barrier():
    def fail():
        raise LookupError("from the closure")

    for barrier in (torch_xla.sync, xm.mark_step):
        xm.add_step_closure(fail, run_async=True)
        torch_xla.sync()
        with pytest.raises(LookupError, match="from the closure"):
            for _ in range(200):
                time.sleep(0.01)
                barrier()
    xm.add_step_closure(fail, run_async=True)
    torch_xla.sync()
    with pytest.raises(LookupError, match="from the closure"):
        xm.wait_device_ops()
    xm.wait_device_ops()  # told once


def test_closure_arguments_are_checked():
    with pytest.raises(TypeError, match="expected a function, got NoneType"):
        xm.add_step_closure(None)
    with pytest.raises(TypeError, match=r"expected args to be a tuple, got Tensor.*\(value,\)"):
        xm.add_step_closure(print, args=torch.ones(1))


# Optimizer


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc = nn.Linear(4 * 6 * 6, 10)

    def forward(self, x):
        return torch.log_softmax(self.fc(torch.relu(self.conv(x)).flatten(1)), dim=1)


def train(device: str, barrier: str, steps: int = 8) -> tuple[list[float], nn.Module]:
    """The training loop of the documentation."""
    torch.manual_seed(0)
    data = [(torch.randn(16, 1, 8, 8), torch.randint(10, (16,))) for _ in range(steps)]
    model = Net().train().to(device)
    loss_fn = nn.NLLLoss()
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for images, target in data:
        optimizer.zero_grad()
        loss = loss_fn(model(images.to(device)), target.to(device))
        loss.backward()
        if barrier == "mark_step":
            optimizer.step()
            xm.mark_step()
        elif barrier == "optimizer_step":
            xm.optimizer_step(optimizer, barrier=True)
        else:
            optimizer.step()
        losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize("barrier", ["mark_step", "optimizer_step"])
def test_training_follows_the_cpu_and_compiles_once(barrier):
    expected, cpu_model = train("cpu", "none")
    train("xla", barrier, steps=3)
    met.clear_all()
    losses, model = train("xla", barrier)
    assert counter("UncachedCompile") == 0
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-4, atol=1e-5)
    for p, q in zip(model.parameters(), cpu_model.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"foreach": False, "fused": False}])
def test_momentum_lives_on_the_device(options):
    """It is made there, is part of each step's one program, and never comes back by itself."""
    torch.manual_seed(0)
    model, images = Net().to("xla"), torch.randn(4, 1, 8, 8).to("xla")
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, **options)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = -model(images)[:, 0].mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(2):
        step()
        torch_xla.sync(wait=True)
    before = [p.detach().cpu() for p in model.parameters()]
    met.clear_all()
    loss = step()
    gradients = [p.grad for p in model.parameters()]
    buffers = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
    assert all(b.device.type == "xla" and pending(b) for b in buffers)
    torch_xla.sync(wait=True)
    assert samples("ExecuteTime") == 1
    assert samples("TransferToDeviceTime") == samples("TransferFromDeviceTime") == 0
    for p, old, buffer, gradient in zip(
        model.parameters(), before, buffers, gradients, strict=True
    ):
        torch.testing.assert_close(p.detach().cpu(), old - 0.05 * buffer.cpu())
        assert not torch.equal(buffer.cpu(), gradient.cpu())  # it holds more than this step's
    assert step().item() < loss.item()  # which reads a loss before any barrier


def test_optimizer_step_passes_arguments_and_returns_the_result():
    p = nn.Parameter(torch.tensor([1.0, 2.0], device="xla"))
    optimizer = optim.SGD([p], lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    loss = xm.optimizer_step(optimizer, optimizer_args={"closure": closure})
    assert pending(p)
    assert loss.item() == 5.0
    assert p.tolist() == [0.0, 0.0]
    assert xm.optimizer_step(optimizer, barrier=True, groups=[[0]], pin_layout=False) is None
    assert not pending(p)
    with pytest.raises(ValueError, match=r"expected groups.*\[\[0\]\] or.*got \[\[0, 1\]\]"):
        xm.optimizer_step(optimizer, groups=[[0, 1]])


def test_fetch_gradients():
    a = nn.Parameter(torch.ones(2, device="xla"))
    b = nn.Parameter(torch.ones(2, device="xla"))
    a.grad = torch.ones(2, device="xla")
    assert [g is a.grad for g in xm._fetch_gradients(optim.SGD([a, b], lr=1))] == [True]


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clip_grad_norm_transfers_nothing(max_norm, norm_type):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    cpu_model = copy.deepcopy(model)
    x = torch.randn(3, 4)
    model.to("xla")(x.to("xla")).pow(2).sum().backward()
    cpu_model(x).pow(2).sum().backward()
    torch_xla.sync()
    met.clear_all()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type=norm_type)
    assert samples("TransferFromDeviceTime") == 0 and samples("ExecuteTime") == 0
    assert not met.executed_fallback_ops()
    expected = nn.utils.clip_grad_norm_(cpu_model.parameters(), max_norm, norm_type=norm_type)
    torch.testing.assert_close(norm.cpu(), expected)
    for p, q in zip(model.parameters(), cpu_model.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad)


@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad.clip_grad_norm_])
def test_clip_grad_norm_without_gradients_is_a_zero_on_the_device(clip):
    parameters = list(nn.Linear(2, 2).to("xla").parameters())
    for given in (parameters, iter(parameters), parameters[0]):
        norm = clip(given, 1.0)
        assert norm.device.type == "xla" and norm.shape == () and norm.item() == 0
    assert clip(nn.Linear(2, 2).parameters(), 1.0).device.type == "cpu"
    assert clip([], 1.0).device.type == "cpu"
    with pytest.warns(UserWarning, match="empty generator"):
        clip((p for p in []), 1.0)


def test_rate_tracker():
    tracker = xm.RateTracker(smooth_factor=0.5)
    tracker.add(10)
    time.sleep(0.05)
    first = tracker.rate()
    assert 0 < first <= 10 / 0.05
    time.sleep(0.05)
    assert 0.4 * first < tracker.rate() < 0.6 * first  # nothing new: half of the last rate is kept
    assert 0 < tracker.global_rate() <= 10 / 0.1


# One replica


def test_all_reduce_of_one_replica():
    x = torch.tensor([1.0, 2.0], device="xla")
    y = xm.all_reduce(xm.REDUCE_SUM, x, scale=0.5)
    assert y.tolist() == [0.5, 1.0] and x.tolist() == [1.0, 2.0]
    z = xm.all_reduce(xm.REDUCE_MAX, x)
    z += 1
    assert x.tolist() == [1.0, 2.0]  # a tensor of its own
    i = torch.tensor([5, 7], device="xla")
    tensors = [x, i]
    assert xm.all_reduce(xm.REDUCE_SUM, tensors, scale=0.5, groups=[[0]]) is tensors
    assert x.tolist() == [0.5, 1.0] and i.tolist() == [2, 3] and i.dtype == torch.int64
    with pytest.raises(ValueError, match="expected a reduce_type of sum.*got 'mean'"):
        xm.all_reduce("mean", x)
    with pytest.raises(ValueError, match="expected groups"):
        xm.all_reduce(xm.REDUCE_SUM, x, groups=[[0, 1]])


def test_other_collectives_of_one_replica():
    x = torch.arange(4.0, device="xla").reshape(2, 2)
    assert torch.equal(xm.all_gather(x, dim=1).cpu(), x.cpu())
    out = torch.zeros(2, 2, device="xla")
    assert xm.all_gather(x, output=out) is out and torch.equal(out.cpu(), x.cpu())
    with pytest.raises(IndexError, match=r"shape \(2, 2\), got 2"):
        xm.all_gather(x, dim=2)
    xm.collective_broadcast([x], root_ordinal=0)
    with pytest.raises(ValueError, match=r"root_ordinal of \[0\], got 1"):
        xm.collective_broadcast([x], root_ordinal=1)
    model = nn.Linear(2, 2).to("xla")
    weight = model.weight.tolist()
    xm.broadcast_master_param(model)
    assert model.weight.tolist() == weight


def test_rendezvous_and_mesh_reduce():
    y = torch.ones(2, device="xla") + 1
    assert xm.rendezvous("tag", b"payload") == (b"payload",)
    assert not pending(y)
    assert xm.rendezvous("tag", replicas=[0]) == (b"",)
    with pytest.raises(TypeError, match="expected a payload of bytes, got str"):
        xm.rendezvous("tag", "text")
    with pytest.raises(ValueError, match=r"expected ranks of a job of 1 processes.*\[1\]"):
        xm.rendezvous("tag", replicas=[1])
    received = []
    data = {"loss": torch.ones(2, device="xla"), "names": ["a"]}

    def reduce(values):
        received.extend(values)
        return sum(value["loss"].sum().item() for value in values)

    assert xm.mesh_reduce("loss", data, reduce) == 2
    assert received[0]["loss"].device.type == "cpu"
    assert received[0]["names"] == ["a"] and received[0]["names"] is not data["names"]


def test_do_on_ordinals():
    seen = []
    xm.do_on_ordinals(
        lambda t, n: seen.append((t.device.type, n)), (torch.ones(1, device="xla"), 2)
    )
    xm.do_on_ordinals(seen.append, (1,), ordinals=(3,))
    assert seen == [("cpu", 2)]


def test_a_step_that_overwrites_its_state_is_not_waited_for():
    """But for steps of nothing but PyTorch's kernels, which the CPU plugin takes for cheap."""
    p = torch.eye(1200, device="xla")
    for wait in (True, False):
        for _ in range(12):
            p.copy_((p @ p).relu())
        torch_xla.sync(wait=wait)
    assert not torch.xla.current_stream().query()
    assert p.sum().item() == 1200
