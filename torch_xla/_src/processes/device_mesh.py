"""Parts of a `DeviceMesh("xla", ...)` that PyTorch lacks, which makes no process groups for it.

In SPMD mode it is a mesh of the devices of one process. Slices of it (`mesh["tp"]`) and their
devices are found by process groups and by the process's rank; the process stands where the mesh's
first device does, and a slice is that through this device.

In a job of several processes it is a mesh of processes, as those of other devices are.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from torch_xla import _XLAC

_has_processes = False  # whether any mesh has


def is_of_devices(mesh: Any) -> bool:
    """True for a mesh of xla whose devices belong to one process."""
    if mesh.device_type != "xla":
        return False
    if not _has_processes:
        return True
    # torch._dynamo reads no attributes of ours. Where one mesh is of processes, all others are.
    return not (
        torch.compiler.is_dynamo_compiling() or getattr(mesh, "_torch_xla_processes", False)
    )


def as_of_other_devices(function: Callable[..., Any]) -> Any:
    """A function of PyTorch's as it is for devices that it does not treat apart, as it does xla."""
    code = function.__code__
    constants = tuple("none of these" if c == "xla" else c for c in code.co_consts)
    made = types.FunctionType(
        code.replace(co_consts=constants),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def install() -> None:
    """To be called once."""
    if not torch.distributed.is_available():
        return
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(getattr(DeviceMesh, "mesh", None), property):
        return  # of another release of PyTorch, where slices of a mesh of xla raise
    make, get_group = DeviceMesh.__init__, DeviceMesh.get_group
    make_of_processes = as_of_other_devices(make)
    get_local_rank = DeviceMesh.get_local_rank
    devices = DeviceMesh.mesh.fget

    @functools.wraps(make)
    def __init__(self: DeviceMesh, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type == "xla" and _is_of_processes(kwargs.get("_root_mesh")):
            global _has_processes
            _has_processes = self._torch_xla_processes = True
            if kwargs.get("_init_backend", True):
                kwargs = _meet(args, kwargs)
            make_of_processes(self, device_type, *args, **kwargs)
            return
        make(self, device_type, *args, **kwargs)
        if device_type == "xla":
            self._dim_group_names = []
            # None would say that its DTensors are of other processes: checkpoints lack such.
            self._coordinate_on_dim = (0,) * self.ndim

    @functools.wraps(devices)
    def mesh(self: DeviceMesh) -> torch.Tensor:
        if is_of_devices(self):
            return self._layout.remap_to_tensor(self._rank_map)[0]
        return devices(self)

    @functools.wraps(get_group)
    def checked_get_group(self: DeviceMesh, mesh_dim: int | str | None = None) -> Any:
        if is_of_devices(self) and not self._dim_group_names:
            raise RuntimeError(
                "DeviceMesh.get_group: expected a mesh of processes, got one of 'xla', whose "
                "devices are those of one SPMD process: its programs send by themselves."
            )
        return get_group(self, mesh_dim)

    @functools.wraps(get_local_rank)
    def first_local_rank(self: DeviceMesh, mesh_dim: int | str | None = None) -> int:
        return 0 if is_of_devices(self) else get_local_rank(self, mesh_dim)

    DeviceMesh.__init__ = __init__
    DeviceMesh.mesh = property(mesh)  # type: ignore[assignment]
    DeviceMesh.get_group = checked_get_group
    DeviceMesh.get_local_rank = first_local_rank


def _is_of_processes(root: Any) -> bool:
    """True for meshes that are made now, of some root if they are slices."""
    if root is not None:
        return not is_of_devices(root)
    if _XLAC._xla_is_spmd():
        return False
    from torch_xla._src.job import place  # not a part of what `import torch_xla` costs

    return place.world_size() > 1 or _world_has_xla()


def _world_has_xla() -> bool:
    from torch.distributed import distributed_c10d

    if not distributed_c10d.is_initialized():
        return False
    return torch.device("xla") in distributed_c10d._get_default_group()._device_types


def _meet(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the mesh, once all processes have a group with the backend `xla`."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("xla")
    torch.xla.init()  # or PyTorch takes the device of LOCAL_RANK; each process has one
    if _world_has_xla() or kwargs.get("backend_override") is not None:
        return kwargs
    layout, given = kwargs.get("_layout"), args[0] if args else kwargs.get("mesh")
    dims = len(layout) if layout is not None else torch.as_tensor(given).dim()
    return {**kwargs, "backend_override": (("xla", None),) * dims}
