"""Replacing tensors inside nested Python data: batches, state dicts, objects that hold tensors."""

from __future__ import annotations

import collections
import copy
import types
from collections.abc import Callable
from typing import Any

import torch

_LEAVES = (
    torch.Tensor,
    str,
    bytes,
    int,
    float,
    complex,
    type(None),
    type,
    torch.device,
    torch.dtype,
    torch.Size,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
)


class DataWrapper:
    """Data that knows its own tensors; subclass it for what is not nested Python data."""

    def get_tensors(self) -> list[torch.Tensor]:
        """The tensors inside."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method get_tensors().")

    def from_tensors(self, tensors: list[torch.Tensor]) -> Any:
        """The same data with these tensors in place of those of `get_tensors`."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method from_tensors().")


def replace(
    data: Any,
    select: Callable[[Any], bool],
    convert: Callable[[list[Any]], list[Any]],
) -> Any:
    """A copy of `data` with the selected values converted, in one call of `convert`.

    Looks into lists, tuples, named tuples, sets, dicts (their keys, too), DataWrappers and the
    attributes of other objects. Containers and objects keep their type and their other attributes.
    What holds no selected value is not copied, and an object that occurs twice is one object in the
    result, too.

    Args:
        data: Any data, shared and cyclic references included.
        select: Whether a value is one to convert; it is not looked into then.
        convert: Receives the distinct selected values and returns as many.
    """
    found, holders = _survey(data, select)
    if not found:
        return data
    values = list(found.values())
    converted = convert(values)
    if len(converted) != len(values):
        raise ValueError(
            f"expected as many values back as were passed, {len(values)}, got {len(converted)}."
        )
    return _rebuild(data, dict(zip(found, converted, strict=True)), holders)


def for_each(data: Any, select: Callable[[Any], bool], visit: Callable[[Any], None]) -> None:
    """Calls `visit` once with each distinct selected value inside `data`, in their order."""
    for value in _survey(data, select)[0].values():
        visit(value)


def _children(data: Any) -> Any:
    if isinstance(data, (list, tuple, set, frozenset, collections.deque)):
        return data
    if isinstance(data, DataWrapper):
        return data.get_tensors()
    if isinstance(data, dict):
        items = [part for item in data.items() for part in item]
        return items + list(getattr(data, "__dict__", {}).values())
    return vars(data).values() if hasattr(data, "__dict__") else ()


def _survey(data: Any, select: Callable[[Any], bool]) -> tuple[dict[int, Any], set[int]]:
    """The selected values by id, and the ids of all containers and objects that lead to one."""
    found: dict[int, Any] = {}
    parents: dict[int, list[int]] = {}
    if select(data):
        return {id(data): data}, set()
    entered = {id(data)}
    # Containers that are being looked into, each with what is left of it.
    trail = [] if isinstance(data, _LEAVES) else [(data, iter(_children(data)))]
    while trail:
        holder, rest = trail[-1]
        for child in rest:
            key = id(child)
            if select(child):
                found[key] = child
            elif isinstance(child, _LEAVES):
                continue
            parents.setdefault(key, []).append(id(holder))
            if key not in found and key not in entered:
                entered.add(key)
                trail.append((child, iter(_children(child))))
                break
        else:
            trail.pop()
    holders: set[int] = set()
    climb = [holder for key in found for holder in parents[key]]
    while climb:
        key = climb.pop()
        if key not in holders:
            holders.add(key)
            climb += parents.get(key, ())
    return found, holders


def _rebuild(data: Any, done: dict[int, Any], holders: set[int]) -> Any:
    key = id(data)
    if key in done:
        return done[key]
    if key not in holders:
        return data

    def rebuild(children: Any) -> list[Any]:
        return [_rebuild(child, done, holders) for child in children]

    if isinstance(data, DataWrapper):
        result = data.from_tensors(rebuild(data.get_tensors()))
    elif isinstance(data, tuple):
        items = rebuild(data)
        result = type(data)(*items) if hasattr(data, "_fields") else type(data)(items)
    elif isinstance(data, (set, frozenset)):
        result = type(data)(rebuild(data))
    else:
        # Made before its contents, which may refer to it.
        result = done[key] = copy.copy(data)
        if isinstance(data, (list, collections.deque)):
            for i, child in enumerate(data):
                result[i] = _rebuild(child, done, holders)
        elif isinstance(data, dict):
            if any(id(name) in done or id(name) in holders for name in data):
                result.clear()  # its order stays
                for name, child in data.items():
                    result[_rebuild(name, done, holders)] = _rebuild(child, done, holders)
            else:
                for name, child in data.items():
                    dict.__setitem__(result, name, _rebuild(child, done, holders))
        if hasattr(data, "__dict__"):
            for name, child in vars(data).items():
                result.__dict__[name] = _rebuild(child, done, holders)
    done[key] = result
    return result
