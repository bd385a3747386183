"""Trains a model on the CPU and on xla, as it is and in a function of torch.compile, and compares
outputs, gradients and losses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

import torch_xla
from tests.ops.harness import DEVICE, host_calls
from torch_xla.debug import metrics

STEPS = 5
LEARNING_RATE = 1e-3
RTOL = 1e-3  # of float32, for whole models

# Reading a value is what these are for.
READS_A_VALUE = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal"}


@dataclass
class Case:
    """A model with a batch for it. `build` gives both; it is called with the generator seeded."""

    name: str
    family: str
    build: Callable[[], tuple[torch.nn.Module, dict[str, Any]]]
    # Wider where float32 cannot tell: batch normalizations over few values and deep stacks of ReLU
    # make much of little, so that any two orders of summation differ by more than the tolerance.
    dtype: torch.dtype = torch.float32


@dataclass
class Result:
    """What `check` found, for the table."""

    parameters: int
    difference: float  # of gradients, relative to the largest of their tensor
    compiles: int
    reads: bool  # a step reads a value


@dataclass
class Run:
    """What a training run gives: the first step's outputs and gradients, and each step's loss."""

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]
    losses: list[float]
    compiles: list[int]
    host: set[str]
    breaks: int  # of torch.compile's graphs


@dataclass
class Graphs:
    """What torch.compile made of a model."""

    count: int
    breaks: int


def _float_tensors(output: Any) -> list[torch.Tensor]:
    """The floating-point tensors of a model's output, in order."""
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, dict):
        # Caches and the like have no comparison of their own.
        return [t for value in output.values() for t in _float_tensors(value)]
    if isinstance(output, (list, tuple)):
        return [t for value in output for t in _float_tensors(value)]
    return []


def _loss(output: Any) -> torch.Tensor:
    given = output.get("loss") if isinstance(output, dict) else None
    if given is not None:
        return given
    return sum(t.float().pow(2).mean() for t in _float_tensors(output) if t.requires_grad)


def train(
    model: torch.nn.Module,
    batch: dict[str, Any],
    device: str,
    backend: Any = None,
) -> Run:
    """With a backend, the model is a function of torch.compile."""
    model = copy.deepcopy(model).to(device).train()
    batch = pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    forward = model if backend is None else torch.compile(model, backend=backend)
    run = Run([], {}, [], [], set(), 0)
    before, breaks = host_calls(), counters["graph_break"].total()
    losses = []
    for step in range(STEPS):
        compiled = metrics.counter_value("UncachedCompile") or 0
        optimizer.zero_grad()
        output = forward(**batch)
        loss = _loss(output)
        loss.backward()
        if step == 0:
            # Copies: the optimizer and models may overwrite them.
            run.outputs = [t.detach().clone() for t in _float_tensors(output)]
            run.gradients = {
                name: p.grad.detach().clone()
                for name, p in model.named_parameters()
                if p.grad is not None
            }
        optimizer.step()
        losses.append(loss.detach())
        torch_xla.sync()
        run.compiles.append((metrics.counter_value("UncachedCompile") or 0) - compiled)
    run.host = {name for name, count in host_calls().items() if count != before.get(name, 0)}
    run.breaks = counters["graph_break"].total() - breaks
    run.losses = [loss.item() for loss in losses]
    run.outputs = [t.cpu() for t in run.outputs]
    run.gradients = {name: t.cpu() for name, t in run.gradients.items()}
    return run


def _largest(tensors: Iterable[torch.Tensor]) -> float:
    return max((t.abs().max().item() for t in tensors if t.numel() != 0), default=0.0)


def _assert_close(
    actual: torch.Tensor,
    expected: torch.Tensor,
    what: str,
    noise: float = 1e-6,
    rtol: float = RTOL,
) -> None:
    # A sum of terms that cancel is as exact as the terms are: relative to the largest value.
    torch.testing.assert_close(
        actual,
        expected,
        rtol=rtol,
        atol=rtol * _largest([expected]) + noise,
        equal_nan=True,
        msg=lambda m: f"{what}: {m}",
    )


def _expect(ok: bool, message: str) -> None:
    if not ok:
        raise AssertionError(message)


def _made(case: Case) -> tuple[torch.nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    model, batch = case.build()
    batch = pytree.tree_map_only(
        torch.Tensor, lambda t: t.to(case.dtype) if t.is_floating_point() else t, batch
    )
    return model.to(case.dtype), batch


def _compare(xla: Run, cpu: Run) -> float:
    """Raises AssertionError with what differs; gives the largest difference of gradients."""
    _expect(len(xla.outputs) == len(cpu.outputs), "another number of outputs")
    for i, (actual, expected) in enumerate(zip(xla.outputs, cpu.outputs, strict=True)):
        _assert_close(actual, expected, f"output {i}")
    _expect(xla.gradients.keys() == cpu.gradients.keys(), "gradients of other parameters")
    _expect(bool(cpu.gradients), "nothing to train")
    # Some have no influence at all, as a bias before a normalization.
    noise = 1e-5 * _largest(cpu.gradients.values())
    difference = 0.0
    for name, expected in cpu.gradients.items():
        actual = xla.gradients[name]
        _assert_close(actual, expected, f"gradient of {name}", noise)
        difference = max(difference, _largest([actual - expected]) / (_largest([expected]) + noise))
    # Training is chaotic: what is rounded differently grows from step to step.
    losses = torch.tensor(xla.losses[:3]), torch.tensor(cpu.losses[:3])
    _assert_close(*losses, "losses of the steps", rtol=5 * RTOL)
    unexpected = sorted(xla.host - READS_A_VALUE)
    _expect(not unexpected, f"ran on the host: {', '.join(unexpected)}")
    return difference


def check(case: Case) -> Result:
    """Trains on both devices; raises AssertionError with what differs."""
    model, batch = _made(case)
    cpu = train(model, batch, "cpu")
    xla = train(model, batch, DEVICE)
    difference = _compare(xla, cpu)
    _expect(not any(xla.compiles[2:]), f"compiled at each step: {xla.compiles}")
    parameters = sum(p.numel() for p in model.parameters())
    return Result(parameters, difference, sum(xla.compiles), bool(xla.host))


def check_compiled(case: Case) -> Graphs:
    """Trains a function of torch.compile(backend="openxla"), against backend="eager" on the CPU:
    some models look whether they are compiled. Its graphs break no more often."""
    model, batch = _made(case)
    torch._dynamo.reset()
    cpu = train(model, batch, "cpu", "eager")
    torch._dynamo.reset()
    backend = CompileCounterWithBackend("openxla")
    xla = train(model, batch, DEVICE, backend)
    torch._dynamo.reset()
    # AOTAutograd gives zeros to parameters that nothing depends on.
    for name in xla.gradients.keys() - cpu.gradients.keys():
        _expect(not xla.gradients.pop(name).any(), f"a gradient of {name}, which has no influence")
    _compare(xla, cpu)
    _expect(backend.frame_count > 0, "torch.compile captured nothing")
    _expect(xla.breaks <= cpu.breaks, f"{xla.breaks} breaks of graphs, {cpu.breaks} on the CPU")
    return Graphs(backend.frame_count, xla.breaks)
