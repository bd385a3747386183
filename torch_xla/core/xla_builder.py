"""Computations that are built operation by operation, by XLA's names and meanings.

    def scaled_sum(x, y):
        return x * Op.scalar(x.builder(), 2, Type.F32).broadcast(x.shape().sizes) + y

    computation = create_computation("scaled_sum", scaled_sum, [tensor_shape(a), tensor_shape(b)])
    c = xla_computation_as_func(computation)(a, b)

A call on tensors of `xla` is one recorded call, compiled with all else of the step. It has no
gradient: put it into a `torch.autograd.Function` where one is needed. Errors are raised by the line
that adds the operation. `torch_xla.core.xla_op_registry` makes functions of such builders.

Shapes are fixed. What XLA calls a tuple exists while a computation is built, and is gone in the
program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._internal.jax_workarounds import (
    jax_env_context,
    jax_import_guard,
    maybe_get_jax,
    maybe_get_torchax,
    requires_jax,
)
from torch_xla._src.builder import foreign_computation
from torch_xla._src.builder.flat_callables import (
    _JAX_TO_XLA_COMPUTATION_CACHE,
    CompiledCallableWithCache,
    FlattenedInputFunc,
    JaxCallable,
    JaxFlattenedInputFunc,
    XlaCallable,
    _jax_to_xla_computation_cache_elements,
    call_jax,
)
from torch_xla._src.builder.ops import (
    Op,
    create_builder,
    create_computation,
    mkleaf,
    mkop,
    mkparam,
)
from torch_xla._src.builder.shapes import PT_XLA_TYPE_MAP as _PT_XLA_TYPE_MAP
from torch_xla._src.builder.shapes import XLA_PT_TYPE_MAP as _XLA_PT_TYPE_MAP
from torch_xla._src.builder.shapes import Shape, Type, mkshape, tensor_shape

__all__ = [
    "_PT_XLA_TYPE_MAP",
    "_XLA_PT_TYPE_MAP",
    "_JAX_TO_XLA_COMPUTATION_CACHE",
    "_jax_to_xla_computation_cache_elements",
    "CompiledCallableWithCache",
    "FlattenedInputFunc",
    "JaxCallable",
    "JaxFlattenedInputFunc",
    "Op",
    "Shape",
    "Type",
    "XlaCallable",
    "call_jax",
    "computation_from_module_proto",
    "create_builder",
    "create_computation",
    "create_placeholder_tensor",
    "get_computation_hlo",
    "jax_env_context",
    "jax_import_guard",
    "maybe_get_jax",
    "maybe_get_torchax",
    "mkleaf",
    "mkop",
    "mkparam",
    "mkshape",
    "requires_jax",
    "tensor_shape",
    "xla_computation_as_func",
]


def get_computation_hlo(computation: Any) -> str:
    """The HLO of a computation, as the device's compiler reads it."""
    return _XLAC._xla_computation_text(computation)


def computation_from_module_proto(name: str, proto: bytes) -> Any:
    """A serialized `xla.HloModuleProto` as a computation; jaxlib reads it.

    Raises:
        ImportError: jaxlib is not installed.
    """
    return foreign_computation.from_hlo(name, proto)


def xla_computation_as_func(computation: Any, name: str | None = None) -> Callable[..., Any]:
    """A function of tensors on `xla` that records one call of the computation.

    It returns a tensor, or a list where the computation gives a tuple of several.
    """

    def call(*tensors: torch.Tensor) -> Any:
        results = _XLAC._xla_user_computation(
            name or f"xla::{computation.name()}", list(tensors), computation
        )
        return results[0] if len(results) == 1 else results

    return call


def create_placeholder_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor on `xla` that has a shape and no value; reading one raises RuntimeError."""
    return _XLAC._xla_create_placeholder_tensor(
        Shape.create(Op.from_torch_type(dtype), tuple(shape)).shape
    )
