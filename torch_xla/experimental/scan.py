"""A loop over the rows of tensors, as one loop of the program.

    carry, ys = scan(fn, init, xs)

computes what this Python loop does, and compiles `fn` once whatever the number of rows:

    carry, ys = init, []
    for x in rows of xs:
        carry, y = fn(carry, x)
        ys.append(y)
    ys = stacked ys
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch.utils import _pytree as pytree

from torch_xla import _XLAC
from torch_xla._src.functions.joint import Joint, not_twice_differentiable
from torch_xla._src.old_names.scan import (  # noqa: F401 (names of earlier versions)
    Builder,
    U,
    _backward_shard_alike,
    _find_input_activation_aliases,
    _load_from_context,
    _make_get_graph_compiler,
    _remove_none,
    _save_for_backward,
    _scan_impl_flat,
    _scan_impl_pytree,
    dynamic_slice,
    dynamic_update_slice,
    split,
    tree_flatten_none,
)
from torch_xla.experimental.pytreeify import pytreeify

__all__ = [
    "default_partition",
    "min_cut_rematerialization_partition",
    "pytreeify",
    "scan",
    "value_and_grad_partitioned",
]

Carry = TypeVar("Carry")
X = TypeVar("X")
Y = TypeVar("Y")


def __getattr__(name: str) -> Any:
    if name == "shard_as":  # its module imports much
        from torch_xla.distributed.spmd.xla_sharding import shard_as

        return shard_as
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def scan(
    fn: Callable[[Carry, X], tuple[Carry, Y]],
    init: Carry,
    xs: X,
    partition_fn: Callable[..., Any] = default_partition,
    is_fn_pure: bool = False,
) -> tuple[Carry, Y]:
    """Calls `fn` with a carried value and a row of `xs`, for each row in turn.

    Gradients flow to `init`, `xs` and the tensors that `fn` closes over. Random numbers in `fn`
    differ from row to row. Tensors that are not on `xla` are scanned by a Python loop.

    Args:
        fn: Takes the carry and a row of `xs`, each a tree of tensors, and returns the next carry,
            of the same shapes and dtypes, and a tree of results, or None. It may write its carry;
            other tensors that it does not make it may not.
        init: The first carry.
        xs: A tree of tensors of one length, [length, ...] each.
        partition_fn: Says what is kept for the backward pass. `default_partition` keeps what it
            reads; `min_cut_rematerialization_partition` does not keep what elementwise operations
            make of other values, and computes it again. Both are of functorch.compile, of which
            the names are meant; another function is taken for the first.
        is_fn_pure: Promises that `fn` computes the same for all calls with these shapes and this
            `fn`, so that later calls need not look again.

    Returns:
        The last carry, and the results of all rows, stacked: [length, ...] each.

    Raises:
        ValueError: If `fn` cannot be called, `xs` has no tensors, or their lengths differ.
        RuntimeError: If `fn` changes the carry's shapes or dtypes, needs values, or writes other
            tensors than it makes.
    """
    if not callable(fn):
        raise ValueError(f"scan: expected a function, got {fn!r}: `fn` must be callable.")
    carried, carry_spec = pytree.tree_flatten(init)
    rows, rows_spec = pytree.tree_flatten(xs)
    _check(carried, rows)
    if any(t.device.type != "xla" for t in (*carried, *rows)):
        return _python_loop(fn, init, rows, rows_spec)
    tree = _Tree(fn, carry_spec, rows_spec)
    if torch.is_grad_enabled():
        joint = _joint_of(tree, carried, rows, partition_fn, is_fn_pure)
        tensors = (*carried, *rows, *joint.captured)
        if any(joint.has_gradient):
            struct = _Struct(joint, len(carried), len(rows))
            return tree.results(Scan.apply(struct, [], *tensors))
    with torch.no_grad():
        return tree.results(_XLAC._scan(tree.flat, carried, rows))


def _check(carried: list[Any], rows: list[Any]) -> None:
    for leaf in (*carried, *rows):
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(
                f"scan: expected trees of tensors, got a {type(leaf).__name__}. Close over what is "
                "no tensor."
            )
    if not rows:
        raise ValueError("scan: expected xs with at least one tensor, got none.")
    shapes = [tuple(t.shape) for t in rows]
    if any(not shape or shape[0] != shapes[0][0] for shape in shapes):
        raise ValueError(f"scan: expected xs of one length, got tensors of shapes {shapes}.")


def _python_loop(
    fn: Callable[..., Any], carry: Any, rows: list[Any], spec: pytree.TreeSpec
) -> tuple[Any, ...]:
    ys = []
    for i in range(len(rows[0])):
        own = pytree.tree_map_only(torch.Tensor, torch.clone, carry)  # which `fn` may write
        carry, y = fn(own, pytree.tree_unflatten([t[i] for t in rows], spec))
        ys.append(y)
    if not ys:
        raise ValueError("scan: expected at least one row on this device, got none.")
    return carry, pytree.tree_map(lambda *rows: None if rows[0] is None else torch.stack(rows), *ys)


class _Tree:
    """`fn` on flat tensors."""

    def __init__(
        self, fn: Callable[..., Any], carry_spec: pytree.TreeSpec, rows_spec: pytree.TreeSpec
    ):
        self.fn = fn
        self.specs = (carry_spec, rows_spec)
        # The structure of its last result.
        self.y_spec: Any = None  # known once a row was computed
        self.is_tensor: list[bool] = []

    def flat(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        carry_spec, rows_spec = self.specs
        count = carry_spec.num_leaves
        own = [t.clone() for t in tensors[:count]]  # which `fn` may write
        results = self.fn(
            pytree.tree_unflatten(own, carry_spec),
            pytree.tree_unflatten(tensors[count:], rows_spec),
        )
        if not isinstance(results, (tuple, list)) or len(results) != 2:
            raise RuntimeError(
                f"scan: expected fn to return (carry, y), got a {type(results).__name__}."
            )
        carry, spec = pytree.tree_flatten(results[0])
        if spec != carry_spec:
            raise RuntimeError(
                f"scan: expected fn to keep the carry's structure {carry_spec}, got {spec}."
            )
        ys, self.y_spec = pytree.tree_flatten(results[1])
        leaves = [*carry, *ys]
        self.is_tensor = [leaf is not None for leaf in leaves]
        for leaf in leaves:
            if leaf is not None and not isinstance(leaf, torch.Tensor):
                raise RuntimeError(
                    f"scan: expected fn to return trees of tensors and None, got a "
                    f"{type(leaf).__name__} in one."
                )
        return [leaf for leaf in leaves if leaf is not None]

    def results(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        given = iter(tensors)
        leaves = [next(given) if is_tensor else None for is_tensor in self.is_tensor]
        count = self.specs[0].num_leaves
        return (
            pytree.tree_unflatten(leaves[:count], self.specs[0]),
            pytree.tree_unflatten(leaves[count:], self.y_spec),
        )


# --- gradients -----------------------------------------------------------------------------


class _Struct(NamedTuple):
    """The tensors of a scan: carried ones, rows, then what `joint` has captured."""

    joint: Joint
    num_carried: int
    num_rows: int


class Scan(torch.autograd.Function):
    """A scan whose rows' gradients are another scan, from the last row to the first.

    `out_struct_holder`, a list, takes shape, dtype and device of each result.
    """

    @staticmethod
    def forward(
        ctx: Any, struct: _Struct, out_struct_holder: list[Any], *flat_inp: torch.Tensor
    ) -> Any:
        joint, num_carried, num_rows = struct
        carried = flat_inp[:num_carried]
        rows = flat_inp[num_carried : num_carried + num_rows]
        captured = flat_inp[num_carried + num_rows :]
        # Rows and captured tensors are there in the backward pass, too.
        stacks = [k for k in dict.fromkeys(joint.kept) if k[1] < num_carried or not k[0]]

        def forward_row(*inputs: torch.Tensor) -> list[torch.Tensor]:
            outputs = joint.forward(*inputs, *captured)
            kept = [inputs[i] if is_input else outputs[i] for is_input, i in stacks]
            return [*outputs[: joint.num_results], *kept]

        outputs = _XLAC._scan(forward_row, list(carried), list(rows))
        results, kept = outputs[: joint.num_results], outputs[joint.num_results :]
        ctx.joint, ctx.stacks, ctx.num_carried, ctx.num_rows = joint, stacks, num_carried, num_rows
        ctx.save_for_backward(*kept, *rows, *captured)
        out_struct_holder[:] = [(t.shape, t.dtype, t.device) for t in results]
        ctx.results = out_struct_holder
        ctx.mark_non_differentiable(
            *(t for t, has in zip(results, joint.has_gradient, strict=True) if not has)
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        joint, num_carried, num_rows = ctx.joint, ctx.num_carried, ctx.num_rows
        saved, num_kept = list(ctx.saved_tensors), len(ctx.stacks)
        kept, rows = saved[:num_kept], saved[num_kept : num_kept + num_rows]
        captured = saved[num_kept + num_rows :]
        given = iter(joint.gradients_given(gradients, ctx.results))
        has, gets = joint.has_gradient, joint.gets_gradient
        # A carried value's gradient comes from the next row, and from what this row makes of it.
        of_carried = [i for i in range(num_carried) if has[i] or gets[i]]
        of_rows = [num_carried + i for i in range(num_rows) if gets[num_carried + i]]
        of_captured = [i for i in range(num_carried + num_rows, len(gets)) if gets[i]]
        start = [
            next(given) if has[i] else torch.zeros(shape, dtype=dtype, device=device)
            for i, (shape, dtype, device) in enumerate(ctx.results[:num_carried])
            if i in of_carried
        ]
        of_ys = list(given)

        def backward_row(*inputs: torch.Tensor) -> list[torch.Tensor]:
            tensors = iter(inputs)
            following = {i: next(tensors) for i in of_carried}
            sums = {i: next(tensors) for i in of_captured}
            tangents = [
                *(following[i] for i in of_carried if has[i]),
                *(next(tensors) for _ in of_ys),
            ]
            there = {place: next(tensors) for place in ctx.stacks}
            for i, tensor in enumerate((*tensors, *captured)):
                there[True, num_carried + i] = tensor
            found = joint.backward(*(there[place] for place in joint.kept), *tangents)
            return [
                # None: a carried value without influence.
                *(
                    torch.zeros_like(g) if found[i] is None else found[i]
                    for i, g in following.items()
                ),
                *(total + found[i] for i, total in sums.items()),
                *(found[i] for i in of_rows),
            ]

        zeros = [torch.zeros_like(captured[i - num_carried - num_rows]) for i in of_captured]
        outputs = _XLAC._scan(backward_row, [*start, *zeros], [*of_ys, *kept, *rows], True)
        found = dict(zip([*of_carried, *of_captured, *of_rows], outputs, strict=True))
        every = [found.get(i) if gets[i] else None for i in range(len(gets))]
        return None, None, *not_twice_differentiable(every, "scan")


def _joint_of(
    tree: _Tree,
    carried: list[Any],
    rows: list[Any],
    partition_fn: Callable[..., Any],
    is_fn_pure: bool,
) -> Joint:
    """A row's results and gradients; of a pure function, those that were recorded before."""
    row = [torch.empty(t.shape[1:], dtype=t.dtype, device=t.device) for t in rows]
    known = _pure_functions(tree.fn) if is_fn_pure else {}
    name = (
        tree.specs,
        tuple((t.shape, t.dtype, t.requires_grad) for t in (*carried, *rows)),
        partition_fn,
        (torch.is_autocast_enabled("xla"), torch.get_autocast_dtype("xla")),
        torch.get_default_dtype(),
    )
    if name in known:
        joint, tree.y_spec, tree.is_tensor = known[name]
        return joint
    requires_grad = [t.requires_grad for t in (*carried, *rows)]
    recomputes = partition_fn is min_cut_rematerialization_partition
    while True:
        joint = Joint(tree.flat, [*carried, *row], requires_grad, recomputes)
        # The body's gradients of the carried inputs go on to the next row.
        more = [
            has and not requires_grad[i] for i, has in enumerate(joint.has_gradient[: len(carried)])
        ]
        if not any(more):
            break
        for i, has in enumerate(more):
            requires_grad[i] |= has
    if is_fn_pure:
        known[name] = joint, tree.y_spec, tree.is_tensor
    return joint


