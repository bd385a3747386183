"""Pooling against PyTorch's CPU kernels, gradients included."""

import pytest
import torch
import torch.nn.functional as F

from .harness import check, in_float32

FLOATS = (torch.float32, torch.bfloat16, torch.float64)


def image(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def lattice(*shape):
    """Few distinct numbers: many windows have equal maxima."""
    g = torch.Generator().manual_seed(2)
    return torch.randint(-3, 3, shape, generator=g).float()


MAX_POOL = [
    (F.max_pool1d, (2, 3, 10), {"kernel_size": 3, "stride": 2, "padding": 1}),
    (F.max_pool1d, (3, 10), {"kernel_size": 2, "ceil_mode": True}),
    (F.max_pool2d, (2, 3, 8, 8), {"kernel_size": 2}),
    (F.max_pool2d, (2, 3, 9, 7), {"kernel_size": 3, "stride": 2, "padding": 1}),
    (F.max_pool2d, (2, 3, 9, 8), {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
    (F.max_pool2d, (3, 11, 9), {"kernel_size": (2, 3), "stride": 1, "dilation": 2, "padding": 1}),
    (F.max_pool2d, (1, 2, 12, 12), {"kernel_size": 5, "stride": 1, "padding": 2}),
    (
        F.max_pool2d,
        (1, 2, 13, 13),
        {"kernel_size": 5, "stride": 3, "padding": 2, "ceil_mode": True},
    ),
    (F.max_pool2d, (0, 2, 8, 8), {"kernel_size": 2}),
    (F.max_pool2d, (1, 2, 7, 7), {"kernel_size": 2, "stride": 3}),
    (F.max_pool3d, (2, 2, 6, 7, 5), {"kernel_size": 2}),
    (F.max_pool3d, (2, 6, 7, 5), {"kernel_size": 3, "stride": 2, "padding": 1}),
]


@pytest.mark.parametrize("source", [image, lattice])
@pytest.mark.parametrize(("fn", "shape", "options"), MAX_POOL)
def test_max_pool(fn, shape, options, source):
    check(lambda x: fn(x, **options), source(*shape), dtypes=FLOATS)
    check(lambda x: fn(x, return_indices=True, **options), source(*shape), grad=False)


def test_max_pool_of_integers():
    x = torch.randint(-100, 100, (2, 3, 8, 8))
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)


@pytest.mark.parametrize("kernel", [3, 5])
def test_max_pool_of_lowest_and_nan(kernel):
    x = torch.full((1, 1, 8, 8), -torch.inf)
    x[0, 0, 5, 5] = torch.nan
    x[0, 0, 5, 6] = torch.nan
    check(lambda x: F.max_pool2d(x, kernel, 2, 1, return_indices=True), x, grad=False)
    check(lambda x: F.max_pool2d(x, kernel, 2, 1), x)


def test_max_pool_of_a_view():
    check(lambda x: F.max_pool2d(x.transpose(2, 3), 2), image(2, 3, 8, 6))


def test_chained_max_pools():
    """Each pool is computed once, not once for each element of the next one's windows."""

    def chain(x):
        ys = [x]
        for _ in range(3):
            ys.append(F.max_pool2d(ys[-1], 5, 1, 2))
        return torch.cat(ys, 1)

    check(chain, image(2, 4, 13, 13))


AVG_POOL = [
    (F.avg_pool1d, (2, 3, 10), {"kernel_size": 3, "stride": 2, "padding": 1}),
    (F.avg_pool2d, (2, 3, 8, 8), {"kernel_size": 2}),
    (F.avg_pool2d, (2, 3, 9, 7), {"kernel_size": 3, "stride": 2, "padding": 1}),
    (F.avg_pool2d, (2, 3, 9, 7), {"kernel_size": 3, "stride": 1, "padding": 1}),
    (F.avg_pool2d, (3, 9, 8), {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
    (F.avg_pool2d, (2, 3, 9, 8), {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    (
        F.avg_pool2d,
        (2, 3, 9, 8),
        {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
    ),
    (
        F.avg_pool2d,
        (2, 3, 10, 8),
        {
            "kernel_size": 4,
            "stride": 3,
            "padding": 2,
            "ceil_mode": True,
            "count_include_pad": False,
        },
    ),
    (F.avg_pool2d, (2, 3, 9, 8), {"kernel_size": 3, "stride": 2, "divisor_override": 4}),
    (F.avg_pool2d, (2, 3, 9, 8), {"kernel_size": (2, 3), "stride": (3, 1)}),
    (F.avg_pool2d, (2, 3, 7, 7), {"kernel_size": 7}),
    (F.avg_pool2d, (1, 2, 40, 33), {"kernel_size": 30, "stride": 5}),
    (F.avg_pool2d, (1, 2, 15, 14), {"kernel_size": 6, "stride": 2, "padding": 3}),
    (F.avg_pool2d, (0, 2, 8, 8), {"kernel_size": 2}),
    (F.avg_pool3d, (2, 2, 6, 7, 5), {"kernel_size": 2}),
    (
        F.avg_pool3d,
        (2, 6, 7, 5),
        {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
    ),
    (F.lp_pool2d, (2, 3, 9, 8), {"norm_type": 2, "kernel_size": 3, "stride": 2}),
]


@pytest.mark.parametrize(("fn", "shape", "options"), AVG_POOL)
def test_avg_pool(fn, shape, options):
    # lp_pool takes roots of bf16 sums, which PyTorch rounds at each step.
    dtypes = FLOATS if fn is not F.lp_pool2d else (torch.float32, torch.float64)
    pool = lambda x: fn(x, **options)  # noqa: E731
    # The CPU has no bf16 kernel for three dimensions.
    check(in_float32(pool) if fn is F.avg_pool3d else pool, image(*shape), dtypes=dtypes)


def test_avg_pool_of_integers():
    x = torch.randint(-100, 100, (2, 3, 8, 8))
    check(lambda x: F.avg_pool2d(x, 3, 2, 1), x)
    check(lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=7), x)


ADAPTIVE = [
    (F.adaptive_avg_pool1d, (2, 3, 10), 4),
    (F.adaptive_avg_pool2d, (2, 3, 8, 8), 1),
    (F.adaptive_avg_pool2d, (2, 3, 8, 8), 4),
    (F.adaptive_avg_pool2d, (2, 3, 13, 9), (7, 5)),
    (F.adaptive_avg_pool2d, (3, 5, 6), (7, 7)),
    (F.adaptive_avg_pool2d, (1, 2, 64, 70), (2, 3)),
    (F.adaptive_avg_pool2d, (1, 2, 64, 64), (2, None)),
    (F.adaptive_avg_pool3d, (2, 2, 6, 7, 5), (3, 4, 2)),
    (F.adaptive_avg_pool3d, (2, 2, 6, 7, 5), 1),
]


@pytest.mark.parametrize(("fn", "shape", "size"), ADAPTIVE)
def test_adaptive_avg_pool(fn, shape, size):
    pool = lambda x: fn(x, size)  # noqa: E731
    # Over three dimensions the CPU adds up in bf16.
    pool = in_float32(pool) if fn is F.adaptive_avg_pool3d else pool
    check(pool, image(*shape), dtypes=FLOATS)


ADAPTIVE_MAX = [
    (F.adaptive_max_pool1d, (2, 3, 10), 4),
    (F.adaptive_max_pool2d, (2, 3, 8, 8), 1),
    (F.adaptive_max_pool2d, (2, 3, 8, 8), 4),
    (F.adaptive_max_pool2d, (2, 3, 13, 9), (7, 5)),
    (F.adaptive_max_pool2d, (3, 5, 6), (7, 7)),
    (F.adaptive_max_pool2d, (1, 2, 64, 70), (2, 3)),
    (F.adaptive_max_pool3d, (2, 2, 6, 7, 5), (3, 4, 2)),
]


@pytest.mark.parametrize("source", [image, lattice])
@pytest.mark.parametrize(("fn", "shape", "size"), ADAPTIVE_MAX)
def test_adaptive_max_pool(fn, shape, size, source):
    check(lambda x: fn(x, size), source(*shape), dtypes=FLOATS)
    check(lambda x: fn(x, size, return_indices=True), source(*shape), grad=False)


def test_max_unpool():
    def there_and_back(x):
        y, i = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(y, i, 2, output_size=x.shape)

    def there_and_back_3d(x):
        y, i = F.max_pool3d(x, 2, return_indices=True)
        return F.max_unpool3d(y, i, 2)

    check(there_and_back, image(2, 3, 9, 8))
    check(there_and_back_3d, image(2, 3, 4, 6, 4))
