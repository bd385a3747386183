"""Gradient functions of trees of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree


def pytreeify(cls: type[torch.autograd.Function]) -> type:
    """Lets an autograd function take and give trees of tensors: lists, tuples and dictionaries.

    Args:
        cls: An autograd function. Its `forward(ctx, *trees)` and `backward(ctx, *gradients)` see
            trees; gradients have the structure of the results, and what `backward` returns has
            that of the arguments, or None for one without gradients.

    Returns:
        A class with the function's name, whose `apply(*trees)` calls it.
    """

    class Flat(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, spec: pytree.TreeSpec, given: _Given, *leaves: Any) -> Any:
            ctx.spec = spec
            results, given.spec = pytree.tree_flatten(
                cls.forward(ctx, *pytree.tree_unflatten(leaves, spec))
            )
            ctx.given = given
            return tuple(results)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            tree = pytree.tree_unflatten(gradients, ctx.given.spec)
            found = cls.backward(ctx, *(tree if isinstance(tree, tuple) else (tree,)))
            found = found if isinstance(found, tuple) else (found,)
            leaves: list[Any] = []
            for gradient, spec in zip(found, ctx.spec.children(), strict=True):
                if gradient is None:
                    leaves += [None] * spec.num_leaves
                else:
                    leaves += spec.flatten_up_to(gradient)
            return None, None, *leaves

    class Tree(cls):  # type: ignore[valid-type, misc]
        @staticmethod
        def apply(*arguments: Any) -> Any:
            leaves, spec = pytree.tree_flatten(arguments)
            given = _Given()
            return pytree.tree_unflatten(Flat.apply(spec, given, *leaves), given.spec)

    Tree.__name__ = Tree.__qualname__ = cls.__name__
    Tree.__doc__ = cls.__doc__
    return Tree


class _Given:
    spec: pytree.TreeSpec
