"""Reductions, norms, variances and softmax against PyTorch's CPU results."""

import itertools
import math

import pytest
import torch

from .harness import DEVICE, Batch, nothing_on_the_host

inf, nan = math.inf, math.nan
FLOATS = (torch.float32, torch.bfloat16, torch.float64)
X = torch.arange(60).remainder(17).sub(7.5).div(4).reshape(3, 4, 5)
ROWS = torch.tensor([[1.0, nan, 3.0], [inf, 2.0, inf], [-inf, -inf, -inf], [5.0, 5.0, -1.0]])

# name -> (function of (x, dims, keepdim), whether it takes several dimensions)
OVER_DIMS = {
    "sum": (lambda x, d, k: x.sum(d, k), True),
    "mean": (lambda x, d, k: x.mean(d, k), True),
    "nansum": (lambda x, d, k: x.nansum(d, k), True),
    "amax": (lambda x, d, k: x.amax(d, k), True),
    "amin": (lambda x, d, k: x.amin(d, k), True),
    "var": (lambda x, d, k: x.var(d, keepdim=k), True),
    "std": (lambda x, d, k: x.std(d, keepdim=k), True),
    "var of the population": (lambda x, d, k: x.var(d, correction=0, keepdim=k), True),
    "var with correction 2.5": (lambda x, d, k: x.var(d, correction=2.5, keepdim=k), True),
    "var_mean": (lambda x, d, k: torch.var_mean(x, d, keepdim=k), True),
    "std_mean": (lambda x, d, k: torch.std_mean(x, d, keepdim=k), True),
    "logsumexp": (lambda x, d, k: torch.logsumexp(x, d, k), True),
    "norm 2": (lambda x, d, k: torch.linalg.vector_norm(x, 2, d, k), True),
    "norm 1": (lambda x, d, k: torch.linalg.vector_norm(x, 1, d, k), True),
    "norm 0": (lambda x, d, k: torch.linalg.vector_norm(x, 0, d, k).detach(), True),
    "norm inf": (lambda x, d, k: torch.linalg.vector_norm(x, inf, d, k), True),
    "norm -inf": (lambda x, d, k: torch.linalg.vector_norm(x, -inf, d, k), True),
    "norm 3": (lambda x, d, k: torch.linalg.vector_norm(x, 3, d, k), True),
    "all": (lambda x, d, k: torch.all(x.detach() > 0, d, k), True),
    "any": (lambda x, d, k: torch.any(x.detach() > 1.9, d, k), True),
    "count_nonzero": (lambda x, d, k: torch.count_nonzero(x.detach() > 0, d), True),
    "prod": (lambda x, d, k: x.prod(d, k), False),
    "max": (lambda x, d, k: x.max(d, k), False),
    "min": (lambda x, d, k: x.min(d, k), False),
    "argmax": (lambda x, d, k: x.detach().argmax(d, k), False),
    "argmin": (lambda x, d, k: x.detach().argmin(d, k), False),
    "aminmax": (lambda x, d, k: torch.aminmax(x, dim=d, keepdim=k), False),
}


@pytest.mark.parametrize("name", OVER_DIMS)
def test_over_dimensions(name):
    fn, several = OVER_DIMS[name]
    with nothing_on_the_host(), Batch() as batch:
        for dtype in FLOATS:
            batch.add(lambda x: fn(x, 1, False), X, label=f"dim 1 {dtype}", dtype=dtype)
        batch.add(lambda x: fn(x, -1, True), X, label="dim -1, kept")
        batch.add(lambda x: fn(x, 0, False), X.permute(2, 0, 1), label="strided")
        batch.add(lambda x: fn(x, 0, True), X[0, 0, 1], label="0-dim")
        if several:
            batch.add(lambda x: fn(x, (0, 2), True), X, label="dims 0 and 2, kept")
            batch.add(lambda x: fn(x, (-1, 0, 1), False), X, label="every dim")


