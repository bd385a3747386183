"""Exchanges among the replicas of a job: what `torch_xla.core.xla_model` gives programs.

Each is recorded as one call, for a list of tensors, too. A group of one replica exchanges nothing,
and nothing is recorded for it that its values do not need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._src.collectives import replica_groups as _replica_groups
from torch_xla._src.job import place as _place

REDUCE_SUM = "sum"
REDUCE_MUL = "mul"
REDUCE_AND = "and"
REDUCE_OR = "or"
REDUCE_MIN = "min"
REDUCE_MAX = "max"
# By the names that StableHLO has for them.
_REDUCTIONS = {
    REDUCE_SUM: "add",
    REDUCE_MUL: "multiply",
    REDUCE_AND: "and",
    REDUCE_OR: "or",
    REDUCE_MIN: "minimum",
    REDUCE_MAX: "maximum",
}


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
    reduction = _reduction("all_reduce", reduce_type, inputs)
    among = _begin("all_reduce", inputs, groups)
    if isinstance(inputs, torch.Tensor):
        if among.size == 1:
            return inputs.clone() if scale == 1.0 else _scaled(inputs, scale)
        inside, outside = _factors([inputs], scale)
        result = torch.ops.torch_xla.all_reduce(
            inputs, reduction, inside, among.members, among.size, True
        )
        return _scaled(result, outside)
    tensors = list(inputs)
    if among.size > 1 and tensors:
        inside, scale = _factors(tensors, scale)
        results = torch.ops.torch_xla.exchange_all_reduce(
            tensors, reduction, inside, among.members, among.size
        )
    else:
        results = tensors
    if results is not tensors or scale != 1.0:
        _write(tensors, [_scaled(result, scale) for result in results])
    return inputs


def all_gather(
    value: torch.Tensor | Sequence[torch.Tensor],
    dim: int = 0,
    groups: list[list[int]] | None = None,
    output: torch.Tensor | Sequence[torch.Tensor] | None = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """Concatenates a tensor of each replica, in the order of ranks in its group.

    Args:
        value: This replica's tensor, or a list of tensors. Replicas give the same shapes.
        dim: The dimension to concatenate along.
        groups: The groups of replicas that gather among themselves; one group of all without it.
        output: A tensor for the result, or as many as there are values.
        pin_layout: As in `all_reduce`.
        channel_id: Accepted like `pin_layout`: the compiler numbers its channels.
        use_global_device_ids: Accepted like `pin_layout`.

    Returns:
        The concatenation, for a list that of each; `output` if it was given.
    """
    among = _begin("all_gather", value, groups)
    values = _as_list(value)
    for tensor in values:
        _check_dim("all_gather", tensor, dim)
    if among.size == 1:
        results = [tensor.clone() if output is None else tensor for tensor in values]
    elif isinstance(value, torch.Tensor):
        dim %= value.dim()
        results = [torch.ops.torch_xla.all_gather(value, dim, among.members, among.size, True)]
    else:
        results = _by_dim(
            values,
            dim,
            lambda xs, d: torch.ops.torch_xla.exchange_all_gather(xs, d, among.members, among.size),
        )
    return _given("all_gather", value, results, output)


def collective_broadcast(
    tensors: list[torch.Tensor],
    root_ordinal: int = 0,
    groups: list[list[int]] | None = None,
    pin_layout: bool = True,
) -> None:
    """Gives the tensors of all replicas the values of those of one replica, in place.

    Args:
        tensors: The tensors.
        root_ordinal: The replica whose values are taken. A group that it is not in takes those of
            the replica that has the same place there.
        groups: The groups of replicas that do so among themselves; one group of all without it.
        pin_layout: As in `all_reduce`.
    """
    among = _begin("collective_broadcast", tensors, groups)
    if root_ordinal not in among.members:
        raise ValueError(
            f"collective_broadcast: expected a root_ordinal of {list(among.members)}, got "
            f"{root_ordinal}."
        )
    if among.size > 1 and tensors:
        root = among.members.index(root_ordinal) % among.size
        results = torch.ops.torch_xla.exchange_broadcast(
            list(tensors), root, among.members, among.size
        )
        _write(tensors, results)


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
    among = _begin("all_to_all", value, groups)
    _check_count("all_to_all", "split_count", split_count, among)
    _check_dim("all_to_all", value, concat_dimension)
    _check_parts("all_to_all", value, split_dimension, among)
    if among.size == 1:
        return value.clone()
    return torch.ops.torch_xla.all_to_all(
        value,
        split_dimension % value.dim(),
        concat_dimension % value.dim(),
        among.members,
        among.size,
        True,
    )


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """Sends tensors from replica to replica.

    Args:
        value: This replica's tensor.
        pairs: `(from, to)` of each transfer. A replica that gets nothing has zeros.
    """
    here, count = _place.replica()
    sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if any(not 0 <= rank < count for rank in sources + targets):
        raise ValueError(
            f"collective_permute: expected pairs of replicas below {count}, got {pairs}."
        )
    for ends, does in ((sources, "send"), (targets, "get")):
        if len(set(ends)) != len(ends):
            raise ValueError(
                f"collective_permute: expected each replica to {does} at most one tensor, got "
                f"{pairs}."
            )
    among = _begin("collective_permute", value, None)
    if among.size == 1:
        return value.clone() if targets else torch.zeros_like(value)
    flat = [rank for pair in pairs for rank in pair]
    if here in flat:
        of_pairs = tuple(sorted(set(flat)))
        _replica_groups.connect(
            _replica_groups.Groups(of_pairs, len(of_pairs), of_pairs.index(here))
        )
    return torch.ops.torch_xla.collective_permute(value, flat, True)


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
    reduction = _reduction("reduce_scatter", reduce_type, input)
    among = _begin("reduce_scatter", input, groups)
    _check_count("reduce_scatter", "shard_count", shard_count, among)
    inputs = _as_list(input)
    for tensor in inputs:
        _check_parts("reduce_scatter", tensor, scatter_dim, among)
    if among.size == 1:
        results = inputs if output is not None else [tensor.clone() for tensor in inputs]
    else:
        inside, scale = _factors(inputs, scale)
        if isinstance(input, torch.Tensor):
            dim = scatter_dim % input.dim()
            results = [
                torch.ops.torch_xla.reduce_scatter(
                    input, reduction, inside, dim, among.members, among.size, True
                )
            ]
        else:
            results = _by_dim(
                inputs,
                scatter_dim,
                lambda xs, d: torch.ops.torch_xla.exchange_reduce_scatter(
                    xs, reduction, inside, d, among.members, among.size
                ),
            )
    results = [_scaled(result, scale) for result in results]
    return _given("reduce_scatter", input, results, output)


# Parts that they have in common


def own_part(whole: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """This replica's part among equal ones.

    Where the plugin exchanges, replicas run one program, of which their numbers are no part.
    """
    first = _place.replica()[0] * size
    if _XLAC._xla_get_num_processes() == 1:
        return whole.narrow(dim, first, size)
    return whole.index_select(dim, torch.arange(size, device=whole.device) + first)


def _begin(
    function: str,
    tensors: torch.Tensor | Sequence[torch.Tensor],
    groups: list[list[int]] | None,
) -> _replica_groups.Groups:
    """The groups of an exchange, which this process is then connected to.

    Raises:
        NotImplementedError: A tensor is a manual one of SPMD: all devices are one replica, and each
            has its own of them.
    """
    among = _replica_groups.of(function, groups)
    if not torch.compiler.is_compiling():
        for tensor in _as_list(tensors):
            if _XLAC._is_manual(tensor):
                raise NotImplementedError(
                    f"{function}: expected a tensor of all devices, got a manual one. Use "
                    "disable_manual_sharding first, and operators of PyTorch on its result."
                )
        _replica_groups.connect(among)
    return among


def _as_list(tensors: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _reduction(
    function: str, reduce_type: str, tensors: torch.Tensor | Sequence[torch.Tensor]
) -> str:
    if reduce_type not in _REDUCTIONS:
        raise ValueError(
            f"{function}: expected a reduce_type of {', '.join(_REDUCTIONS)}, got {reduce_type!r}."
        )
    # One rank has nothing to combine, and 2.9 gives floats back as they are.
    if reduce_type in (REDUCE_AND, REDUCE_OR) and _place.replica()[1] > 1:
        for tensor in _as_list(tensors):
            if tensor.is_floating_point() or tensor.is_complex():
                raise TypeError(
                    f"{function}: expected integers or booleans for {reduce_type!r}, got "
                    f"{tensor.dtype}."
                )
    return _REDUCTIONS[reduce_type]


def _factors(tensors: Sequence[torch.Tensor], scale: float) -> tuple[float, float]:
    """A scale as a factor within the exchange and one for its results: integers have no halves."""
    if all(t.is_floating_point() or t.is_complex() for t in tensors):
        return scale, 1.0
    return 1.0, scale


def _scaled(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    return tensor if scale == 1.0 else (tensor * scale).to(tensor.dtype)


def _write(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def _by_dim(
    tensors: list[torch.Tensor],
    dim: int,
    exchange: Callable[[list[torch.Tensor], int], Sequence[torch.Tensor]],
) -> list[torch.Tensor]:
    """Exchanges tensors of which a negative `dim` may be another one for each; one exchange for
    each dimension.
    """
    results: list[Any] = [None] * len(tensors)
    for d in dict.fromkeys(dim % t.dim() for t in tensors):
        places = [i for i, t in enumerate(tensors) if dim % t.dim() == d]
        for place, result in zip(places, exchange([tensors[i] for i in places], d), strict=True):
            results[place] = result
    return results


def _given(
    function: str,
    given: torch.Tensor | Sequence[torch.Tensor],
    results: list[torch.Tensor],
    output: torch.Tensor | Sequence[torch.Tensor] | None,
) -> Any:
    """Results as the caller wants them: one for a tensor, in `output` if there is one."""
    if output is not None:
        outputs = _as_list(output)
        if len(outputs) != len(results):
            raise ValueError(
                f"{function}: expected an output for each of {len(results)} inputs, got "
                f"{len(outputs)}."
            )
        for target, result in zip(outputs, results, strict=True):
            if target.shape != result.shape:
                raise ValueError(
                    f"{function}: expected an output of shape {tuple(result.shape)}, got "
                    f"{tuple(target.shape)}."
                )
        _write(outputs, results)
        return output
    return results[0] if isinstance(given, torch.Tensor) else results


def _check_count(function: str, argument: str, count: int, among: _replica_groups.Groups) -> None:
    if count != among.size:
        raise ValueError(
            f"{function}: expected {argument} to be the number of replicas in a group, "
            f"{among.size}, got {count}."
        )


def _check_dim(function: str, tensor: torch.Tensor, dim: int) -> None:
    if not -tensor.dim() <= dim < tensor.dim():
        raise IndexError(
            f"{function}: expected a dim of a tensor of shape {tuple(tensor.shape)}, got {dim}."
        )


def _check_parts(
    function: str, tensor: torch.Tensor, dim: int, among: _replica_groups.Groups
) -> None:
    _check_dim(function, tensor, dim)
    if tensor.size(dim) % among.size:
        raise ValueError(
            f"{function}: expected dimension {dim} to divide into {among.size} parts, one for each "
            f"replica of a group, got shape {tuple(tensor.shape)}. Pad it."
        )


def _all_gather_using_all_reduce(
    value: torch.Tensor,
    dim: int = 0,
    groups: list[list[int]] | None = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """`all_gather`, which needs no detour."""
    return all_gather(value, dim, groups, pin_layout=pin_layout)
