"""Equal layers as one loop of the program: compiled once, whatever their number."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from torch_xla._src.held_tensors import held_tensors, named_places, replaced
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
        ValueError: If the layers' parts, modes, parameters or buffers differ.
    """
    layers = list(layers)
    if not layers:
        return input_data
    first = layers[0]
    _ensure_same_parts(layers)
    _ensure_same_structure([_held(layer) for layer in layers])
    tensors = [held_tensors(layer) for layer in layers]
    if not tensors[0]:  # nothing to scan
        for layer in layers:
            input_data = _call(layer, input_data)
        return input_data
    stacked = [torch.stack(places) for places in zip(*tensors, strict=True)]
    apply = _create_or_get_cached_one_layer_fn(first, partition_fn, is_layer_pure)
    result, _ = scan(apply, input_data, stacked, partition_fn, is_layer_pure)
    return result


def _call(layer: nn.Module, data: Any) -> Any:
    return layer(*data) if isinstance(data, tuple) else layer(data)


# Of layers that are pure, so that `scan` knows their functions again; for each mode of their parts.
_ONE_LAYER_CACHE: weakref.WeakKeyDictionary[nn.Module, dict] = weakref.WeakKeyDictionary()


def _create_or_get_cached_one_layer_fn(
    first_layer: nn.Module, partition_fn: Callable, is_layer_pure: bool = False
) -> Callable:
    """What `scan` calls: the layer's code with a row of tensors. `scan` itself tells partitions."""
    layer = first_layer
    reference = weakref.ref(layer) if is_layer_pure else lambda: layer

    def one_layer(carry: Any, tensors: list[torch.Tensor]) -> tuple[Any, None]:
        with replaced(named_places(reference()).values(), tensors):
            return _call(reference(), carry), None

    if not is_layer_pure:
        return one_layer
    modes = tuple(m.training for m in layer.modules())
    return _ONE_LAYER_CACHE.setdefault(layer, {}).setdefault(modes, one_layer)


def _held(layer: nn.Module) -> dict[str, torch.Tensor]:
    return {name: table[key] for name, (table, key) in named_places(layer).items()}


def _extract_weights_and_buffers(
    module: nn.Module,
) -> tuple[dict[str, nn.Parameter], dict[str, torch.Tensor]]:
    """The parameters and the buffers of a module, by name."""
    return dict(module.named_parameters()), dict(module.named_buffers())


def _ensure_same_parts(layers: Sequence[nn.Module]) -> None:
    def parts(layer: nn.Module) -> list[tuple[str, type, bool]]:
        return [(name, type(part), part.training) for name, part in layer.named_modules()]

    first = parts(layers[0])
    for i, layer in enumerate(layers):
        for mine, other in zip(first, parts(layer), strict=False):
            if mine != other:
                raise ValueError(
                    f"scan_layers: expected layers of the same parts in the same mode, got {other} "
                    f"in layer {i} for {mine} in the first (name, class, training)."
                )


def _ensure_same_structure(dicts: Sequence[Mapping[str, torch.Tensor]]) -> None:
    """Raises ValueError where the tensors of a layer differ from the first layer's."""
    first = dicts[0]
    for i, others in enumerate(dicts):
        if others.keys() != first.keys():
            names = ", ".join(sorted(others.keys() ^ first.keys()))
            raise ValueError(
                "scan_layers: expected layers with the parameters and buffers of the first, got "
                f"layer {i}, which differs in {names}."
            )
        for name, tensor in others.items():
            mine = first[name]
            if tensor.shape != mine.shape or tensor.dtype != mine.dtype:
                raise ValueError(
                    f"scan_layers: expected {name} of shape {tuple(mine.shape)} and "
                    f"{mine.dtype}, as in the first layer, got {tuple(tensor.shape)} and "
                    f"{tensor.dtype} in layer {i}."
                )
