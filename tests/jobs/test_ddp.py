"""DistributedDataParallel and its like on xla give what one process gives that averages the
gradients of all parts of the batch.

Units: _src/processes/sync_batch_norm.
"""

from __future__ import annotations

BEGIN = """
import contextlib
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import torch_xla
import torch_xla.debug.metrics as met

dist.init_process_group("xla", init_method="pjrt://")
rank, n = dist.get_rank(), dist.get_world_size()


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(),
                         nn.Linear(16, 4)).double()


def batch(step, of):
    draw = torch.Generator().manual_seed(1000 * step + of)
    return (torch.randn(5, 6, generator=draw, dtype=torch.float64),
            torch.randn(5, 4, generator=draw, dtype=torch.float64))


def launches_of(parallel, steps):
    # Runs and new programs of each step of training.
    def counts():
        runs = met.metric_data("ExecuteTime")
        return [runs[0] if runs else 0, met.counter_value("CreateCompileHandles") or 0]

    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
    launches = []
    for step in range(steps):
        before = counts()
        x, y = (t.to("xla") for t in batch(step, rank))
        optimizer.zero_grad()
        (parallel(x) - y).square().mean().backward()
        optimizer.step()
        torch_xla.sync()
        launches.append(tuple(now - then for now, then in zip(counts(), before)))
    return launches


def expected(plain, steps, make=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), micro=1):
    optimizer = make(plain.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        for r in range(n):
            for m in range(micro):
                x, y = batch(step * micro + m, r)
                ((plain(x) - y).square().mean() / n).backward()
        optimizer.step()
    return plain


def trained(parallel, steps, make=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), micro=1):
    optimizer = make(parallel.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        for m in range(micro):
            x, y = (t.to("xla") for t in batch(step * micro + m, rank))
            waits = parallel.no_sync() if m + 1 < micro else contextlib.nullcontext()
            with waits:
                (parallel(x) - y).square().mean().backward()
        optimizer.step()
        torch_xla.sync()
    return parallel


def same(name, parallel, plain, **tolerance):
    tolerance = tolerance or {"rtol": 1e-6, "atol": 1e-9}
    for (key, a), b in zip(parallel.named_parameters(), plain.parameters()):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), **tolerance,
                                   msg=lambda m: f"{name} {key} on rank {rank}: {m}")
"""

DDP = """
for options in ({}, {"static_graph": True}, {"find_unused_parameters": True},
                {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}):
    same(options, trained(DDP(model().to("xla"), **options), 3), expected(model(), 3))
same("no_sync", trained(DDP(model().to("xla")), 3, micro=2), expected(model(), 3, micro=2))
adam = lambda p: torch.optim.Adam(p, lr=0.05)
same("Adam", trained(DDP(model().to("xla"), gradient_as_bucket_view=True), 4, adam),
     expected(model(), 4, adam))

# Ranks begin alike whatever each had.
different = DDP(model(rank).to("xla"))
same("the weights of rank 0", different, model(0))


# One program a step, and nothing new to compile, once DDP has its last buckets.
for options in ({}, {"gradient_as_bucket_view": True}):
    parallel = DDP(model().to("xla"), **options)
    launches = launches_of(parallel, 6)
    assert launches[-2:] == [(1, 0)] * 2 and launches[2][0] == 1, launches


# Parameters that some ranks do not use.
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.others = nn.Linear(6, 4).double(), nn.ModuleList(
            nn.Linear(6, 4).double() for _ in range(n))

    def forward(self, x, which):
        return self.first(x) + self.others[which](x)


plain, parallel = Branches(), DDP(Branches().to("xla"), find_unused_parameters=True)
for r in range(n):
    x, y = batch(0, r)
    ((plain(x, r % 2) - y).square().mean() / n).backward()
x, y = (t.to("xla") for t in batch(0, rank))
(parallel(x, rank % 2) - y).square().mean().backward()
for (key, a), b in zip(parallel.module.named_parameters(), plain.parameters()):
    if b.grad is None:
        assert a.grad is None or not a.grad.any(), key
    else:
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-6, atol=1e-9)

# Hooks.
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

parallel = DDP(model().to("xla"))
parallel.register_comm_hook(None, default_hooks.allreduce_hook)
same("allreduce_hook", trained(parallel, 3), expected(model(), 3))
parallel = DDP(model().float().to("xla"))
parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
plain = model().float()
x, y = (t.float() for t in batch(0, 0))
for r in range(n):
    x, y = (t.float() for t in batch(0, r))
    ((plain(x) - y).square().mean() / n).backward()
x, y = (t.float().to("xla") for t in batch(0, rank))
(parallel(x) - y).square().mean().backward()
for a, b in zip(parallel.parameters(), plain.parameters()):
    torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=0.05, atol=0.01)


def doubled(state, bucket):
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda f: f.value()[0] * (2.0 / n))


parallel = DDP(model().to("xla"))
parallel.register_comm_hook(None, doubled)
plain = model()
for r in range(n):
    x, y = batch(0, r)
    ((plain(x) - y).square().mean() * 2 / n).backward()
x, y = (t.to("xla") for t in batch(0, rank))
(parallel(x) - y).square().mean().backward()
for a, b in zip(parallel.parameters(), plain.parameters()):
    torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-6, atol=1e-9)

# Buffers are those of rank 0.
normed = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)).double()
parallel = DDP(copy.deepcopy(normed).to("xla"))
for step in range(2):
    parallel(batch(step, rank)[0].to("xla")).sum().backward()
parallel(batch(3, rank)[0].to("xla"))
plain = copy.deepcopy(normed)
for step in range(2):
    plain(batch(step, 0)[0])
plain(batch(3, 0)[0])
mean = parallel.module[1].running_mean.cpu()  # a read that all ranks make
if rank == 0:
    torch.testing.assert_close(mean, plain[1].running_mean)
"""

