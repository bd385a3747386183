"""The exchanges between the devices of a partitioned program, by the axes of its mesh."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Collective:
    """Operations of one kind by which devices exchange data.

    Attributes:
        kind: "all-gather", "all-reduce", "reduce-scatter", "all-to-all" or "collective-permute".
        axes: The mesh axes along which devices exchange; empty where no axes say it.
        operation: What they are for, "Model.forward/aten::mm"; "" where the compiler does not tell.
        line: The line of the program that they come from, "file:line", likewise.
        count: How many operations; one in a loop's body as often as it runs.
        bytes: Of their results, on each device.
    """

    kind: str
    axes: tuple[str, ...]
    operation: str
    line: str
    count: int
    bytes: int


class Mesh:
    """The mesh of a partitioned program."""

    def __init__(self, names: tuple[str, ...], sizes: tuple[int, ...], devices: Sequence[int]):
        self.names, self.sizes = names, sizes
        self._devices = np.array(devices).reshape(sizes)
        self._groups = {
            self._groups_along(axes): tuple(self.names[axis] for axis in axes)
            for count in range(len(self.sizes), 0, -1)
            for axes in itertools.combinations(range(len(self.sizes)), count)
        }

    def size(self) -> int:
        return math.prod(self.sizes)

    def axes_of(self, kind: str, groups: Sequence[Sequence[int]]) -> tuple[str, ...]:
        """The axes along which the devices of each group differ."""
        if kind == "collective-permute":
            return self._axes_of_pairs(groups)
        return self._groups.get(frozenset(frozenset(group) for group in groups), ())

    def _groups_along(self, axes: tuple[int, ...]) -> frozenset[frozenset[int]]:
        size = math.prod(self.sizes[axis] for axis in axes)
        moved = np.moveaxis(self._devices, axes, range(-len(axes), 0))
        return frozenset(frozenset(group) for group in moved.reshape(-1, size).tolist())

    def _axes_of_pairs(self, pairs: Iterable[Sequence[int]]) -> tuple[str, ...]:
        places = {device: place for place, device in np.ndenumerate(self._devices)}
        differ = {
            axis
            for sender, receiver in pairs
            for axis, (a, b) in enumerate(zip(places[sender], places[receiver], strict=True))
            if a != b
        }
        return tuple(self.names[axis] for axis in sorted(differ))


def summed(
    found: Iterable[tuple[str, int, int, list[list[int]], str, str]], mesh: Mesh
) -> list[Collective]:
    """Those of one kind, axes, operation and line as one, the most bytes first."""
    sums: dict[tuple[str, tuple[str, ...], str, str], list[int]] = {}
    for kind, size, times, groups, operation, line in found:
        total = sums.setdefault((kind, mesh.axes_of(kind, groups), operation, line), [0, 0])
        total[0] += times
        total[1] += times * size
    collectives = [Collective(*key, *total) for key, total in sums.items()]
    return sorted(collectives, key=lambda c: -c.bytes)