OF_ALL = {
    "sum": torch.sum,
    "mean": torch.mean,
    "nansum": torch.nansum,
    "prod": torch.prod,
    "max": torch.max,
    "min": torch.min,
    "amax": torch.amax,
    "var": torch.var,
    "std": torch.std,
    "norm": torch.norm,
    "norm 1": lambda x: torch.norm(x, 1),
    "norm 3 of Tensor.norm": lambda x: x.norm(3),
    "norm with a dtype": lambda x: torch.norm(x, 2, dtype=torch.float64),
    "norm along": lambda x: torch.norm(x, 2.5, 0),
    "nuclear way": lambda x: torch.linalg.norm(x.reshape(-1)),
    "argmax": lambda x: x.detach().argmax(),
    "argmin": lambda x: x.detach().argmin(),
    "aminmax": torch.aminmax,
    "all": lambda x: torch.all(x.detach()),
    "any": lambda x: torch.any(x.detach()),
    "count_nonzero": lambda x: torch.count_nonzero(x.detach()),
    "sum to float64": lambda x: x.sum(dtype=torch.float64),
    "mean to float64": lambda x: x.mean(dtype=torch.float64),
    "dist": lambda x: torch.dist(x, x * 0.5 + 1),
    "cosine similarity": lambda x: torch.cosine_similarity(x, x.cos() + 1, 0),
}


@pytest.mark.parametrize("name", OF_ALL)
def test_of_all(name):
    with nothing_on_the_host(), Batch() as batch:
        for dtype in FLOATS:
            # Many bf16 steps, between numbers of up to 1: one rounding may differ.
            one_rounding = name == "cosine similarity" and dtype is torch.bfloat16
            atol, rtol = (4e-3, 1.6e-2) if one_rounding else (None, None)
            batch.add(OF_ALL[name], X + 0.1, label=str(dtype), dtype=dtype, atol=atol, rtol=rtol)
        batch.add(OF_ALL[name], X[0, :2], label="two rows")


ODD_ROWS = {
    "sum": lambda x: x.sum(1),
    "nansum": lambda x: x.nansum(1),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(1),
    "max": lambda x: x.max(1),
    "min": lambda x: x.min(1),
    "argmax": lambda x: x.argmax(1),
    "argmin of all": lambda x: x.argmin(),
    "logsumexp": lambda x: x.logsumexp(1),
    "softmax": lambda x: x.softmax(1),
    "safe softmax": lambda x: torch.ops.aten._safe_softmax(x, 1),
    "log_softmax": lambda x: x.log_softmax(1),
    "norm": lambda x: x.norm(dim=1),
    "norm inf": lambda x: x.norm(inf, 1),
    "var": lambda x: x.var(1),
    "any": lambda x: x.any(1),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
}


@pytest.mark.parametrize("mask_type", [0, 1, 2, None])
@pytest.mark.parametrize("dim", [3, None])
def test_masked_softmax(mask_type, dim):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 3, 4, 4, generator=generator)
    shape = {0: (4, 4), 1: (2, 4)}.get(mask_type, x.shape)
    mask = torch.rand(shape, generator=generator) < 0.4
    mask[..., 0] = False  # of a row without elements the CPU makes nan or 0, by its vectors' width

    def softmax(x):
        return torch._masked_softmax(x, mask.to(x.device), dim, mask_type)

    wide = torch.randn(x.shape, generator=generator)
    with nothing_on_the_host(), Batch() as batch:
        batch.add(softmax, x, grad=False)
        if mask_type not in (0, 1):  # PyTorch's gradient takes a mask for each element
            batch.add(lambda x: softmax(x) * wide.to(x.device), x, label="gradient")


@pytest.mark.parametrize("name", ODD_ROWS)
def test_nan_and_infinity(name):
    with nothing_on_the_host(), Batch() as batch:
        batch.add(ODD_ROWS[name], ROWS, grad=False)
        batch.add(ODD_ROWS[name], ROWS, grad=False, dtype=torch.bfloat16, label="bfloat16")


def test_integers():
    table = {
        "sum": lambda x: (x.sum(), x.sum(0), x.sum(0, dtype=torch.int32)),
        "prod": lambda x: (x.prod(), x.prod(1, True)),
        "mean": lambda x: x.mean(0, dtype=torch.float32),
        "max": lambda x: (x.max(), x.max(0), x.amax((0, 1)), x.aminmax()),
        "min": lambda x: (x.min(), x.min(1, True), x.amin(0)),
        "argmax, argmin": lambda x: (x.argmax(1), x.argmin(), x.argmin(0, True)),
        "all, any": lambda x: (x.all(), x.any(0), x.all(1, True)),
        "count_nonzero": lambda x: torch.count_nonzero(x, 1),
        "nansum": lambda x: x.nansum(),
    }
    x = torch.tensor([[1, 2, 3, 0], [7, 7, 5, 1]])
    with nothing_on_the_host(), Batch() as batch:
        for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool):
            for name, fn in table.items():
                if dtype is torch.bool and name in ("nansum", "argmax, argmin"):
                    continue
                batch.add(fn, x.to(dtype), label=f"{name} {dtype}")


