"""Names that backends of `torch.compile` had in earlier versions. PyTorch has `openxla` itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._dynamo.backends.registry import register_experimental_backend


def torchxla_trace_once(model: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
    from torch._dynamo.backends.torchxla import openxla_eval

    return openxla_eval(model, inputs)


def aot_torchxla_trace_once(model: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
    from torch._dynamo.backends.torchxla import openxla

    return openxla(model, inputs)


def register() -> None:
    for backend in (torchxla_trace_once, aot_torchxla_trace_once):
        register_experimental_backend(backend)
