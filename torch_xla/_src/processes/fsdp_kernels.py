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
        ("all_gather_copy_in", _all_gather_copy_in),
        ("split_with_sizes_copy", module.split_with_sizes_copy),
        ("chunk_cat", module.chunk_cat),
    ):
        _library.impl(name, kernel, "XLA")


def _all_gather_copy_in(
    inputs: list[torch.Tensor],
    output: torch.Tensor,
    split_sizes: list[int],
    numel: int,
    rank: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """PyTorch's own fills this rank's part of the output. That would be another program for each
    rank."""
    given = output.new_empty(numel)
    with torch.no_grad():
        torch._foreach_copy_(torch.split(given, split_sizes), inputs)
    return given, output
