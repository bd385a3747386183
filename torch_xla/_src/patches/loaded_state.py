"""Optimizer state that is loaded is split among devices as its parameters are.

State that an optimizer makes is split by itself, being made like its parameter. What is loaded
comes from the host or from another sharding; it would stay whole on each device from then on, since
what updates a value is split as the value is.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._src.device.names import is_xla_tensor


def install() -> None:
    """To be called once: `torch.optim.Optimizer.load_state_dict` splits what it has loaded."""
    load = torch.optim.Optimizer.load_state_dict

    @functools.wraps(load)
    def load_state_dict(self: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
        load(self, state_dict)
        for param, state in self.state.items():
            if is_xla_tensor(param):
                _split(state, param)

    torch.optim.Optimizer.load_state_dict = load_state_dict


def _split(state: dict[str, Any], param: torch.Tensor) -> None:
    """Splits the tensors of the parameter's sizes as the parameter is."""
    spec_of, sharding = _XLAC._get_xla_sharding_spec, _XLAC._get_xla_op_sharding(param)
    if sharding is None:
        return
    for key, value in state.items():
        if (
            not isinstance(value, torch.Tensor)
            or value.device != param.device
            or value.shape != param.shape
            or spec_of(value) == spec_of(param)
        ):
            continue
        if (
            _XLAC._get_xla_op_sharding(value) is None
        ):  # mostly still on the host; each device is sent its part
            _XLAC._xla_mark_sharding(value, sharding)
        else:  # it may be the tensor of another optimizer
            state[key] = torch.empty_like(param, dtype=value.dtype).copy_(value)