# By function, what was recorded for shapes, partitions and modes.
_SCAN_COMPUTATION_CACHE: weakref.WeakKeyDictionary[Callable[..., Any], dict[Any, Any]] = (
    weakref.WeakKeyDictionary()
)


def _pure_functions(fn: Callable[..., Any]) -> dict[Any, Any]:
    """Facts about a function that is pure; it ends with the function."""
    try:
        return _SCAN_COMPUTATION_CACHE.setdefault(fn, {})
    except TypeError:  # it cannot be a key
        return {}


def value_and_grad_partitioned(
    fn: Callable[..., Any],
    init: Any,
    xs: Any,
    partition_fn: Callable[..., Any] = default_partition,
    is_fn_pure: bool = True,
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """The functions of a row of which gradients of a scan can be made.

    Args:
        fn, init, xs, partition_fn, is_fn_pure: As those of `scan`. Carried floating-point tensors
            want gradients, whether those of `init` do or not.

    Returns:
        `forward(carry, x)` gives `(carry, (y, partial))`, where `partial` is what is kept for the
        backward pass but for parts of `x`. `alias_input(partial, xs)` gives all that is kept, of
        one row or of the stacks of all. `backward(grad_carry, (grad_y, kept))` gives
        `(grad_carry, grad_x)`, trees with None where there is no gradient.
    """
    carried, carry_spec = pytree.tree_flatten(init)
    rows, rows_spec = pytree.tree_flatten(xs)
    _check(carried, rows)
    tree = _Tree(fn, carry_spec, rows_spec)
    wanting = [t.detach().requires_grad_(t.is_floating_point()) for t in carried]
    joint = _joint_of(tree, wanting, rows, partition_fn, is_fn_pure)
    results, count, has = joint.num_results, len(carried), joint.has_gradient
    # Among what is kept, a row of `xs`, and tensors that `fn` closes over.
    of_rows = [
        (k, i - count) for k, (is_input, i) in enumerate(joint.kept) if is_input and i >= count
    ]

    def forward(carry: Any, x: Any) -> tuple[Any, tuple[Any, tuple[Any, ...]]]:
        inputs = [*pytree.tree_leaves(carry), *pytree.tree_leaves(x)]
        outputs = joint.forward(*inputs, *joint.captured)
        carry, y = tree.results(outputs[:results])
        partial = tuple(
            inputs[i] if is_input else outputs[i]
            for is_input, i in joint.kept
            if not is_input or i < count
        )
        return carry, (y, partial)

    def alias_input(partial: Sequence[torch.Tensor], xs: Any) -> tuple[torch.Tensor, ...]:
        kept, given = list(partial), [*pytree.tree_leaves(xs), *joint.captured]
        for place, i in of_rows:
            kept.insert(place, given[i])
        return tuple(kept)

    def backward(grad_carry: Any, grads_and_kept: Any) -> tuple[Any, Any]:
        grad_y, kept = grads_and_kept
        given = [*pytree.tree_leaves(grad_carry), *pytree.tree_leaves(grad_y)]
        given = [t for t in given if t is not None]
        found = joint.backward(*kept, *(g for g, wants in zip(given, has, strict=True) if wants))
        of_x = found[count : count + len(rows)]
        return (
            pytree.tree_unflatten(found[:count], carry_spec),
            pytree.tree_unflatten(of_x, rows_spec),
        )

    return forward, alias_input, backward
