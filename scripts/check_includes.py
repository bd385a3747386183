"""Checks what the compiler cannot: which area of csrc/ may include which, and how long files are.

Prints one line per violation and exits with 1 when there is any.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

# The arrows of docs/architecture.md. An area may also include whatever its targets may include.
ARROWS = {
    "python": {"dispatch", "debug"},
    "dispatch": {"executor"},
    "executor": {"ops", "pjrt"},
    "ops": {"cpu"},
    "cpu": {"debug"},
    "lazy": {"hlo", "spmd"},
    "debug": {"lazy", "pjrt"},
    "hlo": {"spmd"},
    "pjrt": {"spmd"},
    "spmd": set(),
    "util": set(),
}
# The rooms of an area, and which of them each may include. The files beside them may include all.
ROOMS: dict[str, dict[str, set[str]]] = {
    "dispatch": {
        "composites": {"functions"},
        "functions": {"replicas"},
        "process_groups": {"replicas"},
        "replicas": {"record"},
        "record": {"judge", "views", "device", "sharding"},
        "judge": {"calls"},
        "sharding": {"calls"},
        "views": {"calls"},
        "device": {"calls"},
        "calls": set(),
    },
    "executor": {
        "insight": {"step"},
        "step": {"compile"},
        "compile": {"stored"},
        "stored": {"run"},
        "run": {"program"},
        "program": set(),
    },
}
TORCH_FREE = {"hlo", "pjrt", "spmd", "util"}
MAX_LINES = 800

TORCH_PREFIXES = ("torch/", "ATen/", "c10/", "caffe2/", "pybind11/", "Python.h")
# Headers of other projects that the code includes by these names.
FOREIGN_PREFIXES = (*TORCH_PREFIXES, "xla/ffi/", "pjrt_c_api.h", "gtest/", "gmock/")
SOURCE_SUFFIXES = {".h", ".cpp", ".py"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def closure(start: str, arrows: dict[str, set[str]]) -> set[str]:
    """What can be reached from `start`, itself included."""
    found = {start}
    waiting = [start]
    while waiting:
        new = arrows[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def reachable(area: str) -> set[str]:
    """Every area that `area` may include, itself and util among them."""
    return closure(area, ARROWS) | {"util"}


def room_of(path: Path) -> str | None:
    """The room of a file `<area>/<room>/<name>` of an area with rooms; None for one beside them."""
    parts = path.parts
    return parts[1] if parts[0] in ROOMS and len(parts) == 3 else None


def files(root: Path, folders: tuple[str, ...], suffixes: set[str]) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path


def includes(path: Path) -> Iterator[tuple[int, bool, str]]:
    """(line number, written in quotes, header) of each include of a file."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) == '"', match.group(2)


def check_file_of_area(root: Path, path: Path, area: str) -> Iterator[str]:
    allowed = reachable(area)
    room = room_of(path.relative_to(root / "csrc"))
    for number, quoted, header in includes(path):
        where = f"{path.relative_to(root)}:{number}: {header}"
        if header == "torch/extension.h" and area != "python":
            yield f"{where}: only csrc/python/ may include it; include the narrow headers it needs."
        elif area in TORCH_FREE and header.startswith((*TORCH_PREFIXES, "xla/ffi/")):
            yield f"{where}: csrc/{area}/ builds without torch and Python."
        elif area != "python" and header.startswith(("Python.h", "pybind11/")):
            yield f"{where}: only csrc/python/ knows Python; util/unlocked.h lets its lock go."
        elif header in ("torch/torch.h", "ATen/ATen.h"):
            yield f"{where}: takes long to compile; include the narrow headers it stands for."
        elif quoted and not header.startswith(FOREIGN_PREFIXES):
            target = header.split("/")[0]
            if not (root / "csrc" / header).is_file():
                yield f'{where}: no such file in csrc/; write it from there, as "hlo/builder.h".'
            elif target not in allowed:
                names = ", ".join(sorted(allowed - {area}))
                yield f"{where}: {area} may include only {names}."
            elif room is not None and target == area:
                may_include = closure(room, ROOMS[area])
                if room_of(Path(header)) not in may_include:
                    names = ", ".join(sorted(may_include - {room})) or "nothing else"
                    yield f"{where}: {area}/{room} may include of {area}/ only {names}."


def check_includes(root: Path) -> Iterator[str]:
    for path in files(root, ("csrc",), {".h", ".cpp"}):
        area = path.relative_to(root / "csrc").parts[0]
        room = room_of(path.relative_to(root / "csrc"))
        if room is not None and room not in ROOMS[area]:
            names = ", ".join(sorted(ROOMS[area]))
            yield f"{path.relative_to(root)}: not in a room of {area}/ ({names})."
        elif area in ARROWS:
            yield from check_file_of_area(root, path, area)
        else:
            names = ", ".join(sorted(ARROWS))
            yield f"{path.relative_to(root)}: not in an area of csrc/ ({names})."
    for path in files(root, ("tests/cpp",), {".h", ".cpp"}):
        for number, _, header in includes(path):
            if header.startswith(TORCH_PREFIXES):
                where = f"{path.relative_to(root)}:{number}: {header}"
                yield f"{where}: the C++ unit tests build without torch and Python."


def check_lengths(root: Path) -> Iterator[str]:
    for path in files(root, ("csrc", "torch_xla", "tests"), SOURCE_SUFFIXES):
        lines = len(path.read_text().splitlines())
        if lines > MAX_LINES:
            yield (
                f"{path.relative_to(root)}: {lines} lines, at most {MAX_LINES} are allowed. "
                "Split it along its families."
            )


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    violations = [*check_includes(root), *check_lengths(root)]
    print(*violations, sep="\n", end="\n" if violations else "")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
