"""Functions whose Python runs once for all calls of the same shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from torch_xla._internal.jax_workarounds import maybe_get_jax, maybe_get_torchax, requires_jax
from torch_xla._src.builder.flat_callables import (
    _JAX_TO_XLA_COMPUTATION_CACHE as _XLA_COMPUTATION_CACHE,
)
from torch_xla._src.builder.jax_autograd import j2t_autograd
from torch_xla._src.device import rng
from torch_xla._src.functions.held_tensors import held_tensors, named_places, replaced
from torch_xla._src.functions.joint import Joint, not_twice_differentiable
from torch_xla.core import xla_builder

__all__ = [
    "_XLA_COMPUTATION_CACHE",
    "PureModule",
    "assume_pure",
    "assume_pure_torch",
    "j2t_autograd",
    "maybe_get_jax",
    "maybe_get_torchax",
    "prepare_computation_inputs",
    "requires_jax",
]

_MOST_VERSIONS = 256  # of one function


def assume_pure(
    fn: Callable[..., Any], *, add_rng_seed_argument: bool = False
) -> Callable[..., Any]:
    """Promises that what a function returns depends on its arguments' values alone.

    Its Python runs at the first call with arguments of some shapes and structure, and not again:
    later calls record one operation, forward and, where a gradient is asked for, backward. Random
    numbers differ from call to call, as without this.

    Args:
        fn: Takes and returns trees of tensors on `xla`. Arguments that are no tensors are a part of
            what is remembered, by equality. It may read tensors that it closes over, to which
            gradients flow, too; it writes none but those that it makes. Results are new tensors.
        add_rng_seed_argument: Gives the function a keyword argument `rng_seed`, an integer or an
            integer tensor of one element: calls with equal seeds draw equal random numbers.

    Returns:
        A function of the same arguments.

    Raises:
        RuntimeError: At a first call, if `fn` needs values or writes other tensors.
    """
    pure = _Pure(fn)
    if not add_rng_seed_argument:
        return functools.wraps(fn)(lambda *args, **kwargs: pure(*args, **kwargs))

    @functools.wraps(fn)
    def seeded(*args: Any, rng_seed: int | torch.Tensor, **kwargs: Any) -> Any:
        before = rng.get_state()
        rng.set_state(int(rng_seed))
        try:
            return pure(*args, **kwargs)
        finally:
            rng.set_state(before)

    return seeded


def assume_pure_torch(func: Callable[..., Any], use_cache: bool = False) -> Callable[..., Any]:
    """`assume_pure`; what it records is always kept."""
    return assume_pure(func)


class PureModule(nn.Module):
    """A module whose `forward` runs its Python once for all calls of the same shapes.

    Args:
        module: A module whose results depend on its arguments, parameters and buffers alone, and
            that does not write its buffers.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module
        self._forward = assume_pure(functools.partial(_call_module, module))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        modes = tuple(m.training for m in self._module.modules())
        return self._forward(modes, held_tensors(self._module), args, kwargs)


def _call_module(
    module: nn.Module,
    modes: tuple[Any, ...],
    tensors: list[torch.Tensor],
    args: tuple[Any, ...],
    kwargs: dict[Any, Any],
) -> Any:
    with replaced(named_places(module).values(), tensors):
        return module(*args, **kwargs)


def _pure_forward(
    module: nn.Module,
    params: dict[Any, Any],
    buffers: dict[Any, Any],
    args: tuple[Any, ...],
    kwargs: dict[Any, Any],
) -> Any:
    """A module's result with these parameters and buffers in the place of its own."""
    return torch.func.functional_call(module, {**params, **buffers}, args, kwargs)


def make_fake_inputs(input: Any) -> Any:
    """A tensor on `xla` of this one's shape without a value; what is no tensor stays."""
    if not isinstance(input, torch.Tensor):
        return input
    fake = xla_builder.create_placeholder_tensor(input.shape, input.dtype)
    return fake.requires_grad_(input.requires_grad)


