"""Real models train on xla as on the CPU, on the device alone and with two programs."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import torch_xla.runtime as xr

from .__main__ import CASES, rows_of_the_table
from .training import Case, check, check_compiled
from .zoo_transformers import CASES as TRANSFORMERS
from .zoo_vision import CASES as VISION

# `make test` trains an encoder, a decoder, a mixture of experts and a vision model.
QUICK = {"Bert", "Llama", "Mixtral", "ViT"}
QUICK_COMPILED = {"Llama"}


@pytest.fixture(autouse=True)
def _memory() -> Iterator[None]:
    yield
    xr.clear_computation_cache()
    gc.collect()


def parameters(cases: list[Case], quick: set[str] = QUICK) -> list[pytest.param]:
    return [
        pytest.param(case, id=case.name, marks=() if case.name in quick else pytest.mark.slow)
        for case in cases
    ]


@pytest.mark.parametrize("case", parameters(TRANSFORMERS))
def test_transformers(case: Case):
    pytest.importorskip("transformers")
    check(case)


@pytest.mark.parametrize("case", parameters(VISION))
def test_vision(case: Case):
    pytest.importorskip(case.family)
    check(case)


@pytest.mark.parametrize("case", parameters(CASES, QUICK_COMPILED))
def test_under_torch_compile(case: Case):
    pytest.importorskip("transformers" if case in TRANSFORMERS else case.family)
    check_compiled(case)


def test_the_table_lists_each_model():
    assert list(rows_of_the_table()) == [case.name for case in CASES]
