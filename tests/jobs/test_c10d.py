"""torch.distributed's calls on tensors of xla give what they give on tensors of the CPU, which Gloo
serves in the same group.

Units: _src/processes/pytorch_functions.
"""

from __future__ import annotations

import pytest

BEGIN = """
import datetime
import itertools

import torch
import torch.distributed as dist

import torch_xla

dist.init_process_group("xla", init_method="METHOD")
rank, n = dist.get_rank(), dist.get_world_size()
FLOATS = torch.float32, torch.float64, torch.bfloat16, torch.float16
INTS = torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8


def made(shape, dtype=torch.float32, of=None, seed=0):
    draw = torch.Generator().manual_seed(1000 * (rank if of is None else of) + seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=draw).bool()
    x = torch.randint(1, 6, shape, generator=draw).to(dtype)
    return x * (1 - 0.5j) if dtype.is_complex else x


def same(name, xla, cpu):
    xla, cpu = list(xla), list(cpu)
    assert len(xla) == len(cpu), name
    for a, b in zip(xla, cpu):
        assert a.device.type == "xla", (name, a.device)
        torch.testing.assert_close(a.cpu(), b, msg=lambda m: f"{name} on rank {rank}: {m}")


def check(name, call, **kwargs):
    same(name, call("xla", **kwargs), call("cpu", **kwargs))


def refused(call, *words):
    try:
        call()
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("expected an error")
"""

