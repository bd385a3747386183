"""Parts of a `DeviceMesh("xla", ...)` that PyTorch lacks, which makes no process groups for it.

Slices of it (`mesh["tp"]`) and their devices are found by process groups and by the process's rank.
One process of SPMD has all the devices: it stands where the mesh's first device does, and a slice
is that through this device.
"""

from __future__ import annotations

import functools
from typing import Any

import torch


def install() -> None:
    """To be called once."""
    if not torch.distributed.is_available():
        return
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(getattr(DeviceMesh, "mesh", None), property):
        return  # of another release of PyTorch, where slices of a mesh of xla raise
    make, get_group = DeviceMesh.__init__, DeviceMesh.get_group
    get_local_rank = DeviceMesh.get_local_rank
    devices = DeviceMesh.mesh.fget

    @functools.wraps(make)
    def __init__(self: DeviceMesh, device_type: str, *args: Any, **kwargs: Any) -> None:
        make(self, device_type, *args, **kwargs)
        if device_type == "xla":
            self._dim_group_names = []
            # None would say that its DTensors are of other processes: checkpoints lack such.
            self._coordinate_on_dim = (0,) * self.ndim

    @functools.wraps(devices)
    def mesh(self: DeviceMesh) -> torch.Tensor:
        if self._device_type == "xla":
            return self._layout.remap_to_tensor(self._rank_map)[0]
        return devices(self)

    @functools.wraps(get_group)
    def checked_get_group(self: DeviceMesh, mesh_dim: int | str | None = None) -> Any:
        if self._device_type == "xla" and not self._dim_group_names:
            raise RuntimeError(
                "DeviceMesh.get_group: expected a mesh of processes, got one of 'xla', whose "
                "devices are those of one SPMD process: its programs send by themselves."
            )
        return get_group(self, mesh_dim)

    @functools.wraps(get_local_rank)
    def first_local_rank(self: DeviceMesh, mesh_dim: int | str | None = None) -> int:
        return 0 if self._device_type == "xla" else get_local_rank(self, mesh_dim)

    DeviceMesh.__init__ = __init__
    DeviceMesh.mesh = property(mesh)  # type: ignore[assignment]
    DeviceMesh.get_group = checked_get_group
    DeviceMesh.get_local_rank = first_local_rank
