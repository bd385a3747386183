"""The parameters and buffers of a module, and others in their places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

# Where a module keeps a tensor: a dictionary and its key there.
Place = tuple[dict[str, Any], str]


def named_places(module: nn.Module) -> dict[str, Place]:
    """Where a module and its parts keep tensors, by the tensor's name.

    A part that is shared has one name; so has a tensor for each place of its own.
    """
    return places_in(module.named_modules())


def places_in(parts: Iterable[tuple[str, nn.Module]]) -> dict[str, Place]:
    """The same of a module whose parts, as `named_modules` gives them, are known."""
    places = {}
    for prefix, part in parts:
        for table in (part._parameters, part._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    places[f"{prefix}.{key}" if prefix else key] = (table, key)
    return places


def held_tensors(module: nn.Module) -> list[torch.Tensor]:
    return [table[key] for table, key in named_places(module).values()]


@contextmanager
def replaced(places: Iterable[Place], tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Puts tensors in these places, for a block."""
    places = list(places)
    kept = [table[key] for table, key in places]
    try:
        for (table, key), tensor in zip(places, tensors, strict=True):
            table[key] = tensor
        yield
    finally:
        for (table, key), tensor in zip(places, kept, strict=True):
            table[key] = tensor
