"""Functions of tensors that are built of XLA's operations.

def opfn(x, y, scale=1.0):
    return (x + y) * scale

scaled_sum = register("scaled_sum", opfn)
z = scaled_sum(x, y, scale=2.0)  # tensors on xla
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla.core import xla_builder


class Op:
    """A function of tensors on `xla`, of which a call records one call of a computation.

    The computation is built once for each set of shapes and keyword arguments. It has no gradient.

    Args:
        name: The name of the recorded calls.
        opfn: Takes an `xla_builder.Op` for each tensor, and the keyword arguments, and returns an
            Op, or a tuple of some.
    """

    def __init__(self, name: str, opfn: Callable[..., Any]):
        self._name = name
        self._opfn = opfn
        self._computations: dict[Any, Any] = {}

    def __call__(self, *args: torch.Tensor, **kwargs: Any) -> Any:
        """Returns a tensor, or a list where `opfn` gives several Ops.

        Raises:
            TypeError: An argument is no tensor.
            RuntimeError: A tensor is not on `xla`, or an operation of `opfn` does not fit.
        """
        for arg in args:
            if not isinstance(arg, torch.Tensor):
                raise TypeError(
                    f"{self._name}: expected tensors, got a {type(arg).__name__}. Pass what is no "
                    "tensor as a keyword argument."
                )
        computation = self._computation(xla_builder.tensor_shape(args), kwargs)
        results = _XLAC._xla_user_computation(self._name, list(args), computation)
        return results[0] if len(results) == 1 else results

    def _computation(self, shapes: list[Any], kwargs: dict[Any, Any]) -> Any:
        # 1, 1.0 and True are equal.
        key = (tuple(shapes), tuple((k, type(v), v) for k, v in sorted(kwargs.items())))
        try:
            computation = self._computations.get(key)
        except TypeError:  # it cannot be a key
            return self._build(shapes, kwargs)
        if computation is None:
            computation = self._computations[key] = self._build(shapes, kwargs)
        return computation

    def _build(self, shapes: list[Any], kwargs: dict[Any, Any]) -> Any:
        builder = xla_builder.create_builder(self._name)
        ops = [xla_builder.mkparam(builder, i, shape) for i, shape in enumerate(shapes)]
        root = self._opfn(*ops, **kwargs)
        if not isinstance(root, xla_builder.Op):
            root = xla_builder.Op.tuple(tuple(root), builder=builder)
        return root.build(self._name)


def register(name: str, opfn: Callable[..., Any]) -> Op:
    """A function of tensors; `Op` says what `opfn` is."""
    return Op(name, opfn)
