"""Functions whose Python runs once for all calls of the same shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from torch_xla import _XLAC
from torch_xla._src import rng
from torch_xla._src.captures import Captures
from torch_xla.experimental.scan import Step, default_partition

__all__ = ["PureModule", "assume_pure", "assume_pure_torch"]

_MOST_VERSIONS = 256  # of one function


def assume_pure(fn: Callable, *, add_rng_seed_argument: bool = False) -> Callable:
    """Promises that what a function returns depends on its arguments' values alone.

    Its Python runs at the first call with arguments of some shapes and structure, and not again:
    later calls record one operation, forward and, where a gradient is asked for, backward. Random
    numbers differ from call to call, as without this.

    Args:
        fn: Takes and returns trees of tensors on `xla`. Arguments that are no tensors are a part of
            what is remembered, by equality. It may read tensors that it closes over, to which
            gradients flow, too; it writes none but those that it makes.
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


def assume_pure_torch(func: Callable, use_cache: bool = False) -> Callable:
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
        self._forward = assume_pure(functools.partial(_pure_forward, module))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        parameters = dict(self._module.named_parameters())
        buffers = dict(self._module.named_buffers())
        return self._forward(self._module.training, parameters, buffers, args, kwargs)


def _pure_forward(
    module: nn.Module, training: bool, parameters: dict, buffers: dict, args: tuple, kwargs: dict
) -> Any:
    return torch.func.functional_call(module, {**parameters, **buffers}, args, kwargs)


class _Pure:
    def __init__(self, fn: Callable):
        self._fn = fn
        self._versions: dict[Any, _Version] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        others = tuple(
            None if isinstance(leaf, torch.Tensor) else (type(leaf), leaf) for leaf in leaves
        )
        modes = (torch.is_autocast_enabled("xla"), torch.get_autocast_dtype("xla"))
        shapes = tuple((t.shape, t.dtype, t.device) for t in tensors)
        key = (spec, others, modes, shapes)
        version = self._versions.get(key)
        if version is None:
            if len(self._versions) >= _MOST_VERSIONS:
                self._versions.pop(next(iter(self._versions)))
            version = self._versions[key] = _Version(self._fn, spec, others, tensors)
        return version(tensors)


class _Version:
    """The function for arguments of some shapes."""

    def __init__(
        self, fn: Callable, spec: pytree.TreeSpec, others: tuple, tensors: list[torch.Tensor]
    ):
        self._results: tuple[pytree.TreeSpec, list] | None = None

        def flat(*stand_ins: torch.Tensor) -> list[torch.Tensor]:
            given = iter(stand_ins)
            leaves = [next(given) if other is None else other[1] for other in others]
            args, kwargs = pytree.tree_unflatten(leaves, spec)
            found, result_spec = pytree.tree_flatten(fn(*args, **kwargs))
            constants = [None if isinstance(v, torch.Tensor) else (v,) for v in found]
            self._results = (result_spec, constants)
            return [v for v in found if isinstance(v, torch.Tensor)]

        captures = Captures(flat, tensors)
        self._captured, self._flat = captures.tensors, captures.lifted
        self._plain = _Recorded(self._flat)
        self._step: tuple[Step, _Recorded, _Recorded] | None = None

    def __call__(self, tensors: list[torch.Tensor]) -> Any:
        inputs = (*tensors, *self._captured)
        if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
            if self._step is None:
                step = Step(self._flat, list(inputs), default_partition)
                self._step = (step, _Recorded(step.forward), _Recorded(step.backward))
            results = _WithGradient.apply(*self._step, *inputs)
        else:
            with torch.no_grad():
                results = self._plain(*inputs)
        spec, constants = self._results
        given = iter(results)
        leaves = [next(given) if constant is None else constant[0] for constant in constants]
        return pytree.tree_unflatten(leaves, spec)


class _Recorded:
    """A function of tensors that is recorded once for tensors of the same layout."""

    def __init__(self, function: Callable):
        self._function = function
        self._versions = _XLAC._TracedFunctions(launches=False)

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = self._versions.call(*tensors)
        if results is None:
            self._versions.trace(self._run, *tensors)
            results = self._versions.call(*tensors)
        return results

    def _run(self, *stand_ins: torch.Tensor) -> list:
        with torch.no_grad():
            return list(self._function(*stand_ins))


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, step: Step, forward: _Recorded, backward: _Recorded, *inputs: Any):
        outputs = forward(*inputs)
        results = outputs[: step.num_results]
        ctx.save_for_backward(*(inputs[i] if is_input else outputs[i] for is_input, i in step.kept))
        ctx.step, ctx.run, ctx.num_inputs = step, backward, len(inputs)
        ctx.results = [(t.shape, t.dtype, t.device) for t in results]
        ctx.mark_non_differentiable(
            *(t for t, has in zip(results, step.has_gradient, strict=True) if not has)
        )
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None):
        given = ctx.step.gradients_given(gradients, ctx.results)
        return None, None, None, *ctx.run(*ctx.saved_tensors, *given)
