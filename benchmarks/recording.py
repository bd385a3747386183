"""What a call costs on xla, where it is only recorded, against PyTorch eager on the CPU.

    python -m benchmarks.recording

Tensors are 8x8, so that eager's time is its overhead too. Target: a ratio of at most 1.0 each; in
torch_xla's eager mode, where a call is launched, too, at most 6 us for x + y.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

import torch_xla
from benchmarks.networks import NETWORKS
from benchmarks.steps import training_parts
from benchmarks.timing import row, seconds, side_by_side
from torch_xla.experimental import eager_mode_context

CALLS = {
    "x + y": lambda x, y: lambda: x + y,
    "x * 1.5": lambda x, y: lambda: x * 1.5,
    "relu": lambda x, y: lambda: torch.relu(x),
    "view": lambda x, y: lambda: x.view(-1),
    "add_": lambda x, y: lambda: x.add_(y),
    "sum": lambda x, y: lambda: x.sum(),
    "matmul": lambda x, y: lambda: x @ y,
    "softmax": lambda x, y: lambda: torch.softmax(x, -1),
    "embedding": lambda x, y: partial(F.embedding, torch.arange(8, device=x.device), x),
    "t": lambda x, y: lambda: x.t(),
    "x[1:]": lambda x, y: lambda: x[1:],
}


def chain(x: torch.Tensor, nodes: int) -> torch.Tensor:
    for _ in range(nodes // 2):
        x = torch.tanh(x) * 1.5
    return x


def main() -> None:
    print("recording one call")
    for name, make in CALLS.items():
        a, b = torch.randn(8, 8), torch.randn(8, 8)
        row(
            name, *side_by_side(make(a.to("xla"), b.to("xla")), make(a, b), 1000, 9, torch_xla.sync)
        )

    print("launching one call: torch_xla.experimental.eager_mode(True)")
    with eager_mode_context(True):
        for name, make in CALLS.items():
            a, b = torch.randn(8, 8), torch.randn(8, 8)
            ours = make(a.to("xla"), b.to("xla"))
            row(name, *side_by_side(ours, make(a, b), 1000, 9, torch_xla.sync))

    nodes = 3500
    x = torch.randn(8, device="xla")
    torch_xla.sync()
    times = []
    for _ in range(8):
        y = chain(x, nodes)
        times.append(seconds(torch_xla.sync, 1))
        torch_xla.sync(wait=True)
        del y
    print(f"warm sync over {nodes} nodes: {min(times[1:]) * 1e3:.2f} ms (target: under 1 ms)")

    print("a question that numbers alone answer, while a step runs")
    row("are positions in order?", question_time("xla"), question_time("cpu"), 1e6, "us")

    print("a training step until it is launched")
    for name in ("mlp", "cnn"):
        row(name, step_time(name, "xla"), step_time(name, "eager"), 1e3, "ms")


def question_time(device: str) -> float:
    """As transformers asks at each step of each model."""
    x = torch.randn(1024, 1024, device=device)
    best = float("inf")
    for _ in range(10):
        torch_xla.sync(wait=True)
        y = x @ x
        torch_xla.sync()
        positions = torch.arange(128, device=device) + 0
        best = min(best, seconds(lambda: bool((positions.diff() == 1).all()), 1))  # noqa: B023
        del y
    return best


def step_time(name: str, side: str) -> float:
    """The host's part of a step on xla, in seconds; the whole step in PyTorch eager."""
    optimizer, gradients = training_parts(NETWORKS[name], side)

    def step() -> None:
        gradients()
        optimizer.step()
        if side == "xla":
            torch_xla.sync()

    best = float("inf")
    for i in range(20):
        taken = seconds(step, 1)
        torch_xla.sync(wait=True)
        best = min(best, taken) if i > 5 else best
    return best


if __name__ == "__main__":
    main()
