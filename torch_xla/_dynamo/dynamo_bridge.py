"""Graphs of `torch.compile(backend="openxla")` as compiled programs.

PyTorch registers the backends `openxla` (through AOTAutograd: inference and training) and
`openxla_eval` (inference) itself; both call `extract_compiled_graph` with a graph and the arguments
of its first call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_xla import _XLAC
from torch_xla._src.held_tensors import Place, named_places, replaced

_log = logging.getLogger(__name__)

# Versions of one graph, for other shapes or numbers. Beyond these, calls are recorded one by one.
_MOST_VERSIONS = 64


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "xla"


def extract_compiled_graph(xla_model: torch.fx.GraphModule, xla_args: tuple) -> Callable:
    """Returns a function that computes what the graph does, as one program a call.

    The first call with arguments of new shapes, or other numbers, runs the graph's operators once
    on stand-ins and compiles what they record; later ones launch that. Arguments and buffers that
    the graph writes are updated in place, and their memory is reused. A graph that needs values
    while it runs, or calls what no program can hold, is recorded anew at each call, as without
    torch.compile.

    Args:
        xla_model: A graph of tensors on `xla`.
        xla_args: The arguments of the first call, which is not made here.
    """
    return _CompiledGraph(xla_model)


extract_compiled_graph_helper = extract_compiled_graph  # its name in earlier versions


class _CompiledGraph:
    def __init__(self, module: torch.fx.GraphModule):
        self._module = module
        self._held = _held_tensors(module)
        self._sent = _arguments_to_send(module)
        self._functions = _XLAC._TracedFunctions()
        self._spec: pytree.TreeSpec | None = None
        self._traceable = True

    def __call__(self, *args: Any) -> Any:
        if self._sent:
            args = tuple(a.to(self._sent[i]) if i in self._sent else a for i, a in enumerate(args))
        # A program may update what the module holds, or put another tensor there.
        held = [table[name] for table, name in self._held]
        results = self._functions.call(*args, *held)
        if results is None:
            return self._first_call(args, held)
        return results if self._spec is None else pytree.tree_unflatten(results, self._spec)

    def _first_call(self, args: tuple, held: list[torch.Tensor]) -> Any:
        if self._traceable and len(self._functions) < _MOST_VERSIONS:
            try:
                self._functions.trace(self._run, *args, *held)
            except Exception as error:
                self._traceable = False
                _log.info("A graph is recorded at each call, since %s", error)
            else:
                return self(*args)
        return self._module(*args)

    def _run(self, *args: Any) -> list:
        inputs, held = args[: len(args) - len(self._held)], args[len(args) - len(self._held) :]
        with torch.no_grad(), replaced(self._held, held):
            results = self._module(*inputs)
        leaves, spec = pytree.tree_flatten(results)
        is_flat = type(results) in (list, tuple) and len(leaves) == len(results)
        self._spec = None if is_flat else spec
        return leaves


def _arguments_to_send(module: torch.fx.GraphModule) -> dict[int, torch.device]:
    """Positions of CPU arguments that are only used to compute tensors of a device, and which.

    A number in a tensor, an index, or what the graph itself moves: on the device, it can be a part
    of the program.
    """
    sent = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for i, node in enumerate(placeholders):
        if not any(t.device.type == "cpu" for t in _tensors_of(node)) or not node.users:
            continue
        results = [_tensors_of(user) for user in node.users]
        devices = {t.device for tensors in results for t in tensors}
        if all(results) and len(devices) == 1 and next(iter(devices)).type == "xla":
            sent[i] = devices.pop()
    return sent


def _tensors_of(node: torch.fx.Node) -> list[torch.Tensor]:
    """What a node gives, as fake tensors. AOTAutograd and torch._dynamo have their own names."""
    value = node.meta.get("val", node.meta.get("example_value"))
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _held_tensors(module: torch.fx.GraphModule) -> list[Place]:
    """The places of the tensors on `xla` that a graph reads beside its arguments."""
    places = list(named_places(module).values())
    for node in module.graph.nodes:
        if node.op == "get_attr":
            path, _, name = node.target.rpartition(".")
            attributes = module.get_submodule(path).__dict__
            if name in attributes and (attributes, name) not in places:
                places.append((attributes, name))
    tensors = [(table[name], (table, name)) for table, name in places]
    return [p for t, p in tensors if isinstance(t, torch.Tensor) and is_xla_tensor(t)]
