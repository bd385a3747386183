"""The types of the extension: torch_xla/_XLAC.pyi, which pybind11-stubgen makes of the bindings.

    python scripts/extension_stub.py          # how the file differs from the bindings: status 1
    python scripts/extension_stub.py --pin    # writes the file

The extension is imported without the package, which would add names of earlier versions to it.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import torch  # noqa: F401  the extension needs its libraries

ROOT = Path(__file__).resolve().parent.parent
STUB = ROOT / "torch_xla" / "_XLAC.pyi"
_HEAD = "# Made by scripts/extension_stub.py --pin of the bindings in csrc/python. Do not edit.\n"
_SIMPLER = (
    # Any number with __int__ or __index__ will do, but nobody should pass others than these.
    ("typing.SupportsInt | typing.SupportsIndex", "int"),
    ("typing.SupportsFloat | typing.SupportsIndex", "float"),
)


def generated() -> str:
    """The stub that belongs to the extension as it is built."""
    from pybind11_stubgen import main

    package = ModuleType("torch_xla")
    package.__path__ = [str(ROOT / "torch_xla")]
    sys.modules["torch_xla"] = package
    importlib.import_module("torch_xla._XLAC")
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--exit-code", "--enum-class-locations=_StepPart:torch_xla._XLAC"]
        main(["torch_xla._XLAC", "-o", folder, *arguments])
        text = (Path(folder) / "torch_xla" / "_XLAC.pyi").read_text()
    for long, short in _SIMPLER:
        text = text.replace(long, short)
    text = re.sub(r"(: _?[A-Z]\w+) = None\b", r"\1 | None = None", text)
    # Of another class a comparison gives NotImplemented.
    text = re.sub(r"(def __(?:eq|ne)__\(self, \w+: )[\w.]+", r"\1object", text)
    for command in (["check", "--fix", "--quiet", "--exit-zero"], ["format", "--quiet"]):
        text = _ruff(command, text)
    return _HEAD + text


def _ruff(command: list[str], text: str) -> str:
    ruff = Path(sys.executable).parent / "ruff"
    done = subprocess.run(
        [ruff, *command, "--stdin-filename", STUB, "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pin", action="store_true", help="write the file")
    made = generated()
    if parser.parse_args().pin:
        STUB.write_text(made)
        return 0
    kept = STUB.read_text() if STUB.exists() else ""
    names = ("torch_xla/_XLAC.pyi", "the bindings")
    sys.stdout.writelines(
        difflib.unified_diff(kept.splitlines(True), made.splitlines(True), *names)
    )
    return 0 if made == kept else 1


if __name__ == "__main__":
    sys.exit(main())
