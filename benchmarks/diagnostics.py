"""What it costs that runs explain themselves: against a build without (`make bench` makes it).

    python -m benchmarks.diagnostics build/plain

Of the two builds, processes of each take turns; the best of all rounds counts. Target: 2% of what
recording costs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 5


def measure() -> dict[str, float]:
    """The best time of each in this process, in microseconds."""
    import torch

    import torch_xla
    from benchmarks.timing import seconds

    x, y = torch.randn(64).to("xla"), torch.randn(64).to("xla")
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8))).to("xla")
    optimizer = torch.optim.AdamW(net.parameters())

    def record() -> None:
        z = x
        for _ in range(100):
            z = z + y

    def train() -> None:
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()
        torch_xla.sync()

    calls = {
        "recording 100 calls": record,
        "a step of training": train,
        "a copy to the device": lambda: torch.ones(4).to("xla"),
        "a number read": lambda: x[0].item(),
    }
    best = {}
    for name, call in calls.items():
        for _ in range(20):
            call()
        torch_xla.sync(wait=True)
        best[name] = min(seconds(call, 50) for _ in range(20)) * 1e6
    return best


def in_process(extension: Path | None) -> dict[str, float]:
    env = {**os.environ, "XLA_EXPLAIN": "0"}
    folders = [str(ROOT)]
    if extension is not None:
        env["TORCH_XLA_TEST_EXTENSION"] = str(extension)
        folders.insert(0, str(ROOT / "tests/sanitizers/preload"))
    env["PYTHONPATH"] = os.pathsep.join(folders)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.diagnostics", "--measure"],
        env=env,
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", nargs="?", help="folder of the build without diagnostics")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure()))
        return
    if arguments.build is None:
        parser.error("expected the folder of a build without diagnostics")
    [without] = Path(arguments.build).resolve().glob("_XLAC*.so")
    best: list[dict[str, float]] = [{}, {}]
    for _ in range(ROUNDS):
        for of, extension in zip(best, (None, without), strict=True):
            for name, time in in_process(extension).items():
                of[name] = min(time, of.get(name, time))
    for name, time in best[0].items():
        other = best[1][name]
        print(f"{name:24s} {time:9.2f} us   without {other:9.2f} us   {time / other - 1:+7.2%}")


if __name__ == "__main__":
    main()
