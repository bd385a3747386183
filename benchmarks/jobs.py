"""Two processes with one thread each: exchanges and training steps on xla beside PyTorch's own on
the CPU, whose process group is Gloo's too. Both sides run in the same processes, in turn.

    CPU_NUM_DEVICES=2 python -m benchmarks.jobs [--rounds 7] [exchange] [steps] [start]

`exchange`: seconds of an all_reduce of floats and its bandwidth, of Gloo's; as a program of its
own, which is launched and waited for. `steps`: of a training step of an MLP and a small CNN with
averaged gradients: xm.optimizer_step, DistributedDataParallel and FSDP, each of PyTorch's
DistributedDataParallel, or fully_shard, on the CPU. `start`: seconds of a model's first
training step, without programs of before, of jobs of 1, 2 and 4 processes: of their own, of
all their processors, and programs compiled. In the last line each process compiles for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend  # noqa: F401  registers the backend
from benchmarks.networks import SmallCNN
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

Step = Callable[[], None]


def in_turn(sides: dict[str, Step], rounds: int, repeats: int) -> dict[str, float]:
    """Seconds of a call of each, the median of some rounds."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for step in sides.values():  # compiles
        for _ in range(3):
            step()
    for _ in range(rounds):
        for name, step in sides.items():
            dist.barrier(group=GLOO)
            begin = time.perf_counter()
            for _ in range(repeats):
                step()
            found[name].append((time.perf_counter() - begin) / repeats)
    return {name: statistics.median(times) for name, times in found.items()}


GLOO: dist.ProcessGroup


def exchanges(rounds: int) -> None:
    xm.master_print(f"{'all_reduce':>12} {'xla':>10} {'gloo':>10} {'ratio':>7}")
    for elements in (1 << 8, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24):
        on_xla, on_cpu = torch.ones(elements, device="xla"), torch.ones(elements)
        torch_xla.sync(wait=True)

        def ours(t: torch.Tensor = on_xla) -> None:
            xm.all_reduce(xm.REDUCE_SUM, [t], scale=0.5)
            torch_xla.sync(wait=True)

        def theirs(t: torch.Tensor = on_cpu) -> None:
            dist.all_reduce(t, group=GLOO)
            t.mul_(0.5)

        repeats = max(1, min(50, (1 << 22) // elements))
        times = in_turn({"xla": ours, "gloo": theirs}, rounds, repeats)
        size = f"{elements * 4 / 1024:.0f} KiB"
        ratio = times["xla"] / times["gloo"]
        xm.master_print(
            f"{size:>12} {times['xla'] * 1e3:7.3f} ms {times['gloo'] * 1e3:7.3f} ms {ratio:7.2f}"
        )


def mlp() -> nn.Module:
    layers = [m for _ in range(6) for m in (nn.Linear(512, 512), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(512, 10))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (mlp, (64, 512)),
    "CNN": (SmallCNN, (16, 1, 28, 28)),
}


def training(model: nn.Module, shape: tuple[int, ...], step: Callable, finish: Step) -> Step:
    """Forward, loss, backward and `step`, on random data of the model's device."""
    device = next(model.parameters()).device
    data = torch.randn(shape).to(device)
    labels = torch.randint(10, shape[:1]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def run() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), labels).backward()
        step(optimizer)
        finish()

    return run


def steps(rounds: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    cpu_mesh = init_device_mesh("cpu", (xm.xrt_world_size(),))

    def on_device() -> None:
        torch_xla.sync(wait=True)

    for name, (make, shape) in NETWORKS.items():
        torch.manual_seed(0)
        sharded = make()
        fully_shard(sharded, mesh=cpu_mesh)
        native = make().to("xla")
        xm.broadcast_master_param(native)
        sides = {
            "native": training(native, shape, xm.optimizer_step, on_device),
            "DDP": training(
                DistributedDataParallel(make().to("xla"), gradient_as_bucket_view=True),
                *(shape, lambda o: o.step(), on_device),
            ),
            "FSDP": training(
                XlaFullyShardedDataParallel(make().to("xla")),
                *(shape, lambda o: o.step(), on_device),
            ),
            "DDP on gloo": training(
                DistributedDataParallel(make(), process_group=GLOO, gradient_as_bucket_view=True),
                *(shape, lambda o: o.step(), lambda: None),
            ),
            "fully_shard on gloo": training(sharded, shape, lambda o: o.step(), lambda: None),
        }
        times = in_turn(sides, rounds, 10)
        for side, seconds in times.items():
            xm.master_print(f"{name:>5} {side:>20} {seconds * 1e3:8.2f} ms")
        for ours, theirs in (
            ("DDP", "native"),
            ("native", "DDP on gloo"),
            ("DDP", "DDP on gloo"),
            ("FSDP", "fully_shard on gloo"),
        ):
            xm.master_print(f"{name:>5} {ours} of {theirs}: {times[ours] / times[theirs]:.3f}")


def first_step(index: int) -> None:
    """Prints the seconds of the slowest process, and the programs that all have compiled."""
    import torch_xla.debug.metrics as met
    from benchmarks.networks import ResNet18

    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer imports torch._dynamo
    model = ResNet18().to("xla")
    xm.rendezvous("all are here")
    begin = time.perf_counter()
    step = training(model, (8, 3, 64, 64), xm.optimizer_step, lambda: torch_xla.sync(wait=True))
    step()
    seconds = time.perf_counter() - begin
    told = json.dumps([seconds, met.counter_value("UncachedCompile") or 0]).encode()
    of_all = [json.loads(text) for text in xm.rendezvous("all are there", told)]
    xm.master_print(json.dumps([max(s for s, _ in of_all), sum(n for _, n in of_all)]))


def start(rounds: int) -> None:
    print(f"{'':>16} {'first step':>10} {'processors':>10} {'compiled':>8}   of one process")
    alone = 0.0
    for count, limit in ((1, "1800"), (2, "1800"), (4, "1800"), (2, "0")):
        found = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as cache:
                variables = {
                    "CPU_NUM_DEVICES": str(count),
                    "XLA_PERSISTENT_CACHE_PATH": cache,
                    "XLA_JOB_COMPILE_SECONDS": limit,
                }
                command = [sys.executable, "-m", "benchmarks.jobs", "first_step"]
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                done = subprocess.run(
                    command,
                    env={**os.environ, **variables},
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            seconds, compiled = json.loads(done.stdout.splitlines()[-1])
            found.append((seconds, used, compiled))
        seconds, used, compiled = min(found)
        alone = alone or seconds
        name = f"{count} process{'es' * (count > 1)}{', each' * (limit == '0')}"
        print(f"{name:>16} {seconds:8.1f} s {used:8.1f} s {compiled:8} {seconds / alone:8.2f}")


def run(index: int, args: argparse.Namespace) -> None:
    global GLOO
    torch.set_num_threads(1)
    dist.init_process_group("xla", init_method="xla://")
    GLOO = dist.new_group(backend="gloo")  # type: ignore[assignment]
    parts = {"exchange": exchanges, "steps": steps}
    for name in parts:
        if name in args.parts:
            parts[name](args.rounds)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("parts", nargs="*", default=["exchange", "steps"])
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    if unknown := set(args.parts) - {"exchange", "steps", "start", "first_step"}:
        parser.error(f"expected exchange, steps or start, got {', '.join(sorted(unknown))}")
    if args.parts == ["first_step"]:  # a process of `start`
        torch_xla.launch(first_step)
    elif "start" in args.parts:
        start(args.rounds)
    if {"exchange", "steps"} & set(args.parts):
        torch_xla.launch(run, args=(args,))


if __name__ == "__main__":
    main()
