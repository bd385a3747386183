"""Makes a choice problem of a program: few values to choose the split of, and what choices cost.

An operation that only passes values on (elementwise, a transposition, a reduction) is split as its
main operand is. So there is a choice for each argument and for each operation that mixes
dimensions (products, convolutions, gathers, scatters) alone; what flows from one choice to another
is an edge, which costs what it sends. Alpa merges operations so.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_xla.distributed.spmd.auto_sharding import costs
from torch_xla.distributed.spmd.auto_sharding.costs import Layout, Machine
from torch_xla.distributed.spmd.auto_sharding.program import Operation, Program
from torch_xla.distributed.spmd.auto_sharding.rules import FREE, Rule, rule_of

# For an axis: the factor that it splits or -1, and the dimension of the result along which a sum
# over that factor is scattered, or -1.
Step = tuple[int, int]
# Layouts of the result and of each operand, and seconds.
_Alternatives = tuple[list[Layout], list[list[Layout]], list[float]]
View = tuple[int, ...]  # of each dimension of a choice's value, the dimension of another value


@dataclass
class Choice:
    """The choices that are to be made.

    Attributes:
        key: What it is: choices with one key and the same neighbours are made alike.
        states: The layouts of its value, one for each alternative.
        costs: Seconds, of each alternative.
        uses: Of each operand of an operation, its layout for each alternative.
    """

    key: tuple[object, ...]
    states: list[Layout]
    costs: list[float]
    uses: list[list[Layout]] = field(default_factory=list)


@dataclass(frozen=True)
class Edge:
    """A value that is split as one choice says, and used as another does.

    Attributes:
        source, target: Numbers of choices.
        have, want: The layouts of the value for each of their alternatives.
        size: Bytes to be sent where these differ.
        times: How often.
    """

    source: int
    target: int
    have: tuple[Layout, ...]
    want: tuple[Layout, ...]
    size: int
    times: int = 1


@dataclass
class _Followed:
    """The rule by which a value's split follows from a choice."""

    choice: int
    view: View
    size: int  # bytes of the smallest value on the way
    depth: int


@dataclass
class Problem:
    """A choice problem on a mesh of these sizes."""

    mesh: tuple[int, ...]
    choices: list[Choice]
    edges: list[Edge]
    arguments: list[int]  # the choice of each argument
    values: dict[int, tuple[int, View]]  # by number: the choice, and the view of it
    decided: dict[int, int]  # the choice of each operation that decides, by its first result
    live: list[tuple[int, View, int]]  # (choice, view, bytes) of what lives when most does


def seen(layout: Layout, view: View) -> Layout:
    """The layout of a value that is a view of one with this layout."""
    return tuple(-1 if dim < 0 else view[dim] for dim in layout)


def _divides(
    steps: Sequence[int], dims: dict[int, int] | Sequence[int], mesh: Sequence[int]
) -> bool:
    split: dict[int, int] = defaultdict(lambda: 1)
    for step, n in zip(steps, mesh, strict=True):
        if step >= 0:
            split[step] *= n
    return all(dims[d] % n == 0 for d, n in split.items())


def layouts_of(dims: Sequence[int], mesh: Sequence[int]) -> list[Layout]:
    """All layouts with equal parts."""
    alternatives = itertools.product(range(-1, len(dims)), repeat=len(mesh))
    return [x for x in alternatives if _divides(x, dims, mesh)]


