"""Where the tensors of a comparison come from: uploaded, or made in the program of the operation
that reads them, where XLA's compiler sees what they are and rewrites the operation for it.

Each way runs alike on both devices. Some give the values of the sample, others values like them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

# Puts a tensor of the CPU on the device.
Place = Callable[[torch.Tensor], torch.Tensor]


def uploaded(x: torch.Tensor, place: Place) -> torch.Tensor:
    return place(x)


# --- the values of the sample, through another operation ----------------------------------------


def transposed(x: torch.Tensor, place: Place) -> torch.Tensor:
    return place(x.transpose(0, -1).contiguous()).transpose(0, -1)


def with_gaps(x: torch.Tensor, place: Place) -> torch.Tensor:
    """Every second element of a larger tensor, by its first and last dimension."""
    large = x.repeat_interleave(2, 0).repeat_interleave(2, -1)
    return place(large)[::2][..., ::2] if x.dim() > 1 else place(x.repeat_interleave(2))[::2]


def flipped(x: torch.Tensor, place: Place) -> torch.Tensor:
    dims = list(range(x.dim()))
    return place(x.flip(dims)).flip(dims)


def rolled(x: torch.Tensor, place: Place) -> torch.Tensor:
    return place(x.roll(1, -1)).roll(-1, -1)


def joined(x: torch.Tensor, place: Place) -> torch.Tensor:
    cut = (x.size(-1) + 1) // 2
    return torch.cat([place(x[..., :cut]), place(x[..., cut:])], -1)


# --- values like those of the sample -------------------------------------------------------------


def _is_matrix(x: torch.Tensor) -> bool:
    return x.dim() > 1 and x.size(-1) == x.size(-2)


def constant(x: torch.Tensor, place: Place) -> torch.Tensor:
    """Known when the program is compiled: unit matrices, ones, or zeros where 1 is too much."""
    device = place(x.new_empty(0)).device
    if _is_matrix(x) and (x.is_floating_point() or x.is_complex()):
        return torch.eye(x.size(-1), dtype=x.dtype, device=device).expand(x.shape).clone()
    if x.is_complex() or x.dtype == torch.bool:
        return torch.ones(x.shape, dtype=x.dtype, device=device)
    for number, make in (1, torch.ones), (0, torch.zeros):
        if x.min() <= number <= x.max():
            return make(x.shape, dtype=x.dtype, device=device)
    return filled(x, place)


def filled(x: torch.Tensor, place: Place) -> torch.Tensor:
    """One number, which the program is given when it runs."""
    device = place(x.new_empty(0)).device
    return torch.full(x.shape, x.flatten()[0].item(), dtype=x.dtype, device=device)


def expanded(x: torch.Tensor, place: Place) -> torch.Tensor:
    """One row, which stands for all."""
    return place(x.narrow(0, 0, 1).clone()).expand(x.shape)


def counted(x: torch.Tensor, place: Place) -> torch.Tensor:
    """Rising steps between the least and the greatest value of the sample. They are powers of two,
    and so exact however the compiler adds them up."""
    device = place(x.new_empty(0)).device
    if x.dtype == torch.bool:
        return (torch.arange(x.numel(), device=device) % 2 == 0).view(x.shape)
    low, high = x.min().item(), x.max().item()
    if not x.is_floating_point():
        n = torch.arange(x.numel(), dtype=torch.int64, device=device)
        return (n % (high - low + 1) + low).to(x.dtype).view(x.shape)
    if low == high:
        return filled(x, place)
    step = 2.0 ** math.floor(math.log2((high - low) / x.numel()))
    n = torch.arange(x.numel(), dtype=x.dtype, device=device)
    return (n * step + math.ceil(low / step) * step).view(x.shape)


def ones(x: torch.Tensor, place: Place) -> torch.Tensor:
    return torch.ones(x.shape, dtype=x.dtype, device=place(x.new_empty(0)).device)


SAME_VALUES = (transposed, with_gaps, flipped, rolled, joined)
LIKE_VALUES = (constant, filled, expanded, counted)
IN_PROGRAM = {make.__name__: make for make in (*SAME_VALUES, *LIKE_VALUES)}


# Under ones alone the gradients of some operators are all zero.
STEPPED = {"with_gaps", "rolled", "filled", "counted"}


def cotangent_for(name: str) -> str:
    """The weights of results under which a gradient is taken: ones, which `.sum().backward()` gives
    them, or steps."""
    if name not in IN_PROGRAM:
        return name
    return "counted" if name in STEPPED else "ones"


def _takes(make: Callable[[torch.Tensor, Place], torch.Tensor], x: torch.Tensor) -> bool:
    """Whether this way says anything of a tensor like x."""
    if x.numel() == 0 or x.layout != torch.strided or x.is_quantized:
        return False
    if make is transposed:
        return x.dim() > 1
    if make is counted and (x.is_complex() or not x.isfinite().all()):
        return False
    return x.dim() > 0 or make in (constant, filled, ones)


def made(name: str, x: torch.Tensor, place: Place) -> torch.Tensor:
    make = {**IN_PROGRAM, "ones": ones, "uploaded": uploaded}[name]
    return make(x, place) if _takes(make, x) else place(x)


def differs(name: str, x: torch.Tensor) -> bool:
    """Whether this way makes anything else of x than uploading it."""
    return _takes(IN_PROGRAM[name], x)
