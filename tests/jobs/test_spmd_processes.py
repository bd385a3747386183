"""SPMD mode over two processes with two devices each, by a plugin that makes one client of both
(tests/cpp/pod_plugin). All processes make the same tensors and marks.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp

from tests.jobs.test_spanning import POD

HEAD = (
    POD
    + """
import numpy as np
import torch, torch.nn as nn
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla import _XLAC

xr.use_spmd()
mesh = xs.Mesh(np.arange(4), (4,), ("data",))
rank = xr.process_index()

def shards(t):
    return xs.wrap_as_sharded_tensor(t).local_shards

def ours(value):
    return value.chunk(2)[rank]

def same(found, expected, **kwargs):
    torch.testing.assert_close(found, expected, **kwargs)
"""
)


@pytest.fixture
def processes(jobs, pod_plugin):
    env = {"POD_PLUGIN": str(pod_plugin), "POD_DEVICES": "2"}

    def run(code, torchrun=False):
        start = jobs.torchrun if torchrun else jobs.by_hand
        return start(HEAD + code, env=env, timeout=300)

    return run


PLACES = """
drawn = torch.randn(3, device="xla")  # nobody has chosen a seed
assert (xr.process_count(), xr.process_index()) == (2, int(os.environ["RANK"]))
assert xr.global_runtime_device_count() == 4 and xr.addressable_runtime_device_count() == 2
assert torch_xla.device_count() == 2 and str(torch_xla.devices()) == "[device(type='xla', index=0)]"
assert xr.world_size() == xr.global_device_count() == 1 and xr.global_ordinal() == 0
assert xm.is_master_ordinal(local=False) == (rank == 0)
assert torch_xla.real_devices() == [f"CPU:{2 * rank}", f"CPU:{2 * rank + 1}"]
together = [torch.zeros(3), torch.zeros(3)]
import torch.distributed as dist
dist.init_process_group("gloo", init_method="xla://")
dist.all_gather(together, drawn.cpu())
same(*together, rtol=0, atol=0)

# Uploads and reads.
torch.manual_seed(0)
value, weight = torch.randn(8, 4), torch.randn(4, 4)
sent = lambda: (met.metric_data("OutboundData") or (0, 0))[1]
before = sent()
t = value.to("xla")
xs.mark_sharding(t, mesh, ("data", None))
assert sent() - before == value.nbytes / 2
same(torch.cat([s.data for s in shards(t)]), ours(value))
assert [s.shard_device for s in shards(t)] == torch_xla.real_devices()
assert [s.indices[0].start for s in shards(t)] == [4 * rank, 4 * rank + 2]
y = t @ weight.to("xla")
xs.mark_sharding(y, mesh, ("data", None))
torch_xla.sync()
same(torch.cat([s.data for s in shards(y)]), ours(value @ weight))
try:
    y.cpu()
except RuntimeError as error:
    assert "expected a value of which this process has all parts" in str(error)
else:
    raise AssertionError("expected an error")
# What the devices send each other.
same((t.sum(0) * 2).cpu(), value.sum(0) * 2)
z = t.T @ t
same(z.cpu(), value.T @ value)
xs.clear_sharding(y)
xs.mark_sharding(y, mesh, (None, None))
torch_xla.sync()
same(y.cpu(), value @ weight)
part = xs.enable_manual_sharding(t, ("data", None), mesh=mesh).global_tensor
total = xs.disable_manual_sharding(xs.all_reduce("sum", part), (None, None), (2, 4), mesh=mesh)
same(total.global_tensor.cpu(), value.reshape(4, 2, 4).sum(0))
sharded = xs.mark_sharding(torch.zeros(8, 4).to("xla"), mesh, ("data", None))
held = sharded.local_shards
for shard, data in zip(held, ours(value).chunk(2)):
    shard.data = data
sharded.load_local_shards_(held)
same((sharded.global_tensor + 0).sum(0).cpu(), value.sum(0))
# Exchanges of `xm` are those of one replica.
same(xm.all_reduce("sum", (t * 1).sum(0)).cpu(), value.sum(0))
xm.rendezvous("end")
"""


def test_places_uploads_and_reads(processes):
    processes(PLACES, torchrun=True)


TRAINING = """
import torch_xla.distributed.parallel_loader as pl
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2,
)

def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))

torch.manual_seed(2)
data, target = torch.randn(3, 16, 16), torch.randn(3, 16, 8)
net = model()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
expected = []
for x, y in zip(data, target):
    loss = nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    expected.append(loss.item())

