"""Graphs of `torch.compile(backend="openxla")` as compiled programs.

PyTorch registers the backends `openxla` (through AOTAutograd: inference and training) and
`openxla_eval` (inference) itself; both call `extract_compiled_graph` with a graph and the arguments
of its first call.

A graph becomes a function that a call of it records as one call (docs/torch_compile.md), so
nothing here matches inputs, removes None or finds aliases when a graph runs. The classes that did
(`_src/old_names/graph_parts.py`) are for those who build on them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_xla import _XLAC
from torch_xla._src.device import names
from torch_xla._src.dynamo.compiled_graph import CompiledGraph
from torch_xla._src.old_names.graph_parts import (
    Deduper,
    GraphInputMatcher,
    InputCollector,
    NoneRemover,
    SpecialReturnHandler,
    UnsupportedNodesCollector,
    partitioned,
)
from torch_xla.debug import metrics
from torch_xla.utils.buffer_donor_context import alias_with_buffer_donor_config

__all__ = [
    "Deduper",
    "GraphInputMatcher",
    "InputCollector",
    "NoneRemover",
    "SpecialReturnHandler",
    "UnsupportedNodesCollector",
    "alias_with_buffer_donor_config",
    "extract_compiled_graph",
    "extract_compiled_graph_helper",
    "extract_graph_helper",
    "extract_internal",
    "get_fallback_ops",
    "is_xla_tensor",
    "partition_fx_graph_for_cpu_fallback",
]


def __getattr__(name: str) -> Any:
    # `dynamo_debug` and `ptxla_debug` are what the environment says now.
    if name in ("dynamo_debug", "ptxla_debug"):
        return _XLAC._xla_flag("XLA_DYNAMO_DEBUG")
    if name == "XLAConstructorMoverPass":  # its base imports much
        from torch_xla._src.old_names.constructor_mover import XLAConstructorMoverPass

        return XLAConstructorMoverPass
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "xla"


def extract_compiled_graph(xla_model: torch.fx.GraphModule, xla_args: Sequence[Any]) -> Callable:
    """Returns a function that computes what the graph does, as one program a call.

    The first call with arguments of new shapes, or other numbers, runs the graph's operators once
    on placeholders and compiles what they record; later ones launch that. Arguments and buffers
    that the graph writes are updated in place, and their memory is reused. A graph that needs
    values while it runs, or calls what no program can hold, is recorded anew at each call, as
    without torch.compile.

    Args:
        xla_model: A graph of tensors on `xla`.
        xla_args: The arguments of the first call, which is not made here.

    The counter `DynamoExtractCompiledGraph` counts the graphs. A tensor of the host that stays
    there is warned of: what is computed of it does not run on xla. One without dimensions beside
    tensors on xla is a number.

    Raises:
        RuntimeError: The arguments are on several xla devices. By a call, with
            `torch_xla._dynamo.config.skip_input_data_check`: one waits to be computed.
    """
    _get_input_arg_device(xla_args)
    _XLAC._xla_add_to_counter("DynamoExtractCompiledGraph", 1)
    graph = CompiledGraph(xla_model)
    has_xla = any(map(names.is_xla_tensor, xla_args))
    for i, argument in enumerate(xla_args):
        if graph.stays_on_host(i, argument) and not (has_xla and argument.dim() == 0):
            warnings.warn(
                f"Found tensor with shape {argument.size()} on {argument.device}. Please move all "
                "tensors to xla device to execute on XLA device.",
                stacklevel=2,
            )
    return graph


extract_compiled_graph_helper = extract_compiled_graph  # its name in earlier versions


def extract_internal(xla_model: torch.fx.GraphModule) -> Callable:
    """`extract_compiled_graph`, of a graph whose arguments an `InputCollector` has noted."""
    return extract_compiled_graph(xla_model, getattr(xla_model, "xla_args", ()))


def extract_graph_helper(
    xla_model: torch.fx.GraphModule,
    sym_constants_to_graph_vars: dict[tuple[int | float, ...], tuple[Any, ...]],
) -> tuple[Any, ...]:
    """Compiles a graph for the arguments that an `InputCollector` has noted.

    Args:
        xla_model: The graph.
        sym_constants_to_graph_vars: By the numbers among the arguments, what was made for them;
            takes the result.

    Returns:
        A tuple of the function, which is that of `extract_compiled_graph`.
    """
    _, numbers = _split_xla_args_tensor_sym_constant(getattr(xla_model, "xla_args", ()))
    known = sym_constants_to_graph_vars.get(numbers)
    if known is None:
        known = sym_constants_to_graph_vars[numbers] = (extract_internal(xla_model),)
    return known


def _get_input_arg_device(input_args: Sequence[Any]) -> torch.device | None:
    """The device of the tensors on `xla` among arguments, or None.

    Raises:
        RuntimeError: There are several.
    """
    leaves = pytree.tree_leaves(list(input_args))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    devices = list(dict.fromkeys(t.device for t in tensors if is_xla_tensor(t)))
    if len(devices) > 1:
        names = ", ".join(map(str, devices))
        raise RuntimeError(
            f"torch.compile: expected arguments on one xla device, got {names}. Move them to one."
        )
    return devices[0] if devices else None


def _split_xla_args_tensor_sym_constant(
    args: Sequence[Any],
) -> tuple[tuple[torch.Tensor, ...], tuple[int | float, ...]]:
    """The tensors and the numbers among arguments."""
    tensors = tuple(a for a in args if isinstance(a, torch.Tensor))
    numbers = tuple(a for a in args if isinstance(a, int | float))
    return tensors, numbers


def _clear_pending_irs_on_args(
    args_tensor_only: Sequence[torch.Tensor], cloned_args: Sequence[torch.Tensor]
) -> None:
    """Gives tensors back the values of their clones, where a graph has written them since.

    Tracing runs on placeholders here and writes no argument; this is for graphs that run otherwise.
    """
    with torch.no_grad():
        for tensor, clone in zip(args_tensor_only, cloned_args, strict=True):
            if is_xla_tensor(tensor) and _XLAC._check_tensor_need_materialization([tensor])[0]:
                tensor.copy_(clone)


def get_fallback_ops() -> list[str]:
    """The operators that have run on the host, as "aten::name", since metrics were cleared."""
    return metrics.executed_fallback_ops()


def partition_fx_graph_for_cpu_fallback(
    xla_model: torch.fx.GraphModule,
    xla_args: Sequence[Any],
    all_xla_args: Sequence[Any],
    all_xla_args_tensor_only: Sequence[torch.Tensor],
) -> Callable:
    """A graph whose parts between calls on the host are programs.

    The graph is run once on copies of the arguments, to see which calls those are. Without any, the
    whole graph becomes one.

    Args:
        xla_model: The graph, which is changed.
        xla_args: Its arguments.
        all_xla_args: Those and what it holds besides; not used.
        all_xla_args_tensor_only: The tensors among them, which are left as they are.

    Returns:
        A function of the graph's arguments.
    """
    clones = {id(t): t.detach().clone() for t in all_xla_args_tensor_only}
    copies = [
        clones.get(id(a), a.detach().clone() if isinstance(a, torch.Tensor) else a)
        for a in xla_args
    ]
    parts = partitioned(xla_model, copies, extract_internal)
    return extract_compiled_graph(xla_model, xla_args) if parts is None else parts
