"""Capture by torch._dynamo of calls of a class with a `__torch_function__`.

It captures what `__torch_function__` does; this is for where it does otherwise than Python.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodDescriptorType
from typing import Any

import torch

from torch_xla._src.dynamo.uncaptured import constant, uncaptured

# Methods of torch.Tensor that are written in Python and write nothing.
_METHODS = ("norm", "split", "unique", "unique_consecutive", "unflatten", "stft", "istft", "lu")
_OPERATORS = (
    *("__rsub__", "__rdiv__", "__rtruediv__", "__pow__", "__rpow__", "__rmod__", "__floordiv__"),
    *("__rfloordiv__", "__rmatmul__", "__rlshift__", "__rrshift__", "__len__", "__contains__"),
)
_IN_PYTHON = [vars(torch.Tensor).get(name) for name in (*_METHODS, *_OPERATORS)]
_VIEWS = [getattr(torch.Tensor, name).__get__ for name in ("data", "T", "mT", "H", "mH", "real")]


@constant
def _kind(func: Callable[..., Any]) -> str:
    if func == torch.Tensor.requires_grad_:
        return "changes the tensor"
    if isinstance(func, FunctionType):
        if func in _IN_PYTHON:
            return "method in Python"
        is_method = func in vars(torch.Tensor).values()
        return "changes the tensor" if is_method else "function in Python"
    if func in _VIEWS:
        return "view"
    name = getattr(func, "__name__", "")
    is_in_place = name.endswith("_") and not name.endswith("__")
    return "in place" if is_in_place and isinstance(func, MethodDescriptorType) else ""


@uncaptured("a call that changes more of a DTensor than its value")
def _uncaptured_call(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return func(*args, **kwargs)


# torch._dynamo captures no function of pytrees over values that a graph has made constants.
def first_of(values: Any, cls: type) -> Any:
    """The first value of a class among nested arguments; None without any."""
    if isinstance(values, cls):
        return values
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (list, tuple)):
        return None
    for value in values:
        found = first_of(value, cls)
        if found is not None:
            return found
    return None


def _without(values: Any, cls: Any) -> Any:
    """Nested arguments with plain tensors for those of a class."""
    if isinstance(values, cls):
        return values.global_tensor
    if isinstance(values, dict):
        return {name: _without(value, cls) for name, value in values.items()}
    if type(values) in (list, tuple):
        return type(values)([_without(value, cls) for value in values])
    return values


def call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], cls: type) -> Any:
    """Calls a function for the `__torch_function__` of a class, which makes no call of its own of
    the results: those are plain tensors.

    Args:
        func, args, kwargs: As `__torch_function__` gets them.
        cls: The class, whose `global_tensor` is a plain tensor.
    """
    if not torch.compiler.is_dynamo_compiling():
        return func(*args, **kwargs)
    kind = _kind(func)
    if kind == "changes the tensor":
        return _uncaptured_call(func, args, kwargs)
    if kind in ("method in Python", "function in Python"):
        # The body is captured, and asks for a __torch_function__ again.
        args, kwargs = _without(args, cls), _without(kwargs, cls)
        if kind == "method in Python":
            return getattr(args[0], func.__name__)(*args[1:], **kwargs)
    result = func(*args, **kwargs)
    if kind == "in place":
        return args[0]  # as Python has it, with its class
    return result.view_as(result) if kind == "view" else result  # where it comes from is known


def with_own_methods(cls: type) -> type:
    """A class decorator. Of the methods of torch.Tensor's that are written in Python, only those
    are captured that a class with a `__torch_function__` has itself.
    """
    for name in _METHODS:
        method = getattr(torch.Tensor, name)
        parts = method.__code__, method.__globals__, name, method.__defaults__, method.__closure__
        own = FunctionType(*parts)
        own.__kwdefaults__, own.__doc__ = method.__kwdefaults__, method.__doc__
        setattr(cls, name, own)
    return cls
