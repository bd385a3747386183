"""PyTorch's own decompositions, found by operator name. Imported on first need: it is slow."""

import functools

import torch


@functools.cache
def _table():
    from torch._decomp import decomposition_table

    return decomposition_table


def _overload(name: str, overload: str):
    namespace, base = name.split("::")
    packet = getattr(getattr(torch.ops, namespace), base)
    return getattr(packet, overload or "default")


def has(name: str, overload: str) -> bool:
    """True if PyTorch can write this operator in terms of others.

    It cannot where there is a `torch._prims` of this name: that one calls the operator.
    """
    prim = name.removeprefix("aten::").removeprefix("special_")
    return _overload(name, overload) in _table() and not hasattr(torch.ops.prims, prim)


def run(name: str, overload: str, args: list, kwargs: dict):
    """Calls the decomposition; `device` arguments come as given."""
    return _table()[_overload(name, overload)](*args, **kwargs)
