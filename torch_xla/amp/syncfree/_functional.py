"""Steps of optimizers over lists of tensors, which a tensor tells to change nothing.

Each is one fused operation. Momentum begins as zeros, which the first step takes as a later one.
"""

from __future__ import annotations

import torch


def adam_step(
    found_inf: torch.Tensor,
    state_steps: list[torch.Tensor],
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    exp_avgs: list[torch.Tensor],
    exp_avg_sqs: list[torch.Tensor],
    max_exp_avg_sqs: list[torch.Tensor],
    *,
    amsgrad: bool,
    beta1: float,
    beta2: float,
    lr: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    use_adamw: bool,
) -> None:
    """One step of Adam, or AdamW, in place; where `found_inf` is not 0, none.

    `state_steps` hold the number of steps made, one element each, and count this one.
    """
    step = torch._fused_adamw_ if use_adamw else torch._fused_adam_
    skip = _as_flag(found_inf)
    with torch.no_grad():
        torch._foreach_add_(state_steps, 1 - skip)
        step(
            params,
            grads,
            exp_avgs,
            exp_avg_sqs,
            max_exp_avg_sqs if amsgrad else [],
            state_steps,
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            weight_decay=weight_decay,
            eps=eps,
            amsgrad=amsgrad,
            maximize=maximize,
            found_inf=skip,
        )


def sgd_step(
    found_inf: torch.Tensor,
    state_steps: list[torch.Tensor],
    params: list[torch.Tensor],
    d_p_list: list[torch.Tensor],
    momentum_buffer_list: list[torch.Tensor | None],
    *,
    weight_decay: float,
    momentum: float,
    lr: float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """One step of SGD in place; where `found_inf` is not 0, none.

    `state_steps` count the steps made, as in `adam_step`. Of `momentum_buffer_list` those that are
    None become tensors. With `dampening` the first step, of a count of 0, is not dampened.
    """
    skip = _as_flag(found_inf)
    with torch.no_grad():
        if momentum:
            for i, (p, gradient) in enumerate(zip(params, d_p_list, strict=True)):
                buffer = momentum_buffer_list[i]
                if buffer is None:
                    buffer = momentum_buffer_list[i] = torch.zeros_like(p)
                if dampening:
                    # So that (1 - dampening) of what is decayed gives the whole of it.
                    first = state_steps[i] == 0
                    sign = -1 if maximize else 1
                    whole = gradient * sign + weight_decay * p
                    buffer.copy_(torch.where(first, whole * (dampening / momentum), buffer))
        torch._foreach_add_(state_steps, 1 - skip)
        torch._fused_sgd_(
            params,
            d_p_list,
            [buffer for buffer in momentum_buffer_list if buffer is not None] if momentum else [],
            weight_decay=weight_decay,
            momentum=momentum,
            lr=lr,
            dampening=dampening,
            nesterov=nesterov,
            maximize=maximize,
            is_first_step=False,
            found_inf=skip,
        )


def _as_flag(found_inf: torch.Tensor) -> torch.Tensor:
    return (found_inf != 0).float().reshape(())
