"""Exchanges among the processes of a job, and how they keep their order.

Units: executor/compile/launched_exchanges.
"""

from __future__ import annotations

PRELUDE = """
import torch
import torch_xla
from torch_xla._src.job import groups, place

rank, count = place.rank(), place.world_size()
groups.ensure()
ops = torch.ops.torch_xla
ALL = ([], count, True)


def of_all(make):
    return [make(r) for r in range(count)]


def same(got, want):
    torch.testing.assert_close(got.detach().cpu(), want, rtol=0, atol=0)
"""


def test_reductions_of_all_dtypes(jobs):
    """Against the same reduction of all ranks' values on the CPU."""
    code = """
    import functools

    REDUCTIONS = {
        "add": torch.add, "multiply": torch.mul, "minimum": torch.minimum, "maximum": torch.maximum,
        "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor,
    }
    INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
    FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
    pairs = []
    for name, reduction in REDUCTIONS.items():
        for dtype in [torch.bool, *INTEGERS, *FLOATS, torch.complex64]:
            if name in ("and", "or", "xor") and dtype in (*FLOATS, torch.complex64):
                continue
            if dtype == torch.complex64 and name != "add":
                continue

            def make(r):
                first = r - int(dtype != torch.uint8)
                return (torch.arange(12).reshape(4, 3) * 7 % 5 + first).to(dtype)

            wider = torch.uint8 if dtype == torch.bool else dtype
            want = functools.reduce(reduction, [v.to(wider) for v in of_all(make)])
            want = want.bool() if dtype == torch.bool else want
            mine = make(rank).to("xla")
            pairs.append((ops.all_reduce(mine, name, 1.0, *ALL), want))
            part = ops.reduce_scatter(mine, name, 1.0, 0, *ALL)
            pairs.append((part, want.chunk(count)[rank]))
    assert len(pairs) > 90, len(pairs)
    torch_xla.sync()  # all in one program
    for got, want in pairs:
        same(got, want)
    mixed = ops.exchange_all_reduce(
        [torch.ones(3, device="xla"), torch.ones(2, 2, dtype=torch.int32, device="xla"),
         torch.zeros(0, device="xla")], "add", 0.5, [], count)
    same(mixed[0], torch.full((3,), count / 2))
    same(mixed[1], torch.full((2, 2), count // 2, dtype=torch.int32))
    assert mixed[2].shape == (0,)
    """
    jobs.by_hand(PRELUDE + _plain(code))


def test_values_move_between_four_ranks(jobs):
    code = """
    def make(r, shape=(2, 4)):
        return torch.arange(8.0).reshape(shape) + 100 * r

    mine = make(rank).to("xla")
    same(ops.all_gather(mine, 1, *ALL), torch.cat(of_all(make), 1))
    gathered = ops.exchange_all_gather([mine, (mine > 102), mine.double()], 0, [], count)
    for got, kind in zip(gathered, (torch.Tensor.float, lambda t: t > 102, torch.Tensor.double)):
        same(got, torch.cat([kind(t) for t in of_all(make)]))
    same(ops.all_to_all(mine, 1, 0, *ALL), torch.cat([t[:, rank:rank + 1] for t in of_all(make)]))
    for root in range(count):
        got = ops.exchange_broadcast([mine, mine.long()], root, [], count)
        same(got[0], make(root))
        same(got[1], make(root).long())
    ring = [member for r in range(count) for member in (r, (r + 1) % count)]
    same(ops.collective_permute(mine, ring, True), make((rank - 1) % count))

    # groups
    pairs = [[0, 2], [3, 1]]
    own = next(pair for pair in pairs if rank in pair)
    groups.ensure(own)
    members = [member for pair in pairs for member in pair]
    same(ops.all_gather(mine, 0, members, 2, True), torch.cat([make(r) for r in own]))
    same(ops.all_reduce(mine, "add", 1.0, members, 2, True), sum(make(r) for r in own))
    got = ops.exchange_broadcast([mine], 1, members, 2)[0]
    same(got, make(own[1]))
    """
    jobs.by_hand(PRELUDE + _plain(code), ranks=4)


