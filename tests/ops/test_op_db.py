"""Every entry of PyTorch's operator database against the CPU, with tensors that are uploaded and
with tensors that are made in the same program (operands.py).

`make test` runs the first samples in a few dtypes, and of the ways to make a tensor two for each
entry, in turn; `make test-all` runs all samples in all dtypes, and all ways. What differs, and why,
is in database_notes.py."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.utils._pytree as pytree

from . import database, database_notes, operands
from .database import ENTRIES

# In `make test`: what is checked of every entry, in which dtypes, and of how many samples.
QUICK = {
    "forward": (torch.float32,),
    "gradient": (torch.float32,),
    "in-place": (torch.float32,),
    "out": (torch.float32,),
}
FEW_SAMPLES = {"forward": 2, "gradient": 1, "in-place": 1, "out": 1}


WAYS = list(operands.IN_PROGRAM)
# Of each entry, for each way to make its tensors.
SAMPLES_OF_A_WAY = 3


def cases(dtypes: dict[str, tuple[torch.dtype, ...]], one_in: dict[str, int] | None = None) -> list:
    """By check, the dtypes that an entry may have; of some checks, one entry in so many."""
    found = []
    for i, (name, entry) in enumerate(ENTRIES.items()):
        for check, wanted in dtypes.items():
            if one_in and i % one_in.get(check, 1) != 0:
                continue
            for dtype in wanted:
                if not database.applies(entry, dtype, check):
                    continue
                marks = database_notes.marks(name, check, dtype)
                label = f"{name}-{check}-{str(dtype).removeprefix('torch.')}"
                found.append(pytest.param(name, check, dtype, marks=marks, id=label))
    return found


def in_turn(name: str, check: str, dtype: torch.dtype) -> dict[str, int]:
    """Two ways of an entry's own, one sample each; in one dtype, others are compiled alike."""
    if check not in ("forward", "gradient") or dtype != torch.float32:
        return {}
    first = list(ENTRIES).index(name) + (check == "gradient")
    return {WAYS[first % len(WAYS)]: 1, WAYS[(first + len(WAYS) // 2) % len(WAYS)]: 1}


def run(name: str, check: str, dtype: torch.dtype, limit: int | None, ways: dict[str, int]) -> None:
    tolerances = database_notes.tolerances(name, dtype, check)
    left_out = database_notes.ways_left_out(name, check)
    ways = {way: few for way, few in ways.items() if way not in left_out}
    strides = name not in database_notes.OWN_STRIDES
    outcome = database.compare(
        ENTRIES[name], dtype, check, limit, in_program=ways, strides=strides, **tolerances
    )
    outcome.check()
    host = {n for n in outcome.host if n not in database_notes.READS}
    assert not host, f"ran on the host: {host}"


# One piece of code serves `out=` of all.
@pytest.mark.parametrize(("name", "check", "dtype"), cases(QUICK, one_in={"out": 4}))
def test_first_samples(name, check, dtype):
    run(name, check, dtype, FEW_SAMPLES[check], in_turn(name, check, dtype))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "check", "dtype"), cases(dict.fromkeys(database.CHECKS, database.DTYPES))
)
def test_all_samples(name, check, dtype):
    run(name, check, dtype, None, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "check", "dtype"),
    cases({"forward": (torch.float32, torch.int64), "gradient": (torch.float32,)}),
)
def test_tensors_made_in_the_program(name, check, dtype):
    if not any(map(database.tensors_of, database.samples(ENTRIES[name], dtype, False))):
        pytest.skip("made of numbers alone")
    run(name, check, dtype, 0, dict.fromkeys(WAYS, SAMPLES_OF_A_WAY))


@pytest.mark.parametrize("name", database_notes.OWN_STRIDES)
def test_strides_that_differ(name):
    ways = {"transposed": 2, "with_gaps": 2}
    outcome = database.compare(ENTRIES[name], torch.float32, "forward", 12, in_program=ways)
    assert any("strides of" in wrong for wrong in outcome.wrong), "these are the CPU's by now"


def is_view(name: str, device: str) -> list[list[bool]]:
    """Of the results of the first samples, which need a gradient where the entry has one."""
    entry = ENTRIES[name]
    samples = database.samples(entry, torch.float32, entry.supports_autograd)
    found = []
    for sample in itertools.islice(samples, FEW_SAMPLES["forward"]):
        results = pytree.tree_leaves(database.Call.of(entry, sample, device).run(entry))
        found.append([t._is_view() for t in results if isinstance(t, torch.Tensor)])
    return found


def test_results_are_views_where_the_cpus_are():
    """A view cannot be detached in place, and what is written to it has another history."""
    names = [n for n, e in ENTRIES.items() if database.applies(e, torch.float32, "forward")]
    views = {name: (is_view(name, "xla"), is_view(name, "cpu")) for name in names}
    assert sum(map(len, itertools.chain(*views.values()))) > 2000
    differ = {name for name, (found, wanted) in views.items() if found != wanted}
    # On the CPU that is the reshaped result of a product of matrices.
    assert differ == {"nn.functional.linear"}


@pytest.mark.parametrize("name", [n for n, e in ENTRIES.items() if e.error_inputs_func is not None])
def test_errors(name, request):
    for mark in database_notes.marks(name, "errors", None):
        request.applymarker(mark)
    outcome = database.compare_errors(ENTRIES[name])
    assert not outcome.wrong, "\n".join(outcome.wrong)
