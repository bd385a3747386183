"""Saving with little host memory: tensors go through the CPU one at a time.

`save(data, path)` writes the structure of `data` to `path` and each tensor to a file of its own in
the folder `path + ".tensors"`; `load(path)` puts them together again, on the CPU. The files of a
save have names of their own and the structure comes last, so until a save is complete, `path` is
what it was before.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from torch_xla._src.functions import nested
from torch_xla.core import xla_model as xm


@dataclasses.dataclass(frozen=True)
class TensorReference:
    """Stands for a tensor in the structure's file: the tensor's own file is `tid` of that save."""

    tid: int
    save_id: str = ""  # files of earlier versions have none

    def file_name(self) -> str:
        return f"tensor_{self.save_id}{'_' if self.save_id else ''}{self.tid}.pt"


def save(
    data: Any, path: str | os.PathLike[str], master_only: bool = True, global_master: bool = False
) -> None:
    """Saves nested data; host memory holds one of its tensors at a time.

    Tensors that occur several times are written once, and are one tensor again after `load`.

    Args:
        data: Any nested data.
        path: The file for the structure. What is at `path` and in `path + ".tensors"` is replaced
            once all is written; a save that fails or is interrupted leaves it as it was.
        master_only: Whether only the first replica writes. Otherwise each one needs a path of its
            own.
        global_master: With `master_only`, whether the first replica of the whole job writes, or
            (the default) that of each host.
    """
    writes = not master_only or xm.is_master_ordinal(local=not global_master)
    folder = _folder(path)
    save_id = secrets.token_hex(8)
    target = Path(os.path.realpath(path))  # of a link, as torch.save has it
    draft = target.with_name(f"{target.name}.{save_id}.tmp")

    def write(tensors: list[torch.Tensor]) -> list[TensorReference]:
        xm.unlazy([t for t in tensors if xm.is_xla_tensor(t)])  # one run for all
        references = [TensorReference(tid, save_id) for tid in range(len(tensors))]
        if writes:
            for reference, tensor in zip(references, tensors, strict=True):
                torch.save(xm._maybe_convert_to_cpu(tensor), folder / reference.file_name())
        return references

    if writes:
        os.makedirs(os.path.realpath(folder), exist_ok=True)
    try:
        structure = nested.replace(data, lambda value: isinstance(value, torch.Tensor), write)
        if writes:
            torch.save(structure, draft)
            os.replace(draft, target)
    except BaseException:
        if writes:
            draft.unlink(missing_ok=True)
            _remove(folder.glob(f"tensor_{save_id}_*.pt"))
        raise
    if writes:
        _remove(f for f in folder.glob("tensor_*.pt") if save_id not in f.name)
        _remove(target.parent.glob(f"{glob.escape(target.name)}.{'[0-9a-f]' * 16}.tmp"))
    xm.rendezvous("torch_xla.utils.serialization.save")


def load(path: str | os.PathLike[str], weights_only: bool = True) -> Any:
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
        tensors: dict[TensorReference, torch.Tensor] = {}
        for reference in references:
            if reference not in tensors:
                file = folder / reference.file_name()
                if not file.is_file():
                    raise FileNotFoundError(
                        f"serialization.load: expected the tensors of '{path}' in '{folder}', "
                        f"there is no '{file.name}'. Keep the folder beside the file."
                    )
                tensors[reference] = torch.load(file, weights_only=weights_only)
        return [tensors[reference] for reference in references]

    return nested.replace(structure, lambda value: isinstance(value, TensorReference), read)


def _get_tensors_folder(path: str | os.PathLike[str]) -> str:
    return f"{os.fspath(path)}.tensors"


def _folder(path: str | os.PathLike[str]) -> Path:
    return Path(_get_tensors_folder(path))


def _get_tensor_file(path: str | os.PathLike[str], tid: int) -> str:
    """The file of a tensor of a save by earlier versions."""
    return os.path.join(_get_tensors_folder(path), TensorReference(tid).file_name())


def _rewrite_data(path: str | os.PathLike[str], data: Any, save_tensors: bool) -> Any:
    """Nested data with references in the place of its tensors, as earlier versions saved it.

    Args:
        path: Where the data will be saved; the tensors go to its folder.
        data: The data.
        save_tensors: Whether the tensors are written.
    """

    def write(tensors: list[torch.Tensor]) -> list[TensorReference]:
        if save_tensors:
            os.makedirs(_get_tensors_folder(path), exist_ok=True)
            for tid, tensor in enumerate(tensors):
                torch.save(xm._maybe_convert_to_cpu(tensor), _get_tensor_file(path, tid))
        return [TensorReference(tid) for tid in range(len(tensors))]

    return nested.replace(data, lambda value: isinstance(value, torch.Tensor), write)


def _remove(files: Iterable[Path]) -> None:
    for file in list(files):
        file.unlink(missing_ok=True)
