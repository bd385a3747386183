"""State that `xla_model` and `runtime` keep for each device and process in 2.9."""

from __future__ import annotations

import os
from typing import Any, TypeVar

import torch

from torch_xla import _XLAC

R = TypeVar("R")
FN = TypeVar("FN")

# In 2.9 the rank and size are kept here once they are known; here they are always asked for.
_WORLD_SIZE = None
_ORDINAL = None


class DeviceContext:
    """A place for what a program keeps with a device, by attributes of its own choice."""

    def __init__(self, device: str | torch.device):
        self.device = device


_DEVICE_CONTEXTS: dict[str, DeviceContext] = {}


def _get_device_context(device: str | torch.device | None = None) -> DeviceContext:
    """The context of a device, one for each; of the calling thread's default device without it."""
    name = _XLAC._xla_get_default_device() if device is None else str(device)
    return _DEVICE_CONTEXTS.setdefault(name, DeviceContext(name))


def _get_all_reduce_token() -> tuple[Any, DeviceContext]:
    """The token of the calling thread's default device, and the device's context."""
    context = _get_device_context()
    return _XLAC._get_all_reduce_token(str(context.device)), context


def _init_world_size_ordinal() -> None:
    """Does nothing: nothing has to be known of the job beforehand."""


def _maybe_select_default_device() -> None:
    """Sets PJRT_DEVICE to what would be chosen, unless set or PJRT_SELECT_DEFAULT_DEVICE is 0."""
    from torch_xla._src.device import plugins

    name = plugins.chosen()
    if name is not None and "PJRT_DEVICE" not in os.environ:
        os.environ["PJRT_DEVICE"] = name
