"""The first step of a training loop is the program of those that follow: what an optimizer makes
its state of is data before the step runs (executor/compile/new_state.h)."""

from __future__ import annotations

import copy
import pathlib
import resource
from collections.abc import Callable

import pytest
import torch

import torch_xla
import torch_xla.runtime as xr
from torch_xla.debug import metrics

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW": torch.optim.AdamW,
    "AMSGrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "Adam, a loop": lambda p: torch.optim.Adam(p, foreach=False, fused=False),
    "Adam, lists": lambda p: torch.optim.Adam(p, foreach=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9),
    "Rprop": torch.optim.Rprop,
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
}


def compiles() -> int:
    return metrics.counter_value("UncachedCompile") or 0


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)
    )


def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor):
    optimizer.zero_grad()
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("reads", [False, True], ids=["sync", "read"])
def test_the_second_step_needs_no_program(name: str, reads: bool):
    cpu = model()
    xla = copy.deepcopy(cpu).to("xla")
    batch = torch.randn(4, 3)
    on_xla = batch.to("xla")
    optimizers = [OPTIMIZERS[name](cpu.parameters()), OPTIMIZERS[name](xla.parameters())]
    torch_xla.sync()
    made = []
    for _ in range(3):
        before = compiles()
        want = train(cpu, optimizers[0], batch)
        got = train(xla, optimizers[1], on_xla)
        if reads:
            torch.testing.assert_close(got.item(), want.item())
        torch_xla.sync()
        made.append(compiles() - before)
    assert made[0] > 0
    assert made[1:] == [0, 0]
    for a, b in zip(xla.parameters(), cpu.parameters(), strict=True):
        torch.testing.assert_close(a.cpu(), b.detach())
    for a, b in zip(optimizers[1].state.values(), optimizers[0].state.values(), strict=True):
        for key, value in b.items():
            got = torch.as_tensor(a[key]).cpu()
            torch.testing.assert_close(got, torch.as_tensor(value), rtol=1e-4, atol=1e-5)


def test_what_each_step_makes_anew_stays_in_its_program():
    weight = torch.ones(4, device="xla")
    torch_xla.sync()
    made = []
    for _ in range(4):
        before = compiles()
        total = torch.zeros(4, device="xla")
        total.add_(weight)
        weight.mul_(0.5)
        torch_xla.sync()
        made.append(compiles() - before)
    assert made[2:] == [0, 0]
    assert total.tolist() == [0.125] * 4
    assert weight.tolist() == [0.0625] * 4


@pytest.fixture(params=[False, True], ids=["lines", "stacks"])
def sources(request, monkeypatch):
    """Calls keep the line that recorded them, or the whole stack."""
    monkeypatch.setenv("XLA_IR_DEBUG", str(int(request.param)))
    torch_xla._XLAC._xla_refresh_debug_flags()
    yield
    monkeypatch.undo()
    torch_xla._XLAC._xla_refresh_debug_flags()


@pytest.mark.usefixtures("sources")
def test_gradients_that_begin_as_zeros():
    """The gradient of a slice is written into zeros of the parameter's shape, in each step. Three
    runs of the training: only the first step of all, and the second, find anything new."""
    xs = torch.randn(3, 4).to("xla")
    made = []
    for _ in range(3):
        weight = torch.nn.Parameter(torch.ones(6, 4).to("xla"))
        optimizer = torch.optim.AdamW([weight])
        for _ in range(3):
            before = compiles()
            optimizer.zero_grad()
            (weight[:3] * xs).sum().backward()
            optimizer.step()
            torch_xla.sync()
            made.append(compiles() - before)
    assert made[2:3] + made[4:] == [0] * 6
    assert made[3] <= 1


def test_without_older_state_nothing_is_set_apart():
    x = torch.arange(4.0).to("xla")
    before = compiles()
    for _ in range(2):
        total = torch.zeros(4, device="xla")
        total.add_(x)
        torch_xla.sync()
    assert compiles() - before == 1
    assert total.tolist() == [0, 1, 2, 3]


def test_aliases_of_new_state_see_what_is_written():
    def program(device: str) -> list[torch.Tensor]:
        weight = torch.arange(6.0).reshape(2, 3).to(device)
        torch_xla.sync()
        moment = torch.ones_like(weight)
        row, kept = moment[1], moment * 2
        for _ in range(2):
            moment.mul_(3)
            row.add_(weight[0])
            weight.sub_(moment)
            torch_xla.sync()
        return [weight, moment, row, kept]

    for got, want in zip(program("xla"), program("cpu"), strict=True):
        assert torch.equal(got.cpu(), want)


def test_constants_need_no_value_of_what_they_resemble():
    x = torch.randn(3, 4).to("xla")
    y = x.exp()
    z = torch.zeros_like(y)
    del y
    assert "aten::exp" not in torch_xla._XLAC._get_xla_tensors_text([z])
    assert z.tolist() == [[0.0] * 4] * 3
    full = torch.full_like(x.to(torch.int32), 7)
    assert full.dtype == torch.int32 and full.tolist() == [[7] * 4] * 3


def resident() -> int:
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.process_memory
@pytest.mark.skipif(xr.device_type() != "CPU", reason="reads the memory of the process")
def test_new_state_of_zeros_takes_no_memory_before_it_is_written():
    size = 64 << 20  # bytes
    weight = torch.nn.Parameter(torch.zeros(size // 4, device="xla"))
    optimizer = torch.optim.Adam([weight])
    torch_xla.sync(wait=True)
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = resident()
    weight.sum().backward()
    optimizer.step()
    torch_xla.sync(wait=True)
    status = pathlib.Path("/proc/self/status").read_text()
    grown = (int(status.split("VmHWM:")[1].split()[0]) << 10) - before
    # The gradient at most, the new weight and two moments; not the moments of zeros besides.
    assert grown < 4.5 * size, f"{grown / 2**20:.0f} MiB"


def test_state_of_zeros_is_no_memory_that_a_run_writes():
    """A program that has run takes inputs over, as the second model does here."""
    results = []
    for device in ("cpu", "xla", "xla"):
        torch.manual_seed(0)
        net = torch.nn.Linear(300, 200).to(device)  # moments of several pages
        optimizer = torch.optim.Adam(net.parameters(), amsgrad=True)
        batch = torch.randn(4, 300).to(device)
        torch_xla.sync()
        for _ in range(3):
            train(net, optimizer, batch)
            torch_xla.sync()
        state = optimizer.state[net.weight]
        results.append([net.weight, state["exp_avg"], state["exp_avg_sq"], state["max_exp_avg_sq"]])
    for want, first, second in zip(*results, strict=True):
        assert torch.equal(first.cpu(), second.cpu())
        # A tenth of what one step moves a weight by.
        torch.testing.assert_close(first.detach().cpu(), want.detach(), rtol=1e-4, atol=1e-4)
