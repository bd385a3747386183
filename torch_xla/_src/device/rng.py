"""The random state of a device: one integer of 64 bits, which each random operation advances.

It is kept on the host, so reading it starts no computation and setting it needs no client.
"""

from __future__ import annotations

import torch

from torch_xla import _XLAC
from torch_xla._src.device.names import device_name

_is_chosen = False  # by the program


def get_state(device: str | int | torch.device | None = None) -> int:
    return _XLAC._xla_get_rng_seed(device_name(device))


def set_state(seed: int, device: str | int | torch.device | None = None) -> None:
    """Sets the state of one device. A negative seed means its two's complement, as in PyTorch."""
    global _is_chosen
    _is_chosen = True
    _XLAC._xla_set_rng_seed(_state(seed), device_name(device))


def set_state_of_all(seed: int) -> None:
    """Sets the state of every device that this process has or will have."""
    global _is_chosen
    _is_chosen = True
    _XLAC._xla_set_rng_seed_all(_state(seed))


def share() -> None:
    """Gives all processes of the job one state, unless the program has chosen one.

    In SPMD mode they compute the same values. Each of them calls this.
    """
    if not _is_chosen:
        from torch_xla._src.job import store

        mine = str(get_state())
        set_state_of_all(int(store.store().compare_set("random state", "", mine)))


def _state(seed: int) -> int:
    seed = int(seed)
    if not -(1 << 63) <= seed < 1 << 64:
        raise RuntimeError(
            f"set_rng_state: expected a seed of 64 bits, got {seed}. Take it modulo 2**64."
        )
    return seed % (1 << 64)
