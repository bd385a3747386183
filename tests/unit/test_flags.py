"""The table of environment flags: documented, used, and the only door to the environment."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torch_xla import _XLAC

ROOT = Path(__file__).resolve().parents[2]


def sources(folder: str, *suffixes: str) -> list[Path]:
    return [path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]


def test_table_has_the_flags_users_know():
    table = {flag["name"]: flag for flag in _XLAC._xla_flags()}
    assert table["XLA_SYNC_WAIT"]["type"] == "bool"
    assert table["XLA_COMPILATION_CACHE_SIZE"] == {
        "name": "XLA_COMPILATION_CACHE_SIZE",
        "type": "int",
        "default": "2048",
        "in_cache_key": False,
        "help": table["XLA_COMPILATION_CACHE_SIZE"]["help"],
    }
    assert {"PJRT_DEVICE", "XLA_USE_EAGER_DEBUG_MODE", "XLA_NO_SPECIAL_SCALARS"} <= table.keys()


def test_flag_is_read_from_the_environment_as_it_is_now(monkeypatch):
    monkeypatch.delenv("XLA_SYNC_WAIT", raising=False)
    assert _XLAC._xla_flag("XLA_SYNC_WAIT") is False
    monkeypatch.setenv("XLA_SYNC_WAIT", "1")
    assert _XLAC._xla_flag("XLA_SYNC_WAIT") is True
    monkeypatch.setenv("XLA_COMPILATION_CACHE_SIZE", "7")
    assert _XLAC._xla_flag("XLA_COMPILATION_CACHE_SIZE") == 7
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    assert _XLAC._xla_flag("PJRT_DEVICE") == "TPU"


def test_flags_follow_the_environment(monkeypatch):
    """Whatever is set and unset, on whichever thread, in whatever order."""
    generator = random.Random(0)
    names = ["PJRT_LIBRARY_PATH", "TPU_LIBRARY_PATH", "XLA_SAVE_TENSORS_FILE"]
    others = [f"XLA_TEST_OTHER_{i}" for i in range(5)]
    for name in (*names, *others):
        monkeypatch.setenv(name, "")  # what was there comes back

    def check() -> bool:
        return all(_XLAC._xla_flag(name) == os.environ.get(name, "") for name in names)

    with ThreadPoolExecutor(1) as other_thread:
        for _ in range(500):
            name = generator.choice([*names, *others])
            if generator.random() < 0.3:
                os.environ.pop(name, None)
            else:
                os.environ[name] = "".join(generator.choices("ab", k=generator.randrange(1, 3)))
            assert check()
            assert generator.random() < 0.5 or other_thread.submit(check).result()


def test_bad_values_and_names_are_errors(monkeypatch):
    monkeypatch.setenv("XLA_SYNC_WAIT", "maybe")
    with pytest.raises((ValueError, RuntimeError), match="XLA_SYNC_WAIT: expected 0 or 1.*'maybe'"):
        _XLAC._xla_flag("XLA_SYNC_WAIT")
    with pytest.raises(KeyError, match="XLA_SYNC_WAITS: expected a flag of csrc/util/flags.h"):
        _XLAC._xla_flag("XLA_SYNC_WAITS")


READ_BY_THE_PLUGIN = {"XLA_FLAGS", "LIBTPU_INIT_ARGS"}
# Scripts set it; what it asks for is how numbers are treated in any case.
ALWAYS_SO = {"XLA_NO_SPECIAL_SCALARS"}


def test_flags_are_used():
    paths = [*sources("csrc", ".h", ".cpp"), *sources("torch_xla", ".py")]
    text = "\n".join(path.read_text() for path in paths if path.name != "flags.h")
    unused = {
        name
        for name in (flag["name"] for flag in _XLAC._xla_flags())
        if not re.search(rf"\bflag::{name}\b|_flag\(\"{name}\"\)|Id::{name}\b", text)
    }
    assert unused <= READ_BY_THE_PLUGIN | ALWAYS_SO


def test_document_is_current():
    command = [sys.executable, "scripts/gen_flags_doc.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_cpp_reads_the_environment_only_through_the_table():
    readers = [
        str(path.relative_to(ROOT))
        for path in sources("csrc", ".h", ".cpp")
        if re.search(r"\bgetenv\s*\(", path.read_text())
    ]
    assert readers == ["csrc/util/flags.cpp"]
