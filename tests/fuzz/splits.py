"""Splits tensors of a program among devices while it runs, which must change nothing."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence

import torch

import torch_xla.distributed.spmd as xs
from tests.fuzz.program import Step
from torch_xla import _XLAC
from torch_xla.distributed.spmd.auto_sharding.program import read

SHARE = 0.3  # of the steps after which a tensor is split


def splitter(program: Sequence[Step]) -> Callable[[dict[str, torch.Tensor]], None]:
    """A function to be called after each step with the tensors on the device."""
    # A reduced program mostly keeps its first step, and so its splits.
    rng = random.Random(zlib.crc32(program[0].line.encode()) if program else 0)
    mesh = xs.Mesh(list(range(4)), (2, 2), ("a", "b"))

    def split(tensors: dict[str, torch.Tensor]) -> None:
        names = [n for n, t in tensors.items() if t.dim() > 0 and t.device.type == "xla"]
        if not names or rng.random() > SHARE:
            return
        t = tensors[rng.choice(names)]
        dims, axes = list(range(t.dim())), ["a", "b"]
        rng.shuffle(dims)
        rng.shuffle(axes)
        spec: list[str | None] = [None] * t.dim()
        for dim, axis in zip(dims, axes[: rng.randint(0, 2)], strict=False):
            spec[dim] = axis
        xs.mark_sharding(xs.clear_sharding(t.detach()), mesh, tuple(spec))

    return split


def plan(platform: str, devices: int, data: dict, leaves: Sequence, replaces: Sequence[int]):
    """A plan of auto-sharding that splits some data and some results at random."""
    rng = random.Random(zlib.crc32(repr(data).encode()))
    program = read(data)

    def some(value: int):
        sizes = program.types[value].dims
        if rng.random() > SHARE or 0 in sizes:
            return None
        spec: list[list[int]] = [[] for _ in sizes]
        left = list(sizes)
        for axis in (0, 1):
            dims = [d for d, size in enumerate(left) if size % 2 == 0]
            if dims and rng.random() < 0.7:
                dim = rng.choice(dims)
                left[dim] //= 2
                spec[dim].append(axis)
        return _XLAC.OpSharding.along(["a", "b"], [2, 2], list(range(4)), spec)

    of_leaves = [
        some(value) if leaf is None else None
        for leaf, value in zip(leaves, program.arguments, strict=False)
    ]
    of_results = [
        (call, index, sharding)
        for _, call, results in program.calls
        for index, value in enumerate(results)
        if (sharding := some(value)) is not None
    ]
    return of_leaves, of_results
