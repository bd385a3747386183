"""Exchanges of many tensors, some at a time: buckets, and the gradients of a step."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._src.collectives import replica_groups as _replica_groups
from torch_xla._src.collectives.exchanges import (
    REDUCE_SUM,
    all_gather,
    all_reduce,
    reduce_scatter,
)


class CoalescingBuckets:
    """Passes tensors to a function in lists of limited size.

    Args:
        func: Receives a list of tensors, and the list of their outputs or None; returns a list.
        input_list: The tensors.
        output_list: A tensor for each result; without it results are those of `func`.
        bucket_cap_mb: The most MiB of inputs in one list; a larger tensor has one of its own.

    Calling the object passes all tensors and returns their results in order.
    """

    def __init__(
        self,
        func: Callable[[list[torch.Tensor], list[torch.Tensor] | None], Sequence[torch.Tensor]],
        input_list: Sequence[torch.Tensor],
        output_list: Sequence[torch.Tensor] | None = None,
        bucket_cap_mb: int = 160,
    ):
        if output_list is not None and len(output_list) != len(input_list):
            raise ValueError(
                f"CoalescingBuckets: expected an output for each of {len(input_list)} inputs, got "
                f"{len(output_list)}."
            )
        self._func = func
        self._inputs = input_list
        self._outputs = output_list
        self._cap = bucket_cap_mb << 20
        self._bucket: list[tuple[torch.Tensor, int]] = []
        self._bytes = 0
        self._results: list[Any] = [None] * len(input_list)

    def flush(self) -> None:
        """Passes on the tensors that were added."""
        if not self._bucket:
            return
        tensors, places = map(list, zip(*self._bucket, strict=True))
        outputs = None if self._outputs is None else [self._outputs[place] for place in places]
        for place, result in zip(places, self._func(tensors, outputs), strict=True):
            self._results[place] = result
        self._bucket, self._bytes = [], 0

    def add(self, tensor: torch.Tensor, idx: int) -> None:
        """Adds the tensor that is number `idx` of the inputs."""
        size = tensor.numel() * tensor.element_size()
        if self._bytes + size > self._cap:
            self.flush()
        self._bucket.append((tensor, idx))
        self._bytes += size

    def __call__(self) -> list[torch.Tensor]:
        for idx, tensor in enumerate(self._inputs):
            self.add(tensor, idx)
        self.flush()
        return self._results


def all_gather_bucketized(
    input_list: list[torch.Tensor],
    dim: int = 0,
    groups: list[list[int]] | None = None,
    output: list[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> list[torch.Tensor]:
    """`all_gather` of many tensors, at most `bucket_cap_mb` MiB of them at a time."""

    def gather(tensors: list[torch.Tensor], outputs: list[torch.Tensor] | None) -> Any:
        return all_gather(tensors, dim, groups, outputs, pin_layout)

    return CoalescingBuckets(gather, input_list, output, bucket_cap_mb)()


def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: list[torch.Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: list[list[int]] | None = None,
    output: list[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> list[torch.Tensor]:
    """`reduce_scatter` of many tensors, at most `bucket_cap_mb` MiB of them at a time."""

    def scatter(tensors: list[torch.Tensor], outputs: list[torch.Tensor] | None) -> Any:
        return reduce_scatter(
            reduce_type, tensors, scale, scatter_dim, shard_count, groups, outputs, pin_layout
        )

    return CoalescingBuckets(scatter, input_list, output, bucket_cap_mb)()


def all_reduce_bucketized_gradients(
    gradients: list[torch.Tensor],
    scale: float,
    groups: list[list[int]] | None,
    pin_layout: bool,
    bucket_cap_mb: int = 0,
) -> None:
    """Sums gradients over all replicas in place, at most `bucket_cap_mb` MiB at a time; 0: all."""

    def reduce(tensors: list[torch.Tensor], outputs: list[torch.Tensor] | None) -> Any:
        return all_reduce(REDUCE_SUM, tensors, scale, groups, pin_layout)

    if bucket_cap_mb > 0:
        CoalescingBuckets(reduce, gradients, bucket_cap_mb=bucket_cap_mb)()
    else:
        reduce(gradients, None)


def average_gradients(
    gradients: list[torch.Tensor], groups: list[list[int]] | None, pin_layout: bool = True
) -> None:
    """Averages gradients over all replicas in place, or over those of each group.

    ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB limits how many MiB of them go in one exchange. Those that
    the backward pass makes first, which are the last ones, go first then.
    """
    among = _replica_groups.of("reduce_gradients", groups)
    if among.size == 1:
        return
    bucket_cap_mb = int(os.environ.get("ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB") or 0)
    if bucket_cap_mb > 0:
        gradients = gradients[::-1]
    all_reduce_bucketized_gradients(gradients, 1.0 / among.size, groups, pin_layout, bucket_cap_mb)
