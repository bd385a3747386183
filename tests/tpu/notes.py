"""What a TPU does not take of PyTorch's operator database, and why."""

from __future__ import annotations

import torch

# Without a rule or a decomposition: on a TPU they run on the host, as on every platform but the
# CPU, whose programs call PyTorch's kernels.
ON_THE_HOST = {
    "_segment_reduce.lengths",
    "_segment_reduce.offsets",
    "hash_tensor",
    "histogram",
    "histogramdd",
    "igamma",
    "igammac",
    "linalg.eig",
    "linalg.eigvals",
    "linalg.ldl_factor_ex",
    "linalg.ldl_solve",
    "linalg.lstsq",
    "linalg.lstsq.grad_oriented",
    "nn.functional.ctc_loss",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
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
    "special.scaled_modified_bessel_k0",
    "special.scaled_modified_bessel_k1",
    "special.shifted_chebyshev_polynomial_t",
    "special.shifted_chebyshev_polynomial_u",
    "special.shifted_chebyshev_polynomial_v",
    "special.shifted_chebyshev_polynomial_w",
    "special.spherical_bessel_j0",
}


def lacks_a_dtype(name: str, dtype: torch.dtype) -> bool:
    """Makes complex128, which a TPU has not: lowering says so."""
    return name == "cdouble" or (name == "float_power" and dtype.is_complex)
