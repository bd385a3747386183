"""The gradients of several small batches, added up in one loop of the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torch_xla import _XLAC
from torch_xla._src.builder.ops import Op
from torch_xla._src.builder.parameters import Parameters

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
    steps = len(iterable_tensors[0]) if iterable_tensors else 0
    return _gradient_accumulation(steps, train_step, iterable_tensors, model, carried_tensors)


def _gradient_accumulation(
    accumulation_steps: int,
    train_step: Callable[..., Any],
    iterable_tensors: Sequence[torch.Tensor],
    model: nn.Module,
    carried_tensors: Sequence[torch.Tensor],
) -> Any:
    """`gradient_accumulation` of that many rows, by which losses are divided."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if accumulation_steps == 0:
        raise ValueError("gradient_accumulation: expected tensors of at least one row, got none.")
    if not parameters:
        raise ValueError("gradient_accumulation: expected a model with parameters to train.")
    context = GradientAccumulationContext(
        accumulation_steps, len(iterable_tensors), len(carried_tensors)
    )

    def body(rows: Sequence[torch.Tensor], carried: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        results = train_step(*rows, *carried)
        loss, *following = results if isinstance(results, (tuple, list)) else (results,)
        if len(following) != context.num_carried_tensors:
            raise RuntimeError(
                f"gradient_accumulation: expected train_step to return the loss and "
                f"{context.num_carried_tensors} carried tensors, got {len(following)}."
            )
        return loss.reshape(()) / context.num_gradient_steps, following

    loss, carried = _gradient_accumulation_impl(
        context, body, iterable_tensors, parameters, carried_tensors
    )
    return (loss, *carried) if carried_tensors else loss


def _gradient_accumulation_impl(
    context: GradientAccumulationContext,
    body_fn: Callable[..., tuple[torch.Tensor, Sequence[torch.Tensor]]],
    iterable_tensors: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    carried_tensors: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The loop: adds the gradients of a loss to `.grad` of parameters.

    Args:
        context: How many rows and tensors there are.
        body_fn: Takes a row of each of `iterable_tensors`, and the carried tensors, and returns a
            0-dim loss and the next carried tensors.
        iterable_tensors, params, carried_tensors: The tensors.

    Returns:
        The sum of the losses, and the last carried tensors.
    """
    count = len(params)
    is_used: list[bool] = []

    def body(*tensors: torch.Tensor) -> list[torch.Tensor]:
        gradients, rest = tensors[:count], tensors[count:]
        carried, rows = rest[: context.num_carried_tensors], rest[context.num_carried_tensors :]
        with torch.enable_grad():
            loss, following = body_fn(rows, carried)
            found = torch.autograd.grad(loss, params, allow_unused=True)
        is_used[:] = [g is not None for g in found]
        sums = [a if g is None else a + g for a, g in zip(gradients, found, strict=True)]
        return [*sums, *(t.detach() for t in following), loss.detach()]

    with torch.no_grad():
        init = [*(torch.zeros_like(p) for p in params), *carried_tensors]
        *results, losses = _XLAC._scan(body, init, list(iterable_tensors))
        for parameter, gradient, used in zip(params, results[:count], is_used, strict=True):
            if not used:
                continue
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        return losses.sum(), results[count:]


@dataclass
class GradientAccumulationContext:
    """The numbers of accumulated rows, of their tensors, and of those that are carried on."""

    num_gradient_steps: int
    num_iterable_tensors: int
    num_carried_tensors: int


def _make_init_grad(param: torch.Tensor) -> torch.Tensor:
    """The gradient that a parameter has, or zeros."""
    return torch.zeros_like(param) if param.grad is None else param.grad


class XlaBuildHelper:
    """Parameters of a computation (`torch_xla.core.xla_builder`), one for each tensor.

    Args:
        name: The name of the computation's builder.
    """

    def __init__(self, name: str):
        self._parameters = Parameters(name)

    def add_param(self, val: torch.Tensor, idx: int | None = None) -> int:
        """Adds a parameter of the tensor's shape and returns its number.

        Raises:
            ValueError: `idx` is not the next number.
        """
        if idx is not None and idx != self.num_params:
            raise ValueError(f"add_param: expected the next number, {self.num_params}, got {idx}.")
        return self._parameters.add(val)

    @property
    def params(self) -> tuple[Op, ...]:
        return tuple(self._parameters.ops)

    @property
    def param_tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(self._parameters.tensors)

    @property
    def num_params(self) -> int:
        return len(self._parameters.ops)