def test_dimensions_of_size_0():
    with nothing_on_the_host(), Batch() as batch:
        x = torch.empty(0, 3)
        batch.add(lambda x: (x.sum(), x.sum(0), x.sum(1), x.prod(), x.prod(0)), x)
        batch.add(lambda x: (x.mean(), x.mean(0), x.mean(1)), x, label="mean")
        batch.add(lambda x: (x.all(), x.any(), x.all(0), x.any(1)), x, label="logic")
        batch.add(lambda x: (x.amax(1), x.amin(1), x.argmax(1), x.max(1)), x, label="extremes")
        batch.add(lambda x: (x.norm(), x.logsumexp(0)), x, label="norm", grad=False)
        batch.add(lambda x: x.softmax(1), x, label="softmax")
        batch.add(lambda x: (x.var(), x.std(1)), x, label="var", grad=False)
        batch.add(lambda x: x.all(()), torch.tensor([[True, False]]), label="no dimensions")


def test_the_first_of_equals_is_found():
    x = torch.tensor([[2, 5, 5, 1], [3, 3, 3, 3], [0, 0, 9, 9]])
    with Batch() as batch:
        batch.add(lambda x: (x.max(1), x.min(1)), x > 2, label="torch.bool")
        for dtype in (torch.int64, torch.float32, torch.bfloat16):
            batch.add(lambda x: (x.max(1), x.argmax(1), x.min(1), x.argmin(0)), x.to(dtype),
                      label=str(dtype), grad=False)  # fmt: skip


@pytest.mark.parametrize("fn", [torch.argmax, torch.argmin])
def test_positions_among_booleans_are_refused(fn):
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError, match="does not support bool input"):
            fn(torch.tensor([True, False], device=device))


SELECTING = {"max": torch.max, "min": torch.min, "median": torch.median, "nan": torch.nanmedian}


@pytest.mark.parametrize("name", SELECTING)
def test_gradients_are_shared_by_equals(name):
    def twice(x):
        (grad,) = torch.autograd.grad(SELECTING[name](x) ** 2, x, create_graph=True)
        return grad

    with nothing_on_the_host(), Batch() as batch:
        for x in ([3.0, 1, 3, 1, 2], [2.0] * 5, [1.0, nan, 2, nan, 3], [nan, nan, nan], [7.0]):
            batch.add(SELECTING[name], torch.tensor(x), label=f"{x}")
        batch.add(SELECTING[name], torch.tensor([[1.0, 5], [5, 1]]), label="two dimensions")
        batch.add(SELECTING[name], torch.tensor(2.5), label="0-dim")
        batch.add(twice, torch.tensor([3.0, 1, 3, 1, 2]), label="twice")


ZEROS = torch.tensor(
    [[2.0, 0, 3, -1], [0, 0, 5, 2], [0, 1, 0, 4], [1, 2, 3, 0], [0, 0, 0, 0], [2, 3, 4, 5]]
)


def test_gradients_of_products_with_zeros():
    def twice(x):
        (grad,) = torch.autograd.grad(x.prod(1).pow(2).sum(), x, create_graph=True)
        return grad

    with nothing_on_the_host(), Batch() as batch:
        for dim in (0, 1, -1):
            batch.add(lambda x, dim=dim: x.prod(dim), ZEROS, label=f"dim {dim}")
        batch.add(lambda x: (x[1].prod(), x[3].prod(), x[5].prod()), ZEROS, label="of all")
        batch.add(lambda x: x.prod(1, True), torch.complex(ZEROS, ZEROS * 2), label="complex")
        batch.add(lambda x: x.prod(1, dtype=torch.float64), ZEROS, label="to float64")
        batch.add(lambda x: x.prod(), torch.tensor(0.0), label="0-dim")
        batch.add(twice, ZEROS, label="twice")
        batch.add(lambda x: twice(x[:, :3]), ZEROS, label="twice, an odd number")


