"""Checks the rooms: no circle of includes or imports within one, nothing in torch_xla/_src that
imports what lies above it, no more lines than a room's budget, and plain comments. Prints the table
of rooms, then one line per violation, and exits with 1 when there is any.

A room is a folder of csrc/ or torch_xla/ with the files right in it. A unit is a header with the
sources that bear its name, or begin with it; in Python, a module.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from check_includes import includes

# The lines that a room may have. A room that outgrows its budget is two rooms.
BUDGETS: dict[str, int] = {
    "csrc/cpu": 2_000,
    "csrc/debug": 1_000,
    "csrc/dispatch": 650,
    "csrc/dispatch/calls": 1_200,
    "csrc/dispatch/composites": 2_100,
    "csrc/dispatch/device": 350,
    "csrc/dispatch/functions": 2_050,
    "csrc/dispatch/judge": 800,
    "csrc/dispatch/process_groups": 900,
    "csrc/dispatch/record": 2_300,
    "csrc/dispatch/replicas": 1_900,
    "csrc/dispatch/sharding": 450,
    "csrc/dispatch/views": 1_800,
    "csrc/executor/compile": 2_500,
    "csrc/executor/insight": 1_700,
    "csrc/executor/program": 2_700,
    "csrc/executor/run": 2_700,
    "csrc/executor/step": 2_000,
    "csrc/executor/stored": 800,
    "csrc/hlo": 5_200,
    "csrc/lazy": 2_500,
    "csrc/ops": 18_300,
    "csrc/pjrt": 2_950,
    "csrc/python": 4_000,
    "csrc/spmd": 1_350,
    "csrc/util": 1_400,
    "torch_xla": 1_100,
    "torch_xla/_dynamo": 250,
    "torch_xla/_internal": 650,
    "torch_xla/_src": 500,
    "torch_xla/_src/aot": 1_150,
    "torch_xla/_src/builder": 1_200,
    "torch_xla/_src/collectives": 800,
    "torch_xla/_src/device": 1_750,
    "torch_xla/_src/dynamo": 700,
    "torch_xla/_src/export": 1_250,
    "torch_xla/_src/functions": 1_300,
    "torch_xla/_src/insight": 2_200,
    "torch_xla/_src/job": 1_800,
    "torch_xla/_src/old_names": 2_500,
    "torch_xla/_src/patches": 1_000,
    "torch_xla/_src/processes": 400,
    "torch_xla/_src/profile": 1_050,
    "torch_xla/_src/report": 1_450,
    "torch_xla/_src/saved_step": 700,
    "torch_xla/amp": 150,
    "torch_xla/amp/syncfree": 200,
    "torch_xla/aot": 300,
    "torch_xla/core": 1_100,
    "torch_xla/debug": 900,
    "torch_xla/distributed": 900,
    "torch_xla/distributed/fsdp": 2_600,
    "torch_xla/distributed/spmd": 4_450,
    "torch_xla/distributed/spmd/auto_sharding": 1_700,
    "torch_xla/experimental": 2_900,
    "torch_xla/experimental/distributed_checkpoint": 1_500,
    "torch_xla/test": 200,
    "torch_xla/utils": 950,
}
# Modules of torch_xla/_src lie below those that users import. These rooms hand them to PyTorch and
# to old programs; the list of others only shrinks.
HANDS_UP = {"torch_xla/_src/old_names", "torch_xla/_src/patches"}
IMPORTS_UP: dict[str, set[str]] = {
    "torch_xla._src.dynamo.backends": {"torch_xla.core.dynamo_bridge"},
    "torch_xla._src.export.recording": {
        "torch_xla.experimental.mark_pattern_utils",
        "torch_xla.experimental.stablehlo_custom_call",
    },
    "torch_xla._src.insight.recording": {"torch_xla.debug.metrics"},
    "torch_xla._src.profile.profiler": {"torch_xla.debug.metrics"},
}
# Comments and docstrings that open with such a word: a stranger has to solve them. These counts
# only fall.
OPENER = re.compile(r"(What|Whether|Of|How)\b")
OPENERS: dict[str, int] = {"csrc": 33, "torch_xla": 1}

Graph = dict[str, set[str]]


def room_of(path: Path) -> str:
    return path.parent.as_posix()


def sources(root: Path) -> list[Path]:
    """Relative to the root."""
    found = [p for p in (root / "csrc").rglob("*") if p.suffix in {".h", ".cpp"}]
    found += (root / "torch_xla").rglob("*.py")
    return sorted(p.relative_to(root) for p in found)


def circles(graph: Graph) -> list[set[str]]:
    """The sets of at least two nodes that all reach each other (Tarjan's algorithm)."""
    found: list[set[str]] = []
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in number:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], number[target])
        if low[node] == number[node]:
            start = stack.index(node)
            if len(stack) - start > 1:
                found.append(set(stack[start:]))
            del stack[start:]

    for node in graph:
        if node not in number:
            visit(node)
    return found


