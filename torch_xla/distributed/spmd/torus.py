"""Logical meshes laid on the torus in which the chips of a TPU slice are wired.

An assignment is a matrix: of each physical axis (a row) the part that each logical axis (a column)
takes. Rows multiply to the physical sizes, columns to the logical ones. Devices that communicate
along a logical axis are then neighbours along the physical axes that it has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np


def _get_physical_tpu_mesh(coordinates: Sequence[Sequence[int]]) -> np.ndarray:
    """The devices in the grid of their coordinates, as positions in `coordinates`.

    Raises:
        ValueError: They fill no grid.
    """
    places = np.array(coordinates)
    places = places - places.min(axis=0)
    shape = places.max(axis=0) + 1
    mesh = np.full(shape, -1)
    for device, place in enumerate(places):
        mesh[tuple(place)] = device
    if mesh.size != len(places) or (mesh < 0).any():
        raise ValueError(
            f"physical mesh: expected devices that fill a grid of {tuple(shape.tolist())}, got "
            f"{len(places)} of them."
        )
    return mesh


def _create_device_mesh_for_nd_torus(
    physical_mesh: np.ndarray,
    mesh_shape: Sequence[int],
    *,
    allow_split_physical_axes: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Lays a logical mesh on a torus such that each logical axis has whole physical ones, the last
    as many as it can: it communicates most, and over more links.

    Args:
        physical_mesh: The devices in the grid of their coordinates.
        mesh_shape: The sizes of the logical axes.
        allow_split_physical_axes: Whether logical axes may share a physical one where there is no
            other way.

    Returns:
        The devices in the logical mesh, and the assignment.

    Raises:
        NotImplementedError: There is no such assignment.
    """
    _check_sizes(physical_mesh, mesh_shape)
    assignment = np.ones((physical_mesh.ndim, len(mesh_shape)), dtype=np.int64)
    free = {axis for axis, size in enumerate(physical_mesh.shape) if size > 1}
    for logical in reversed(range(len(mesh_shape))):
        taken = _whole_axes(physical_mesh.shape, sorted(free), mesh_shape[logical])
        if taken is None:
            if allow_split_physical_axes:
                return _create_device_mesh_for_nd_torus_splitting_axes(physical_mesh, mesh_shape)
            raise NotImplementedError(
                f"mesh on a torus: expected axes that are products of those of "
                f"{physical_mesh.shape}, got {tuple(mesh_shape)}. Pass "
                "allow_split_physical_axes=True to have logical axes share a physical one."
            )
        for axis in taken:
            assignment[axis, logical] = physical_mesh.shape[axis]
        free -= set(taken)
    return _generate_logical_mesh(physical_mesh, mesh_shape, assignment), assignment


def _check_sizes(physical_mesh: np.ndarray, mesh_shape: Sequence[int]) -> None:
    if math.prod(mesh_shape) != physical_mesh.size:
        raise ValueError(
            f"mesh on a torus: expected sizes that multiply to the {physical_mesh.size} devices, "
            f"got {tuple(mesh_shape)}."
        )


def _whole_axes(sizes: Sequence[int], free: Sequence[int], size: int) -> Sequence[int] | None:
    """The most of the free axes that multiply to a size."""
    for count in reversed(range(len(free) + 1)):
        for axes in itertools.combinations(free, count):
            if math.prod(sizes[axis] for axis in axes) == size:
                return axes
    return None


def _create_device_mesh_for_nd_torus_splitting_axes(
    physical_mesh: np.ndarray, mesh_shape: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """As `_create_device_mesh_for_nd_torus`; logical axes may share physical ones."""
    _check_sizes(physical_mesh, mesh_shape)
    assignment = np.ones((physical_mesh.ndim, len(mesh_shape)), dtype=np.int64)
    for logical in reversed(range(len(mesh_shape))):  # the last communicates most
        ways = _enumerate_feasible_logical_axis_assignments(
            physical_mesh.shape, assignment, mesh_shape[logical]
        )
        best = next(ways)  # there is one, as the prime factors of all sizes are the same
        for way in ways:
            if _prefer_first_logical_axis_assignment(
                way, best, physical_mesh_shape=physical_mesh.shape, assignment=assignment
            ):
                best = way
        assignment[:, logical] = best
    return _generate_logical_mesh(physical_mesh, mesh_shape, assignment), assignment


def _generate_logical_mesh(
    physical_mesh: np.ndarray, logical_mesh_shape: Sequence[int], assignment: np.ndarray
) -> np.ndarray:
    """The devices of a torus in a logical mesh.

    Args:
        physical_mesh: The devices in the grid of their coordinates.
        logical_mesh_shape: The sizes of the logical axes.
        assignment: See this module's text.
    """
    rows, columns = assignment.shape
    parts = physical_mesh.reshape(assignment.ravel())  # a dimension for each part, row by row
    by_logical = [row * columns + column for column in range(columns) for row in range(rows)]
    return parts.transpose(by_logical).reshape(logical_mesh_shape)


def _get_prime_factors(x: int) -> list[int]:
    """The prime factors of a number, the least first, each as often as it divides."""
    if x < 1:
        raise ValueError(f"prime factors: expected a number from 1 on, got {x}.")
    factors = []
    for divisor in itertools.count(2):
        if divisor * divisor > x:
            break
        while x % divisor == 0:
            factors.append(divisor)
            x //= divisor
    return [*factors, x] if x > 1 else factors


def _enumerate_feasible_logical_axis_assignments(
    physical_mesh_shape: Sequence[int], assignment: np.ndarray, logical_axis_size: int
) -> Generator[np.ndarray, None, None]:
    """The ways in which a logical axis can take parts of what is left of the physical axes.

    Args:
        physical_mesh_shape: The sizes of the physical axes.
        assignment: What other logical axes have taken.
        logical_axis_size: The size that the parts multiply to.
    """
    left = [
        size // int(taken)
        for size, taken in zip(physical_mesh_shape, assignment.prod(axis=1), strict=True)
    ]

    def ways(axis: int, size: int) -> Generator[tuple[int, ...], None, None]:
        if axis == len(left):
            if size == 1:
                yield ()
            return
        for part in range(1, left[axis] + 1):
            if left[axis] % part == 0 and size % part == 0:
                for rest in ways(axis + 1, size // part):
                    yield (part, *rest)

    for way in ways(0, logical_axis_size):
        yield np.array(way, dtype=np.int64)


def _prefer_first_logical_axis_assignment(
    x: np.ndarray,
    y: np.ndarray,
    *,
    physical_mesh_shape: Sequence[int],
    assignment: np.ndarray,
) -> bool:
    """True if a logical axis is better laid by `x` than by `y`, as JAX chooses.

    Whole physical axes are best, since only they wrap around: the larger part of the axis they are,
    then the more of them. Then those that other logical axes use, too, which leaves whole ones to
    the rest; of equal ones the first.
    """

    def merits(column: np.ndarray) -> tuple[Any, ...]:
        whole = [int(n) for n, all_ in zip(column, physical_mesh_shape, strict=True) if n == all_]
        shared = column[assignment.prod(axis=1) > 1]
        number = sum(n > 1 for n in whole)
        return math.prod(whole), number, int(shared.prod()), tuple(column.tolist())

    return merits(x) > merits(y)
