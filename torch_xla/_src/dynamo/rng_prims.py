"""Random operators of a checkpoint, which a graph of torch.compile runs twice with equal numbers.

PyTorch's two operators for that, `run_and_save_rng_state` and `run_with_rng_state`, have a list of
devices. The state of one of ours is on the host, so a graph with them is recorded at each call.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch


def install() -> None:
    """To be called once, when `torch._prims.rng_prims` is imported."""
    prims = sys.modules["torch._prims.rng_prims"]
    select = _adding(prims, prims.run_and_save_rng_state, _run_and_save, 1)
    _adding(prims, prims.run_with_rng_state, _run_with, 2)
    # The code that captures the first one calls the kernel by the name where it was defined.
    mode = torch.fx.experimental.proxy_tensor.ProxyTorchDispatchMode
    capture = prims.run_and_save_rng_state.python_key_table[mode]
    names = capture.__code__.co_freevars
    capture.__closure__[names.index("impl_backend_select")].cell_contents = select


def _adding(prims: Any, operator: Any, ours: Any, first: int) -> Any:
    """Adds a kernel for xla to an operator; returns the one that chooses by the device, which is
    that of its arguments from `first` on."""
    operator.py_impl(torch._C.DispatchKey.XLA)(ours)
    original = operator.py_kernels[torch._C.DispatchKey.BackendSelect]

    @functools.wraps(original)
    def select(*args: Any, **kwargs: Any) -> Any:
        chosen = ours if prims.get_device(args[first:], kwargs) == "xla" else original
        return chosen(*args, **kwargs)

    operator.py_kernels[torch._C.DispatchKey.BackendSelect] = select
    return select


def _run_and_save(op: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    return torch.get_device_module("xla").get_rng_state(), op(*args, **kwargs)


def _run_with(state: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
    present = torch.get_device_module("xla").get_rng_state()
    torch.get_device_module("xla").set_rng_state(state)
    try:
        return op(*args, **kwargs)
    finally:
        torch.get_device_module("xla").set_rng_state(present)