def test_each_exchange_happens_once_and_in_order(jobs):
    """However steps are cut by reads, barriers, other threads' compiles and graphs of dynamo."""
    code = """
    from torch_xla import _XLAC

    x = torch.full((3,), float(rank + 1), device="xla")
    total, want = x.clone(), torch.full((3,), float(rank + 1))
    compiled = torch.compile(
        lambda t: ops.all_reduce(t, "add", 1 / count, *ALL) * 2, backend="openxla")
    for step in range(8):
        total = ops.all_reduce(total + rank, "add", 1 / count, *ALL)
        want = torch.stack([(want if step else torch.full((3,), r + 1.0)) + r
                            for r in range(count)]).mean(0)
        if step % 4 == 0:
            same(total, want)  # a read, whose run has the exchanges before it
        elif step % 4 == 1:
            torch_xla.sync()
        elif step % 4 == 2:
            total = compiled(total)
            want = want * 2
        unused = ops.all_reduce(total, "maximum", 1.0, *ALL)
        del unused  # the others wait for it
    same(total, want)
    if rank == 0:  # needs no exchange, so nobody has to come along
        same(x + 1, torch.full((3,), 2.0))
    torch_xla.sync()
    """
    jobs.by_hand(PRELUDE + _plain(code))


def test_an_exchange_whose_values_two_threads_read(jobs):
    """Each has read a value when the other one launches the call that gives both."""
    code = """
    import threading

    for step in range(12):
        x = torch.full((step + 1,), rank + 1.0, device="xla")
        y, z = ops.exchange_all_reduce([x, x * 2], "add", 1.0, [], count)
        found = {}
        threads = [
            threading.Thread(target=lambda: found.update(y=y.tolist())),
            threading.Thread(target=lambda: found.update(z=(z + 1).tolist())),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        total = count * (count + 1) / 2
        assert found == {"y": [total] * (step + 1), "z": [2 * total + 1] * (step + 1)}, found
    """
    jobs.by_hand(PRELUDE + _plain(code), env={"XLA_PERSISTENT_CACHE_PATH": ""})


def test_a_read_beside_a_thread_that_launches_what_waits(jobs):
    """What it reads has several results, and its program comes after that of the other thread."""
    code = """
    import threading
    from torch_xla import _XLAC

    torch.manual_seed(0)
    for i in range(6):
        x = torch.randn(6, 5 + i)
        sums = ops.exchange_all_reduce([x.to("xla")], "add", 1.0, [], count)[0]
        largest, place_of = sums.max(dim=1)
        slow = torch.eye(7 + i, device="xla")
        for k in range(6):
            slow = torch.linalg.qr(slow @ slow + k)[1]
        first = largest.view(2, 3).t()
        other = threading.Thread(target=_XLAC._xla_launch_exchanges)
        other.start()
        got = _XLAC._xla_get_cpu_tensors([slow, largest, place_of, first])
        other.join()
        want = (x * count).max(dim=1)
        same(got[1], want.values)
        same(got[2], want.indices)
        same(got[3], want.values.view(2, 3).t())
    print("all are right")
    """
    env = {"XLA_PERSISTENT_CACHE_PATH": ""}
    for done in jobs.by_hand(PRELUDE + _plain(code), env=env, timeout=300):
        assert "all are right" in done.stdout


def test_gradients_and_a_training_step(jobs):
    code = """
    import torch_xla.distributed.spmd.exchanges  # registers gradients

    w = torch.full((3,), float(rank + 1), device="xla", requires_grad=True)
    (ops.all_reduce(w, "add", 1.0, *ALL) * (rank + 1)).sum().backward()
    same(w.grad, torch.full((3,), float(sum(range(1, count + 1)))))

    torch.manual_seed(0)
    reference = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).double()
    import copy
    model = copy.deepcopy(reference).to("xla")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, reference)]
    data = torch.Generator().manual_seed(1)
    for step in range(5):
        x = torch.randn(count, 6, 8, generator=data, dtype=torch.double)
        for m, optimizer, given in zip((model, reference), optimizers,
                                       (x[rank].to("xla"), x.reshape(-1, 8))):
            optimizer.zero_grad()
            m(given).pow(2).mean().backward()
            if m is model:
                grads = [p.grad for p in m.parameters()]
                for grad, new in zip(
                        grads, ops.exchange_all_reduce(grads, "add", 1 / count, [], count)):
                    grad.copy_(new)
            optimizer.step()
        torch_xla.sync()
    for a, b in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-9, atol=1e-9)
    """
    jobs.by_hand(PRELUDE + _plain(code))


