"""Running sums, products and extremes against PyTorch's CPU results."""

import math

import pytest
import torch

from .harness import Batch, nothing_on_the_host

FLOATS = (torch.float32, torch.bfloat16, torch.float64)
SCANS = {
    "cumsum": lambda x, d: x.cumsum(d),
    "cumprod": lambda x, d: x.cumprod(d),
    "cummax": lambda x, d: x.cummax(d),
    "cummin": lambda x, d: x.cummin(d),
    "logcumsumexp": lambda x, d: x.logcumsumexp(d),
}


def values(*shape):
    # Away from 0 and close to 1, so that long products neither vanish nor blow up.
    x = torch.rand(shape, generator=torch.Generator().manual_seed(3)) * 0.2 + 0.9
    return x * (torch.arange(x.numel()).reshape(shape) % 3 - 0.9).sign()


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("length", [1, 2, 7, 32, 33, 100, 700])
def test_along_the_last_dimension(name, length):
    x = values(3, length)
    with nothing_on_the_host(), Batch() as batch:
        batch.add(lambda x: SCANS[name](x, 1), x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SCANS)
def test_dtypes_and_dimensions(name):
    fn = SCANS[name]
    with nothing_on_the_host(), Batch() as batch:
        for dtype in FLOATS:
            batch.add(lambda x: fn(x, 1), values(2, 6, 3), label=str(dtype), dtype=dtype,
                      rtol=2e-2, atol=2e-2)  # fmt: skip
        batch.add(lambda x: fn(x, 0), values(40, 3), label="dim 0")
        batch.add(lambda x: fn(x, -2), values(4, 2, 40).permute(0, 2, 1), label="strided")
        batch.add(lambda x: fn(x, 0), values(1)[0], label="0-dim")
        batch.add(lambda x: fn(x, 1), values(0, 3), label="empty")
        batch.add(lambda x: fn(x, 0), values(0, 3), label="of nothing")


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
def test_integers(name):
    x = torch.tensor([3, 1, -2, 3, 0, 3, 5, -2] * 6)
    with nothing_on_the_host(), Batch() as batch:
        for dtype in (torch.int64, torch.int32, torch.int8, torch.bool):
            batch.add(lambda x: SCANS[name](x, 0), x.to(dtype), label=str(dtype))
        if name in ("cumsum", "cumprod"):
            batch.add(lambda x: getattr(x, name)(0, dtype=torch.float32), x, label="to float32")
            batch.add(lambda x: getattr(x, name)(0, dtype=torch.int16), x, label="to int16")


@pytest.mark.parametrize("name", SCANS)
def test_nan_and_infinity(name):
    inf, nan = math.inf, math.nan
    rows = torch.tensor([[1, 3, nan, 2, 5], [-inf, -inf, 2, inf, 1], [2, 2, 1, 1, 2], [nan] * 5])
    with nothing_on_the_host(), Batch() as batch:
        batch.add(lambda x: SCANS[name](x, 1), rows, grad=False)
        batch.add(lambda x: SCANS[name](x, 1), rows.repeat(1, 9), grad=False, label="blocks")


ZEROS = torch.tensor(
    [[2.0, 0, 3, -1], [0, 0, 5, 2], [0, 1, 0, 4], [1, 2, 3, 0], [0, 0, 0, 0], [2, 3, 4, 5]]
)


def test_gradients_of_running_products_with_zeros():
    def twice(x):
        (grad,) = torch.autograd.grad(x.cumprod(1).pow(2).sum(), x, create_graph=True)
        return grad

    def in_place(x):
        y = x * 1
        y.cumprod_(1)
        return y

    with nothing_on_the_host(), Batch() as batch:
        for dim in (0, 1):
            batch.add(lambda x, dim=dim: x.cumprod(dim), ZEROS, label=f"dim {dim}")
        batch.add(lambda x: x.cumprod(1), torch.complex(ZEROS, ZEROS * 2), label="complex")
        batch.add(lambda x: x.cumprod(1, dtype=torch.float64), ZEROS, label="to float64")
        batch.add(in_place, ZEROS, label="in place")
        batch.add(twice, ZEROS, label="twice")
        batch.add(twice, values(3, 21), label="twice, without a zero", rtol=1e-4, atol=1e-4)


def test_a_long_scan_is_exact():
    x = torch.ones(100_003, dtype=torch.int64)
    with Batch() as batch:
        batch.add(lambda x: x.cumsum(0), x)
        batch.add(lambda x: x.cumsum(0), x.float(), label="floats", grad=False)
        batch.add(lambda x: (x.cumsum(0) * 7 % 1013).cummax(0), x, label="cummax")
