"""Values at the ends of what a call may be given: infinite, nan, none at all."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from .harness import assert_same, check

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeta_of_huge_exponents(dtype):
    exponents = torch.tensor([INF, 1e30, 1e5, 300.0], dtype=dtype)[:, None]
    shifts = torch.tensor([-1.5, -0.5, 0.5, 1.0, 2.0, 3.5, INF, NAN], dtype=dtype)
    check(torch.special.zeta, exponents, shifts, grad=False)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.float32]
)
@pytest.mark.parametrize("median", [torch.median, torch.nanmedian])
def test_median_of_nothing(median, dtype):
    check(median, torch.empty(0, dtype=dtype), grad=False)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_samples_at_no_position(mode, padding):
    image = torch.arange(1.0, 17).view(1, 1, 4, 4)
    places = torch.tensor([NAN, INF, -INF, 1e30, 0.3])
    grid = torch.stack([places, torch.zeros(5)], -1).view(1, 1, 5, 2)
    for at in (grid, grid.flip(-1)):
        expected = F.grid_sample(image, at, mode, padding, align_corners=False)
        found = F.grid_sample(image.to("xla"), at.to("xla"), mode, padding, align_corners=False)
        assert_same(found, expected)


STATISTICS = torch.zeros(3), torch.ones(3)
NORMS = {
    "native": lambda x, m, v, training: torch.native_batch_norm(
        x, None, None, m, v, training, 0.1, 1e-5
    ),
    "legit": lambda x, m, v, training: torch._native_batch_norm_legit(
        x, None, None, m, v, training, 0.1, 1e-5
    ),
    "functional": lambda x, m, v, training: torch.ops.aten._native_batch_norm_legit_functional(
        x, None, None, m, v, training, 0.1, 1e-5
    ),
    "no training": lambda x, m, v, _: torch.ops.aten._native_batch_norm_legit_no_training(
        x, None, None, m, v, 0.1, 1e-5
    ),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_statistics_of_a_batch_norm(norm, training):
    """Empty where none are taken."""
    x = torch.arange(24.0).view(2, 3, 4)
    expected = norm(x, *(t.clone() for t in STATISTICS), training)
    found = norm(x.to("xla"), *(t.to("xla") for t in STATISTICS), training)
    if training:
        assert [t.shape for t in found] == [t.shape for t in expected]
        expected, found = expected[:1], found[:1]
    assert_same(found, expected)
