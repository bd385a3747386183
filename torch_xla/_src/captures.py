"""What a Python function of tensors reads beside its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from torch_xla import _XLAC


def captured_tensors(
    function: Callable, arguments: list[torch.Tensor]
) -> tuple[list[torch.Tensor], str]:
    """The tensors on `xla` that a function closes over, and a key of what it computes.

    The function runs on stand-ins, as if it had not run. Functions with equal keys compute the same
    from their arguments and these tensors, in this order.

    Raises:
        RuntimeError: If it needs values, or writes tensors that it does not make.
    """
    found: list[torch.Tensor] = []

    def look(*stand_ins: torch.Tensor) -> list[torch.Tensor]:
        with _Captures(stand_ins) as captures:
            results = function(*stand_ins)
        found.extend(captures.found)
        return _tensors(results)

    _XLAC._TracedFunctions().trace(look, *arguments)
    lifted = with_captured(function, found)
    functions = _XLAC._TracedFunctions()
    functions.trace(lambda *stand_ins: _tensors(lifted(*stand_ins)), *arguments, *found)
    return found, functions.keys()[0]


def with_captured(function: Callable, captured: list[torch.Tensor]) -> Callable:
    """The function with further arguments, which take the places of tensors that it captures."""

    def lifted(*arguments: torch.Tensor) -> Any:
        own = len(arguments) - len(captured)
        with _Replaced(captured, arguments[own:]):
            return function(*arguments[:own])

    return lifted if captured else function


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class _Captures(TorchFunctionMode):
    def __init__(self, known: tuple[torch.Tensor, ...]):
        super().__init__()
        self._known = {id(t): t for t in known}  # keeps them, so that no id is given again
        self.found: list[torch.Tensor] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for tensor in _tensors((args, kwargs)):
            if tensor.device.type == "xla" and id(tensor) not in self._known:
                self._known[id(tensor)] = tensor
                self.found.append(tensor)
        results = function(*args, **kwargs)
        self._known.update((id(t), t) for t in _tensors(results))
        return results


class _Replaced(TorchFunctionMode):
    def __init__(self, tensors: list[torch.Tensor], others: tuple[torch.Tensor, ...]):
        super().__init__()
        self._others = {id(t): other for t, other in zip(tensors, others, strict=True)}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda t: self._others.get(id(t), t), (args, kwargs or {})
        )
        return function(*args, **kwargs)
