"""Functions that programs call before they restore a checkpoint."""

from __future__ import annotations

import torch


def prime_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Makes the state that an optimizer otherwise makes in its first step, to be restored into.

    It takes a step with parameters and gradients of zeros and puts everything back: parameters,
    gradients and random state stay as they are, states that are there already too. New counts of
    steps are zero, so that Adam and its like train on as unprimed ones. On `xla` the state is split
    as the parameters are.

    Args:
        optimizer: Its `step` must need no closure.

    Returns:
        The same optimizer.

    Example:
        >>> optimizer = prime_optimizer(torch.optim.AdamW(model.parameters()))
        >>> state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        >>> manager.restore(step, state)
        >>> optimizer.load_state_dict(state["optimizer"])
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters]
    new = [p for p in parameters if p.requires_grad and not optimizer.state.get(p)]
    if not new:
        return optimizer
    values = [p.detach().clone() for p in new]
    try:
        for p in parameters:
            p.grad = None
        for p in new:
            p.grad = torch.zeros_like(p)
            p.detach().zero_()  # so that there is nothing to decay, which would go into the state
        on_xla = any(p.device.type == "xla" for p in new)
        devices = range(torch.get_device_module("xla").device_count()) if on_xla else ()
        with torch.random.fork_rng(devices=devices, device_type="xla"):
            optimizer.step()
    finally:
        with torch.no_grad():
            for p, value in zip(new, values, strict=True):
                p.copy_(value)
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
    for p in new:
        count = optimizer.state[p].get("step") if p in optimizer.state else None
        if isinstance(count, torch.Tensor):
            count.zero_()
        elif count is not None:
            optimizer.state[p]["step"] = 0
    return optimizer
