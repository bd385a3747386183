"""Linear algebra and Fourier transforms: LAPACK on the CPU, StableHLO as other devices have it."""

from __future__ import annotations

import pytest
import torch

from .database import ENTRIES, applies, compare
from .harness import check, nothing_on_the_host

# Error bounds of algorithms on matrices; LAPACK leaves some results by columns.
NORM_WISE = {"of_largest": 1e-4, "strides": False}

NATIVE = [
    "linalg.cholesky_ex",
    "linalg.cholesky",
    "linalg.solve_triangular",
    "triangular_solve",
    "cholesky_solve",
    "cholesky_inverse",
]


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch would have triangular_solve replaced
@pytest.mark.parametrize("kernels", ["auto", pytest.param("none", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NATIVE)
def test_native(name, kernels, monkeypatch):
    monkeypatch.setenv("XLA_HOST_KERNELS", kernels)
    for dtype in (torch.float32, torch.float64, torch.complex64):
        for kind in ("forward", "gradient"):
            if not applies(ENTRIES[name], dtype, kind):
                continue
            outcome = compare(ENTRIES[name], dtype, kind, limit=12, **NORM_WISE)
            outcome.check()
            assert outcome.host <= {"aten::_local_scalar_dense"}


# What they make of the loops that stand in for LAPACK on other platforms than the CPU.
IN_LOOPS = [
    "geqrf",
    "linalg.cond",
    "linalg.det",
    "linalg.eigvalsh",
    "linalg.householder_product",
    "linalg.inv",
    "linalg.lu",
    "linalg.lu_factor_ex",
    "linalg.lu_solve",
    "linalg.matrix_rank",
    "linalg.pinv",
    "linalg.pinv.hermitian",
    "linalg.qr",
    "linalg.slogdet",
    "linalg.solve",
    "linalg.svdvals",
    "lu_unpack",
    "matrix_exp",
    "ormqr",
]


@pytest.fixture
def in_loops(monkeypatch):
    monkeypatch.setenv("XLA_HOST_KERNELS", "none")


# The tests of several panels have the factors of `geqrf` and `linalg.qr`.
QUICK = {"linalg.eigvalsh", "linalg.lu_solve"}


@pytest.mark.usefixtures("in_loops")
@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in IN_LOOPS],
)
def test_loops(name):
    for dtype in (torch.float32, torch.complex64):
        for kind in ("forward", "gradient"):
            if not applies(ENTRIES[name], dtype, kind):
                continue
            outcome = compare(ENTRIES[name], dtype, kind, limit=8, **NORM_WISE)
            outcome.check()
            assert outcome.host <= {"aten::_local_scalar_dense"}


PRECISION = {
    torch.float32: 2e-5,
    torch.float64: 1e-13,
    torch.complex64: 2e-5,
    torch.complex128: 1e-13,
}
# Loops compile for long: one dtype in every run, all of them in `make test-all`.
DTYPES = [
    torch.float32,
    pytest.param(torch.float64, marks=pytest.mark.slow),
    pytest.param(torch.complex64, marks=pytest.mark.slow),
    pytest.param(torch.complex128, marks=pytest.mark.slow),
]


def assert_near(actual, expected, dtype, scale):
    # Not of torch.testing: tiny and huge matrices are judged by their own size.
    assert ((actual.cpu() - expected).abs().amax() / scale).item() < PRECISION[dtype]


@pytest.mark.usefixtures("in_loops")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("full", [False, True], ids=["reduced", "full"])
def test_singular_vectors(dtype, full):
    def of_rank_2(m, n):
        return torch.randn(m, 2, dtype=dtype) @ torch.randn(2, n, dtype=dtype)

    # Each shape is compiled for long, so matrices of one are a batch.
    batches = {
        "wide": torch.randn(4, 7, dtype=dtype),
        "of one": torch.randn(1, 1, dtype=dtype),
        "batch": torch.randn(2, 3, 5, 4, dtype=dtype),
        "high": torch.stack([torch.randn(6, 4, dtype=dtype), of_rank_2(6, 4)]),
        "square": torch.stack(
            [
                torch.ones(5, 5, dtype=dtype),
                torch.zeros(5, 5, dtype=dtype),
                torch.randn(5, 5, dtype=dtype) * 1e18,
                torch.randn(5, 5, dtype=dtype) * 1e-18,
            ]
        ),
    }
    for name, batch in batches.items():
        found = [t.cpu() for t in torch.linalg.svd(batch.to("xla"), full_matrices=full)]
        is_mixed = name in ("high", "square")  # each matrix by its own size
        for i, a in enumerate(batch if is_mixed else [batch]):
            u, s, vh = (t[i] for t in found) if is_mixed else found
            scale = max(a.abs().max().item(), 1e-30)
            expected = torch.linalg.svd(a, full_matrices=full)
            assert [t.shape for t in (u, s, vh)] == [t.shape for t in expected]
            k = s.shape[-1]
            assert_near((u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :], a, dtype, scale)
            assert_near(s, expected.S, dtype, scale)
            assert_near(u.mH @ u, torch.eye(u.shape[-1], dtype=dtype), dtype, 1)
            assert_near(vh @ vh.mH, torch.eye(vh.shape[-2], dtype=dtype), dtype, 1)


