"""Graphs of `torch.compile(backend="openxla")` as compiled programs.

PyTorch registers the backends `openxla` (through AOTAutograd: inference and training) and
`openxla_eval` (inference) itself; both call `extract_compiled_graph` with a graph and the arguments
of its first call.

A graph becomes a function that a call of it records as one call (docs/torch_compile.md), so
nothing here matches inputs, removes None or finds aliases when a graph runs. The classes that did
are for those who build on them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Interpreter
from torch.utils import _pytree as pytree

from torch_xla import _XLAC
from torch_xla._src.device import names
from torch_xla._src.dynamo.compiled_graph import CompiledGraph
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
    on stand-ins and compiles what they record; later ones launch that. Arguments and buffers that
    the graph writes are updated in place, and their memory is reused. A graph that needs values
    while it runs, or calls what no program can hold, is recorded anew at each call, as without
    torch.compile.

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

    Tracing runs on stand-ins here and writes no argument; this is for graphs that run otherwise.
    """
    with torch.no_grad():
        for tensor, clone in zip(args_tensor_only, cloned_args, strict=True):
            if is_xla_tensor(tensor) and _XLAC._check_tensor_need_materialization([tensor])[0]:
                tensor.copy_(clone)


def get_fallback_ops() -> list[str]:
    """The operators that have run on the host, as "aten::name", since metrics were cleared."""
    return metrics.executed_fallback_ops()


# --- parts that run apart -------------------------------------------------------------------


class UnsupportedNodesCollector(Interpreter):
    """Runs a graph and notes the nodes that no program holds.

    Those are calls that run on the host, calls that need values, and calls that give tensors of
    other devices.

    Args:
        module: The graph.
    """

    def __init__(self, module: torch.fx.GraphModule):
        super().__init__(module)
        self._unsupported: list[torch.fx.Node] = []

    def run_node(self, n: torch.fx.Node) -> Any:
        before = _host_calls()
        result = super().run_node(n)
        if n.op.startswith("call_"):
            tensors = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
            if _host_calls() != before or not all(map(is_xla_tensor, tensors)):
                self._unsupported.append(n)
        return result

    def get_unsupported_nodes(self) -> list[torch.fx.Node]:
        return self._unsupported


def _host_calls() -> Counter:
    """Counts of operators on the host, and of values that are read."""
    names = [name for name in metrics.counter_names() if name.startswith("aten::")]
    return Counter({name: metrics.counter_value(name) for name in names})


class InputCollector(Interpreter):
    """Runs a graph of submodules and notes the arguments of each, as its `xla_args`.

    Args:
        module: The graph.
    """

    def call_module(self, target: Any, args: tuple, kwargs: dict) -> Any:
        if self.submodules.get(target) is not None:
            self.submodules[target].xla_args = args
        return super().call_module(target, args, kwargs)

    def __init__(self, module: torch.fx.GraphModule):
        super().__init__(module)
        children = module.named_children()
        self.submodules = {n: m for n, m in children if isinstance(m, torch.fx.GraphModule)}


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
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import OperatorSupportBase

    clones = {id(t): t.detach().clone() for t in all_xla_args_tensor_only}
    copies = [clones.get(id(a), a.detach().clone() if _is_tensor(a) else a) for a in xla_args]
    collector = UnsupportedNodesCollector(xla_model)
    with torch.no_grad():
        collector.run(*copies)
    unsupported = set(collector.get_unsupported_nodes())
    if not unsupported:
        return extract_compiled_graph(xla_model, xla_args)

    class Supported(OperatorSupportBase):
        def is_node_supported(self, submodules: Any, node: torch.fx.Node) -> bool:
            return node.op.startswith("call_") and node not in unsupported

    partitioner = CapabilityBasedPartitioner(
        xla_model, Supported(), allows_single_node_partition=True
    )
    partitioned = partitioner.fuse_partitions(partitioner.propose_partitions())
    for name, part in list(partitioned.named_children()):
        if isinstance(part, torch.fx.GraphModule) and name.startswith("fused_"):
            partitioned.delete_submodule(name)
            partitioned.add_submodule(name, _Part(extract_internal(part)))
    return partitioned


class _Part(torch.nn.Module):
    def __init__(self, function: Callable):
        super().__init__()
        self._function = function

    def forward(self, *args: Any) -> Any:
        return self._function(*args)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


# --- inputs and results of a graph that is run by hand ---------------------------------------


