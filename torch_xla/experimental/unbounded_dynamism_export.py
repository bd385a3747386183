"""Exported programs of dynamic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.export.graph_signature import InputKind


def exported_program_has_symbolic_input_shape(ep: torch.export.ExportedProgram) -> bool:
    """Whether an argument of the program has a dimension that was exported as dynamic."""
    placeholders = [node for node in ep.graph.nodes if node.op == "placeholder"]
    return any(
        spec.kind == InputKind.USER_INPUT
        and isinstance(node.meta.get("val"), torch.Tensor)
        and any(isinstance(size, torch.SymInt) for size in node.meta["val"].shape)
        for node, spec in zip(placeholders, ep.graph_signature.input_specs, strict=True)
    )


def process_exported_program_with_symbolic_input(ep: torch.export.ExportedProgram) -> None:
    """Does nothing: dynamic sizes are found while the program is recorded, without rewriting it."""


def wrap_func_as_nn_module(f: Callable[..., Any]) -> torch.nn.Module:
    """A module that calls a function, for torch.export."""

    class Wrapped(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return f(*args)

    return Wrapped()
