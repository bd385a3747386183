"""What compiling in the background gives: GPT-2 on batches of several lengths, each of which has a
program of its own. Time of the first pass over them, how long its barriers keep the caller, and how
soon the loss of the step before can be read, with XLA_BACKGROUND_COMPILE on and off, and PyTorch
eager. Each in a process of its own, without the persistent cache; the ways take turns.

    python -m benchmarks.background [--lengths 32 48 64 80] [--infer] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

from benchmarks.layers import small_gpt2

WAYS = {"background": ("xla", "1"), "at once": ("xla", "0"), "eager": ("cpu", "0")}
COLUMNS = {"pass": "first pass", "barriers": "in barriers", "read": "loss before", "later": "later"}


def child(device: str, lengths: list[int], trains: bool) -> None:
    import torch

    import torch_xla

    model = small_gpt2(4, max(lengths)).to(device).train(trains)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = [torch.randint(512, (4, n)).to(device) for n in lengths]

    def step(tokens: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(trains):
            loss = model(tokens, labels=tokens).loss
        if trains:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.detach()

    def wait() -> None:
        if device == "xla":
            torch_xla.sync(wait=True)

    before = step(batches[0])
    wait()
    if trains:  # the second step is the first of those that find the optimizer's state
        before = step(batches[0])
        wait()
    spent = {name: 0.0 for name in COLUMNS}
    begin = time.perf_counter()
    losses = []
    for i, tokens in enumerate(batches[1:]):
        losses.append(step(tokens))
        reached = time.perf_counter()
        if device == "xla":
            torch_xla.sync()
        passed = time.perf_counter()
        spent["barriers"] += passed - reached
        if i == 0:
            before.item()
            spent["read"] = time.perf_counter() - reached
    for loss in losses:
        loss.item()
    wait()
    spent["pass"] = time.perf_counter() - begin
    spent["later"] = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        for tokens in batches[1:]:
            step(tokens).item()
            wait()
        spent["later"] = min(spent["later"], time.perf_counter() - begin)
    print(json.dumps(spent))


def measure(way: str, options: argparse.Namespace) -> dict[str, float]:
    device, flag = WAYS[way]
    command = [sys.executable, "-m", "benchmarks.background", "--child", device]
    command += ["--lengths", *map(str, options.lengths)] + ["--infer"] * options.infer
    env = {"XLA_PERSISTENT_CACHE_PATH": "", "XLA_BACKGROUND_COMPILE": flag, "XLA_EXPLAIN": "0"}
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **env}
    )
    return json.loads(done.stdout)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 48, 64, 80])
    parser.add_argument("--infer", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="the best of them counts")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(options.child, options.lengths, not options.infer)
        return
    found = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way, runs in found.items():
            runs.append(measure(way, options))
    what = "inference" if options.infer else "training"
    print(f"seconds; {what} of GPT-2, 4 x {options.lengths[1:]} tokens, after {options.lengths[0]}")
    print(f"{'':12}" + "".join(f"{name:>13}" for name in COLUMNS.values()))
    for way, runs in found.items():
        print(f"{way:12}" + "".join(f"{min(r[key] for r in runs):13.3f}" for key in COLUMNS))


if __name__ == "__main__":
    main()
