"""What PyTorch's DTensor promises nobody; see docs/leaning.md."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import torch._dynamo
import torch.distributed._functional_collectives as funcol
import torch.distributed.fsdp
import torch.distributed.tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor._api import _normalize_placements_for_grad
from torch.distributed.tensor.experimental import _func_map

import torch_xla
from torch_xla.distributed.spmd import exchanges

# What each took when its wrapper was written.
PATCHED = [
    (
        DeviceMesh.__init__,
        "(self, device_type, mesh=None, *, mesh_dim_names=None, backend_override=None, "
        "_init_backend=True, _rank=None, _layout=None, _rank_map=None, _root_mesh=None)",
    ),
    (DeviceMesh.get_group, "(self, mesh_dim=None)"),
    (
        torch.distributed.tensor.DTensor.from_local,
        "(local_tensor, device_mesh=None, placements=None, *, run_check=False, shape=None, "
        "stride=None, grad_placements=None)",
    ),
    (
        torch.distributed.tensor.distribute_tensor,
        "(tensor, device_mesh=None, placements=None, *, src_data_rank=0)",
    ),
    (
        torch.distributed.tensor.distribute_module,
        "(module, device_mesh=None, partition_fn=None, input_fn=None, output_fn=None)",
    ),
    (
        torch.distributed.tensor._api._dtensor_init_helper,
        "(init_op, size, device_mesh=None, placements=None, **kwargs)",
    ),
    (
        _func_map._local_map_wrapped,
        "(func, out_placements, in_placements, in_grad_placements, device_mesh, "
        "redistribute_inputs, *args, **kwargs)",
    ),
    (funcol.all_reduce, "(self, reduceOp, group, tag='')"),
    (funcol.all_gather_single, "(self, gather_dim, group, tag='')"),
    (funcol.reduce_scatter_single, "(self, reduceOp, scatter_dim, group, tag='')"),
    (funcol._resolve_group, "(group, tag='')"),
    (
        torch.distributed.fsdp.fully_shard,
        "(module, *, mesh=None, reshard_after_forward=None, shard_placement_fn=None, "
        "mp_policy=..., offload_policy=..., ignored_params=None, dp_mesh_dims=None)",
    ),
    (torch._dynamo.variables.builder.VariableBuilder.wrap_tensor, "(self, value)"),
]


def test_functions_of_dtensor_are_as_they_were_wrapped():
    for function, takes in PATCHED:
        assert Path(function.__code__.co_filename).is_relative_to(
            Path(torch_xla.__file__).parent
        ), (
            f"{function.__qualname__} is not the one of torch_xla/_src any more. Find out who "
            "replaced it after both were imported, or whether `setup.install` names its module."
        )
        found = inspect.signature(inspect.unwrap(function))
        bare = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
        text = str(inspect.Signature(bare))
        text = re.sub(r"(policy)=\w+\([^()]*\)", r"\1=...", text)
        assert text == takes, (
            f"PyTorch's {function.__qualname__} takes {text}, the wrapper was written for {takes}. "
            "Read PyTorch's, adapt torch_xla/distributed/spmd, then the text here."
        )


def test_reductions_are_those_of_partial():
    assert Partial().reduce_op == "sum" and Partial("avg").reduce_op == "avg"
    documented = set(re.findall(r'``"(\w+)"``', inspect.getsource(Partial)))
    assert documented == {*exchanges.REDUCTIONS, *exchanges.OF_BITS}, (
        f"PyTorch's Partial has the reductions {documented}. Give those of "
        "torch_xla/distributed/spmd/exchanges.py the names of now."
    )


def test_gradients_of_partial_are_replicated():
    made = _normalize_placements_for_grad((Partial(), Partial("avg"), Replicate()))
    assert made == (Replicate(),) * 3, (
        f"PyTorch takes gradients of Partial for {made}. Adapt "
        "torch_xla/distributed/spmd/partial.py and docs/spmd.md."
    )
