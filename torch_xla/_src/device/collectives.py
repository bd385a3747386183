"""Operations over all replicas of a job: what `torch_xla.core.xla_model` gives programs.

Each is exact for a job of one replica; `of_one_replica` refuses others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._src.job import groups as _groups
from torch_xla._src.job import place as _place

REDUCE_SUM = "sum"
REDUCE_MUL = "mul"
REDUCE_AND = "and"
REDUCE_OR = "or"
REDUCE_MIN = "min"
REDUCE_MAX = "max"
_REDUCTIONS = (REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX)


def of_one_replica(function: str) -> int:
    """Refuses a job of several replicas; returns their number."""
    count = _place.world_size()
    if count > 1:
        raise NotImplementedError(
            f"{function}: expected a job of one process, got {count} from the launcher. "
            "Collectives of several processes are not supported yet."
        )
    return count


def all_reduce(
    reduce_type: str,
    inputs: torch.Tensor | Sequence[torch.Tensor],
    scale: float = 1.0,
    groups: list[list[int]] | None = None,
    pin_layout: bool = True,
) -> Any:
    """Reduces tensors over all replicas.

    Args:
        reduce_type: One of `REDUCE_SUM`, `REDUCE_MUL`, `REDUCE_AND`, `REDUCE_OR`, `REDUCE_MIN`,
            `REDUCE_MAX`.
        inputs: A tensor, or a list or tuple of tensors.
        scale: A factor for the reduced value. The result has the dtype of its input.
        groups: The groups of replicas that reduce among themselves; one group of all without it.
        pin_layout: Accepted for programs written for earlier versions: replicas run the same
            program.

    Returns:
        For a tensor the reduced value, as a new tensor. A list or tuple is reduced in place and
        returned.
    """
    if reduce_type not in _REDUCTIONS:
        raise ValueError(
            f"all_reduce: expected a reduce_type of {', '.join(_REDUCTIONS)}, got {reduce_type!r}."
        )
    of_one_replica("all_reduce")
    _groups.check("all_reduce", groups)
    _check_of_all_devices("all_reduce", inputs)
    if isinstance(inputs, torch.Tensor):
        return _scaled(inputs, scale)
    for tensor in inputs:
        if scale != 1.0:
            tensor.copy_(_scaled(tensor, scale))
    return inputs


def _scaled(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    return tensor.clone() if scale == 1.0 else (tensor * scale).to(tensor.dtype)


def all_gather(
    value: torch.Tensor,
    dim: int = 0,
    groups: list[list[int]] | None = None,
    output: torch.Tensor | None = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> torch.Tensor:
    """Concatenates a tensor of each replica, in ordinal order.

    Args:
        value: This replica's tensor.
        dim: The dimension to concatenate along.
        groups: The groups of replicas that gather among themselves; one group of all without it.
        output: A tensor for the result.
        pin_layout: As in `all_reduce`.
        channel_id: Accepted like `pin_layout`: the compiler numbers its channels.
        use_global_device_ids: Accepted like `pin_layout`.

    Returns:
        The concatenation; `output` if it was given.
    """
    of_one_replica("all_gather")
    _groups.check("all_gather", groups)
    _check_dim("all_gather", value, dim)
    _check_of_all_devices("all_gather", value)
    return value.clone() if output is None else output.copy_(value)


def collective_broadcast(
    tensors: list[torch.Tensor],
    root_ordinal: int = 0,
    groups: list[list[int]] | None = None,
    pin_layout: bool = True,
) -> None:
    """Gives the tensors of all replicas the values of those of one replica, in place.

    Args:
        tensors: The tensors.
        root_ordinal: The replica whose values are taken.
        groups: The groups of replicas that do so among themselves; one group of all without it.
        pin_layout: As in `all_reduce`.
    """
    world_size = of_one_replica("collective_broadcast")
    _groups.check("collective_broadcast", groups)
    _check_of_all_devices("collective_broadcast", tensors)
    if not 0 <= root_ordinal < world_size:
        raise ValueError(
            f"collective_broadcast: expected a root_ordinal below {world_size}, got {root_ordinal}."
        )


def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: list[list[int]] | None = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Sends a part of a tensor to each replica, and concatenates what comes from each.

    Args:
        value: This replica's tensor.
        split_dimension: The dimension to cut along.
        concat_dimension: The dimension to concatenate along.
        split_count: The number of parts: as many as there are replicas in a group.
        groups: The groups of replicas that exchange among themselves; one of all without it.
        pin_layout: As in `all_reduce`.
    """
    of_one_replica("all_to_all")
    _groups.check("all_to_all", groups)
    _check_count("all_to_all", "split_count", split_count)
    _check_dim("all_to_all", value, split_dimension)
    _check_dim("all_to_all", value, concat_dimension)
    _check_of_all_devices("all_to_all", value)
    return value.clone()


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """Sends tensors from replica to replica.

    Args:
        value: This replica's tensor.
        pairs: `(from, to)` of each transfer. A replica that gets nothing has zeros.
    """
    world_size = of_one_replica("collective_permute")
    targets = [target for _, target in pairs]
    if any(not 0 <= ordinal < world_size for pair in pairs for ordinal in pair):
        raise ValueError(
            f"collective_permute: expected pairs of replicas below {world_size}, got {pairs}."
        )
    if len(set(targets)) != len(targets):
        raise ValueError(
            f"collective_permute: expected each replica to get at most one tensor, got {pairs}."
        )
    _check_of_all_devices("collective_permute", value)
    return value.clone() if _place.rank() in targets else torch.zeros_like(value)


