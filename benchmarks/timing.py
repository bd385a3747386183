"""How the benchmarks measure: the two sides take turns, the best of several rounds counts.

A process that may use one processor only (`taskset -c 0 python -m benchmarks...`) is measured by
its own processor time, which other work on the machine hardly disturbs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def clock() -> float:
    alone = len(os.sched_getaffinity(0)) == 1
    return time.process_time() if alone else time.perf_counter()


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The time of one call, in seconds, over `repeats` calls in a row."""
    start = clock()
    for _ in range(repeats):
        call()
    return (clock() - start) / repeats


def side_by_side(
    xla: Callable[[], object],
    eager: Callable[[], object],
    repeats: int,
    rounds: int = 7,
    between: Callable[[], object] = lambda: None,
) -> tuple[float, float]:
    """The best time per call of both sides, in seconds; `between` runs untimed after each round."""
    best_xla = best_eager = float("inf")
    for _ in range(rounds):
        best_eager = min(best_eager, seconds(eager, repeats))
        best_xla = min(best_xla, seconds(xla, repeats))
        between()
    return best_xla, best_eager


def row(name: str, xla: float, eager: float, unit: float = 1e6, unit_name: str = "us") -> None:
    print(
        f"{name:28s} xla {xla * unit:10.2f} {unit_name}   eager {eager * unit:10.2f} {unit_name}"
        f"   ratio {xla / eager:6.2f}",
        flush=True,
    )
