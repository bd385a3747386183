"""Optimizers that skip a step on the device: the host never waits for a check for infinities.

They take the arguments of their namesakes in torch.optim and run as one fused call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_xla._src.patches import optim_defaults

__all__ = ["SGD", "Adam", "AdamW"]


class _SyncFree(torch.optim.Optimizer):
    def __init__(self, params: Any, *args: Any, foreach: bool | None = None, **kwargs: Any) -> None:
        # `foreach` names an implementation, and so does the name of this class.
        super().__init__(params, *args, **{**kwargs, "fused": True})

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        found_inf: torch.Tensor | None = None,
    ) -> Any:
        """Makes one step.

        Args:
            closure: Evaluates the model again and returns the loss.
            found_inf: A one-element tensor; where it is not 0, nothing changes.
        """
        if found_inf is None:
            return super().step(closure)
        if not all(optim_defaults.skips_on_device(group) for group in self.param_groups):
            return None if found_inf.item() else super().step(closure)
        self.found_inf = (found_inf != 0).float().reshape(())
        try:
            return super().step(closure)
        finally:
            del self.found_inf

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the state of an optimizer, which may be torch.optim's namesake."""
        groups = [{**g, "fused": True, "foreach": None} for g in state_dict["param_groups"]]
        super().load_state_dict({**state_dict, "param_groups": groups})


class Adam(_SyncFree, torch.optim.Adam):
    """`torch.optim.Adam` that skips steps on the device."""


class AdamW(_SyncFree, torch.optim.AdamW):
    """`torch.optim.AdamW` that skips steps on the device."""


class SGD(_SyncFree, torch.optim.SGD):
    """`torch.optim.SGD` that skips steps on the device; with dampening, on the host."""

    @property
    def _step_supports_amp_scaling(self) -> bool:
        return all(optim_defaults.skips_on_device(group) for group in self.param_groups)

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        pass  # torch.optim.SGD sets it for every fused form
