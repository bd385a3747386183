"""The gradients of several small batches, added up in one loop of the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from torch_xla import _XLAC

__all__ = ["gradient_accumulation"]


def gradient_accumulation(
    train_step: Callable[..., Any],
    iterable_tensors: Sequence[torch.Tensor],
    model: nn.Module,
    *carried_tensors: torch.Tensor,
) -> Any:
    """Adds the gradients of small batches' mean loss to `.grad` of a model's parameters.

    The loop is one operation of the program, compiled once whatever the number of batches; it holds
    the activations of one batch at a time.

    Args:
        train_step: Takes a row of each of `iterable_tensors` and the carried tensors, and returns
            the loss, a tensor of one element, or a tuple of the loss and the next carried tensors.
            It calls no `backward`, and writes no tensors that it does not make.
        iterable_tensors: Tensors on `xla` of one length, [steps, ...] each.
        model: Its parameters that require gradients get them.
        carried_tensors: What `train_step` hands from one batch to the next.

    Returns:
        The mean loss, without gradients; with carried tensors, a tuple of it and the last of them.

    Raises:
        ValueError: If there is no tensor to iterate on or no parameter to train.
        RuntimeError: If `train_step` needs values or writes other tensors, or returns another
            number of tensors.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not iterable_tensors or len(iterable_tensors[0]) == 0:
        raise ValueError("gradient_accumulation: expected tensors of at least one row, got none.")
    if not parameters:
        raise ValueError("gradient_accumulation: expected a model with parameters to train.")
    steps = len(iterable_tensors[0])
    count = len(parameters)
    is_used: list[bool] = []

    def body(*tensors: torch.Tensor) -> list[torch.Tensor]:
        gradients, rest = tensors[:count], tensors[count:]
        carried, rows = rest[: len(carried_tensors)], rest[len(carried_tensors) :]
        with torch.enable_grad():
            results = train_step(*rows, *carried)
            loss, *following = results if isinstance(results, (tuple, list)) else (results,)
            if len(following) != len(carried_tensors):
                raise RuntimeError(
                    f"gradient_accumulation: expected train_step to return the loss and "
                    f"{len(carried_tensors)} carried tensors, got {len(following)}."
                )
            loss = loss.reshape(()) / steps
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
        is_used[:] = [g is not None for g in found]
        sums = [a if g is None else a + g for a, g in zip(gradients, found, strict=True)]
        return [*sums, *(t.detach() for t in following), loss.detach()]

    with torch.no_grad():
        init = [*(torch.zeros_like(p) for p in parameters), *carried_tensors]
        *results, losses = _XLAC._scan(body, init, list(iterable_tensors))
        for parameter, gradient, used in zip(parameters, results[:count], is_used, strict=True):
            if not used:
                continue
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        loss = losses.sum()
    return (loss, *results[count:]) if carried_tensors else loss