OTHERS = """
from torch.distributed.optim import ZeroRedundancyOptimizer

zero = lambda p: ZeroRedundancyOptimizer(p, optimizer_class=torch.optim.Adam, lr=0.05)
same("ZeroRedundancyOptimizer", trained(DDP(model().to("xla")), 3, zero),
     expected(model(), 3, lambda p: torch.optim.Adam(p, lr=0.05)))

# PostLocalSGD: from step 2 on each rank by itself, and all take the mean after steps 2 and 4.
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer

parallel = DDP(model().to("xla"))
alone = [dist.new_group([r]) for r in range(n)][rank]
parallel.register_comm_hook(post_local.PostLocalSGDState(None, alone, start_localSGD_iter=2),
                            post_local.post_localSGD_hook)
averaged = lambda p: PostLocalSGDOptimizer(torch.optim.SGD(p, lr=0.1),
                                           PeriodicModelAverager(period=2, warmup_steps=2))
plain = [model() for _ in range(n)]
optimizers = [torch.optim.SGD(p.parameters(), lr=0.1) for p in plain]
for step in range(6):
    for r in range(n):
        x, y = batch(step, r)
        optimizers[r].zero_grad()
        (plain[r](x) - y).square().mean().backward()
    for shared in zip(*(p.parameters() for p in plain)):
        mean = torch.stack([p.grad for p in shared]).mean(0)
        for p in shared if step < 2 else ():
            p.grad = mean
    for optimizer in optimizers:
        optimizer.step()
    for shared in zip(*(p.parameters() for p in plain)) if step in (2, 4) else ():
        mean = torch.stack([p.detach() for p in shared]).mean(0)
        for p in shared:
            p.data.copy_(mean)
same("PostLocalSGD", trained(parallel, 6, averaged), plain[rank])


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).double()


def images(of):
    draw = torch.Generator().manual_seed(of)
    return torch.randn(2 + of % 2, 2, 6, 6, generator=draw, dtype=torch.float64)


synced = nn.SyncBatchNorm.convert_sync_batchnorm(normed()).to("xla")
plain = normed()
whole = torch.cat([images(r) for r in range(n)])
for _ in range(2):
    of_whole = plain(whole)
    of_part = synced(images(rank).to("xla"))
begin = sum(len(images(r)) for r in range(rank))
part = slice(begin, begin + len(images(rank)))
torch.testing.assert_close(of_part.detach().cpu(), of_whole[part].detach())
torch.testing.assert_close(synced[1].running_var.cpu(), plain[1].running_var)
torch.testing.assert_close(synced[1].running_mean.cpu(), plain[1].running_mean)
of_whole.square().sum().backward()
of_part.square().sum().backward()
for a, b in zip(synced.parameters(), plain.parameters()):
    dist.all_reduce(a.grad)
    torch.testing.assert_close(a.grad.cpu(), b.grad)
synced.eval()
torch.testing.assert_close(synced(images(0).to("xla")).cpu(), plain.eval()(images(0)))

# The toy of the documents.
class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net1, self.relu, self.net2 = nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


import torch_xla.core.xla_model as xm

device = xm.xla_device()
ddp_model = DDP(ToyModel().to(device), gradient_as_bucket_view=True)
loss_fn, optimizer = nn.MSELoss(), torch.optim.SGD(ddp_model.parameters(), lr=0.001)
optimizer.zero_grad()
outputs = ddp_model(torch.randn(20, 10).to(device))
loss_fn(outputs, torch.randn(20, 5).to(device)).backward()
optimizer.step()
xm.mark_step()
assert all(torch.isfinite(p).all() for p in ddp_model.parameters())
"""

