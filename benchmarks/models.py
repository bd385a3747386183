"""Whole models: a training step and inference on xla (calls one by one; `torch_xla.compile`;
`torch.compile(backend="openxla")`), in PyTorch eager and compiled by inductor; all on the CPU, or
with `PJRT_DEVICE=CUDA` on that GPU. Two tables:

    python -m benchmarks.models [cnn gpt2 ...] [--train | --infer] [--rounds 12]
    python -m benchmarks.models --starts [cnn gpt2 ...] [--train | --infer]

the time of a step, with the ratios to eager; and seconds to the end of the first step, with all
caches empty and in a second process that finds them full, with the peak of memory, in MiB. `--sides
xla eager` measures some sides alone; `--no-inductor` leaves that one out.

A training step is forward, loss, backward and AdamW; inference is a forward in eval mode. Each side
has a process of its own, so that the threads of one do not slow the other (a second OpenMP team
makes eager's workers sleep); they take turns, and the best round of each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

import torch

import torch_xla.runtime as xr
from benchmarks.networks import MODELS, NETWORKS, Network
from benchmarks.steps import ON_XLA, SIDES, device_of, finish, make_step, round_of

__all__ = ["MODELS"]
ROUND = 0.1  # seconds, about
# Where the sides keep what they have compiled.
CACHES = ("XLA_PERSISTENT_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def peak_memory(side: str) -> float:
    """Of the process, or of the GPU, in MiB."""
    device = device_of(side)
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    if side in ON_XLA and xr.device_type() == "CUDA":
        import torch_xla.core.xla_model as xm

        return xm.get_memory_info("xla:0")["peak_bytes_used"] / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def serve(network: Network, side: str, train: bool) -> None:
    """Tells of the first step, then runs a round for each line of the input and answers with the
    seconds of a step."""
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer imports torch._dynamo
    step = make_step(network, side, train)
    begin = time.perf_counter()
    step()
    finish(side)
    first = time.perf_counter() - begin
    for _ in range(2):  # the memory comes to rest
        once = round_of(step, side, 1)
    print(json.dumps({"first": first, "peak": peak_memory(side)}), flush=True)
    for _ in sys.stdin:
        print(round_of(step, side, max(1, int(ROUND / once))), flush=True)


class Side:
    """A process that runs rounds of one model on one side when asked."""

    def __init__(self, name: str, side: str, train: bool, cache: str | None = None) -> None:
        command = [sys.executable, "-m", "benchmarks.models", name, "--serve", side]
        caches = {} if cache is None else {key: f"{cache}/{key}" for key in CACHES}
        self._process = subprocess.Popen(
            [*command, "--train" if train else "--infer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **caches},
        )
        self.start: dict[str, float] = json.loads(self._answer())

    def _answer(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process has ended with {self._process.wait()}")
        return line

    def round(self) -> float:
        print(file=self._process.stdin, flush=True)
        return float(self._answer())

    def close(self) -> None:
        self._process.communicate()


def measure(name: str, train: bool, sides: tuple[str, ...], rounds: int) -> dict[str, float]:
    """The best time of a step of each side, in seconds."""
    processes = {side: Side(name, side, train) for side in sides}
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for side, process in processes.items():
            best[side] = min(best[side], process.round())
    for process in processes.values():
        process.close()
    return best


def starts(name: str, train: bool, side: str) -> tuple[float, float, float]:
    """The seconds of the first step with caches empty and full, and the peak of memory."""
    with tempfile.TemporaryDirectory() as cache:
        found = []
        for _ in range(2):
            process = Side(name, side, train, cache)
            process.close()
            found.append(process.start)
    cold, warm = found
    return cold["first"], warm["first"], cold["peak"]


def cell(value: float | None, width: int, digits: int = 2) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"


def title(network: Network, train: bool) -> str:
    return f"{network.title:28}{'train' if train else 'infer':6}"


def report_steps(name: str, train: bool, sides: tuple[str, ...], rounds: int) -> None:
    network = NETWORKS[name]
    best = measure(name, train, sides, rounds)
    line = title(network, train)
    line += "".join(cell(best[side] * 1e3, 10) for side in sides)
    if "eager" in best:
        others = [side for side in sides if side != "eager"]
        line += " |" + "".join(cell(best[side] / best["eager"], 9) for side in others)
    print(line + cell(network.train_target if train else network.infer_target, 8), flush=True)


def report_starts(name: str, train: bool, sides: tuple[str, ...]) -> None:
    line = title(NETWORKS[name], train)
    for side in sides:
        cold, warm, peak = starts(name, train, side)
        line += f"{cell(cold, 8, 1)}{cell(warm, 6, 1)}{cell(peak, 6, 0)}"
    print(line, flush=True)


def headline(sides: tuple[str, ...], of_starts: bool) -> str:
    if of_starts:
        return f"{'s cold, s warm, MiB':34}" + "".join(f"{side:>20}" for side in sides)
    line = f"{'milliseconds per step':34}" + "".join(f"{side:>10}" for side in sides)
    if "eager" in sides:
        line += " |" + "".join(f"{side:>9}" for side in sides if side != "eager")
    return line + f"{'target':>8}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(NETWORKS)
    parser.add_argument("models", nargs="*", help=f"of {names}; all, where none is named")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--train", action="store_true", help="only training")
    which.add_argument("--infer", action="store_true", help="only inference")
    parser.add_argument("--starts", action="store_true", help="first steps in place of later ones")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for name in options.models:
        if name not in NETWORKS:
            parser.error(f"expected models of {names}, got {name!r}")
    if options.serve:
        serve(NETWORKS[options.models[0]], options.serve, options.train)
        return
    sides = tuple(options.sides)
    if "inductor" in sides and (options.no_inductor or shutil.which("g++") is None):
        sides = tuple(side for side in sides if side != "inductor")
        print("inductor is left out" + ("" if options.no_inductor else ": it needs g++"))
    print(headline(sides, options.starts))
    for name in options.models or NETWORKS:
        for train in (True, False):
            if options.infer if train else options.train:
                continue
            if options.starts:
                report_starts(name, train, sides)
            else:
                report_steps(name, train, sides, options.rounds)


if __name__ == "__main__":
    main()
