"""The choices of auto-sharding: rules of operations, and the best of all ways to split."""

from __future__ import annotations

import itertools

import pytest

from torch_xla import _XLAC
from torch_xla.distributed.spmd.auto_sharding import costs, problem, program, rules, solve

MACHINE = costs.Machine(operations=1e9, memory=1e9, link=1e8, latency=1e-6)


def text_of(*statements: str, arguments: str, results: str = "") -> str:
    """A module with these statements, such as '%2 = "stablehlo.add"(%0, %1) : (...) -> ...'."""
    lines = "\n".join("    " + statement for statement in statements)
    return (
        f"module @torch_xla {{\n  func.func public @main({arguments}) -> ({results}) {{\n"
        f"{lines}\n  }}\n}}\n"
    )


def read_text(text: str) -> program.Program:
    return program.read(_XLAC._read_program(text))


def rule(statement: str, arguments: str) -> rules.Rule:
    read = read_text(text_of(statement, '"func.return"() : () -> ()', arguments=arguments))
    return rules.rule_of(read.operations[0], read.types)


def test_rules():
    dot = rule(
        '%2 = "stablehlo.dot_general"(%0, %1) {dot_dimension_numbers = #stablehlo.dot<'
        "lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], "
        "lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>} : "
        "(tensor<2x3x4xf32>, tensor<2x4x5xf32>) -> tensor<2x3x5xf32>",
        "%0: tensor<2x3x4xf32>, %1: tensor<2x4x5xf32>",
    )
    (batch, row, summed), (also_batch, also_summed, column) = dot.operands
    assert (batch, summed) == (also_batch, also_summed)
    assert dot.results == [[batch, row, column]] and dot.decides
    assert dot.work == 2 * 2 * 3 * 4 * 5
    assert dot.sizes == {batch: 2, row: 3, summed: 4, column: 5}

    merge = rule(
        '%1 = "stablehlo.reshape"(%0) : (tensor<8x4x1x6xf32>) -> tensor<32x2x3xf32>',
        "%0: tensor<8x4x1x6xf32>",
    )
    first, lost, one, last = merge.operands[0]
    assert lost is None and one is None and None not in (first, last)
    assert merge.results == [[first, last, None]]
    assert merge.sizes[first] == 8 and merge.sizes[last] == 2

    reduce = rule(
        '%4 = "stablehlo.reduce"(%0, %1) ({\n    ^bb0(%2: tensor<f32>, %3: tensor<f32>):\n'
        '      "stablehlo.return"(%2) : (tensor<f32>) -> ()\n    }) '
        "{dimensions = array<i64: 0>} : (tensor<4x6xf32>, tensor<f32>) -> tensor<6xf32>",
        "%0: tensor<4x6xf32>, %1: tensor<f32>",
    )
    assert reduce.operands == [[0, 1], []] and reduce.results == [[1]]

    gather = rule(
        '%2 = "stablehlo.gather"(%0, %1) {dimension_numbers = #stablehlo.gather<offset_dims = [2], '
        "collapsed_slice_dims = [0], operand_batching_dims = [], start_indices_batching_dims = [], "
        "start_index_map = [0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 16>} : "
        "(tensor<32x16xf32>, tensor<8x4xi64>) -> tensor<8x4x16xf32>",
        "%0: tensor<32x16xf32>, %1: tensor<8x4xi64>",
    )
    assert gather.results[0][:2] == gather.operands[1]
    assert gather.operands[0] == [None, gather.results[0][2]]

    unknown = rule(
        '%1 = "stablehlo.custom_call"(%0) {call_target_name = "f"} : (tensor<4xf32>) -> '
        "tensor<4xf32>",
        "%0: tensor<4xf32>",
    )
    assert unknown.operands == [[None]] and unknown.results == [[None]]


