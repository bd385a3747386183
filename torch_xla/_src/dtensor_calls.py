"""PyTorch's functions on DTensors that do something else for a `DeviceMesh("xla", ...)`.

`distribute_tensor` and `distribute_module` ask torch_xla by themselves. These do not.
"""

from __future__ import annotations

import functools
import sys
from typing import Any


def install() -> None:
    """To be called once, when `torch.distributed.tensor._api` is imported."""
    api = sys.modules["torch.distributed.tensor._api"]
    from_local, init_helper = api.DTensor.from_local, api._dtensor_init_helper
    current_mesh = api._mesh_resources.get_current_mesh

    @functools.wraps(from_local)
    def checked_from_local(local_tensor: Any, device_mesh=None, placements=None, **kwargs: Any):
        mesh = device_mesh or current_mesh()
        if mesh.device_type != "xla":
            return from_local(local_tensor, mesh, placements, **kwargs)
        from torch_xla.distributed.spmd import dtensor

        return dtensor.from_local(local_tensor, mesh, placements, **kwargs)

    @functools.wraps(init_helper)
    def checked_init_helper(init_op: Any, size: Any, device_mesh=None, placements=None, **kwargs):
        mesh = device_mesh or current_mesh()
        if mesh.device_type != "xla":
            return init_helper(init_op, size, mesh, placements, **kwargs)
        from torch_xla.distributed.spmd import dtensor

        return dtensor.made_by(init_op, size, mesh, placements, **kwargs)

    api.DTensor._from_local_of_processes = staticmethod(from_local)
    api.DTensor.from_local = staticmethod(checked_from_local)
    api._dtensor_init_helper = checked_init_helper


# Where programs find `fully_shard`, if they have imported it before torch_xla.
_FULLY_SHARD = (
    "torch.distributed.fsdp._fully_shard._fully_shard",
    "torch.distributed.fsdp._fully_shard",
    "torch.distributed.fsdp",
    "torch.distributed._composable.fsdp",
)


def install_fully_shard() -> None:
    """To be called once, when the module of PyTorch's `fully_shard` is imported."""
    original = sys.modules[_FULLY_SHARD[0]].fully_shard

    @functools.wraps(original)
    def fully_shard(module: Any, *, mesh: Any = None, **kwargs: Any) -> Any:
        if mesh is None or mesh.device_type != "xla":
            return original(module, mesh=mesh, **kwargs)
        from torch_xla.distributed.spmd.fully_shard import xla_fully_shard

        return xla_fully_shard(module, mesh=mesh, **kwargs)

    for name in _FULLY_SHARD:
        if getattr(sys.modules.get(name), "fully_shard", None) is original:
            sys.modules[name].fully_shard = fully_shard


def capture_from_local() -> None:
    """To be called once, when `torch._dynamo.trace_rules` is imported: what `DTensor.from_local`
    does here is captured, PyTorch's remains one call of a graph.
    """
    trace_rules = sys.modules["torch._dynamo.trace_rules"]
    rules, name = trace_rules.manual_torch_name_rule_map, "torch.distributed.tensor._api.DTensor"
    if f"{name}#from_local" in rules:
        rules[f"{name}#_from_local_of_processes"] = rules[f"{name}#from_local"]
        rules[f"{name}#from_local"] = trace_rules.UserFunctionVariable
