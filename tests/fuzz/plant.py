"""Faults that can be planted in a process, so that a test can see the fuzzer find them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch


def _replace(name: str, wrong: Callable[..., Any]) -> None:
    """Tensor.<name> on xla is `wrong`, which gets the right method first."""
    right = getattr(torch.Tensor, name)

    def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != "xla":
            return right(self, *args, **kwargs)
        return wrong(right, self, *args, **kwargs)

    setattr(torch.Tensor, name, call)


def wrong_value() -> None:
    _replace("flip", lambda right, t, *dims: right(t, *dims) + 1)


def lost_write() -> None:
    def wrong(right, t):
        if t._base is None:
            return right(t)
        right(t.clone())
        return t.mul_(1)

    _replace("zero_", wrong)


def lost_version() -> None:
    _replace("zero_", lambda right, t: t.data.mul_(0) if t.dim() > 1 else right(t))


def wrong_error() -> None:
    def wrong(right, t, *args):
        raise ValueError("cumsum: planted")

    _replace("cumsum", wrong)


def crash() -> None:
    _replace("cumsum", lambda right, t, *args: os.abort())


def history() -> None:
    """Wrong from the third call in a process on."""
    calls = []

    def wrong(right, t):
        calls.append(t.dim())
        return right(t) + (len(calls) > 2)

    _replace("tanh", wrong)


def own_version() -> None:
    """What a graph of torch.compile gives and keeps for its backward pass counts writes apart."""
    from torch_xla._src.dynamo.compiled_graph import CompiledGraph

    right = CompiledGraph.__call__

    def wrong(self: CompiledGraph, *args: Any) -> Any:
        results = right(self, *args)
        if not isinstance(results, (list, tuple)):
            return results
        seen: list[Any] = []
        for result in results:
            again = isinstance(result, torch.Tensor) and any(
                isinstance(one, torch.Tensor) and torch._C._is_alias_of(result, one) for one in seen
            )
            seen.append(result.clone() if again else result)
        return type(results)(seen)

    CompiledGraph.__call__ = wrong


FAULTS = {
    "wrong-value": wrong_value,
    "lost-write": lost_write,
    "lost-version": lost_version,
    "wrong-error": wrong_error,
    "crash": crash,
    "history": history,
    "own-version": own_version,
}
