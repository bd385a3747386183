"""Backends of `torch.compile`: names of earlier versions, and what the default one says.

PyTorch has `openxla` itself.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.registry import register_experimental_backend
from torch.fx.node import has_side_effect
from torch.utils import _pytree as pytree

from torch_xla._src.device.names import is_xla_tensor


def torchxla_trace_once(model: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
    from torch._dynamo.backends.torchxla import openxla_eval

    return openxla_eval(model, inputs)


def aot_torchxla_trace_once(model: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
    from torch._dynamo.backends.torchxla import openxla

    return openxla(model, inputs)


def register() -> None:
    # A graph keeps this call, though nothing reads its result.
    has_side_effect(torch.ops.xla.dynamo_set_buffer_donor_.default)
    for backend in (torchxla_trace_once, aot_torchxla_trace_once):
        register_experimental_backend(backend)


def extract_once() -> None:
    """Lets threads make the first call of a graph of `openxla` at the same time.

    PyTorch's helper has the graph extracted in its first call, and fails with a NameError where two
    are the first.
    """
    from torch._dynamo.backends import torchxla

    def xla_backend_helper(model: torch.fx.GraphModule, fake_tensor_inputs: Any, boxed=False):
        lock = threading.Lock()
        compiled: Callable | None = None

        def call(*args: Any) -> Any:
            nonlocal compiled
            if compiled is None:
                from torch_xla.core import dynamo_bridge

                with lock:
                    compiled = compiled or dynamo_bridge.extract_compiled_graph(model, args)
            return compiled(*args)

        return torchxla.make_boxed_func(call) if boxed else call

    torchxla.xla_backend_helper = xla_backend_helper


def refuse_inductor() -> None:
    """Makes inductor, the default backend, say which one to use where a graph is on `xla`."""
    from torch._inductor import compile_fx

    original = compile_fx.compile_fx

    @functools.wraps(original)
    def checked(model_: torch.fx.GraphModule, example_inputs_: Sequence, *args: Any, **kw: Any):
        if _is_on_xla(model_, example_inputs_):
            raise RuntimeError(
                "torch.compile: expected a backend that writes programs for xla, got inductor, the "
                'default one. Use torch.compile(..., backend="openxla").'
            )
        return original(model_, example_inputs_, *args, **kw)

    compile_fx.compile_fx = checked


def _is_on_xla(model: torch.fx.GraphModule, inputs: Sequence) -> bool:
    """True if a graph takes, holds or makes a tensor on xla."""
    nodes = getattr(getattr(model, "graph", None), "nodes", ())
    made = [n.meta.get("val", n.meta.get("example_value")) for n in nodes]
    held = [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else []
    leaves = pytree.tree_leaves([list(inputs), made, held])
    return any(map(is_xla_tensor, leaves))
