"""Calls of what a compiler, or a reader of exported programs, has under a name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_xla._src.export import mlir


def stablehlo_custom_call(
    args: Sequence[torch.Tensor],
    call_target: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    has_side_effect: bool = False,
    backend_config: str = "",
    api_version: int = 0,
    frontend_attributes: dict[str, str] | None = None,
) -> torch.Tensor | list[torch.Tensor]:
    """Records a `stablehlo.custom_call`.

    Args:
        args: Tensors on `xla`, or those of a model that is being exported.
        call_target: The name of what is called.
        output_shapes: The shapes of its results.
        output_dtypes: Their dtypes.
        has_side_effect: Whether it does more than compute its results.
        backend_config: A text for what is called; with `api_version` 4, an MLIR dictionary.
        api_version: StableHLO's number for the way of calling.
        frontend_attributes: Texts for the compiler.

    Returns:
        The result, or a list where there are several.

    Raises:
        ValueError: There are not as many shapes as dtypes.
    """
    if len(output_shapes) != len(output_dtypes):
        raise ValueError(
            f"stablehlo_custom_call: expected a dtype for each result, got {len(output_dtypes)} "
            f"for {len(output_shapes)} shapes."
        )
    attributes = ""
    if frontend_attributes:
        attributes = mlir.dictionary({k: mlir.string(v) for k, v in frontend_attributes.items()})
    results = torch.ops.torch_xla.stablehlo_custom_call(
        list(args),
        call_target,
        [len(shape) for shape in output_shapes],
        [size for shape in output_shapes for size in shape],
        " ".join(str(dtype).removeprefix("torch.") for dtype in output_dtypes),
        has_side_effect,
        backend_config,
        api_version,
        attributes,
    )
    return results[0] if len(results) == 1 else list(results)


def extract_custom_call_outputs_shape_dtype(
    n: torch.fx.Node,
) -> tuple[list[torch.Size], list[torch.dtype]]:
    """The shapes and dtypes of what a node of an exported graph gives."""
    value = n.meta["val"]
    values = [value] if isinstance(value, torch.Tensor) else list(value)
    return [v.shape for v in values], [v.dtype for v in values]


# Where the compiler has memory of the host beside that of the device.


def _place(a: torch.Tensor, memory: str) -> torch.Tensor:
    placed = stablehlo_custom_call(
        [a],
        "annotate_device_placement",
        [a.shape],
        [a.dtype],
        has_side_effect=True,
        frontend_attributes={"_xla_buffer_placement": memory},
    )
    assert isinstance(placed, torch.Tensor)  # one, for one shape
    return placed


def _place_to_host_impl(a: torch.Tensor) -> torch.Tensor:
    return _place(a, "pinned_host")


def _place_to_device_impl(a: torch.Tensor) -> torch.Tensor:
    return _place(a, "device")


def to_host_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad


def to_device_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad


def _(t: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(t)


_library = torch.library.Library("xla", "FRAGMENT")
for _name, _function, _backward in (
    ("place_to_host", _place_to_host_impl, to_host_backward),
    ("place_to_device", _place_to_device_impl, to_device_backward),
):
    _library.define(f"{_name}(Tensor a) -> Tensor")
    _library.impl(_name, _function, "XLA")
    _library.impl(_name, _, "Meta")
    torch.library.register_autograd(f"xla::{_name}", _backward, lib=_library)


def place_to_host(t: torch.Tensor | None) -> torch.Tensor | None:
    """The same values in the host's memory. A gradient passes as it is; None stays None."""
    return None if t is None else torch.ops.xla.place_to_host(t)


def place_to_device(t: torch.Tensor | None) -> torch.Tensor | None:
    """The same values in the device's memory. A gradient passes as it is; None stays None."""
    return None if t is None else torch.ops.xla.place_to_device(t)
