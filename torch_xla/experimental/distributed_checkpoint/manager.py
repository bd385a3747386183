"""Checkpoints by step: when one is due, which are kept, written now or in the background."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import logging
import operator
import os
import pickle
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.state_dict_saver import _save_state_dict
from torch.distributed.checkpoint.stateful import Stateful

from torch_xla.experimental.distributed_checkpoint import _preemption
from torch_xla.experimental.distributed_checkpoint._helpers import (
    StateDict,
    _sharded_cpu_state_dict,
)
from torch_xla.experimental.distributed_checkpoint._stores import MARK, store_of
from torch_xla.experimental.distributed_checkpoint.planners import SPMDLoadPlanner, SPMDSavePlanner

_log = logging.getLogger(__name__)
_MANAGER_METADATA_FILE = MARK


@dataclasses.dataclass
class _CheckpointMetadata:
    """The record in a checkpoint's folder; pickled under this name."""

    step: int
    ts: datetime.datetime


class CheckpointManager:
    """Keeps the checkpoints of a training run, one folder for each step.

    A step's folder `<path>/<step>` is what `torch.distributed.checkpoint` writes, and appears when
    all of it is on the disk: whenever a process dies, what is there can be restored.

    If `torch.distributed` is initialized, all processes of the group make a manager and call its
    methods alike: with the same steps, in the same order. The first of the group decides what is
    deleted. The path must be one for all.

    Args:
        path: A local folder, which is made, or a folder of a file system that fsspec knows:
            `gs://...`. There the file that marks a checkpoint as complete is written last, and
            saving a step again deletes the former checkpoint of that step first.
        save_interval: A step is due where this divides it.
        max_to_keep: How many checkpoints stay; those saved first go when a new one is complete.
            0 for all.
        max_pending_async: How many background saves may wait or run; another waits for the first.
            Each holds a copy of the state on the host.
        num_of_threads: How many files a process writes at a time.
        process_group: The processes that save together; by default all. The manager makes groups
            of its own among them (gloo).
        chkpt_on_preemption: Whether SIGTERM makes the next step due. See `reached_preemption`.

    Raises:
        ValueError: An argument out of range.

    Example:
        >>> manager = CheckpointManager("checkpoints", save_interval=100, max_to_keep=3)
        >>> state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        >>> manager.save_async(step, state)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        save_interval: int,
        max_to_keep: int | None = 0,
        max_pending_async: int | None = 1,
        num_of_threads: int | None = 1,
        process_group: dist.ProcessGroup | None = None,
        chkpt_on_preemption: bool = True,
    ):
        self.path = os.fspath(path)
        self.save_interval = _at_least(1, save_interval, "save_interval")
        self.max_to_keep = _at_least(0, max_to_keep or 0, "max_to_keep")
        self.max_pending_async = _at_least(1, _or_1(max_pending_async), "max_pending_async")
        self.num_of_threads = _at_least(1, _or_1(num_of_threads), "num_of_threads")
        self._store = store_of(path)
        self._group = _group_like(process_group)
        self._preemption = None
        if chkpt_on_preemption:
            # Its own group: it is asked while a background save uses the other.
            self._preemption = _preemption.Watch(_group_like(process_group))
        self._pending: collections.deque[_BackgroundSave] = collections.deque()

    def should_save(self, step: int) -> bool:
        """True if `save` and `save_async` would save this step: it is due, or `reached_preemption`.

        Raises:
            ValueError: The step is negative.
            RuntimeError: `torch.distributed` was initialized after the manager was made.
        """
        if self._group is None and _world_size() > 1:
            raise RuntimeError(
                "CheckpointManager: expected to be made after init_process_group, got "
                f"{_world_size()} processes now. They would write over each other."
            )
        preempted = self.reached_preemption(step)
        return _at_least(0, step, "step") % self.save_interval == 0 or preempted

    def save(self, step: int, state_dict: StateDict, force: bool | None = False) -> bool:
        """Saves the state if the step is due, and returns when the checkpoint is on the disk.

        Waits for background saves first.

        Args:
            step: The step.
            state_dict: Dicts and lists of tensors and of what pickle takes, or objects with
                `state_dict`.
            force: Save it in any case.

        Returns:
            Whether it was saved.

        Raises:
            RuntimeError: This save failed, or one in the background before it. Earlier checkpoints
                are untouched.
        """
        if not (self.should_save(step) or force):
            return False
        self.join()
        self._write(operator.index(step), _state_of(state_dict))
        return True

    def save_async(self, step: int, state_dict: StateDict, force: bool | None = False) -> bool:
        """Copies the state to the host if the step is due, and saves the copy in the background.

        Waits for the values of the state, and for a place among `max_pending_async`. The process
        waits for pending saves when it exits.

        Args:
            step, state_dict, force: As in `save`.

        Returns:
            Whether it will be saved.

        Raises:
            RuntimeError: A background save before it failed; this step is not saved. Each error is
                raised once, by the first save that is due after it, or by `join`. It is logged when
                it happens.
        """
        if not (self.should_save(step) or force):
            return False
        while len(self._pending) >= self.max_pending_async:
            self._end_of_first()
        while self._pending and self._group is None and not self._pending[0].is_alive():
            self._end_of_first()  # among several processes, others may not be as far
        step = operator.index(step)
        copied = _sharded_cpu_state_dict(_state_of(state_dict))
        before = self._pending[-1] if self._pending else None
        self._pending.append(_BackgroundSave(step, lambda: self._write(step, copied), before))
        self._pending[-1].start()
        return True

    def restore(self, step: int, state_dict: StateDict) -> None:
        """Loads the checkpoint of a step into a state dict, in place.

        Tensors keep device and sharding, whatever those of the saved ones were. Give what is no
        tensor to `load_state_dict` of the model or optimizer afterwards. Objects with `state_dict`
        in the dict itself get theirs by `load_state_dict`.

        Args:
            step: One of `all_steps()`.
            state_dict: What to load. The optimizer's part exists after a step or
                `prime_optimizer`.

        Raises:
            ValueError: There is no such checkpoint, or a tensor has another size than its saved
                one.
            RuntimeError: The checkpoint lacks a name of the state dict, or cannot be read.
        """
        for save in self._pending:
            save.join()  # its error is for the next save
        steps = self.all_steps()
        if step not in steps:
            raise ValueError(
                f"CheckpointManager: expected a step of {self.path}, which has {steps}, got {step}."
            )
        if self._preemption is not None:
            self._preemption.forget()
        state = _state_of(state_dict)
        reader, planner = self._store.reader(operator.index(step)), SPMDLoadPlanner()
        _raising_causes(
            f"restore step {step} from {self.path}",
            lambda: _load_state_dict(
                state, reader, self._group, no_dist=self._group is None, planner=planner
            ),
        )
        for key, value in state_dict.items():
            if isinstance(value, Stateful):
                value.load_state_dict(state[key])
            else:
                state_dict[key] = state[key]

    def all_steps(self) -> list[int]:
        """The steps of the complete checkpoints, in their order.

        A checkpoint whose `.manager_metadata` cannot be read is none, and a warning names the file.
        """
        return sorted(self._saved())

    def _saved(self) -> dict[int, float]:
        """When each complete checkpoint was saved, by its step; the first one first."""
        times = {}
        for step, mark in self._store.marks().items():
            try:
                times[step] = pickle.loads(mark).ts.timestamp()
            except Exception as error:  # whatever bytes that are not ours make pickle do
                warnings.warn(
                    f"CheckpointManager: {self.path}/{step}/{MARK} cannot be read "
                    f"({type(error).__name__}: {error}). The checkpoint is left out; saving step "
                    f"{step} again replaces it.",
                    stacklevel=3,
                )
        return dict(sorted(times.items(), key=lambda item: (item[1], item[0])))

    def join(self) -> None:
        """Waits for the background saves.

        Raises:
            RuntimeError: One failed. Call again for further ones.
        """
        for save in self._pending:
            save.join()
        while self._pending:
            self._end_of_first()

    def reached_preemption(self, step: int) -> bool:
        """True if the processes are to end and this is the step that they save.

        SIGTERM tells of it. The first step that is asked about after the signal is the one; of
        several processes, the step at which any has it, so all must ask about the same steps in
        the same order. Each step has one answer, also when asked again, and each signal one step.
        Always False without `chkpt_on_preemption`.
        """
        if self._preemption is None:
            return False
        return self._preemption.reached(_at_least(0, step, "step"))

    def _end_of_first(self) -> None:
        save = self._pending.popleft()
        save.join()
        if save.error is not None:
            raise save.error

    def _write(self, step: int, state_dict: StateDict) -> None:
        writer = self._store.writer(
            step, lambda: self._mark(step), self.num_of_threads, lambda: self._keep(step)
        )
        try:
            _raising_causes(
                f"save step {step} to {self.path}",
                lambda: _save_state_dict(
                    state_dict,
                    writer,
                    self._group,
                    no_dist=self._group is None,
                    planner=SPMDSavePlanner(),
                ),
            )
        except BaseException:
            if self._group is None or dist.get_rank(self._group) == 0:
                self._store.discard(step)
            raise

    def _mark(self, step: int) -> bytes:
        """The note with a checkpoint that is complete now: it is later than all others, also
        where the clock has been set back."""
        utc = datetime.timezone.utc
        last = max(self._saved().values(), default=0.0)
        after = datetime.datetime.fromtimestamp(last + 1e-3, utc)
        time = max(after, datetime.datetime.now(utc))
        return pickle.dumps(_CheckpointMetadata(step, time))

    def _keep(self, step: int) -> None:
        """Deletes what is too much now that this step is complete."""
        if self.max_to_keep:
            others = [other for other in self._saved() if other != step]
            for other in others[: max(0, len(others) + 1 - self.max_to_keep)]:
                self._store.remove(other)


class _BackgroundSave(threading.Thread):
    """Saves once the save before it has ended. No daemon: the process waits for it at exit."""

    def __init__(self, step: int, write: Callable[[], None], before: _BackgroundSave | None):
        super().__init__(name=f"checkpoint of step {step}")
        self.error: BaseException | None = None
        self._write: Callable[[], None] | None = write
        self._before = before

    def run(self) -> None:
        if self._before is not None:
            self._before.join()
        assert self._write is not None  # a thread runs once
        try:
            self._write()
        except BaseException as error:  # raised by the next save or by join
            self.error = error
            _log.error("%s", error, exc_info=error)
        self._write = self._before = None  # and with it the copy of the state


def _state_of(state_dict: StateDict) -> StateDict:
    return {
        key: value.state_dict() if isinstance(value, Stateful) else value
        for key, value in state_dict.items()
    }


def _raising_causes(what: str, call: Callable[[], Any]) -> None:
    """Calls, and raises PyTorch's CheckpointException, which is no Exception, as a RuntimeError
    that says what went wrong in which process. ValueErrors stay what they are."""
    try:
        call()
    except CheckpointException as failed:
        causes = {rank: error for rank, (error, _) in failed.failures.items()}
        cause = next(iter(causes.values()))
        if not isinstance(cause, Exception):
            raise cause from None  # KeyboardInterrupt, SystemExit
        kind = ValueError if isinstance(cause, ValueError) else RuntimeError
        told = "; ".join(f"{type(e).__name__} in process {r}: {e}" for r, e in causes.items())
        raise kind(f"CheckpointManager: expected to {what}, got {told}") from cause


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _group_like(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """A new group of the same processes; None where there is one process."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    if group is None:
        return dist.new_group(backend="gloo")
    ranks = dist.get_process_group_ranks(group)
    return dist.new_group(ranks, backend="gloo", use_local_synchronization=True)


def _or_1(number: int | None) -> int:
    return 1 if number is None else number


def _at_least(least: int, number: Any, name: str) -> int:
    try:
        found = operator.index(number)
    except TypeError:
        found = least - 1
    if found < least:
        raise ValueError(
            f"CheckpointManager: expected {name} to be a whole number from {least}, got {number!r}."
        )
    return found
