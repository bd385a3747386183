"""FSDP2, DTensor, tensor parallelism and distributed checkpoints on a `DeviceMesh("xla")` of
processes.

Units: _src/processes/device_mesh, _src/processes/fsdp_kernels, _src/processes/pytorch_functions.
"""

from __future__ import annotations

from tests.jobs.test_ddp import BEGIN, END

FSDP2 = """
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

mesh = init_device_mesh("xla", (n,), mesh_dim_names=("dp",))
assert mesh.get_local_rank() == rank and mesh.get_group().size() == n
assert mesh["dp"].mesh.tolist() == list(range(n))


def sharded(**options):
    whole = model().to("xla")
    for layer in whole:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(whole, mesh=mesh, **options)


def train(parallel, steps, make=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)):
    optimizer = make(parallel.parameters())
    for step in range(steps):
        x, y = (t.to("xla") for t in batch(step, rank))
        optimizer.zero_grad()
        (parallel(x) - y).square().mean().backward()
        optimizer.step()
        torch_xla.sync()
    return parallel


def same_full(name, parallel, plain, **tolerance):
    tolerance = tolerance or {"rtol": 1e-6, "atol": 1e-9}
    for (key, a), b in zip(parallel.named_parameters(), plain.parameters()):
        torch.testing.assert_close(a.full_tensor().detach().cpu(), b.detach(), **tolerance,
                                   msg=lambda m: f"{name} {key} on rank {rank}: {m}")


for reshard in (True, False):
    parallel = train(sharded(reshard_after_forward=reshard), 4)
    same_full(f"reshard={reshard}", parallel, expected(model(), 4))
    local = parallel[0].weight.to_local()
    assert local.shape == (16 // n, 6) and local.device.type == "xla"
adam = lambda p: torch.optim.AdamW(p, lr=0.05)
same_full("AdamW", train(sharded(), 4, adam), expected(model(), 4, adam))

# One program a step.
parallel = sharded()
launches = launches_of(parallel, 5)
assert launches[-2:] == [(1, 0)] * 2, launches

norm = torch.nn.utils.clip_grad_norm_(parallel.parameters(), 0.1)
plain = expected(model(), 4)
for r in range(n):
    x, y = batch(4, r)
    plain.zero_grad() if r == 0 else None
    ((plain(x) - y).square().mean() / n).backward()
want = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
torch.testing.assert_close(norm.full_tensor().cpu(), want, rtol=1e-6, atol=1e-9)

# Mixed precision gathers and computes in the low one.
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
low = sharded(mp_policy=policy)
out = low(batch(0, rank)[0].to("xla"))
assert out.dtype == torch.bfloat16
out.float().sum().backward()
assert low[0].weight.grad.dtype == torch.float64
"""

TENSORS = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("xla", (n,), mesh_dim_names=("tp",))
whole = torch.arange(24, dtype=torch.float64).reshape(8, 3)
d = distribute_tensor(whole, mesh, [Shard(0)])
assert type(d) is DTensor and d.to_local().device.type == "xla"
assert torch.equal(d.to_local().cpu(), whole.chunk(n)[rank])
assert torch.equal(d.full_tensor().cpu(), whole)
assert torch.equal(d.redistribute(mesh, [Replicate()]).to_local().cpu(), whole)
assert torch.equal(d.redistribute(mesh, [Shard(1)]).full_tensor().cpu(), whole)
assert torch.equal((d + d).full_tensor().cpu(), whole * 2)
assert torch.equal(d.sum().full_tensor().cpu(), whole.sum())
assert torch.equal((d.t() @ d).full_tensor().cpu(), whole.t() @ whole)
part = DTensor.from_local(torch.full((2,), 1.0 + rank, device="xla"), mesh, [Partial()])
assert part.full_tensor().tolist() == [n * (n + 1) / 2] * 2
z = torch.distributed.tensor.zeros(n * 2, 3, device_mesh=mesh, placements=[Shard(0)])
assert z.to_local().shape == (2, 3)
uneven = distribute_tensor(torch.arange(2 * n + 1.0), mesh, [Shard(0)])
assert torch.equal(uneven.full_tensor().cpu(), torch.arange(2 * n + 1.0))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(6, 8 * n), nn.Linear(8 * n, 6)

    def forward(self, x):
        return self.down(self.up(x).relu())


plain, parallel = MLP().double(), MLP().double().to("xla")
parallelize_module(parallel, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
assert parallel.up.weight.to_local().shape == (8, 6)
x = batch(0, 0)[0]
want, got = plain(x), parallel(x.to("xla"))
torch.testing.assert_close(got.detach().cpu(), want.detach())
want.square().sum().backward()
got.square().sum().backward()
for a, b in zip(parallel.parameters(), plain.parameters()):
    torch.testing.assert_close(a.grad.full_tensor().cpu(), b.grad)
whole = distribute_module(MLP().to("xla"), mesh)
assert whole.up.weight.placements == (Replicate(),)

# Two dimensions: data and tensor parallelism.
if n == 4:
    from torch.distributed.fsdp import fully_shard

    grid = init_device_mesh("xla", (2, 2), mesh_dim_names=("dp", "tp"))
    both = MLP().double().to("xla")
    parallelize_module(both, grid["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(both, mesh=grid["dp"])
    plain = MLP().double()
    x = [batch(0, r)[0] for r in range(2)]
    both(x[grid.get_local_rank("dp")].to("xla")).square().sum().backward()
    sum(plain(v).square().sum() / 2 for v in x).backward()
    for a, b in zip(both.parameters(), plain.parameters()):
        torch.testing.assert_close(a.grad.full_tensor().cpu(), b.grad)

# Checkpoints.
import os

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

folder = os.environ["CHECKPOINT_FOLDER"]
state = get_model_state_dict(parallel)
dcp.save(state, checkpoint_id=folder)
torch.manual_seed(5)
other = MLP().double().to("xla")
with torch.no_grad():
    for p in other.parameters():
        p.add_(1)
parallelize_module(other, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
loaded = get_model_state_dict(other)
dcp.load(loaded, checkpoint_id=folder)
set_model_state_dict(other, loaded)
for a, b in zip(parallel.parameters(), other.parameters()):
    assert torch.equal(a.full_tensor().detach().cpu(), b.full_tensor().detach().cpu())
"""


def test_fully_shard_is_one_process_with_averaged_gradients(jobs):
    jobs.by_hand(BEGIN + FSDP2 + END, ranks=2, timeout=300)


def test_tensors_over_processes(jobs, tmp_path):
    jobs.by_hand(
        BEGIN + TENSORS + END,
        ranks=4,
        env={"CHECKPOINT_FOLDER": str(tmp_path / "saved")},
        timeout=300,
    )
