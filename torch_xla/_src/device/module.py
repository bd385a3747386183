"""`torch.xla`: what PyTorch expects of a device's module, as `torch.cuda` is for CUDA.

`torch.utils.checkpoint`, `torch.random.fork_rng`, `torch.manual_seed` and others reach a device
through such a module.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from types import SimpleNamespace, TracebackType
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._src.device import memory as _memory
from torch_xla._src.device import rng as _rng
from torch_xla._src.device.names import device_name as _device_name
from torch_xla._src.device.streams import (  # noqa: F401
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from torch_xla._src.functions import step as _step

_Device = str | int | torch.device | None


# Registration

# Modules that programs have registered as torch.xla, the latest first.
_registered_by_programs: list[Any] = []


def register() -> None:
    """Makes this module `torch.xla`; to be called once.

    Programs that were written when PyTorch had no such module register one of their own. That is an
    error of PyTorch's for a device that has one; here the names that this module lacks are then
    found in theirs.
    """
    register_module = torch._register_device_module
    this = sys.modules[__name__]
    if hasattr(torch, "xla"):  # before torch_xla was imported
        _registered_by_programs.append(torch.xla)
        del torch.xla
    register_module("xla", this)

    @functools.wraps(register_module)
    def register_device_module(device_type: str, module: Any) -> None:
        if torch.device(device_type).type == "xla":
            if module is not this:
                _registered_by_programs.insert(0, module)
        else:
            register_module(device_type, module)

    torch._register_device_module = register_device_module


# Devices


def is_available() -> bool:
    """True if there is a plugin for a device. Asking creates no client."""
    from torch_xla._src.device import plugins

    try:
        plugins.find()
    except plugins.PluginError:
        return False
    return True


# torch.utils.checkpoint keeps the random state of modules that say so. It exists without a client.
_initialized = True


def is_initialized() -> bool:
    """True if this process has a client, which the first use of a device creates."""
    return _XLAC._xla_is_initialized()


def init() -> None:
    """Creates the client if there is none."""
    _XLAC._xla_get_devices()


# A client does not survive a fork: its threads are gone in the child.
_bad_fork = False


def _after_fork_in_child() -> None:
    global _bad_fork
    _XLAC._xla_after_fork()
    _bad_fork = _bad_fork or _XLAC._xla_is_initialized()


os.register_at_fork(
    before=_XLAC._xla_before_fork,
    after_in_parent=_XLAC._xla_after_fork,
    after_in_child=_after_fork_in_child,
)


def _is_in_bad_fork() -> bool:
    """True if this process was forked from one that had a client."""
    return _bad_fork


def device_count() -> int:
    """The number of XLA devices of this process."""
    return _XLAC._xla_num_devices()


def current_device() -> int:
    """The index of the calling thread's default device."""
    return torch.device(_XLAC._xla_get_default_device()).index


def set_device(device: _Device) -> None:
    """Sets the calling thread's default device, the one that `"xla"` without an index means."""
    name = _device_name(device)
    if name:
        _XLAC._xla_set_default_device(name)


def get_device_name(device: _Device = None) -> str:
    """The hardware's own name, such as "cpu" or "TPU v4"."""
    return _XLAC._xla_device_kind(_device_name(device) or _XLAC._xla_get_default_device())


def get_device_properties(device: _Device = None) -> SimpleNamespace:
    """The hardware's `name`, its `total_memory` in bytes and the plugin's `device_type`."""
    memory = _memory.memory_info(device)
    return SimpleNamespace(
        name=get_device_name(device),
        total_memory=memory["bytes_limit"],
        device_type=_XLAC._xla_device_type(),
        multi_processor_count=1,
    )


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Always: every plugin has bfloat16."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that `torch.autocast("xla", dtype=...)` takes."""
    return [torch.bfloat16, torch.float16]


def _exchange_device(index: int) -> int:
    """Makes another device the default one and returns the one before; -1 changes nothing."""
    previous = current_device()
    if index >= 0:
        set_device(index)
    return previous


class device:  # noqa: N801  the name that torch.cuda gave it
    """Context manager: another default device for the calling thread. None changes nothing."""

    def __init__(self, device: _Device):
        self._name = _device_name(device)

    def __enter__(self) -> None:
        self._previous = _XLAC._xla_get_default_device()
        set_device(self._name)

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        set_device(self._previous)


