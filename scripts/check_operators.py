"""Checks that what is known of an operator of PyTorch stands in one C++ file.

Prints one line for each operator that two files name, and exits with 1 when there is any. An
operator is named by a string ("aten::add.Tensor", or "add.Tensor" where a kernel is registered) or
by PyTorch's type of it (at::_ops::add_Tensor, op::add_Tensor); overloads, forms in place and out=
forms count with their functional operator. Names in calls of operators are uses, not facts, and do
not count.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

# What stands before a name that is only used: a call that is recorded, a kernel that is called, a
# look-up, the operator that a list form applies to its elements.
USE = re.compile(
    r"\b(call|HostCall(\s+\w+)?|find_operator|findSchema(OrThrow)?|Element|starts_with)\s*"
    r"[({]\s*(l\.b\s*,\s*)?\{?\s*(\w[\w.]*\s*\?\s*(\"[\w:.]+\"\s*:\s*)?)?$"
)
COMMENT = re.compile(r"//[^\n]*")
NAME = re.compile(r'"((?:aten|torch_xla)::\w+(?:\.\w+)?)"')
KERNEL = re.compile(r'\b\w+\.impl\(\s*"(\w+(?:\.\w+)?)"')
LIBRARY = re.compile(r"TORCH_LIBRARY(?:_IMPL|_FRAGMENT)?\((\w+)")
# A type's name may end in an overload's: all that PyTorch has are looked up by their longest form.
TYPE = re.compile(r"\b(?:at::_ops|op)::(\w+)")


def functional(name: str) -> str:
    """`aten::add` of aten::add.Tensor, aten::add_.Tensor and aten::add.out."""
    base = name.split(".")[0]
    return base[:-1] if base.endswith("_") and not base.endswith("__") else base


def names(text: str) -> set[str]:
    """The functional operators of which a C++ file states facts."""
    text = COMMENT.sub("", text)
    found = {functional(m[1]) for m in NAME.finditer(text) if not USE.search(text[: m.start()])}
    for kernel in KERNEL.finditer(text):
        blocks = LIBRARY.findall(text[: kernel.start()])
        found.add(functional(f"{blocks[-1] if blocks else 'aten'}::{kernel[1]}"))
    return found


def homes(root: Path) -> dict[str, set[str]]:
    """The files of csrc/ that name an operator, by its name."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((root / "csrc").rglob("*")):
        if path.suffix in {".h", ".cpp"}:
            for name in names(path.read_text()):
                found[name].add(str(path.relative_to(root)))
    return found


def types(root: Path, known: set[str]) -> dict[str, set[str]]:
    """The files that name an operator by PyTorch's type of it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((root / "csrc").rglob("*")):
        if path.suffix not in {".h", ".cpp"}:
            continue
        for name in TYPE.findall(COMMENT.sub("", path.read_text())):
            parts = name.split("_")
            prefixes = ("aten::" + "_".join(parts[:n]) for n in range(len(parts), 0, -1))
            match = next((p for p in prefixes if functional(p) in known), None)
            if match:
                found[functional(match)].add(str(path.relative_to(root)))
    return found


def violations(root: Path) -> list[str]:
    all_homes = homes(root)
    for name, files in types(root, set(all_homes)).items():
        all_homes[name] |= files
    return [
        f"{name}: named in {', '.join(sorted(files))}. Say what is known of it in one of them."
        for name, files in sorted(all_homes.items())
        if len(files) > 1
    ]


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    found = violations(root)
    for line in found:
        print(line)
    if not found:
        print(f"check_operators: {len(homes(root))} operators, each in one file")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