END = """
dist.barrier()
dist.destroy_process_group()
"""


def test_ddp_is_one_process_with_averaged_gradients(jobs):
    jobs.by_hand(BEGIN + DDP + END, ranks=2, timeout=300)


def test_what_else_trains_in_parallel(jobs):
    jobs.by_hand(BEGIN + OTHERS + END, ranks=2, timeout=300)


NATIVE = """
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.embed = nn.Embedding(5, 6)
        self.norm = nn.LayerNorm(6)
        self.out = nn.Linear(4 * 4 * 4, 6)

    def forward(self, image, kind):
        x = torch.relu(self.convolution(image)).flatten(1)
        return self.norm(self.out(x) + self.embed(kind))


def made():
    torch.manual_seed(5)
    return Net().double()


def batches(rank):
    draw = torch.Generator().manual_seed(rank)
    for _ in range(4):
        yield (torch.randn(3, 1, 6, 6, generator=draw, dtype=torch.float64),
               torch.randint(0, 5, (3,), generator=draw))


def loss_of(model, image, kind):
    return model(image, kind).square().mean() + model(image, kind).exp().mean()


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def of_one_process(count):
    model = made()
    optimizer = optimizer_of(model)
    for parts in zip(*(batches(rank) for rank in range(count))):
        optimizer.zero_grad()
        for part in parts:
            (loss_of(model, *part) / count).backward()
        optimizer.step()
    return list(model.parameters())


def native(rank):
    model = made().to(xm.xla_device())
    if rank:  # all take those of rank 0
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1)
    xm.broadcast_master_param(model)
    optimizer = optimizer_of(model)
    for image, kind in pl.MpDeviceLoader(list(batches(rank)), xm.xla_device()):
        optimizer.zero_grad()
        loss_of(model, image, kind).backward()
        xm.optimizer_step(optimizer)
    return list(model.parameters())


def ddp(rank):
    torch.distributed.init_process_group("xla", init_method="xla://")
    model = DDP(made().to(xm.xla_device()), gradient_as_bucket_view=True)
    optimizer = optimizer_of(model)
    for image, kind in pl.MpDeviceLoader(list(batches(rank)), xm.xla_device()):
        optimizer.zero_grad()
        loss_of(model, image, kind).backward()
        optimizer.step()
    return list(model.parameters())


def run(index):
    rank, count = xr.global_ordinal(), xr.world_size()
    assert index == rank and count == 2
    want = of_one_process(count)
    for train in (native, ddp):
        for p, q in zip(train(rank), want, strict=True):
            whole = xm.all_gather(p.detach()[None]).cpu()
            assert (whole == whole[:1]).all()  # to the bit the same on all ranks
            torch.testing.assert_close(whole[0], q.detach(), rtol=1e-9, atol=1e-10)
    print("trained", flush=True)


if __name__ == "__main__":
    xmp.spawn(run)
"""


def test_native_training_is_that_of_ddp_and_of_one_process(jobs):
    assert jobs.spawn(NATIVE, timeout=300).stdout.count("trained") == 2
