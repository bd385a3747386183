"""Linear algebra and Fourier transforms: LAPACK on the CPU, StableHLO as other devices have it."""

from __future__ import annotations

import pytest
import torch

from .database import ENTRIES, compare
from .harness import check, nothing_on_the_host

NATIVE = [
    "linalg.cholesky_ex",
    "linalg.cholesky",
    "linalg.solve_triangular",
    "triangular_solve",
    "cholesky_solve",
    "cholesky_inverse",
]


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch would have triangular_solve replaced
@pytest.mark.parametrize("kernels", ["auto", "none"])
@pytest.mark.parametrize("name", NATIVE)
def test_native(name, kernels, monkeypatch):
    monkeypatch.setenv("XLA_HOST_KERNELS", kernels)
    for dtype in (torch.float32, torch.float64, torch.complex64):
        for kind in ("forward", "gradient"):
            outcome = compare(ENTRIES[name], dtype, kind, limit=12, rtol=1e-4, atol=1e-4)
            assert outcome.compared and not outcome.wrong, "\n".join(outcome.wrong)
            assert outcome.host <= {"aten::_local_scalar_dense"}


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


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
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
        outcome = compare(ENTRIES[name], torch.float32, kind, limit=6, rtol=1e-4, atol=1e-4)
        assert outcome.compared and not outcome.wrong, "\n".join(outcome.wrong)
        assert outcome.host <= {"aten::_local_scalar_dense"}