CALLS = """
Op = dist.ReduceOp


def all_reduce(device, dtype, op):
    x = made((3, 4), dtype).to(device)
    whole = made((4, 6)).to(device)
    part = whole[1:3, ::2].to(dtype) if dtype != torch.float32 else whole[1:3, ::2]
    if device == "xla" or part.is_contiguous():
        dist.all_reduce(part, op=op)
    else:
        copy = part.contiguous()
        dist.all_reduce(copy, op=op)
        part.copy_(copy)
    dist.all_reduce(x, op=op)
    return x, part, whole


for dtype in (*FLOATS, torch.int64, torch.uint8) if n == 2 else (torch.float32,):
    for op in (Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX):
        check(f"all_reduce {dtype} {op}", all_reduce, dtype=dtype, op=op)
for op in (Op.BAND, Op.BOR, Op.BXOR):
    check(f"all_reduce {op}", all_reduce, dtype=torch.int32, op=op)

# What Gloo lacks, against what the ranks are known to have.
def of_all(shape, dtype):
    return torch.stack([made(shape, dtype, of=r) for r in range(n)])


for dtype in FLOATS[:2]:
    x = made((3, 4), dtype).to("xla")
    dist.all_reduce(x, op=Op.AVG)
    same("AVG", [x], [of_all((3, 4), dtype).mean(0)])
x = made((3, 4), torch.int64).to("xla")
dist.all_reduce(x, op=Op.AVG)
same("AVG of integers", [x], [of_all((3, 4), torch.int64).sum(0).div(n, rounding_mode="trunc")])
for factor in (0.5, torch.tensor([0.25])):
    x = made((3, 4)).to("xla")
    dist.all_reduce(x, op=dist._make_nccl_premul_sum(factor))
    same("PREMUL_SUM", [x], [of_all((3, 4), torch.float32).sum(0) * factor])
for op, expected in ((Op.SUM, "any"), (Op.MAX, "any"), (Op.BOR, "any"), (Op.MIN, "all"),
                     (Op.PRODUCT, "all"), (Op.BAND, "all")):
    x = made((9,), torch.bool).to("xla")
    dist.all_reduce(x, op=op)
    same(f"bool {op}", [x], [getattr(of_all((9,), torch.bool), expected)(0)])
for dtype in (torch.complex64, torch.int16):
    x = made((3, 4), dtype).to("xla")
    dist.all_reduce(x)
    same(f"sum {dtype}", [x], [of_all((3, 4), dtype).sum(0).to(dtype)])
refused(lambda: dist.all_reduce(torch.ones(3, device="xla"), op=Op.BAND), "integers or booleans")


def coalesced(device):
    xs = [made((2, 3), seed=i).to(device) for i in range(3)]
    dist.all_reduce_coalesced(xs)
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    return xs


check("all_reduce_coalesced", coalesced)


def broadcast(device, root):
    xs = [made((3, 4)).to(device), made((), torch.int64).to(device)]
    for x in xs:
        dist.broadcast(x, src=root)
    if device == "xla":
        b = made((5,), torch.bool).to(device)
        dist.broadcast(b, src=root)
        assert torch.equal(b.cpu(), made((5,), torch.bool, of=root))
    return xs


def reduce(device, root):
    x = made((3, 4)).to(device)
    dist.reduce(x, dst=root)
    return [x] if rank == root else [x * 0]


def gather(device, root):
    x = made((3, 4)).to(device)
    to = [torch.zeros(3, 4, device=device) for _ in range(n)] if rank == root else None
    dist.gather(x, to, dst=root)
    return to or []


def scatter(device, root):
    xs = [made((3, 4), seed=i).to(device) for i in range(n)] if rank == root else None
    to = torch.zeros(3, 4, device=device)
    dist.scatter(to, xs, src=root)
    return [to]


for root in (0, n - 1):
    for call in (broadcast, reduce, gather, scatter):
        check(f"{call.__name__} {root}", call, root=root)


def all_gather(device, dtype, shape):
    x = made(shape, dtype).to(device)
    to = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(n)]
    dist.all_gather(to, x)
    return to


def all_gather_into_tensor(device, joined, shape):
    x = made(shape).to(device)
    if joined:
        to = torch.zeros((n * shape[0], *shape[1:]), device=device)
    else:
        to = torch.zeros((n, *shape), device=device)
    dist.all_gather_into_tensor(to, x)
    return [to]


def reduce_scatter(device, op):
    xs = [made((3, 2), seed=i).to(device) for i in range(n)]
    to = torch.zeros(3, 2, device=device)
    dist.reduce_scatter(to, xs, op=op)
    return [to]


def reduce_scatter_tensor(device, joined, op):
    x = made((n * 3, 2) if joined else (n, 3, 2)).to(device)
    to = torch.zeros(3, 2, device=device)
    dist.reduce_scatter_tensor(to, x, op=op)
    return [to]


for dtype, shape in itertools.product((torch.float32, torch.int64, torch.bfloat16), ((2, 3), ())):
    check(f"all_gather {dtype} {shape}", all_gather, dtype=dtype, shape=shape)
b = [torch.zeros(4, dtype=torch.bool, device="xla") for _ in range(n)]
dist.all_gather(b, made((4,), torch.bool).to("xla"))
same("all_gather bool", b, [made((4,), torch.bool, of=r) for r in range(n)])
uneven = [torch.zeros(r + 1, 2, device="xla") for r in range(n)]
dist.all_gather(uneven, made((rank + 1, 2)).to("xla"))
same("uneven all_gather", uneven, [made((r + 1, 2), of=r) for r in range(n)])
check("all_gather_into_tensor", all_gather_into_tensor, joined=True, shape=(2, 3))
to = all_gather_into_tensor("xla", False, (2, 3))
same("all_gather_into_tensor", to, [of_all((2, 3), torch.float32)])
for op in (Op.SUM, Op.MAX):
    check(f"reduce_scatter {op}", reduce_scatter, op=op)
    check(f"reduce_scatter_tensor {op}", reduce_scatter_tensor, joined=True, op=op)
    to = reduce_scatter_tensor("xla", False, op)
    whole = of_all((n, 3, 2), torch.float32)[:, rank]
    same(f"reduce_scatter_tensor {op}", to, [whole.sum(0) if op == Op.SUM else whole.amax(0)])
x = torch.zeros(3, device="xla")
dist.reduce_scatter_tensor(x, made((n * 3,)).to("xla"), op=Op.AVG)
same("reduce_scatter AVG", [x], [of_all((n * 3,), torch.float32).mean(0)[3 * rank : 3 * rank + 3]])
to = torch.zeros(rank + 1, device="xla")
dist.reduce_scatter(to, [made((r + 1,), seed=r).to("xla") for r in range(n)])
same("uneven reduce_scatter", [to], [sum(made((rank + 1,), of=r, seed=rank) for r in range(n))])


def tensors_coalesced(device):
    xs = [made((4, 2), seed=i).to(device) for i in range(2)]
    to = [torch.zeros(4 * n, 2, device=device) for _ in xs]
    with dist._coalescing_manager():
        for a, b in zip(to, xs):
            dist.all_gather_into_tensor(a, b)
    back = [torch.zeros(4, 2, device=device) for _ in xs]
    with dist._coalescing_manager():
        for a, b in zip(back, to):
            dist.reduce_scatter_tensor(a, b)
    return to + back


check("coalesced tensors", tensors_coalesced)


def all_to_all_single(device, shape):
    x = made(shape).to(device)
    to = torch.zeros(shape, device=device)
    dist.all_to_all_single(to, x)
    return [to]


def uneven_all_to_all(device):
    sends = [(rank + r) % 3 for r in range(n)]
    gets = [(r + rank) % 3 for r in range(n)]
    x = made((sum(sends), 2)).to(device)
    to = torch.zeros(sum(gets), 2, device=device)
    dist.all_to_all_single(to, x, output_split_sizes=gets, input_split_sizes=sends)
    return [to]


check("all_to_all_single", all_to_all_single, shape=(2 * n, 3))
check("all_to_all_single", all_to_all_single, shape=(n,))
check("uneven all_to_all_single", uneven_all_to_all)
to = [torch.zeros(2 + (r + rank) % 2, 2, device="xla") for r in range(n)]
dist.all_to_all(to, [made((2 + (r + rank) % 2, 2), seed=r).to("xla") for r in range(n)])
same("all_to_all", to, [made((2 + (r + rank) % 2, 2), of=r, seed=rank) for r in range(n)])
to = list(torch.zeros(n, 2, device="xla").unbind())
dist.all_to_all(to, list(made((n, 2)).to("xla").unbind()))
same("all_to_all", to, [made((n, 2), of=r)[rank] for r in range(n)])

after, before = (rank + 1) % n, (rank - 1) % n


def ring(device):
    got, second = torch.zeros(3, device=device), torch.zeros(2, 2, device=device)
    if rank == 0:
        dist.send(made((3,)).to(device), after)
        dist.recv(got, before)
    else:
        dist.recv(got, before)
        dist.send(made((3,)).to(device), after)
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, made((2, 2), seed=1).to(device), after),
        dist.P2POp(dist.irecv, second, before),
    ])
    for work in works:
        work.wait()
    # Each gets before it sends.
    third, fourth = torch.zeros(2, device=device), torch.zeros(2, 3, device=device)
    works = [dist.irecv(third, before), dist.isend(made((2,), seed=2).to(device), after)]
    works += dist.batch_isend_irecv([
        dist.P2POp(dist.irecv, fourth, before, tag=1),
        dist.P2POp(dist.isend, made((2, 3), seed=3).to(device), after, tag=1),
    ])
    for work in works:
        work.wait()
    return got, second, third, fourth


check("send and recv", ring)
got = [torch.zeros(2, device="xla") for _ in range(2)]
if rank == 0:
    for tag in (1, 2):
        dist.send(torch.full((2,), float(tag), device="xla"), 1, tag=tag)
elif rank == 1:
    dist.recv(got[1], 0, tag=2)
    dist.recv(got[0], 0, tag=1)
    assert [g.tolist() for g in got] == [[1, 1], [2, 2]]
refused(lambda: dist.recv(torch.zeros(1, device="xla")), "expected a source")

# Works are complete once they are recorded.
x = made((3,)).to("xla")
work = dist.all_reduce(x, async_op=True)
assert work.is_completed() and work.wait()
assert work.get_future().done() and torch.equal(work.get_future().value()[0].cpu(), x.cpu())
work.get_future().then(lambda f: f.value()[0] + 1).wait()
x = torch.ones(3, device="xla", requires_grad=True)
with torch.no_grad():
    dist.broadcast(x, 0)
assert x._version == 0, x._version
dist.destroy_process_group()
"""

