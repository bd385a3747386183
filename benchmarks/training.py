"""A training step with AdamW on xla against PyTorch eager on the CPU.

    python -m benchmarks.training [--only CNN] [--steps 10] [--rounds 6]

Each side has a process of its own, so that the threads of one do not slow the other; they take
turns, and the best round of each counts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import torch
import torch.nn.functional as F

import torch_xla
from benchmarks.models import MODELS
from benchmarks.timing import row, seconds


def trainer(make, shape, device: str):
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(shape).to(device)
    target = torch.randint(10, shape[:1]).to(device)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), target).backward()
        optimizer.step()
        if device == "xla":
            torch_xla.sync()

    return step


def serve(name: str, device: str, steps: int) -> None:
    """Runs a round for each line of the input and answers with the seconds of a step."""
    make, shape, _ = MODELS[name]
    step = trainer(make, shape, device)

    def steps_done(count: int) -> None:
        for _ in range(count):
            step()
        if device == "xla":
            torch_xla.sync(wait=True)

    for _ in range(3):  # compiles
        steps_done(1)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(seconds(lambda: steps_done(steps), 1) / steps, flush=True)


class Side:
    """A process that runs rounds of one model on one device when asked."""

    def __init__(self, name: str, device: str, steps: int) -> None:
        command = [sys.executable, "-m", "benchmarks.training", "--only", name]
        self._process = subprocess.Popen(
            [*command, "--serve", device, "--steps", str(steps)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

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


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a model's name")
    parser.add_argument("--steps", type=int, default=10, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--serve", choices=("xla", "cpu"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.only, options.serve, options.steps)
        return
    print("a training step with AdamW")
    for name, (_, _, target) in MODELS.items():
        if options.only not in name:
            continue
        xla, eager = Side(name, "xla", options.steps), Side(name, "cpu", options.steps)
        rounds = [(xla.round(), eager.round()) for _ in range(options.rounds)]
        row(name, *(min(times) for times in zip(*rounds, strict=True)), 1e3, "ms")
        print(f"{'':28s} target {target}")
        xla.close()
        eager.close()


if __name__ == "__main__":
    main()
