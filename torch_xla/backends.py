"""Settings of what programs are compiled to."""

from __future__ import annotations

import logging
from typing import Literal, get_args

import torch

logger = logging.getLogger(__name__)
_WARNING_MESSAGE = (
    "Setting mat mul precision multiple times is not recommended: programs that were recorded "
    "before keep theirs. Look at the numbers that come out where you need to."
)

_Precision = Literal["default", "high", "highest"]
_DEFAULT, _HIGH, _HIGHEST = get_args(_Precision)
# By PyTorch's names, which are the setting.
_OF_TORCH: dict[str, _Precision] = {"medium": _DEFAULT, "high": _HIGH, "highest": _HIGHEST}
_TO_TORCH = {ours: torchs for torchs, ours in _OF_TORCH.items()}


def set_mat_mul_precision(precision: _Precision) -> None:
    """Sets how exactly products of float32 are computed, by programs recorded from now on.

    It is the setting of `torch.set_float32_matmul_precision`, where "default" is called "medium".
    Each call is told through the logger "torch_xla.backends", as a warning.

    Args:
        precision: On a TPU, one ("default"), three ("high") or six ("highest") passes in bfloat16.
            A device that has but one way to multiply ignores it.

    Raises:
        ValueError: Another precision.
    """
    _set(precision)
    logger.warning(_WARNING_MESSAGE)


def _set(precision: str) -> None:
    if precision not in _TO_TORCH:
        raise ValueError(f"Invalid precision: {precision}. Must be one of {', '.join(_TO_TORCH)}.")
    torch.set_float32_matmul_precision(_TO_TORCH[precision])


def get_mat_mul_precision() -> _Precision:
    """The precision of products of float32: "highest" unless another was set."""
    return _OF_TORCH[torch.get_float32_matmul_precision()]
