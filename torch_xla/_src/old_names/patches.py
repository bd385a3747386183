"""Replaces a function or class as 2.9 does: the first one is `_orig` of the new."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def _pathch_module(m: Any, new_m: Any) -> Any:
    """`new_m`, a class for the place of `m`."""
    new_m._orig = m
    return new_m


def _patch_fn(fn: Callable[..., Any], newfn: Callable[..., Any]) -> Callable[..., Any]:
    """`newfn`, for the place of `fn`.

    Raises:
        RuntimeError: Their arguments differ.
    """
    old, new = inspect.signature(fn), inspect.signature(newfn)
    if old != new:
        raise RuntimeError(f"_patch_fn: expected a function of {old} in place of {fn}, got {new}.")
    newfn._orig = fn
    return newfn