def test_a_body_of_a_loop_cannot_exchange(jobs):
    code = """
    from torch_xla.experimental.scan import scan

    ones = torch.ones(3, 2, device="xla")
    try:
        scan(lambda c, x: (ops.all_reduce(c, "add", 1.0, *ALL), x), ones[0], ones)
    except NotImplementedError as error:
        assert "Call the collective outside" in str(error), error
    else:
        raise AssertionError("it was recorded")
    for groups_of in ([0, 0], [0, 5]):
        try:
            ops.all_reduce(ones, "add", 1.0, groups_of, 2, True)
        except ValueError as error:
            assert "got replica 5" in str(error) or "in one group" in str(error), error
        else:
            raise AssertionError("a wrong group was taken")
    """
    jobs.by_hand(PRELUDE + _plain(code))


def _plain(code: str) -> str:
    import textwrap

    return textwrap.dedent(code)


def test_what_needs_no_exchange_goes_on(jobs):
    """While rank 0 waits for rank 1, which is late, its program computes."""
    code = """
        import json, os, time
        from pathlib import Path
        import torch, torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.debug.profiler as xp

        rank = xm.get_ordinal()

        def step():
            sent = torch.full((4,), rank + 1.0, device="xla")
            work = torch.ones(1, 8, 64, 64, device="xla")
            weight = torch.full((8, 8, 1, 1), 0.125, device="xla")
            torch_xla.sync(wait=True)
            if rank == 1:
                time.sleep(4)
            reduced = xm.all_reduce("sum", sent)
            for _ in range(20):
                work = torch.nn.functional.conv2d(work, weight)
            torch_xla.sync(wait=True)
            assert reduced.tolist() == [3.0] * 4
            assert (work == 1).all()

        step()
        xm.rendezvous("compiled")
        xp.start_trace("log")
        step()
        xp.stop_trace()
        if rank == 0:
            (path,) = Path("log").rglob("*_rank0.trace.json")
            events = json.loads(path.read_text())["traceEvents"]
            named = lambda name: [e for e in events if e["name"].startswith(name)]
            (exchange,) = named("all_reduce add Float[4]")
            end = exchange["ts"] + exchange["dur"]
            before = [k for k in named("aten::") if k["ts"] < end - 500_000]
            assert exchange["dur"] > 800_000, exchange
            assert len(before) == 20, (len(before), {e["name"] for e in named("aten::")})
    """
    jobs.by_hand(code, env={"PJRT_NPROC": "1"})


def test_tensors_of_all_sizes_in_one_exchange(jobs):
    """Small ones go together, up to 32 MiB; large ones, of 4 MiB and more, by themselves."""
    code = (
        PRELUDE
        + """
import torch_xla.core.xla_model as xm

sizes = [1_000_000] * 12 + [2_000_000, 5, 0, 1_000_000]
dtypes = [torch.float32] * 13 + [torch.int64, torch.float32, torch.bfloat16]


def make(r):
    kinds = enumerate(zip(sizes, dtypes))
    return [(torch.arange(n) % 7 + i + 100 * r).to(t) for i, (n, t) in kinds]


for name, reduce in (("sum", torch.add), ("max", torch.maximum)):
    mine = [t.to("xla") for t in make(rank)]
    xm.all_reduce(name, mine, scale=0.5)
    torch_xla.sync()
    for got, a, b in zip(mine, make(0), make(1)):
        want = reduce(a, b)
        same(got, want * 0.5 if want.is_floating_point() else (want * 0.5).to(want.dtype))
"""
    )
    jobs.torchrun(code)
