"""What differs between xla and the CPU in PyTorch's operator database, and why."""

from __future__ import annotations

from typing import Any

import pytest
import torch

# Host work that is no fallback: a number is read because the operator's own code asks for it.
READS = {"aten::_local_scalar_dense"}

# Operators of an entry that run on the host: no program can hold them.
ON_THE_HOST = {
    "geqrf": {"aten::geqrf"},
}

MANY_STEPS = "many steps, each of which rounds; the devices round at others"

# entry -> {dtype: (rtol, atol, reason)}, where assert_close's own tolerances are too narrow.
TOLERANCES: dict[str, dict[torch.dtype, tuple[float, float, str]]] = {
    "nn.functional.cosine_similarity": {torch.bfloat16: (5e-2, 2e-3, MANY_STEPS)},
    "nn.functional.linear_cross_entropy.chunked_none": {torch.bfloat16: (5e-2, 2e-3, MANY_STEPS)},
    "fft.hfft2": {torch.float32: (1e-4, 3e-5, "sums of 360 elements of both signs")},
}

# (entry, check) -> (dtypes or None for all, reason): known to be wrong.
WRONG: dict[tuple[str, str], tuple[set[torch.dtype] | None, str]] = {}


def tolerances(name: str, dtype: torch.dtype) -> dict[str, Any]:
    found = TOLERANCES.get(name, {}).get(dtype)
    return {} if found is None else {"rtol": found[0], "atol": found[1]}


def marks(name: str, check: str, dtype: torch.dtype | None) -> list[pytest.MarkDecorator]:
    if (name, check) not in WRONG:
        return []
    dtypes, reason = WRONG[name, check]
    if dtypes is not None and dtype not in dtypes:
        return []
    return [pytest.mark.xfail(reason=reason, strict=True)]