def test_sending_costs_what_is_sent():
    mesh, size = (2, 4), 1 << 20
    change = costs.change
    assert change((0, -1), (0, -1), size, mesh, MACHINE) == 0
    assert change((-1, -1), (0, 1), size, mesh, MACHINE) == 0  # each cuts out its own
    gather = change((-1, 0), (-1, -1), size, mesh, MACHINE)
    assert gather == pytest.approx(1e-6 + size * 3 / 4 / 1e8)
    crossed = change((-1, 0), (-1, 1), size, mesh, MACHINE)
    assert crossed == pytest.approx(1e-6 + size / 4 * 3 / 4 / 1e8)
    # What is split along the other axis by then is sent in halves.
    assert change((-1, 0), (1, -1), size, mesh, MACHINE) == pytest.approx(
        1e-6 + size / 2 * 3 / 4 / 1e8
    )


LAYERS = text_of(
    *(
        f'%{y} = "stablehlo.dot_general"(%{x}, %{w}) {{dot_dimension_numbers = #stablehlo.dot<'
        "lhs_batching_dimensions = [], rhs_batching_dimensions = [], lhs_contracting_dimensions "
        f"= [1], rhs_contracting_dimensions = [0]>}} : (tensor<64x{a}xf32>, tensor<{a}x{b}xf32>)"
        f" -> tensor<64x{b}xf32>"
        for y, x, w, a, b in ((3, 0, 1, 32, 128), (4, 3, 2, 128, 32))
    ),
    '%5 = "stablehlo.add"(%4, %0) : (tensor<64x32xf32>, tensor<64x32xf32>) -> tensor<64x32xf32>',
    '"func.return"(%5) : (tensor<64x32xf32>) -> ()',
    arguments="%0: tensor<64x32xf32>, %1: tensor<32x128xf32>, %2: tensor<128x32xf32>",
    results="tensor<64x32xf32>",
)


def price(made: problem.Problem, states) -> float:
    seconds = sum(c.costs[s] for c, s in zip(made.choices, states, strict=True))
    for e in made.edges:
        have, want = e.have[states[e.source]], e.want[states[e.target]]
        seconds += costs.change(have, want, e.size, made.mesh, MACHINE)
    return seconds


def held(made: problem.Problem, states) -> float:
    return sum(
        size / costs.parts(problem.seen(made.choices[c].states[states[c]], view), made.mesh)
        for c, view, size in made.live
    )


@pytest.mark.parametrize("budget", [None, 30_000])
@pytest.mark.parametrize("first", [None, (-1,), (0,)])
def test_the_best_of_all_ways(first, budget):
    made = problem.make(read_text(LAYERS), (4,), MACHINE, [first, None, None], [-1])
    ways = itertools.product(*(range(len(c.states)) for c in made.choices))
    fits = [w for w in ways if budget is None or held(made, w) <= budget]
    best = min(price(made, w) for w in fits)
    found = solve.solve(made, MACHINE, budget)
    assert found.seconds == pytest.approx(price(made, found.states))
    assert found.bytes == pytest.approx(held(made, found.states))
    assert found.seconds == pytest.approx(best, rel=1e-3)
    worst = max(price(made, w) for w in fits)
    assert worst > 1.1 * best, "all ways cost the same: nothing was compared"
    if budget is not None:
        assert held(made, found.states) <= budget
        unbound = solve.solve(made, MACHINE)
        assert unbound.bytes > budget, "the budget said nothing"


def test_no_way_fits():
    made = problem.make(read_text(LAYERS), (4,), MACHINE, [None] * 3, [-1])
    with pytest.raises(solve.DoesNotFit, match="fit 100 bytes on each device"):
        solve.solve(made, MACHINE, 100)


def test_no_time_is_not_no_memory():
    made = problem.make(read_text(LAYERS), (4,), MACHINE, [None] * 3, [-1])
    with pytest.raises(RuntimeError, match="within 1e-09 s, found none"):
        solve.solve(made, MACHINE, time_limit=1e-9)
