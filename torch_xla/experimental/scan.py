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
from typing import Any, TypeVar

import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch.utils import _pytree as pytree

from torch_xla import _XLAC
from torch_xla._src.captures import Captures, differentiable, has_gradient
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


def scan(
    fn: Callable[[Carry, X], tuple[Carry, Y]],
    init: Carry,
    xs: X,
    partition_fn: Callable = default_partition,
    is_fn_pure: bool = False,
) -> tuple[Carry, Y]:
    """Calls `fn` with a carried value and a row of `xs`, for each row in turn.

    Gradients flow to `init`, `xs` and the tensors that `fn` closes over. Random numbers in `fn`
    differ from row to row. Tensors that are not on `xla` are scanned by a Python loop.

    Args:
        fn: Takes the carry and a row of `xs`, each a tree of tensors, and returns the next carry,
            of the same shapes and dtypes, and a tree of results, or None. It may not write tensors
            that it does not make.
        init: The first carry.
        xs: A tree of tensors of one length, [length, ...] each.
        partition_fn: Divides the graph of a row's results and gradients in what runs forward and
            what runs backward, and so says what is kept for the backward pass: `default_partition`
            keeps what it needs, `min_cut_rematerialization_partition` little, and computes the rest
            again. Both are of functorch.compile.
        is_fn_pure: Promises that `fn` computes the same for all calls with these shapes and this
            `fn`, so that later calls need not look again.

    Returns:
        The last carry, and the results of all rows, stacked: [length, ...] each.

    Raises:
        ValueError: If `xs` has no tensors, or their lengths differ.
        RuntimeError: If `fn` changes the carry's shapes or dtypes, needs values, or writes other
            tensors than it makes.
    """
    carried, carry_spec = pytree.tree_flatten(init)
    rows, rows_spec = pytree.tree_flatten(xs)
    _check(carried, rows)
    if any(t.device.type != "xla" for t in (*carried, *rows)):
        return _python_loop(fn, init, rows, rows_spec)
    tree = _Tree(fn, carry_spec, rows_spec)
    if torch.is_grad_enabled():
        captured, step = _step_of(tree, carried, rows, partition_fn, is_fn_pure)
        tensors = (*carried, *rows, *captured)
        if any(t.requires_grad for t in tensors):
            return tree.results(Scan.apply(step(), len(carried), len(rows), *tensors))
    with torch.no_grad():
        return tree.results(_XLAC._scan(tree.flat, carried, rows))


def _check(carried: list, rows: list) -> None:
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


def _python_loop(fn: Callable, carry: Any, rows: list, spec: pytree.TreeSpec) -> tuple:
    ys = []
    for i in range(len(rows[0])):
        carry, y = fn(carry, pytree.tree_unflatten([t[i] for t in rows], spec))
        ys.append(y)
    if not ys:
        raise ValueError("scan: expected at least one row on this device, got none.")
    return carry, pytree.tree_map(lambda *rows: None if rows[0] is None else torch.stack(rows), *ys)


