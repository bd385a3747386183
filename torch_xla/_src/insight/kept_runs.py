"""Runs of a step, kept so that their calls can be looked into."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._src.insight.scopes import named_modules

_MOST = 1000  # runs of one step


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a kept run.

    Attributes:
        operator: "aten::mm".
        line: The user's line that recorded it, "train.py:31 (Net.forward)"; "" where none is known.
        module: The module or optimizer that did, "Net.layers.3"; "" where none is known.
        frames: Of the user's program, innermost first: the line alone, or the stack where
            XLA_IR_DEBUG is set.
        places: Of each operand: the number of the call and of its result, or, for data, a negative
            number.
        operands, results: Tensors on the device meta, None for a result that there is not.
        random: Whether it draws random numbers.
    """

    operator: str
    frames: tuple[str, ...]
    module: str
    places: list[tuple[int, int]]
    operands: list[torch.Tensor]
    results: list[torch.Tensor | None]
    random: bool

    @property
    def line(self) -> str:
        return self.frames[0] if self.frames else ""


class KeptRun:
    """A run of a program, with references to its inputs.

    Attributes:
        name: Who asked for it, "sync".
        place: The line that did first.
        graph: The hash of its graph.
        calls: In the order in which they were recorded.
        results: Those that the run gave: number of the call and of its result.
    """

    def __init__(self, run: Any) -> None:
        told = run.describe()
        self._run = run
        self.name: str = told["name"]
        self.place: str = told["place"]
        self.graph: str = told["graph"]
        self.results: list[tuple[int, int]] = told["results"]
        self.calls = [
            Call(
                operator=c["operator"],
                frames=tuple(c["frames"]),
                module=c["scope"],
                places=c["places"],
                operands=c["operands"],
                results=c["results"],
                random=c["random"],
            )
            for c in told["calls"]
        ]

    def __str__(self) -> str:
        return f'run of "{self.name}"' + (f" of {self.place}" if self.place else "")

    def replay(self) -> Any:
        """The object that computes the calls anew (csrc/executor/insight/kept_runs.h)."""
        return _XLAC._RunReplay(self._run)

    def parts(self, call: int) -> list[tuple[str, list[Any], list[torch.Tensor | None]]]:
        """The operators that a call stands for, with arguments and results on the device meta."""
        return self._run.parts(call)


def keep_runs(most: int) -> None:
    """Keeps the newest runs of programs from now on, for `cost()` and `first_fault()`.

    A kept run refers to its inputs, and no run takes over their memory meanwhile: a training step
    needs the memory of its parameters and optimizer state once more for each.

    Args:
        most: How many; 0 lets them go and keeps none.
    """
    if not isinstance(most, int) or most < 0:
        raise ValueError(f"keep_runs: expected a number of runs, 0 for none, got {most}.")
    _XLAC._xla_keep_runs(most)


def kept_runs() -> list[KeptRun]:
    """The runs that are kept, oldest first."""
    return [KeptRun(run) for run in _XLAC._xla_kept_runs()]


def leaves(value: Any) -> list[Any]:
    """The elements of lists of arguments."""
    if isinstance(value, (list, tuple)):
        return [leaf for element in value for leaf in leaves(element)]
    return [value]


@contextlib.contextmanager
def keeping(most: int) -> Iterator[None]:
    """While entered, runs are kept."""
    before = _XLAC._xla_keep_runs(0)
    _XLAC._xla_keep_runs(most)
    try:
        yield
    finally:
        _XLAC._xla_keep_runs(0)
        _XLAC._xla_keep_runs(before)


def barrier() -> None:
    """Computes what waits on each device, as no step of the user's: no recompile is told of."""
    for device in _XLAC._xla_get_devices():
        _XLAC._xla_step_marker(device, [], False, region=None, cause=_XLAC._EXAMINED)


def runs_of(step: Callable[..., Any], *args: Any, **kwargs: Any) -> list[KeptRun]:
    """Calls a function and keeps the runs that compute what it records and what waits before.

    Runs that were kept before are let go.
    """
    with _XLAC._Examining(), named_modules(), keeping(_MOST):
        result = step(*args, **kwargs)
        barrier()
        del result  # what is returned is computed
        return kept_runs()


def runs_of_second(step: Callable[..., Any], *args: Any, **kwargs: Any) -> list[KeptRun]:
    """The runs of a second call: the first makes what is made once, such as optimizer state."""
    with _XLAC._Examining(), named_modules():
        result = step(*args, **kwargs)
        barrier()
    del result
    return runs_of(step, *args, **kwargs)


def runs_to_examine(who: str, runs: list[KeptRun] | None) -> list[KeptRun]:
    """Those of a step, or without them those that are kept, as far as they compute something.

    Raises:
        ValueError: None does, in the name of `who`.
    """
    found = [run for run in (kept_runs() if runs is None else runs) if run.calls]
    if not found:
        raise ValueError(
            f"{who}: expected a step that runs a program, got none"
            + ("; call torch_xla.debug.keep_runs(1) before the step." if runs is None else ".")
        )
    return found
