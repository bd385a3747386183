"""Random programs of a job, each against all its ranks simulated on the CPU.

python -m tests.jobs.random_programs FIRST_SEED COUNT, in each process of a job.

All ranks draw the same program from its seed. A name stands for one tensor of this rank on xla, and
for one of each rank on the CPU, where exchanges are what they say. Ranks read at times of their
own, go idle, and read in threads. At the end, and at reads, values are compared.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla.core import functions as xf

DTYPES = [torch.float64, torch.float64, torch.float32, torch.int64]
SHAPES = [(4,), (4, 2), (2, 4), (4, 4), (2, 2, 4), ()]
UNARY = ["neg", "abs", "sign", "square", "flatten", "clone", "contiguous"]
FLOAT_UNARY = ["tanh", "sigmoid", "sin"]
INTO_OTHERS = ["t", "0", "1:", "flat", "narrow"]

Ranks = list[torch.Tensor]


class Mismatch(AssertionError):
    """A value that is not the simulated one."""


@functools.cache
def _compiled() -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    import torch.distributed._functional_collectives as funcol

    @torch.compile(backend="openxla")
    def exchange(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
        gathered = funcol.all_gather_tensor(x - 1, 0, dist.group.WORLD)
        result = total + x
        x.add_(1)
        return result, gathered

    return exchange


@functools.cache
def _ways(count: int) -> list[tuple[list[list[int]] | None, Any]]:
    """All ranks, and each way to make pairs, with this rank's group of torch.distributed."""
    ways: list[tuple[list[list[int]] | None, Any]] = [(None, None)] * 2
    if count == 4:
        for pairs in ([[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 3], [1, 2]]):
            made = [dist.new_group(pair) for pair in pairs]
            ways.append((pairs, made[xr.global_ordinal() in pairs[1]]))
    return ways


