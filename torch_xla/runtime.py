"""The runtime: which devices there are, and this process's place in the job.

Usually imported as `import torch_xla.runtime as xr`.
"""

from __future__ import annotations

import os
import warnings

import torch

from torch_xla import _XLAC
from torch_xla._src.device import devices as _devices
from torch_xla._src.device import plugins as _plugins
from torch_xla._src.device import rng as _rng
from torch_xla._src.job import place as _place
from torch_xla._src.old_names.devices import (  # noqa: F401
    _ORDINAL,
    _WORLD_SIZE,
    FN,
    R,
    _init_world_size_ordinal,
    _maybe_select_default_device,
)


def device_type() -> str | None:
    """The device type: `CPU`, `TPU`, `CUDA` or the name of a plugin.

    That of the runtime if a device has been used, else the one that would be used: `PJRT_DEVICE`,
    or what fits this machine. None where `PJRT_SELECT_DEFAULT_DEVICE=0` and no `PJRT_DEVICE` leave
    it open. Asking looks for no plugin and creates no client.
    """
    if _XLAC._xla_is_initialized():
        return _XLAC._xla_device_type()
    from torch_xla._src.device import plugins

    return plugins.chosen()


def set_device_type(pjrt_device: str) -> None:
    """Chooses the device type of this process and those it starts, by setting `PJRT_DEVICE`.

    Raises:
        RuntimeError: A device of another type has been used in this process.
    """
    used = device_type() or ""
    # By its old name, which programs replace.
    is_used = _XLAC._xla_runtime_is_initialized()  # type: ignore[attr-defined]
    if is_used and pjrt_device.upper() != used.upper():
        raise RuntimeError(
            f"set_device_type: expected {used}, which this process uses "
            f"already, got '{pjrt_device}'. Call it before the first use of a device."
        )
    os.environ["PJRT_DEVICE"] = pjrt_device


def xla_device(n: int | None = None) -> torch.device:
    """An XLA device of this process; see `torch_xla.device`."""
    return _devices.device(n)


def using_pjrt() -> bool:
    """Always true: PJRT is the only runtime."""
    return True


def use_spmd(auto: bool | None = False) -> None:
    """Switches SPMD mode on for this process: one logical device, `xla:0`, of all its devices.

    A program then runs on all devices at once, and each of them holds a tensor's data. Call it
    before the first tensor is made: data that exists by then is copied to the other devices when it
    is next used, and a warning says so. There is no way back. `XLA_USE_SPMD=1` in the environment
    does the same; it is read with the first use of a device. This call sets it, for processes that
    this one starts.

    Args:
        auto: Whether it is chosen for the program how its data and what it computes are split, as
            `torch_xla.distributed.spmd.auto_sharding` describes. Needs `scipy`.

    Raises:
        RuntimeError: There are tensors on another device than `xla:0`, or a step that was still
            running has failed. The mode is not switched then.
        ImportError: With `auto`, where there is no `scipy`.
        NotImplementedError: A launcher started this process as one of several, and each has a
            client of its own: on the CPU.
    """
    if _place.world_size() > 1:
        _plugins.find().expect_one_client("use_spmd")
        _rng.share()
    if auto:
        from torch_xla.distributed.spmd import auto_sharding

        auto_sharding.enable()
    if _XLAC._xla_use_spmd():
        warnings.warn(
            "use_spmd: there are xla tensors already. Their data is on one device and is copied to "
            "the others when it is next used. Call it before the first tensor to save this.",
            stacklevel=2,
        )
    os.environ["XLA_USE_SPMD"] = "1"


def is_spmd() -> bool:
    """True if SPMD mode is on: all devices of the job are one logical device."""
    return _XLAC._xla_is_spmd()


def local_process_count() -> int:
    """The number of processes of the job on this host."""
    return _place.local_world_size()


def process_count() -> int:
    """The number of processes of the job."""
    return _place.world_size()


def process_index() -> int:
    """This process's index among those of the job."""
    return _place.rank()


def host_index() -> int:
    """This host's index among those of the job."""
    return _place.host_index()


def addressable_device_count() -> int:
    """The number of devices that this process can use; 1 in SPMD mode."""
    return _XLAC._xla_num_devices()


def addressable_runtime_device_count() -> int:
    """The number of the runtime's devices that this process can use, in SPMD mode too."""
    return _XLAC._xla_num_real_devices()


def local_device_count() -> int:
    """The number of devices on this host: those of all its processes; 1 each in SPMD mode."""
    return local_process_count() * addressable_device_count()


def global_device_count() -> int:
    """The number of devices of all processes and hosts; 1 in SPMD mode."""
    return 1 if is_spmd() else global_runtime_device_count()


def global_runtime_device_count() -> int:
    """The number of the runtime's devices of all processes and hosts, in SPMD mode too."""
    count = _XLAC._xla_num_global_devices()
    if count > _XLAC._xla_num_real_devices():
        return count
    return count * _place.world_size()  # each process has a client of its own


def runtime_device_attributes(device: str) -> dict[str, object]:
    """The plugin's facts about a device, such as a TPU's `coords`, and its `name`.

    Args:
        device: "xla:0".
    """
    return _XLAC._xla_get_device_attributes(device)


def global_runtime_device_attributes() -> list[dict[str, object]]:
    """`runtime_device_attributes` of the runtime's devices of all processes and hosts."""
    return _XLAC._xla_get_all_device_attributes()


def is_bf16_supported() -> bool:
    """Always: every plugin has bfloat16."""
    return True


def world_size() -> int:
    """The number of replicas of the job; 1 if no launcher started it, and in SPMD mode."""
    return _place.replica()[1]


def global_ordinal() -> int:
    """The calling thread's ordinal among all replicas, from 0 to `world_size() - 1`."""
    return _place.replica()[0]


def local_ordinal() -> int:
    """The calling thread's ordinal among the replicas of this host."""
    return _place.local_rank()


def get_master_ip() -> str:
    """The address of the job's first process: `MASTER_ADDR` of the launcher, or this machine."""
    return _place.master_address()


def get_num_cached_compilation_graph() -> int:
    """The number of compiled programs kept in memory."""
    return _XLAC._xla_num_cached_programs()


def clear_computation_cache() -> None:
    """Drops all compiled programs that are kept in memory; what runs again is compiled again.

    A persistent cache (`initialize_cache`) keeps its files, and what it has is loaded from there.
    """
    _XLAC._xla_clear_cached_programs()


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keeps compiled programs in a folder, where later processes find them instead of compiling.

    Without it they are in a folder of the user's caches (docs/persistent_cache.md).

    Call it before anything is computed: before the first `torch_xla.sync()` and before a value of
    an xla tensor is read. Processes that this one starts afterwards use the cache too, since it is
    set up through `XLA_PERSISTENT_CACHE_PATH` and `XLA_PERSISTENT_CACHE_READ_ONLY`. Several
    processes may share a folder. A process runs the programs that it finds there, so it should be
    one that only you, and those you trust, can write to.

    Args:
        path: The folder, which is created unless `readonly`; or one for each process.
        readonly: Whether this process only reads the cache and never writes to it.

    Raises:
        RuntimeError: This process has computed something already; the folder cannot be written to;
            or, with `readonly`, it is not there or cannot be read.
    """
    path = os.fsdecode(path)
    _XLAC._xla_check_persistent_cache(path, readonly)
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = os.path.abspath(path)
    os.environ["XLA_PERSISTENT_CACHE_READ_ONLY"] = "1" if readonly else "0"
