"""`UntypedStorage.resize_` on xla, which PyTorch has for devices that it knows.

FSDP2 gives the memory of gathered parameters back by it, and takes it again.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_xla import _XLAC


def install() -> None:
    """To be called once."""
    original = torch.UntypedStorage.resize_

    @functools.wraps(original)
    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        if self.device.type != "xla":
            return original(self, size)
        _XLAC._xla_resize_storage(self, size)
        return self

    torch.UntypedStorage.resize_ = resize_  # type: ignore[assignment]
