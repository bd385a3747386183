"""Functions of fixed sizes for models whose own sizes depend on values."""

from __future__ import annotations

import torch

__all__ = ["repeat_with_fixed_output_size"]


def repeat_with_fixed_output_size(
    input: torch.Tensor, repeats: torch.Tensor, total_repeat_length: int
) -> torch.Tensor:
    """Repeats each element as often as it is said, and gives a result of a size that is given.

    `torch.repeat_interleave(input, repeats)`, cut to that size, or filled up with the last element
    of `input`. Nothing is read, whatever the repeats are.

    Args:
        input: [elements].
        repeats: [elements], integers.
        total_repeat_length: The size of the result.

    Returns:
        [total_repeat_length], in the dtype of `input`.

    Raises:
        ValueError: An argument has not one dimension, or they differ in size.
    """
    if input.dim() != 1 or repeats.shape != input.shape:
        raise ValueError(
            "repeat_with_fixed_output_size: expected elements and as many repeats, of one "
            f"dimension, got shapes {tuple(input.shape)} and {tuple(repeats.shape)}."
        )
    positions = torch.arange(total_repeat_length, device=input.device)
    index = torch.searchsorted(repeats.cumsum(0), positions, right=True)
    return input.gather(0, index.clamp(max=input.numel() - 1))
