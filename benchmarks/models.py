"""Whole models: the time of a training step and of inference on xla, in PyTorch eager and compiled
by `torch.compile(backend="inductor")`, and the ratios to eager; all on the CPU, or with
`PJRT_DEVICE=CUDA` on that GPU.

    python -m benchmarks.models [cnn gpt2 ...] [--train | --infer] [--no-inductor] [--rounds 12]

A training step is forward, loss, backward and AdamW; inference is a forward in eval mode. Each side
has a process of its own, so that the threads of one do not slow the other (a second OpenMP team
makes eager's workers sleep); they take turns, and the best round of each counts.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys

from benchmarks.networks import MODELS, NETWORKS, Network
from benchmarks.steps import SIDES, make_step, round_of

__all__ = ["MODELS"]
ROUND = 0.1  # seconds, about


def serve(network: Network, side: str, train: bool) -> None:
    """Runs a round for each line of the input and answers with the seconds of a step."""
    step = make_step(network, side, train)
    for _ in range(3):  # compiles, and the memory comes to rest
        once = round_of(step, side, 1)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(round_of(step, side, max(1, int(ROUND / once))), flush=True)


class Side:
    """A process that runs rounds of one model on one side when asked."""

    def __init__(self, name: str, side: str, train: bool) -> None:
        command = [sys.executable, "-m", "benchmarks.models", name, "--serve", side]
        self._process = subprocess.Popen(
            [*command, "--train" if train else "--infer"],
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


def report(network: Network, train: bool, best: dict[str, float]) -> None:
    def number(value: float | None, width: int) -> str:
        return f"{'-':>{width}}" if value is None else f"{value:{width}.2f}"

    line = f"{network.title:28}{'train' if train else 'infer':5}"
    for side in SIDES:
        line += number(best[side] * 1e3 if side in best else None, 11)
    for side in ("xla", "inductor"):
        line += number(best[side] / best["eager"] if side in best else None, 13)
    target = network.train_target if train else network.infer_target
    print(line + number(target, 9), flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(NETWORKS)
    parser.add_argument("models", nargs="*", help=f"of {names}; all, where none is named")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--train", action="store_true", help="only training")
    which.add_argument("--infer", action="store_true", help="only inference")
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
    sides = SIDES
    if options.no_inductor or shutil.which("g++") is None:
        sides = SIDES[:2]
        print("inductor is left out" + ("" if options.no_inductor else ": it needs g++"))
    print(f"{'milliseconds per step':33}", end="")
    print("".join(f"{s:>11}" for s in SIDES) + f"{'xla/eager':>13}{'ind./eager':>13}{'target':>9}")
    for name in options.models or NETWORKS:
        for train in (True, False):
            if not (options.infer if train else options.train):
                report(NETWORKS[name], train, measure(name, train, sides, options.rounds))


if __name__ == "__main__":
    main()