class _Maker:
    def __init__(self, program: Program, mesh: tuple[int, ...], machine: Machine) -> None:
        self.program, self.types, self.mesh, self.on = program, program.types, mesh, machine
        self.choices: list[Choice] = []
        self.edges: list[Edge] = []
        self.of: dict[int, _Followed] = {}
        self.decided: dict[int, int] = {}
        self.alternatives: dict[tuple[object, ...], _Alternatives] = {}

    def argument(self, number: int, fixed: Layout | None) -> int:
        kind = self.types[number]
        states = [fixed] if fixed is not None else layouts_of(kind.dims, self.mesh)
        self.choices.append(Choice(("argument", kind, fixed), states, [0.0] * len(states)))
        identity = tuple(range(len(kind.dims)))
        self.of[number] = _Followed(len(self.choices) - 1, identity, kind.bytes, 0)
        return len(self.choices) - 1

    def operation(self, op: Operation) -> None:
        if op.name in FREE:
            return
        if op.name == "loop.carry":
            self._carry(op)
            return
        rule = rule_of(op, self.types)
        if rule.pairs:
            for operand, result in zip(op.operands, op.results, strict=False):
                if operand in self.of:
                    self.of[result] = self.of[operand]
        elif rule.decides:
            self._decide(op, rule)
        else:
            self._follow(op, rule)

    def _carry(self, op: Operation) -> None:
        """Values that a loop leaves to its next time are split as those that it took."""
        value, argument = (self.of.get(v) for v in op.operands)
        if value is not None and argument is not None:
            taken = self.choices[argument.choice].states
            want = [seen(state, argument.view) for state in taken]
            self._edge(value, argument.choice, want, op.times)

    def _decide(self, op: Operation, rule: Rule) -> None:
        key = (op.name, *op.attributes.items(), *(self.types[v] for v in op.operands + op.results))
        if key not in self.alternatives:
            self.alternatives[key] = self._alternatives(op, rule)
        states, uses, seconds = self.alternatives[key]
        self.choices.append(Choice(key, states, [op.times * s for s in seconds], uses))
        made = len(self.choices) - 1
        depth = 1
        for i, operand in enumerate(op.operands):
            source = self.of.get(operand)
            if source is not None:
                depth = max(depth, source.depth + 1)
                self._edge(source, made, uses[i], op.times)
        for result in op.results:
            identity = tuple(range(len(self.types[result].dims)))
            self.of[result] = _Followed(made, identity, self.types[result].bytes, depth)
        self.decided[op.results[0]] = made

    def _alternatives(self, op: Operation, rule: Rule) -> _Alternatives:
        states: list[Any] = []
        uses: list[list[Any]] = [[] for _ in op.operands]
        seconds: list[float] = []
        for chosen in itertools.product(list(self._steps(rule)), repeat=len(self.mesh)):
            factors = [f for f, _ in chosen]
            out = self._place(chosen, rule.results[0])
            if not _divides(factors, rule.sizes, self.mesh):
                continue
            if not _divides(out, self.types[op.results[0]].dims, self.mesh):
                continue
            states.append(out)
            for i, dims in enumerate(rule.operands):
                uses[i].append(self._place([(f, -1) for f in factors], dims))
            seconds.append(self._seconds(op, rule, chosen, [u[-1] for u in uses], out))
        return states, uses, seconds

    def _steps(self, rule: Rule) -> Iterable[Step]:
        yield (-1, -1)
        for factor in rule.sizes:
            yield (factor, -1)
            if factor not in rule.results[0]:
                for dim, other in enumerate(rule.results[0]):
                    if other is not None:
                        yield (factor, dim)

    @staticmethod
    def _place(chosen: Sequence[Step], dims: Sequence[int | None]) -> Layout:
        return tuple(
            dims.index(factor) if factor >= 0 and factor in dims else scattered
            for factor, scattered in chosen
        )

    def _seconds(
        self, op: Operation, rule: Rule, chosen: Any, used: list[Layout], out: Layout
    ) -> float:
        """Arithmetic and memory of a device, and the sums over devices."""
        work = rule.work
        for (factor, _), n in zip(chosen, self.mesh, strict=True):
            if factor >= 0:
                work /= n
        moved = self._local(op.results[0], out)
        moved += sum(self._local(v, u) for v, u in zip(op.operands, used, strict=True))
        seconds = max(work / self.on.operations, moved / self.on.memory)
        size = self._local(op.results[0], out)
        for (factor, scattered), n in zip(chosen, self.mesh, strict=True):
            if factor < 0 or factor in rule.results[0]:
                continue
            if scattered >= 0:
                size *= n
                seconds += costs.reduce_scatter(size, n, self.on)
            else:
                seconds += costs.all_reduce(size, n, self.on)
        return seconds

    def _local(self, value: int, layout: Layout) -> float:
        return self.types[value].bytes / costs.parts(layout, self.mesh)

    def _follow(self, op: Operation, rule: Rule) -> None:
        known = [(self.of[v], i) for i, v in enumerate(op.operands) if v in self.of]
        known = [(f, i) for f, i in known if self.types[op.operands[i]].dims] or known
        if not known or not op.results:
            return
        main, place = max(known, key=lambda k: (k[0].size, k[0].depth))
        factors = rule.operands[place]
        chosen = self.choices[main.choice]
        have = [seen(state, main.view) for state in chosen.states]
        want = [tuple(-1 if d < 0 or factors[d] is None else d for d in x) for x in have]
        self._stays(op, main, have, want)
        for result, dims in zip(op.results, rule.results, strict=True):
            to = [-1 if f is None or f not in dims else dims.index(f) for f in factors]
            view = tuple(-1 if d < 0 else to[d] for d in main.view)
            size = min(main.size, self.types[result].bytes)
            self.of[result] = _Followed(main.choice, view, size, main.depth)
        self._sums(op, rule, factors, main, want)
        self._moves(op, main)
        for source, i in known:
            if i == place:
                continue
            uses = [
                tuple(-1 if d < 0 else _index(rule.operands[i], factors[d]) for d in x)
                for x in want
            ]
            self._edge(source, main.choice, uses, op.times)

    def _stays(
        self, op: Operation, main: _Followed, have: list[Layout], want: list[Layout]
    ) -> None:
        for state, (a, b) in enumerate(zip(have, want, strict=True)):
            seconds = costs.change(a, b, main.size, self.mesh, self.on)
            self.choices[main.choice].costs[state] += op.times * seconds

    def _sums(
        self, op: Operation, rule: Rule, factors: Any, main: _Followed, have: list[Layout]
    ) -> None:
        """A reduction along what is split adds over the devices."""
        gone = {
            d
            for d, f in enumerate(factors)
            if f is not None and not any(f in dims for dims in rule.results)
        }
        if not gone:
            return
        for state, layout in enumerate(have):
            for dim, n in zip(layout, self.mesh, strict=True):
                if dim in gone:
                    after = tuple(-1 if d in gone else d for d in layout)
                    size = self.types[op.results[0]].bytes / costs.parts(after, self.mesh)
                    seconds = costs.all_reduce(size, n, self.on)
                    self.choices[main.choice].costs[state] += op.times * seconds

    def _moves(self, op: Operation, main: _Followed) -> None:
        """Passes over memory, of which the compiler makes one of about four."""
        result = op.results[0]
        if main.size < self.types[result].bytes:
            return  # it is made where it is read
        view = self.of[result].view
        for state, layout in enumerate(self.choices[main.choice].states):
            local = self._local(result, seen(layout, view))
            self.choices[main.choice].costs[state] += op.times * local / self.on.memory / 4

    def _edge(self, source: _Followed, target: int, want: list[Layout], times: int = 1) -> None:
        have = tuple(seen(state, source.view) for state in self.choices[source.choice].states)
        self.edges.append(Edge(source.choice, target, have, tuple(want), source.size, times))

    def replaces(self, result: int, argument: int) -> None:
        source = self.of.get(result)
        if source is not None:
            self._edge(source, argument, self.choices[argument].states)

    def live(self) -> list[tuple[int, View, int]]:
        """The bytes that live when most do: arguments, and choices until they are last used."""
        last: dict[int, int] = {}
        for place, op in enumerate(self.program.operations):
            for value in op.operands:
                last[value] = place
        for value in self.program.results:
            last[value] = len(self.program.operations)
        change: dict[int, int] = defaultdict(int)
        spans = []
        for place, op in enumerate(self.program.operations):
            for value in op.results[:1]:
                # A fused kernel reads it soon: it is never in memory, unless a product made it.
                soon = last.get(value, place) - place < 32 and value not in self.decided
                if value not in self.of or soon or self.of[value].size < self.types[value].bytes:
                    continue
                spans.append((place, last.get(value, place), value))
                change[place] += self.types[value].bytes
                change[last.get(value, place) + 1] -= self.types[value].bytes
        size = most = peak = 0
        for place in sorted(change):
            size += change[place]
            if size > most:
                most, peak = size, place
        lives = [v for start, end, v in spans if start <= peak <= end]
        lives += [v for v in self.program.arguments if v in self.of]
        return [(self.of[v].choice, self.of[v].view, self.types[v].bytes) for v in lives]


def _index(dims: Sequence[int | None], factor: int | None) -> int:
    return dims.index(factor) if factor is not None and factor in dims else -1


def make(
    program: Program,
    mesh: tuple[int, ...],
    machine: Machine,
    fixed: Sequence[Layout | None],
    replaces: Sequence[int],
) -> Problem:
    """The choice problem of a program.

    Args:
        program: The program.
        mesh: The sizes of the mesh's axes.
        machine: What devices can.
        fixed: For each argument that is data, its layout, or None if it is to be chosen. Arguments
            after these are numbers.
        replaces: For each result, the argument that it takes the place of, or -1.
    """
    maker = _Maker(program, mesh, machine)
    arguments = [
        maker.argument(value, layout)
        for value, layout in zip(program.arguments, fixed, strict=False)
    ]
    for op in program.operations:
        maker.operation(op)
    for result, argument in zip(program.results, replaces, strict=True):
        if argument >= 0:
            maker.replaces(result, arguments[argument])
    values = {value: (f.choice, f.view) for value, f in maker.of.items()}
    return Problem(mesh, maker.choices, maker.edges, arguments, values, maker.decided, maker.live())
