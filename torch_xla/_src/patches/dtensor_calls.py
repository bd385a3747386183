"""PyTorch's functions on DTensors that do something else for a mesh of the devices of one process.

`distribute_tensor` and `distribute_module` ask torch_xla by themselves for a `DeviceMesh("xla")`,
also for one of processes, for which they are PyTorch's. The others do not ask.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from torch_xla._src.processes.device_mesh import as_of_other_devices, is_of_devices


def install() -> None:
    """To be called once, when `torch.distributed.tensor._api` is imported."""
    # Files of DTensors name this function; torch.load trusts it as PyTorch's own.
    torch.serialization.add_safe_globals(
        [(_rebuilt, "torch_xla.distributed.spmd.dtensor._rebuilt")]
    )
    api = sys.modules["torch.distributed.tensor._api"]
    from_local, init_helper = api.DTensor.from_local, api._dtensor_init_helper
    current_mesh = api._mesh_resources.get_current_mesh

    @functools.wraps(from_local)
    def checked_from_local(local_tensor: Any, device_mesh=None, placements=None, **kwargs: Any):
        mesh = device_mesh or current_mesh()
        if not is_of_devices(mesh):
            return from_local(local_tensor, mesh, placements, **kwargs)
        from torch_xla.distributed.spmd import dtensor

        return dtensor.from_local(local_tensor, mesh, placements, **kwargs)

    @functools.wraps(init_helper)
    def checked_init_helper(init_op: Any, size: Any, device_mesh=None, placements=None, **kwargs):
        mesh = device_mesh or current_mesh()
        if not is_of_devices(mesh):
            return init_helper(init_op, size, mesh, placements, **kwargs)
        from torch_xla.distributed.spmd.api import made_by

        return made_by(init_op, size, mesh, placements, **kwargs)

    api.DTensor._from_local_of_processes = staticmethod(from_local)
    api.DTensor.from_local = staticmethod(checked_from_local)
    api._dtensor_init_helper = checked_init_helper
    _let_through(api.distribute_tensor)
    _let_through(api.distribute_module)
    handlers = api.DTensor._op_dispatcher._custom_op_handlers
    handlers[torch.ops.aten.linear_backward.default] = _linear_backward


def _linear_backward(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """By products, whose placements PyTorch knows: it has `linear` as them on other devices."""
    input, gradient, weight, wanted = args
    rows = gradient.reshape(-1, gradient.size(-1))
    return (
        gradient.matmul(weight) if wanted[0] else None,
        rows.t().matmul(input.reshape(-1, input.size(-1))) if wanted[1] else None,
        rows.sum(0) if wanted[2] else None,
    )


def _let_through(original: Any) -> None:
    """Lets PyTorch distribute over processes, whatever module has imported its function by now."""
    of_processes = as_of_other_devices(original)
    current_mesh = sys.modules["torch.distributed.device_mesh"]._mesh_resources.get_current_mesh

    @functools.wraps(original)
    def distribute(what: Any, device_mesh: Any = None, *args: Any, **kwargs: Any) -> Any:
        mesh = device_mesh or current_mesh()
        function = original if is_of_devices(mesh) else of_processes
        return function(what, mesh, *args, **kwargs)

    name = original.__name__
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("torch.distributed"):
            if module.__dict__.get(name) is original:
                setattr(module, name, distribute)


def _rebuilt(*arguments: Any) -> Any:
    from torch_xla.distributed.spmd import dtensor

    return dtensor._rebuilt(*arguments)


def install_local_map() -> None:
    """To be called once, when the module of PyTorch's `local_map` is imported."""
    module = sys.modules["torch.distributed.tensor.experimental._func_map"]
    original = module._local_map_wrapped
    flatten = module.pytree.tree_flatten

    @functools.wraps(original)
    def checked_local_map_wrapped(
        func: Any,
        out_placements: Any,
        in_placements: Any,
        in_grad_placements: Any,
        device_mesh: Any,
        redistribute_inputs: bool,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        called = original
        if any(isinstance(t, module.DTensor) and _is_on_xla(t) for t in flatten(args)[0]):
            from torch_xla.distributed.spmd.local_map import called_on_parts as called
        return called(
            func,
            out_placements,
            in_placements,
            in_grad_placements,
            device_mesh,
            redistribute_inputs,
            *args,
            **kwargs,
        )

    module._local_map_wrapped = checked_local_map_wrapped


def _is_on_xla(d: Any) -> bool:
    return is_of_devices(d.device_mesh)


def install_collectives() -> None:
    """To be called once, when `torch.distributed._functional_collectives` is imported."""
    module = sys.modules["torch.distributed._functional_collectives"]

    def is_of_xla(group: Any) -> bool:
        mesh = group[0] if isinstance(group, tuple) and group else group
        return isinstance(mesh, module.DeviceMesh) and is_of_devices(mesh)

    all_reduce, gather = module.all_reduce, module.all_gather_single
    scatter, resolve = module.reduce_scatter_single, module._resolve_group

    @functools.wraps(all_reduce)
    def checked_all_reduce(self: Any, reduceOp: str, group: Any, tag: str = "") -> Any:
        if not is_of_xla(group):
            return all_reduce(self, reduceOp, group, tag)
        from torch_xla.distributed.spmd import local_map

        return local_map.all_reduce(self, reduceOp, group)

    @functools.wraps(gather)
    def checked_all_gather(self: Any, gather_dim: int, group: Any, tag: str = "") -> Any:
        if not is_of_xla(group):
            return gather(self, gather_dim, group, tag)
        from torch_xla.distributed.spmd import local_map

        return local_map.all_gather(self, gather_dim, group)

    @functools.wraps(scatter)
    def checked_reduce_scatter(
        self: Any, reduceOp: str, scatter_dim: int, group: Any, tag: str = ""
    ) -> Any:
        if not is_of_xla(group):
            return scatter(self, reduceOp, scatter_dim, group, tag)
        from torch_xla.distributed.spmd import local_map

        return local_map.reduce_scatter(self, reduceOp, scatter_dim, group)

    @functools.wraps(resolve)
    def checked_resolve_group(group: Any, tag: str = "") -> Any:
        if is_of_xla(group):
            raise NotImplementedError(
                "torch.distributed: expected all_reduce, all_gather_single or "
                "reduce_scatter_single along an xla mesh, got another collective."
            )
        return resolve(group, tag)

    module.all_reduce, module.all_gather_single = checked_all_reduce, checked_all_gather
    module.reduce_scatter_single, module._resolve_group = (
        checked_reduce_scatter,
        checked_resolve_group,
    )


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
        if mesh is None or not is_of_devices(mesh):
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
