"""State of a training in Python, put back after the recording of a step that has run it."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from torch_xla import _XLAC
from torch_xla._src.functions import step
from torch_xla._src.saved_step.tensor_names import is_on_xla

# The state that a training keeps between its steps.
HOLDERS = (nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler)


@contextmanager
def state_of_python() -> Iterator[None]:
    """A block after which tensors on xla have the storages, gradients and versions that they had,
    and what modules, optimizers, learning-rate schedulers and loss scalers hold, random states of
    the host and queued closures are what they were.

    All that live are looked at, since a function may reach them in any way.
    """
    # By type: the class that an object claims may be code that does something.
    tensors = _XLAC._xla_objects_of((torch.Tensor,))
    tensors = [t for t in tensors if is_on_xla(t) and not t.is_inference()]
    holders = _XLAC._xla_objects_of(HOLDERS)
    contents = _Contents()
    for holder in holders:
        fields = holder.__dict__
        contents.add(fields, deep=not isinstance(holder, nn.Module))
        if isinstance(holder, nn.Module):  # its attributes, not what lies within them
            for table in (fields.get("_parameters"), fields.get("_buffers")):
                contents.add(table, deep=False)
    gradients = [(t, t.grad) for t in tensors if t.is_leaf and t.requires_grad]
    aliases = [(t, t.detach()) for t in tensors]
    numbers = random.getstate()
    with ExitStack() as stack:
        stack.enter_context(torch.autograd._unsafe_preserve_version_counter(tuple(tensors)))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(step.closures_kept())
        stack.callback(random.setstate, numbers)
        stack.callback(contents.put_back)
        stack.callback(_put_back_gradients, gradients)
        stack.callback(_put_back_storages, aliases)
        yield


def _put_back_gradients(gradients: list[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
    for tensor, gradient in gradients:
        if tensor.grad is not gradient:
            tensor.grad = gradient


def _put_back_storages(aliases: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """After `tensor.data = other`, `set_` and the like."""
    for tensor, alias in aliases:
        if _place(tensor) != _place(alias):
            tensor.data = alias


def _place(tensor: torch.Tensor) -> tuple:
    storage = tensor.untyped_storage()._cdata
    return storage, tensor.storage_offset(), tensor.shape, tensor.stride()


class _Contents:
    """The contents of containers, and the values of CPU tensors within them."""

    def __init__(self) -> None:
        self._containers: dict[int, tuple[Any, Any]] = {}  # the container, a copy
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def add(self, value: Any, deep: bool = True) -> None:
        """Notes a container, and what is within it if `deep`."""
        if id(value) in self._containers or id(value) in self._tensors:
            return
        if isinstance(value, (dict, list, set, deque)):
            self._containers[id(value)] = (value, copy.copy(value))
        elif isinstance(value, torch.Tensor) and value.device.type == "cpu":
            self._tensors[id(value)] = (value, value.detach().clone())
        elif not isinstance(value, tuple):
            return
        if deep and not isinstance(value, torch.Tensor):
            for held in value.values() if isinstance(value, dict) else value:
                self.add(held)

    def put_back(self) -> None:
        for now, before in self._containers.values():
            if isinstance(now, dict):
                if not _same(now, before) or not _same(now.values(), before.values()):
                    now.clear()
                    now.update(before)
            elif isinstance(now, set):
                if now != before:
                    now.clear()
                    now.update(before)
            elif not _same(now, before):
                now.clear()
                now.extend(before)
        with torch.no_grad():
            for now, before in self._tensors.values():
                if not torch.equal(now, before):
                    now.copy_(before)


def _same(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
