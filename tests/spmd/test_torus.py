"""Logical meshes on a torus, and shardings as arrays of devices."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import torch_xla.distributed.spmd as xs
from torch_xla import _XLAC
from torch_xla.distributed.spmd import debugging, xla_sharding

from .test_sharding import EIGHT, PRELUDE


def shapes_of(count: int, axes: int) -> list[tuple[int, ...]]:
    divisors = [n for n in range(1, count + 1) if count % n == 0]
    return [s for s in itertools.product(divisors, repeat=axes) if math.prod(s) == count]


def check(physical: np.ndarray, shape: tuple[int, ...], mesh: np.ndarray, assignment: np.ndarray):
    """Each device has its place, and along a logical axis devices differ along the physical axes
    that the axis has been given alone."""
    assert mesh.shape == shape and sorted(mesh.ravel()) == list(range(physical.size))
    assert tuple(assignment.prod(axis=0)) == shape
    assert tuple(assignment.prod(axis=1)) == physical.shape
    place = {int(device): at for at, device in np.ndenumerate(physical)}
    for logical in range(len(shape)):
        lines = np.moveaxis(mesh, logical, -1).reshape(-1, shape[logical])
        for line in lines:
            along = np.array([place[int(device)] for device in line])
            for axis in range(physical.ndim):
                assert len(set(along[:, axis])) == assignment[axis, logical]


@pytest.mark.parametrize("sizes", [(2, 4), (4, 4, 4), (2, 3, 4), (8,), (2, 2, 2, 1)])
def test_every_shape_fits_where_axes_may_be_split(sizes):
    physical = np.random.default_rng(0).permutation(math.prod(sizes)).reshape(sizes)
    for shape in shapes_of(physical.size, 1) + shapes_of(physical.size, 3):
        check(
            physical,
            shape,
            *xla_sharding._create_device_mesh_for_nd_torus(
                physical, shape, allow_split_physical_axes=True
            ),
        )
        check(
            physical,
            shape,
            *xla_sharding._create_device_mesh_for_nd_torus_splitting_axes(physical, shape),
        )


def test_whole_axes():
    physical = np.arange(64).reshape(4, 4, 4)
    mesh, assignment = xla_sharding._create_device_mesh_for_nd_torus(physical, (4, 16))
    check(physical, (4, 16), mesh, assignment)
    assert sorted(assignment[:, 1].tolist()) == [1, 4, 4]
    with pytest.raises(NotImplementedError, match="allow_split_physical_axes"):
        xla_sharding._create_device_mesh_for_nd_torus(physical, (2, 32))
    with pytest.raises(ValueError, match="multiply to the 64 devices"):
        xla_sharding._create_device_mesh_for_nd_torus(physical, (4, 4))
    # An axis that can have whole physical axes has them, which alone wrap around.
    _, assignment = xla_sharding._create_device_mesh_for_nd_torus_splitting_axes(
        np.arange(32).reshape(4, 8), (2, 2, 8)
    )
    assert assignment[:, 2].tolist() == [1, 8]


@pytest.mark.parametrize(
    ("sizes", "shape", "assignment"),
    [
        ((4, 4, 8), (16, 1, 4, 2), [[2, 1, 1, 2], [1, 1, 4, 1], [8, 1, 1, 1]]),
        ((2, 3, 4), (2, 1, 6, 2), [[1, 1, 1, 2], [1, 1, 3, 1], [2, 1, 2, 1]]),
        ((8, 4, 4), (1, 1, 2, 64), [[1, 1, 1, 8], [1, 1, 1, 4], [1, 1, 2, 2]]),
        ((4, 8, 1), (2, 2, 8), [[2, 2, 1], [1, 1, 8], [1, 1, 1]]),
        ((2, 4, 1), (2, 2, 2), [[1, 1, 2], [2, 2, 1], [1, 1, 1]]),
    ],
)
def test_axes_that_are_split_as_jax_splits_them(sizes, shape, assignment):
    """What mesh_utils of JAX 0.7.1 and torch_xla 2.9 give."""
    mesh, found = xla_sharding._create_device_mesh_for_nd_torus(
        np.arange(math.prod(sizes)).reshape(sizes), shape, allow_split_physical_axes=True
    )
    assert found.tolist() == assignment
    check(np.arange(mesh.size).reshape(sizes), shape, mesh, found)


def test_parts_of_an_assignment():
    assert [xla_sharding._get_prime_factors(n) for n in (1, 2, 12, 49, 97)] == [
        [],
        [2],
        [2, 2, 3],
        [7, 7],
        [97],
    ]
    with pytest.raises(ValueError, match="from 1 on"):
        xla_sharding._get_prime_factors(0)
    taken = np.array([[2, 1], [1, 1]])
    ways = xla_sharding._enumerate_feasible_logical_axis_assignments((4, 8), taken, 4)
    assert sorted(way.tolist() for way in ways) == [[1, 4], [2, 2]]
    assert not list(xla_sharding._enumerate_feasible_logical_axis_assignments((4, 8), taken, 5))
    free = np.ones((2, 2), dtype=np.int64)
    prefer = xla_sharding._prefer_first_logical_axis_assignment
    for better, worse in [([4, 1], [2, 2]), ([2, 2], [1, 4])]:
        better, worse = np.array(better), np.array(worse)
        assert prefer(better, worse, physical_mesh_shape=(4, 8), assignment=free)
        assert not prefer(worse, better, physical_mesh_shape=(4, 8), assignment=free)


def test_a_hybrid_mesh_follows_the_torus(monkeypatch):
    """Two slices of 2 x 4 chips, whose devices the plugin gives in another order."""
    places = list(itertools.product(range(2), range(4)))
    order = np.random.default_rng(1).permutation(16)
    attributes = [
        {"slice_index": int(i) // 8, "coords": [*places[i % 8], 0], "core_on_chip": 0}
        for i in order
    ]
    monkeypatch.setattr(_XLAC, "_xla_num_global_devices", lambda: 16)
    monkeypatch.setattr(_XLAC, "_xla_get_all_device_attributes", lambda: attributes)
    mesh = xs.HybridMesh(ici_mesh_shape=(4, 2), dcn_mesh_shape=(2, 1), axis_names=("a", "b"))
    grid = mesh.get_logical_mesh()
    assert grid.shape == (8, 2)
    for part, rows in enumerate((grid[:4], grid[4:])):
        assert {attributes[d]["slice_index"] for d in rows.ravel()} == {part}
        for row in rows:  # along "b" the first coordinate alone changes
            first, second = (attributes[d]["coords"] for d in row)
            assert first[0] != second[0] and first[1:] == second[1:]
    attributes[0]["coords"] = [5, 5, 5]
    with pytest.raises(ValueError, match="fill a grid"):
        xs.HybridMesh(ici_mesh_shape=(4, 2), dcn_mesh_shape=(2, 1))


@pytest.mark.slow
def test_arrays_of_devices_say_the_same(run_python):
    run_python(
        PRELUDE
        + """