class device_of(device):  # noqa: N801
    """Context manager: the device of a tensor as default; nothing if it is not on xla."""

    def __init__(self, tensor: torch.Tensor):
        super().__init__(tensor.device if tensor.device.type == "xla" else None)


def synchronize(device: _Device = None) -> None:
    """Launches what was recorded for a device and waits until it has finished."""
    _step.barrier(_device_name(device), "user synchronize", wait=True)


# Random numbers


def __getattr__(name: str) -> Any:
    if name == "default_generators":  # as many as there are devices, which needs a client to know
        return tuple(_get_generator(device) for device in _XLAC._xla_get_devices())
    for module in _registered_by_programs:
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module 'torch.xla' has no attribute '{name}'")


def _get_generator(device: _Device = None) -> torch.Generator:
    """The generator of a device's random numbers. It computes nothing and creates no client."""
    return _XLAC._xla_default_generator(_device_name(device))


def manual_seed(seed: int) -> None:
    """Sets the random state of the calling thread's default device."""
    _rng.set_state(seed)


def manual_seed_all(seed: int) -> None:
    """Sets the random state of all devices. It creates no client."""
    _rng.set_state_of_all(seed)


def _fresh_seed() -> int:
    import secrets  # not a part of what `import torch_xla` costs

    return secrets.randbits(64)


def seed() -> None:
    """Sets the random state of the default device to a number that cannot be foreseen."""
    manual_seed(_fresh_seed())


def seed_all() -> None:
    """Sets the random state of all devices to one number that cannot be foreseen."""
    manual_seed_all(_fresh_seed())


def initial_seed() -> int:
    """The seed of the default device."""
    return _get_generator().initial_seed()


def get_rng_state(device: _Device = None) -> torch.Tensor:
    """The random state of a device, as bytes on the CPU: its seed, and how often it was used."""
    return _get_generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: _Device = None) -> None:
    """Sets the random state of a device to what `get_rng_state` returned."""
    _get_generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The random states of all devices."""
    return [get_rng_state(name) for name in _XLAC._xla_get_devices()]


def set_rng_state_all(new_states: Sequence[torch.Tensor]) -> None:
    """Sets the random states of the first devices, as many as there are states."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def join_manual_seed() -> None:
    """Lets `torch.manual_seed` and `torch.seed` reach xla. To be called once.

    PyTorch seeds the devices that it knows by name, and then, in this function, a device that it
    does not.
    """
    original = torch.random._seed_custom_device

    @functools.wraps(original)
    def seed_custom_device(seed: Any) -> None:
        original(seed)
        manual_seed_all(int(seed))

    torch.random._seed_custom_device = seed_custom_device


# Memory


def memory_allocated(device: _Device = None) -> int:
    """Bytes in use on a device; see `xm.get_memory_info` for what that means on the CPU."""
    return _memory.memory_info(device)["bytes_used"]


def max_memory_allocated(device: _Device = None) -> int:
    """The most bytes that were in use on a device."""
    return _memory.memory_info(device)["peak_bytes_used"]


memory_reserved = memory_allocated  # resident memory has what is kept, other plugins say nothing
max_memory_reserved = max_memory_allocated


def memory_stats(device: _Device = None) -> dict[str, int]:
    """Figures of a device's memory, under the names of `torch.cuda.memory_stats`."""
    info = _memory.memory_info(device)
    return {
        "allocated_bytes.all.current": info["bytes_used"],
        "allocated_bytes.all.peak": info["peak_bytes_used"],
        "reserved_bytes.all.current": info["bytes_used"],
        "reserved_bytes.all.peak": info["peak_bytes_used"],
    }


def reset_peak_memory_stats(device: _Device = None) -> None:
    """Does nothing: the plugin counts since the start of the process."""


def mem_get_info(device: _Device = None) -> tuple[int, int]:
    """Free and total bytes of a device."""
    info = _memory.memory_info(device)
    return info["kb_free"] << 10, info["bytes_limit"]


def empty_cache() -> None:
    """Gives back the large memory that the CPU plugin has freed and that is kept for later runs.

    Other plugins manage their memory by themselves.
    """
    _XLAC._xla_empty_cache()
