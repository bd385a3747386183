"""Parts of `torch_xla.experimental.scan` of earlier versions, for those who build on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.utils import _pytree

from torch_xla import _XLAC
from torch_xla._src.builder.ops import Op
from torch_xla._src.builder.parameters import Parameters

U = TypeVar("U")


class Builder:
    """Parameters of a computation, one for each tensor.

    Args:
        name: The name of the computation's builder.
    """

    def __init__(self, name: str):
        self._parameters = Parameters(name)

    def add_param(self, val: torch.Tensor) -> int:
        """Adds a parameter of the tensor's shape and returns its number."""
        return self._parameters.add(val)

    def params(self) -> tuple[Op, ...]:
        return tuple(self._parameters.ops)

    def param_tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(self._parameters.tensors)

    def num_params(self) -> int:
        return len(self._parameters.ops)


def dynamic_slice(xs: Op, idx: Op) -> Op:
    """Row `idx` of xs, [length, *row]: [*row]. `idx` is an integer scalar."""
    sizes = xs.shape().sizes
    return xs.dynamic_slice(_row(xs, idx), (1, *sizes[1:])).reshape(sizes[1:])


def dynamic_update_slice(ys: Op, y: Op, idx: Op) -> Op:
    """ys, [length, *row], with y, [*row], as row `idx`."""
    return ys.dynamic_update_slice(y.reshape((1, *y.shape().sizes)), _row(ys, idx))


def _row(xs: Op, idx: Op) -> list[Op]:
    idx = idx.reshape(())
    return [idx] + [idx.zeros_like()] * (xs.shape().rank - 1)


def split(seq: Sequence[U], *part_lengths: int) -> tuple[Sequence[U], ...]:
    """Parts of these lengths, one after the other.

    Raises:
        ValueError: They are not the whole.
    """
    if sum(part_lengths) != len(seq):
        raise ValueError(f"split: expected parts of {len(seq)} altogether, got {part_lengths}.")
    parts, start = [], 0
    for length in part_lengths:
        parts.append(seq[start : start + length])
        start += length
    return tuple(parts)


def tree_flatten_none(pytree: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The leaves of a tree but for None, and what makes the tree of others in their places."""
    leaves, spec = _pytree.tree_flatten(pytree)
    is_none = [leaf is None for leaf in leaves]

    def unflatten(flat: Sequence[Any]) -> Any:
        given = iter(flat)
        return _pytree.tree_unflatten([None if none else next(given) for none in is_none], spec)

    return _remove_none(leaves), unflatten


def _remove_none(s: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    return [value for value in s if value is not None]


def _save_for_backward(ctx: Any, pytree: Any) -> None:
    """Saves a tree of tensors and other values with an autograd function's context."""
    leaves, ctx._torch_xla_spec = _pytree.tree_flatten(pytree)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    ctx._torch_xla_others = [None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves]
    ctx.save_for_backward(*tensors)


def _load_from_context(ctx: Any) -> Any:
    """The tree that `_save_for_backward` saved."""
    tensors = iter(ctx.saved_tensors)
    leaves = [next(tensors) if other is None else other[0] for other in ctx._torch_xla_others]
    return _pytree.tree_unflatten(leaves, ctx._torch_xla_spec)


def _scan_impl_flat(
    fn: Callable[..., Any],
    init: Sequence[torch.Tensor],
    xs: Sequence[torch.Tensor],
    reverse: bool = False,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """A scan of lists of tensors on `xla`, without gradients.

    Args:
        fn: Takes the carried tensors and a row of each of `xs`, two lists, and returns the next
            carried tensors and the row's results, two lists.
        init: The first carried tensors.
        xs: Tensors of one length.
        reverse: Whether the last row comes first.

    Returns:
        The last carried tensors, and the results of all rows, stacked.
    """
    count = len(init)

    def row(*tensors: torch.Tensor) -> list[torch.Tensor]:
        carry, results = fn(list(tensors[:count]), list(tensors[count:]))
        return [*carry, *results]

    with torch.no_grad():
        outputs = _XLAC._scan(row, list(init), list(xs), reverse)
    return outputs[:count], outputs[count:]


def _scan_impl_pytree(
    fn: Callable[..., Any], init: Any, xs: Any, reverse: bool = False
) -> tuple[Any, Any]:
    """The same of trees; `fn(carry, x) -> (carry, y)`, where y may hold None."""
    carry_leaves, carry_spec = _pytree.tree_flatten(init)
    rows, rows_spec = _pytree.tree_flatten(xs)
    unflatten_y: Any = None

    def flat(carry: list, row: list) -> tuple[list, list]:
        nonlocal unflatten_y
        tree = _pytree.tree_unflatten(row, rows_spec)
        carry, y = fn(_pytree.tree_unflatten(carry, carry_spec), tree)
        ys, unflatten_y = tree_flatten_none(y)
        return _pytree.tree_leaves(carry), ys

    carry, ys = _scan_impl_flat(flat, carry_leaves, rows, reverse)
    return _pytree.tree_unflatten(carry, carry_spec), unflatten_y(ys)


def _find_input_activation_aliases(
    fake_carry_pytree: Any, fake_x_pytree: Any, num_out: int, fwd_graph: torch.fx.GraphModule
) -> dict[int, int]:
    """Inputs that a forward graph keeps as they came.

    Args:
        fake_carry_pytree, fake_x_pytree: Its inputs.
        num_out: How many results come before what it keeps.
        fwd_graph: The graph.

    Returns:
        By the place among what is kept, the place among the leaves of both trees.
    """
    count = len(_pytree.tree_leaves((fake_carry_pytree, fake_x_pytree)))
    inputs = [node for node in fwd_graph.graph.nodes if node.op == "placeholder"][:count]
    (output,) = (node for node in fwd_graph.graph.nodes if node.op == "output")
    kept = _pytree.tree_leaves(output.args[0])[num_out:]
    return {i: inputs.index(node) for i, node in enumerate(kept) if node in inputs}


def _backward_shard_alike(carry: Any, x: Any, backward: Callable, init: Any, xs: Any) -> Any:
    """`backward(carry, x)`: there are no shardings of `init` and `xs` that gradients could take."""
    return backward(carry, x)


def _make_get_graph_compiler() -> tuple[Callable, Callable[[], torch.fx.GraphModule | None]]:
    """A compiler for AOTAutograd that runs the graph as it is, and what gives its last graph."""
    graphs: list[torch.fx.GraphModule] = []

    def compiler(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable:
        from functorch.compile import make_boxed_func

        graphs[:] = [graph]
        return make_boxed_func(graph)

    return compiler, lambda: graphs[0] if graphs else None
