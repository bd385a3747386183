"""Loaders that read batches ahead and move them to XLA devices while these compute.

Usually imported as `import torch_xla.distributed.parallel_loader as pl`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torch_xla._src.device.names import device_name as _device_name
from torch_xla._src.functions import step as _step
from torch_xla._src.old_names.loaders import PerDeviceQueue  # noqa: F401
from torch_xla._src.prefetch import Prefetcher, owned_by
from torch_xla.core import xla_model as xm


class PerDeviceLoader:
    """The batches of one device; made by `ParallelLoader.per_device_loader`.

    An iterator, not a DataLoader. It issues the device's barrier before the first batch, then after
    every `batches_per_execution` batches, and after the last one.
    """

    def __init__(self, loader: ParallelLoader, device: str | torch.device):
        self._loader = loader
        self._device = torch.device(device)
        self._name = _device_name(device)
        self._batches_to_barrier = 0

    def __iter__(self) -> PerDeviceLoader:
        return self

    def __next__(self) -> Any:
        return self.next()

    def __len__(self) -> int:
        return self._loader.per_device_samples()

    def next(self) -> Any:
        """The next batch, on the device."""
        synced = self._batches_to_barrier == 0
        if synced:
            # Before waiting for the batch, so that the device computes meanwhile.
            _step.barrier(self._name, "torch_xla.sync in parallel loader at step end")
            self._batches_to_barrier = self._loader.batches_per_execution
        try:
            batch = self._loader._next(self._device)
        except StopIteration:
            if not synced:
                _step.barrier(self._name, "torch_xla.sync in parallel loader at step end")
                self._batches_to_barrier = 0
            raise
        self._batches_to_barrier -= 1
        return batch

    def close(self) -> None:
        """Ends the loader's threads."""
        self._loader.close()


class ParallelLoader:
    """Wraps a DataLoader: reads its batches on one thread and moves them to devices on others.

    The i-th batch goes to `devices[i % len(devices)]`. With several devices an incomplete last
    round is left out, so that all devices get equally many batches. An error of the loader is
    raised where the batch would have come. The threads end with the last batch, by `close`, or when
    the object is gone.

    Args:
        loader: The DataLoader, or any other iterable of batches.
        devices: The devices.
        batchdim: The dimension of the batch; accepted, and of no effect here.
        batches_per_execution: How many batches there are between barriers.
        loader_prefetch_size: For each device, the most batches that wait to be moved to it.
        device_prefetch_size: For each device, the most batches that wait on it.
        host_to_device_transfer_threads: How many threads move batches. The order is kept.
        input_sharding: How the batches' tensors are split among the devices of an SPMD process: a
            `torch_xla.distributed.spmd.ShardingSpec` for those of its rank, or a dict of such by
            the keys of the batches.
        cpu_loader: The name of `loader` in later versions.
    """

    def __init__(
        self,
        loader: Iterable[Any] | None = None,
        devices: Sequence[str | torch.device] = (),
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 8,
        device_prefetch_size: int = 4,
        host_to_device_transfer_threads: int = 1,
        input_sharding: Any = None,
        cpu_loader: Iterable[Any] | None = None,
    ):
        if (loader is None) == (cpu_loader is None):
            raise TypeError("ParallelLoader: expected one loader. Pass the DataLoader as loader=.")
        batches: Any = cpu_loader if loader is None else loader
        counts = {
            "batches_per_execution": batches_per_execution,
            "loader_prefetch_size": loader_prefetch_size,
            "device_prefetch_size": device_prefetch_size,
            "host_to_device_transfer_threads": host_to_device_transfer_threads,
        }
        for name, count in counts.items():
            if not isinstance(count, int) or count < 1:
                raise ValueError(f"ParallelLoader: expected {name} of at least 1, got {count!r}.")
        self._devices = [torch.device(device) for device in devices]
        if not self._devices:
            raise ValueError("ParallelLoader: expected at least one device, got none.")
        self._loader = batches
        self._input_sharding = input_sharding
        self.batchdim = batchdim
        self._batches_per_execution = batches_per_execution
        self._prefetcher = Prefetcher(
            batches,
            [
                functools.partial(xm._move_to_device, device=d, input_sharding=input_sharding)
                for d in self._devices
            ],
            loader_prefetch_size,
            device_prefetch_size,
            host_to_device_transfer_threads,
        )
        owned_by(self, self._prefetcher)

    @property
    def batches_per_execution(self) -> int:
        """The number of batches between barriers."""
        return self._batches_per_execution

    def send_cpu_data_to_device(self, batches: Any, device: str | torch.device) -> Any:
        """Batches moved to a device, as the loader's threads do; for a tensor a list of one."""
        return xm.send_cpu_data_to_device(batches, device, self._input_sharding)

    def per_device_loader(self, device: str | torch.device) -> PerDeviceLoader:
        """The iterator over the batches of a device.

        Args:
            device: One of the devices that this loader was made with.
        """
        self._index(torch.device(device))
        return PerDeviceLoader(self, device)

    def per_device_samples(self) -> int:
        """The number of batches that each device gets."""
        return len(self._loader) // len(self._devices)

    def next_item(self, device: str | torch.device) -> Any:
        """The next batch of a device, None after the last one. It issues no barrier."""
        try:
            return self._next(torch.device(device))
        except StopIteration:
            return None

    def _next(self, device: torch.device) -> Any:
        return self._prefetcher.next(self._index(device))

    def _index(self, device: torch.device) -> int:
        if device not in self._devices:
            raise ValueError(
                f"ParallelLoader: expected one of the devices {[str(d) for d in self._devices]}, "
                f"got '{device}'."
            )
        return self._devices.index(device)

    def close(self) -> None:
        """Ends the threads and drops the batches that were read ahead; iterators end."""
        self._prefetcher.close()


class MpDeviceLoader:
    """Wraps a DataLoader: its batches arrive on a device, read ahead in the background.

    Each iteration starts a new pass over the loader. A barrier (`torch_xla.sync`) is issued before
    the first batch, after every `batches_per_execution` batches, and after the last one. Attributes
    that this class does not have are those of the DataLoader.

    Args:
        loader: The DataLoader, or any other iterable of batches.
        device: The XLA device.
        kwargs: Further arguments of `ParallelLoader`.
    """

    def __init__(self, loader: Iterable[Any], device: str | torch.device, **kwargs: Any):
        self._loader: Any = loader  # which may have a length
        self._device = device
        self._parallel_loader_kwargs = kwargs

    def __iter__(self) -> PerDeviceLoader:
        loader = ParallelLoader(self._loader, [self._device], **self._parallel_loader_kwargs)
        return loader.per_device_loader(self._device)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # not there while the object is being copied or unpickled
            raise AttributeError(name)
        return getattr(self._loader, name)
