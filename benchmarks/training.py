"""A training step with AdamW on xla against PyTorch eager on the CPU, in one process.

python -m benchmarks.training [--only CNN] [--steps 20]
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F

import torch_xla
from benchmarks.models import MODELS
from benchmarks.timing import row, side_by_side


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


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a model's name")
    parser.add_argument("--steps", type=int, default=0, help="steps of a round (0: by model)")
    options = parser.parse_args(arguments)
    print("a training step with AdamW")
    for name, (make, shape, target) in MODELS.items():
        if options.only not in name:
            continue
        xla, eager = trainer(make, shape, "xla"), trainer(make, shape, "cpu")

        def xla_round(step=xla, count=options.steps or 10) -> None:
            for _ in range(count):
                step()
            torch_xla.sync(wait=True)

        def eager_round(step=eager, count=options.steps or 10) -> None:
            for _ in range(count):
                step()

        for _ in range(3):  # compiles
            xla()
            torch_xla.sync(wait=True)
        eager()
        best_xla, best_eager = side_by_side(xla_round, eager_round, 1, rounds=4)
        steps = options.steps or 10
        row(f"{name}", best_xla / steps, best_eager / steps, 1e3, "ms")
        print(f"{'':28s} target {target}")


if __name__ == "__main__":
    main()
