"""Training loops as a function that runs for each device, with a thread each.

This version runs on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from torch_xla._src.device import devices as _devices
from torch_xla._src.old_names.loaders import ThreadResult  # noqa: F401
from torch_xla.distributed.parallel_loader import ParallelLoader


class Context:
    """A place for what a loop function keeps from call to call."""

    def __init__(self, device: torch.device):
        self.device = device
        self._attributes: dict[str, Any] = {}

    def getattr_or(self, name: str, defval: Any) -> Any:
        """The value kept under a name. The first time it is `defval`, or what that returns."""
        if name not in self._attributes:
            self._attributes[name] = defval() if callable(defval) else defval
        return self._attributes[name]


class DataParallel:
    """A model on each device, trained or tested by a function with the batches of the device.

    Args:
        network: The model, or a function that makes one.
        device_ids: The devices; all XLA devices of this process without it.

    Raises:
        NotImplementedError: There is more than one device; not supported yet.
    """

    def __init__(
        self,
        network: torch.nn.Module | Callable[[], torch.nn.Module],
        device_ids: Sequence[str | torch.device] | None = None,
    ):
        devices = _devices.devices() if device_ids is None else device_ids
        if len(devices) != 1:
            raise NotImplementedError(
                f"DataParallel: expected one device, got {len(devices)}. Several are not "
                "supported yet. Pass device_ids=[torch_xla.device()]."
            )
        device = torch.device(devices[0])
        module = network if isinstance(network, torch.nn.Module) else network()
        self._context = Context(device)
        self._models = [module.to(device)]

    @property
    def devices(self) -> list[torch.device]:
        """The devices of the models, in the same order."""
        return [self._context.device]

    @property
    def models(self) -> list[torch.nn.Module]:
        """The model of each device."""
        return self._models

    def __call__(
        self,
        loop_fn: Callable[[torch.nn.Module, Iterable[Any], torch.device, Context], Any],
        loader: Iterable[Any],
        fixed_batch_size: bool = False,
        batchdim: int = 0,
    ) -> list[Any]:
        """Calls `loop_fn(model, batches, device, context)` for each device.

        Args:
            loop_fn: The function. Its second argument iterates over the device's batches and issues
                barriers.
            loader: The DataLoader. With several devices a last round that does not reach all is
                left out.
            fixed_batch_size: Whether to end at the first batch whose size differs from the first
                one's.
            batchdim: The dimension of the batch.

        Returns:
            What `loop_fn` returned for each device.
        """
        device = self._context.device
        batches = _of_one_size(loader, batchdim) if fixed_batch_size else loader
        parallel_loader = ParallelLoader(batches, [device], batchdim=batchdim)
        try:
            per_device = parallel_loader.per_device_loader(device)
            return [loop_fn(self._models[0], per_device, device, self._context)]
        finally:
            parallel_loader.close()


def _of_one_size(loader: Iterable[Any], batchdim: int) -> Iterable[Any]:
    """The batches up to the first whose size differs, as that would be another program."""
    first = None
    for batch in loader:
        size = _size(batch, batchdim)
        first = size if first is None else first
        if size != first:
            return
        yield batch


def _size(batch: Any, batchdim: int) -> int | None:
    if isinstance(batch, torch.Tensor):
        return batch.size(batchdim)
    values = batch.values() if isinstance(batch, dict) else batch
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        return None
    sizes = (_size(value, batchdim) for value in values)
    return next((size for size in sizes if size is not None), None)