from torch_xla.distributed.spmd.xla_sharding import (
    _get_group_assignment, _get_sharding_type, _get_tile_assignment)
turned = xs.Mesh(np.arange(8)[::-1].copy(), (2, 2, 2), ("x", "y", "z"))
value = torch.randn(16, 8)
for m, specs in [
    (mesh, [("data", "model"), ("model", "data"), ("data", None), (None, "model"), (None, None),
            (("data", "model"), None), (("model", "data"), None)]),
    (turned, [("x", "y"), ("z", ("y", "x")), (None, "y"), (("z", "x"), None)]),
]:
    for partition in specs:
        given = xs.ShardingSpec(m, partition)
        tiles = _get_tile_assignment(m, partition)
        assert sorted(tiles.ravel()) == list(range(8))
        kind = _get_sharding_type(partition, 8)
        assert (kind == xs.ShardingType.REPLICATED) == (partition == (None, None))
        made = given.xla_spec(value)
        (moved,) = _XLAC._xla_tensors_from_aten([value], [str(device)], [made])
        assert spec(moved) == str(m.get_op_sharding(partition)), partition
        check_shards(moved, value)
assert xs.ShardingSpec(mesh, ("data",)).xla_spec(value) is None
(moved,) = _XLAC._xla_tensors_from_aten(
    [value[0]], [str(device)], [xs.ShardingSpec(mesh, ("data",)).xla_spec(value[0])])
assert check_shards(moved, value[0]) == 4
(plain,) = _XLAC._xla_tensors_from_aten([value], [str(device)], [None])
assert spec(plain) == ""
kinds = xs.ShardingType
assert _get_sharding_type(("data", None), 1) == kinds.MAXIMAL
assert _get_sharding_type(("data", None), 8) == kinds.PARTIAL
assert _get_sharding_type(("data", "model"), 8) == kinds.TILED
assert _get_group_assignment(kinds.TILED, np.arange(8), 1, set()) == ([], [])
grid = np.arange(8).reshape(2, 4)
assert _get_group_assignment(kinds.PARTIAL, grid, 2, {1}) == (
    [[0], [1]], [[0, 1, 2, 3], [4, 5, 6, 7]])
assert _get_group_assignment(kinds.PARTIAL, grid, 2, {0}) == (
    [[0, 1, 2, 3]], [[0, 4], [1, 5], [2, 6], [3, 7]])
""",
        env=EIGHT,
    )


def test_names_of_the_drawing_module():
    assert debugging.mark_sharding is xs.mark_sharding
    assert isinstance(debugging.RICH_ENABLED, bool)
