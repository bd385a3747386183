"""Time of the first step and of a later one of GPT-2 with more and more equal layers: in pieces, as
one program, both also as a function of torch.compile, whose first step is dynamo's too, and on
PyTorch eager. Each in a process of its own, without the persistent cache.

    python -m benchmarks.layers [--layers 4 24 96] [--infer] [--ways pieces whole]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Device, XLA_COMPILE_IN_PIECES, backend of torch.compile.
WAYS = {
    "pieces": ("xla", "1", None),
    "whole": ("xla", "0", None),
    "openxla": ("xla", "1", "openxla"),
    "openxla, whole": ("xla", "0", "openxla"),
    "eager": ("cpu", "0", None),
}
STEPS = 8  # after the first two; the best counts


def small_gpt2(layers: int, positions: int) -> torch.nn.Module:
    """With the same weights each time."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=128, n_head=4, vocab_size=512, n_positions=positions,
        use_cache=False, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def step_of(layers: int, device: str, backend: str | None, trains: bool) -> Callable[[], None]:
    import torch

    import torch_xla

    model = small_gpt2(layers, 64).to(device).train(trains)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(512, (2, 64)).to(device)
    forward = model if backend is None else torch.compile(model, backend=backend)

    def step() -> None:
        with torch.set_grad_enabled(trains):
            loss = forward(tokens, labels=tokens).loss
        if trains:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loss.item()
        torch_xla.sync(wait=True)

    return step


def child(layers: int, way: str, trains: bool) -> None:
    device, _, backend = WAYS[way]
    step = step_of(layers, device, backend, trains)
    times = []
    for _ in range(2 + STEPS):
        processor, begin = time.process_time(), time.perf_counter()
        step()
        times.append((time.perf_counter() - begin, time.process_time() - processor))
    first, later = times[0], min(wall for wall, _ in times[2:])
    print(json.dumps({"first": first[0], "processor": first[1], "later": later}))


def measure(layers: int, way: str, trains: bool) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.layers", "--child", way, "--layers", str(layers)]
    env = {"XLA_PERSISTENT_CACHE_PATH": "", "XLA_COMPILE_IN_PIECES": WAYS[way][1]}
    done = subprocess.run(
        command if trains else [*command, "--infer"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )
    return json.loads(done.stdout)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 24, 96])
    parser.add_argument("--infer", action="store_true")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(options.layers[0], options.child, not options.infer)
        return
    print("inference" if options.infer else "training", "of GPT-2, 128 wide, 2 x 64 tokens")
    print(f"{'layers':>6} {'':15}{'first step':>12}{'processor':>12}{'later':>12}{'/ eager':>9}")
    for layers in options.layers:
        found = {way: measure(layers, way, not options.infer) for way in options.ways}
        for way, times in found.items():
            ratio = times["later"] / found["eager"]["later"] if "eager" in found else float("nan")
            print(
                f"{layers:6} {way:15}{times['first']:10.2f} s{times['processor']:10.2f} s"
                f"{times['later'] * 1e3:9.1f} ms{ratio:9.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
