"""Saving with little host memory: tensors go through the CPU one at a time.

`save(data, path)` writes the structure of `data` to `path` and each tensor to a file of its own in
the folder `path + ".tensors"`; `load(path)` puts them together again, on the CPU.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from torch_xla._src import nested
from torch_xla.core import xla_model as xm


@dataclasses.dataclass(frozen=True)
class TensorReference:
    """Stands for a tensor in the structure's file: `tid` is the number of the tensor's own file."""

    tid: int


def save(
    data: Any, path: str | os.PathLike, master_only: bool = True, global_master: bool = False
) -> None:
    """Saves nested data; host memory holds one of its tensors at a time.

    Tensors that occur several times are written once, and are one tensor again after `load`.

    Args:
        data: Any nested data.
        path: The file for the structure. What is at `path` and in `path + ".tensors"` is replaced.
        master_only: Whether only the first replica writes. Otherwise each one needs a path of its
            own.
        global_master: With `master_only`, whether the first replica of the whole job writes, or
            (the default) that of each host.
    """
    writes = not master_only or xm.is_master_ordinal(local=not global_master)
    folder = _folder(path)
    if writes:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def write(tensors: list[torch.Tensor]) -> list[TensorReference]:
        xm.unlazy([t for t in tensors if xm.is_xla_tensor(t)])  # one run for all
        if writes:
            for tid, tensor in enumerate(tensors):
                torch.save(xm._maybe_convert_to_cpu(tensor), _tensor_path(folder, tid))
        return [TensorReference(tid) for tid in range(len(tensors))]

    structure = nested.replace(data, lambda value: isinstance(value, torch.Tensor), write)
    if writes:
        torch.save(structure, path)
    xm.rendezvous("torch_xla.utils.serialization.save")


def load(path: str | os.PathLike, weights_only: bool = True) -> Any:
    """Loads what `save` wrote; tensors are on the CPU.

    Args:
        path: The path given to `save`.
        weights_only: As in `torch.load`: False also loads objects of other classes than containers
            and tensors, which can run any code; only do so with files you trust.
    """
    folder = _folder(path)
    with torch.serialization.safe_globals([TensorReference]):
        structure = torch.load(path, weights_only=weights_only)

    def read(references: list[TensorReference]) -> list[torch.Tensor]:
        tensors: dict[int, torch.Tensor] = {}
        for reference in references:
            if reference.tid not in tensors:
                file = _tensor_path(folder, reference.tid)
                if not file.is_file():
                    raise FileNotFoundError(
                        f"serialization.load: expected the tensors of '{path}' in '{folder}', "
                        f"there is no '{file.name}'. Keep the folder beside the file."
                    )
                tensors[reference.tid] = torch.load(file, weights_only=weights_only)
        return [tensors[reference.tid] for reference in references]

    return nested.replace(structure, lambda value: isinstance(value, TensorReference), read)


def _folder(path: str | os.PathLike) -> Path:
    return Path(f"{os.fspath(path)}.tensors")


def _tensor_path(folder: Path, tid: int) -> Path:
    return folder / f"tensor_{tid}.pt"
