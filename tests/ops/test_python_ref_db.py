"""PyTorch's Python references (torch._refs) run on xla: programs of many small operators, whose
results are compared with those of the same reference on the CPU.

They are made of operators that test_op_db.py checks, so only `make test-all` runs them."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.testing._internal.common_methods_invocations import python_ref_db

from . import database, database_notes

pytestmark = pytest.mark.slow
REFERENCES = database.entries(python_ref_db)


def operator_of(name: str) -> str:
    """What a reference is named for."""
    return name.removeprefix("_refs.").removeprefix("_conversions.")


def run(name: str, check: str, dtype: torch.dtype) -> None:
    notes = [database_notes.tolerances(n, dtype, check) for n in (operator_of(name), name)]
    strides = operator_of(name) not in database_notes.OWN_STRIDES
    outcome = database.compare(
        REFERENCES[name], dtype, check, None, strides=strides, **(notes[0] | notes[1])
    )
    outcome.check()


def cases(dtypes: tuple[torch.dtype, ...]) -> list:
    found = []
    for name, entry in REFERENCES.items():
        for check, dtype in itertools.product(("forward", "out"), dtypes):
            if not database.applies(entry, dtype, check):
                continue
            marks = database_notes.marks(operator_of(name), check, dtype)
            label = f"{name}-{check}-{str(dtype).removeprefix('torch.')}"
            found.append(pytest.param(name, check, dtype, marks=marks, id=label))
    return found


@pytest.mark.parametrize(("name", "check", "dtype"), cases(database.DTYPES))
def test_all_samples(name, check, dtype):
    run(name, check, dtype)


@pytest.mark.parametrize("name", [n for n, e in REFERENCES.items() if e.error_inputs_func])
def test_errors(name):
    outcome = database.compare_errors(REFERENCES[name])
    assert not outcome.wrong, "\n".join(outcome.wrong)
