"""Solves choice problems as integer programs, by HiGHS through scipy.

Choices that are alike are made alike: the layers of a network are decided once, and the time that
this takes does not grow with their number.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_xla.distributed.spmd.auto_sharding import costs
from torch_xla.distributed.spmd.auto_sharding.costs import Layout, Machine
from torch_xla.distributed.spmd.auto_sharding.problem import Problem, seen

_INFEASIBLE = 2  # scipy.optimize.milp's status
_ROUNDS = 1  # how far away neighbours may be that make choices differ


@dataclass
class Solution:
    """An alternative for each choice.

    Attributes:
        states: The index of the alternative, by choice.
        seconds: What the step costs by the model.
        bytes: What lives on a device when most does, by the model.
    """

    states: list[int]
    seconds: float
    bytes: float

    def layout(self, problem: Problem, choice: int) -> Layout:
        """The layout of each choice."""
        return problem.choices[choice].states[self.states[choice]]


class DoesNotFit(ValueError):
    """No way of splitting keeps within the memory of a device."""


def kinds_of(problem: Problem) -> list[int]:
    """Numbers choices so that those with equal neighbourhoods have one number."""
    colors = [hash((c.key, tuple(c.states))) for c in problem.choices]
    for _ in range(_ROUNDS):
        around: dict[int, list[int]] = defaultdict(list)
        for e in problem.edges:
            said = hash((e.have, e.want, e.size))
            around[e.source].append(hash((said, 0, colors[e.target])))
            around[e.target].append(hash((said, 1, colors[e.source])))
        # Not how often: first layers have other numbers of neighbours of one kind.
        colors = [hash((c, tuple(sorted(set(around[i]))))) for i, c in enumerate(colors)]
    numbers: dict[int, int] = {}
    return [numbers.setdefault(color, len(numbers)) for color in colors]


class _Rows:
    """Equations between variables, one by one."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, terms: list[tuple[int, float]], low: float, high: float) -> None:
        for column, value in terms:
            self.rows.append(len(self.low))
            self.columns.append(column)
            self.values.append(value)
        self.low.append(low)
        self.high.append(high)


