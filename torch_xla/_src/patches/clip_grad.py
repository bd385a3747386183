"""`torch.nn.utils.clip_grad_norm_` answers on the device of its parameters.

PyTorch's gives a zero on the CPU where no parameter has a gradient. What a program then does with
it (a reduction over replicas, a step's statistics) expects it on the device.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch

_pytorchs = torch.nn.utils.clip_grad_norm_


@functools.wraps(_pytorchs)
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    # PyTorch warns of an empty generator, which this one is now.
    total_norm = _pytorchs(given or parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    if given and given[0].device.type == "xla" and total_norm.device.type == "cpu":
        return total_norm.to(given[0].device)
    return total_norm


def install() -> None:
    """To be called once. Programs reach the function by both names."""
    torch.nn.utils.clip_grad_norm_ = clip_grad_norm_
    torch.nn.utils.clip_grad.clip_grad_norm_ = clip_grad_norm_
