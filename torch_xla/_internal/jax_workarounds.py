"""JAX beside torch_xla. JAX is optional: `torch_xla.core.xla_builder.call_jax` alone needs it."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torch_xla import _XLAC


def jax_import_guard() -> None:
    """Takes the device before JAX can: a process opens a TPU for one of both only."""
    _XLAC._xla_get_devices()


@contextmanager
def jax_env_context() -> Iterator[None]:
    """Tells JAX meanwhile that it has no other hosts to find, since torch_xla knows them."""
    name = "SKIP_MEGASCALE_PJRT_CLIENT"
    before = os.environ.get(name)
    os.environ[name] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def maybe_get_jax(log: bool = True) -> ModuleType | None:
    """JAX, or None where it is not installed, which is logged."""
    try:
        with jax_env_context():
            import jax
    except ImportError as error:
        if log:
            logging.getLogger("torch_xla").warning(
                "JAX is not installed (%s). Run: pip install jax", error
            )
        return None
    return jax


def maybe_get_torchax() -> ModuleType | None:
    """torchax, or None where it is not installed."""
    try:
        with jax_env_context():
            import torchax
    except ImportError:
        return None
    return torchax


def requires_jax(func: Callable) -> Callable:
    """A function that raises ImportError where JAX is not installed."""

    @functools.wraps(func)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if maybe_get_jax(log=False) is None:
            raise ImportError(
                f"{func.__name__}: expected JAX, found none. Run: pip install jax==0.8.0"
            )
        with jax_env_context():
            return func(*args, **kwargs)

    return guarded