OTHERS = """
def case(f):
    f()
    return f


@case
def objects():
    got = [None] * n
    dist.all_gather_object(got, {"rank": rank, "x": list(range(rank))})
    assert got == [{"rank": r, "x": list(range(r))} for r in range(n)]
    said = ["from", 0] if rank == 0 else [None, None]
    dist.broadcast_object_list(said, src=0)
    assert said == ["from", 0]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(n)] if rank == 0 else None, src=0)
    assert mine == [f"for {rank}"]
    all_of = [None] * n if rank == n - 1 else None
    dist.gather_object(rank * 2, all_of, dst=n - 1)
    assert rank != n - 1 or all_of == [2 * r for r in range(n)]


@case
def barriers():
    x = torch.ones(3, device="xla")
    dist.all_reduce(x)
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.group.WORLD.barrier().wait()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=20))
    assert x.tolist() == [n] * 3


@case
def groups():
    odd = dist.new_group(list(range(1, n, 2)))
    even = dist.new_group(list(range(0, n, 2)), timeout=datetime.timedelta(seconds=30))
    mine = odd if rank % 2 else even
    x = torch.full((2,), float(rank), device="xla")
    dist.all_reduce(x, group=mine)
    assert x.tolist() == [float(sum(range(rank % 2, n, 2)))] * 2
    turned = dist.new_group(list(reversed(range(n))))
    x = torch.full((1,), float(rank), device="xla")
    to = torch.zeros(n, device="xla")
    dist.all_gather_into_tensor(to, x, group=turned)
    # Ranks of a group are sorted unless it says otherwise.
    assert to.tolist() == [float(r) for r in dist.get_process_group_ranks(turned)]
    again = dist.new_group(list(range(n)))
    dist.all_reduce(x, group=again)
    assert x.item() == sum(range(n))
    names = dist.split_group(split_ranks=[list(range(n))])
    dist.all_reduce(x, group=names)
    assert x.item() == n * sum(range(n))
    gloo = dist.new_group(backend="gloo")
    c = torch.ones(1)
    dist.all_reduce(c, group=gloo)
    assert c.item() == n
    for g in (mine, turned, again, gloo):
        dist.destroy_process_group(g)


@case
def functional():
    import torch.distributed._functional_collectives as funcol

    x = made((n * 2, 3)).to("xla")
    total = funcol.all_reduce(x, "sum", dist.group.WORLD)
    same("funcol", [total], [sum(made((n * 2, 3), of=r) for r in range(n))])
    whole = funcol.all_gather_single(x, 0, dist.group.WORLD)
    same("funcol", [whole], [torch.cat([made((n * 2, 3), of=r) for r in range(n)])])
    part = funcol.reduce_scatter_single(x, "avg", 0, dist.group.WORLD)
    mean = sum(made((n * 2, 3), of=r) for r in range(n)) / n
    same("funcol", [part], [mean[2 * rank : 2 * rank + 2]])
    sent = funcol.all_to_all_single(x, None, None, dist.group.WORLD)
    mine = slice(2 * rank, 2 * rank + 2)
    same("funcol", [sent], [torch.cat([made((n * 2, 3), of=r)[mine] for r in range(n)])])
    came = funcol.broadcast(x, n - 1, dist.group.WORLD)
    same("funcol", [came], [made((n * 2, 3), of=n - 1)])
    y = made((4,)).to("xla").requires_grad_()
    funcol.all_gather_single_autograd(y, 0, dist.group.WORLD).sum().backward()
    assert y.grad.tolist() == [float(n)] * 4


@case
def errors():
    x = torch.ones(3, device="xla")
    refused(lambda: dist.all_gather([x] * (n + 1), x))
    refused(lambda: dist.reduce_scatter_tensor(x, torch.ones(3 * n + 1, device="xla")), "elements")
    refused(lambda: dist.all_to_all_single(x, x, [3] * n, [3] * n), "sizes")
    refused(lambda: torch.distributed.all_gather_into_tensor(x, torch.ones(3)), "on the CPU")


dist.destroy_process_group()
assert not dist.is_initialized()
"""


