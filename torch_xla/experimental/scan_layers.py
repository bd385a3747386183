"""Equal layers as one loop of the program: compiled once, whatever their number."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from torch_xla.experimental.scan import default_partition, scan

__all__ = ["scan_layers"]


def scan_layers(
    layers: Iterable[nn.Module],
    input_data: Any,
    partition_fn: Callable = default_partition,
    is_layer_pure: bool = False,
) -> Any:
    """Applies layers one after the other, as `for layer in layers: x = layer(x)` does.

    Their parameters and buffers are stacked, and one loop runs the first layer's code with those of
    each. Gradients flow to the input and to all parameters.

    Args:
        layers: Modules of the same class, with parameters and buffers of the same names, shapes and
            dtypes, that do not write their buffers.
        input_data: The first layer's input, a tree of tensors; a tuple stands for several
            arguments. A layer returns what the next one takes.
        partition_fn: What is kept for the backward pass, as for `scan`.
        is_layer_pure: Promises that layers compute the same at each call of these shapes.

    Returns:
        The last layer's result; `input_data` where there are no layers.

    Raises:
        ValueError: If the layers' parameters or buffers differ.
    """
    layers = list(layers)
    if not layers:
        return input_data
    first = layers[0]
    tensors = []
    for layer in layers:
        parameters, buffers = _extract_weights_and_buffers(layer)
        tensors.append({**parameters, **buffers})
    _ensure_same_structure(tensors)
    if not tensors[0]:  # nothing to scan
        for layer in layers:
            input_data = torch.func.functional_call(layer, {}, input_data)
        return input_data
    stacked = {name: torch.stack([t[name] for t in tensors]) for name in tensors[0]}
    apply = _create_or_get_cached_one_layer_fn(first, is_layer_pure)
    result, _ = scan(apply, input_data, stacked, partition_fn, is_layer_pure)
    return result


# Of layers that are pure, so that `scan` knows their functions again.
_one_layer_functions: weakref.WeakKeyDictionary[nn.Module, Callable] = weakref.WeakKeyDictionary()


def _create_or_get_cached_one_layer_fn(layer: nn.Module, is_layer_pure: bool = False) -> Callable:
    if is_layer_pure and layer in _one_layer_functions:
        return _one_layer_functions[layer]
    reference = weakref.ref(layer) if is_layer_pure else lambda: layer

    def one_layer(carry: Any, tensors: dict[str, torch.Tensor]) -> tuple[Any, None]:
        return torch.func.functional_call(reference(), tensors, carry, strict=True), None

    if is_layer_pure:
        _one_layer_functions[layer] = one_layer
    return one_layer


def _extract_weights_and_buffers(
    module: nn.Module,
) -> tuple[dict[str, nn.Parameter], dict[str, torch.Tensor]]:
    return dict(module.named_parameters()), dict(module.named_buffers())


def _ensure_same_structure(dicts: Sequence[Mapping[str, torch.Tensor]]) -> None:
    first = dicts[0]
    for i, other in enumerate(dicts):
        if other.keys() != first.keys():
            names = sorted(other.keys() ^ first.keys())
            raise ValueError(
                "scan_layers: expected layers with the parameters and buffers of the first, got "
                f"layer {i}, which differs in {', '.join(names)}."
            )
        for name, tensor in other.items():
            mine = first[name]
            if tensor.shape != mine.shape or tensor.dtype != mine.dtype:
                raise ValueError(
                    f"scan_layers: expected {name} of shape {tuple(mine.shape)} and "
                    f"{mine.dtype}, as in the first layer, got {tuple(tensor.shape)} and "
                    f"{tensor.dtype} in layer {i}."
                )
