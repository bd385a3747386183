"""What `CheckpointManager.save_async` costs a training step, and what `save` would.

    CPU_NUM_DEVICES=4 python -m benchmarks.checkpoints [MODEL] [--every 20] [--folder FOLDER]

The parameters and the optimizer's state are split among the devices. `copy` is how long the program
waits in `save_async`, beyond the end of its step; `loop` compares stretches of `--every` steps with
one background save against those without, so it includes what writing takes away from computing.
Target: a loop that is less than 5 % slower.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable

import torch

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from benchmarks.networks import NETWORKS, Loss
from torch_xla.experimental.distributed_checkpoint import CheckpointManager


def split(parameter: torch.Tensor, mesh: xs.Mesh) -> None:
    if parameter.dim() > 0:
        xs.mark_sharding(parameter, mesh, ("fsdp",) + (None,) * (parameter.dim() - 1))


def training(name: str) -> tuple[Callable[[], None], Callable[[], dict]]:
    """A step, and what a checkpoint of it holds."""
    network, mesh = NETWORKS[name], xs.get_1d_mesh("fsdp")
    torch.manual_seed(0)
    model = network.make()
    model = (model if network.is_language else Loss(model)).to("xla")
    for parameter in model.parameters():
        split(parameter, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x, target = (t.to("xla") for t in network.data())
    split(x, mesh)

    def step() -> None:
        optimizer.zero_grad()
        model(x, target).backward()
        optimizer.step()
        torch_xla.sync()

    return step, lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def measure(name: str, every: int, rounds: int, folder: str) -> None:
    step, state = training(name)
    manager = CheckpointManager(folder, 1, max_to_keep=1, chkpt_on_preemption=False)
    finish = lambda: torch_xla.sync(wait=True)  # noqa: E731

    def stretch(save: bool) -> float:
        def steps() -> None:
            for i in range(every):
                step()
                if save and i == 0:
                    manager.save_async(0, state())
            finish()

        seconds = timed(steps)
        manager.join()
        return seconds

    for _ in range(3):
        step()
    finish()
    plain, saving, copies, saves, writes = [], [], [], [], []
    for _ in range(rounds):
        plain.append(stretch(save=False))
        saving.append(stretch(save=True))
        copies.append(timed(lambda: manager.save_async(0, state())))
        writes.append(timed(manager.join))
        saves.append(timed(lambda: manager.save(0, state())))
    one = min(plain) / every
    tensors = [*state()["model"].values()]
    tensors += [t for of in state()["optimizer"]["state"].values() for t in of.values()]
    size = sum(t.nbytes for t in tensors)
    print(f"{name}: {xr.global_runtime_device_count()} devices, {size / 1e6:.1f} MB of state")
    print(f"step                {one * 1e3:10.2f} ms")
    print(f"copy (save_async)   {min(copies) * 1e3:10.2f} ms   {min(copies) / one:8.1%} of a step")
    print(f"written after       {min(writes) * 1e3:10.2f} ms")
    print(f"save                {min(saves) * 1e3:10.2f} ms   {min(saves) / one:8.1%} of a step")
    slower = min(saving) / min(plain) - 1
    print(f"loop, a save in {every:4d} steps                {slower:8.1%} slower")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="gpt2", choices=list(NETWORKS))
    parser.add_argument("--every", type=int, default=20, help="steps to one save")
    parser.add_argument("--rounds", type=int, default=3, help="the best of them counts")
    parser.add_argument("--folder", help="where to save; by default a temporary folder")
    options = parser.parse_args(arguments)
    xr.use_spmd()
    folder = tempfile.mkdtemp(dir=options.folder)
    try:
        measure(options.model, options.every, options.rounds, folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
