"""Gradient checkpointing: values are computed again in backward instead of being kept."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint
from torch.utils.checkpoint import CheckpointFunction

from torch_xla._src.device import rng as _rng

__all__ = [
    "CheckpointFunction",
    "CheckpointStatus",
    "checkpoint",
    "chkpt_status",
    "get_device_states",
    "set_device_states",
]


class CheckpointStatus(threading.local):
    """The state of this thread: `in_chkpt_bwd` says whether it computes a checkpoint again."""

    def __init__(self) -> None:
        self.in_chkpt_bwd = False


chkpt_status = CheckpointStatus()


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Calls `function(*args, **kwargs)` and recomputes it in backward.

    Values and gradients are those of a plain call; random operations draw the same numbers again.

    Args:
        function: What to compute. It must do the same when it is called again.
        args: Its arguments.
        use_reentrant: As in `torch.utils.checkpoint.checkpoint`.
        preserve_rng_state: Whether random operations draw the same numbers in the recomputation.
        kwargs: Named arguments of `function`, and, if `use_reentrant` is false, the further ones of
            `torch.utils.checkpoint.checkpoint`.
    """
    is_again = False

    @functools.wraps(function, updated=())
    def run(*given: Any, **named: Any) -> Any:
        nonlocal is_again
        before = chkpt_status.in_chkpt_bwd
        chkpt_status.in_chkpt_bwd, is_again = is_again, True
        try:
            return function(*given, **named)
        finally:
            chkpt_status.in_chkpt_bwd = before

    return torch.utils.checkpoint.checkpoint(
        run,
        *args,
        use_reentrant=use_reentrant,
        preserve_rng_state=preserve_rng_state,
        **kwargs,
    )


def get_device_states(*args: Any) -> tuple[list[torch.device], list[int]]:
    """The xla devices of the tensors among `args`, each once, and their random states."""
    found = (a.device for a in args if isinstance(a, torch.Tensor) and a.device.type == "xla")
    devices = list(dict.fromkeys(found))
    return devices, [_rng.get_state(device) for device in devices]


def set_device_states(devices: list[torch.device], states: list[int]) -> None:
    """Sets the random states of devices to what `get_device_states` returned."""
    for device, state in zip(devices, states, strict=True):
        _rng.set_state(state, device)