@pytest.mark.usefixtures("in_loops")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("triangle", ["L", "U"])
def test_eigenvectors(dtype, triangle):
    for n in (1, 2, 5, 6, 17):
        a = torch.randn(2, n, n, dtype=dtype)
        a = a + a.mH
        other = (
            torch.triu(torch.ones(n, n), 1) if triangle == "L" else torch.tril(torch.ones(n, n), -1)
        )
        given = a + 9 * other  # not to be looked at
        values, vectors = (t.cpu() for t in torch.linalg.eigh(given.to("xla"), UPLO=triangle))
        scale = a.abs().max().item()
        assert_near(values, torch.linalg.eigvalsh(a), dtype, scale)
        assert_near((vectors * values.unsqueeze(-2)) @ vectors.mH, a, dtype, scale)
        assert_near(vectors.mH @ vectors, torch.eye(n, dtype=dtype), dtype, 1)
    outcome = compare(ENTRIES["linalg.eigh"], torch.float32, "gradient", 8, **NORM_WISE)
    outcome.check()


# Sizes at which panels of columns, and halves of eigenvalue problems, end.
BLOCKS = [(64, 64), (65, 40), (2, 2, 33, 70)]
# One and three panels more; each size is compiled for long.
PANELS = [BLOCKS, pytest.param([(100, 130), (130, 100)], marks=pytest.mark.slow)]


def blocks(dtype, sizes=BLOCKS):
    """Matrices of a few blocks: of any kind; and a batch of low ranks and scales far from 1."""
    n = 70
    thin = torch.randn(n, 3, dtype=dtype)
    with_zeros = torch.randn(n, n, dtype=dtype)
    with_zeros[5] = 0
    with_zeros[:, 40] = 0
    special = [
        torch.zeros(n, n, dtype=dtype),
        torch.eye(n, dtype=dtype),
        thin @ thin.mH,
        torch.eye(n, dtype=dtype) + thin @ thin.mH,
        with_zeros,
        torch.randn(n, n, dtype=dtype) * 1e-18,
        torch.randn(n, n, dtype=dtype) * 1e18,
        torch.block_diag(torch.randn(30, 30, dtype=dtype) * 1e-4, torch.randn(40, 40, dtype=dtype)),
    ]
    return [torch.randn(size, dtype=dtype) for size in sizes] + [torch.stack(special)]


def assert_near_for(a, actual, expected, dtype):
    """Errors are measured by what each matrix of `a` does to a vector."""
    scale = torch.linalg.matrix_norm(a, 2).clamp(min=1e-30)
    while scale.dim() < expected.dim():
        scale = scale.unsqueeze(-1)
    assert_near(actual.cpu() / scale, expected / scale, dtype, 1)


def assert_unitary(q, dtype):
    assert_near(q.mH @ q, torch.eye(q.shape[-1], dtype=dtype), dtype, 1)


@pytest.mark.usefixtures("in_loops")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", PANELS, ids=["blocks", "larger"])
def test_lu_of_several_panels(dtype, sizes):
    for a in blocks(dtype, sizes):
        lu, pivots, info = (t.cpu() for t in torch.linalg.lu_factor_ex(a.to("xla")))
        expected = torch.linalg.lu_factor_ex(a)
        assert torch.equal(info, expected.info)
        p, lower, upper = torch.lu_unpack(lu, pivots)
        assert_near_for(a, p @ lower @ upper, a, dtype)
    a = torch.randn(3, 100, 80, dtype=dtype)  # in which no two candidates are near each other
    pivots = torch.linalg.lu_factor(a.to("xla")).pivots.cpu()
    assert torch.equal(pivots, torch.linalg.lu_factor(a).pivots)


@pytest.mark.usefixtures("in_loops")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_systems_of_several_panels(dtype):
    a = torch.randn(2, 100, 100, dtype=dtype) + 20 * torch.eye(100)
    b = torch.randn(2, 100, 3, dtype=dtype)
    assert_near(torch.linalg.solve(a.to("xla"), b.to("xla")), torch.linalg.solve(a, b), dtype, 1)
    assert_near(torch.linalg.inv(a.to("xla")), torch.linalg.inv(a), dtype, 1)
    signs, sizes = torch.linalg.slogdet(a.to("xla"))
    expected = torch.linalg.slogdet(a)
    assert_near(signs, expected.sign, dtype, 1)
    assert_near(sizes, expected.logabsdet, dtype, 300)


