"""Operators of FSDP2 (`fsdp::*`) on xla, which PyTorch has for devices that it knows.

They are recorded as the operators that they are made of, and so traced.
"""

from __future__ import annotations

import sys

import torch

_library: torch.library.Library | None = None


def install() -> None:
    """To be called once, when the module that defines them is imported."""
    global _library
    module = sys.modules["torch.distributed.fsdp._fully_shard._fsdp_collectives"]
    _library = torch.library.Library("fsdp", "IMPL")
    for name, kernel in (
        ("all_gather_copy_in", module.all_gather_copy_in_cuda),
        ("split_with_sizes_copy", module.split_with_sizes_copy),
        ("chunk_cat", module.chunk_cat),
    ):
        _library.impl(name, kernel, "XLA")
