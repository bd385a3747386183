"""Tensors of two runs of a model, saved step by step, and where they differ.

    model_comparator.configure("/tmp/run1")
    model_comparator.save("hidden", hidden)  # where the model computes it, each time
    report = model_comparator.compare("/tmp/run1", "/tmp/run2")

after two such runs.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from pathlib import Path

import torch

from torch_xla._src.job import place as _place
from torch_xla.core import xla_model as xm

_SAVE_DIR: Path | None = None
_STEP: int | None = None
_TENSOR_IDS: Counter[str] = Counter()  # how often a name was saved in this step


def configure(save_dir: str | os.PathLike[str]) -> None:
    """Lets `save` write to a folder, which is made where it is not there."""
    global _SAVE_DIR
    _SAVE_DIR = Path(save_dir)
    _SAVE_DIR.mkdir(parents=True, exist_ok=True)


def save(name: str | None, tensor: torch.Tensor, step: int | None = None) -> None:
    """Writes a tensor's value; nothing on other replicas than the first, or before `configure`.

    Args:
        name: What it is; None stands for the caller's line, "train.py.l31". A name that comes
            several times in a step has a number for each.
        tensor: The tensor, on any device.
        step: The number of the step.
    """
    global _STEP
    if _SAVE_DIR is None or not _is_master_ordinal():
        return
    if name is None:
        caller = sys._getframe(1)
        name = f"{os.path.basename(caller.f_code.co_filename)}.l{caller.f_lineno}"
    if step != _STEP:
        _TENSOR_IDS.clear()
        _STEP = step
    torch.save(xm._maybe_convert_to_cpu(tensor.detach()), _SAVE_DIR / _get_tensor_name(name))


def compare(
    save_dir1: str | os.PathLike[str],
    save_dir2: str | os.PathLike[str],
    rtol: float = 1e-05,
    atol: float = 1e-08,
    max_diffs: int = 25,
) -> str:
    """The differences of the tensors that two runs have saved; empty if nothing does.

    Args:
        save_dir1: The folder of one run.
        save_dir2: That of the other.
        rtol: As in `torch.isclose`.
        atol: As in `torch.isclose`.
        max_diffs: The most elements that are shown of a tensor.
    """
    one, other = _collect_saved_tensors(save_dir1), _collect_saved_tensors(save_dir2)
    report = ""
    for name in sorted(one.keys() | other.keys(), key=_parse_path):
        if name not in one or name not in other:
            report += f"{name}: only in {save_dir1 if name in one else save_dir2}\n"
            continue
        differences = tensor_file_compare(one[name], other[name], rtol, atol, max_diffs)
        if differences:
            report += f"{name}:\n{differences}"
    return report


def tensor_file_compare(
    path1: str | os.PathLike[str],
    path2: str | os.PathLike[str],
    rtol: float = 1e-05,
    atol: float = 1e-08,
    max_diffs: int = 25,
) -> str:
    """`compare_tensors` of two files."""
    return compare_tensors(torch.load(path1), torch.load(path2), rtol, atol, max_diffs)


def compare_tensors(
    tensor1: torch.Tensor,
    tensor2: torch.Tensor,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    max_diffs: int = 25,
) -> str:
    """The differences of two tensors, a line for each element, the largest first."""
    if tensor1.shape != tensor2.shape or tensor1.dtype != tensor2.dtype:
        return (
            f"  {tuple(tensor1.shape)} {tensor1.dtype} != {tuple(tensor2.shape)} {tensor2.dtype}\n"
        )
    one, other = tensor1.cpu().flatten(), tensor2.cpu().flatten()
    (places,) = torch.where(~torch.isclose(one, other, rtol, atol, equal_nan=True))
    wide = torch.complex128 if one.is_complex() else torch.float64
    size = (one[places].to(wide) - other[places].to(wide)).abs().nan_to_num(nan=torch.inf)
    report = ""
    for place in places[size.argsort(descending=True, stable=True)][:max_diffs].tolist():
        index = _index_of(tensor1.shape, place)
        report += f"  {index}: {one[place].item()} != {other[place].item()}\n"
    if len(places) > max_diffs:
        report += f"  and {len(places) - max_diffs} others\n"
    return report


def _is_master_ordinal() -> bool:
    return _place.rank() == 0


def _get_save_dir() -> Path | None:
    return _SAVE_DIR


def _get_tensor_name(name: str) -> str:
    """The name of the file: name, number within the step, step."""
    number = _TENSOR_IDS[name]
    _TENSOR_IDS[name] += 1
    return f"{name.replace('/', '.')}-{number}" + ("" if _STEP is None else f"-{_STEP}") + ".pt"


def _parse_path(path: str | os.PathLike[str]) -> tuple[int, int, str]:
    """(step, number, name) of a file, by which files are in the order they were written."""
    parts = re.fullmatch(r"(.*?)-(\d+)(?:-(\d+))?\.pt", Path(path).name)
    if parts is None:
        raise ValueError(f"model_comparator: expected a file that save() wrote, got '{path}'.")
    name, number, step = parts.groups()
    return int(step or -1), int(number), name


def _collect_saved_tensors(path: str | os.PathLike[str]) -> dict[str, Path]:
    return {file.name: file for file in Path(path).glob("*.pt")}


def _index_of(sizes: torch.Size, lindex: int) -> tuple[int, ...]:
    """The index of an element from its place in row-major order."""
    index: list[int] = []
    for size in reversed(sizes):
        index.insert(0, lindex % size)
        lindex //= size
    return tuple(index)
