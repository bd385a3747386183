"""Operators whose result is as long as the data says: one number comes back, nothing else."""

from __future__ import annotations

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla.experimental import host_fallback

from .harness import assert_same, check

SHAPES = [(7,), (4, 5), (2, 3, 4), (0, 3), (), (1,)]


@pytest.fixture(autouse=True)
def nothing_on_the_host():
    with host_fallback("error"):
        yield


def sample(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-2, 3, shape, generator=generator).float()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nonzero(shape):
    for x in (sample(*shape), sample(*shape) > 0, sample(*shape).long()):
        check(torch.nonzero, x)
        check(lambda t: torch.nonzero(t, as_tuple=True), x)
        check(torch.argwhere, x)
        check(torch.where, x)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_masks(shape):
    x = torch.randn(shape)
    check(torch.masked_select, x, sample(*shape) > 0)
    check(lambda t, m: t[m], x, sample(*shape) > 0)
    check(lambda t, m: t.masked_select(m), x, torch.tensor(True))


def test_masks_of_some_dimensions():
    x = torch.randn(4, 5, 6)
    mask = sample(4, 5) > 0
    check(lambda t, m: t[m], x, mask)
    check(lambda t, m: t[:, m], x, sample(5, 6) > 0)
    check(lambda t, m: t[1, :, m], x, sample(6) > 0)
    check(torch.masked_select, torch.randn(4, 1), sample(5) > 0)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_unique(shape, inverse):
    x = sample(*shape)
    for kind in (x, x.int(), x > 0, x.double()):
        for counts in (False, True):
            for function in (torch.unique, torch.unique_consecutive):
                check(
                    lambda t, f=function, c=counts: f(t, return_inverse=inverse, return_counts=c),
                    kind,
                    grad=False,
                )


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_unique_slices(dim):
    for x in (sample(40, 2, 3), sample(5, 1, 30), sample(2, 3, 4) > 0, sample(30, 2, 2).int()):
        for function in (torch.unique, torch.unique_consecutive):
            check(
                lambda t, f=function: f(t, return_inverse=True, return_counts=True, dim=dim),
                x,
                grad=False,
            )
    check(lambda t: torch.unique(t, dim=0, return_inverse=True), torch.empty(0, 2), grad=False)
    with pytest.raises(RuntimeError, match="There are 0 sized dimensions"):
        torch.unique(torch.empty(2, 0, device="xla"), dim=0)
    with pytest.raises(IndexError, match="Dimension specified as 0"):
        torch.unique(torch.tensor(1.0, device="xla"), dim=0)


def test_unique_counts_each_nan():
    x = torch.tensor([float("nan"), 1.0, float("nan"), -0.0, 0.0, float("inf")])
    check(lambda t: torch.unique(t, return_inverse=True, return_counts=True), x, grad=False)


def test_bincount():
    x, weights = torch.tensor([1, 3, 3, 0, 6]), torch.rand(5)
    for length in (0, 4, 9):
        check(lambda t, n=length: torch.bincount(t, minlength=n), x)
        check(lambda t, w, n=length: torch.bincount(t, w, minlength=n), x, weights, grad=False)
        check(lambda t, w, n=length: torch.bincount(t, w, n), x, torch.arange(5), grad=False)
        check(lambda t, n=length: torch.bincount(t, minlength=n), x[:0])
    with pytest.raises(RuntimeError, match="non-negative integral inputs"):
        torch.bincount(torch.tensor([1, -1], device="xla"))


def test_repeat_interleave():
    repeats, x = torch.tensor([2, 0, 3]), torch.randn(3, 4)
    check(torch.repeat_interleave, repeats)
    check(torch.repeat_interleave, repeats.int())
    check(lambda t, r: t.repeat_interleave(r, dim=0), x, repeats)
    check(lambda t, r: t.repeat_interleave(r, dim=0, output_size=5), x, repeats)
    with pytest.raises(RuntimeError, match="repeats can not be negative"):
        torch.repeat_interleave(torch.tensor([1, -1], device="xla"))


