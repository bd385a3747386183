"""Splits tensors of a program among devices while it runs, which must change nothing."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence

import torch

import torch_xla.distributed.spmd as xs
from tests.fuzz.program import Step

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
        xs.mark_sharding(t.detach(), mesh, tuple(spec))

    return split
