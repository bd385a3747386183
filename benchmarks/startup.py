"""Time from the start of a process to the end of its first training step, with the persistent
cache empty and full; and the part of it that is the step: the model, its forward and backward, the
optimizer and the run, once PyTorch has imported what its optimizers need.

    python -m benchmarks.startup [MODEL] [--rounds 3]

`train_lm` is the example, which also reads its text.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.networks import NETWORKS

EXAMPLE = "train_lm"


def child(name: str) -> None:
    import torch

    import torch_xla
    import torch_xla.debug.metrics as met
    from benchmarks.steps import training_step

    if name == EXAMPLE:
        lm = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "train_lm.py"))
        args, data = lm["arguments"]([]), lm["encode"](lm["english_text"]())
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer imports torch._dynamo
    device = torch_xla.device()
    begin = time.perf_counter()
    if name == EXAMPLE:
        lm["train"](args, data, device, steps=1, show_progress=False)
    else:
        training_step(NETWORKS[name], "xla")()
    torch_xla.sync(wait=True)
    step = time.perf_counter() - begin
    print(json.dumps({"step": step, "compiled": met.counter_value("UncachedCompile") or 0}))


def start(name: str, cache: str) -> dict:
    """The seconds of a process and of its step, and how many programs it compiled."""
    command = [sys.executable, "-m", "benchmarks.startup", name, "--child"]
    begin = time.perf_counter()
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_PERSISTENT_CACHE_PATH": cache},
    )
    return {"process": time.perf_counter() - begin, **json.loads(done.stdout)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=EXAMPLE, choices=[EXAMPLE, *NETWORKS])
    parser.add_argument("--rounds", type=int, default=3, help="the best of them counts")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    name = options.model
    if options.child:
        child(name)
        return
    runs = {"no": [], "empty": [], "full": []}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as cache:
            for what, found in runs.items():
                found.append(start(name, "" if what == "no" else cache))
    print(f"seconds to the end of the first step: {name}")
    print(f"{'cache':10}{'process':>10}{'its step':>10}{'compiled programs':>20}")
    for what, found in runs.items():
        process, step = (min(run[of] for run in found) for of in ("process", "step"))
        print(f"{what:10}{process:10.2f}{step:10.2f}{found[0]['compiled']:20}")


if __name__ == "__main__":
    main()
