"""Tests of what is known not to work yet: tests/known_failures.txt names them, one to a line.

They still run and are reported as expected failures; a line that begins with `crash` is not run,
because it would end the process. Lines go as things are mended.
"""

from pathlib import Path

import pytest

LIST = Path(__file__).with_name("known_failures.txt")


def pytest_collection_modifyitems(items):
    known, crashing = set(), set()
    for line in LIST.read_text().splitlines():
        if line.startswith("crash "):
            crashing.add(line.removeprefix("crash "))
        elif line and not line.startswith("#"):
            known.add(line)
    for item in items:
        name = item.nodeid if item.nodeid.startswith("tests/") else f"tests/{item.nodeid}"
        if name in crashing or name.split("[")[0] in crashing:
            item.add_marker(pytest.mark.skip(reason="ends the process; see known_failures.txt"))
        elif name in known:
            item.add_marker(pytest.mark.xfail(reason="see known_failures.txt", strict=False))
