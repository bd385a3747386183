"""Batches of which each process of a job has its part."""

from __future__ import annotations

import math

import numpy as np
import torch

from torch_xla import _XLAC
from torch_xla.distributed.spmd.mesh import Mesh, PartitionSpec, _get_tile_assignment


def join(part: torch.Tensor, mesh: Mesh, spec: PartitionSpec) -> torch.Tensor:
    """The split tensor of all processes' rows, those of the first process first.

    Each process gives as many, and its own devices get them: nothing is sent among processes.

    Args:
        part: This process's rows, on the CPU.
        mesh, spec: How the whole is split.

    Raises:
        ValueError: A device of this process would hold rows of another.
    """
    rows = part.shape[0]
    first = rows * _XLAC._xla_get_process_index()
    sizes = (rows * _XLAC._xla_get_num_processes(), *part.shape[1:])
    tiles = _get_tile_assignment(mesh, spec)
    names = [facts["name"] for facts in _XLAC._xla_get_all_device_attributes()]
    shards = []
    for name in _XLAC._xla_real_devices():
        at = np.argwhere(tiles == names.index(name))[0]
        lengths = [math.ceil(n / t) for n, t in zip(sizes, tiles.shape, strict=False)]
        begin = [int(i) * length for i, length in zip(at, lengths, strict=False)]
        begin[0] -= first
        if not 0 <= begin[0] <= rows - lengths[0]:
            raise ValueError(
                f"minibatch: expected a mesh along which {name} holds some of the {rows} rows that "
                f"its process has of a batch, got {spec} of a mesh of shape {mesh.mesh_shape}. "
                "Split the first dimension by processes first."
            )
        held = part[tuple(slice(b, b + n) for b, n in zip(begin, lengths, strict=True))]
        padding = [n - have for n, have in zip(lengths, held.shape, strict=True)]
        shards.append(torch.nn.functional.pad(held, [p for n in reversed(padding) for p in (0, n)]))
    return _XLAC._global_tensor_from_cpu_shards(shards, mesh.get_op_sharding(spec), sizes)