class _Tree:
    """`fn` on flat tensors."""

    def __init__(self, fn: Callable, carry_spec: pytree.TreeSpec, rows_spec: pytree.TreeSpec):
        self.fn = fn
        self.specs = (carry_spec, rows_spec)
        # Of what it returned last.
        self.y_spec: pytree.TreeSpec | None = None
        self.is_tensor: list[bool] = []

    def flat(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        carry_spec, rows_spec = self.specs
        count = carry_spec.num_leaves
        results = self.fn(
            pytree.tree_unflatten(tensors[:count], carry_spec),
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

    def results(self, tensors: Sequence[torch.Tensor]) -> tuple:
        given = iter(tensors)
        leaves = [next(given) if is_tensor else None for is_tensor in self.is_tensor]
        count = self.specs[0].num_leaves
        return (
            pytree.tree_unflatten(leaves[:count], self.specs[0]),
            pytree.tree_unflatten(leaves[count:], self.y_spec),
        )


# --- gradients -----------------------------------------------------------------------------


class Step:
    """One row's computation in two graphs.

    `forward(*inputs)` gives the results and what is kept; `backward` takes what was kept and the
    gradients of those results that have one, and gives those of the inputs, or None.
    """

    def __init__(self, flat: Callable, inputs: Sequence[torch.Tensor], partition_fn: Callable):
        self.has_gradient: list[bool] = []  # of each result

        # AOTAutograd takes results that are no inputs, nor one another.
        def separate(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            results = tuple(t.clone() for t in flat(*tensors))
            self.has_gradient = [t.requires_grad for t in results]
            return results

        given = differentiable(inputs)
        with torch.enable_grad():
            joint = aot_export_joint_simple(separate, tuple(given), trace_joint=True)
        self.num_results = len(self.has_gradient)
        self.forward, self.backward = partition_fn(joint, given, num_fwd_outputs=self.num_results)
        inputs_by_name = _places(self.forward.graph.find_nodes(op="placeholder"))
        outputs_by_name = _places(self.forward.graph.find_nodes(op="output")[0].args[0])
        # What `backward` takes first: the places of inputs, and of what else `forward` gives.
        self.kept: list[tuple[bool, int]] = []
        for node in self.backward.graph.find_nodes(op="placeholder"):
            if node.name in inputs_by_name:
                self.kept.append((True, inputs_by_name[node.name]))
            elif not node.name.startswith("tangents"):
                self.kept.append((False, outputs_by_name[node.name]))

    def gradients_given(
        self, gradients: Sequence[torch.Tensor | None], like: Sequence[tuple]
    ) -> list[torch.Tensor]:
        """Those that `backward` takes, zeros for None. `like`: shape, dtype and device of each."""
        return [
            torch.zeros(shape, dtype=dtype, device=device) if g is None else g
            for g, (shape, dtype, device), has in zip(
                gradients, like, self.has_gradient, strict=True
            )
            if has
        ]


def _places(nodes: Sequence[Any]) -> dict[str, int]:
    return {node.name: i for i, node in enumerate(nodes) if isinstance(node, torch.fx.Node)}


class Scan(torch.autograd.Function):
    """A scan whose rows' gradients are another scan, from the last row to the first."""

    @staticmethod
    def forward(ctx: Any, step: Step, num_carried: int, num_rows: int, *tensors: torch.Tensor):
        carried = tensors[:num_carried]
        rows = tensors[num_carried : num_carried + num_rows]
        captured = tensors[num_carried + num_rows :]
        # Carried values are kept of each row; the other inputs are there in the backward pass.
        kept_inputs = [i for is_input, i in step.kept if is_input and i < num_carried]
        kept_outputs = [i for is_input, i in step.kept if not is_input]

        def forward_row(*inputs: torch.Tensor) -> list[torch.Tensor]:
            outputs = step.forward(*inputs, *captured)
            kept = [*(inputs[i] for i in kept_inputs), *(outputs[i] for i in kept_outputs)]
            return [*outputs[: step.num_results], *kept]

        outputs = _XLAC._scan(forward_row, list(carried), list(rows))
        results, kept = outputs[: step.num_results], outputs[step.num_results :]
        ctx.step, ctx.kept_inputs, ctx.kept_outputs = step, kept_inputs, kept_outputs
        ctx.num_carried, ctx.num_rows = num_carried, num_rows
        ctx.save_for_backward(*kept, *rows, *captured)
        ctx.inputs = [(t.shape, t.dtype, t.device) for t in carried]
        ctx.results = [(t.shape, t.dtype, t.device) for t in results]
        ctx.mark_non_differentiable(
            *(t for t, has in zip(results, step.has_gradient, strict=True) if not has)
        )
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None):
        step, num_carried, num_rows = ctx.step, ctx.num_carried, ctx.num_rows
        num_kept = len(ctx.kept_inputs) + len(ctx.kept_outputs)
        saved = list(ctx.saved_tensors)
        kept, rows = saved[:num_kept], saved[num_kept : num_kept + num_rows]
        captured = saved[num_kept + num_rows :]
        given = step.gradients_given(gradients, ctx.results)
        # Of the next row's carried inputs, which are this row's results, as far as they have one.
        has = step.has_gradient[:num_carried]
        of_carried = given[: sum(has)]
        of_ys = given[sum(has) :]

        def backward_row(*inputs: torch.Tensor) -> list[torch.Tensor]:
            parts = iter(inputs)
            take = lambda count: [next(parts) for _ in range(count)]  # noqa: E731
            tangents, sums = take(num_carried), take(len(captured))
            row_tangents, kept_row, row = take(len(of_ys)), take(num_kept), take(num_rows)
            places = {
                **{(True, i): t for i, t in zip(ctx.kept_inputs, kept_row, strict=False)},
                **{(True, num_carried + i): t for i, t in enumerate((*row, *captured))},
                **dict(
                    zip(
                        [(False, i) for i in ctx.kept_outputs],
                        kept_row[len(ctx.kept_inputs) :],
                        strict=True,
                    )
                ),
            }
            carried_tangents = [t for t, h in zip(tangents, has, strict=True) if h]
            found = step.backward(
                *(places[place] for place in step.kept), *carried_tangents, *row_tangents
            )
            # A carried value or a row may have no influence.
            like = [*tangents, *row, *captured]
            found = [
                torch.zeros_like(t) if g is None else g for g, t in zip(found, like, strict=True)
            ]
            of_row = found[num_carried : num_carried + num_rows]
            of_captured = found[num_carried + num_rows :]
            return [
                *found[:num_carried],
                *(a + b for a, b in zip(sums, of_captured, strict=True)),
                *of_row,
            ]

        following = iter(of_carried)
        start = [
            next(following) if h else torch.zeros(shape, dtype=dtype, device=device)
            for h, (shape, dtype, device) in zip(has, ctx.inputs, strict=True)
        ]
        start += [torch.zeros_like(t) for t in captured]
        outputs = _XLAC._scan(backward_row, start, [*of_ys, *kept, *rows], True)
        first, rest = outputs[:num_carried], outputs[num_carried:]
        of_captured, of_rows = rest[: len(captured)], rest[len(captured) :]
        return (
            None,
            None,
            None,
            *(g if has_gradient(g) else None for g in (*first, *of_rows, *of_captured)),
        )


# Steps by what they compute; of functions that are said to be pure, also by the function.
_steps: dict[tuple, Step] = {}
_MOST_STEPS = 256
_pure: weakref.WeakKeyDictionary[Callable, dict] = weakref.WeakKeyDictionary()


def _step_of(
    tree: _Tree, carried: list, rows: list, partition_fn: Callable, is_fn_pure: bool
) -> tuple[list[torch.Tensor], Callable[[], Step]]:
    """The tensors that `fn` closes over, and a function that makes its step, or finds it."""
    row = [torch.empty(t.shape[1:], dtype=t.dtype, device=t.device) for t in rows]
    inputs = [*carried, *row]
    if is_fn_pure:
        shapes = tuple((tuple(t.shape), t.dtype) for t in inputs)
        modes = (torch.is_autocast_enabled("xla"), torch.get_autocast_dtype("xla"))
        name = (tree.specs, shapes, modes, torch.get_default_dtype())
        known = _pure_functions(tree.fn)
        if name not in known:
            captures = Captures(tree.flat, inputs)
            known[name] = captures, captures.key(), tree.y_spec, tree.is_tensor
        captures, key, tree.y_spec, tree.is_tensor = known[name]
    else:
        captures = Captures(tree.flat, inputs)
        key = None

    def step() -> Step:
        name = (key or captures.key(), partition_fn)
        if name not in _steps:
            if len(_steps) >= _MOST_STEPS:
                _steps.pop(next(iter(_steps)))
            _steps[name] = Step(captures.lifted, (*inputs, *captures.tensors), partition_fn)
        return _steps[name]

    return captures.tensors, step


def _pure_functions(fn: Callable) -> dict:
    """What is known of a function that is pure; it ends with the function."""
    try:
        return _pure.setdefault(fn, {})
    except TypeError:  # it cannot be a key
        return {}


def value_and_grad_partitioned(
    fn: Callable,
    init: Any,
    xs: Any,
    partition_fn: Callable = default_partition,
    is_fn_pure: bool = True,
) -> tuple[Callable, Callable]:
    """The two graphs of a row that `scan` runs, forward and backward.

    Args:
        fn, init, xs, partition_fn, is_fn_pure: As those of `scan`.

    Returns:
        `forward(*inputs)`, of the flat carry, a flat row and what `fn` closes over, gives the flat
        results and what is kept for the backward pass. `backward(*kept, *gradients)` gives the
        gradients of all inputs.
    """
    carried, carry_spec = pytree.tree_flatten(init)
    rows, rows_spec = pytree.tree_flatten(xs)
    _check(carried, rows)
    tree = _Tree(fn, carry_spec, rows_spec)
    _, step = _step_of(tree, carried, rows, partition_fn, is_fn_pure)
    made = step()
    return made.forward, made.backward