@pytest.mark.usefixtures("in_loops")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", ["reduced", "complete"])
@pytest.mark.parametrize("sizes", PANELS, ids=["blocks", "larger"])
def test_qr_of_several_panels(dtype, mode, sizes):
    for a in blocks(dtype, sizes):
        q, r = (t.cpu() for t in torch.linalg.qr(a.to("xla"), mode))
        expected = torch.linalg.qr(a, mode)
        assert [q.shape, r.shape] == [t.shape for t in expected]
        assert_near_for(a, q @ r, a, dtype)
        assert_unitary(q, dtype)
        assert torch.equal(r.tril(-1), torch.zeros_like(r))


@pytest.mark.usefixtures("in_loops")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reflectors_of_several_panels(dtype):
    a, tau = torch.geqrf(torch.randn(2, 90, 70, dtype=dtype))
    for count in (70, 64, 33):
        q = torch.linalg.householder_product(a.to("xla"), tau[..., :count].to("xla"))
        expected = torch.linalg.householder_product(a, tau[..., :count])
        assert_near(q, expected, dtype, 1)
    x = torch.randn(2, 90, 5, dtype=dtype)
    for left in (True, False):
        for transpose in (True, False):
            c = x if left else x.mT.contiguous()
            arguments = [left, transpose]
            y = torch.ormqr(a.to("xla"), tau.to("xla"), c.to("xla"), *arguments)
            assert_near(y, torch.ormqr(a, tau, c, *arguments), dtype, 10)


@pytest.mark.slow
@pytest.mark.usefixtures("in_loops")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_eigenvectors_of_several_blocks(dtype):
    for a in blocks(dtype):
        a = a[..., : min(a.shape[-2:]), : min(a.shape[-2:])]
        a = a + a.mH
        values, vectors = (t.cpu() for t in torch.linalg.eigh(a.to("xla")))
        assert_near_for(a, values, torch.linalg.eigvalsh(a), dtype)
        assert torch.equal(values.sort().values, values)
        assert_near_for(a, (vectors * values.unsqueeze(-2)) @ vectors.mH, a, dtype)
        assert_unitary(vectors, dtype)
        assert_near_for(a, torch.linalg.eigvalsh(a.to("xla")), values, dtype)


