"""Quantization by scales and zero points, of tensors on any device."""

from __future__ import annotations

import torch

__all__ = ["xla_dequantize_per_tensor", "xla_quantize_per_channel", "xla_quantize_per_tensor"]


def xla_quantize_per_tensor(
    input: torch.Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """`torch.ops.quantized_decomposed.quantize_per_tensor`: one scale for all elements."""
    return _xla_quantize(
        input, torch.tensor(scale), torch.tensor(zero_point), quant_min, quant_max, dtype
    )


def xla_quantize_per_channel(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """`torch.ops.quantized_decomposed.quantize_per_channel`: a scale for each index of `axis`."""
    return _xla_quantize(input, scale, zero_point, quant_min, quant_max, dtype, axis)


def xla_dequantize_per_tensor(
    input: torch.Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """`torch.ops.quantized_decomposed.dequantize_per_tensor`."""
    return _xla_dequantize(
        input, torch.tensor(scale), torch.tensor(zero_point), quant_min, quant_max, dtype
    )


def _xla_quantize(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    axis: int = -1,
) -> torch.Tensor:
    """Integers of `dtype` in place of floats.

    Args:
        input: Floats of any shape.
        scale, zero_point: One number each, or with an `axis` one for each of its indices.
        quant_min, quant_max: The least and the largest result.
        dtype: The integers' dtype.
        axis: A dimension, or -1 where there is one scale.

    Raises:
        ValueError: The numbers of scales and zero points do not fit.
    """
    _check_scale_zp(input, scale, zero_point, axis, dtype)
    scale, zero_point = _along(input, scale, axis), _along(input, zero_point, axis)
    rounded = torch.round(input * (1.0 / scale)) + zero_point
    return rounded.clamp(quant_min, quant_max).to(dtype)


def _xla_dequantize(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    axis: int = -1,
) -> torch.Tensor:
    """The float32 of integers of `dtype`; arguments are those of `_xla_quantize`.

    Raises:
        ValueError: The numbers of scales do not fit, or `input` is of another dtype.
    """
    _check_scale_zp(input, scale, zero_point, axis, dtype)
    if input.dtype != dtype:
        raise ValueError(f"dequantize: expected integers of {dtype}, got {input.dtype}.")
    scale, zero_point = _along(input, scale, axis), _along(input, zero_point, axis)
    return (input.to(torch.float32) - zero_point) * scale


def _check_scale_zp(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int,
    dtype: torch.dtype,
) -> None:
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        raise ValueError(f"quantize: expected a dtype of integers, got {dtype}.")
    if axis != -1 and not 0 <= axis < input.dim():
        raise ValueError(f"quantize: expected an axis below {input.dim()}, or -1, got {axis}.")
    expected = 1 if axis == -1 else input.shape[axis]
    if scale.numel() != expected or zero_point.numel() != expected:
        raise ValueError(
            f"quantize: expected {expected} scales and zero points, got {scale.numel()} and "
            f"{zero_point.numel()}."
        )


def _along(input: torch.Tensor, numbers: torch.Tensor, axis: int) -> torch.Tensor:
    if axis == -1:
        return numbers.reshape(()).to(input.device)
    return numbers.to(input.device).reshape([-1] + [1] * (input.dim() - axis - 1))


def _unpack_tensor_to_list(t: torch.Tensor) -> list[float | int]:
    """The elements of a tensor, as numbers."""
    return t.cpu().reshape(-1).tolist()
