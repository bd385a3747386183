"""Every operator over lists of PyTorch's databases against the CPU, with lists, numbers, lists of
numbers and tensors as arguments.

`make test` runs the first samples and their gradients in float32; `make test-all` all of them, the
in-place forms and more dtypes."""

from __future__ import annotations

import itertools

import pytest
import torch

from . import database, database_notes
from .database import FOREACH_ENTRIES

# The operator that each stands for tells which dtypes the CPU has; the databases of lists do not.
ELEMENTS = {entry.name: entry for entry in database.ENTRIES.values()}
SAMPLING = {"num_input_tensors": [3]}
FEW_SAMPLES = 4
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.complex64)


def run(name: str, check: str, dtype: torch.dtype, limit: int | None) -> None:
    tolerances = database_notes.tolerances(name, dtype, check)
    outcome = database.compare(FOREACH_ENTRIES[name], dtype, check, limit, SAMPLING, **tolerances)
    outcome.check()
    assert not outcome.host - database_notes.READS, f"ran on the host: {outcome.host}"


def cases(checks: tuple[str, ...], dtypes: tuple[torch.dtype, ...]) -> list:
    found = []
    for name, entry in FOREACH_ENTRIES.items():
        element = ELEMENTS.get(name.removeprefix("_foreach_"))
        for check, dtype in itertools.product(checks, dtypes):
            if not database.applies(entry, dtype, check):
                continue
            of_elements = "gradient" if check == "gradient" else "forward"
            if element is not None and not database.applies(element, dtype, of_elements):
                continue
            marks = database_notes.marks(name, check, dtype)
            label = f"{name}-{check}-{str(dtype).removeprefix('torch.')}"
            found.append(pytest.param(name, check, dtype, marks=marks, id=label))
    return found


@pytest.mark.parametrize(
    ("name", "check", "dtype"), cases(("forward", "gradient"), (torch.float32,))
)
def test_first_samples(name, check, dtype):
    run(name, check, dtype, FEW_SAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "check", "dtype"), cases(("forward", "gradient", "in-place"), DTYPES)
)
def test_all_samples(name, check, dtype):
    run(name, check, dtype, None)
