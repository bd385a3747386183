"""Exported programs of dynamic sizes, and rewritings of their graphs.

Exports need none of the rewritings, which `exported_program_to_stablehlo` does not make: dynamic
sizes are found while a program is recorded. They are here for programs that call them. Each changes
the graph in place and leaves its values.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.export.graph_signature import InputKind
from torch.fx import Graph, GraphModule, Node

from torch_xla._src.export.dynamic import is_dynamic
from torch_xla.experimental import xla_dynamic_reshape_ops  # noqa: F401

aten = torch.ops.aten


def exported_program_has_symbolic_input_shape(ep: torch.export.ExportedProgram) -> bool:
    """True if an argument of the program has a dimension that was exported as dynamic."""
    placeholders = [node for node in ep.graph.nodes if node.op == "placeholder"]
    return any(
        spec.kind == InputKind.USER_INPUT and _is_dynamic(node)
        for node, spec in zip(placeholders, ep.graph_signature.input_specs, strict=True)
    )


def process_exported_program_with_symbolic_input(ep: torch.export.ExportedProgram) -> None:
    """Makes all rewritings of this module in an exported program's graph."""
    for rewrite in (
        flatten_embedding_indices_tensor,
        remove_no_op_slice,
        decompose_dynamic_shape_select,
        decompose_split_with_sizes,
        decompose_dynamic_native_group_norm,
        decompose_dynamic_native_layer_norm,
        dynamic_unsqueeze_to_view,
        replace_dynamic_expand_with_xla_op,
        replace_dynamic_view_with_xla_op,
    ):
        rewrite(ep.graph_module)