ENDING = """
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("xla", rank=rank, world_size=size)
x = torch.full((4,), 1.0 + dist.get_rank(), device="xla")
dist.all_reduce(x)
dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)
if dist.get_rank() == 0:
    assert x.tolist() == [3.0] * 4
# The other has launched nothing: the end of the process does.
"""


COMPILED = """
import torch.distributed._functional_collectives as funcol


@torch.compile(backend="openxla")
def functional(x):
    y = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
    z = funcol.all_gather_single(y + 1, 0, dist.group.WORLD)
    return z, funcol.reduce_scatter_single(z, "sum", 0, dist.group.WORLD)


@torch.compile(backend="openxla")
def in_place(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1


for i in range(2):
    x = torch.full((2,), 1.0 + rank + i, device="xla")
    expected = sum(2 * (1.0 + r + i) for r in range(n)) + 1
    z, part = functional(x)
    assert z.tolist() == [expected] * (2 * n) and part.tolist() == [expected * n] * 2
    assert in_place(x).tolist() == [expected] * 2

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import torch_xla.debug.metrics as met

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).to("xla")
parallel = torch.compile(DDP(model), backend="openxla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
launches, losses = [], []
for step in range(4):
    before = met.metric_data("ExecuteTime")[0]
    optimizer.zero_grad()
    loss = parallel(torch.ones(2, 4, device="xla") * (rank + 1)).square().mean()
    loss.backward()
    optimizer.step()
    torch_xla.sync(wait=True)
    launches.append(met.metric_data("ExecuteTime")[0] - before)
    losses.append(loss.item())
assert launches[-1] == 1, launches
assert losses == sorted(losses, reverse=True), losses
dist.destroy_process_group()
"""

