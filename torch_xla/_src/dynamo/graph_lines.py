"""The user's lines and modules that the lines of a generated graph stand for.

torch._dynamo, AOTAutograd and torch.fx run a graph as generated code, in which each node keeps the
stack of the call that it was captured from; a node of a backward pass, that of its forward call.
"""

from __future__ import annotations

import re
import weakref

import torch

from torch_xla import _XLAC

_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
# The variable that a path of modules begins at: "L['self'].layers.0".
_ROOT = re.compile(r"^\w+\['\w+'\]\.?")


def tell_lines(graph: torch.fx.GraphModule) -> None:
    """Lets what a graph and those within it record be of the user's lines while the graph lives."""
    for module in graph.modules():
        lines = _lines_of(module) if isinstance(module, torch.fx.GraphModule) else {}
        if lines:
            file = type(module).forward.__code__.co_filename
            weakref.finalize(module, _XLAC._drop_generated_lines, file).atexit = False
            _XLAC._set_generated_lines(file, lines)


def _lines_of(module: torch.fx.GraphModule) -> dict[int, tuple[list[tuple[str, int, str]], str]]:
    """By line of the generated code: the frames, innermost first, and the module's name."""
    nodes = list(module.graph.nodes)
    module.code  # noqa: B018 - generates it, where that waits for the first call
    first = getattr(module, "_prologue_start", 0)
    lines = {}
    for line, index in (getattr(module, "_lineno_map", None) or {}).items():
        if index is not None and (trace := nodes[index].stack_trace):
            frames = [(file, int(at), name) for file, at, name in _FRAME.findall(trace)]
            lines[line + first] = (frames[::-1], _module_of(nodes[index]))
    return lines


def _module_of(node: torch.fx.Node) -> str:
    """The path of the module that called, as "Net.layers.0"; "layers.0" in a compiled Net."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    if not stack:
        return ""
    outermost, *_, (path, _kind) = [*stack.values()] * 2
    root = _ROOT.match(path)
    inner = path[root.end() :] if root else path
    if root and outermost[0] == root.group().rstrip("."):
        return ".".join(part for part in (_class_name(outermost[1]), inner) if part)
    return inner


def _class_name(kind: type | str) -> str:
    return kind.__name__ if isinstance(kind, type) else kind.rpartition(".")[2]
