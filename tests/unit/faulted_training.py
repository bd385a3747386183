"""Small training programs in which the n-th call of the plugin fails, compared with the CPU.

Runs in a process of its own, with the plugin of tests/cpp/fault_plugin.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime
from tests import fault_plugin

# A fault is to hit a run of the program, not one of the check, where that is on by default.
torch_xla._XLAC._xla_set_check_donation(False)
STEPS = 5
State = list[torch.Tensor]


class Training:
    """A model, its optimizer, and steps; a subclass says how it is trained."""

    compiled = "lazy"  # "torch_xla", "openxla", or "optimizer": that too is a graph of openxla
    optimizer: Callable = staticmethod(lambda p: torch.optim.SGD(p, lr=0.1))
    accumulated = 1

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
        self.buffers = [torch.zeros(3).to(device)]  # what a step writes beside the parameters
        self.optimizer = type(self).optimizer(self.model.parameters())
        self.whole, self.update = self._whole, self.optimizer.step
        if device == "xla" and self.compiled == "torch_xla":
            self.whole = torch_xla.compile(self._whole)
        if device == "xla" and self.compiled in ("openxla", "optimizer"):
            self.model = torch.compile(self.model, backend="openxla")
        if device == "xla" and self.compiled == "optimizer":
            self.update = torch.compile(self.optimizer.step, backend="openxla")

    def batch(self, i: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(i)
        return torch.randn(3, 4, generator=generator).to(self.device)

    def write(self) -> None:
        """Writes to other tensors, through views too."""
        self.buffers[0].add_(1)
        self.buffers[0][1:].mul_(2)

    def _whole(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss

    def step(self, i: int, sync: Callable[[], None]) -> None:
        self.optimizer.zero_grad()
        for part in range(self.accumulated):
            self.whole(self.batch(self.accumulated * i + part))
            if part + 1 < self.accumulated:
                sync()
        self.update()
        self.write()
        sync()

    def trained(self) -> State:
        moments = [
            value
            for state in self.optimizer.state.values()
            for name, value in sorted(state.items())
            if isinstance(value, torch.Tensor)
        ]
        return [*self.model.parameters(), *moments]

    def state(self) -> tuple[State, State]:
        """The values of what is trained, and of what is written beside it."""
        both = self.trained(), self.buffers
        return tuple([t.detach().cpu().clone() for t in tensors] for tensors in both)


class Momentum(Training):
    optimizer = staticmethod(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))


class Adam(Training):
    optimizer = staticmethod(lambda p: torch.optim.Adam(p, lr=0.01))


class Accumulated(Training):
    accumulated = 2


class Compiled(Adam):
    compiled = "torch_xla"


class Openxla(Momentum):
    compiled = "openxla"


class OpenxlaOptimizer(Momentum):
    compiled = "optimizer"


KINDS = (Training, Momentum, Adam, Accumulated, Compiled, Openxla, OpenxlaOptimizer)
PROGRAMS = {c.__name__: c for c in KINDS}


def until_quiet(call: Callable, errors: list[str]):
    """What it returns; failures of the fault that is armed come first, a few at most."""
    for _ in range(4):
        try:
            return call()
        except (RuntimeError, torch.OutOfMemoryError) as e:
            errors.append(f"{type(e).__name__}: {e}")
    raise AssertionError("the failure does not end:\n" + "\n".join(errors))


def agrees(state: State, expected: State) -> bool:
    # A moment that is not there yet is zero.
    return all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(state, expected, strict=False)
    )


class Reference:
    """States of the CPU after chosen steps."""

    def __init__(self, program: type[Training]) -> None:
        self.program = program
        self.known: dict[tuple[int, ...], tuple[State, State]] = {}

    def after(self, steps: tuple[int, ...]) -> tuple[State, State]:
        if steps not in self.known:
            training = self.program("cpu")
            for i in steps:
                training.step(i, lambda: None)
            self.known[steps] = training.state()
        return self.known[steps]

    def agrees(self, state: tuple[State, State], steps: tuple[int, ...]) -> bool:
        """Whether that is the state after the steps. What needs nothing of the run that failed, and
        was recorded behind it, has been written."""
        written = (self.after(tuple(range(n)))[1] for n in range(STEPS + 1))
        trained = agrees(state[0], self.after(steps)[0])
        return trained and any(agrees(state[1], buffers) for buffers in written)


class StateIsLost(Exception):
    """What the run that failed made cannot be read, or be made again."""


def state_after(training: Training, late: bool, errors: list[str]) -> tuple[State, State]:
    try:
        return until_quiet(training.state, errors)
    except AssertionError:  # of an optimizer's first step, which the run made, nothing is left
        if not (late and training.optimizer.state):
            raise
    training.optimizer.state.clear()
    raise StateIsLost


def is_of_some_step(training: Training, reference: Reference, counted: tuple, errors: list) -> bool:
    state = until_quiet(training.state, errors)
    return any(reference.agrees(state, counted[:j]) for j in range(len(counted) + 1))


def attempt(
    program: type[Training], reference: Reference, wait: bool, fault: tuple
) -> tuple[list[str], bool]:
    """Trains beside a fault. Returns the errors that were told of, and whether the call has failed;
    fails where a value is lost."""
    kind, nth, code, late = fault
    training = program("xla")
    torch_xla.sync(wait=True)
    errors: list[str] = []
    counted: tuple[int, ...] = ()
    fault_plugin.arm(kind, nth, code, late)
    for i in range(STEPS):
        try:
            training.step(i, lambda: torch_xla.sync(wait=wait))
            counted += (i,)
            continue
        except (RuntimeError, torch.OutOfMemoryError) as e:
            errors.append(f"{type(e).__name__}: {e}")
        training.optimizer.zero_grad()
        until_quiet(xm.wait_device_ops, errors)
        try:
            state = state_after(training, late, errors)
        except StateIsLost:
            assert is_of_some_step(training, reference, counted, errors), errors
            return errors, True
        # What was behind the run that failed is undone with it; what was refused did not happen.
        candidates = [counted[:j] for j in range(len(counted), -1, -1)] + [(*counted, i)]
        found = [c for c in candidates if reference.agrees(state, c)]
        assert found, f"fault {fault}, step {i}: the values are those of no step\n{errors}"
        counted = found[0]
        if not counted:  # what an optimizer makes of the first gradients cannot go back
            training.optimizer.state.clear()
        assert wait is False or len(counted) >= i - len(errors), f"{counted} at {i}: {errors}"
    try:
        state = state_after(training, late, errors)
    except StateIsLost:
        assert is_of_some_step(training, reference, counted, errors), errors
        return errors, True
    candidates = [counted[:j] for j in range(len(counted), -1, -1)]
    if not errors:
        candidates = candidates[:1]
    assert any(reference.agrees(state, c) for c in candidates), (
        f"fault {fault}: other values at the end, after {counted}\n{errors}"
    )
    has_fired = fault_plugin.has_fired(kind)
    fault_plugin.arm(kind, 0)
    return errors, has_fired


def check(name: str, kind: int, late: bool, wait: bool) -> None:
    """Tries every place of the fault, until none is left."""
    program = PROGRAMS[name]
    reference = Reference(program)
    nth = told = 0
    while True:
        nth += 1
        if kind == fault_plugin.COMPILE:
            torch_xla.runtime.clear_computation_cache()
        code = (fault_plugin.INTERNAL, fault_plugin.RESOURCE_EXHAUSTED)[nth % 2]
        errors, has_fired = attempt(program, reference, wait, (kind, nth, code, late))
        if not has_fired:
            break
        if late and not errors:  # a gate (pjrt/gate.h), of whose result nothing is made
            continue
        assert errors, f"nobody was told of fault {nth}"
        told += 1
        assert any("on purpose" in e for e in errors), errors
        expected = "OutOfMemoryError" if code == fault_plugin.RESOURCE_EXHAUSTED else "Error"
        assert any(e.startswith((expected, "RuntimeError")) for e in errors), errors
        if kind == fault_plugin.RUN:
            assert any(re.search(r"faulted_training\.py:\d+", e) for e in errors), errors
    print(f"{name}: {nth - 1} places")
    assert told > 1