class Program:
    """A program while it is drawn, run here and simulated."""

    def __init__(self, seed: int, rank: int, count: int):
        self.seed, self.rank, self.count = seed, rank, count
        self.draw = random.Random(seed)
        self.here: dict[str, torch.Tensor] = {}
        self.all: dict[str, Ranks] = {}
        self.lines: list[str] = []
        self.threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []
        self.works: list[Any] = []
        self.ways = _ways(count)

    # Names

    def put(self, here: torch.Tensor, every: Ranks) -> None:
        name = f"t{len(self.lines)}_{len(self.here)}"
        self.here[name], self.all[name] = here, every

    def pick(self, ok: Callable[[torch.Tensor], bool] = lambda t: True) -> str | None:
        names = [name for name, every in self.all.items() if ok(every[0])]
        if not names:
            return None
        return names[-1] if self.draw.random() < 0.4 else self.draw.choice(names)

    def both(self, what: str, f: Callable[..., Any], *names: str) -> None:
        """A new name for what `f` gives of tensors, which exchanges nothing."""
        self.lines.append(f"{what} of {' '.join(names)}")
        here = f(*(self.here[name] for name in names))
        every = [f(*(self.all[name][r] for name in names)) for r in range(self.count)]
        if isinstance(here, (tuple, list)):
            for i, part in enumerate(here):
                self.put(part, [e[i] for e in every])
        elif here is not None:
            self.put(here, every)

    # Steps

    def make(self) -> None:
        shape, dtype = self.draw.choice(SHAPES), self.draw.choice(DTYPES)
        every = []
        for r in range(self.count):
            g = torch.Generator().manual_seed(self.draw.randrange(1 << 30) + r)
            value = torch.randint(-3, 4, shape, generator=g)
            every.append(value.to(dtype) if dtype == torch.int64 else value.to(dtype) / 2)
        self.lines.append(f"make {shape} {dtype}")
        self.put(every[self.rank].to("xla"), every)

    def elementwise(self) -> None:
        name = self.pick()
        if name is None:
            return
        like = self.all[name][0]
        other = self.pick(lambda t: t.dtype == like.dtype and t.shape == like.shape)
        kind = self.draw.randrange(4)
        if kind == 0 and other:
            self.both("add", torch.add, name, other)
        elif kind == 1 and other and like.is_floating_point():
            self.both("mul tanh", lambda a, b: (a * b).tanh(), name, other)
        elif kind == 2 and like.is_floating_point():
            self.both("float unary", getattr(torch, self.draw.choice(FLOAT_UNARY)), name)
        else:
            how = self.draw.choice(UNARY)
            self.both(how, lambda a: getattr(a, how)().clamp(-8, 8), name)

    def several(self) -> None:
        name = self.pick(lambda t: t.dim() > 0 and t.size(-1) > 1)
        if name is None:
            return
        how = self.draw.randrange(4)
        if how == 0:
            self.both("max", lambda a: tuple(a.max(-1)), name)
        elif how == 1:
            self.both("sort", lambda a: a.sort(dim=-1, stable=True).values, name)
        elif how == 2:
            self.both("unbind", lambda a: list(a.unbind(-1))[:2], name)
        else:
            self.both("aminmax", lambda a: tuple(torch.aminmax(a, dim=-1)), name)

    def view(self) -> None:
        name = self.pick(lambda t: t.dim() > 0 and t.numel() > 1)
        if name is None:
            return
        how = self.draw.choice(INTO_OTHERS)
        views: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "t": lambda a: a.transpose(0, -1),
            "0": lambda a: a[0],
            "1:": lambda a: a[a.size(0) // 2 :],
            "flat": lambda a: a.view(-1) if self.all[name][0].is_contiguous() else a[:1],
            "narrow": lambda a: a.narrow(-1, 0, 1),
        }
        self.both(f"view {how}", views[how], name)

    def write(self) -> None:
        name = self.pick()
        if name is None:
            return
        like = self.all[name][0]
        other = self.pick(lambda t: t.dtype == like.dtype and t.shape == like.shape)
        how = self.draw.randrange(4)
        number = self.draw.choice([0, 1, -1, 2])

        def apply(a: torch.Tensor, *b: torch.Tensor) -> None:
            if how == 0:
                a.mul_(number)
            elif how == 1 and b:
                a.copy_(b[0].clone())
            elif how == 2 and b:
                a.add_(b[0].clone()).clamp_(-8, 8)
            else:
                a.fill_(number)

        self.both(f"write {how} {number}", apply, name, *([other] if other else []))

    def grow(self) -> None:
        """Keeps values small, of all names alike."""
        for name, every in list(self.all.items()):
            if every[0].is_floating_point() and any((e.abs() > 1e3).any() for e in every):
                self.forget(name)

    def forget(self, name: str | None = None) -> None:
        name = name or self.pick()
        if name is not None and len(self.here) > 2:
            self.lines.append(f"forget {name}")
            del self.here[name], self.all[name]

    # Exchanges: this rank's result, and all that are expected

    def reduce(self) -> None:
        name = self.pick()
        if name is None:
            return
        how = self.draw.choice(["sum", "max", "min"])
        place = self.draw.randrange(4)
        groups, own_group = self.draw.choice(self.ways)
        self.lines.append(f"all_reduce {how} of {name}, way {place}, among {groups}")
        want = list(self.all[name])
        for group in groups or [list(range(self.count))]:
            whole = torch.stack([self.all[name][r] for r in group])
            reduced = whole.sum(0) if how == "sum" else getattr(whole, f"a{how}")(0)
            for r in group:
                want[r] = reduced.clone()
        if place == 0:
            return self.put(xm.all_reduce(how, self.here[name], groups=groups), want)
        if place == 1:
            xm.all_reduce(how, [self.here[name]], groups=groups)
        elif not self.all[name][0].is_contiguous():
            return
        else:
            op = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}[how]
            work = dist.all_reduce(self.here[name], op=op, group=own_group, async_op=place == 3)
            if work is not None:
                self.works.append(work)
        for t, value in zip(self.all[name], want, strict=True):
            t.copy_(value)

    def wait(self) -> None:
        self.lines.append("wait for what is asynchronous")
        while self.works:
            self.works.pop().wait()

    def several_at_once(self) -> None:
        names = [n for n in (self.pick(lambda t: t.dim() == 1) for _ in range(3)) if n]
        if not names:
            return
        self.lines.append(f"all_reduce of the list {' '.join(names)}")
        copies = [self.here[n].clone() for n in names]
        xm.all_reduce("sum", copies, scale=1.0)
        for n, copy in zip(names, copies, strict=True):
            want = torch.stack(self.all[n]).sum(0)
            self.put(copy, [want.clone() for _ in range(self.count)])

    def gather(self) -> None:
        name = self.pick(lambda t: t.dim() > 0)
        if name is None:
            return
        every = self.all[name]
        if self.draw.random() < 0.5:
            dim = self.draw.randrange(every[0].dim())
            self.lines.append(f"all_gather of {name} along {dim}")
            want = torch.cat(every, dim)
            self.put(xm.all_gather(self.here[name], dim), [want.clone() for _ in every])
        else:
            self.lines.append(f"dist.all_gather of {name}")
            to = [torch.empty_like(self.here[name]) for _ in every]
            dist.all_gather(to, self.here[name].contiguous())
            for r, part in enumerate(to):
                self.put(part, [every[r].clone() for _ in every])

    def scatter(self) -> None:
        name = self.pick(lambda t: t.dim() > 0 and t.size(0) % self.count == 0)
        if name is None:
            return
        every = self.all[name]
        self.lines.append(f"reduce_scatter of {name}")
        parts = torch.stack(every).sum(0).chunk(self.count, 0)
        here = xm.reduce_scatter("sum", self.here[name], 1.0, 0, self.count)
        self.put(here, [part.clone() for part in parts])

    def swap(self) -> None:
        name = self.pick(lambda t: t.dim() > 0 and t.size(0) % self.count == 0)
        if name is None:
            return
        every = self.all[name]
        if self.draw.random() < 0.5:
            self.lines.append(f"all_to_all of {name}")
            here = xm.all_to_all(self.here[name], 0, 0, self.count)
            chunks = [e.chunk(self.count, 0) for e in every]
            want = [torch.cat([c[r] for c in chunks], 0) for r in range(self.count)]
        else:
            self.lines.append(f"collective_permute of {name}")
            ring = [[r, (r + 1) % self.count] for r in range(self.count)]
            here = xm.collective_permute(self.here[name], ring)
            want = [every[r - 1].clone() for r in range(self.count)]
        self.put(here, want)

    def broadcast(self) -> None:
        name = self.pick(lambda t: t.is_contiguous())
        if name is None:
            return
        root = self.draw.randrange(self.count)
        self.lines.append(f"broadcast of {name} from {root}")
        value = self.all[name][root].clone()
        if self.draw.random() < 0.5:
            dist.broadcast(self.here[name], root)
        else:
            xm.collective_broadcast([self.here[name]], root)
        for t in self.all[name]:
            t.copy_(value)

    def send(self) -> None:
        name = self.pick(lambda t: t.is_contiguous())
        if name is None:
            return
        source = self.draw.randrange(self.count)
        target = (source + 1) % self.count
        waits = self.draw.random() < 0.5
        self.lines.append(f"{'send' if waits else 'isend'} {name} from {source} to {target}")
        if self.rank == source:
            work = (dist.send if waits else dist.isend)(self.here[name], target)
        elif self.rank == target:
            work = (dist.recv if waits else dist.irecv)(self.here[name], source)
        if not waits and self.rank in (source, target):
            self.works.append(work)
        self.all[name][target].copy_(self.all[name][source])

    def compiled(self) -> None:
        """A graph of torch.compile in which ranks exchange."""
        if self.draw.random() < 0.7:
            return
        name = self.pick(lambda t: t.dtype == torch.float64 and t.shape == (4, 2))
        if name is None:
            return
        self.lines.append(f"compiled exchange of {name}")
        here = _compiled()(self.here[name])
        every = self.all[name]
        total = torch.stack([e * 2 for e in every]).sum(0)
        want = [(total + e, torch.cat([x - 1 for x in every])) for e in every]
        for e in every:
            e.add_(1)
        for i in range(2):
            self.put(here[i], [w[i] for w in want])

    def backward(self) -> None:
        name = self.pick(lambda t: t.is_floating_point() and t.dim() > 0)
        if name is None:
            return
        self.lines.append(f"backward through all_reduce of {name}")
        leaf = self.here[name].detach().clone().requires_grad_()
        factor = self.rank + 1.0
        (xf.all_reduce("sum", leaf * factor) * leaf).sum().backward()
        every = self.all[name]
        total = torch.stack([e * (r + 1.0) for r, e in enumerate(every)]).sum(0)
        assert leaf.grad is not None  # as in torch_xla 2.9, of this rank's use of the sum alone
        self.put(leaf.grad, [total + e * (r + 1.0) for r, e in enumerate(every)])

    # Reads, barriers and what else ranks do

    def barrier(self) -> None:
        wait = self.draw.random() < 0.3
        self.lines.append(f"sync(wait={wait})")
        torch_xla.sync(wait=wait)

    def compare(self, names: list[str]) -> None:
        values = xm._maybe_convert_to_cpu([self.here[n] for n in names])
        for name, value in zip(names, values, strict=True):
            self.same(name, value, self.all[name][self.rank])

    def same(self, name: str, value: torch.Tensor, want: torch.Tensor) -> None:
        tolerance = 1e-5 if want.dtype == torch.float32 else 1e-11
        if not torch.allclose(value.double(), want.double(), rtol=tolerance, atol=tolerance):
            raise Mismatch(f"{name} on rank {self.rank}: expected {want}, got {value}")

    def read(self) -> None:
        names = [n for n in {self.pick(), self.pick(), self.pick()} if n]
        names.sort()
        who = self.draw.choice([None, None, *range(self.count)])
        self.lines.append(f"read {' '.join(names)} on {'all' if who is None else who}")
        if who in (None, self.rank):
            self.compare(names)

    def number(self) -> None:
        name = self.pick(lambda t: t.dim() == 0)
        if name is None:
            return
        self.lines.append(f"item of {name}")
        want = self.all[name][self.rank]
        self.same(name, torch.tensor(self.here[name].item(), dtype=want.dtype), want)

    def idle(self) -> None:
        who, seconds = self.draw.randrange(self.count), self.draw.choice([0.01, 0.3, 1.5])
        self.lines.append(f"rank {who} is idle for {seconds}")
        if who == self.rank:
            time.sleep(seconds)

    def read_in_thread(self) -> None:
        name = self.pick()
        if name is None:
            return
        self.lines.append(f"a thread reads a copy of {name}")
        copy, want = self.here[name].clone(), self.all[name][self.rank].clone()

        def read() -> None:
            try:
                self.same(name, copy.cpu(), want)
            except BaseException as error:
                self.failures.append(error)

        self.threads.append(thread := threading.Thread(target=read))
        thread.start()

    def step(self) -> None:
        kinds: list[tuple[Callable[[], None], int]] = [
            *((self.make, 5), (self.elementwise, 10), (self.several, 5), (self.view, 7)),
            *((self.write, 8), (self.forget, 3), (self.reduce, 9), (self.several_at_once, 3)),
            *((self.gather, 4), (self.scatter, 3), (self.swap, 4), (self.broadcast, 3)),
            *((self.send, 2), (self.backward, 2), (self.barrier, 4), (self.read, 3)),
            *((self.number, 1), (self.read_in_thread, 1), (self.idle, 1), (self.wait, 2)),
            (self.compiled, 1),
        ]
        self.draw.choices([k for k, _ in kinds], [weight for _, weight in kinds])[0]()
        self.grow()

    def run(self) -> None:
        for _ in range(3):
            self.make()
        for _ in range(self.draw.randrange(8, 40)):
            self.step()
        self.wait()
        for thread in self.threads:
            thread.join()
        for failure in self.failures:
            raise failure
        self.compare(sorted(self.here))


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("xla", init_method="xla://")
    rank, ranks = xr.global_ordinal(), xr.world_size()
    for seed in range(first, first + count):
        program = Program(seed, rank, ranks)
        try:
            program.run()
        except BaseException:
            print(f"rank {rank}, seed {seed}:\n  " + "\n  ".join(program.lines), flush=True)
            raise
    print(f"{count} programs are right", flush=True)


if __name__ == "__main__":
    main()
