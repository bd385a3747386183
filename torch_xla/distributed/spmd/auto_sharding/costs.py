"""The cost of a split: seconds of sending, of arithmetic and of reading memory.

The costs of collectives are those of rings, as in the Alpa paper (Zheng et al., OSDI 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

Layout = tuple[int, ...]  # for each mesh axis, the dimension that it splits, or -1


@dataclass(frozen=True)
class Machine:
    """One device, by round figures that decide between splits; no prediction of times.

    Attributes:
        operations: Floating point operations a second.
        memory: Bytes a second from its memory.
        link: Bytes a second to its neighbours.
        latency: Seconds that a collective takes however little it sends.
        scatters: Whether the compiler sends each device its part of a sum alone; XLA's for the CPU
            sends all of it to all.
    """

    operations: float
    memory: float
    link: float
    latency: float
    scatters: bool = True


# Published peak rates of matrix products in the dtype that they are usually done in.
MACHINES = {
    "CPU": Machine(5e10, 1e10, 4e9, 2e-5, scatters=False),
    "CUDA": Machine(4e14, 2e12, 3e11, 1e-5),
    "ROCM": Machine(4e14, 2e12, 3e11, 1e-5),
    "TPU": Machine(2.5e14, 1.2e12, 2e11, 2e-6),
}


def machine_of(platform: str) -> Machine:
    """That of a platform; TPU's figures for one that is not known."""
    return MACHINES.get(platform.upper(), MACHINES["TPU"])


def parts(layout: Layout, sizes: tuple[int, ...]) -> int:
    """Into how many different parts a value is split."""
    count = 1
    for dim, size in zip(layout, sizes, strict=True):
        if dim >= 0:
            count *= size
    return count


@lru_cache(maxsize=1 << 18)
def change(before: Layout, after: Layout, size: int, mesh: tuple[int, ...], on: Machine) -> float:
    """Seconds to split a value of `size` bytes differently: slices first, gathers last."""
    local = float(size) / parts(before, mesh)
    seconds = 0.0
    for old, new, n in zip(before, after, mesh, strict=True):
        if old < 0 <= new:
            local /= n
    for old, new, n in zip(before, after, mesh, strict=True):
        if old >= 0 and new >= 0 and old != new:
            seconds += on.latency + local * (n - 1) / n / on.link
    for old, new, n in zip(before, after, mesh, strict=True):
        if old >= 0 > new:
            seconds += on.latency + local * (n - 1) / on.link
            local *= n
    return seconds


def all_reduce(size: float, n: int, on: Machine) -> float:
    """Seconds to add values of `size` bytes over `n` devices."""
    return on.latency + 2 * size * (n - 1) / n / on.link


def reduce_scatter(size: float, n: int, on: Machine) -> float:
    """Seconds to add values of `size` bytes over `n` devices, each of which keeps a part."""
    return on.latency + (1 if on.scatters else 2) * size * (n - 1) / n / on.link
