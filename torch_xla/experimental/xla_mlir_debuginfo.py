"""Texts for the locations of exported programs."""

from __future__ import annotations

from typing import Any

import torch


def write_mlir_debuginfo(x: torch.Tensor, data: str) -> torch.Tensor:
    """A tensor of the same values; in exported programs, the operations of the call that made `x`
    have the location `data`."""
    return torch.ops.xla.write_mlir_debuginfo(x, data)


def write_mlir_debuginfo_meta(x: torch.Tensor, data: str) -> torch.Tensor:
    return torch.empty_like(x)


def write_mlir_debuginfo_tensor(x: torch.Tensor, data: str) -> torch.Tensor:
    return torch.ops.torch_xla.set_location(x, data)


def _elsewhere(x: torch.Tensor, data: str) -> torch.Tensor:
    return x.clone()


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return grad, None


_library = torch.library.Library("xla", "FRAGMENT")
_library.define("write_mlir_debuginfo(Tensor x, str data) -> Tensor")
_library.impl("write_mlir_debuginfo", _elsewhere, "CompositeExplicitAutograd")
_library.impl("write_mlir_debuginfo", write_mlir_debuginfo_meta, "Meta")
_library.impl("write_mlir_debuginfo", write_mlir_debuginfo_tensor, "XLA")
torch.library.register_autograd("xla::write_mlir_debuginfo", _backward, lib=_library)
