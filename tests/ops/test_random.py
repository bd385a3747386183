"""Random operators: distributions, ranges, independence, seeds, and no recompilation."""

from __future__ import annotations

import math

import pytest
import torch

import torch_xla
from torch_xla.debug import metrics

DEVICE = "xla"
N = 20_000
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def seeded():
    torch_xla.manual_seed(20240607)


def compiles() -> int:
    return metrics.counter_value("UncachedCompile") or 0


def draw(fn) -> torch.Tensor:
    return fn().cpu().double().flatten()


# Statistics are compared with what chance allows: a failure at these limits has a probability below
# one in a million for a correct generator, and seeds are fixed.


def ks_statistic(samples: torch.Tensor, cdf) -> float:
    """Kolmogorov-Smirnov: the largest distance between the empirical distribution and `cdf`."""
    x = samples.sort().values
    n = x.numel()
    expected = cdf(x)
    upper = torch.arange(1, n + 1, dtype=torch.float64) / n
    return max((upper - expected).max().item(), (expected - upper + 1 / n).max().item())


def assert_distribution(samples: torch.Tensor, cdf) -> None:
    limit = 2.7 / math.sqrt(samples.numel())  # P(exceeded) = 2 exp(-2 * 2.7^2) = 9e-7
    assert ks_statistic(samples, cdf) < limit


def assert_mean(samples: torch.Tensor, mean: float, deviation: float) -> None:
    assert abs(samples.mean().item() - mean) < 5 * deviation / math.sqrt(samples.numel())


def normal_cdf(mean: float, std: float):
    return lambda x: 0.5 * torch.erfc((mean - x) / (std * math.sqrt(2)))


def uniform_cdf(low: float, high: float):
    return lambda x: ((x - low) / (high - low)).clamp(0, 1)


