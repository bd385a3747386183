"""Where torch._dynamo treats a DTensor on `xla` as one of several processes, or forgets its class.

It captures such a tensor as that of a class with a `__torch_function__`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch


def _class() -> type:
    """The class of DTensors on `xla`, or one without instances before there are any."""
    module = sys.modules.get("torch_xla.distributed.spmd.xla_sharded_tensor")
    return getattr(module, "XLAShardedTensor", _Never)


class _Never:
    pass


def install() -> None:
    """To be called once, when `torch._dynamo.variables.builder` is imported."""
    builder = sys.modules["torch._dynamo.variables.builder"]
    _guard(builder)
    variable = builder.TensorWithTFOverrideVariable
    _dispatch(variable)
    _know_parameters(builder, variable)
    _look_into_tuples(sys.modules[variable.__module__], variable)


def _guard(builder: Any) -> None:
    """PyTorch guards on the parts of a DTensor in place of the tensor, and one on xla has none."""
    wrap = builder.VariableBuilder.wrap_tensor

    @functools.wraps(wrap)
    def wrap_tensor(self: Any, value: torch.Tensor) -> Any:
        if not isinstance(value, _class()):
            return wrap(self, value)
        if isinstance(self.source, builder.GradSource):  # its guards find the plain gradient
            return wrap(self, getattr(value, "seen_gradient", value))
        # An optimizer that was compiled has marked its parameters: as constants, plain ones.
        marks = {} if builder.is_from_optimizer_source(self.source) else value.__dict__
        mark = marks.pop("_dynamo_static_input_type", None)
        made = wrap(self, value)
        if mark is not None:
            marks["_dynamo_static_input_type"] = mark
        same = functools.partial(
            builder.GuardBuilder.TENSOR_MATCH, value=builder.TensorWeakRef(value)
        )
        self.install_guards(same)
        return made

    builder.VariableBuilder.wrap_tensor = wrap_tensor


def _dispatch(variable: type) -> None:
    """Has what PyTorch captures past a `__torch_function__` go through it."""

    def replace(name: str, call: Callable) -> None:
        original = getattr(variable, name, None)
        if original is None:  # of another release
            return

        @functools.wraps(original)
        def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not issubclass(self.class_type, _class()):
                return original(self, *args, **kwargs)
            return call(original, self, *args, **kwargs)

        setattr(variable, name, replaced)

    def absolute(original: Callable, self: Any, tx: Any) -> Any:
        return self.call_method(tx, "abs", [], {})

    def rows(original: Callable, self: Any, tx: Any, idxes: Any = None) -> list[Any]:
        found = self.call_method(tx, "unbind", [], {}).unpack_var_sequence(tx)
        return found if idxes is None else [found[i] for i in idxes]

    def keep_class(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
        kind = self.class_type
        original(self, *args, **kwargs)
        self.class_type = kind

    replace("nb_absolute_impl", absolute)
    replace("unpack_var_sequence", rows)
    replace("synchronize_attributes", keep_class)


def _know_parameters(builder: Any, variable: type) -> None:
    """PyTorch asks a tensor's class whether it is a Parameter, which an attribute says here."""
    builtin = builder.BuiltinVariable
    original = getattr(builtin, "call_isinstance", None)
    if original is None:  # of another release
        return

    @functools.wraps(original)
    def call_isinstance(self: Any, tx: Any, arg: Any, kinds: Any) -> Any:
        found = original(self, tx, arg, kinds)
        if not isinstance(arg, variable) or not issubclass(arg.class_type, _class()):
            return found
        asked = kinds.as_python_constant()
        if torch.nn.Parameter not in (asked if isinstance(asked, tuple) else (asked,)):
            return found
        if arg.source is not None:
            has_mark = functools.partial(builder.GuardBuilder.HASATTR, attr="_is_param")
            builder.install_guard(arg.source.make_guard(has_mark))
        value = arg.as_proxy().node.meta["example_value"]
        is_one = found.as_python_constant() or isinstance(value, torch.nn.Parameter)
        return type(found)(is_one)

    builtin.call_isinstance = call_isinstance


def _look_into_tuples(torch_function: Any, variable: type) -> None:
    """PyTorch looks for such tensors in lists and dicts among the arguments of a call."""
    flatten = getattr(torch_function, "_flatten_vts", None)
    if flatten is None:  # of another release
        return
    from torch._dynamo.variables.lists import TupleVariable

    @functools.wraps(flatten)
    def _flatten_vts(values: Any) -> list[Any]:
        found = flatten(values)
        tuples = [v.items for v in found if v.is_realized() and isinstance(v, TupleVariable)]
        inside = [item for items in tuples for item in flatten(items)]
        return found + [
            item
            for item in inside
            if isinstance(item, variable) and issubclass(item.class_type, _class())
        ]

    torch_function._flatten_vts = _flatten_vts
