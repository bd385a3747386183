"""Peak memory of processes that train with Adam, on 1, 2 and 4 ranks, and on PyTorch's CPU device.

    python -m benchmarks.job_memory [--layers 12] [--width 1024]

Each row is a job of its own. `process` is the peak of a step, beyond what the process held before
it made the model; on xla with the memory that is kept for the next run. `device` is what tensors
hold, and what the largest program needs beside them. FSDP and fully_shard split parameters,
gradients and Adam's moments; DDP has all on each rank.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torch_xla
import torch_xla.debug
import torch_xla.distributed.xla_backend  # noqa: F401  registers the backend
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

MIB = 1 << 20


def peak() -> int:
    """The most memory that this process has held since it last asked, in bytes."""
    words = Path("/proc/self/status").read_text().split()
    Path("/proc/self/clear_refs").write_text("5")
    return int(words[words.index("VmHWM:") + 1]) << 10


def each_sharded(model: nn.Sequential, shard: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return shard(nn.Sequential(*(shard(layer) for layer in model)))


def parallel(model: nn.Sequential, side: str) -> nn.Module:
    if side.startswith("DDP"):
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    if side == "FSDP":
        return each_sharded(model, XlaFullyShardedDataParallel)
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    return each_sharded(model, lambda m: fully_shard(m, mesh=mesh))


def train(index: int, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    on_xla = not args.side.endswith("gloo")
    device = "xla" if on_xla else "cpu"
    dist.init_process_group("xla" if on_xla else "gloo", init_method="xla://")
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer imports torch._dynamo
    (torch.ones(2, device=device) + 1).cpu()
    peak()
    before = peak()
    layers = (
        nn.Sequential(nn.Linear(args.width, args.width), nn.Tanh()) for _ in range(args.layers)
    )
    model = parallel(nn.Sequential(*layers).to(device), args.side)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(4):
        model(torch.randn(8, args.width).to(device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if on_xla:
            torch_xla.sync(wait=True)
        most = peak() - before  # of the last step: there is nothing left of the making
    held = 0
    if on_xla:
        snapshot = torch_xla.debug.memory_snapshot()
        held = snapshot.bytes + max(t.bytes for t in snapshot.temporaries)
    total = torch.tensor([most / MIB, held / MIB], device=device)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(*(total / dist.get_world_size()).round().int().tolist())
    dist.destroy_process_group()


SIDES = ("DDP", "FSDP", "fully_shard", "DDP on gloo", "fully_shard on gloo")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--side", choices=SIDES)
    args = parser.parse_args()
    if args.side:
        torch_xla.launch(train, args=(args,))
        return
    size = args.layers * (args.width + 1) * args.width * 4 / MIB
    print(f"parameters of {size:.0f} MiB; MiB of each process on 1, 2 and 4 ranks")
    print(f"{'':>20} {'process':>20} {'device':>20}")
    for side in SIDES:
        found = []
        for count in (1, 2, 4):
            text = subprocess.run(
                [sys.executable, "-m", "benchmarks.job_memory", *sys.argv[1:], "--side", side],
                env={**os.environ, "CPU_NUM_DEVICES": str(count)},
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            ).stdout
            found.append(text.split()[-2:])
        columns = (" ".join(f"{row[i]:>6}" for row in found) for i in (0, 1))
        print(f"{side:>20} {' '.join(columns)}", flush=True)


if __name__ == "__main__":
    main()
