"""The sanitizers are at work: the extension is the instrumented one, and faults made on purpose are
reported. Runs under scripts/sanitized.sh alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

if "TORCH_XLA_TEST_EXTENSION" not in os.environ:
    pytest.skip("not under scripts/sanitized.sh", allow_module_level=True)

from torch_xla import _XLAC

EXTENSION = Path(os.environ["TORCH_XLA_TEST_EXTENSION"])
KIND = EXTENSION.parent.name
OPTIONS = {name: value for name, value in os.environ.items() if name.endswith("SAN_OPTIONS")}

REPORTS = {
    "address-undefined": {
        "use_after_free": "AddressSanitizer: heap-use-after-free",
        "heap_overflow": "AddressSanitizer: heap-buffer-overflow",
        "signed_overflow": "runtime error: signed integer overflow",
    },
    "thread": {"data_race": "ThreadSanitizer: data race"},
}[KIND]


def test_the_extension_is_instrumented():
    assert Path(_XLAC.__file__) == EXTENSION
    begin = {"address-undefined": b"__asan_init", "thread": b"__tsan_init"}[KIND]
    assert begin in EXTENSION.read_bytes()


@pytest.mark.parametrize("fault", REPORTS)
def test_fault_is_reported(run_python, fault):
    done = run_python(
        f"""
        import ctypes
        import torch_xla
        ctypes.CDLL({str(EXTENSION.parent / "planted_faults.so")!r}).{fault}()
        print("went on")
        """,
        # In place of the file that fails the run.
        env={name: f"{value}:log_path=stderr" for name, value in OPTIONS.items()},
        check=False,
    )
    assert done.returncode != 0
    assert REPORTS[fault] in done.stderr
    assert fault in done.stderr, "the stack names the function"
    assert "went on" not in done.stdout
