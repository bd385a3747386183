"""Linear layers of quantized weights: a scale for each output, or for each block of inputs."""

from __future__ import annotations

import torch
import torch.ao.quantization.fx._decomposed  # registers torch.ops.quantized_decomposed
from torch import nn
from torch.nn import functional as F

__all__ = ["XlaQuantizedLinear", "quantized_matmul", "quantized_matmul_xla"]


def quantized_matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    scaler: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    block_size: int = -1,
    int4_weight: bool = False,
    quantize_activation: bool = False,
) -> torch.Tensor:
    """`x` by the floats that a quantized weight stands for.

    Also `torch.ops.xla.quantized_matmul`.

    Args:
        x: [..., inputs], floats.
        w: int8, [outputs, inputs]; with blocks [blocks, block_size, outputs].
        scaler: [outputs], or [blocks, outputs]: what a unit of `w` is.
        zero_point: None, or of the shape of `scaler`: what the weight's zero stands for, in floats;
            it is taken off.
        block_size: How many inputs share a scale; -1 for one scale for each output.
        int4_weight: Whether the elements of `w` are from -8 to 7.
        quantize_activation: Whether `x` is rounded to int8 first, a row at a time. Without blocks
            only.

    Returns:
        [..., outputs], in the dtype of `x`.

    Raises:
        ValueError: Shapes or dtypes do not fit.
    """
    if block_size == -1:
        _check_per_channel_quant_weight_dtype_shapes(
            x.shape[-1], scaler.shape[0], w, scaler, zero_point
        )
        if quantize_activation:
            units, unit = _quantize_tensor(x)
            # Sums of products of int8 are exact in float64.
            out = F.linear(units.double(), w.double()).to(x.dtype) * unit * scaler
        else:
            out = F.linear(x, w.to(x.dtype)) * scaler
        if zero_point is not None:
            out = out - x.sum(-1, keepdim=True) * zero_point
        return out.to(x.dtype)
    if quantize_activation:
        raise ValueError("quantized_matmul: expected no blocks beside a quantized activation.")
    _check_blockwise_quant_weight_dtype_shapes(
        x.shape[-1], w.shape[-1], block_size, w, scaler, zero_point
    )
    blocks = x.reshape(*x.shape[:-1], -1, block_size)
    out = torch.einsum("...sc,sch,sh->...h", blocks, w.to(x.dtype), scaler.to(x.dtype))
    if zero_point is not None:
        out = out - blocks.sum(-1) @ zero_point.to(x.dtype)
    return out


quantized_matmul_xla = quantized_matmul


def _quantize_tensor(
    x: torch.Tensor, n_bits: int = 8, dim: int = -1
) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 of -2^(n-1) to 2^(n-1) - 1, and the unit of each row along `dim`."""
    most = 2 ** (n_bits - 1) - 1
    unit = x.abs().amax(dim, keepdim=True) / most
    unit = torch.where(unit == 0, torch.ones_like(unit), unit)
    return torch.round(x / unit).clamp(-most - 1, most).to(torch.int8), unit


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(f"quantized_matmul: expected {message}.")


def _check_per_channel_quant_weight_dtype_shapes(
    input_dim: int,
    output_dim: int,
    w: torch.Tensor,
    w_scaler: torch.Tensor,
    zero_point: torch.Tensor | None,
) -> None:
    shape = (output_dim, input_dim)
    _check(w.dtype == torch.int8, f"a weight of int8, got {w.dtype}")
    _check(tuple(w.shape) == shape, f"a weight of shape {shape}, got {tuple(w.shape)}")
    for numbers in (w_scaler, zero_point):
        if numbers is not None:
            got = tuple(numbers.shape)
            _check(got == (output_dim,), f"a number for each of {output_dim} outputs, got {got}")


def _check_blockwise_quant_weight_dtype_shapes(
    input_dim: int,
    output_dim: int,
    block_size: int,
    w: torch.Tensor,
    w_scaler: torch.Tensor,
    zero_point: torch.Tensor | None,
) -> None:
    _check(
        block_size > 0 and input_dim % block_size == 0,
        f"a block size that divides {input_dim} inputs, got {block_size}",
    )
    blocks = input_dim // block_size
    shape = (blocks, block_size, output_dim)
    _check(w.dtype == torch.int8, f"a weight of int8, got {w.dtype}")
    _check(tuple(w.shape) == shape, f"a weight of shape {shape}, got {tuple(w.shape)}")
    for numbers in (w_scaler, zero_point):
        if numbers is not None:
            wanted, got = (blocks, output_dim), tuple(numbers.shape)
            _check(got == wanted, f"numbers of shape {wanted}, got {got}")


class XlaQuantizedLinear(nn.Module):
    """A linear layer without bias, of a quantized weight that is a buffer.

    Args:
        input_dim, output_dim: The numbers of inputs and outputs.
        is_symmetric: Whether there is no zero point.
        block_size, int4_weight, quantize_activation: As those of `quantized_matmul`.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        is_symmetric: bool = False,
        block_size: int = -1,
        int4_weight: bool = False,
        quantize_activation: bool = False,
    ):
        super().__init__()
        self.input_dim, self.output_dim = input_dim, output_dim
        self.is_symmetric, self.block_size = is_symmetric, block_size
        self.int4_weight, self.quantize_activation = int4_weight, quantize_activation
        if block_size == -1:
            shape: tuple[int, ...] = (output_dim, input_dim)
            numbers: tuple[int, ...] = (output_dim,)
        else:
            blocks = input_dim // block_size
            shape, numbers = (blocks, block_size, output_dim), (blocks, output_dim)
        self.register_buffer("weight", torch.zeros(shape, dtype=torch.int8))
        self.register_buffer("weight_scaler", torch.ones(numbers))
        self.register_buffer("zero_point", None if is_symmetric else torch.zeros(numbers))

    def load_quantized_weight(
        self,
        weight: torch.Tensor,
        weight_scaler: torch.Tensor,
        zero_point: torch.Tensor | None = None,
    ) -> None:
        """Takes a weight, of the shapes that `quantized_matmul` says.

        Raises:
            ValueError: Shapes or dtypes do not fit, or a symmetric layer is given a zero point.
        """
        _check(not (self.is_symmetric and zero_point is not None), "no zero point, got one")
        dims = self.input_dim, self.output_dim
        if self.block_size == -1:
            _check_per_channel_quant_weight_dtype_shapes(*dims, weight, weight_scaler, zero_point)
        else:
            _check_blockwise_quant_weight_dtype_shapes(
                *dims, self.block_size, weight, weight_scaler, zero_point
            )
        self.weight, self.weight_scaler = weight, weight_scaler
        if zero_point is not None:
            self.zero_point = zero_point

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return quantized_matmul(
            x,
            self.weight,
            self.weight_scaler,
            self.zero_point,
            self.block_size,
            self.int4_weight,
            self.quantize_activation,
        )


_library = torch.library.Library("xla", "FRAGMENT")
_library.define(
    "quantized_matmul(Tensor x, Tensor w, Tensor scaler, Tensor? zero_point=None, "
    "int block_size=-1, bool int4_weight=False, bool quantize_activation=False) -> Tensor"
)
_library.impl("quantized_matmul", quantized_matmul, "CompositeImplicitAutograd")
