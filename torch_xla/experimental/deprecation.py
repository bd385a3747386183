"""Old names of functions, which tell their new ones."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

FN = TypeVar("FN", bound=Callable[..., Any])


def deprecated(
    module: ModuleType, new: FN, old_name: str | None = None, extra_msg: str | None = None
) -> FN:
    """The function under a name that it had in a module, whose first call logs a warning.

    Args:
        module: Where the old name is.
        new: The function.
        old_name: The old name, if it is another one.
        extra_msg: What else to say.

    Source: torch_xla.experimental.deprecation of PyTorch/XLA 2.9.
    """
    text = (
        f"{module.__name__}.{old_name or new.__name__} is deprecated. "
        f"Use {new.__module__}.{new.__name__} instead."
    )
    if extra_msg:
        text += f" {extra_msg}"

    @functools.cache
    def warn() -> None:
        logging.warning(text)

    @functools.wraps(new)
    def call(*args: Any, **kwargs: Any) -> Any:
        warn()
        return new(*args, **kwargs)

    return call  # type: ignore[return-value]


def mark_deprecated(new: FN, extra_msg: str | None = None) -> Callable[[Callable[..., Any]], FN]:
    """A decorator of an old function: what it decorates calls the new one instead.

    Args:
        new: The function that takes its place.
        extra_msg: What else to say.
    """

    def decorate(old: Callable[..., Any]) -> FN:
        return deprecated(sys.modules[old.__module__], new, old.__name__, extra_msg)

    return decorate


def register_deprecated(module: ModuleType, new: FN) -> FN:
    """`deprecated`, and the module has it under the function's name."""
    old = deprecated(module, new)
    setattr(module, new.__name__, old)
    return old
