"""Functions of trees of tensors, compiled once for each structure and set of shapes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_xla import _XLAC
from torch_xla._internal.jax_workarounds import requires_jax
from torch_xla._src.builder import foreign_computation
from torch_xla._src.builder.ops import Op, create_computation
from torch_xla._src.builder.shapes import tensor_shape

# By what was called, and JAX's configuration.
_JAX_TO_XLA_COMPUTATION_CACHE: dict[Any, Any] = {}


def _jax_to_xla_computation_cache_elements() -> int:
    """The number of computations of JAX's functions that are kept: one for each structure, set of
    shapes and configuration of JAX."""
    return sum(len(c._compiled) for c in _JAX_TO_XLA_COMPUTATION_CACHE.values())


class FlattenedInputFunc:
    """A function of trees as one of the tensors in them.

    Args:
        orig_func: The function. Arguments that are no tensors are a part of what is compiled.
    """

    def __init__(self, orig_func: Callable[..., Any]):
        self.orig_func = orig_func
        self._structure: tuple | None = None  # of the arguments of the last call
        self._result_spec: Any = None

    def preprocess(self, args: Sequence, kwargs: dict | None = None) -> list[torch.Tensor]:
        """The tensors among the arguments of a call."""
        leaves, spec = pytree.tree_flatten((tuple(args), kwargs or {}))
        others = tuple(None if isinstance(v, torch.Tensor) else (type(v), v) for v in leaves)
        self._structure = (spec, others)
        return [v for v in leaves if isinstance(v, torch.Tensor)]

    @property
    def structure(self) -> tuple | None:
        """The difference of the last call from others, beside the shapes of its tensors."""
        return self._structure

    def flat_call(self, flat_input: Sequence) -> tuple:
        """The function's results with these in the places of the tensors, flat."""
        assert self._structure is not None  # `preprocess` was called
        spec, others = self._structure
        given = iter(flat_input)
        leaves = [next(given) if other is None else other[1] for other in others]
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        flat, self._result_spec = self.flatten(self.orig_func(*args, **kwargs))
        return tuple(flat)

    def postprocess(self, res_flattened: Sequence) -> Any:
        """The tree that the function returned last, of these."""
        return self.unflatten(res_flattened, self._result_spec)

    def flatten(self, inputs: Any) -> tuple[list, Any]:
        return pytree.tree_flatten(inputs)

    def unflatten(self, flattened: Sequence, spec: Any) -> Any:
        return pytree.tree_unflatten(list(flattened), spec)


class CompiledCallableWithCache(ABC):
    """A function that is compiled once for each structure and set of shapes.

    Args:
        flat_input_func: The function.
    """

    def __init__(self, flat_input_func: FlattenedInputFunc):
        self.flat_input_func = flat_input_func
        self._compiled: dict[Any, tuple] = {}

    @abstractmethod
    def specialize(self, sample_flat_args: Sequence[torch.Tensor]) -> Callable:
        """Compiles it for such arguments: a function of flat tensors that gives a list."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function with tensors on `xla`, in trees of any kind.

        Raises:
            TypeError: An argument is neither a tensor nor hashable.
        """
        flat = self.flat_input_func.preprocess(args, kwargs)
        key = (self.flat_input_func.structure, tuple((t.shape, t.dtype) for t in flat))
        known = self._compiled.get(key)
        if known is None:
            compiled = self.specialize(flat)
            known = self._compiled[key] = (compiled, self.flat_input_func._result_spec)
        compiled, spec = known
        return self.flat_input_func.unflatten(compiled(*flat), spec)


class XlaCallable(CompiledCallableWithCache):
    """A function of `xla_builder.Op`s, called with tensors.

    Args:
        xla_func: Takes and returns trees of Ops.
    """

    def __init__(self, xla_func: Callable[..., Any]):
        super().__init__(FlattenedInputFunc(xla_func))

    def specialize(self, sample_flat_args: Sequence[torch.Tensor]) -> Callable:
        name = getattr(self.flat_input_func.orig_func, "__name__", "xla_callable")

        def build(*ops: Op) -> Op:
            return Op.tuple(self.flat_input_func.flat_call(ops))

        shapes = tensor_shape(list(sample_flat_args))
        return _as_list(create_computation(name, build, shapes))


class JaxFlattenedInputFunc(FlattenedInputFunc):
    """A function of JAX; its results are trees of JAX's kind."""

    def flatten(self, inputs: Any) -> tuple[list, Any]:
        import jax

        return jax.tree_util.tree_flatten(inputs)

    def unflatten(self, flattened: Sequence, spec: Any) -> Any:
        import jax

        return jax.tree_util.tree_unflatten(spec, list(flattened))


class JaxCallable(CompiledCallableWithCache):
    """A function of JAX, called with tensors on `xla`. It runs within our programs.

    Where a tensor has elements of 64 bits, JAX computes in 64 bits by default, too.

    Args:
        jax_func: Takes and returns trees of arrays.
    """

    def __init__(self, jax_func: Callable[..., Any]):
        super().__init__(JaxFlattenedInputFunc(jax_func))

    @requires_jax
    def specialize(self, sample_flat_args: Sequence[torch.Tensor]) -> Callable:
        import jax

        # JAX names dtypes as PyTorch does.
        specs = [(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in sample_flat_args]
        # JAX else makes 32 bits of 64.
        is_wide = any(name in ("int64", "uint64", "float64", "complex128") for _, name in specs)
        with _enable_x64(is_wide):
            structs = [jax.ShapeDtypeStruct(shape, name) for shape, name in specs]

            def flat(*arrays: Any) -> tuple:
                return self.flat_input_func.flat_call(arrays)

            text = jax.jit(flat, keep_unused=True).lower(*structs).as_text()
        name = getattr(self.flat_input_func.orig_func, "__name__", "jax_callable")
        return _as_list(foreign_computation.from_stablehlo(name, text))


def _enable_x64(on: bool) -> AbstractContextManager[None]:
    import jax

    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(on)
    from jax.experimental import enable_x64  # before 0.8

    return enable_x64(on)


def _as_list(computation: Any) -> Callable:
    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return _XLAC._xla_user_computation(f"xla::{computation.name()}", list(tensors), computation)

    return call


@requires_jax
def call_jax(
    jax_func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    name: str | None = None,
    override_hash: Any = None,
) -> Any:
    """Calls a function of JAX with tensors on `xla`, as a part of our program.

    It is traced once for each structure and set of shapes. It has no gradient.

    Args:
        jax_func: Takes and returns trees of arrays.
        args, kwargs: Its arguments: trees of tensors; what is no tensor is a part of the program.
        name: A name for the calls.
        override_hash: What tells this function from others, where it is made anew for each call.

    Returns:
        What `jax_func` returns, with tensors in the place of arrays.

    Raises:
        ImportError: JAX is not installed.
    """
    from jax._src import config

    key = (override_hash if override_hash is not None else jax_func, config.trace_context())
    callable_ = _JAX_TO_XLA_COMPUTATION_CACHE.get(key)
    if callable_ is None:
        callable_ = _JAX_TO_XLA_COMPUTATION_CACHE[key] = JaxCallable(jax_func)
    return callable_(*args, **(kwargs or {}))
