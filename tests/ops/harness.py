"""Runs a function on the CPU and on xla, and compares what comes back: values, shapes, dtypes, and
the gradients of its floating-point inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

import torch_xla  # noqa: F401  (registers the device)

DEVICE = "xla"


def to_xla(value: Any) -> Any:
    """Tensors of any nest of containers as leaves on xla; strides are kept."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().to(DEVICE), value)


def _as_inputs(value: Any, dtype: torch.dtype | None, device: str, grad: bool) -> Any:
    def one(t: torch.Tensor) -> torch.Tensor:
        if dtype is not None and t.is_floating_point():
            t = t.to(dtype)
        # A copy, for functions that write into their inputs, with the strides of the source.
        t = t.detach().to(device) if device != "cpu" else t.detach().clone()
        differentiable = t.is_floating_point() or t.is_complex()
        return t.requires_grad_() if grad and differentiable else t

    return pytree.tree_map_only(torch.Tensor, one, value)


def assert_same(actual: Any, expected: Any, **tolerances: Any) -> None:
    """`actual` (on xla) against `expected` (on the CPU): structure, shape, dtype and values."""
    actual_leaves, actual_spec = pytree.tree_flatten(actual)
    expected_leaves, expected_spec = pytree.tree_flatten(expected)
    assert actual_spec == expected_spec, f"{actual_spec} != {expected_spec}"
    for a, e in zip(actual_leaves, expected_leaves, strict=True):
        if not isinstance(e, torch.Tensor):
            assert a == e, f"{a!r} != {e!r}"
            continue
        assert a.device.type == DEVICE, f"result on {a.device}, expected xla"
        assert a.dtype == e.dtype, f"result has dtype {a.dtype}, expected {e.dtype}"
        torch.testing.assert_close(
            a.detach().cpu(), e.detach(), equal_nan=True, check_stride=False, **tolerances
        )


def check(
    fn: Callable[..., Any],
    *inputs: Any,
    grad: bool = True,
    dtypes: Sequence[torch.dtype | None] = (None,),
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Compares fn(*inputs) on both devices, once for each dtype that floating-point inputs take.

    Inputs are CPU tensors, containers of them, or plain values. With `grad`, the gradients of the
    floating-point inputs under a fixed random weighting of the results are compared too.
    """
    for dtype in dtypes:
        cpu = _as_inputs(inputs, dtype, "cpu", grad)
        xla = _as_inputs(_as_inputs(inputs, dtype, "cpu", False), None, DEVICE, grad)
        expected, actual = fn(*cpu), fn(*xla)
        assert_same(actual, expected, rtol=rtol, atol=atol)
        if not grad:
            continue
        results = [
            (a, e)
            for a, e in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True)
            if isinstance(e, torch.Tensor) and e.requires_grad
        ]
        leaves = [
            (x, c)
            for x, c in zip(pytree.tree_leaves(xla), pytree.tree_leaves(cpu), strict=True)
            if isinstance(c, torch.Tensor) and c.requires_grad
        ]
        if not results or not leaves:
            continue
        generator = torch.Generator().manual_seed(0)
        weights = [torch.rand(e.shape, generator=generator).to(e.dtype) for _, e in results]
        of_cpu = torch.autograd.grad(
            [e for _, e in results], [c for _, c in leaves], weights, allow_unused=True
        )
        of_xla = torch.autograd.grad(
            [a for a, _ in results],
            [x for x, _ in leaves],
            [w.to(DEVICE) for w in weights],
            allow_unused=True,
        )
        for x, c in zip(of_xla, of_cpu, strict=True):
            assert (x is None) == (c is None), "one device has a gradient, the other has none"
            if c is not None:
                assert_same(x, c, rtol=rtol, atol=atol)