CONTINUOUS = {
    "uniform_": (lambda e: e.uniform_(-2, 6), uniform_cdf(-2, 6)),
    "rand_like": (lambda e: torch.rand_like(e), uniform_cdf(0, 1)),
    "normal_": (lambda e: e.normal_(3, 0.5), normal_cdf(3, 0.5)),
    "randn_like": (lambda e: torch.randn_like(e), normal_cdf(0, 1)),
    "normal tensor tensor": (
        lambda e: torch.normal(torch.full_like(e, 2.0), torch.full_like(e, 3.0)),
        normal_cdf(2, 3),
    ),
    "normal tensor number": (
        lambda e: torch.normal(torch.full_like(e, 2.0), 3.0),
        normal_cdf(2, 3),
    ),
    "normal number tensor": (
        lambda e: torch.normal(2.0, torch.full_like(e, 3.0)),
        normal_cdf(2, 3),
    ),
    "normal size": (
        lambda e: torch.normal(2.0, 3.0, e.shape, device=e.device, dtype=e.dtype),
        normal_cdf(2, 3),
    ),
    "exponential_": (lambda e: e.exponential_(2.0), lambda x: 1 - torch.exp(-2.0 * x)),
    "cauchy_": (
        lambda e: e.cauchy_(1.0, 2.0),
        lambda x: torch.atan((x - 1.0) / 2.0) / math.pi + 0.5,
    ),
    "log_normal_": (lambda e: e.log_normal_(0.5, 0.25), lambda x: normal_cdf(0.5, 0.25)(x.log())),
}


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_continuous_distribution(name, dtype):
    fn, cdf = CONTINUOUS[name]
    result = fn(torch.empty(4, N // 4, device=DEVICE, dtype=dtype))
    assert result.dtype == dtype and result.shape == (4, N // 4)
    assert_distribution(result.cpu().double().flatten(), cdf)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats(dtype):
    # Coarse dtypes have steps, so moments are compared rather than distributions.
    u = draw(lambda: torch.rand(N, device=DEVICE, dtype=dtype))
    assert_mean(u, 0.5, math.sqrt(1 / 12))
    assert u.min() >= 0 and u.max() < 1
    z = draw(lambda: torch.randn(N, device=DEVICE, dtype=dtype))
    assert_mean(z, 0, 1)
    assert abs(z.var().item() - 1) < 5 * math.sqrt(2 / N)


def test_moments_of_the_normal():
    z = draw(lambda: torch.randn(500_000, device=DEVICE))
    n = z.numel()
    assert_mean(z, 0, 1)
    assert_mean(z**2, 1, math.sqrt(2))
    assert_mean(z**3, 0, math.sqrt(15))
    assert_mean(z**4, 3, math.sqrt(96))
    beyond = (z.abs() > 4).sum().item()  # 6.3e-5 of all: 31.7 expected
    assert 5 < beyond < 75
    assert z.abs().max() < 7
    assert z.unique().numel() > 0.99 * n


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("low, high", [(0.0, 1.0), (-3.0, -1.0), (1000.0, 1016.0)])
def test_uniform_excludes_its_upper_bound(dtype, low, high):
    x = torch.empty(200_000, device=DEVICE, dtype=dtype).uniform_(low, high).cpu()
    assert x.min().item() >= low
    assert x.max().item() < torch.tensor(high, dtype=dtype).item()


def test_uniform_of_one_value():
    assert torch.empty(5, device=DEVICE).uniform_(2.0, 2.0).cpu().tolist() == [2.0] * 5


def test_complex_normal():
    z = torch.randn(N, device=DEVICE, dtype=torch.complex64).cpu()
    for part in (z.real.double(), z.imag.double()):
        assert_distribution(part, normal_cdf(0, math.sqrt(0.5)))
    assert abs(torch.corrcoef(torch.stack([z.real, z.imag]))[0, 1].item()) < 5 / math.sqrt(N)


# --- events -------------------------------------------------------------------------------------


def assert_frequency(hits: torch.Tensor, p: float) -> None:
    assert_mean(hits.double(), p, math.sqrt(p * (1 - p)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_bernoulli(dtype):
    p = 0.3
    empty = torch.empty(N, device=DEVICE, dtype=dtype)
    x = empty.bernoulli_(p)
    assert x.dtype == dtype
    assert set(x.cpu().double().unique().tolist()) == {0.0, 1.0}
    assert_frequency(x.cpu(), p)
    probabilities = torch.full((N,), p, device=DEVICE)
    assert_frequency(torch.empty(N, device=DEVICE, dtype=dtype).bernoulli_(probabilities).cpu(), p)


def test_bernoulli_of_probabilities():
    p = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0])
    x = torch.bernoulli(p.expand(N, 5).to(DEVICE)).cpu()
    assert x[:, 0].sum() == 0 and x[:, 4].sum() == N
    for column in (1, 2, 3):
        assert_frequency(x[:, column], p[column].item())
    assert_frequency(torch.bernoulli(torch.empty(N, device=DEVICE), 0.25).cpu(), 0.25)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_certain_events(p):
    assert torch.empty(1000, device=DEVICE).bernoulli_(p).cpu().mean().item() == p


def test_geometric():
    p = 0.2
    x = draw(lambda: torch.empty(N, device=DEVICE).geometric_(p))
    assert x.min() == 1 and torch.equal(x, x.floor())
    assert_mean(x, 1 / p, math.sqrt(1 - p) / p)


@pytest.mark.parametrize("kernels", ["auto", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_poisson(kernels, dtype, monkeypatch):
    monkeypatch.setenv("XLA_HOST_KERNELS", kernels)
    for rate in (0.3, 4.0, 9.9, 10.0, 37.5, 2000.0):
        x = draw(
            lambda rate=rate: torch.poisson(torch.full((N,), rate, dtype=dtype, device=DEVICE))
        )
        assert x.min() >= 0 and torch.equal(x, x.floor())
        assert_mean(x, rate, math.sqrt(rate))
        assert abs(x.var().item() / rate - 1) < 5 * math.sqrt((2 + 1 / rate) / N)
        low = max(int(rate - 4 * math.sqrt(rate)), 0)
        k = torch.arange(low, int(rate + 4 * math.sqrt(rate)) + 2, dtype=torch.float64)
        expected = torch.exp(k * math.log(rate) - rate - torch.lgamma(k + 1)) * N
        counts = torch.bincount(x.long(), minlength=int(k[-1]) + 1)[low : int(k[-1]) + 1]
        common = expected > 5
        chi2 = ((counts - expected) ** 2 / expected)[common].sum().item()
        degrees = int(common.sum())
        assert chi2 < degrees + 5 * math.sqrt(2 * degrees) + 10


@pytest.mark.parametrize("kernels", ["auto", "none"])
def test_poisson_at_the_ends(kernels, monkeypatch):
    monkeypatch.setenv("XLA_HOST_KERNELS", kernels)
    assert torch.poisson(torch.zeros(5, device=DEVICE)).tolist() == [0] * 5
    rates = torch.tensor([-1.0, 2.0], device=DEVICE)
    torch_xla.sync()
    with pytest.raises(RuntimeError, match="invalid Poisson rate"):
        torch.poisson(rates)


# --- integers -----------------------------------------------------------------------------------


def assert_uniform_counts(x: torch.Tensor, low: int, high: int) -> None:
    x = x.long()
    assert x.min() >= low and x.max() < high
    counts = torch.bincount(x - low, minlength=high - low).double()
    expected = x.numel() / (high - low)
    chi2 = ((counts - expected) ** 2 / expected).sum().item()
    degrees = high - low - 1
    assert chi2 < degrees + 5 * math.sqrt(2 * degrees) + 10


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32])
def test_randint(dtype):
    x = torch.randint(-3 if dtype.is_signed else 0, 10, (N,), device=DEVICE, dtype=dtype)
    assert x.dtype == dtype
    assert_uniform_counts(x.cpu(), -3 if dtype.is_signed else 0, 10)
    y = torch.randint_like(x, 7)
    assert y.dtype == dtype
    assert_uniform_counts(y.cpu(), 0, 7)
    assert_uniform_counts(torch.randint_like(x, 2, 7).cpu(), 2, 7)
    assert_uniform_counts(torch.randint(7, (N,), device=DEVICE).cpu(), 0, 7)


@pytest.mark.filterwarnings("ignore:.*is out of bounds")
@pytest.mark.parametrize(
    ("dtype", "low", "high", "first", "last"),
    [
        (torch.float16, 0, 2049, 0, 2048),
        (torch.float16, 65440, 65504, 65440, 65472),
        (torch.float16, -65504, -65440, -65504, -65472),
        (torch.bfloat16, 0, 257, 0, 256),
        (torch.bfloat16, 32256, 32752, 32256, 32640),
        (torch.bfloat16, 2**62 - 2**56, 2**62, 2**62 - 2**56, 2**62 - 2**54),
        (torch.float32, 2**24, 2**24 + 7, 2**24, 2**24 + 6),
    ],
)
def test_rounded_integers_stay_in_range(dtype, low, high, first, last):
    """Integers are rounded to floats, but not to the end of the range. The bounds are those that
    draws of the CPU reach."""
    expected = torch.empty(20000, dtype=dtype).random_(low, high).double()
    assert (expected.min(), expected.max()) == (first, last)
    for draw in (
        torch.empty(20000, dtype=dtype, device="xla").random_(low, high),
        torch.randint(low, high, (20000,), dtype=dtype, device="xla"),
    ):
        values = draw.cpu().double()
        assert (values.min(), values.max()) == (first, last)


def test_random_in_place():
    x = torch.empty(N, device=DEVICE, dtype=torch.int64)
    assert_uniform_counts(x.random_(5, 12).cpu(), 5, 12)
    assert_uniform_counts(x.random_(9).cpu(), 0, 9)
    full = x.random_().cpu().double()
    assert full.min() >= 0
    assert_distribution(full, uniform_cdf(0, 2.0**63))
    byte = torch.empty(N, device=DEVICE, dtype=torch.uint8).random_().cpu()
    assert_uniform_counts(byte, 0, 256)
    signed = torch.empty(N, device=DEVICE, dtype=torch.int8).random_(-128, None).cpu()
    assert_uniform_counts(signed, -128, 128)
    wide = torch.empty(N, device=DEVICE, dtype=torch.int64).random_(-(2**62), 2**62)
    assert_distribution(wide.cpu().double(), uniform_cdf(-(2.0**62), 2.0**62))
    assert_frequency(torch.empty(N, device=DEVICE, dtype=torch.bool).random_().cpu(), 0.5)
    floats = torch.empty(N, device=DEVICE).random_().cpu()
    assert torch.equal(floats, floats.floor())
    assert_distribution(floats.double(), uniform_cdf(0, 2.0**24))


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_randperm(n):
    x = torch.randperm(n, device=DEVICE)
    assert x.dtype == torch.int64 and x.shape == (n,)
    assert torch.equal(x.cpu().sort().values, torch.arange(n))
    assert torch.randperm(n, device=DEVICE, dtype=torch.int32).dtype == torch.int32


def test_randperm_is_uniform():
    firsts = torch.stack([torch.randperm(6, device=DEVICE).cpu() for _ in range(600)])
    assert len({tuple(row) for row in firsts.tolist()}) > 380  # 720 permutations, 600 draws
    for column in range(6):
        assert_uniform_counts(firsts[:, column], 0, 6)


# --- multinomial --------------------------------------------------------------------------------

WEIGHTS = torch.tensor([0.0, 1.0, 3.0, 0.0, 4.0, 2.0, 0.0])


def assert_frequencies(x: torch.Tensor, weights: torch.Tensor) -> None:
    counts = torch.bincount(x.flatten(), minlength=weights.numel()).double()
    p = weights.double() / weights.sum()
    assert counts[p == 0].sum() == 0
    n = counts.sum()
    limit = 5 * (n * p * (1 - p)).sqrt() + 1
    assert bool(((counts - n * p).abs() <= limit).all())


@pytest.mark.parametrize("dtype", FLOATS)
def test_multinomial_with_replacement(dtype):
    x = torch.multinomial(WEIGHTS.to(DEVICE, dtype), N, replacement=True)
    assert x.dtype == torch.int64 and x.shape == (N,)
    assert_frequencies(x.cpu(), WEIGHTS)
    rows = WEIGHTS.repeat(3, 1).to(DEVICE)
    x = torch.multinomial(rows, N // 2, replacement=True).cpu()
    assert x.shape == (3, N // 2)
    for row in x:
        assert_frequencies(row, WEIGHTS)


def test_multinomial_of_one_sample():
    rows = WEIGHTS.expand(N, -1).to(DEVICE)
    x = torch.multinomial(rows, 1)
    assert x.shape == (N, 1)
    assert_frequencies(x.cpu(), WEIGHTS)


def test_multinomial_without_replacement():
    rows = WEIGHTS.expand(N // 4, -1).to(DEVICE)
    x = torch.multinomial(rows, 4).cpu()
    assert torch.equal(x.sort(1).values, torch.tensor([1, 2, 4, 5]).expand(N // 4, 4))
    # The first of each draw follows the weights; the second, given the first, those that are left.
    assert_frequencies(x[:, 0], WEIGHTS)
    left = WEIGHTS.clone()
    left[4] = 0
    assert_frequencies(x[x[:, 0] == 4, 1], left)


# --- dropout ------------------------------------------------------------------------------------


def test_gradient_of_dropout_broadcasts():
    grad, kept = torch.arange(1.0, 5)[:, None], torch.tensor([True, False, True])
    for a, b in (grad, kept), (grad[0], kept), (grad, kept[:1]):
        want = torch.ops.aten.native_dropout_backward(a, b, 2.0)
        got = torch.ops.aten.native_dropout_backward(a.to(DEVICE), b.to(DEVICE), 2.0)
        torch.testing.assert_close(got.cpu(), want)


def test_dropout_and_its_gradient():
    x = torch.randn(200, 100, device=DEVICE, requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.25)
    y.sum().backward()
    values, result, grad = x.detach().cpu(), y.detach().cpu(), x.grad.cpu()
    kept = result != 0
    assert_frequency(kept.flatten(), 0.75)
    torch.testing.assert_close(result[kept], values[kept] / 0.75)
    torch.testing.assert_close(grad, kept.float() / 0.75)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dropout_dtypes(dtype):
    x = torch.ones(N, device=DEVICE, dtype=dtype, requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.5)
    assert y.dtype == dtype
    assert set(y.detach().cpu().double().unique().tolist()) == {0.0, 2.0}


def test_dropout_edges():
    x = torch.randn(50, device=DEVICE)
    functional = torch.nn.functional
    assert torch.equal(functional.dropout(x, 0.0).cpu(), x.cpu())
    assert torch.equal(functional.dropout(x, 0.7, training=False).cpu(), x.cpu())
    assert functional.dropout(x, 1.0).cpu().abs().sum() == 0
    assert functional.dropout(torch.empty(0, 3, device=DEVICE), 0.5).shape == (0, 3)
    y = functional.dropout(x.clone(), 0.5, inplace=True).cpu()
    torch.testing.assert_close(y[y != 0], 2 * x.cpu()[y != 0])
    out, mask = torch.native_dropout(x, 0.5, False)
    assert torch.equal(out.cpu(), x.cpu()) and mask.cpu().all()


def test_dropout_is_one_operator_each_way():
    x = torch.randn(8, 8, device=DEVICE, requires_grad=True)
    torch_xla.sync()
    metrics.clear_counters()
    torch.nn.functional.dropout(x, 0.5).sum().backward()
    assert metrics.counter_value("xla::native_dropout") == 1
    assert metrics.counter_value("xla::native_dropout_backward") == 1
    assert metrics.counter_value("xla::bernoulli_") is None


@pytest.mark.parametrize(
    "layer",
    [torch.nn.AlphaDropout(0.3), torch.nn.Dropout2d(0.3), torch.nn.FeatureAlphaDropout(0.3)],
    ids=lambda layer: type(layer).__name__,
)
def test_dropout_layers(layer):
    x = torch.ones(64, 32, 4, 4, device=DEVICE)
    y = layer(x).cpu()
    if not isinstance(layer, torch.nn.AlphaDropout):
        flat = y.flatten(2)
        assert torch.equal(flat, flat[..., :1].expand_as(flat))  # whole channels
        kept = flat[..., 0] == flat[..., 0].max()
    else:
        kept = y == y.max()
    assert_frequency(kept.flatten(), 0.7)


def test_rrelu():
    x = torch.randn(N, device=DEVICE, requires_grad=True)
    y = torch.nn.functional.rrelu(x, 0.1, 0.5, training=True)
    y.sum().backward()
    values, result, grad = x.detach().cpu(), y.detach().cpu(), x.grad.cpu()
    positive = values > 0
    assert torch.equal(result[positive], values[positive])
    slopes = result[~positive] / values[~positive]
    assert_distribution(slopes.double(), uniform_cdf(0.1, 0.5))
    torch.testing.assert_close(grad[~positive], slopes, rtol=1e-5, atol=1e-6)
    assert torch.equal(grad[positive], torch.ones_like(grad[positive]))
    fixed = torch.nn.functional.rrelu(x.detach(), 0.1, 0.5, training=False)
    torch.testing.assert_close(fixed.cpu(), torch.nn.functional.leaky_relu(values, 0.3))


# --- seeds and steps ----------------------------------------------------------------------------


def test_draws_are_independent():
    a = torch.randn(N, device=DEVICE)
    b = torch.randn(N, device=DEVICE)
    both = torch.stack([a, b]).cpu().double()
    assert abs(torch.corrcoef(both)[0, 1].item()) < 5 / math.sqrt(N)
    assert not torch.equal(both[0], both[1])
    x = both[0]  # neighbours too
    assert abs(torch.corrcoef(torch.stack([x[1:], x[:-1]]))[0, 1].item()) < 5 / math.sqrt(N)


def test_same_seed_same_numbers():
    def numbers():
        return [torch.randn(5, device=DEVICE).cpu(), torch.randperm(9, device=DEVICE).cpu()]

    torch_xla.manual_seed(7)
    first = numbers()
    second = numbers()
    torch_xla.manual_seed(7)
    again = numbers()
    for a, b, c in zip(first, second, again, strict=True):
        assert torch.equal(a, c) and not torch.equal(a, b)
    torch.manual_seed(11)
    first = numbers()
    torch.manual_seed(11)
    again = numbers()
    assert all(torch.equal(a, c) for a, c in zip(first, again, strict=True))


def test_shape_does_not_change_the_stream():
    torch_xla.manual_seed(3)
    flat = torch.rand(24, device=DEVICE).cpu()
    torch_xla.manual_seed(3)
    assert torch.equal(torch.rand(2, 3, 4, device=DEVICE).cpu().flatten(), flat)


def test_steps_differ_without_recompiling():
    x = torch.ones(64, 64, device=DEVICE)
    seen = []
    for step in range(4):
        noise = torch.randn_like(x) + torch.nn.functional.dropout(x, 0.5)
        noise = noise + torch.empty_like(x).uniform_(-step, step + 1).normal_(step, 1 + step)
        noise = noise + torch.empty_like(x).bernoulli_(0.1 * (step + 1))
        torch_xla.sync()
        seen.append(noise.cpu())
        if step == 1:
            compiled = compiles()
    assert compiles() == compiled
    for i in range(4):
        assert not any(torch.equal(seen[i], seen[j]) for j in range(i))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (1, 1, 5)])
def test_odd_shapes(shape):
    for fn in (
        lambda: torch.rand(shape, device=DEVICE),
        lambda: torch.randn(shape, device=DEVICE, dtype=torch.float64),
        lambda: torch.randint(5, shape, device=DEVICE),
        lambda: torch.empty(shape, device=DEVICE).exponential_(),
        lambda: torch.bernoulli(torch.full(shape, 0.5, device=DEVICE)),
    ):
        result = fn()
        assert result.shape == shape and result.cpu().isfinite().all()


def test_writes_into_a_view():
    x = torch.zeros(4, 6, device=DEVICE)
    x.t()[1:3].normal_()
    values = x.cpu()
    assert (values[:, 1:3] != 0).all() and values[:, [0, 3, 4, 5]].abs().sum() == 0


@pytest.mark.parametrize(
    ("name", "good", "bad", "message"),
    [
        ("uniform_", (0, 1), (2, 1), r"uniform_ expects to return a \[from, to\) range"),
        ("cauchy_", (0, 1), (0, 0), "cauchy_ expects sigma > 0.0, but found sigma=0"),
        ("exponential_", (2,), (-1,), "exponential_ expects lambda > 0.0"),
        ("geometric_", (0.5,), (1,), r"geometric_ expects p to be in \(0, 1\)"),
        ("log_normal_", (0, 1), (0, 0), "log_normal_ expects std > 0.0"),
        ("normal_", (0, 1), (0, -1), "normal expects std >= 0.0"),
        ("bernoulli_", (0.5,), (1.5,), r"bernoulli_ expects p to be in \[0, 1\]"),
    ],
)
def test_numbers_are_checked_at_each_call(name, good, bad, message):
    x = torch.zeros(3, device="xla")
    for _ in range(2):
        getattr(x, name)(*good)
        with pytest.raises(RuntimeError, match=message):
            getattr(x, name)(*bad)
