"""What torch.export can export of whole models, StableHLO programs compute as PyTorch does."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torch_xla.runtime as xr
from torch_xla.stablehlo import exported_program_to_stablehlo

from .training import Case
from .zoo_transformers import CASES
from .zoo_vision import CASES as VISION

# `make test` exports one of each kind.
QUICK = {"Bert", "Llama", "Mamba", "T5", "ViT"}


@pytest.fixture(autouse=True)
def _memory() -> Iterator[None]:
    yield
    xr.clear_computation_cache()
    gc.collect()


class TensorsOf(torch.nn.Module):
    """A model that returns a tuple of tensors, in place of an object that may hold its cache."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch: Any) -> tuple[torch.Tensor, ...]:
        results = self.model(**batch)
        return tuple(v for v in results.values() if isinstance(v, torch.Tensor))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name in QUICK else pytest.mark.slow)
        for case in (*CASES, *VISION)
    ],
)
def test_export(case: Case):
    pytest.importorskip("transformers" if case in CASES else case.family)
    torch.manual_seed(0)
    model, batch = case.build()
    if hasattr(model, "config"):
        model.config.use_cache = False
        model.config._experts_implementation = "batched_mm"  # the other ways read values
    model = TensorsOf(model.eval())
    try:
        ep = torch.export.export(model, (), batch, strict=False)
    except Exception as error:
        pytest.skip(f"torch.export: {type(error).__name__}: {str(error).splitlines()[0]}")
    with torch.no_grad():
        wanted = ep.module()(**batch)
    program = exported_program_to_stablehlo(ep)
    assert "custom_call" not in program.get_stablehlo_text()
    tolerance = 1e-3 if case.dtype == torch.float32 else 5e-2
    torch.testing.assert_close(program(**batch), wanted, rtol=tolerance, atol=tolerance)
