"""A graph of torch.compile as programs, one for each set of shapes and numbers."""

from __future__ import annotations

import itertools
import logging
import sys
import time
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_xla import _XLAC
from torch_xla._dynamo import config
from torch_xla._src.device.names import is_xla_tensor
from torch_xla._src.dynamo.graph_lines import tell_lines
from torch_xla._src.functions import step
from torch_xla._src.functions.held_tensors import Place, named_places, replaced

_log = logging.getLogger("torch_xla._dynamo.dynamo_bridge")

# Versions of one graph, for other shapes or numbers. Beyond these, calls are recorded one by one.
_MOST_VERSIONS = 64
# So many versions for other shapes are worth a warning.
_MANY_VERSIONS = 6

_numbers = itertools.count(1)


class CompiledGraph:
    def __init__(self, module: torch.fx.GraphModule):
        self._module = module
        self._held = _held_tensors(module)
        self._sent = _arguments_to_send(module)
        part = _part_of_step(module)
        self._is_backward = part == _XLAC._StepPart.BACKWARD
        self._functions = _XLAC._TracedFunctions(part)
        self._spec: pytree.TreeSpec | None = None
        self._traceable = True
        self._told = _Told(module)
        tell_lines(module)

    def __call__(self, *args: Any) -> Any:
        if config.skip_input_data_check:
            _check_computed(args)
        if self._sent:
            args = tuple(a.to(self._sent[i]) if i in self._sent else a for i, a in enumerate(args))
        # A program may update what the module holds, or put another tensor there.
        held = [table[name] for table, name in self._held]
        results = self._functions.call(*args, *held)
        if results is None:
            return self._first_call(args, held)
        return results if self._spec is None else pytree.tree_unflatten(results, self._spec)

    def stays_on_host(self, i: int, argument: Any) -> bool:
        """True if an argument is a tensor of the user's that is not computed with on a device."""
        is_of_host = _is_tensor(argument) and not is_xla_tensor(argument)
        return is_of_host and i not in self._sent and not self._is_backward

    def _first_call(self, args: tuple, held: list[torch.Tensor]) -> Any:
        if self._traceable and len(self._functions) < _MOST_VERSIONS:
            begin = time.perf_counter()
            try:
                self._functions.trace(self._run, *args, *held)
            except Exception as error:
                self._traceable = False
                _log.info("A graph is recorded at each call, since %s", error)
                self._told.recorded(error)
            else:
                step.has_captured = True
                self._told.version(args, time.perf_counter() - begin)
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


def _part_of_step(module: torch.fx.GraphModule) -> _XLAC._StepPart:
    """AOTAutograd names the arguments of the graphs of a training step so, and no others."""
    names = [node.target for node in module.graph.nodes if node.op == "placeholder"]
    if any(name.startswith("tangents_") for name in names):
        return _XLAC._StepPart.BACKWARD
    if any(name.startswith("primals_") for name in names):
        return _XLAC._StepPart.FORWARD
    return _XLAC._StepPart.NONE


def _check_computed(args: tuple) -> None:
    tensors = [a for a in args if _is_tensor(a)]
    if any(_XLAC._check_tensor_need_materialization(tensors)):
        raise RuntimeError(
            "torch.compile: expected arguments that are computed, since skip_input_data_check is "
            "set: input data to dynamo graph can not be a pending ir. Call torch_xla.sync() before."
        )


class _Told:
    """Messages to users about a graph: its versions with XLA_DYNAMO_DEBUG, and too many of them."""

    def __init__(self, module: torch.fx.GraphModule):
        nodes = module.graph.nodes
        self._names = [node.name for node in nodes if node.op == "placeholder"]
        self._arguments: list[list[Any]] = []  # of each version: shapes and numbers
        self._number = next(_numbers)
        operations = sum(node.op.startswith("call_") for node in nodes)
        self._print(f"{operations} operations of {len(self._names)} arguments")

    def version(self, args: Iterable[Any], seconds: float) -> None:
        self._arguments.append([tuple(a.shape) if _is_tensor(a) else a for a in args])
        count = len(self._arguments)
        if _XLAC._xla_flag("XLA_DYNAMO_DEBUG"):
            given = ", ".join(_described(a) for a in args)
            self._print(f"version {count}, of ({given}), was recorded in {seconds * 1e3:.1f} ms")
        changes = self._changes()
        if count == _MANY_VERSIONS and changes:
            warnings.warn(
                f"torch.compile: a graph has been compiled {count} times, for other shapes each "
                f"time: {changes}. Pad to a few sizes.",
                stacklevel=3,
            )

    def recorded(self, error: Exception) -> None:
        self._print(f"is recorded at each call, since {error}")

    def _print(self, text: str) -> None:
        if _XLAC._xla_flag("XLA_DYNAMO_DEBUG"):
            print(f"torch_xla: dynamo graph {self._number}: {text}", file=sys.stderr)

    def _changes(self) -> str:
        """The dimensions that differ between versions, or else the numbers."""
        dimensions, numbers = [], []
        for i, values in enumerate(zip(*self._arguments, strict=True)):
            name = f"argument {i} ({self._names[i]})" if i < len(self._names) else f"argument {i}"
            if all(isinstance(v, tuple) for v in values):
                for dim, sizes in enumerate(zip(*values, strict=False)):
                    if len(set(sizes)) > 1:
                        dimensions.append(f"dimension {dim} of {name} was {_listed(sizes)}")
            elif len(set(map(repr, values))) > 1:
                numbers.append(f"{name} was {_listed(values)}")
        return "; ".join((dimensions or numbers)[:4])


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


def _described(value: Any) -> str:
    if not _is_tensor(value):
        return repr(value)
    dtype = str(value.dtype).removeprefix("torch.")
    return f"{dtype}[{','.join(map(str, value.shape))}]"


def _arguments_to_send(module: torch.fx.GraphModule) -> dict[int, torch.device]:
    """Positions of CPU arguments that are only used to compute tensors of a device, and which.

    A number in a tensor, an index, or what the graph itself moves: on the device, it can be a part
    of the program.
    """
    sent = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for i, node in enumerate(placeholders):
        if any(str(user.target) == "run_with_rng_state" for user in node.users):
            continue  # of which the state is on the host
        if not any(t.device.type == "cpu" for t in _tensors_of(node)) or not node.users:
            continue
        results = [_tensors_of(user) for user in node.users]
        devices = {t.device for tensors in results for t in tensors}
        if all(results) and len(devices) == 1 and next(iter(devices)).type == "xla":
            sent[i] = devices.pop()
    return sent


def _tensors_of(node: torch.fx.Node) -> list[torch.Tensor]:
    """A node's results, as fake tensors. AOTAutograd and torch._dynamo have their own names."""
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
    return [p for t, p in tensors if is_xla_tensor(t)]
