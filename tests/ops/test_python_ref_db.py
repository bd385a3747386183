"""PyTorch's Python references (torch._refs) run on xla: programs of many small operators, whose
results are compared with those of the same reference on the CPU.

`make test` runs the first sample in float32; `make test-all` runs all samples in all dtypes."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.common_methods_invocations import python_ref_db

from . import database, database_notes

REFERENCES = database.entries(python_ref_db)


def operator_of(name: str) -> str:
    """What a reference is named for."""
    return name.removeprefix("_refs.").removeprefix("_conversions.")


def run(name: str, dtype: torch.dtype, limit: int | None) -> None:
    notes = [database_notes.tolerances(n, dtype) for n in (operator_of(name), name)]
    tolerances = notes[0] | notes[1]
    outcome = database.compare(REFERENCES[name], dtype, "forward", limit, **tolerances)
    assert not outcome.wrong, "\n".join(outcome.wrong)


def cases(dtypes: tuple[torch.dtype, ...]) -> list:
    found = []
    for name, entry in REFERENCES.items():
        for dtype in dtypes:
            if not database.applies(entry, dtype, "forward"):
                continue
            marks = database_notes.marks(operator_of(name), "forward", dtype)
            label = f"{name}-{str(dtype).removeprefix('torch.')}"
            found.append(pytest.param(name, dtype, marks=marks, id=label))
    return found


@pytest.mark.parametrize(("name", "dtype"), cases((torch.float32,)))
def test_first_sample(name, dtype):
    run(name, dtype, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), cases(database.DTYPES))
def test_all_samples(name, dtype):
    run(name, dtype, None)
