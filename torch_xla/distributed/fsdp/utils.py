"""Helpers for models whose parameters are split: checkpoints, linear layers, gradients that are
sent together, and collectives that send nothing, by which one measures what sending costs.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence

import torch
from torch import nn

from torch_xla import runtime as xr
from torch_xla.core import xla_model as xm
from torch_xla.distributed.spmd.patched_linear import (
    XLAPatchedLinear,  # noqa: F401
    xla_patched_nn_linear_forward,
)
from torch_xla.utils.checkpoint import checkpoint


def checkpoint_module(module: torch.nn.Module) -> torch.nn.Module:
    """Has the module's forward pass computed again in the backward pass, so that its activations
    need not be kept.

    Returns:
        The same module, with another `forward`.
    """
    module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
    return module


_xla_patched_nn_linear_forward = xla_patched_nn_linear_forward


def apply_xla_patch_to_nn_linear(
    module: nn.Module,
    patched_function: Callable[
        [nn.Linear, torch.Tensor], torch.Tensor
    ] = xla_patched_nn_linear_forward,
) -> nn.Module:
    """Has each `nn.Linear` within a module, and the module itself if it is one, compute by a
    function of the layer and its input; by default by `XLAPatchedLinear`, with the same values.

    Returns:
        The same module.
    """
    for submodule in module.modules():
        if isinstance(submodule, nn.Linear):
            submodule.forward = types.MethodType(  # type: ignore[method-assign]
                patched_function, submodule
            )
    return module


def _size_of(groups: Sequence[Sequence[int]] | None) -> int:
    return len(groups[0]) if groups else xr.world_size()


def dummy_all_gather(
    value: torch.Tensor, dim: int = 0, groups: Sequence[Sequence[int]] | None = None
) -> torch.Tensor:
    """A tensor of the sizes of `xm.all_gather`'s result, from this replica's own values."""
    return torch.cat([value] * _size_of(groups), dim)


def dummy_all_reduce(
    reduce_type: str,
    inputs: torch.Tensor | Sequence[torch.Tensor],
    scale: float = 1.0,
    groups: Sequence[Sequence[int]] | None = None,
) -> torch.Tensor | None:
    """Does the work of `xm.all_reduce` where no other replica adds anything: scales a tensor, or
    tensors in place.
    """
    if isinstance(inputs, torch.Tensor):
        return inputs * scale
    for t in inputs:
        t.mul_(scale)
    return None


class DummyReduceScatter:
    """Gives a replica's part of its own values in the place of that of a sum.

    Args:
        shard_count: The number of parts.
    """

    def __init__(self, shard_count: int):
        self.shard_count = shard_count
        self.scale = 1.0

    def __call__(self, input: torch.Tensor, callback: Callable[[torch.Tensor], None]) -> None:
        """Calls `callback` with the first part along the first dimension.

        Raises:
            ValueError: The dimension does not divide.
        """
        if input.size(0) % self.shard_count:
            raise ValueError(
                f"DummyReduceScatter: expected a first dimension that divides by "
                f"{self.shard_count}, got {list(input.shape)}."
            )
        callback(input[: input.size(0) // self.shard_count] * self.scale)

    def flush(self) -> None:
        """Nothing is held back."""


class BucketizedReduceScatter:
    """Adds up tensors over replicas, some MiB of them in one exchange.

    Args:
        bucket_size_mb: How many MiB of inputs are held back; each is sent at once if 0.
        shard_count: The number of parts into which the first dimension is cut.
        groups: As in `xm.reduce_scatter`.
        pin_layout: As in `xm.reduce_scatter`.
    """

    def __init__(
        self,
        bucket_size_mb: int,
        shard_count: int,
        groups: list[list[int]] | None,
        pin_layout: bool,
    ):
        self.shard_count = shard_count
        self.scale = 1.0
        self._groups = groups
        self._pin_layout = pin_layout
        self._cap = bucket_size_mb << 20
        self._held: list[tuple[torch.Tensor, Callable[[torch.Tensor], None]]] = []

    def __call__(self, input: torch.Tensor, callback: Callable[[torch.Tensor], None]) -> None:
        """Takes a tensor. `callback` receives this replica's part of the sum once it is sent."""
        self._held.append((input, callback))
        if sum(t.numel() * t.element_size() for t, _ in self._held) > self._cap:
            self.flush()

    def flush(self) -> None:
        """Sends what is held back."""
        held, self._held = self._held, []
        if held:
            parts = xm.reduce_scatter(
                xm.REDUCE_SUM,
                [tensor for tensor, _ in held],
                self.scale,
                0,
                self.shard_count,
                groups=self._groups,
                pin_layout=self._pin_layout,
            )
            for (_, callback), part in zip(held, parts, strict=True):
                callback(part)
