"""The backend `openxla` as functions, for `torch.compile(backend=dynamo_backend)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._dynamo.dynamo_bridge import extract_compiled_graph


def _dynamo_backend(model: torch.fx.GraphModule, sample_args: Sequence[Any]) -> Callable:
    """Compiles a graph without a gradient: `openxla_eval`."""
    from functorch.compile import make_boxed_func

    return make_boxed_func(extract_compiled_graph(model, sample_args))


def dynamo_backend(fx: torch.fx.GraphModule, args: Sequence[Any]) -> Callable:
    """Compiles a graph of torch.compile, with its gradient: `openxla`."""
    from torch._dynamo.backends.torchxla import openxla

    return openxla(fx, args)
