"""`torch.nn.GRU` under the name of earlier versions."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from torch_xla._src.old_names.gru import GRU
from torch_xla.experimental.scan import scan

__all__ = ["GRU", "scan"]


def _gru_step_fn(
    carry: tuple[torch.Tensor, ...], x_t: torch.Tensor
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """One time step of one layer, for `scan`.

    Args:
        carry: The state [batch, hidden], and the layer's weight_ih, weight_hh, bias_ih, bias_hh.
        x_t: The input [batch, input].

    Returns:
        The next carry, and the next state.
    """
    h, weight_ih, weight_hh, bias_ih, bias_hh = carry
    reset_x, update_x, new_x = F.linear(x_t, weight_ih, bias_ih).chunk(3, -1)
    reset_h, update_h, new_h = F.linear(h, weight_hh, bias_hh).chunk(3, -1)
    update = (update_x + update_h).sigmoid()
    new = (new_x + (reset_x + reset_h).sigmoid() * new_h).tanh()
    h = new + update * (h - new)
    return (h, weight_ih, weight_hh, bias_ih, bias_hh), h
