"""What a TPU does not take of PyTorch's operator database, and why."""

from __future__ import annotations

import re

import pytest

# Without a rule or a decomposition: on a TPU they run on the host, as on every platform but the
# CPU, whose programs call PyTorch's kernels.
ON_THE_HOST = {
    "_segment_reduce.lengths",
    "_segment_reduce.offsets",
    "cholesky",
    "geqrf",
    "hash_tensor",
    "histogram",
    "histogramdd",
    "igamma",
    "igammac",
    "linalg.cond",
    "linalg.det",
    "linalg.eig",
    "linalg.eigh",
    "linalg.eigvals",
    "linalg.eigvalsh",
    "linalg.householder_product",
    "linalg.inv_ex",
    "linalg.ldl_factor_ex",
    "linalg.ldl_solve",
    "linalg.lu",
    "linalg.lu_factor_ex",
    "linalg.lu_solve",
    "linalg.matrix_rank",
    "linalg.matrix_rank.hermitian",
    "linalg.pinv",
    "linalg.pinv.hermitian",
    "linalg.pinv.singular",
    "linalg.qr",
    "linalg.slogdet",
    "linalg.solve_ex",
    "linalg.svd",
    "linalg.svdvals",
    "logdet",
    "lu",
    "lu_solve",
    "lu_unpack",
    "matrix_exp",
    "nn.functional.ctc_loss",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
    "norm.nuc",
    "ormqr",
    "pca_lowrank",
    "pinverse",
    "qr",
    "special.airy_ai",
    "special.bessel_j0",
    "special.bessel_j1",
    "special.bessel_y0",
    "special.bessel_y1",
    "special.chebyshev_polynomial_t",
    "special.chebyshev_polynomial_u",
    "special.chebyshev_polynomial_v",
    "special.chebyshev_polynomial_w",
    "special.hermite_polynomial_h",
    "special.hermite_polynomial_he",
    "special.laguerre_polynomial_l",
    "special.legendre_polynomial_p",
    "special.modified_bessel_i0",
    "special.modified_bessel_i1",
    "special.modified_bessel_k0",
    "special.modified_bessel_k1",
    "special.ndtri",
    "special.scaled_modified_bessel_k0",
    "special.scaled_modified_bessel_k1",
    "special.shifted_chebyshev_polynomial_t",
    "special.shifted_chebyshev_polynomial_u",
    "special.shifted_chebyshev_polynomial_v",
    "special.shifted_chebyshev_polynomial_w",
    "special.spherical_bessel_j0",
    "svd",
    "svd_lowrank",
}

# What libtpu says where it refuses a program, and what that means.
REFUSALS = {
    r"X\{64\|128\} element types.* = [su]64\[.*(dot|convolution)\(": (
        "a TPU multiplies no matrices of 64-bit integers; int32 works"
    ),
}
# Entries whose program takes the compiler down.
CRASHES = {"cdouble": "libtpu has no conversion to complex128 and aborts"}


def marks(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.xfail(reason=CRASHES[name], strict=True)] if name in CRASHES else []


def excuse(refusal: str) -> str | None:
    """Why a program may be refused with these words."""
    return next((why for words, why in REFUSALS.items() if re.search(words, refusal)), None)
