"""torch_xla/_XLAC.pyi tells the types of the bindings as they are built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "extension_stub.py"


def test_the_stub_is_that_of_the_bindings():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 0, (
        f"The bindings have changed. Pin their types: {SCRIPT.name} --pin\n{done.stdout}"
        f"{done.stderr}"
    )
