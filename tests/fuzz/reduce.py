"""Cuts a failing program down: fewer programs before it, fewer steps, simpler lines."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator, Sequence

from tests.fuzz.compare import Difference
from tests.fuzz.program import Program, Step, compiled

Fails = Callable[[Sequence[Program]], Difference | None]


def without_chunks(items: Sequence, fails: Callable[[Sequence], bool]) -> list:
    """The items that are needed: chunks of halving size are dropped while it still fails."""
    items = list(items)
    size = max(1, len(items) // 2)
    while True:
        dropped, at = False, len(items)
        while at > 0:
            start = max(0, at - size)
            shorter = items[:start] + items[at:]
            if fails(shorter):
                items, dropped = shorter, True
            at = start
        if size == 1 and not dropped:
            return items
        size = max(1, size // 2)


def _defined(program: Sequence[Step]) -> bool:
    """Every name is made by an earlier line: what is not would only be an error on both devices."""
    known: set[str] = set()
    for step in program:
        made: set[str] = set()
        for node in ast.walk(ast.parse(step.line)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                made.add(node.id)
        if not step.names <= known | made:
            return False
        known |= step.names
    return True


class _Replace(ast.NodeTransformer):
    """Puts `new` in the place of the node that `at` counts to."""

    def __init__(self, at: int, new: ast.expr):
        self.at, self.new = at, new
        self.nodes: list[ast.expr] = []

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr):
            self.nodes.append(node)
            if len(self.nodes) - 1 == self.at:
                return self.new
        return super().visit(node)


def _simpler(node: ast.expr) -> Iterator[ast.expr]:
    """Expressions to try instead of one."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            yield node.func.value
        yield from node.args
        for k in range(len(node.keywords)):
            yield ast.Call(node.func, node.args, node.keywords[:k] + node.keywords[k + 1 :])
        for k in range(len(node.args)):
            yield ast.Call(node.func, node.args[:k] + node.args[k + 1 :], node.keywords)
    elif isinstance(node, ast.Subscript):
        yield node.value
    elif isinstance(node, ast.BinOp):
        yield node.left
        yield node.right
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, (ast.List, ast.Tuple)) and isinstance(node.ctx, ast.Load):
        for k in range(len(node.elts)):
            yield type(node)(node.elts[:k] + node.elts[k + 1 :], ast.Load())
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        for smaller in (0, 1, 2, node.value // 2):
            if abs(smaller) < abs(node.value):
                yield ast.Constant(type(node.value)(smaller))
    elif isinstance(node, ast.Constant) and node.value is True:
        yield ast.Constant(False)


def _one_line(tree: ast.AST) -> str:
    lines = [line.strip() for line in ast.unparse(ast.fix_missing_locations(tree)).splitlines()]
    head = f"{lines[0]} " if lines[0].endswith(":") else ""  # of a with
    return head + "; ".join(lines[1:] if head else lines)


def simpler_lines(line: str) -> Iterator[str]:
    """Lines that do less, the larger cuts first."""
    tree = ast.parse(line)
    body = tree.body[0] if len(tree.body) == 1 else None
    if isinstance(body, ast.With):
        yield _one_line(ast.Module(body.body, []))
    if len(tree.body) > 1:
        for k in range(len(tree.body)):
            yield _one_line(ast.Module(tree.body[:k] + tree.body[k + 1 :], []))
    collect = _Replace(-1, ast.Constant(0))
    collect.visit(tree)
    for at, node in enumerate(collect.nodes):
        for new in _simpler(node):
            changed = _Replace(at, new).visit(ast.parse(line))
            try:
                text = _one_line(changed)
                compiled(text)
            except (SyntaxError, ValueError, AttributeError, TypeError):
                continue
            if len(text) < len(line):
                yield text


def reduce(
    programs: Sequence[Program], fails: Fails, seconds: float = 300.0
) -> tuple[list[Program], Difference]:
    """The shortest programs found that fail as the last of `programs` does, within `seconds`."""
    first = fails(programs)
    assert first is not None, "only what fails can be reduced"
    deadline, last = time.monotonic() + seconds, [first]

    def alike(candidate: Sequence[Program]) -> bool:
        if time.monotonic() > deadline:
            return False
        found = fails(candidate)
        if found is None or not found.is_like(first):
            return False
        last[0] = found
        return True

    earlier, program = list(programs[:-1]), programs[-1]
    if earlier:
        earlier = (
            [] if alike([program]) else without_chunks(earlier, lambda e: alike([*e, program]))
        )

    def steps(at: int) -> None:
        def fewer(candidate: Sequence[Step]) -> bool:
            changed = [*kept[:at], tuple(candidate), *kept[at + 1 :]]
            return bool(candidate) and _defined(candidate) and alike(changed)

        kept[at] = tuple(without_chunks(kept[at], fewer))

    def lines(at: int) -> bool:
        for i, step in enumerate(kept[at]):
            for line in simpler_lines(step.line):
                candidate = (*kept[at][:i], Step(step.kind, line, step.thread), *kept[at][i + 1 :])
                changed = [*kept[:at], candidate, *kept[at + 1 :]]
                if _defined(candidate) and alike(changed):
                    kept[at] = candidate
                    return True
            if step.thread:
                candidate = tuple(Step(s.kind, s.line) for s in kept[at])
                if alike([*kept[:at], candidate, *kept[at + 1 :]]):
                    kept[at] = candidate
                    return True
        return False

    kept = [*earlier, program]
    for at in reversed(range(len(kept))):
        steps(at)
    for at in reversed(range(len(kept))):
        while lines(at):
            pass
        steps(at)
    found = fails(kept) or last[0]
    return kept, found
