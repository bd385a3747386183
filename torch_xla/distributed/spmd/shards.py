"""The parts of a tensor that is split among devices."""

from __future__ import annotations

import types

import torch


class XLAShard:
    """The part of a tensor on one device.

    Attributes:
        data: The part, on the CPU. Parts are equal: along a dimension that the devices do not
            divide it is padded with zeros, the last ones entirely.
        indices: Where it lies in the tensor, without padding: a slice for each dimension, or `...`
            for all of it. What a device has of a manual tensor is all of it, too, and no other
            device's.
        shard_device: The device's name, "CPU:0" for example.
        replica_id: Numbers the devices that hold this same part.
    """

    def __init__(
        self,
        data: torch.Tensor,
        indices: types.EllipsisType | list[slice],
        shard_device: str,
        replica_id: int,
    ):
        self.data = data
        self.indices = indices
        self.shard_device = shard_device
        self.replica_id = replica_id

    @property
    def unpadded_data(self) -> torch.Tensor:
        """The part without padding, a view of `data`; what is set is written there."""
        if self.indices is ...:
            return self.data
        return self.data[tuple(slice(0, at.stop - at.start) for at in self.indices)]

    @unpadded_data.setter
    def unpadded_data(self, value: torch.Tensor) -> None:
        self.unpadded_data.copy_(value)

    def __repr__(self) -> str:
        return (
            f"XLAShard(shape={tuple(self.data.shape)}, indices={self.indices}, "
            f"device={self.shard_device}, replica_id={self.replica_id})"
        )