class GraphInputMatcher:
    """The inputs of a recorded graph, from the arguments of a call.

    Args:
        tensor_id_to_arg_idx: The argument that stands for each tensor, by
            `_XLAC._xla_get_tensor_id` of those that the graph was recorded with.
        graph_input_tensor_ids: The tensors that the graph takes, in its order.
        graph_input_xla_values: Their values then. Those of arguments are not kept.
        xla_args_tensor_id: Those that are arguments.
    """

    def __init__(
        self,
        tensor_id_to_arg_idx: dict[int, int],
        graph_input_tensor_ids: list[int],
        graph_input_xla_values: list[Any],
        xla_args_tensor_id: set[int],
    ):
        self.tensor_id_to_arg_idx = tensor_id_to_arg_idx
        self.graph_input_tensor_ids = graph_input_tensor_ids
        self.graph_input_xla_values = [
            None if i in xla_args_tensor_id else value
            for i, value in zip(graph_input_tensor_ids, graph_input_xla_values, strict=True)
        ]
        self.arg_idxs = [
            tensor_id_to_arg_idx.get(i) if i in xla_args_tensor_id else None
            for i in graph_input_tensor_ids
        ]

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """The inputs, in the graph's order."""
        values = zip(self.arg_idxs, self.graph_input_xla_values, strict=True)
        return [value if i is None else args[i] for i, value in values]


class NoneRemover:
    """Takes None out of a list or tuple, and puts it back into one of the rest."""

    def __init__(self):
        self.none_poslist: list[int] = []

    def remove_nones(self, value_list: list | tuple) -> list | tuple:
        """Remembers the places. Returns the list, which it changes, or another tuple."""
        self.none_poslist = [i for i, value in enumerate(value_list) if value is None]
        return _refilled(value_list, [value for value in value_list if value is not None])

    def add_nones(self, value_list: list | tuple) -> list | tuple:
        """Returns the list, which it changes, or another tuple."""
        values = list(value_list)
        for i in self.none_poslist:
            values.insert(i, None)
        return _refilled(value_list, values)


def _refilled(container: list | tuple, values: list) -> list | tuple:
    if isinstance(container, tuple):
        return tuple(values)
    if not isinstance(container, list):
        raise TypeError(
            f"NoneRemover: expected a list or a tuple, got a {type(container).__name__}."
        )
    container[:] = values
    return container


class Deduper:
    """Takes repeated objects out of a list, and puts them back into one of the rest."""

    def __init__(self):
        self.permute_for_orig: list[int] | None = None

    def dedup(self, origlist: Sequence[Any]) -> list[Any]:
        """The different objects, in the order of their first places, which it remembers."""
        places: dict[int, int] = {}
        self.permute_for_orig = [places.setdefault(id(v), len(places)) for v in origlist]
        distinct = {id(v): v for v in reversed(origlist)}
        return [distinct[i] for i in places]

    def recover(self, deduped_list: Sequence[Any]) -> list[Any]:
        """A list with the repetitions of the one that was given."""
        if self.permute_for_orig is None:
            return list(deduped_list)
        return [deduped_list[i] for i in self.permute_for_orig]


class SpecialReturnHandler:
    """The results of a graph from those that its program computes.

    A program computes none that are its inputs as they came, none that are constants, and none
    twice.

    Args:
        trace_inputs: The inputs that the graph was recorded with.
        trace_outputs: What it gave then, without its constants.
        trace_inputs_inplace_update_bool: Whether it writes each input.
        constant_outputs_and_indexes: Its other results: pairs of a value and its place among all.
    """

    def __init__(
        self,
        trace_inputs: Sequence[Any],
        trace_outputs: Sequence[Any],
        trace_inputs_inplace_update_bool: Sequence[bool],
        constant_outputs_and_indexes: Sequence[tuple[Any, int]],
    ):
        self.constant_outputs_and_indexes = sorted(
            constant_outputs_and_indexes, key=lambda pair: pair[1]
        )
        self.deduper = Deduper()
        unwritten = {
            id(value): i
            for i, value in enumerate(trace_inputs)
            if not trace_inputs_inplace_update_bool[i]
        }
        # The input that each different result is.
        self.input_of = [unwritten.get(id(v)) for v in self.deduper.dedup(trace_outputs)]

    def addDumbReturn(  # noqa: N802
        self, real_inputs: Sequence[Any], real_outputs: Sequence[Any]
    ) -> list[Any]:
        """All results of a call, from its inputs and what its program computed."""
        computed = iter(real_outputs)
        distinct = [next(computed) if i is None else real_inputs[i] for i in self.input_of]
        results = self.deduper.recover(distinct)
        for value, index in self.constant_outputs_and_indexes:
            results.insert(index, value)
        return results
