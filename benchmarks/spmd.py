"""What SPMD mode costs: recording a training step and the whole step, in processes that take turns.

    taskset -c 1 python -m benchmarks.spmd [MODEL] [--rounds 15] [--devices 8]

On one processor, as here, other work on the machine hardly disturbs; the same mode against itself
differs by up to 2 %.

On one device, with SPMD mode on against off; and on several, with parameters and batch marked
against nothing marked (each device computes everything then), for recording alone. A step is the
forward and backward pass and AdamW; what is recorded is launched by `sync`, which is not a part of
recording. Target: at most 1.03 on one device, 1.05 for what is marked; ratios are of medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

from benchmarks.networks import NETWORKS
from benchmarks.timing import clock


def serve(name: str, mode: str) -> None:
    """For each line of the input one step: answers with the seconds of recording, and of all."""
    import numpy as np

    import torch_xla
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr
    from benchmarks.steps import training_parts

    if mode != "off":
        xr.use_spmd()
    mark = None
    if mode == "marked":
        count = xr.global_runtime_device_count()
        mesh = xs.Mesh(np.arange(count), (count,), ("data",))

        def mark(t) -> None:
            even = [i for i in range(t.dim()) if t.shape[i] % count == 0]
            if even:
                xs.mark_sharding(t, mesh, [None if i != even[0] else 0 for i in range(t.dim())])

    optimizer, gradients = training_parts(NETWORKS[name], "xla")
    if mark is not None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                mark(p)

    def step() -> tuple[float, float]:
        torch_xla.sync(wait=True)
        start = clock()
        gradients()
        optimizer.step()
        recorded = clock()
        torch_xla.sync(wait=True)
        return recorded - start, clock() - start

    for _ in range(4):
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(*step(), flush=True)


class Side:
    """A process that runs steps when asked."""

    def __init__(self, name: str, mode: str, devices: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.spmd", name, "--serve", mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices)},
        )
        self._line()
        self.times: list[tuple[float, float]] = []

    def _line(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process has ended with {self._process.wait()}")
        return line

    def step(self) -> None:
        print(file=self._process.stdin, flush=True)
        self.times.append(tuple(float(word) for word in self._line().split()))

    def close(self) -> None:
        self._process.communicate()

    def medians(self) -> tuple[float, ...]:
        """Of recording, and of the step, in seconds."""
        return tuple(statistics.median(times) for times in zip(*self.times, strict=True))


def compare(name: str, modes: tuple[str, str], devices: int, rounds: int) -> None:
    sides = [Side(name, mode, devices) for mode in modes]
    for i in range(rounds):
        for side in sides if i % 2 else reversed(sides):  # neither is always the first
            side.step()
    for side in sides:
        side.close()
    base, other = (side.medians() for side in sides)
    print(f"{devices} devices, {modes[1]} against {modes[0]}, medians of {rounds}")
    for what, a, b in zip(("recording", "step"), base, other, strict=True):
        print(f"  {what:10} {a * 1e3:9.2f} ms {b * 1e3:9.2f} ms   ratio {b / a:.3f}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="gpt2", choices=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--serve", choices=("off", "on", "marked"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.model, options.serve)
        return
    print(NETWORKS[options.model].title)
    compare(options.model, ("off", "on"), 1, options.rounds)
    compare(options.model, ("on", "marked"), options.devices, options.rounds)


if __name__ == "__main__":
    main()
