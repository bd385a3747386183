"""Functions of JAX on tensors of `xla`, with JAX's gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_xla._internal.jax_workarounds import requires_jax
from torch_xla._src.builder.flat_callables import call_jax


@requires_jax
def j2t_autograd(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of JAX as one of tensors on `xla` that autograd differentiates.

    JAX makes the backward pass. Both passes are parts of our programs, traced once for each
    structure and set of shapes.

    Args:
        fn: Takes and returns trees of arrays. Gradients flow to floating arguments.

    Raises:
        ImportError: JAX is not installed.
    """
    import jax
    import numpy as np

    tree = jax.tree_util

    def run_forward(indices: tuple, tensors: tuple, args: tuple, kwargs: dict) -> Any:
        def of_tensors(*given: Any) -> Any:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            for i, value in zip(indices, given, strict=True):
                leaves[i] = value
            called_args, called_kwargs = pytree.tree_unflatten(leaves, spec)
            return fn(*called_args, **called_kwargs)

        return jax.vjp(of_tensors, *tensors)  # the second is a tree, too: of what backward needs

    def run_backward(structure: Any, kept: list, gradients: Any) -> Any:
        def of_result(gradient: Any) -> Any:
            if jax.numpy.issubdtype(gradient.dtype, jax.numpy.inexact):
                return gradient
            return np.zeros(gradient.shape, jax.dtypes.float0)  # integers have none

        gradients = tree.tree_map(of_result, gradients)
        return tree.tree_unflatten(structure, kept)(gradients)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, holder: dict, indices: tuple, args: tuple, kwargs: dict, *tensors):
            key = ("forward", fn, indices)
            result, pull_back = call_jax(
                run_forward, (indices, tensors, args, kwargs), override_hash=key
            )
            kept, ctx.structure = tree.tree_flatten(pull_back)
            flat, ctx.spec = tree.tree_flatten(result)
            holder["spec"] = ctx.spec
            ctx.like = [(t.shape, t.dtype, t.device) for t in flat]
            ctx.save_for_backward(*kept)
            ctx.mark_non_differentiable(*(t for t in flat if not t.dtype.is_floating_point))
            return tuple(flat)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor | None):
            given = [
                torch.zeros(shape, dtype=dtype, device=device) if g is None else g
                for g, (shape, dtype, device) in zip(gradients, ctx.like, strict=True)
            ]
            arguments = ctx.structure, list(ctx.saved_tensors), tree.tree_unflatten(ctx.spec, given)
            found = call_jax(run_backward, arguments, override_hash=("backward", fn))
            return None, None, None, None, *found

    def called(*args: Any, **kwargs: Any) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        indices = tuple(
            i
            for i, leaf in enumerate(leaves)
            if isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point
        )
        holder: dict[str, Any] = {}
        detached = pytree.tree_map(
            lambda v: v.detach() if isinstance(v, torch.Tensor) else v, (args, kwargs)
        )
        flat = Function.apply(holder, indices, *detached, *(leaves[i] for i in indices))
        return tree.tree_unflatten(holder["spec"], list(flat))

    return called
