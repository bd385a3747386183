"""Tensors on xla without memory, in the places of others while a step that uses those is recorded.

A step may then be written for weights on `meta`, on the CPU or fake ones: their values are not
needed to know its program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._src.patches.module_identity import is_in_a_graph, swap_implementations
from torch_xla._src.saved_step.tensor_names import is_on_xla
from torch_xla._src.saved_step.unchanged import HOLDERS


def of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on xla of the same dtype, sizes, strides and sharding, which has no value."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="xla")
    if sharding := sharding_text(tensor):
        torch.ops.torch_xla.mark_sharding_(made, sharding)
    return made.requires_grad_(tensor.requires_grad)


def sharding_text(tensor: torch.Tensor) -> str:
    """The sharding of a marked tensor on xla or meta, as operators take it; "": none."""
    if is_on_xla(tensor) and not _is_fake(tensor):
        return _XLAC._asked_sharding(tensor)
    return getattr(tensor, "_xla_sharding", "")


@contextmanager
def in_place(named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[None]:
    """A block in which these tensors, as far as they are not on xla, are such tensors on xla.

    The objects stay the same ones, so that modules and optimizers that hold them do not notice.

    Raises:
        RuntimeError: A graph of autograd leads to one.
    """
    by_id = {id(t): (name, t) for name, t in named if _is_replaceable(t)}
    for name, tensor in by_id.values():
        if is_in_a_graph(tensor):
            raise RuntimeError(
                f"expected weights that no earlier call refers to, got {name!r}, of which a result "
                "is still there that can go back to it. Delete the result, or detach it."
            )
    tensors = [tensor for _, tensor in by_id.values()]
    gradients = [(t, t.grad) for t in tensors if t.is_leaf and t.grad is not None]
    others = _others(tensors)
    for tensor, _ in gradients:
        tensor.grad = None
    try:
        _swap(tensors, others)
        for tensor, gradient in gradients:
            tensor.grad = gradient
        yield
    finally:
        for tensor in tensors:
            tensor.grad = None
        _swap(tensors, others)
        for tensor, gradient in gradients:
            tensor.grad = gradient


def _is_replaceable(tensor: torch.Tensor) -> bool:
    plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if type(tensor) not in plain and type(tensor).__name__ != "FakeTensor":
        return False
    if tensor.device.type == "xla" and not _is_fake(tensor):
        return False
    is_dense = tensor.layout == torch.strided and not tensor.is_quantized
    return is_dense and tensor.is_leaf and not tensor.is_inference()


def _is_fake(tensor: torch.Tensor) -> bool:
    return type(tensor).__name__ == "FakeTensor"


def _others(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Stand-ins that share memory where the tensors do."""
    groups: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    others = {}
    for group in groups.values():
        first = group[0]
        if len({_view_of(t) for t in group}) == 1:
            base = of(first).detach()
        else:  # views of one memory
            size = first.untyped_storage().nbytes() // first.element_size()
            base = torch.empty(size, dtype=first.dtype, device="xla")
        for t in group:
            if _view_of(t) == _view_of(first) and base.shape == t.shape:
                view = base.detach()
            else:
                view = base.as_strided(t.shape, t.stride(), t.storage_offset())
            others[id(t)] = view.requires_grad_(t.requires_grad)
    return [others[id(t)] for t in tensors]


def _view_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()


def _swap(tensors: list[torch.Tensor], others: list[torch.Tensor]) -> None:
    for tensor, other in zip(tensors, others, strict=True):
        swap_implementations(tensor, other)
        if _is_fake(tensor) or _is_fake(other):
            # The class answers for the device, from what the object holds.
            tensor.__class__, other.__class__ = other.__class__, tensor.__class__
            tensor.__dict__, other.__dict__ = other.__dict__, tensor.__dict__


class MadeState:
    """State that a rehearsed call makes: tensors on xla that were not there before it."""

    def __init__(self) -> None:
        self._kept = _tensors_on_xla()  # alive, so that no other has their ids
        self._before = {id(t) for t in self._kept}

    def keep(self) -> None:
        """Puts stand-ins of no value in their places, for the next call to find."""
        for holder in _XLAC._xla_objects_of(HOLDERS):
            self._keep_in(holder.__dict__, set())
        for tensor in self._kept:
            if tensor.is_leaf and tensor.grad is not None and self._is_new(tensor.grad):
                tensor.grad = of(tensor.grad)

    def _keep_in(self, container: Any, seen: set[int]) -> None:
        if id(container) in seen or not isinstance(container, (dict, list)):
            return
        seen.add(id(container))
        items = container.items() if isinstance(container, dict) else enumerate(container)
        for key, value in list(items):
            if self._is_new(value):
                container[key] = of(value.detach())
            else:
                self._keep_in(value, seen)

    def _is_new(self, value: Any) -> bool:
        is_ours = isinstance(value, torch.Tensor) and is_on_xla(value)
        return is_ours and id(value) not in self._before


def _tensors_on_xla() -> list[torch.Tensor]:
    tensors = _XLAC._xla_objects_of((torch.Tensor,))
    return [t for t in tensors if is_on_xla(t) and not t.is_inference()]
