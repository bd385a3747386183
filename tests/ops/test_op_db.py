"""Every entry of PyTorch's operator database against the CPU.

`make test` runs the first samples in a few dtypes; `make test-all` runs all samples in all dtypes.
What differs, and why, is in database_notes.py."""

from __future__ import annotations

import pytest
import torch

from . import database, database_notes
from .database import ENTRIES

FEW_SAMPLES = 2
# In `make test`: what is checked of every entry, and in which dtypes.
QUICK = {
    "forward": (torch.float32, torch.int64),
    "gradient": (torch.float32,),
    "in-place": (torch.float32,),
    "out": (torch.float32,),
}


def cases(quick: bool) -> list:
    found = []
    for name, entry in ENTRIES.items():
        for check, quick_dtypes in QUICK.items():
            for dtype in database.DTYPES:
                if not database.applies(entry, dtype, check):
                    continue
                if quick and dtype not in quick_dtypes:
                    continue
                marks = database_notes.marks(name, check, dtype)
                label = f"{name}-{check}-{str(dtype).removeprefix('torch.')}"
                found.append(pytest.param(name, check, dtype, marks=marks, id=label))
    return found


def run(name: str, check: str, dtype: torch.dtype, limit: int | None) -> None:
    tolerances = database_notes.tolerances(name, dtype)
    outcome = database.compare(ENTRIES[name], dtype, check, limit, **tolerances)
    assert not outcome.wrong, "\n".join(outcome.wrong)
    host = {n for n in outcome.host if n not in database_notes.READS}
    assert not host, f"ran on the host: {host}"


@pytest.mark.parametrize(("name", "check", "dtype"), cases(quick=True))
def test_first_samples(name, check, dtype):
    run(name, check, dtype, FEW_SAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "check", "dtype"), cases(quick=False))
def test_all_samples(name, check, dtype):
    run(name, check, dtype, None)


@pytest.mark.parametrize("name", [n for n, e in ENTRIES.items() if e.error_inputs_func is not None])
def test_errors(name, request):
    for mark in database_notes.marks(name, "errors", None):
        request.applymarker(mark)
    outcome = database.compare_errors(ENTRIES[name])
    assert not outcome.wrong, "\n".join(outcome.wrong)
