"""Equal layers as one loop of the program: compiled once, whatever their number."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from torch_xla._src.functions import same_layers
from torch_xla._src.functions.held_tensors import named_places, places_in, replaced
from torch_xla.experimental.scan import default_partition, scan

__all__ = ["scan_layers"]


def scan_layers(
    layers: Iterable[nn.Module],
    input_data: Any,
    partition_fn: Callable[..., Any] = default_partition,
    is_layer_pure: bool = False,
) -> Any:
    """Applies layers one after the other, as `for layer in layers: x = layer(x)` does.

    Their parameters and buffers are stacked, and one loop runs the first layer's code with those of
    each. Gradients flow to the input and to all parameters.

    Layers whose code reads plain numbers that differ from layer to layer (a rate, the p of a
    dropout) are called one after the other, each a part of the program of its own; a warning names
    the first.

    Args:
        layers: Modules of the same class, with parameters and buffers of the same names, shapes and
            dtypes, that do not write their buffers. What else their code reads is the same:
            booleans, texts, containers, functions, hooks.
        input_data: The first layer's input, a tree of tensors; a tuple stands for several
            arguments. A layer returns what the next one takes.
        partition_fn: What is kept for the backward pass, as for `scan`.
        is_layer_pure: Promises that layers compute the same at each call of these shapes.

    Returns:
        The last layer's result; `input_data` where there are no layers.

    Raises:
        ValueError: If the layers' parts, modes, parameters, buffers or attributes differ.
        RuntimeError: If a layer writes a buffer, as batch norm does while it trains.
    """
    layers = list(layers)
    if not layers:
        return input_data
    first = layers[0]
    parts = [list(layer.named_modules()) for layer in layers]
    _ensure_same_parts(parts)
    tensors = [
        {name: table[key] for name, (table, key) in places_in(of_layer).items()}
        for of_layer in parts
    ]
    _ensure_same_structure(tensors)
    if not tensors[0]:  # nothing to scan
        return _one_by_one(layers, input_data)
    differing = [] if is_layer_pure and _are_known(layers) else _differences(parts)
    matter = [(i, d) for i, d in differing if d.holder is None or d.place in _READ.get(first, ())]
    if _tell_of(matter):
        return _one_by_one(layers, input_data)
    stacked = [torch.stack([of_layer[name] for of_layer in tensors]) for name in tensors[0]]
    is_pure = is_layer_pure and not differing
    apply = _create_or_get_cached_one_layer_fn(first, partition_fn, is_pure)
    written = same_layers.Written(parts[0])
    # The difference may be no more than the number of a layer, or its name, which nobody reads.
    with same_layers.reads_noted(
        (d.holder, d.attribute) for _, d in differing if d.holder is not None
    ) as read:
        result, _ = scan(apply, input_data, stacked, partition_fn, is_pure)
    matter = [(i, d) for i, d in differing if d.attribute in read]
    if matter:
        written.take_back()
        _READ.setdefault(first, set()).update(d.place for _, d in matter)
        _tell_of(matter)
        return _one_by_one(layers, input_data)
    written.hand_on(parts[1:])
    if is_pure:
        _KNOWN[first] = [weakref.ref(layer) for layer in layers]
    return result


def _differences(parts: Sequence[same_layers.Parts]) -> list[tuple[int, same_layers.Difference]]:
    """Values that differ from the first layer's, with the number of the layer."""
    return [
        (i, difference)
        for i, other in enumerate(parts[1:], 1)
        for difference in same_layers.differences(parts[0], other)
    ]


