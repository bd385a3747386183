"""SIGTERM, which platforms send some time before they end a process, as a step to save."""

from __future__ import annotations

import os
import signal
import threading
import types
import warnings
import weakref
from typing import Any

import torch
import torch.distributed as dist

_KEPT_ANSWERS = 256


class Watch:
    """Notes SIGTERM from now on, and finds the step that answers it.

    A handler that was there before is called too. Without one, SIGTERM no longer ends the process
    while there is a Watch in it; nothing changes in processes that are forked.

    Args:
        group: The processes that agree on the step, or None.
    """

    def __init__(self, group: dist.ProcessGroup | None):
        self.noted = False
        self._group = group
        self._answers: dict[int, bool] = {}  # of the steps that were asked about last
        _watches.add(self)
        _install()

    def reached(self, step: int) -> bool:
        """True if this step answers a signal; one answer for each step, also where steps are asked
        about ahead or again, but for what lies hundreds of other steps ago. With a group, a
        collective call for each new step.

        Raises:
            RuntimeError: The processes ask about different steps.
        """
        if step not in self._answers:
            answer = self._any_noted(step)
            self._answers[step] = answer
            if answer:
                self.noted = False
            if len(self._answers) > _KEPT_ANSWERS:
                del self._answers[next(iter(self._answers))]
        return self._answers[step]

    def forget(self) -> None:
        """Steps come again, after a checkpoint was restored: their answers are new ones."""
        self._answers.clear()

    def _any_noted(self, step: int) -> bool:
        if self._group is None:
            return self.noted
        found = torch.tensor([int(self.noted), step, -step])
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._group)
        noted, last, first = found.tolist()
        if last != -first:
            raise RuntimeError(
                f"CheckpointManager: expected one step from all processes, got {-first} to {last}."
            )
        return bool(noted)


_watches: weakref.WeakSet[Watch] = weakref.WeakSet()
os.register_at_fork(after_in_child=_watches.clear)


class _Handler:
    def __init__(self, previous: Any):
        self.previous = previous

    def __call__(self, number: int, frame: types.FrameType | None) -> None:
        watches = list(_watches)
        for watch in watches:
            watch.noted = True
        if callable(self.previous):
            self.previous(number, frame)
        elif self.previous == signal.SIG_DFL and not watches:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _install() -> None:
    found = signal.getsignal(signal.SIGTERM)
    if isinstance(found, _Handler):
        return
    if found is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _Handler(found))
        return
    where = "outside the main thread" if found is not None else "after a handler of C code"
    warnings.warn(
        f"CheckpointManager: made {where}, it does not notice SIGTERM. Make it earlier, in the "
        "main thread, or pass chkpt_on_preemption=False.",
        stacklevel=4,
    )
