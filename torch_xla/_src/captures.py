"""What a Python function of tensors reads beside its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from torch_xla import _XLAC


def has_gradient(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def differentiable(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors as leaves that require gradients, where they can."""
    return [t.detach().requires_grad_(has_gradient(t)) for t in tensors]


class Captures:
    """The tensors on `xla` that a function closes over, and its results.

    The function runs on stand-ins of its arguments, as if it had not run.

    Args:
        function: Takes tensors and returns a list of tensors.
        arguments: Tensors on `xla`.

    Raises:
        RuntimeError: If the function needs values, or writes tensors that it does not make.
    """

    def __init__(
        self, function: Callable[..., list[torch.Tensor]], arguments: Sequence[torch.Tensor]
    ):
        self.tensors: list[torch.Tensor] = []
        # The function with further arguments, which take the places of those tensors.
        self.lifted = function
        self._arguments = arguments
        self._results: list[tuple] = []

        def look(*stand_ins: torch.Tensor) -> list[torch.Tensor]:
            with torch.enable_grad(), _Found(stand_ins) as found:
                results = function(*differentiable(stand_ins))
            self.tensors = found.tensors
            self._results = [(t.shape, t.dtype, t.device, t.requires_grad) for t in results]
            return [t.detach() for t in results]

        _XLAC._TracedFunctions().trace(look, *arguments)
        if self.tensors:
            self.lifted = self._lift(function)

    def _lift(self, function: Callable) -> Callable:
        def lifted(*arguments: torch.Tensor) -> list[torch.Tensor]:
            own = len(arguments) - len(self.tensors)
            with _Replaced(self.tensors, arguments[own:]):
                return function(*arguments[:own])

        return lifted

    def key(self) -> tuple:
        """Of functions with equal keys, `lifted` gives equal results and gradients."""
        inputs = [*self._arguments, *self.tensors]
        tangents = [
            torch.empty(shape, dtype=dtype, device=device)
            for shape, dtype, device, has in self._results
            if has
        ]
        found: list[tuple[bool, ...]] = []

        def results_and_gradients(*stand_ins: torch.Tensor) -> list[torch.Tensor]:
            with torch.enable_grad():
                leaves = differentiable(stand_ins[: len(inputs)])
                # As values: which of them share memory is no part of what is recorded.
                results = [t.clone() for t in self.lifted(*leaves)]
                gradients = []
                if tangents:
                    gradients = torch.autograd.grad(
                        [t for t in results if t.requires_grad],
                        [t for t in leaves if t.requires_grad],
                        stand_ins[len(inputs) :],
                        allow_unused=True,
                    )
            found.append(tuple(g is not None for g in gradients))
            found.append(tuple(t.requires_grad for t in results))
            return [
                *(t.detach() for t in results),
                *(g.clone() for g in gradients if g is not None),
            ]

        functions = _XLAC._TracedFunctions()
        functions.trace(results_and_gradients, *inputs, *tangents)
        return functions.keys()[0], *found


class _Found(TorchFunctionMode):
    def __init__(self, known: Sequence[torch.Tensor]):
        super().__init__()
        self._known = {id(t): t for t in known}  # keeps them, so that no id is given again
        self.tensors: list[torch.Tensor] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for tensor in _tensors((args, kwargs)):
            if tensor.device.type == "xla" and id(tensor) not in self._known:
                self._known[id(tensor)] = tensor
                self.tensors.append(tensor)
        results = function(*args, **kwargs)
        self._known.update((id(t), t) for t in _tensors(results))
        return results


class _Replaced(TorchFunctionMode):
    def __init__(self, tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]):
        super().__init__()
        self._others = {id(t): other for t, other in zip(tensors, others, strict=True)}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda t: self._others.get(id(t), t), (args, kwargs or {})
        )
        return function(*args, **kwargs)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
