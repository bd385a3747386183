"""Sorting, searching and distances: every rule against PyTorch's CPU result."""

import math

import pytest
import torch

from .harness import DEVICE, assert_same, check

FLOATS = (torch.float32, torch.bfloat16, torch.float64)
NAN, INF = math.nan, math.inf


def values(*shape):
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, generator=generator)


def shuffled(*shape):
    """Distinct values that every float dtype holds."""
    n = math.prod(shape)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    return ((order - n // 2) / 4).reshape(shape)


X = shuffled(3, 7, 5)
TIES = torch.tensor([[2.0, 1.0, 2.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 5.0, 5.0, -1.0]])
SPECIAL = torch.tensor([1.0, NAN, -INF, 0.0, -0.0, INF, NAN, -1.0, 1e-40])
INTEGERS = torch.tensor([[5, -3, 2**62, -(2**62), 0, 5], [1, 1, 1, 0, 0, 2]])
DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_sort(dim, descending):
    check(lambda x: x.sort(dim, descending), X, dtypes=FLOATS)
    check(lambda x: x.transpose(0, 2).sort(dim, descending), X)


@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable_and_orders_special_values(descending):
    def fn(x):
        return torch.sort(x, dim=-1, descending=descending, stable=True)

    check(fn, TIES, dtypes=FLOATS, grad=False)
    for dtype in FLOATS:
        check(fn, SPECIAL.to(dtype), grad=False)
    # The sign of a zero survives.
    check(lambda x: torch.signbit(fn(x).values), SPECIAL, grad=False)
    check(fn, INTEGERS)
    for dtype in DTYPES:
        check(fn, INTEGERS[1].to(dtype) * 100)
    check(fn, TIES > 1)
    check(fn, torch.tensor([2**31 - 1, -(2**31), 0, 7], dtype=torch.int32))


def test_sort_of_scalars_and_empty_tensors():
    check(lambda x: x.sort(), torch.tensor(3.0))
    check(lambda x: (x.sort(0), x.sort(1)), torch.empty(0, 3))


def test_argsort_and_msort():
    check(lambda x: (x.argsort(1), x.argsort(0, descending=True), x.msort()), X, grad=False)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("k", "dim"), [(1, 1), (2, 1), (7, 1), (1, 0), (2, -1), (0, 1)])
def test_topk(k, dim, largest):
    check(lambda x: x.topk(k, dim, largest), X, dtypes=FLOATS)
    check(lambda x: x.topk(k, dim, largest), (X * 4).long())
    check(lambda x: x.topk(k, dim, largest), (X * 4).to(torch.int8))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_topk_of_special_values(k, largest):
    # PyTorch leaves open which of several equal elements is taken.
    for dtype in FLOATS:
        check(lambda x: x.topk(k, largest=largest).values, SPECIAL.to(dtype), grad=False)
    check(lambda x: x.topk(1, largest=largest).values, torch.tensor(4.0))


def test_kthvalue():
    check(lambda x: x.kthvalue(3, 1), X, dtypes=FLOATS)
    check(lambda x: x.kthvalue(2, 0, keepdim=True), X)
    check(lambda x: x.kthvalue(2, -1), INTEGERS[:, :5])
    check(lambda x: x.kthvalue(1), torch.tensor(2.0))
    check(lambda x: x.kthvalue(1), torch.tensor(2j), grad=False)


def test_median():
    check(lambda x: x.median(), X, dtypes=FLOATS)
    check(lambda x: x.median(1), X, dtypes=FLOATS)
    check(lambda x: x.median(2, keepdim=True), X)
    check(lambda x: (x.median(), x.median(1).values), INTEGERS)
    check(lambda x: (x.median(), x.nanmedian()), torch.empty(0))
    check(lambda x: (x.median(), x.median(0)), torch.tensor(2.0))


WITH_NAN = torch.tensor([[1.0, NAN, 3.0, NAN, 0.5], [4.0, 2.0, 3.0, 1.0, 0.0], [NAN] * 5])


def test_median_with_nan():
    check(lambda x: (x.median(), x.nanmedian(), x.median(1)), WITH_NAN, grad=False)
    check(lambda x: x.nanmedian(1), WITH_NAN[:2], grad=False)
    check(lambda x: x.nanmedian(1).values, WITH_NAN, grad=False)
    check(lambda x: x.nanmedian(0), WITH_NAN[:2], dtypes=FLOATS, grad=False)


def test_mode():
    check(lambda x: x.mode(1), TIES, dtypes=FLOATS)
    check(lambda x: x.mode(0, keepdim=True), TIES)
    check(lambda x: x.mode(), INTEGERS)
    check(lambda x: x.mode(), torch.tensor(2.0))
    check(lambda x: x.mode(), torch.tensor(2j), grad=False)


SORTED = torch.tensor([-2.0, -1.0, 0.0, 0.0, 3.0])


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(right):
    queries = torch.tensor([[-5.0, -1.0, 0.0], [2.0, 3.0, NAN]])
    for dtype in FLOATS:
        check(
            lambda s, q: torch.searchsorted(s, q, right=right),
            SORTED.to(dtype),
            queries.to(dtype),
            grad=False,
        )
    check(lambda s, q: torch.searchsorted(s, q, right=right), SORTED.long(), queries[0].long())
    check(lambda s: torch.searchsorted(s, 0.0, right=right, out_int32=True), SORTED, grad=False)
    check(lambda s, q: torch.bucketize(q, s, right=right), SORTED, queries, grad=False)
    check(lambda s: torch.bucketize(1, s, right=right), SORTED.long())
    check(
        lambda s, q: torch.searchsorted(s, q, side="right" if right else "left"),
        values(2, 3, 9).sort().values,
        values(2, 3, 4),
        grad=False,
    )
    check(
        lambda s, q, o: torch.searchsorted(s, q, right=right, sorter=o),
        values(2, 9),
        values(2, 4),
        values(2, 9).argsort(),
        grad=False,
    )
    # PyTorch's own steps decide where there is no right answer.
    broken = torch.tensor([1.0, NAN, 0.0, NAN, 5.0, 2.0, NAN])
    check(lambda s, q: torch.searchsorted(s, q, right=right), broken, SPECIAL, grad=False)
    check(lambda s, q: torch.searchsorted(s, q, right=right), SORTED[:0], queries, grad=False)


@pytest.mark.parametrize("n", [0, 3, 100])
def test_isin(n):
    tests = (torch.arange(n) * 3) % 50
    check(lambda x, t: (torch.isin(x, t), torch.isin(x, t, invert=True)), INTEGERS, tests)
    check(lambda x, t: torch.isin(x, t), X, tests / 4, grad=False)
    check(lambda x: torch.isin(x, 1), INTEGERS)
    check(lambda t: torch.isin(3, t), tests)


def test_histc():
    check(lambda x: x.histc(7), X, grad=False)
    check(lambda x: x.histc(10, min=-3, max=2.5), X, grad=False)
    check(lambda x: x.histc(5), torch.full((4,), 2.0), grad=False)


@pytest.mark.parametrize("bins, low, high", [(8, 0, 7), (4, 0, 0), (3, 2, 6)])
def test_histc_of_integers_as_on_cuda(bins, low, high):
    x = torch.randint(0, 8, (50,))
    for dtype in (torch.int32, torch.int64):
        actual = x.to(dtype).to(DEVICE).histc(bins, min=low, max=high)
        assert_same(actual, x.double().histc(bins, min=low, max=high).to(dtype))


# --- distances -------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF])
def test_cdist(p):
    check(lambda a, b: torch.cdist(a, b, p), values(2, 4, 3), values(2, 5, 3))
    check(lambda a, b: torch.cdist(a, b, p), values(2, 1, 4, 3), values(3, 5, 3).double().float())
    check(lambda a: torch.nn.functional.pdist(a, p), values(5, 3))
    # PyTorch has no gradient of a norm of order 0.
    check(lambda a, b: torch.dist(a, b, p), values(5, 3), values(3) / 2, grad=p != 0)


def test_cdist_of_equal_rows_has_no_slope():
    x = values(4, 3)
    check(lambda a, b: torch.cdist(a, b), x, x.clone(), atol=1e-6, rtol=1e-5)
    check(lambda a, b: torch.cdist(a, b), x[:0], x)
    check(lambda a, b: torch.cdist(a, b), x[:, :0], x[:, :0])


def test_large_cdist():
    check(lambda a, b: torch.cdist(a, b), values(40, 8), values(30, 8), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("p", [0.5, 1, 2, INF])
def test_renorm(p):
    check(lambda x: x.renorm(p, 1, 2.0), values(3, 4, 5))


def test_cross():
    check(lambda a, b: torch.linalg.cross(a, b), values(4, 3), values(1, 3))
    check(lambda a, b: torch.cross(a, b, dim=0), (values(3, 4) * 9).long(), values(3, 4).long())