spec = xs.ShardingSpec(mesh, ("data", None))
parts = xs.ShardingSpec(mesh, ("data", None), minibatch=True)
ways = {
    "data": (spec, False),
    "data of each process": (parts, False),
    "parameters too": (parts, True),
}
for way, (sharding, splits) in ways.items():
    theirs = model().to("xla")
    if splits:
        fsdp = xs.Mesh(np.arange(4), (4, 1), ("fsdp", "model"))
        theirs = FSDPv2(theirs, fsdp)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.01)
    batches = list(zip(data, target))
    if sharding.minibatch:
        batches = [(ours(x), ours(y)) for x, y in batches]
    before = (met.metric_data("OutboundData") or (0, 0))[1]
    losses = []
    for x, y in pl.MpDeviceLoader(batches, "xla", input_sharding=sharding):
        assert x.shape == (16, 16)
        loss = nn.functional.mse_loss(theirs(x), y)
        optimizer.zero_grad(); loss.backward()
        xm.optimizer_step(optimizer)
        losses.append(loss.detach())
    same(torch.stack(losses).cpu(), torch.tensor(expected), msg=lambda m: f"{way}: {m}")
    for p, q in zip(theirs.parameters(), net.parameters()):
        if not splits:
            same(p.detach().cpu(), q.detach(), rtol=1e-4, atol=1e-5)
            continue
        for shard in shards(p):
            assert shard.indices is not ...
            same(shard.unpadded_data, q.detach()[tuple(shard.indices)], rtol=1e-4, atol=1e-5)

# Rows of another process cannot come from this one.
turned = xs.Mesh(np.array([0, 2, 1, 3]), (4,), ("x",))
crossed = xs.ShardingSpec(turned, ("x", None), minibatch=True)
try:
    crossed.move(torch.zeros(4, 2), torch.device("xla"))
except ValueError as error:
    assert "Split the first dimension by processes first" in str(error)
else:
    raise AssertionError("expected an error")
xm.rendezvous("end")
"""


def test_training_is_that_of_one_process(processes):
    processes(TRAINING)


CHECKPOINTS = """
import signal
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch_xla.experimental.distributed_checkpoint import (
    CheckpointManager, SPMDLoadPlanner, SPMDSavePlanner,
)

dist.init_process_group("gloo", init_method="xla://")
grid = xs.Mesh(np.arange(4), (2, 2), ("process", "device"))
ways = {
    "rows": (mesh, ("data", None)),
    "columns": (mesh, (None, "data")),
    "whole": (mesh, (None, None)),
    "by process": (grid, ("process", None)),
    "alike in each": (grid, (None, "device")),
    "both": (grid, ("device", "process")),
}
torch.manual_seed(5)
values = {name: torch.randn(9, 6) for name in [*ways, "plain"]}

def state(turn=0, filled=True):
    "Split as the way that many places further says."
    made = {}
    for i, (name, value) in enumerate(values.items()):
        made[name] = (value if filled else torch.zeros(9, 6)).to("xla")
        if name in ways:
            xs.mark_sharding(made[name], *list(ways.values())[(i + turn) % len(ways)])
    return made

def check(loaded):
    for name, value in values.items():
        if name not in ways:
            same(loaded[name].cpu(), value, rtol=0, atol=0)
            continue
        for shard in shards(loaded[name]):
            place = ... if shard.indices is ... else tuple(shard.indices)
            same(shard.unpadded_data, value[place], rtol=0, atol=0)

dcp.save(state(), checkpoint_id="saved", planner=SPMDSavePlanner())
for turn in (0, 1, 3):
    loaded = state(turn, filled=False)
    dcp.load(loaded, checkpoint_id="saved", planner=SPMDLoadPlanner())
    check(loaded)

manager = CheckpointManager("managed", save_interval=2, max_to_keep=2)
assert [manager.save_async(step, state()) for step in range(5)] == [True, False] * 2 + [True]
manager.join()
assert manager.all_steps() == [2, 4]
loaded = state(2, filled=False)
manager.restore(4, loaded)
check(loaded)
assert not manager.reached_preemption(5)
if rank == 1:
    os.kill(os.getpid(), signal.SIGTERM)
assert manager.reached_preemption(6) and manager.save(6, state())
assert manager.all_steps() == [4, 6]
torch.save(values, f"values{rank}.pt")
dist.barrier()
"""


def test_checkpoints_are_of_each_processs_parts(processes, tmp_path):
    processes(CHECKPOINTS)
    # One process, without any device, reads both.
    values = torch.load(tmp_path / "values0.pt")
    for folder in ("saved", "managed/6"):
        loaded = {name: torch.zeros(9, 6) for name in values}
        dcp.load(loaded, checkpoint_id=tmp_path / folder, no_dist=True)
        for name, value in values.items():
            torch.testing.assert_close(loaded[name], value, rtol=0, atol=0)
