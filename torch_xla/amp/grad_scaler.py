"""Loss scaling for float16 on xla."""

from __future__ import annotations

from typing import Any

import torch

from torch_xla._src.patches import optim_defaults


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler` for xla: its scale and its check for infinities stay on the device.

    An optimizer that skips a step on the device (those of `torch_xla.amp.syncfree`; torch.optim's
    Adam, AdamW, SGD and Adagrad by their fused form, which is the default on xla) reads nothing
    back. For any other, `step` reads one number.

    Args:
        init_scale: The first scale.
        growth_factor: What the scale is multiplied with after `growth_interval` good steps.
        backoff_factor: What the scale is multiplied with after a skipped step.
        growth_interval: The number of good steps in a row before the scale grows.
        enabled: Whether to scale at all.
        use_zero_grad: For the other optimizers: a step whose gradients overflowed is made with
            gradients of zero instead of being skipped, so that nothing is read.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        use_zero_grad: bool = False,
    ) -> None:
        super().__init__(
            "xla",
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            enabled=enabled,
        )
        self._use_zero_grad = use_zero_grad

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Makes the optimizer's step with the gradients divided by the scale, unless one of them is
        infinite or NaN."""
        if self.is_enabled():
            optim_defaults.prefer_skipping_on_device(optimizer)
        return super().step(optimizer, *args, **kwargs)

    def _maybe_opt_step(
        self,
        optimizer: torch.optim.Optimizer,
        optimizer_state: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> float | None:
        if not self._use_zero_grad:
            return super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)
        found_inf = optimizer_state["found_inf_per_device"]
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.masked_fill_(found_inf[p.grad.device] != 0, 0)
        return optimizer.step(*args, **kwargs)