SPAWNED = """
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.runtime as xr


def train(index):
    dist.init_process_group("xla", init_method="pjrt://")
    assert (dist.get_rank(), dist.get_world_size()) == (xr.global_ordinal(), xr.world_size())
    x = torch.full((2,), 1.0 + index, device=torch_xla.device())
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 2
    dist.destroy_process_group()


if __name__ == "__main__":
    torch_xla.launch(train)
"""


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_calls_are_as_those_of_gloo(jobs, ranks):
    jobs.by_hand(BEGIN.replace("METHOD", "env://") + CALLS, ranks=ranks, timeout=300)


def test_objects_barriers_and_groups(jobs):
    jobs.torchrun(BEGIN.replace("METHOD", "xla://") + OTHERS, ranks=4, timeout=300)


def test_calls_in_graphs_of_torch_compile(jobs):
    jobs.by_hand(BEGIN.replace("METHOD", "env://") + COMPILED, timeout=300)


def test_spawned_processes(jobs):
    jobs.spawn(SPAWNED)


LATE = """
import time
import torch
import torch.distributed as dist
import torch_xla

dist.init_process_group("xla", init_method="xla://")
rank = dist.get_rank()
x = torch.full((3,), rank + 1.0, device="xla")
if rank == 0:
    time.sleep(2.5)
    dist.send(x, 1)
    for i in range(70):  # more than may be on their way
        dist.send(x + i, 1)
    torch_xla.sync(wait=True)
else:
    dist.recv(x, 0)
    assert x.tolist() == [1.0] * 3
    time.sleep(2.5)
    for i in range(70):
        dist.recv(x, 0)
        assert x.tolist() == [1.0 + i] * 3
dist.all_reduce(x)
print("all came", x.tolist())
"""


def test_messages_of_a_rank_that_is_late(jobs):
    """Gloo closes connections where a wait for a message runs out of time."""
    for done in jobs.by_hand(LATE, timeout=200):
        assert "all came" in done.stdout


def test_a_message_that_overtakes_a_permutation(jobs):
    """A send is launched at once, where exchanges recorded before it still wait."""
    code = """
        import torch
        import torch.distributed as dist
        import torch_xla
        import torch_xla.core.xla_model as xm

        dist.init_process_group("xla", init_method="xla://")
        rank = dist.get_rank()
        x = torch.full((4,), rank + 1.0, device="xla")
        for step in range(3):
            permuted = xm.collective_permute(x + step, [[0, 1], [1, 0]])
            if rank == 0:
                dist.send(x * 10, 1)
            else:
                message = torch.zeros_like(x)
                dist.recv(message, 0)
                assert message.tolist() == [10.0] * 4, message
            assert permuted.tolist() == [2.0 - rank + step] * 4, permuted
        print("both came")
    """
    for done in jobs.by_hand(code):
        assert "both came" in done.stdout


def test_a_process_that_ends_leaves_nobody_waiting(jobs):
    jobs.by_hand("import os, torch, torch.distributed as dist, torch_xla\n" + ENDING)
