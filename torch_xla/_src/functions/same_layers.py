"""Compares modules beside their tensors: whether the code of one does what that of each does."""

from __future__ import annotations

import functools
import math
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from torch_xla._src.functions.held_tensors import places_in

# Attributes that are compared elsewhere, or that calls of a module do not read.
_NOT_ATTRIBUTES = {
    *("_parameters", "_buffers", "_modules", "training", "_non_persistent_buffers_set"),
    *("_state_dict_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
}
_HOOKS = {
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs"),
    "_forward_hooks_always_called",
}
_NUMBERS = (int, float, complex)
_ATOMS = (*_NUMBERS, bool, str, bytes, type(None))


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


_MISSING = _Missing()
# The parts of a module, itself the first, by their paths.
Parts = Sequence[tuple[str, nn.Module]]


class Difference(NamedTuple):
    """Something that a module holds otherwise than another.

    Attributes:
        place: The path of the part, its attribute, and where in it: `block.rates[1]`.
        attribute: The attribute.
        mine, other: What is there.
        holder: The part of the first module whose attribute itself differs, a number, text or
            bool; None for what lies within attributes, and hooks.
        is_value: Whether both are plain numbers or tensors, of which code makes values.
    """

    place: str
    attribute: str
    mine: Any
    other: Any
    holder: nn.Module | None
    is_value: bool

    def told(self) -> tuple[str, str]:
        """Short texts of what is there."""
        return _told(self.mine), _told(self.other)


def _told(value: Any) -> str:
    if isinstance(value, torch.Tensor):  # which may not have been computed
        return f"a tensor of shape {list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def differences(first: Parts, other: Parts) -> list[Difference]:
    """A part of a module that differs from the first's: numbers, texts, containers, functions and
    hooks, as far as they lead. Both have parts and tensors of the same names."""
    comparison = _Comparison(first, other)
    for (path, mine), (_, theirs) in zip(first, other, strict=True):
        comparison.compare_parts(path, mine, theirs)
    return comparison.found


def _names(parts: Parts) -> dict[int, str]:
    """By identity, the names of a module's parts and tensors."""
    names = {id(part): path for path, part in parts}
    for name, (table, key) in places_in(parts).items():
        names.setdefault(id(table[key]), name)
    return names


class _Comparison:
    def __init__(self, first: Parts, other: Parts):
        self.found: list[Difference] = []
        self._modules = first, other
        self._names: tuple[dict[int, str], dict[int, str]] | None = None
        self._seen: set[tuple[int, int]] = set()
        self._path, self._part = first[0]

    def compare_parts(self, path: str, mine: nn.Module, other: nn.Module) -> None:
        self._path, self._part = path, mine
        here, there = mine.__dict__, other.__dict__
        for name, value in here.items():
            if name in _NOT_ATTRIBUTES:
                continue
            theirs = there.get(name, _MISSING)
            if value is theirs:
                continue
            if name not in _HOOKS:
                self._compare(name, value, theirs)
            elif value or theirs:  # by numbers that differ from hook to hook
                self._compare_in_order(name, [*value.values()], [*theirs.values()])
        if len(here) != len(there) or here.keys() != there.keys():
            for name in there.keys() - here.keys():
                self._differ(name, _MISSING, there[name])

    def _differ(self, place: str, mine: Any, other: Any) -> None:
        is_number = type(mine) in _NUMBERS and type(other) in _NUMBERS
        both_tensors = isinstance(mine, torch.Tensor) and isinstance(other, torch.Tensor)
        is_own = place in self._part.__dict__ and type(mine) in _ATOMS and type(other) in _ATOMS
        self.found.append(
            Difference(
                f"{self._path}.{place}" if self._path else place,
                place,
                mine,
                other,
                self._part if is_own else None,
                is_number or both_tensors,
            )
        )

    def _compare(self, place: str, mine: Any, other: Any) -> None:
        if mine is other:
            return
        if type(mine) is not type(other):
            self._differ(place, mine, other)
        elif isinstance(mine, _NUMBERS):
            if not _same_number(mine, other):
                self._differ(place, mine, other)
        elif isinstance(mine, (str, bytes, type, torch.dtype, torch.device, torch.Size)):
            if mine != other:
                self._differ(place, mine, other)
        elif (id(mine), id(other)) not in self._seen:
            self._seen.add((id(mine), id(other)))
            self._compare_objects(place, mine, other)

    def _compare_objects(self, place: str, mine: Any, other: Any) -> None:
        if isinstance(mine, (torch.Tensor, nn.Module)):
            here, there = self._place_of(mine, 0), self._place_of(other, 1)
            if here is None and there is None and isinstance(mine, nn.Module):
                self._compare_dicts(place, vars(mine), vars(other))
            elif here is None or here != there:
                self._differ(place, mine, other)
            return
        if isinstance(mine, Mapping):
            self._compare_dicts(place, mine, other)
        elif isinstance(mine, (list, tuple, deque)):
            self._compare_in_order(place, mine, other)
        elif isinstance(mine, types.FunctionType):
            self._compare_functions(place, mine, other)
            return
        elif isinstance(mine, types.MethodType):
            self._compare(place, mine.__func__, other.__func__)
            self._compare(f"{place}.__self__", mine.__self__, other.__self__)
            return
        elif isinstance(mine, functools.partial):
            self._compare(f"{place}.func", mine.func, other.func)
            self._compare(f"{place}.args", mine.args, other.args)
            self._compare(f"{place}.keywords", mine.keywords, other.keywords)
        elif isinstance(mine, weakref.ref):
            self._compare(place, mine(), other())
            return
        state, state_of_other = _state_of(mine), _state_of(other)
        if state is not None and state_of_other is not None:
            self._compare_dicts(place, state, state_of_other, attributes=True)
        elif not isinstance(mine, (Mapping, list, tuple, deque, functools.partial)):
            if not _equal(mine, other):
                self._differ(place, mine, other)

    def _place_of(self, value: Any, which: int) -> str | None:
        if self._names is None:
            first, other = self._modules
            self._names = _names(first), _names(other)
        return self._names[which].get(id(value))

    def _compare_dicts(
        self, place: str, mine: Mapping, other: Mapping, attributes: bool = False
    ) -> None:
        for key in [*mine, *(key for key in other if key not in mine)]:
            where = f"{place}.{key}" if attributes else f"{place}[{key!r}]"
            if key in mine and key in other:
                self._compare(where, mine[key], other[key])
            else:
                self._differ(where, mine.get(key, _MISSING), other.get(key, _MISSING))

    def _compare_in_order(self, place: str, mine: Any, other: Any) -> None:
        if len(mine) != len(other):
            self._differ(place, mine, other)
            return
        for i, (a, b) in enumerate(zip(mine, other, strict=True)):
            self._compare(f"{place}[{i}]", a, b)

    def _compare_functions(self, place: str, mine: Any, other: Any) -> None:
        if mine.__code__ != other.__code__ or mine.__globals__ is not other.__globals__:
            self._differ(place, mine, other)
            return
        self._compare(f"{place}.__defaults__", mine.__defaults__, other.__defaults__)
        self._compare(f"{place}.__kwdefaults__", mine.__kwdefaults__, other.__kwdefaults__)
        here, there = ({k: v for k, v in vars(f).items() if not _is_id(k)} for f in (mine, other))
        self._compare_dicts(place, here, there, attributes=True)
        cells = zip(mine.__closure__ or (), other.__closure__ or (), strict=True)
        for name, (a, b) in zip(mine.__code__.co_freevars, cells, strict=True):
            self._compare(f"{place}: {name}", _content_of(a), _content_of(b))


def _is_id(name: str) -> bool:
    """True for the name of an attribute by which torch._dynamo knows a function again."""
    return name.startswith("_torchdynamo_") and name.endswith("_id")


def _same_number(a: Any, b: Any) -> bool:
    """Not by ==, for which 0. and -0. are the same, and nan differs from itself."""
    if isinstance(a, complex):
        return _same_number(a.real, b.real) and _same_number(a.imag, b.imag)
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    return bool(a == b)


def _content_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return _MISSING


def _state_of(value: Any) -> dict[str, Any] | None:
    """The attributes of an object; None of one that has none."""
    state = dict(getattr(value, "__dict__", ()))
    slots = False
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            slots = True
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                state[name] = getattr(value, name)
    return state if state or slots or hasattr(value, "__dict__") else None


def _equal(mine: Any, other: Any) -> bool:
    """Classes of objects whose state is not Python's."""
    if type(mine).__module__ == "_thread":  # a lock has none
        return True
    equal = mine == other
    if hasattr(equal, "all"):  # arrays of numpy
        same = mine.dtype == other.dtype and mine.shape == other.shape
        return same and bool(equal.all())
    return bool(equal)


class Written:
    """Writes of code to a module's parts of numbers, texts and bools: a count, a flag.

    Args:
        parts: The module's.
    """

    def __init__(self, parts: Parts):
        self._parts = parts
        self._before = [dict(part.__dict__) for _, part in parts]

    def hand_on(self, others: Iterable[Parts]) -> None:
        """Others with the same code write the same."""
        for i, (before, (_, part)) in enumerate(zip(self._before, self._parts, strict=True)):
            for name, value in part.__dict__.items():
                if value is not before.get(name, _MISSING) and type(value) in _ATOMS:
                    for other in others:
                        other[i][1].__dict__[name] = value

    def take_back(self) -> None:
        """Nothing was written."""
        for before, (_, part) in zip(self._before, self._parts, strict=True):
            part.__dict__.update(before)


@contextmanager
def reads_noted(attributes: Iterable[tuple[nn.Module, str]]) -> Iterator[set[str]]:
    """A block in which the names of attributes are noted that modules' code reads."""
    by_module: dict[nn.Module, set[str]] = {}
    for module, name in attributes:
        by_module.setdefault(module, set()).add(name)
    read: set[str] = set()
    classes = {module: type(module) for module in by_module}
    try:
        for module, names in by_module.items():
            object.__setattr__(module, "__class__", _noting(type(module), names, read))
        yield read
    finally:
        for module, kind in classes.items():
            object.__setattr__(module, "__class__", kind)


def _noting(kind: type, names: set[str], read: set[str]) -> type:
    def __getattribute__(self: Any, name: str) -> Any:
        if name in names:
            read.add(name)
        return kind.__getattribute__(self, name)  # type: ignore[call-arg]

    fields = {"__getattribute__": __getattribute__, "__module__": kind.__module__}
    return type(kind)(kind.__name__, (kind,), fields)