def reduce_scatter(
    reduce_type: str,
    input: torch.Tensor | Sequence[torch.Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: list[list[int]] | None = None,
    output: torch.Tensor | Sequence[torch.Tensor] | None = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """Reduces tensors over all replicas, each of which gets its part of the result.

    Args:
        reduce_type: As in `all_reduce`.
        input: A tensor, or a list of tensors.
        scale: A factor for the reduced value.
        scatter_dim: The dimension that is cut into parts.
        shard_count: The number of parts: as many as there are replicas in a group.
        groups: As in `all_reduce`.
        output: A tensor, or as many as there are inputs, for the results.
        pin_layout: As in `all_reduce`.
        channel_id: As in `all_gather`.
        use_global_device_ids: As in `all_gather`.

    Returns:
        A tensor for a tensor, a list for a list; `output` if it was given.
    """
    _check_count("reduce_scatter", "shard_count", shard_count)
    inputs = [input] if isinstance(input, torch.Tensor) else list(input)
    for tensor in inputs:
        _check_dim("reduce_scatter", tensor, scatter_dim)
    results = [all_reduce(reduce_type, tensor, scale, groups, pin_layout) for tensor in inputs]
    if output is not None:
        outputs = [output] if isinstance(output, torch.Tensor) else list(output)
        for target, result in zip(outputs, results, strict=True):
            target.copy_(result)
        return output
    return results[0] if isinstance(input, torch.Tensor) else results


def _check_of_all_devices(function: str, tensors: torch.Tensor | Sequence[torch.Tensor]) -> None:
    """Refuses manual tensors of SPMD: all devices are one replica, and each has its own of them."""
    if torch.compiler.is_compiling():
        return
    for tensor in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
        if _XLAC._is_manual(tensor):
            raise NotImplementedError(
                f"{function}: expected a tensor of all devices, got a manual one. Use "
                "disable_manual_sharding first, and operators of PyTorch on its result."
            )


def _check_count(function: str, argument: str, count: int) -> None:
    if count != _place.world_size():
        raise ValueError(
            f"{function}: expected {argument} to be the number of replicas, "
            f"{_place.world_size()}, got {count}."
        )


def _check_dim(function: str, tensor: torch.Tensor, dim: int) -> None:
    if not -tensor.dim() <= dim < tensor.dim():
        raise IndexError(
            f"{function}: expected a dim of a tensor of shape {tuple(tensor.shape)}, got {dim}."
        )


# Many tensors, some at a time


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

    def gather(tensors: list[torch.Tensor], outputs: list[torch.Tensor] | None) -> list:
        places: Sequence[torch.Tensor | None] = outputs or [None] * len(tensors)
        return [
            all_gather(tensor, dim, groups, place, pin_layout)
            for tensor, place in zip(tensors, places, strict=True)
        ]

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


def _all_gather_using_all_reduce(
    value: torch.Tensor,
    dim: int = 0,
    groups: list[list[int]] | None = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """`all_gather`, which needs no detour."""
    return all_gather(value, dim, groups, pin_layout=pin_layout)
