"""Old names of functions, which say what their new ones are."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

FN = TypeVar("FN", bound=Callable)


def mark_deprecated(new: FN, extra_msg: str | None = None) -> FN:
    """The function, which warns that it will go.

    Args:
        new: The function.
        extra_msg: What to do about it.
    """
    return _warning(new, new.__name__, extra_msg)


def deprecated(
    module: ModuleType, new: FN, old_name: str | None = None, extra_msg: str | None = None
) -> FN:
    """The function under a name that it had in a module, where it warns of the new one.

    Args:
        module: Where the old name is.
        new: The function.
        old_name: The old name, if it is another one.
        extra_msg: What else to say.
    """
    text = f"use {new.__module__}.{new.__name__} instead"
    message = f"{text}. {extra_msg}" if extra_msg else text
    return _warning(new, f"{module.__name__}.{old_name or new.__name__}", message)


def register_deprecated(module: ModuleType, new: FN) -> FN:
    """`deprecated`, and the module has it under the function's name."""
    old = deprecated(module, new)
    setattr(module, new.__name__, old)
    return old


def _warning(function: FN, name: str, message: str | None) -> FN:
    text = f"{name} is deprecated" + (f": {message}." if message else ".")

    @functools.wraps(function)
    def call(*args, **kwargs):
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return function(*args, **kwargs)

    return call