def prepare_computation_inputs(
    fn_ctx: Any, flat_fake_inputs: Sequence[Any], flat_inputs: Sequence[Any]
) -> list[torch.Tensor]:
    """The arguments of a function that was lowered for placeholders of its inputs, in its order.

    Args:
        fn_ctx: The `_XLAC.lowering.LoweringContext` that has been built.
        flat_fake_inputs: What the function was called with then.
        flat_inputs: What is to be in the place of each.

    Returns:
        Of each parameter, the input, or the tensor that the function closes over.

    Raises:
        ValueError: There are not as many inputs as placeholders.
    """
    if len(flat_fake_inputs) != len(flat_inputs):
        raise ValueError(
            f"prepare_computation_inputs: expected an input for each of {len(flat_fake_inputs)} "
            f"placeholders, got {len(flat_inputs)}."
        )
    parameters = fn_ctx.device_parameter_id_tensor_mapping()
    for fake, input in zip(flat_fake_inputs, flat_inputs, strict=True):
        number = fn_ctx.tensor_parameter_id(fake) if isinstance(fake, torch.Tensor) else -1
        if number >= 0:
            parameters[number] = input
    return [parameters[number] for number in sorted(parameters)]


class _Pure:
    def __init__(self, fn: Callable[..., Any]):
        self._fn = fn
        self._versions: dict[Any, _Version] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        others = tuple(None if isinstance(v, torch.Tensor) else (_name(v), v) for v in leaves)
        key = (
            spec,
            tuple(other and other[0] for other in others),
            tuple((t.shape, t.dtype, t.device, t.requires_grad) for t in tensors),
            (torch.is_autocast_enabled("xla"), torch.get_autocast_dtype("xla")),
            torch.get_default_dtype(),
        )
        version = self._versions.get(key)
        if version is None:
            if len(self._versions) >= _MOST_VERSIONS:
                self._versions.pop(next(iter(self._versions)))
            version = self._versions[key] = _Version(self._fn, spec, others, tensors)
        return version(tensors)


def _name(value: Any) -> tuple[Any, ...]:
    """A key of an argument that is no tensor; -0.0 is not 0.0."""
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            "assume_pure: expected arguments that are tensors or can be remembered by equality, "
            f"got a {type(value).__name__}. Close over it."
        ) from None
    return type(value), repr(value) if isinstance(value, (float, complex)) else value


class _Version:
    """The function for arguments of some shapes."""

    def __init__(
        self,
        fn: Callable[..., Any],
        spec: pytree.TreeSpec,
        others: tuple[Any, ...],
        tensors: list[torch.Tensor],
    ):
        def flat(*placeholders: torch.Tensor) -> list[torch.Tensor]:
            given = iter(placeholders)
            leaves = [next(given) if other is None else other[1] for other in others]
            args, kwargs = pytree.tree_unflatten(leaves, spec)
            found, self._spec = pytree.tree_flatten(fn(*args, **kwargs))
            self._constants = [None if isinstance(v, torch.Tensor) else (v,) for v in found]
            return [v for v in found if isinstance(v, torch.Tensor)]

        self._joint = Joint(flat, tensors, [t.requires_grad for t in tensors])

    def __call__(self, tensors: list[torch.Tensor]) -> Any:
        joint = self._joint
        inputs = (*tensors, *joint.captured)
        if torch.is_grad_enabled() and any(joint.has_gradient):
            results = _WithGradient.apply(joint, *inputs)
        else:
            with torch.no_grad():
                results = joint.forward(*inputs)
        given = iter(results)
        leaves = [next(given) if value is None else value[0] for value in self._constants]
        return pytree.tree_unflatten(leaves, self._spec)


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joint: Joint, *inputs: torch.Tensor) -> Any:
        outputs = joint.forward(*inputs)
        results = outputs[: joint.num_results]
        ctx.save_for_backward(
            *(inputs[i] if is_input else outputs[i] for is_input, i in joint.kept)
        )
        ctx.joint = joint
        ctx.results = [(t.shape, t.dtype, t.device) for t in results]
        ctx.mark_non_differentiable(
            *(t for t, has in zip(results, joint.has_gradient, strict=True) if not has)
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        given = ctx.joint.gradients_given(gradients, ctx.results)
        found = ctx.joint.backward(*ctx.saved_tensors, *given)
        return None, *not_twice_differentiable(found, "assume_pure")