def test_one_hot():
    x = torch.tensor([[1, 0, 4], [2, 2, 0]])
    for classes in (-1, 5, 7):
        check(torch.nn.functional.one_hot, x, classes)
        check(torch.nn.functional.one_hot, torch.tensor(3), classes)
    check(torch.nn.functional.one_hot, x[:0], 3)
    for wrong, classes, message in (
        (x - 1, -1, "Class values must be non-negative"),
        (x[:0], -1, "Can not infer total number of classes from empty tensor"),
        (x.int(), -1, "only applicable to index tensor of type LongTensor"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch.nn.functional.one_hot(wrong.to("xla"), classes)


def test_the_graph_is_cut_once_and_one_number_comes_back():
    x = torch.randn(50, 40)
    device = x.to("xla")
    torch_xla.sync(wait=True)
    for factor in (1.0, 0.5):
        y = device * factor + 1
        met.clear_all()
        selected = y[y > 1]
        assert met.metric_data("ExecuteTime")[0] == 1
        assert met.metric_data("TransferFromDeviceTime")[0] == 1
        assert met.metric_data("InboundData")[1] == 8  # one int64
        expected = x * factor + 1
        assert_same(selected * 2, expected[expected > 1] * 2)


def test_what_needs_no_count_does_not_cut():
    x = torch.randn(6, 7)
    y = x.to("xla")
    torch_xla.sync(wait=True)
    met.clear_all()
    mask = y > 0
    y[mask] = 0.5
    total = torch.where(mask, y, y.exp()).sum() + y.masked_fill(mask, 1).max()
    assert met.metric_data("ExecuteTime") is None
    mask = x > 0
    x[mask] = 0.5
    assert_same(total, torch.where(mask, x, x.exp()).sum() + x.masked_fill(mask, 1).max())


DRIVERS = [None, "gels", "gelsy", "gelsd", "gelss"]
SYSTEMS = [
    ((5, 2), (5,)),
    ((5, 2), (5, 3)),
    ((2, 5), (2, 3)),
    ((3, 5, 2), (3, 5)),
    ((3, 5, 2), (1, 5, 4)),
    ((0, 5, 2), (0, 5, 4)),
    ((5, 0), (5, 4)),
]


@pytest.mark.parametrize("driver", DRIVERS)
def test_least_squares(driver):
    def solve(a, b):
        return torch.linalg.lstsq(a, b, driver=driver)

    for dtype in (torch.float32, torch.float64, torch.complex64):
        for matrix, right in SYSTEMS:
            a, b = torch.randn(matrix, dtype=dtype), torch.randn(right, dtype=dtype)
            check(solve, a, b, rtol=1e-4, atol=1e-4)
            if driver != "gels":  # which wants full ranks, as residuals do
                check(solve, torch.ones_like(a), b, rtol=1e-4, atol=1e-4)


def test_least_squares_into_given_tensors():
    a, b = torch.randn(5, 2), torch.randn(5, 3)

    def solve(a, b):
        out = [torch.empty(0, device=a.device) for _ in range(4)]
        torch.linalg.lstsq(a, b, driver="gelsd", out=tuple(out))
        return out

    assert_same(solve(a.to("xla"), b.to("xla")), solve(a, b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("matrix", "right", "options"),
    [
        ((5,), (5,), {}),
        ((5, 2), (4,), {}),
        ((5, 2), (3, 5, 4), {}),
        ((3, 5, 2), (2, 5, 4), {}),
        ((5, 2), (5,), {"driver": "best"}),
    ],
)
def test_least_squares_of_what_does_not_fit(matrix, right, options):
    a, b = torch.ones(matrix), torch.ones(right)
    with pytest.raises(RuntimeError) as expected:
        torch.linalg.lstsq(a, b, **options)
    with pytest.raises(RuntimeError) as actual:
        torch.linalg.lstsq(a.to("xla"), b.to("xla"), **options)
    assert str(actual.value) == str(expected.value)
