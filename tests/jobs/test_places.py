"""Where a process is in a job, and the store that all of it share, under each launcher."""

from __future__ import annotations

import json

SAY = """
import json
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla._src.job import store

before = [xr.global_ordinal(), xr.world_size(), xr.local_ordinal(), xr.local_process_count(),
          xr.host_index()]
assert not torch.distributed.is_initialized() and not torch_xla._XLAC._xla_is_initialized()
mine, other = xr.global_ordinal(), 1 - xr.global_ordinal()
store.store().set(f"seen/{mine}", str(mine))
assert store.store().get(f"seen/{other}") == str(other).encode()
assert str(torch_xla.device()) == "xla:0" and torch_xla.device_count() == 1
assert (xr.addressable_device_count(), xr.local_device_count()) == (1, xr.local_process_count())
assert xr.global_device_count() == xr.global_runtime_device_count() == 2
try:
    xr.use_spmd()
except NotImplementedError as error:
    assert "got 2 from" in str(error)
else:
    raise AssertionError("expected an error")
print(json.dumps(before))
"""

# Rank 0 keeps the store, and PyTorch's own process group is told of the same port.
GROUPS = """
import torch.distributed as dist
for method in ("env://", "xla://", "pjrt://"):
    dist.init_process_group("gloo", init_method=method)
    t = torch.ones(1)
    dist.all_reduce(t)
    assert t.item() == 2 and dist.get_rank() == mine
    dist.destroy_process_group()
"""


def said(done):
    lines = [line for process in done for line in process.stdout.splitlines()]
    return sorted(json.loads(line) for line in lines if line.startswith("["))


def test_by_hand_and_beside_pytorchs_group(jobs):
    done = jobs.by_hand(SAY + GROUPS, env={"CPU_NUM_DEVICES": "4"})
    assert said(done) == [[0, 2, 0, 2, 0], [1, 2, 1, 2, 0]]


def test_torchrun(jobs):
    assert said(jobs.torchrun(SAY)) == [[0, 2, 0, 2, 0], [1, 2, 1, 2, 0]]


def test_torchrun_on_two_hosts(jobs):
    assert said(jobs.torchrun(SAY, ranks=1, hosts=2)) == [[0, 2, 0, 1, 0], [1, 2, 0, 1, 1]]
