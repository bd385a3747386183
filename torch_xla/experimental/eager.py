"""Eager mode: each operation runs when it is called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch_xla import _XLAC
from torch_xla._src.functions.compiling import compile
from torch_xla._src.functions.step import sync

__all__ = ["compile", "eager_mode", "eager_mode_context", "is_eager_mode"]


def eager_mode(enable: bool) -> None:
    """Sets how this process computes from now on.

    In eager mode each operation is launched when it is called, by a program of its own, and
    only functions that `torch_xla.compile` was given are recorded. What was recorded before is
    launched by this call. The device still works while Python goes on; an operation that fails is
    reported by what waits for it.

    Args:
        enable: Whether operations run at once. False returns to recording.

    Source: "Eager mode" in the documentation of PyTorch/XLA 2.4.
    """
    if enable:
        sync()
    _XLAC._set_use_eager_mode(enable)


def is_eager_mode() -> bool:
    """Returns whether operations run at once. False inside a function of `torch_xla.compile`."""
    return _XLAC._get_use_eager_mode() and not _XLAC._xla_in_region()


@contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """Sets the mode for a block, and the one before it afterwards."""
    before = _XLAC._get_use_eager_mode()
    eager_mode(enable)
    try:
        yield
    finally:
        eager_mode(before)
