"""Parts of graphs that run by hand, by the names of `torch_xla._dynamo.dynamo_bridge` of 2.9."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Interpreter
from torch.utils import _pytree as pytree

from torch_xla._src.device.names import is_xla_tensor
from torch_xla.debug import metrics

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


def partitioned(
    graph: torch.fx.GraphModule, arguments: Sequence[Any], compiled: Callable[..., Callable]
) -> torch.fx.GraphModule | None:
    """The graph, in which parts between calls on the host are what `compiled` makes of them; None
    where there are no such calls, as a run with these arguments tells."""
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import OperatorSupportBase

    collector = UnsupportedNodesCollector(graph)
    with torch.no_grad():
        collector.run(*arguments)
    unsupported = set(collector.get_unsupported_nodes())
    if not unsupported:
        return None

    class Supported(OperatorSupportBase):
        def is_node_supported(self, submodules: Any, node: torch.fx.Node) -> bool:
            return node.op.startswith("call_") and node not in unsupported

    partitioner = CapabilityBasedPartitioner(graph, Supported(), allows_single_node_partition=True)
    fused = partitioner.fuse_partitions(partitioner.propose_partitions())
    for name, part in list(fused.named_children()):
        if isinstance(part, torch.fx.GraphModule) and name.startswith("fused_"):
            fused.delete_submodule(name)
            fused.add_submodule(name, _Part(compiled(part)))
    return fused


class _Part(torch.nn.Module):
    def __init__(self, function: Callable):
        super().__init__()
        self._function = function

    def forward(self, *args: Any) -> Any:
        return self._function(*args)


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
