"""Which dimensions of an operation's operands and results belong together.

A rule names a factor for each dimension; what has the same factor is split alike. A factor that no
result has is summed over: splitting it makes each device compute a part of a sum. A dimension
without a factor is whole on each device. Shardy calls this a sharding rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch_xla.distributed.spmd.auto_sharding.program import Operation, Type

Dims = list[int | None]  # the factor of each dimension


@dataclass
class Rule:
    """The factors of one operation.

    Attributes:
        operands, results: The factors of their dimensions.
        decides: Whether the operation's split is a choice of its own; otherwise it is split as its
            main operand is.
        work: Floating point operations.
        pairs: Results are split as the operands of the same places, whatever the factors are.
    """

    operands: list[Dims]
    results: list[Dims]
    decides: bool = False
    work: float = 0.0
    pairs: bool = False
    sizes: dict[int, int] = field(default_factory=dict)  # of the factors, filled by rule_of()


def _fresh(types: list[Type]) -> list[Dims]:
    """A factor for each dimension."""
    made: list[Dims] = []
    count = 0
    for kind in types:
        made.append(list(range(count, count + len(kind.dims))))
        count += len(kind.dims)
    return made


def _whole(operands: list[Type], results: list[Type]) -> Rule:
    """Each device computes all of it."""
    return Rule([[None] * len(t.dims) for t in operands], [[None] * len(t.dims) for t in results])


def _elementwise(op: Operation, operands: list[Type], results: list[Type]) -> Rule:
    if not results or any(t.dims not in ((), results[0].dims) for t in operands + results):
        return _whole(operands, results)
    return Rule(
        [list(range(len(t.dims))) for t in operands], [list(range(len(t.dims))) for t in results]
    )


def _pairs(op: Operation, operands: list[Type], results: list[Type]) -> Rule:
    if [t.dims for t in operands[: len(results)]] != [t.dims for t in results]:
        return _whole(operands, results)
    factors = _fresh(operands)
    return Rule(factors, factors[: len(results)], pairs=True)


def _broadcast(op: Operation, operands: list[Type], results: list[Type]) -> Rule:
    dims = op.numbers("broadcast_dimensions")
    factors: Dims = [
        to if size == results[0].dims[to] else None
        for size, to in zip(operands[0].dims, dims, strict=True)
    ]
    return Rule([factors], [list(range(len(results[0].dims)))])


def _transpose(op: Operation, operands: list[Type], results: list[Type]) -> Rule:
    return Rule([list(range(len(operands[0].dims)))], [list(op.numbers("permutation"))])


def _reshape(op: Operation, operands: list[Type], results: list[Type]) -> Rule:
    """The first of the dimensions that are joined, or that one is cut into, keeps a split."""
    taken, made = operands[0].dims, results[0].dims
    rule = Rule([[None] * len(taken)], [[None] * len(made)])
    if 0 in taken:
        return rule
    i = j = 0
    while i < len(taken) and j < len(made):
        if taken[i] == 1 and made[j] != 1:
            i += 1
            continue
        if made[j] == 1 and taken[i] != 1:
            j += 1
            continue
        rule.operands[0][i] = rule.results[0][j] = i
        a, b = taken[i], made[j]
        while a != b:
            if a < b:
                i += 1
                a *= taken[i]
            else:
                j += 1
                b *= made[j]
        i, j = i + 1, j + 1
    return rule


def _reduce(op: Operation, operands: list[Type], results: list[Type]) -> Rule:
    gone = op.numbers("dimensions")
    every: Dims = list(range(len(operands[0].dims)))
    count = len(results)
    return Rule(
        [list(every) for _ in range(count)] + [[] for _ in range(count)],
        [[d for d in every if d not in gone] for _ in results],
    )


def _dot(op: Operation, operands: list[Type], results: list[Type]) -> Rule:
    left, right = operands[0].dims, operands[1].dims
    batch = zip(
        op.numbers("lhs_batching_dimensions"), op.numbers("rhs_batching_dimensions"), strict=True
    )
    summed = zip(
        op.numbers("lhs_contracting_dimensions"),
        op.numbers("rhs_contracting_dimensions"),
        strict=True,
    )
    of_left: Dims = [None] * len(left)
    of_right: Dims = [None] * len(right)
    result: Dims = []
    count = 0
    for x, y in batch:
        of_left[x] = of_right[y] = count
        result.append(count)
        count += 1
    for x, y in summed:
        of_left[x] = of_right[y] = count
        count += 1
    contracted = set(range(len(result), count))
    for dims in (of_left, of_right):
        for i, factor in enumerate(dims):
            if factor is None:
                dims[i] = count
                result.append(count)
                count += 1
    work = 2.0 * results[0].elements
    for x, factor in enumerate(of_left):
        if factor in contracted:
            work *= left[x]
    return Rule([of_left, of_right], [result], decides=True, work=work)


def _convolution(op: Operation, operands: list[Type], results: list[Type]) -> Rule:
    """Along the batch, and the channels where they make one group; images stay whole."""
    rule = _whole(operands, results)
    x, w = rule.operands
    y = rule.results[0]
    out = op.number("kernel_output_feature_dimension")
    rule.decides = True
    rule.work = 2.0 * results[0].elements * (operands[1].elements // max(1, operands[1].dims[out]))
    if op.number("batch_group_count", 1) != 1:
        return rule
    x[op.number("input_batch_dimension")] = y[op.number("output_batch_dimension")] = 0
    if op.number("feature_group_count", 1) == 1:
        x[op.number("input_feature_dimension")] = 1
        w[op.number("kernel_input_feature_dimension")] = 1
        w[out] = y[op.number("output_feature_dimension")] = 2
    return rule


def _kept(op: Operation, operands: list[Type], results: list[Type]) -> Rule:
    """Dimensions keep a split if no operand or result has another size there."""
    rank = len(results[0].dims)
    full = [t for t in operands if len(t.dims) == rank]
    kept: Dims = [
        d if all(t.dims[d] == results[0].dims[d] for t in full) else None for d in range(rank)
    ]
    return Rule(
        [list(kept) if len(t.dims) == rank else [None] * len(t.dims) for t in operands], [kept]
    )


def _without(op: Operation, operands: list[Type], results: list[Type], moved: list[int]) -> Rule:
    """All dimensions keep a split but those along which elements move."""
    kept: Dims = [None if d in moved else d for d in range(len(results[0].dims))]
    rank = len(kept)
    return Rule(
        [list(kept) if len(t.dims) == rank else [None] * len(t.dims) for t in operands],
        [list(kept) for _ in results],
    )


def _sort(op: Operation, operands: list[Type], results: list[Type]) -> Rule:
    return _without(op, operands, results, [op.number("dimension")])


def _reverse(op: Operation, operands: list[Type], results: list[Type]) -> Rule:
    return _without(op, operands, results, op.numbers("dimensions"))


def _leading(op: Operation, operands: list[Type], results: list[Type]) -> Rule:
    """Matrices in a batch: the last two dimensions stay whole."""
    rank = len(results[0].dims)
    return _without(op, operands, results, [rank - 2, rank - 1])


def _window(op: Operation, operands: list[Type], results: list[Type]) -> Rule:
    sizes = op.numbers("window_dimensions")
    moved = [d for d, n in enumerate(sizes) if n != 1]
    return _without(op, operands, results, moved)


def _gather(op: Operation, operands: list[Type], results: list[Type]) -> Rule:
    """Rows of a table: along the indices, and along whole slices."""
    table, indices = operands[0].dims, operands[1].dims
    offset, collapsed = op.numbers("offset_dims"), op.numbers("collapsed_slice_dims")
    batching = op.numbers("operand_batching_dims")
    of_batch = op.numbers("start_indices_batching_dims")
    slices, vector = op.numbers("slice_sizes"), op.number("index_vector_dim")
    rule = _whole(operands, results)
    rule.decides = True
    count = 0
    places = [d for d in range(len(results[0].dims)) if d not in offset]
    index_dims = [d for d in range(len(indices)) if d != vector]
    for place, index in zip(places, index_dims, strict=True):
        rule.results[0][place] = rule.operands[1][index] = count
        if index in of_batch:
            rule.operands[0][batching[of_batch.index(index)]] = count
        count += 1
    windows = [d for d in range(len(table)) if d not in collapsed and d not in batching]
    for place, dim in zip(offset, windows, strict=True):
        if slices[dim] == table[dim]:
            rule.results[0][place] = rule.operands[0][dim] = count
            count += 1
    return rule


def _scatter(op: Operation, operands: list[Type], results: list[Type]) -> Rule:
    """Into whole slices; what adds may be split along the updates, as parts of a sum."""
    if len(results) != 1:
        return _whole(operands, results)
    table, indices, updates = (t.dims for t in operands)
    window, inserted = op.numbers("update_window_dims"), op.numbers("inserted_window_dims")
    batching = op.numbers("input_batching_dims")
    vector = op.number("index_vector_dim")
    rule = _whole(operands, results)
    rule.decides = True
    count = 0
    kept = [d for d in range(len(table)) if d not in inserted and d not in batching]
    for place, dim in zip(window, kept, strict=True):
        if updates[place] == table[dim]:
            rule.operands[2][place] = rule.operands[0][dim] = rule.results[0][dim] = count
            count += 1
    if not batching:
        places = [d for d in range(len(updates)) if d not in window]
        index_dims = [d for d in range(len(indices)) if d != vector]
        for place, index in zip(places, index_dims, strict=True):
            rule.operands[2][place] = rule.operands[1][index] = count
            count += 1
    return rule


def _constraint(op: Operation, operands: list[Type], results: list[Type]) -> Rule:
    """Operands that torch_xla has whole for the partitioner's sake."""
    axes = op.attributes["sharding"]  # of each dimension, "{?}" where there are any
    factors: Dims = [i if "?" in text else None for i, text in enumerate(axes)]
    return Rule([factors], [list(factors)])


