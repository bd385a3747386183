"""The full values of a wrapper's parameters: gathered when wanted, dropped, gathered again.

Autograd saves parameters, and views of them, for the backward pass. In their place it keeps here
where they lie in the full values, which need not live that long then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch


class _Part(NamedTuple):
    """A view of a full value: which one, and where it lies there."""

    place: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class _ByOthers(NamedTuple):
    """A tensor that the hooks outside of ours have packed."""

    unpack: Callable[[Any], torch.Tensor]
    packed: Any


class FullValues:
    """The full values of some shards, each in a line.

    Args:
        shards: The parameters that hold this rank's shards.
        gather: Gives the full values of shards.
    """

    def __init__(
        self,
        shards: Sequence[torch.nn.Parameter],
        gather: Callable[[list[torch.Tensor]], list[torch.Tensor]],
    ):
        self._shards = shards
        self._gather = gather
        self._values: list[torch.Tensor] = []
        self._versions: list[int] = []
        self._index_of_storage: dict[int, int] = {}

    def are_here(self) -> bool:
        """Tells if they are at hand, of the shards as they are now."""
        return bool(self._values) and self._versions == [s._version for s in self._shards]

    def get(self, shards: list[torch.Tensor] | None = None) -> list[torch.Tensor]:
        """The full values.

        Args:
            shards: Equal to the shards, to gather if the full values are not at hand.
        """
        if not self.are_here():
            with torch.no_grad():
                self._values = self._gather(shards or [s.detach() for s in self._shards])
            self._versions = [s._version for s in self._shards]
            self._index_of_storage = {
                value.untyped_storage()._cdata: i for i, value in enumerate(self._values)
            }
        return self._values

    def drop(self) -> None:
        """Forgets them."""
        self._values, self._versions, self._index_of_storage = [], [], {}

    @contextlib.contextmanager
    def not_saved(self) -> Iterator[None]:
        """Context manager: what autograd saves of them is looked up in the backward pass."""
        others = torch._C._autograd._top_saved_tensors_default_hooks(True)

        def pack(tensor: torch.Tensor) -> Any:
            part = self._part(tensor)
            if part is not None:
                return part
            if others is not None:
                return _ByOthers(others[1], others[0](tensor))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, self._unpack):
            yield

    def _part(self, tensor: torch.Tensor) -> _Part | None:
        if tensor.device.type != "xla" or type(tensor) is not torch.Tensor:
            return None
        index = self._index_of_storage.get(tensor.untyped_storage()._cdata)
        if index is None or tensor.dtype != self._values[index].dtype:
            return None
        return _Part(index, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def _unpack(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, _ByOthers):
            return packed.unpack(packed.packed)
        if isinstance(packed, _Part):
            return _view(self.get()[packed.place], packed)
        return packed


def _view(value: torch.Tensor, part: _Part) -> torch.Tensor:
    """A view by `view` and `permute` where these can make it: programs of them are fast."""
    order = sorted(
        range(len(part.size)), key=lambda d: (part.stride[d], part.size[d] > 1), reverse=True
    )
    length = 1
    for d in reversed(order):
        if part.size[d] != 1 and part.stride[d] != length:
            return value.as_strided(part.size, part.stride, part.offset)
        length *= part.size[d]
    piece = value.view(-1).narrow(0, part.offset, length).view([part.size[d] for d in order])
    return piece.permute([order.index(d) for d in range(len(order))])
