"""Recorded graphs, saved once each."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch

from torch_xla import _XLAC

# For each folder and name, the numbers of the graphs by their hashes.
_SAVE_GRAPH_IDS: dict[tuple[str, str], dict[bytes, int]] = defaultdict(dict)


def save_tensors_graph(
    save_dir: str | os.PathLike[str], name: str, tensors: Sequence[torch.Tensor]
) -> None:
    """Writes the graph of tensors to `save_dir/name-<n>.txt`, if it differs from those before.

    Args:
        save_dir: The folder; it is made where it is not there.
        name: What the graphs are of.
        tensors: The graph's outputs.
    """
    folder = Path(save_dir)
    saved = _SAVE_GRAPH_IDS[str(folder), name]
    key = _XLAC._xla_graph_hash(list(tensors), _XLAC._xla_flag("XLA_AUTO_SPMD_MESH"))
    if key not in saved:
        saved[key] = len(saved)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}-{saved[key]}.txt").write_text(_XLAC._get_xla_tensors_text(list(tensors)))
