"""Versions of JAX that torch_xla.core.xla_builder.call_jax works with, by their names."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from torch_xla._src.builder import flat_callables
from torch_xla.core import xla_builder as xb


@pytest.mark.parametrize("has_new_name", [False, True])
def test_widths_of_jax_by_either_name(monkeypatch, has_new_name):
    """JAX has moved the function; 2.9 goes with one that has the old name alone."""
    old, new = types.ModuleType("jax.experimental"), types.ModuleType("jax")
    old.enable_x64 = lambda on: ("old", on)
    new.experimental = old
    if has_new_name:
        new.enable_x64 = lambda on: ("new", on)
    monkeypatch.setitem(sys.modules, "jax", new)
    monkeypatch.setitem(sys.modules, "jax.experimental", old)
    assert flat_callables._enable_x64(True) == ("new" if has_new_name else "old", True)


def test_computations_are_counted(monkeypatch):
    """One for each structure, set of shapes and static argument; of no function, none."""
    cache: dict = {}
    monkeypatch.setattr(flat_callables, "_JAX_TO_XLA_COMPUTATION_CACHE", cache)
    assert flat_callables._jax_to_xla_computation_cache_elements() == 0

    def twice(x, n=2):
        return x * xb.Op.scalar(x.builder(), n)

    call = xb.XlaCallable(twice)
    cache["twice"] = call
    for sizes, n in (((2,), 2), ((3,), 2), ((3,), 3), ((2,), 2)):
        call(torch.ones(sizes, device="xla"), n=n)
    assert flat_callables._jax_to_xla_computation_cache_elements() == 3
