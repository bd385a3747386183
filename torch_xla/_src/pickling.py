"""Loading of pickled xla tensors that require a gradient.

PyTorch saves an xla tensor as its CPU copy and, when it loads it, moves that to the device before
it sets `requires_grad`. The copy of a tensor that requires a gradient does so: the moved one is
then a result of the copy and refuses the flag. `install` loads the copy without it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch


def install() -> None:
    """To be called once."""
    original = torch._utils._rebuild_device_tensor_from_cpu_tensor

    @functools.wraps(original)
    def rebuild(data: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return original(data.detach(), *args, **kwargs)

    torch._utils._rebuild_device_tensor_from_cpu_tensor = rebuild