def _nothing(op: Operation, operands: list[Type], results: list[Type]) -> Rule:
    return _whole(operands, results)


_RULES: dict[str, Callable[[Operation, list[Type], list[Type]], Rule]] = {
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.transpose": _transpose,
    "stablehlo.reshape": _reshape,
    "stablehlo.reduce": _reduce,
    "stablehlo.dot_general": _dot,
    "stablehlo.convolution": _convolution,
    "stablehlo.slice": _kept,
    "stablehlo.pad": _kept,
    "stablehlo.concatenate": lambda op, operands, results: _without(
        op, operands, results, [op.number("dimension")]
    ),
    "stablehlo.dynamic_slice": _kept,
    "stablehlo.dynamic_update_slice": _kept,
    "stablehlo.sort": _sort,
    "stablehlo.reverse": _reverse,
    "stablehlo.cholesky": _leading,
    "stablehlo.triangular_solve": _leading,
    "stablehlo.fft": _leading,
    "stablehlo.reduce_window": _window,
    "stablehlo.select_and_scatter": _nothing,
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
    "loop.pass": _pairs,
    "stablehlo.optimization_barrier": _pairs,
    "sdy.sharding_constraint": _constraint,
}
for _name in ("case", "if", "custom_call", "rng_bit_generator", "composite"):
    _RULES["stablehlo." + _name] = _nothing
_RULES["func.call"] = _nothing

# Values that any device makes for itself, split in whichever way.
FREE = {"stablehlo.constant", "stablehlo.iota"}


def rule_of(op: Operation, types: dict[int, Type]) -> Rule:
    """The rule of an operation; that of elementwise ones where it has none of its own."""
    operands = [types[v] for v in op.operands]
    results = [types[v] for v in op.results]
    rule = _RULES.get(op.name, _elementwise)(op, operands, results)
    for dims, kind in zip(rule.operands + rule.results, operands + results, strict=True):
        for factor, size in zip(dims, kind.dims, strict=True):
            if factor is not None:
                rule.sizes[factor] = min(size, rule.sizes.get(factor, size))
    return rule