class _Integer:
    """The integer program: a variable for each alternative, and for each way an edge may go."""

    def __init__(self, problem: Problem, machine: Machine, budget: float | None) -> None:
        self.problem, self.on, self.budget = problem, machine, budget
        self.kinds = kinds_of(problem)
        count = max(self.kinds, default=-1) + 1
        self.first = [self.kinds.index(k) for k in range(count)]  # a choice of each kind
        self.seconds = [np.zeros(len(problem.choices[c].states)) for c in self.first]
        for choice, kind in zip(problem.choices, self.kinds, strict=True):
            self.seconds[kind] += np.array(choice.costs)
        self._edges()
        self._memory()

    def _change(self, have: Layout, want: Layout, size: int) -> float:
        return costs.change(have, want, size, self.problem.mesh, self.on)

    def _edges(self) -> None:
        self.edges: Counter[Any] = Counter()
        for e in self.problem.edges:
            a, b = self.kinds[e.source], self.kinds[e.target]
            if a == b:
                ways = zip(e.have, e.want, strict=True)
                self.seconds[a] += [e.times * self._change(h, w, e.size) for h, w in ways]
            elif len(set(e.have)) == 1:
                self.seconds[b] += [e.times * self._change(e.have[0], w, e.size) for w in e.want]
            elif len(set(e.want)) == 1:
                self.seconds[a] += [e.times * self._change(h, e.want[0], e.size) for h in e.have]
            else:
                self.edges[(a, b, e.have, e.want, e.size)] += e.times

    def _memory(self) -> None:
        self.bytes = [np.zeros(len(s)) for s in self.seconds]
        for choice, view, size in self.problem.live:
            states = self.problem.choices[choice].states
            self.bytes[self.kinds[choice]] += [
                size / costs.parts(seen(s, view), self.problem.mesh) for s in states
            ]

    def solve(self, time_limit: float) -> Solution:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        starts = np.cumsum([0] + [len(s) for s in self.seconds])
        # Among equally fast ways, the one that needs least memory.
        most = sum(float(b.max()) for b in self.bytes) or 1.0
        scale = max(sum(float(s.max()) for s in self.seconds), 1e-12)
        objective = [
            c + 1e-4 * scale * b / most
            for c, b in zip(np.concatenate(self.seconds), np.concatenate(self.bytes), strict=True)
        ]
        rows = _Rows()
        for kind, seconds in enumerate(self.seconds):
            rows.add([(int(starts[kind]) + s, 1.0) for s in range(len(seconds))], 1, 1)
        choices = len(objective)
        for (a, b, have, want, size), count in self.edges.items():
            self._add_edge(
                rows, objective, (int(starts[a]), have), (int(starts[b]), want), size, count
            )
        if self.budget is not None:
            sizes = np.concatenate(self.bytes)
            rows.add([(i, float(n)) for i, n in enumerate(sizes)], 0, self.budget)
        integrality = np.zeros(len(objective))
        integrality[:choices] = 1
        shape = (len(rows.low), len(objective))
        matrix = csr_array((rows.values, (rows.rows, rows.columns)), shape=shape)
        found = milp(
            np.array(objective) / scale,
            integrality=integrality,
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix, rows.low, rows.high),
            options={"time_limit": time_limit, "mip_rel_gap": 1e-3},
        )
        if found.x is None and found.status != _INFEASIBLE:
            raise RuntimeError(
                f"auto-sharding: expected a way to split a program within {time_limit:g} s, found "
                f"none: {found.message} Name the mesh by XLA_AUTO_SPMD_MESH, or mark by hand."
            )
        if found.x is None:
            raise DoesNotFit(
                "auto-sharding: expected the values of a program to fit "
                f"{self.budget:,.0f} bytes on each device, found no way to split them so. Take "
                "more devices, a smaller batch, or compute activations again in the backward pass."
            )
        chosen = [
            int(np.argmax(found.x[starts[k] : starts[k + 1]])) for k in range(len(self.seconds))
        ]
        return self._solution(chosen)

    def _add_edge(
        self, rows: _Rows, objective: list[float], a: Any, b: Any, size: int, count: int
    ) -> None:
        """Variables for each pair of layouts, whose sums are the alternatives that have them."""
        (start_a, have), (start_b, want) = a, b
        of_a, of_b = sorted(set(have)), sorted(set(want))
        prices = [[self._change(x, y, size) for y in of_b] for x in of_a]
        if not any(any(row) for row in prices):
            return
        base = len(objective)
        objective.extend(count * price for row in prices for price in row)
        for i, x in enumerate(of_a):
            terms = [(base + i * len(of_b) + j, 1.0) for j in range(len(of_b))]
            terms += [(start_a + s, -1.0) for s, y in enumerate(have) if y == x]
            rows.add(terms, 0, 0)
        for j, y in enumerate(of_b):
            terms = [(base + i * len(of_b) + j, 1.0) for i in range(len(of_a))]
            terms += [(start_b + s, -1.0) for s, x in enumerate(want) if x == y]
            rows.add(terms, 0, 0)

    def _solution(self, chosen: list[int]) -> Solution:
        seconds = sum(float(s[c]) for s, c in zip(self.seconds, chosen, strict=True))
        for (a, b, have, want, size), count in self.edges.items():
            seconds += count * self._change(have[chosen[a]], want[chosen[b]], size)
        size = sum(float(s[c]) for s, c in zip(self.bytes, chosen, strict=True))
        return Solution([chosen[k] for k in self.kinds], seconds, size)


def solve(
    problem: Problem, machine: Machine, budget: float | None = None, time_limit: float = 60.0
) -> Solution:
    """The fastest way to split what a problem describes.

    Args:
        problem: The problem.
        machine: What devices can.
        budget: Bytes that each device has, None for no limit.
        time_limit: Seconds after which the best way found so far is taken.

    Raises:
        DoesNotFit: No way keeps within `budget`.
        RuntimeError: None was found within `time_limit`.
    """
    return _Integer(problem, machine, budget).solve(time_limit)