# For each first layer, the layers that hold the same as it, which they promise to do from now on.
_KNOWN: weakref.WeakKeyDictionary[nn.Module, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()


def _are_known(layers: Sequence[nn.Module]) -> bool:
    known = _KNOWN.get(layers[0], ())
    return len(known) == len(layers) and all(
        ref() is layer for ref, layer in zip(known, layers, strict=True)
    )


def _call(layer: nn.Module, data: Any) -> Any:
    return layer(*data) if isinstance(data, tuple) else layer(data)


def _one_by_one(layers: Sequence[nn.Module], data: Any) -> Any:
    for layer in layers:
        data = _call(layer, data)
    return data


# For each first layer, what differs from layer to layer and their code has read.
_READ: weakref.WeakKeyDictionary[nn.Module, set[str]] = weakref.WeakKeyDictionary()


def _tell_of(differing: Sequence[tuple[int, same_layers.Difference]]) -> bool:
    """Warns where layers hold other values than the first; whether they do.

    Raises:
        ValueError: They differ in something else.
    """
    for i, d in sorted(differing, key=lambda it: it[1].is_value):
        mine, other = d.told()
        if not d.is_value:
            raise ValueError(
                f"scan_layers: expected layers that hold the same, got {d.place} = {other} in "
                f"layer {i}, and {mine} in the first. Make them equal, or call the layers in a "
                "Python loop."
            )
        warnings.warn(
            f"scan_layers: layer {i} has {d.place} = {other}, the first {mine}. So the layers are "
            "called one by one, and the program grows with their number. What is to differ may be "
            "a buffer.",
            stacklevel=3,
        )
        return True
    return False


# For layers that are pure, so that `scan` knows their functions again: by the identities of the
# partition and of the first layer, with which an entry goes; then for each mode of its parts.
_ONE_LAYER_CACHE: dict[tuple[int, int], dict[tuple[bool, ...], Callable[..., Any]]] = {}


def _create_or_get_cached_one_layer_fn(
    first_layer: nn.Module, partition_fn: Callable[..., Any], is_layer_pure: bool = False
) -> Callable[..., Any]:
    """The layer's code with a row of tensors, for `scan`, which tells partitions itself."""
    layer = first_layer
    reference: Callable[[], Any] = weakref.ref(layer) if is_layer_pure else lambda: layer

    def one_layer(carry: Any, tensors: list[torch.Tensor]) -> tuple[Any, None]:
        places = named_places(reference())
        versions = [None if t.is_inference() else t._version for t in tensors]
        with replaced(places.values(), tensors):
            result = _call(reference(), carry)
        for name, tensor, version in zip(places, tensors, versions, strict=True):
            if version is not None and tensor._version != version:
                _refuse_write(reference(), name)
        return result, None

    if not is_layer_pure:
        return one_layer
    key = id(partition_fn), id(layer)
    if key not in _ONE_LAYER_CACHE:
        _ONE_LAYER_CACHE[key] = {}
        weakref.finalize(layer, _ONE_LAYER_CACHE.pop, key, None)
    modes = tuple(m.training for m in layer.modules())
    return _ONE_LAYER_CACHE[key].setdefault(modes, one_layer)


def _refuse_write(layer: nn.Module, name: str) -> None:
    path, _, own = name.rpartition(".")
    kind = type(layer.get_submodule(path)).__name__
    raise RuntimeError(
        f"scan_layers: expected layers that do not write their tensors, got {path!r} ({kind}) of "
        f"the layers, which writes {own}, as batch norm does while it trains. Call its eval(), "
        "make it with track_running_stats=False, or call the layers in a Python loop."
    )


def _extract_weights_and_buffers(
    module: nn.Module,
) -> tuple[dict[str, nn.Parameter], dict[str, torch.Tensor]]:
    """The parameters and the buffers of a module, by name."""
    return dict(module.named_parameters()), dict(module.named_buffers())


def _ensure_same_parts(layers: Sequence[same_layers.Parts]) -> None:
    def told(parts: same_layers.Parts) -> list[tuple[str, type, bool]]:
        return [(path, type(part), part.training) for path, part in parts]

    first = told(layers[0])
    for i, layer in enumerate(layers):
        for mine, other in itertools.zip_longest(first, told(layer)):
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
