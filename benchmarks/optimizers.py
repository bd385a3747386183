"""What `optimizer.step()` costs: its recording on xla, against the whole step in eager PyTorch.

    python -m benchmarks.optimizers [--parameters 120] [--steps 50]

`record` is the time of the call on xla, in which nothing is computed; `sync` launches the step and
does not wait for it; `whole` is a step from call to result. `eager` is PyTorch on the CPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import torch_xla

OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p),
    "AdamW": lambda p: torch.optim.AdamW(p),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "AdamW loop": lambda p: torch.optim.AdamW(p, foreach=False),
    "RMSprop": lambda p: torch.optim.RMSprop(p),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "LBFGS": lambda p: torch.optim.LBFGS(p, max_iter=1),
}


def make_parameters(count: int, size: int, device: str) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    parameters = []
    for i in range(count):
        shape = (size, size) if i % 2 == 0 else (size,)
        p = torch.nn.Parameter(torch.randn(shape, generator=generator).to(device))
        p.grad = torch.randn(shape, generator=generator).to(device)
        parameters.append(p)
    return parameters


def step_of(name: str, parameters: list[torch.nn.Parameter]) -> Callable[[], None]:
    optimizer = OPTIMIZERS[name](parameters)
    if name == "LBFGS":
        loss = torch.zeros((), device=parameters[0].device)
        return lambda: optimizer.step(lambda: loss)
    return optimizer.step


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] * 1e3


def eager_time(name: str, count: int, size: int, steps: int) -> float:
    step = step_of(name, make_parameters(count, size, "cpu"))
    times = []
    for i in range(steps + 5):
        begin = time.perf_counter()
        step()
        if i >= 5:
            times.append(time.perf_counter() - begin)
    return median(times)


def xla_times(name: str, count: int, size: int, steps: int) -> tuple[float, float, float]:
    step = step_of(name, make_parameters(count, size, "xla"))
    torch_xla.sync(wait=True)
    record, launch, whole = [], [], []
    for i in range(steps + 7):
        begin = time.perf_counter()
        step()
        recorded = time.perf_counter()
        torch_xla.sync()
        launched = time.perf_counter()
        torch_xla.sync(wait=True)
        done = time.perf_counter()
        if i >= 7:
            record.append(recorded - begin)
            launch.append(launched - recorded)
            whole.append(done - begin)
    return median(record), median(launch), median(whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=120)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("names", nargs="*", default=list(OPTIMIZERS))
    args = parser.parse_args()
    print(f"{args.parameters} parameters of {args.size}x{args.size} and {args.size}, milliseconds")
    print(f"{'':16}{'record':>9}{'sync':>9}{'whole':>9}{'eager':>9}{'whole/eager':>13}")
    for name in args.names:
        record, launch, whole = xla_times(name, args.parameters, args.size, args.steps)
        eager = eager_time(name, args.parameters, args.size, args.steps)
        print(
            f"{name:16}{record:9.3f}{launch:9.3f}{whole:9.3f}{eager:9.3f}{whole / eager:13.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
