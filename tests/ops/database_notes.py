"""What differs between xla and the CPU in PyTorch's operator database, and why."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .harness import HAS_BFLOAT16

# Host work that is no fallback: a number is read because the operator's own code asks for it, or
# because the result is as long as the data says.
READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2"}
READS |= {"aten::unique_dim", "aten::unique_consecutive", "aten::unique_dim_consecutive"}

MANY_STEPS = "many steps, each of which rounds; the devices round at others"
LONG_SUMS = "sums of hundreds of elements of both signs"
LARGE_SCORES = "scores in the hundreds, whose last digits softmax magnifies; the CPU is off by 2e-5"
SMALL_DIFFERENCE = "a small difference of larger numbers, each of which is rounded"
NARROW_INSIDE = "orthogonalizes in bfloat16, whatever the dtype of the parameters"
FLOAT32_INSIDE = "counts steps, and takes powers of numbers by them, in float32"
SEARCH = "a search that ends where the loss no longer falls much"
LARGE_LOGARITHMS = "samples of 10000, beside which a logarithm has three digits left"
NEAR_A_POLE = "near a pole, which magnifies the last digit of a result"
MAGNIFIED = "random factors for reflections, which then magnify what was rounded before"
COMPLEX_POWER = "XLA's complex power is exp(y log x), to a few units in the last place"

# Muon multiplies in bfloat16. Without instructions for it the CPU adds up in another order: then
# both devices are as far from the truth.
NARROW_PRODUCTS = (1e-2, 2e-3) if HAS_BFLOAT16 else (5e-2, 8e-3)

# entry -> {dtype: (rtol, atol, reason)}, where assert_close's own tolerances are too narrow for its
# results; (entry, "gradient") -> ..., where they are for its gradients. Optimizers and modules have
# one for all that is compared of them.
TOLERANCES: dict[str | tuple[str, str], dict[torch.dtype, tuple[float, float, str]]] = {
    "nn.functional.bilinear": {
        torch.bfloat16: (3e-2, 5e-3, MANY_STEPS),
        torch.float16: (3e-3, 5e-4, MANY_STEPS),
    },
    "nn.functional.embedding_bag": {torch.float16: (2e-2, 1e-3, MANY_STEPS)},
    "nn.functional.multi_head_attention_forward": {torch.float32: (1e-4, 1e-4, LARGE_SCORES)},
    "_refs.nn.functional.hinge_embedding_loss": {torch.bfloat16: (7e-2, 1e-3, LONG_SUMS)},
    "nn.functional.cosine_similarity": {torch.bfloat16: (5e-2, 2e-3, MANY_STEPS)},
    "nn.functional.linear_cross_entropy.chunked": {
        torch.bfloat16: (5e-2, 1e-2, SMALL_DIFFERENCE),
        torch.float16: (5e-3, 1e-3, SMALL_DIFFERENCE),
    },
    "nn.functional.linear_cross_entropy.chunked_none": {
        torch.bfloat16: (5e-2, 1e-2, SMALL_DIFFERENCE),
        torch.float16: (5e-3, 5e-4, MANY_STEPS),
    },
    "nn.functional.scaled_dot_product_attention": {torch.float16: (5e-3, 1e-3, MANY_STEPS)},
    "log1p": {torch.float16: (2e-3, 1e-5, "one unit in the last place")},
    "fft.hfft2": {
        torch.float32: (1e-4, 3e-5, LONG_SUMS),
        torch.complex64: (1e-4, 3e-5, LONG_SUMS),
    },
    "Muon": {
        torch.float32: (*NARROW_PRODUCTS, NARROW_INSIDE),
        torch.float64: (*NARROW_PRODUCTS, NARROW_INSIDE),
        torch.float16: (3e-3, 2e-4, MANY_STEPS),
    },
    **{name: {torch.float16: (3e-3, 2e-4, MANY_STEPS)} for name in ("Adam", "AdamW", "RMSprop")},
    **{
        name: {
            torch.bfloat16: (2e-2, 4e-3, MANY_STEPS),
            torch.float16: (3e-3, 2e-4, MANY_STEPS),
        }
        for name in ("Adamax", "NAdam", "SGD")
    },
    "RAdam": {
        torch.bfloat16: (1e-1, 3e-2, SMALL_DIFFERENCE),
        torch.float16: (3e-3, 2e-4, MANY_STEPS),
    },
    "nn.RNN": {torch.bfloat16: (8e-2, 3e-3, SMALL_DIFFERENCE)},
    "nn.RNNCell": {torch.bfloat16: (8e-2, 3e-3, SMALL_DIFFERENCE)},
    "nn.CrossEntropyLoss": {torch.bfloat16: (7e-2, 1e-2, LONG_SUMS)},
    "Adam.capturable": {torch.float64: (1e-6, 1e-6, FLOAT32_INSIDE)},
    "AdamW.capturable": {torch.float64: (1e-6, 1e-6, FLOAT32_INSIDE)},
    "Adam.fused": {torch.float64: (1e-6, 1e-6, FLOAT32_INSIDE)},
    "AdamW.fused": {torch.float64: (1e-6, 1e-6, FLOAT32_INSIDE)},
    "_foreach_mm": {torch.complex64: (1e-5, 1e-4, LONG_SUMS)},
    "LBFGS": {torch.float32: (1e-3, 1e-3, SEARCH)},
    ("logcumsumexp", "gradient"): {
        torch.float32: (2e-3, 2e-3, LARGE_LOGARITHMS),
        torch.complex64: (2e-3, 2e-3, LARGE_LOGARITHMS),
    },
    ("nn.functional.linear_cross_entropy.chunked_none", "gradient"): {
        torch.bfloat16: (5e-2, 4e-3, SMALL_DIFFERENCE),
        torch.float16: (5e-3, 1e-3, SMALL_DIFFERENCE),
    },
    ("nn.functional.scaled_dot_product_attention", "gradient"): {
        torch.float32: (5e-5, 5e-5, LARGE_SCORES),
    },
    ("ldexp", "gradient"): {torch.float32: (1e-5, 2e-4, LONG_SUMS)},
    ("nn.functional.linear_cross_entropy.chunked", "gradient"): {
        torch.bfloat16: (5e-2, 4e-3, SMALL_DIFFERENCE),
        torch.float16: (5e-3, 1e-3, SMALL_DIFFERENCE),
    },
    ("nn.functional.ctc_loss", "gradient"): {torch.float32: (1e-4, 1e-4, MANY_STEPS)},
    ("erfinv", "gradient"): {torch.float32: (1e-5, 1e-5, NEAR_A_POLE)},
    ("asin", "gradient"): {torch.float16: (2e-3, 1e-5, NEAR_A_POLE)},
    ("corrcoef", "gradient"): {torch.float16: (1e-3, 2e-3, SMALL_DIFFERENCE)},
    ("grid_sampler_2d", "gradient"): {torch.float32: (1e-5, 1e-4, SMALL_DIFFERENCE)},
    ("grid_sampler_3d", "gradient"): {torch.float32: (1e-5, 2e-4, SMALL_DIFFERENCE)},
    ("linalg.householder_product", "gradient"): {torch.float32: (2e-5, 1e-4, MAGNIFIED)},
    ("linalg.lstsq", "gradient"): {torch.complex64: (5e-5, 2e-4, SMALL_DIFFERENCE)},
    ("linalg.lstsq.grad_oriented", "gradient"): {torch.complex64: (5e-5, 2e-4, SMALL_DIFFERENCE)},
    "pow": {torch.complex64: (1e-5, 1e-5, COMPLEX_POWER)},
    "__rpow__": {torch.complex64: (1e-5, 1e-5, COMPLEX_POWER)},
}

PART_OF_LARGER = "the CPU's solution is a part of a larger tensor"
# entry -> why its results have other strides than the CPU's. The rest have the same, but for
# gradients, where they are what the last step of PyTorch's formula left.
OWN_STRIDES: dict[str, str] = {
    "linalg.lstsq": PART_OF_LARGER,
    "linalg.lstsq.grad_oriented": PART_OF_LARGER,
}

SINGULAR = "equal or evenly rising rows are singular, but for what was rounded"
# entry, or entry and check -> (ways to make its tensors in the program, reason).
ALIKE = frozenset({"constant", "filled", "expanded"})
WAYS_LEFT_OUT: dict[str | tuple[str, str], tuple[frozenset[str], str]] = {
    **{
        name: (ALIKE, "which of equal elements is taken, each device decides")
        for name in ("sort", "msort", "topk", "kthvalue", "mode", "median", "nanmedian")
        + ("quantile", "nanquantile")
    },
    "native_group_norm": (ALIKE, "the CPU's kernel reads expanded weights past their end"),
    "masked.median": (ALIKE, "the CPU's kernel reads an expanded tensor past its end"),
    "ormqr": (ALIKE, "reflections by one number alone are far from orthogonal"),
    ("linalg.householder_product", "gradient"): (
        frozenset({"filled"}),
        "reflections by one number alone: PyTorch's own float32 is off by up to a third",
    ),
    "linalg.lu_factor": (ALIKE - {"constant"}, SINGULAR),
    "linalg.eig": (ALIKE - {"constant"} | {"counted"}, "equal eigenvalues have no gradient"),
    "linalg.eigvals": (ALIKE - {"constant"} | {"counted"}, "equal eigenvalues have no gradient"),
    "linalg.inv": (ALIKE - {"constant"} | {"counted"}, SINGULAR),
    "linalg.inv_ex": (ALIKE - {"constant"} | {"counted"}, SINGULAR),
    "linalg.cholesky_ex": (ALIKE - {"constant"} | {"counted"}, SINGULAR),
    "linalg.eigh": (ALIKE - {"constant"} | {"counted"}, "equal eigenvalues have no gradient"),
    ("qr", "gradient"): (ALIKE - {"constant"}, SINGULAR),
    ("linalg.qr", "gradient"): (ALIKE - {"constant"}, SINGULAR),
    "linalg.cond": (ALIKE | {"counted"}, SINGULAR),
    "pinverse": (ALIKE - {"constant"} | {"counted"}, SINGULAR),
    "view_copy": (ALIKE | {"with_gaps", "transposed"}, "refused where no view would do"),
}

# What xla says, and the CPU of the same: PyTorch's in-place kernels of lists on Meta tensors are
# written in Python; its mvlgamma_ names the dtypes the wrong way round.
OTHER_WORDS = {
    ("Attempting to cast from", "result type"),
    ("result type", "mvlgamma: result type"),
}

NO_COMPLEX32 = "XLA has no complex32"
NARROW = {torch.bfloat16, torch.float16}
TIES = "thousands of narrow floats, of which many are equal: each device takes its own"
OVERFLOW = "the product overflows; under a dispatch mode, as here, the CPU goes another way"
# (entry, check) -> (dtypes, reason): says nothing.
SKIPPED: dict[tuple[str, str], tuple[set[torch.dtype], str]] = {
    **{(name, "gradient"): (NARROW, TIES) for name in ("sort", "msort", "topk", "mode")},
    ("masked.prod", "gradient"): ({torch.float16}, OVERFLOW),
    ("LBFGS", "default"): (NARROW, SEARCH + ", and rounding decides where"),
}

# (entry, check) -> (dtypes or None for all, reason): known to differ.
WRONG: dict[tuple[str, str], tuple[set[torch.dtype] | None, str]] = {
    ("view_as_complex", "forward"): ({torch.float16}, NO_COMPLEX32),
    ("view_as_complex", "gradient"): ({torch.float16}, NO_COMPLEX32),
    ("complex", "forward"): ({torch.float16}, NO_COMPLEX32),
    ("complex", "gradient"): ({torch.float16}, NO_COMPLEX32),
    ("complex", "out"): ({torch.float16}, NO_COMPLEX32),
}


READS_THE_START = "the start is read, which breaks the graph; FakeTensor reads those of the CPU"
WRAPPER = "the wrapper of its gradient's test is a function that torch.compile itself refuses"
# entry -> (the checks of test_openxla_db.py that fail, reason).
UNCOMPILED: dict[str, tuple[set[str], str]] = {
    "narrow": ({"static", "dynamic", "static gradient"}, READS_THE_START),
    "masked.cumsum": ({"static gradient"}, WRAPPER),
    "masked.cumprod": ({"static gradient"}, WRAPPER),
}


def tolerances(name: str, dtype: torch.dtype, check: str = "forward") -> dict[str, Any]:
    key = (name, check) if check == "gradient" else name
    found = TOLERANCES.get(key, {}).get(dtype)
    return {} if found is None else {"rtol": found[0], "atol": found[1]}


def ways_left_out(name: str, check: str) -> frozenset[str]:
    """The ways to make tensors in the program (operands.py) that say nothing of an entry."""
    none: tuple[frozenset[str], str] = (frozenset(), "")
    return WAYS_LEFT_OUT.get(name, none)[0] | WAYS_LEFT_OUT.get((name, check), none)[0]


def marks(name: str, check: str, dtype: torch.dtype | None) -> list[pytest.MarkDecorator]:
    if (name, check) in SKIPPED and dtype in SKIPPED[name, check][0]:
        return [pytest.mark.skip(reason=SKIPPED[name, check][1])]
    if (name, check) not in WRONG:
        return []
    dtypes, reason = WRONG[name, check]
    if dtypes is not None and dtype not in dtypes:
        return []
    return [pytest.mark.xfail(reason=reason, strict=True)]


def marks_compiled(name: str, check: str) -> list[pytest.MarkDecorator]:
    checks, reason = UNCOMPILED.get(name, (set(), ""))
    return [pytest.mark.xfail(reason=reason, strict=True)] if check in checks else []
