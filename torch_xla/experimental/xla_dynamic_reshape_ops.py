"""`expand` and `view` to a size that another tensor has."""

from __future__ import annotations

from typing import Any

import torch


def _with_size_of(
    size: list[Any], src: torch.Tensor, src_dim: int, dim: int, times: int
) -> list[Any]:
    size = list(size)
    size[dim] = src.shape[src_dim] * times
    return size


def dynamic_expand(
    input: torch.Tensor, size: list[Any], src_tensor: torch.Tensor, src_dim: int, target_dim: int
) -> torch.Tensor:
    """`input.expand(size)` where dimension `target_dim` has the size of `src_tensor` in `src_dim`,
    whatever `size` says of it; -1 leaves another dimension as it is."""
    return input.expand(_with_size_of(size, src_tensor, src_dim, target_dim, 1)).clone()


def dynamic_view(
    input: torch.Tensor,
    size: list[Any],
    src_tensor: torch.Tensor,
    src_dim: int,
    target_dim: int,
    mul_scaler: int,
) -> torch.Tensor:
    """`input.view(size)` where dimension `target_dim` has `mul_scaler` times the size of
    `src_tensor` in `src_dim`, whatever `size` says of it."""
    size = _with_size_of(size, src_tensor, src_dim, target_dim, int(mul_scaler))
    return input.reshape(size).clone()


# They are the same on all devices, and without memory.
dynamic_expand_meta = dynamic_expand_xla = dynamic_expand
dynamic_view_meta = dynamic_view_xla = dynamic_view

_library = torch.library.Library("xla", "FRAGMENT")
_library.define(
    "dynamic_expand(Tensor input, SymInt[] size, Tensor src_tensor, int src_dim, int target_dim) "
    "-> Tensor"
)
_library.define(
    "dynamic_view(Tensor input, SymInt[] size, Tensor src_tensor, int src_dim, int target_dim, "
    "int mul_scaler) -> Tensor"
)
_library.impl("dynamic_expand", dynamic_expand, "CompositeImplicitAutograd")
_library.impl("dynamic_view", dynamic_view, "CompositeImplicitAutograd")
