"""Training steps of torch.compile(backend="openxla"): when their parts are launched, and that each
order of calls gives what the CPU does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla import _XLAC
from torch_xla.experimental import eager_mode_context

STEPS = 6


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch_xla.sync(wait=True)


def runs() -> int:
    return (met.metric_data("ExecuteTime") or (0,))[0]


class Side:
    """Two models with optimizers, their calls, and the batches of a run; on one device."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.device = device
        self.models = [_model().to(device), _model().to(device)]
        self.calls = [self.compiled(m) for m in self.models]
        self.optimizers = [
            torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in self.models
        ]

    def compiled(self, function: Callable) -> Callable:
        return torch.compile(function, backend="openxla") if self.device == "xla" else function

    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(1)
        for _ in range(STEPS):
            x = torch.randn(16, 8, generator=generator)
            target = torch.randint(4, (16,), generator=generator)
            yield x.to(self.device), target.to(self.device)

    def update(self, i: int) -> None:
        self.optimizers[i].step()
        self.optimizers[i].zero_grad()

    def state(self) -> list[torch.Tensor]:
        return [t.detach().cpu() for m in self.models for t in m.state_dict().values()]


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).double()


# Each takes a side and a batch, and returns what it computes of them.
def plain(side: Side, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(side.calls[0](x.double()), target)
    loss.backward()
    side.update(0)
    return loss.detach()


def reads(side: Side, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.tensor(plain(side, x, target).item())


def reads_between(side: Side, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(side.calls[0](x.double()), target)
    if loss.item() > 0:
        loss.backward()
    side.update(0)
    return loss.detach()


def accumulates(side: Side, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    for part, wanted in zip(x.chunk(2), target.chunk(2), strict=True):
        (F.cross_entropy(side.calls[0](part.double()), wanted) / 2).backward()
    side.update(0)
    return side.models[0][0].weight.detach().clone()


def twice(side: Side, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The second forward pass has the statistics of the first; its results come to the end."""
    loss = F.cross_entropy(side.calls[0](x.double()) + side.calls[0](x.double() * 2), target)
    loss.backward()
    side.update(0)
    return loss.detach()


def without_backward(side: Side, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    loss = plain(side, x, target)
    side.calls[0](x.double() + 1)  # no one wants it, but it changes statistics
    return loss + side.calls[1](x.double()).sum().detach()


def two_models(side: Side, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A discriminator's step and a generator's."""
    first = plain(side, x, target)
    goal = side.calls[0](x.double()).detach()
    second = (side.calls[1](x.double()) - goal).square().mean()
    second.backward()
    side.update(1)
    return first + second.detach()


def chained(side: Side, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    hidden = side.calls[0](x.double())
    loss = F.cross_entropy(side.calls[1](torch.cat([hidden, hidden.tanh()], 1)), target)
    loss.backward()
    side.update(0)
    side.update(1)
    return loss.detach()


def backward_twice(side: Side, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(side.calls[0](x.double()), target)
    loss.backward(retain_graph=True)
    loss.backward()
    side.update(0)
    return loss.detach()


def checkpointed(side: Side, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The forward pass is called once more while the backward pass runs. Statistics stay: a
    checkpoint ends before AOTAutograd has written them, with a graph that nothing compiles, too."""
    side.models[0].eval()
    out = checkpoint(side.calls[0], x.double().requires_grad_(), use_reentrant=False)
    loss = F.cross_entropy(out, target)
    loss.backward()
    side.update(0)
    return loss.detach()


def parameters_are_written(side: Side, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    loss = plain(side, x, target)
    with torch.no_grad():
        for p in side.models[0].parameters():
            p.mul_(0.9)
            p.data = p.data + 0.01
    return loss


ORDERS = {
    plain: 1,
    reads: 1,
    reads_between: None,
    accumulates: 2,
    twice: 3,
    without_backward: None,
    two_models: None,
    chained: 1,
    backward_twice: 2,
    checkpointed: None,
    parameters_are_written: 1,
}


def trained(side: Side, step: Callable, launches: list[int] | None = None) -> list[torch.Tensor]:
    results = []
    for x, target in side.batches():
        before = runs()
        results.append(step(side, x, target))
        if launches is not None:
            launches.append(runs() - before)
    return [*[r.cpu() for r in results], *side.state()]


@pytest.mark.parametrize("step", ORDERS, ids=lambda step: step.__name__)
def test_orders_of_calls(step):
    launches: list[int] = []
    found = trained(Side("xla"), step, launches)
    torch.testing.assert_close(found, trained(Side("cpu"), step), rtol=1e-6, atol=1e-9)
    if ORDERS[step] is not None:
        assert launches[2:] == [ORDERS[step]] * (STEPS - 2)


@pytest.mark.parametrize("step", [plain, twice, chained], ids=lambda step: step.__name__)
def test_orders_of_calls_in_eager_mode(step):
    with eager_mode_context(True):
        found = trained(Side("xla"), step)
    torch.testing.assert_close(found, trained(Side("cpu"), step), rtol=1e-6, atol=1e-9)


def test_other_shapes_end_a_step():
    """The last batch of an epoch is smaller: programs are those of one step, not of two."""
    side, on_cpu = Side("xla"), Side("cpu")
    compiled = []
    for epoch in range(3):
        for x, target in side.batches():
            plain(side, x, target)
        plain(side, x[:5], target[:5])
        torch_xla.sync() if epoch == 1 else None
        compiled.append(met.counter_value("UncachedCompile") or 0)
        for x, target in on_cpu.batches():
            plain(on_cpu, x, target)
        plain(on_cpu, x[:5], target[:5])
    torch.testing.assert_close(side.state(), on_cpu.state(), rtol=1e-6, atol=1e-9)
    assert compiled[2] == compiled[1]


def test_what_waits_does_not_grow():
    """Forward passes of which no one goes back, nor reads the results."""
    side = Side("xla")
    x = torch.randn(16, 8, device="xla").double()
    sizes = []
    for _ in range(8):
        side.calls[0](x)
        sizes.append(len(_XLAC._get_xla_tensors_text([*side.models[0].buffers()])))
    assert max(sizes[2:]) == sizes[2]


def test_random_numbers_are_those_of_lazy_mode():
    def losses(compiled: bool) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(), nn.Linear(32, 4)).to("xla")
        run = torch.compile(model, backend="openxla") if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch_xla.manual_seed(5)
        x, found = torch.ones(4, 8, device="xla"), []
        for _ in range(4):
            loss = run(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.detach())
        return [loss.item() for loss in found]

    assert losses(True) == pytest.approx(losses(False), rel=1e-5)


def test_a_copy_of_a_model_that_waits():
    side = Side("xla")
    for x, target in side.batches():
        plain(side, x, target)
    copied = copy.deepcopy(side.models[0])
    on_cpu = Side("cpu")
    for x, target in on_cpu.batches():
        plain(on_cpu, x, target)
    expected = on_cpu.models[0].state_dict()
    for name, value in copied.state_dict().items():
        torch.testing.assert_close(value.cpu(), expected[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("compiled_autograd", [False, True])
def test_a_function_that_goes_back(compiled_autograd):
    """It breaks at `backward()`, of which compiled autograd makes a graph of its own."""

    def train(side: Side, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(side.models[0](x.double()), target)
        loss.backward()
        return loss

    def step(side: Side, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = side.compiled(train)(side, x, target)
        side.update(0)
        return loss.detach()

    launches: list[int] = []
    with torch._dynamo.config.patch(compiled_autograd=compiled_autograd):
        found = trained(Side("xla"), step, launches)
    torch.testing.assert_close(found, trained(Side("cpu"), step), rtol=1e-6, atol=1e-9)
    assert launches[2:] == [1] * (STEPS - 2)
