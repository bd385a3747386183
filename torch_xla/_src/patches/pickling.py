"""Loading of pickled xla tensors that require a gradient, and deep copies that share memory.

PyTorch saves an xla tensor as its CPU copy and, when it loads it, moves that to the device before
it sets `requires_grad`. The copy of a tensor that requires a gradient does so: the moved one is
then a result of the copy and refuses the flag. `install` loads the copy without it.

`copy.deepcopy` copies the storages of CPU tensors, each once, so that copies of tensors that share
memory share memory. Of an xla tensor PyTorch copies the elements only; `install` mends that.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_xla import _XLAC


def install() -> None:
    """To be called once."""
    original = torch._utils._rebuild_device_tensor_from_cpu_tensor

    @functools.wraps(original)
    def rebuild(data: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return original(data.detach(), *args, **kwargs)

    torch._utils._rebuild_device_tensor_from_cpu_tensor = rebuild
    torch.Tensor.__deepcopy__ = _sharing(torch.Tensor.__deepcopy__)


def _sharing(original):
    """`Tensor.__deepcopy__` whose copies share memory where the tensors do."""

    @functools.wraps(original)
    def deepcopy(self: torch.Tensor, memo: dict) -> torch.Tensor:
        if self.device.type != "xla" or type(self) is not torch.Tensor or id(self) in memo:
            return original(self, memo)
        result = original(self, memo)
        if not _XLAC._xla_is_window(self):
            return result
        storage = self.untyped_storage()
        key = "xla storage", storage._cdata
        if key not in memo:
            fills = self.storage_offset() == 0 and self.nbytes == storage.nbytes()
            is_whole = fills and result.stride() == self.stride()  # each element once
            whole = result if is_whole else result.new_empty(0).set_(storage).clone()
            memo[key] = whole.detach(), storage  # which lives as long as its address is known
        copy = memo[key][0].untyped_storage()
        if copy._cdata != result.untyped_storage()._cdata:
            place = self.storage_offset(), self.shape, self.stride()
            result.data = torch.empty(0, dtype=self.dtype, device=self.device).set_(copy, *place)
        return result

    return deepcopy
