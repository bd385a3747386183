"""A function's own names of the tensors that it uses: names for the inputs of its program."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from torch_xla import _XLAC
from torch_xla._src.functions.held_tensors import named_places

Named = Iterator[tuple[str, torch.Tensor]]


def name_of(function: Callable) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def argument_names(step: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Names of the leaves of (args, kwargs), such as `x` or `batch.image`."""
    function = step.forward if isinstance(step, nn.Module) else step
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    rest = next((p.name for p in parameters if p.kind == p.VAR_POSITIONAL), "args")
    names = []
    for path, _ in pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))[0]:
        which, first, *inner = (_key(part) for part in path)
        if which == "0":
            at = int(first)
            first = positional[at] if at < len(positional) else f"{rest}.{at - len(positional)}"
        names.append(".".join([first, *inner]))
    return unique(names)


def result_name(path: Sequence[Any]) -> str:
    """`loss` of a dictionary, `result.0` of a tuple, `result` where there is one tensor."""
    keys = [_key(part) for part in path]
    return ".".join(keys if keys and not keys[0].isdigit() else ["result", *keys])


def _key(part: Any) -> str:
    for field in ("key", "idx", "name"):
        if hasattr(part, field):
            return str(getattr(part, field))
    return str(part)


def names_of(
    states: Sequence[torch.Tensor],
    step: Callable,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    reserved: Sequence[str],
) -> list[str]:
    """Names of tensors that each are all of a storage: those by which `step` reaches the storage,
    such as `model.0.weight`, or else `state.3`. None is among the `reserved` ones."""
    names: dict[int, str] = {}
    places = {s.untyped_storage()._cdata: i for i, s in enumerate(states)}
    for name, tensor in reached(step, args, kwargs):
        if not is_on_xla(tensor):
            continue
        at = places.get(tensor.untyped_storage()._cdata)
        # A part of a storage, or another view of it, does not name the whole.
        if at is not None and tensor.shape == states[at].shape:
            if tensor.stride() == states[at].stride() and tensor.storage_offset() == 0:
                names.setdefault(at, name)
    found = (names.get(i, f"state.{i}") for i in range(len(states)))
    return unique([*reserved, *found])[len(reserved) :]


def is_on_xla(tensor: torch.Tensor) -> bool:
    """True if a tensor is one of ours, and not a fake one."""
    return tensor.device.type == "xla" and type(tensor).__name__ != "FakeTensor"


def unique(names: Iterator[str] | Sequence[str]) -> list[str]:
    """The names, with a number behind those that came before."""
    found: dict[str, None] = {}
    for name in names:
        number, new = 2, name
        while new in found:
            number, new = number + 1, f"{name}.{number}"
        found[new] = None
    return list(found)


def reached(step: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Named:
    """The tensors that a call reaches by names, and their gradients; one may come several times."""
    walk = _Walk()
    names = argument_names(step, range(len(args)), {})  # of the arguments as they are given
    for name, value in [*zip(names, args, strict=True), *kwargs.items()]:
        yield from walk.tensors(name, value)
    yield from walk.tensors("", step)
    # Objects that it reaches in other ways.
    holders = _XLAC._xla_objects_of((nn.Module, Optimizer))
    parts = {id(p) for h in holders if isinstance(h, nn.Module) for p in h.children()}
    for holder in holders:
        if id(holder) not in parts:
            yield from walk.tensors(type(holder).__name__.lower(), holder)


class _Walk:
    """Visits what a function names, each object once."""

    _DEPTH = 6  # of containers and objects within each other

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def tensors(self, name: str, value: Any, depth: int = 0) -> Named:
        if isinstance(value, torch.Tensor):
            yield name, value
            if value.is_leaf and value.grad is not None:
                yield f"{name}.grad", value.grad
            return
        if id(value) in self._seen or depth > self._DEPTH:
            return
        self._seen.add(id(value))
        for key, held in _held(value):
            inner = ".".join(filter(None, (name, key)))
            yield from self.tensors(inner, held, depth + 1)


@functools.singledispatch
def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """The contents of an object, by name."""
    is_plain = isinstance(value, (type, ModuleType)) or not hasattr(value, "__dict__")
    yield from () if is_plain else list(vars(value).items())


@_held.register
def _(value: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, (table, key) in named_places(value).items():
        yield name, table[key]


@_held.register
def _(value: Optimizer) -> Iterator[tuple[str, Any]]:
    parameters = [p for group in value.param_groups for p in group["params"]]
    for i, parameter in enumerate(parameters):
        for key, held in value.state.get(parameter, {}).items():
            yield f"state.{i}.{key}", held
    for g, group in enumerate(value.param_groups):
        for key, held in group.items():
            if key != "params":
                yield f"param_groups.{g}.{key}", held


@_held.register
def _(value: dict) -> Iterator[tuple[str, Any]]:
    for key, held in list(value.items()):
        yield str(key), held


@_held.register(list)
@_held.register(tuple)
def _(value: Sequence) -> Iterator[tuple[str, Any]]:
    for i, held in enumerate(value):
        yield str(i), held


@_held.register
def _(value: MethodType) -> Iterator[tuple[str, Any]]:
    yield "", value.__func__
    yield "", value.__self__


@_held.register
def _(value: functools.partial) -> Iterator[tuple[str, Any]]:
    yield "", value.func
    yield "", value.args
    yield "", value.keywords


@_held.register
def _(value: FunctionType) -> Iterator[tuple[str, Any]]:
    wrapped = inspect.unwrap(value)
    if wrapped is not value:
        yield "", wrapped
        return
    try:
        variables = inspect.getclosurevars(value)
    except ValueError:  # a variable that has no value yet
        return
    for name, held in [*variables.nonlocals.items(), *variables.globals.items()]:
        if not isinstance(held, (FunctionType, MethodType)):
            yield name, held
        elif not (held.__module__ or "").startswith(("torch.", "torch_xla.")):
            yield "", held  # a function that it calls has variables of its own