@pytest.mark.slow
@pytest.mark.usefixtures("in_loops")
def test_eigenvalues_that_are_near_each_other():
    n, dtype = 200, torch.float64
    count = torch.arange(n, dtype=dtype)
    ones = torch.ones(n - 1, dtype=dtype)
    beside = torch.diag(ones, 1) + torch.diag(ones, -1)
    q = torch.linalg.qr(torch.randn(n, n, dtype=dtype)).Q
    cases = [
        (q * (count % 4)) @ q.mT,  # four values, many times each
        (q * 10 ** (-count / 10)) @ q.mT,  # of all sizes
        torch.diag((count - n // 2).abs()) + beside,  # Wilkinson's
        2 * torch.eye(n, dtype=dtype) - beside,
        torch.ones(n, n, dtype=dtype),
    ]
    a = torch.stack(cases)
    a = (a + a.mT) / 2
    values, vectors = (t.cpu() for t in torch.linalg.eigh(a.to("xla")))
    assert_near_for(a, values, torch.linalg.eigvalsh(a), dtype)
    assert_near_for(a, (vectors * values.unsqueeze(-2)) @ vectors.mT, a, dtype)
    assert_unitary(vectors, dtype)


@pytest.mark.usefixtures("in_loops")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "full", [pytest.param(False, marks=pytest.mark.slow), True], ids=["reduced", "full"]
)
@pytest.mark.parametrize(
    "sizes",
    [BLOCKS[1:2], pytest.param(BLOCKS[::2], marks=pytest.mark.slow)],
    ids=["one size", "others"],
)
def test_singular_vectors_of_several_blocks(dtype, full, sizes):
    for a in blocks(dtype, sizes):
        u, s, vh = (t.cpu() for t in torch.linalg.svd(a.to("xla"), full_matrices=full))
        expected = torch.linalg.svd(a, full_matrices=full)
        assert [t.shape for t in (u, s, vh)] == [t.shape for t in expected]
        k = s.shape[-1]
        assert_near_for(a, (u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :], a, dtype)
        assert_near_for(a, s, expected.S, dtype)
        assert_unitary(u, dtype)
        assert_unitary(vh.mH, dtype)
        if not full:
            assert_near_for(a, torch.linalg.svdvals(a.to("xla")), s, dtype)


@pytest.mark.usefixtures("in_loops")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_a_number_stays_in_its_matrix(bad):
    a = torch.randn(3, 40, 40)
    a = a + a.mT
    good = a.clone()
    a[1, 10, 10] = bad
    for function in (torch.linalg.eigvalsh, torch.linalg.svdvals):
        values = function(a.to("xla")).cpu()
        assert values[1].isnan().all()
        for i in (0, 2):
            assert_near_for(good[i], values[i], function(good[i]), torch.float32)


@pytest.mark.parametrize("kernels", ["auto", "none"])
def test_cholesky_of_what_is_not_positive(kernels, monkeypatch):
    monkeypatch.setenv("XLA_HOST_KERNELS", kernels)
    good = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    bad = torch.diag(torch.tensor([1.0, 2.0, -3.0]))
    worse = torch.diag(torch.tensor([-1.0, 2.0, -3.0]))
    batch = torch.stack([good, bad, worse]).to("xla")
    info = torch.linalg.cholesky_ex(batch).info.tolist()
    # StableHLO does not tell which minor it was.
    assert info == ([0, 3, 1] if kernels == "auto" else [0, 1, 1])
    with pytest.raises(torch.linalg.LinAlgError, match="Batch element 1.*leading minor of order"):
        torch.linalg.cholesky(batch)


def test_norms_of_fourier_transforms():
    z = torch.randn(3, 5, 6, dtype=torch.complex64)
    for norm in ("backward", "ortho", "forward"):
        for function in (torch.fft.fftn, torch.fft.ifftn, torch.fft.irfftn):
            check(lambda t, f=function, n=norm: f(t, dim=(2, 1), norm=n), z, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "norm", ["backward", *(pytest.param(n, marks=pytest.mark.slow) for n in ("ortho", "forward"))]
)
def test_fourier(norm):
    x = torch.randn(3, 5, 6, 4)
    z = torch.randn(3, 5, 6, 4, dtype=torch.complex64)
    with nothing_on_the_host():
        for dims in ((0,), (-1,), (2, 1), (3, 0, 1), (0, 1, 2, 3)):
            for function in (torch.fft.fftn, torch.fft.ifftn):
                check(lambda t, f=function, d=dims: f(t, dim=d, norm=norm), z, rtol=1e-4, atol=1e-4)
            check(lambda t, d=dims: torch.fft.rfftn(t, dim=d, norm=norm), x, rtol=1e-4, atol=1e-4)
            for length in (None, [7] * len(dims)):
                check(
                    lambda t, d=dims, n=length: torch.fft.irfftn(t, n, d, norm),
                    z,
                    rtol=1e-4,
                    atol=1e-4,
                )
        check(lambda t: torch.fft.fft(t, norm=norm), x.double())
        check(lambda t: torch.fft.hfft(t, 9, norm=norm), z, rtol=1e-4, atol=1e-4)
        check(lambda t: torch.fft.ihfft(t, norm=norm), x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "name",
    ["linalg.svd", "linalg.eigh", "linalg.qr", "linalg.lu", "linalg.solve", "linalg.inv"]
    + ["linalg.det", "linalg.slogdet", "matrix_exp", "linalg.pinv", "linalg.eig", "lu_solve"],
)
def test_decompositions_are_calls_of_the_program(name):
    for kind in ("forward", "gradient"):
        outcome = compare(ENTRIES[name], torch.float32, kind, limit=6, **NORM_WISE)
        outcome.check()
        assert outcome.host <= {"aten::_local_scalar_dense"}


def transposed(x):
    return x.mT


def column_major(x):
    return x.mT.contiguous().mT


def with_a_gap(x):
    return torch.cat([x, x], -1)[..., : x.shape[-1]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("lay_out", [torch.clone, transposed, column_major, with_a_gap])
def test_gradients_that_depend_on_how_the_matrix_lies(lay_out, dtype):
    """PyTorch's formulas ask the strides of a matrix which factors the forward pass has made."""
    x = torch.randn(2, 5, 5, dtype=dtype) + 3 * torch.eye(5)
    b = torch.randn(2, 5, 3, dtype=dtype)
    functions = [
        lambda x: torch.linalg.det(lay_out(x)),
        lambda x: torch.linalg.slogdet(lay_out(x)).logabsdet,
        lambda x: torch.linalg.solve(lay_out(x), b.to(x.device)),
        lambda x: torch.linalg.solve(lay_out(x), b.mT.to(x.device), left=False),
        lambda x: torch.linalg.inv(lay_out(x)),
        lambda x: torch.linalg.lu_factor(lay_out(x)).LU,
        lambda x: torch.linalg.lu(lay_out(x)).U,
        lambda x: torch.linalg.qr(lay_out(x)).R,
        lambda x: torch.logdet(lay_out(x.real @ x.real.mT)),
    ]
    for function in functions:
        check(function, x, rtol=1e-8, atol=1e-8)
