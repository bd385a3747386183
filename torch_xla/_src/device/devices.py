"""The devices of this process: what `torch_xla.device` and its neighbours are."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from torch_xla import _XLAC


def device(index: int | None = None) -> torch.device:
    """An XLA device of this process.

    Args:
        index: Its position in `devices()`, from the end where it is negative; without it the
            calling thread's default device, `xla:0` unless another was set. In SPMD mode there is
            only `xla:0`, which stands for all.

    Raises:
        IndexError: There is no such device.
    """
    names = _XLAC._xla_get_devices()
    if index is None:
        return torch.device(_XLAC._xla_get_default_device())
    if not -len(names) <= index < len(names):
        raise IndexError(
            f"torch_xla.device: expected an index from 0 to {len(names) - 1}, got {index}. This "
            f"process has {len(names)} {_XLAC._xla_device_type()} device(s)."
        )
    return torch.device(names[index])


def devices() -> list[torch.device]:
    """All XLA devices of this process; in SPMD mode the one that stands for all."""
    return [torch.device(name) for name in _XLAC._xla_get_devices()]


def real_devices() -> list[str]:
    """The hardware behind `devices()`, in the same order, as `["CPU:0", ...]`; all in SPMD mode."""
    return _XLAC._xla_real_devices()


def device_count() -> int:
    """The number of this process's `real_devices()`: in SPMD mode those behind `xla:0`."""
    return _XLAC._xla_num_real_devices()


def manual_seed(seed: int, device: str | torch.device | None = None) -> None:
    """Sets the state of a device's random numbers.

    `torch.manual_seed` sets that of all devices, the CPU's included.

    Args:
        seed: The state, an integer of 64 bits.
        device: The device; without it the calling thread's default device.
    """
    from torch_xla._src.device import rng

    rng.set_state(seed, device)


def set_custom_compile_options(options: Mapping[str, str | bool | int | float]) -> None:
    """Sets compiler flags of the programs compiled from now on, in place of those set before.

    Args:
        options: flags of XLA's debug options by name, such as
            `{"xla_cpu_enable_fast_math": True}`; a plugin may know more. Those that a
            registered plugin sets for itself stay, unless named here.

    A name or value that the compiler does not know is a RuntimeError of the next compilation.
    Programs compiled before are forgotten.
    """
    _XLAC._set_custom_compile_options(dict(options))
