"""Time from the start of a process to the end of its first training step, with the persistent
cache empty and full.

    python -m benchmarks.startup [MODEL] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

from benchmarks.networks import NETWORKS


def child(name: str) -> None:
    import torch_xla
    import torch_xla.debug.metrics as met
    from benchmarks.steps import training_step

    training_step(NETWORKS[name], "xla")()
    torch_xla.sync(wait=True)
    print(met.counter_value("UncachedCompile") or 0)


def start(name: str, cache: str) -> tuple[float, int]:
    """Seconds of a process, and how many programs it compiled."""
    command = [sys.executable, "-m", "benchmarks.startup", name, "--child"]
    begin = time.perf_counter()
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_PERSISTENT_CACHE_PATH": cache},
    )
    return time.perf_counter() - begin, int(done.stdout)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="resnet18", choices=NETWORKS)
    parser.add_argument("--rounds", type=int, default=3, help="the best of them counts")
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args(arguments)
    name = options.model
    if options.child:
        child(name)
        return
    empty, full = [], []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as cache:
            empty.append(start(name, cache))
            full.append(start(name, cache))
    print(f"start to the end of the first step: {NETWORKS[name].title}")
    for what, runs in (("empty", empty), ("full", full)):
        seconds, compiled = min(runs)
        print(f"  {what:5s} cache: {seconds:6.2f} s, {compiled} programs compiled", flush=True)


if __name__ == "__main__":
    main()
