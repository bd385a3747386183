"""torch_xla.experimental.custom_kernel: functions of fixed sizes."""

from __future__ import annotations

import pytest
import torch

from torch_xla.debug import metrics
from torch_xla.experimental.custom_kernel import repeat_with_fixed_output_size


def wanted(x, repeats, size):
    whole = torch.repeat_interleave(x, repeats)[:size]
    return torch.cat([whole, x[-1:].expand(size - whole.numel())])


@pytest.mark.parametrize("size", [1, 9, 30, 45])
@pytest.mark.parametrize("repeats", [[0, 1, 2, 0, 4, 0, 6, 7, 8, 9], [0] * 10, [2] * 9 + [0]])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_repeats(repeats, size, dtype):
    x, n = torch.arange(10.0), torch.tensor(repeats, dtype=dtype)
    metrics.clear_counters()
    found = repeat_with_fixed_output_size(x.to("xla"), n.to("xla"), size)
    assert not metrics.executed_fallback_ops()
    torch.testing.assert_close(found.cpu(), wanted(x, n, size))


def test_refusals():
    x = torch.arange(4.0).to("xla")
    for bad in (x.view(2, 2).long(), x[:3].long()):
        with pytest.raises(ValueError, match="expected elements and as many repeats"):
            repeat_with_fixed_output_size(x, bad, 5)