def units(paths: list[Path]) -> dict[Path, str]:
    """The unit of each C++ file: the longest name of a header of its room that begins its own."""
    headers = {(room_of(p), p.stem) for p in paths if p.suffix == ".h"}
    unit_of = {}
    for path in paths:
        words = path.stem.split("_")
        names = ["_".join(words[:n]) for n in range(len(words), 0, -1)]
        known = [name for name in names if (room_of(path), name) in headers]
        unit_of[path] = (known or names)[0]
    return unit_of


def cpp_graphs(root: Path, paths: list[Path]) -> dict[str, Graph]:
    """Which unit includes which of its own room, by room."""
    unit_of = units(paths)
    graphs: dict[str, Graph] = {}
    for path in paths:
        targets = graphs.setdefault(room_of(path), {}).setdefault(unit_of[path], set())
        for _, _, header in includes(root / path):
            target = Path("csrc") / header
            if target in unit_of and room_of(target) == room_of(path):
                targets.add(unit_of[target])
    for graph in graphs.values():
        for unit, targets in graph.items():
            targets.discard(unit)
    return graphs


def imported(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """Those that a module imports, in its functions too; not those for type checkers alone."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                part = f"{node.module}.{alias.name}"
                # Of a package that names its parts alone, no more than the part is needed.
                yield part if part in known else node.module
        waiting += ast.iter_child_nodes(node)


def python_graph(root: Path, paths: list[Path]) -> Graph:
    """Which module imports which, over the whole package."""
    name_of = {p: ".".join(p.with_suffix("").parts).removesuffix(".__init__") for p in paths}
    modules = set(name_of.values())
    extension = "torch_xla._XLAC"
    graph: Graph = {}
    for path, name in name_of.items():
        found = imported(ast.parse((root / path).read_text()), modules | {extension})
        graph[name] = modules & set(found) - {name}
    return graph


def check_circles(root: Path) -> Iterator[str]:
    paths = sources(root)
    graphs = cpp_graphs(root, [p for p in paths if p.suffix != ".py"])
    graphs["torch_xla"] = python_graph(root, [p for p in paths if p.suffix == ".py"])
    for room, graph in graphs.items():
        for circle in circles(graph):
            yield f"{room}: {', '.join(sorted(circle))} are in a circle. Let one know less."


def lengths(root: Path) -> dict[str, int]:
    lines: dict[str, int] = {}
    for path in sources(root):
        count = len((root / path).read_text().splitlines())
        lines[room_of(path)] = lines.get(room_of(path), 0) + count
    return lines


def check_direction(root: Path) -> Iterator[str]:
    """A module of _src that imports one that users import. A constant, the version, may be."""
    graph = python_graph(root, [p for p in sources(root) if p.suffix == ".py"])
    for module, targets in graph.items():
        room = "/".join(module.split(".")[:3])
        if not module.startswith("torch_xla._src.") or room in HANDS_UP:
            continue
        # Other names with an underscore are no user's, either.
        found = {t for t in targets if not re.search(r"\._", t)} - {"torch_xla.version"}
        listed = IMPORTS_UP.get(module, set())
        for target in sorted(found - listed):
            yield f"{module} imports {target}, which lies above it. Move what both need below."
        for target in sorted(listed - found):
            yield f"{module} does not import {target} by now. Take it off IMPORTS_UP."


def check_budgets(root: Path) -> Iterator[str]:
    for room, count in lengths(root).items():
        if room not in BUDGETS:
            yield f"{room}: has no budget of lines. Give it one in BUDGETS."
        elif count > BUDGETS[room]:
            yield f"{room}: {count} lines, at most {BUDGETS[room]} may be. Make two rooms of it."


def comments_of_cpp(text: str) -> Iterator[str]:
    """The first line of each comment, or the comment behind a line of code."""
    before = ""
    for line in text.splitlines():
        code, slashes, comment = line.partition("//")
        if slashes and (code.strip() or not before.lstrip().startswith("//")):
            yield comment.strip()
        before = line


def comments_of_python(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            alone = token.line.lstrip().startswith("#")
            if not (alone and last == token.start[0] - 1):
                yield token.string.lstrip("# ")
            last = token.start[0] if alone else -1


def openers(root: Path) -> dict[str, int]:
    count: dict[str, int] = {}
    for path in sources(root):
        text = (root / path).read_text()
        comments = comments_of_python(text) if path.suffix == ".py" else comments_of_cpp(text)
        opening = sum(OPENER.match(comment) is not None for comment in comments)
        count[path.parts[0]] = count.get(path.parts[0], 0) + opening
    return count


def check_openers(root: Path) -> Iterator[str]:
    for folder, count in openers(root).items():
        most = OPENERS.get(folder, 0)
        if count > most:
            yield (
                f"{folder}: {count} comments open with What, Whether, Of or How, "
                f"at most {most} may. Say subject, verb, object."
            )
        elif count < most:
            yield f"{folder}: {count} comments open so by now. Write that number in OPENERS."


def table(root: Path) -> Iterator[str]:
    for room, count in lengths(root).items():
        yield f"{room:44s} {count:6d} of {BUDGETS.get(room, 0):6d} lines"


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    print(*table(root), sep="\n")
    checks = (check_circles, check_direction, check_budgets, check_openers)
    violations = [line for check in checks for line in check(root)]
    print(*violations, sep="\n", end="\n" if violations else "")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