def wrap_func_as_nn_module(f: Callable[..., Any]) -> torch.nn.Module:
    """A module that calls a function, for torch.export."""

    class Wrapped(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return f(*args)

    return Wrapped()


def call_function(
    graph: Graph,
    target: Callable[..., Any],
    args: tuple[Any, ...] | None = None,
    kwargs: dict[str, Any] | None = None,
) -> Node:
    """Adds a call to a graph, with what it gives as its `meta["val"]`."""
    node = graph.call_function(target, args or (), kwargs or {})
    values = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    node.meta["val"] = target(*values[0], **values[1])
    return node


def _args(node: Node) -> tuple[Any, ...]:
    """The arguments of a call, whose schema tells their types."""
    return node.args


def _is_dynamic(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and any(map(is_dynamic, value.shape))


def _rewrite(gm: GraphModule, target: Any, make: Callable[[Graph, Node], Any]) -> None:
    """Puts what `make` gives in the place of each call of `target`; None leaves a call."""
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target != target:
            continue
        with gm.graph.inserting_before(node):
            new = make(gm.graph, node)
        if new is None:
            continue
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    gm.graph.eliminate_dead_code()
    gm.recompile()


def _sizes(graph: Graph, node: Node) -> list[Any]:
    """The sizes of what a node gives; those that are dynamic as nodes."""
    return [
        call_function(graph, aten.sym_size.int, (node, i))
        if isinstance(size, torch.SymInt)
        else size
        for i, size in enumerate(node.meta["val"].shape)
    ]


def _argument(node: Node, position: int, default: Any) -> Any:
    target: Any = node.target
    name = target._schema.arguments[position].name
    value = _args(node)[position] if position < len(_args(node)) else node.kwargs.get(name)
    return default if value is None else value


def _is_no_op_slice(n: Node) -> bool:
    """True if a call of aten.slice takes all elements."""
    if n.target != aten.slice.Tensor:
        return False
    start, end, step = (_argument(n, i, d) for i, d in ((2, 0), (3, sys.maxsize), (4, 1)))
    return start == 0 and step == 1 and isinstance(end, int) and end == sys.maxsize


def remove_no_op_slice(gm: GraphModule) -> None:
    """Drops slices that take all elements."""
    _rewrite(gm, aten.slice.Tensor, lambda _, n: n.args[0] if _is_no_op_slice(n) else None)


def decompose_dynamic_shape_select(gm: GraphModule) -> None:
    """Makes `select` of a tensor with dynamic sizes a slice and a view."""

    def make(graph: Graph, node: Node) -> Node | None:
        source, dim, index = _args(node)
        if not _is_dynamic(source):
            return None
        dim %= source.meta["val"].dim()
        end = sys.maxsize if index == -1 else index + 1
        row = call_function(graph, aten.slice.Tensor, (source, dim, index, end))
        sizes = _sizes(graph, source)
        copy = call_function(graph, aten.contiguous.default, (row,))
        return call_function(graph, aten.view.default, (copy, sizes[:dim] + sizes[dim + 1 :]))

    _rewrite(gm, aten.select.int, make)


def decompose_split_with_sizes(gm: GraphModule) -> None:
    """Makes `split_with_sizes` slices; each must be taken out by `getitem`."""

    def make(graph: Graph, node: Node) -> None:
        source, sizes, dim = _args(node)[0], _args(node)[1], _argument(node, 2, 0)
        for user in list(node.users):
            start = sum(sizes[: _args(user)[1]])
            end = start + sizes[_args(user)[1]]
            part = call_function(graph, aten.slice.Tensor, (source, dim, start, end))
            user.replace_all_uses_with(part)
            graph.erase_node(user)

    _rewrite(gm, aten.split_with_sizes.default, make)


def dynamic_unsqueeze_to_view(gm: GraphModule) -> None:
    """Makes `unsqueeze` of a tensor with dynamic sizes a view."""

    def make(graph: Graph, node: Node) -> Node | None:
        source, dim = _args(node)
        if not _is_dynamic(source):
            return None
        sizes = _sizes(graph, source)
        sizes.insert(dim % (len(sizes) + 1), 1)
        copy = call_function(graph, aten.contiguous.default, (source,))
        return call_function(graph, aten.view.default, (copy, sizes))

    _rewrite(gm, aten.unsqueeze.default, make)


def _product(graph: Graph, sizes: list[Any]) -> Any:
    """That of sizes of which one is a node; else -1, by which a view finds it."""
    nodes = [size for size in sizes if isinstance(size, Node)]
    if len(nodes) != 1:
        return -1
    times = math.prod(size for size in sizes if not isinstance(size, Node))
    return call_function(graph, operator.mul, (nodes[0], times))


def flatten_embedding_indices_tensor(gm: GraphModule) -> None:
    """Gives `embedding` its indices as one row."""

    def make(graph: Graph, node: Node) -> Node | None:
        weight, indices = _args(node)[:2]
        if indices.meta["val"].dim() == 1:
            return None
        sizes = _sizes(graph, indices)
        flat = call_function(graph, aten.reshape.default, (indices, [_product(graph, sizes)]))
        rows = call_function(graph, aten.embedding.default, (weight, flat))
        width = weight.meta["val"].shape[1]
        return call_function(graph, aten.view.default, (rows, [*sizes, width]))

    _rewrite(gm, aten.embedding.default, make)


def native_layer_norm_impl(
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """The first result of `aten.native_layer_norm`, by means of other operators."""
    dims = list(range(-len(normalized_shape), 0))
    centered = input - input.mean(dims, keepdim=True)
    y = centered * torch.rsqrt((centered * centered).mean(dims, keepdim=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def native_layer_norm_pattern(
    x: torch.Tensor,
    dim: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """The pattern that `decompose_dynamic_native_layer_norm` replaces."""
    return aten.native_layer_norm.default(x, dim, weight, bias, eps)[0]


def native_group_norm_impl(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    N: Any,
    C: int,
    HxW: Any,
    group: int,
    eps: float,
) -> torch.Tensor:
    """The first result of `aten.native_group_norm`, by means of other operators."""
    groups = input.reshape(N, group, -1)
    y = native_layer_norm_impl(groups, [groups.shape[-1]], None, None, eps).reshape(input.shape)
    per_channel = [1, C] + [1] * (input.dim() - 2)
    y = y if weight is None else y * weight.reshape(per_channel)
    return y if bias is None else y + bias.reshape(per_channel)


def native_group_norm_pattern(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    N: Any,
    C: int,
    HxW: Any,
    group: int,
    eps: float,
) -> torch.Tensor:
    """The pattern that `decompose_dynamic_native_group_norm` replaces."""
    return aten.native_group_norm.default(x, weight, bias, N, C, HxW, group, eps)[0]


def _decompose_norm(gm: GraphModule, target: Any, function: Callable[..., Any]) -> None:
    """Calls `function` in the place of the first result of a norm of dynamic sizes."""

    def make(graph: Graph, node: Node) -> None:
        if not _is_dynamic(_args(node)[0]) or any(_args(user)[1] != 0 for user in node.users):
            return
        for user in list(node.users):
            user.replace_all_uses_with(_inlined(graph, function, _args(node)))
            graph.erase_node(user)

    _rewrite(gm, target, make)


class _Nodes(torch.fx.Proxy):
    """A tensor of a graph whose sizes can be asked for while a function adds to it."""

    @property
    def shape(self) -> list[Any]:
        return [
            _Nodes(s, self.tracer) if isinstance(s, Node) else s
            for s in _sizes(self.node.graph, self.node)
        ]

    def dim(self) -> int:
        return self.node.meta["val"].dim()


def _inlined(graph: Graph, function: Callable[..., Any], args: tuple[Any, ...]) -> Node:
    """The result of a function of nodes, as nodes of their graph."""
    tracer = torch.fx.proxy.GraphAppendingTracer(graph)
    given: Any = torch.fx.map_arg(args, lambda n: cast(Any, _Nodes(n, tracer)))
    return function(*given).node


def decompose_dynamic_native_layer_norm(gm: GraphModule) -> None:
    """Makes `native_layer_norm` of dynamic sizes what `native_layer_norm_impl` does."""
    _decompose_norm(gm, aten.native_layer_norm.default, native_layer_norm_impl)


def decompose_dynamic_native_group_norm(gm: GraphModule) -> None:
    """Makes `native_group_norm` of dynamic sizes what `native_group_norm_impl` does."""
    _decompose_norm(gm, aten.native_group_norm.default, native_group_norm_impl)


def _source_of(size: Node) -> tuple[Node, int, int] | None:
    """A tensor and its dimension which has a size, and how many times."""
    if size.target == aten.sym_size.int:
        return _args(size)[0], _args(size)[1], 1
    if getattr(size.target, "__name__", "") == "mul":
        for a, b in (_args(size), _args(size)[::-1]):
            if isinstance(a, Node) and a.target == aten.sym_size.int and isinstance(b, int):
                return _args(a)[0], _args(a)[1], b
    return None


def _with_xla_op(gm: GraphModule, target: Any, op: Any, multiplies: bool) -> None:
    def make(graph: Graph, node: Node) -> Node | None:
        source, sizes = _args(node)[:2]
        dynamic = [i for i, size in enumerate(sizes) if isinstance(size, Node)]
        found = _source_of(sizes[dynamic[0]]) if len(dynamic) == 1 else None
        if found is None or (found[2] != 1 and not multiplies):
            return None
        known = [1 if isinstance(size, Node) else size for size in sizes]
        args = (source, known, found[0], found[1], dynamic[0])
        return call_function(graph, op, (*args, found[2]) if multiplies else args)

    _rewrite(gm, target, make)


def replace_dynamic_expand_with_xla_op(gm: GraphModule) -> None:
    """Makes `expand` to one dynamic size `torch.ops.xla.dynamic_expand`."""
    _with_xla_op(gm, aten.expand.default, torch.ops.xla.dynamic_expand.default, False)


def replace_dynamic_view_with_xla_op(gm: GraphModule) -> None:
    """Makes `view` and `reshape` with one dynamic size `torch.ops.xla.dynamic_view`."""
    for target in (aten.view.default, aten.reshape.default, aten._unsafe_view.default):
        _with_xla_op(gm, target, torch.ops.xla.dynamic_view.default, True)
