"""Loops of a program: `while_loop`, which is PyTorch's, and `fori_loop`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._higher_order_ops.while_loop import while_loop as _torch_while_loop

from torch_xla import _XLAC

__all__ = ["fori_loop", "while_loop"]


def while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] | None = None,
) -> Any:
    """Replaces the carried values by `body_fn` of them while `cond_fn` of them is true.

    This is `torch._higher_order_ops.while_loop`, which is one operation of the program on `xla`.

    Args:
        cond_fn: Takes all inputs and returns a 0-dim bool tensor.
        body_fn: Takes all inputs and returns the next carried values, of the same shapes and
            dtypes.
        carried_inputs: The first carried values.
        additional_inputs: Further arguments of both, which stay as they are.

    Returns:
        The last carried values.
    """
    more = tuple(additional_inputs or ())
    if not more:
        return _torch_while_loop(cond_fn, body_fn, tuple(carried_inputs))
    return _torch_while_loop(
        lambda *carried: cond_fn(*carried, *more),
        lambda *carried: body_fn(*carried, *more),
        tuple(carried_inputs),
    )


def _xla_while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Sequence[torch.Tensor],
    additional_inputs: Sequence[Any] | None = None,
    fake_tensor: bool = False,
) -> tuple[torch.Tensor, ...]:
    """`while_loop` of flat tensors on `xla`, without torch.compile's look at the functions."""
    if fake_tensor:  # nothing is computed: what goes in says what comes out
        return tuple(torch.empty_like(t) for t in carried_inputs)
    more = tuple(additional_inputs or ())
    with torch.no_grad():
        return tuple(
            _XLAC._while_loop(
                lambda *carried: [cond_fn(*carried, *more).reshape(())],
                lambda *carried: list(body_fn(*carried, *more)),
                list(carried_inputs),
            )
        )


_xla_while_loop_wrapper = _xla_while_loop


def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[..., Any], *input_value: torch.Tensor
) -> tuple[Any, ...]:
    """Calls `body_fun` on the values that it gave last, `upper - lower` times.

    Args:
        lower, upper: Integers, or integer tensors of one element on `xla`: one program serves all
            of their values.
        body_fun: Takes the values and returns as many, of the same shapes and dtypes; or fewer,
            which replace the last ones.
        input_value: The first values.

    Returns:
        (lower, upper, *values): `lower` as it is after the last call, and the last values.

    Raises:
        ValueError: If there are no values, or a bound has more than one element.
        RuntimeError: If `body_fun` changes shapes or dtypes, needs values, or writes tensors that
            it does not make.
    """
    if not input_value:
        raise ValueError("fori_loop: expected at least one value, got none.")
    device = input_value[0].device
    bounds = [torch.as_tensor(bound, device=device) for bound in (lower, upper)]
    for bound in bounds:
        if bound.numel() != 1 or bound.is_floating_point():
            raise ValueError(
                f"fori_loop: expected bounds of one integer, got {bound.dtype} of shape "
                f"{tuple(bound.shape)}."
            )

    def go_on(lower: torch.Tensor, upper: torch.Tensor, *_: torch.Tensor) -> list[torch.Tensor]:
        return [(lower < upper).reshape(())]

    def body(lower: torch.Tensor, upper: torch.Tensor, *values: torch.Tensor) -> list[Any]:
        results = body_fun(*values)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        return [lower + 1, upper, *values[: len(values) - len(results)], *results]

    with torch.no_grad():
        if device.type == "xla":
            return tuple(_XLAC._while_loop(go_on, body, [*bounds, *input_value]))
        state = [*bounds, *input_value]
        while go_on(*state)[0]:
            state = body(*state)
        return tuple(state)