def test_complex():
    z = torch.complex(X, X.flip(0) * 0.5)
    with nothing_on_the_host(), Batch() as batch:
        batch.add(lambda z: (z.sum(), z.sum(1), z.mean((0, 2))), z)
        batch.add(lambda z: (z.prod(), z.prod(1)), z[0, :2], label="prod")
        batch.add(lambda z: (torch.linalg.vector_norm(z), z.abs().sum()), z, label="norm")
        batch.add(lambda z: torch.linalg.vector_norm(z, 3, 1), z, label="norm 3")
        batch.add(lambda z: (z.var(), z.std(1)), z, label="var", grad=False)
        batch.add(lambda z: torch.var_mean(z, 1), z, label="var_mean", grad=False)
        batch.add(lambda z: (z.all(), z.any(1), torch.count_nonzero(z)), z, label="logic")


def test_complex_numbers_without_those_that_are_none():
    """The CPU has no nansum of complex numbers; CUDA leaves out what is nan in either part."""
    z = torch.tensor([1 + 2j, complex(float("nan"), 3), complex(2, float("nan")), -3 + 1j])
    x = z.to("xla").requires_grad_()
    assert x.nansum().item() == -2 + 3j
    assert x.nanmean().item() == -1 + 1.5j
    x.nansum().real.backward()
    assert x.grad.tolist() == [1, 0, 0, 1]


SOFTMAX = {
    "softmax": lambda x, d: x.softmax(d),
    "log_softmax": lambda x, d: x.log_softmax(d),
    "softmin": lambda x, d: torch.nn.functional.softmin(x, d),
    "softmax to float64": lambda x, d: x.softmax(d, dtype=torch.float64),
    "log_softmax to float32": lambda x, d: x.log_softmax(d, dtype=torch.float32),
    "safe softmax": lambda x, d: torch.ops.aten._safe_softmax(x, d),
}


@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax(name):
    fn = SOFTMAX[name]
    with nothing_on_the_host(), Batch() as batch:
        for dtype in FLOATS:
            atol = 4e-3 if dtype is torch.bfloat16 else None
            rtol = 1.6e-2 if dtype is torch.bfloat16 else None
            batch.add(lambda x: fn(x, 1), X, label=str(dtype), dtype=dtype, atol=atol, rtol=rtol)
        batch.add(lambda x: fn(x, -1), X, label="dim -1")
        batch.add(lambda x: fn(x, 0), X.permute(2, 0, 1), label="strided")
        batch.add(lambda x: fn(x, 0), X[0, 0, 1], label="0-dim")
        batch.add(lambda x: fn(x, -1), X * 1000, label="large")


def test_a_long_sum_is_exact_enough():
    x = torch.full((1_000_003,), 0.1)
    with Batch() as batch:
        batch.add(torch.sum, x, grad=False)
        batch.add(torch.mean, x, grad=False)
        batch.add(lambda x: x.reshape(1, -1).var(1), x + torch.arange(x.numel()) % 2, grad=False)


@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("statistic", [torch.var, torch.std])
def test_spread_around_a_large_mean(statistic, dim):
    """What the mean has lost to rounding is no part of it."""
    x = (torch.arange(1000.0) % 7 + 1e6).view(50, 20)
    found = statistic(x.to("xla"), dim=dim).cpu()
    torch.testing.assert_close(found, statistic(x.double(), dim=dim).float(), rtol=1e-5, atol=0)
    _, mean = torch.var_mean(x.to("xla"), dim=dim)
    torch.testing.assert_close(mean.cpu(), x.double().mean(dim=dim).float(), rtol=1e-7, atol=0)
    z = torch.complex(x, -x)
    found = statistic(z.to("xla"), dim=dim).cpu()
    torch.testing.assert_close(
        found, statistic(z.to(torch.complex128), dim=dim).float(), rtol=1e-5, atol=0
    )


def test_spread_of_equal_elements_is_never_negative():
    for shape, value in itertools.product([(3, 1), (3,), (7,), (5, 3), (1000,)], [1.5, 0.1, 3e6]):
        x = torch.full(shape, value)
        for spread in (torch.var, torch.std):
            got = spread(x.to("xla").clone(), 0).cpu()
            assert (got >= 0).all(), (shape, value, got)
            torch.testing.assert_close(got, spread(x, 0), rtol=0, atol=1e-6 * value)
    with_nan = torch.tensor([1.0, float("nan"), 2.0])
    assert with_nan.to("xla").var().cpu().isnan() and with_nan.to("xla").std().cpu().isnan()
