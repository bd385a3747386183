"""Between placements on a `DeviceMesh("xla", ...)` and shardings of the mesh of all devices.

A placement says for a dimension of the `DeviceMesh` what it splits; a partition spec says for a
dimension of the tensor what it is split along. A sub-mesh (`mesh["tp"]`) has some axes of its root.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from torch_xla import _XLAC
from torch_xla._src.dynamo.uncaptured import constant
from torch_xla.distributed.spmd.mesh import Mesh, PartitionSpec, ShardingError, tiles_of


class DimensionError(ShardingError, IndexError):
    """A placement of a dimension that the tensor lacks."""


class ByCompiler(Placement):
    """Split as the compiler chooses: the program that computes the value is not compiled yet, or
    its choice is none that `Shard` and `Replicate` can say on the mesh.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByCompiler)

    def __hash__(self) -> int:
        return hash(ByCompiler)

    def __repr__(self) -> str:
        return "ByCompiler()"

    def __str__(self) -> str:
        return "C"


def root_of(device_mesh: DeviceMesh) -> DeviceMesh:
    """The mesh of all devices of which a mesh has some axes; the mesh itself if it has all devices.

    Raises:
        ValueError: It is one of other devices than `xla`.
    """
    if device_mesh.device_type != "xla":
        raise ValueError(
            f"convert_to_xla_mesh: expected a DeviceMesh of 'xla', got one of "
            f"'{device_mesh.device_type}'."
        )
    root = device_mesh._get_root_mesh()
    return root if root.size() != device_mesh.size() else device_mesh


def convert_to_xla_mesh(dt_mesh: DeviceMesh) -> Mesh:
    """The mesh of a `DeviceMesh("xla", ...)`; of a sub-mesh that of its root.

    Raises:
        ValueError: It is one of other devices.
    """
    root = root_of(dt_mesh)
    names = root.mesh_dim_names
    return Mesh(root.mesh.flatten().tolist(), tuple(root.shape), names)


def convert_to_device_mesh(mesh: Mesh) -> DeviceMesh:
    """The `DeviceMesh("xla", ...)` with the devices and axes of a mesh."""
    return DeviceMesh("xla", mesh.get_logical_mesh(), mesh_dim_names=mesh.axis_names)


def _lines(device_mesh: DeviceMesh) -> list[list[int]]:
    """The devices along each dimension, from the mesh's first device on."""
    ids = device_mesh.mesh
    return [
        ids[(0,) * i + (slice(None),) + (0,) * (ids.dim() - i - 1)].tolist()
        for i in range(ids.dim())
    ]


def axes_of(device_mesh: DeviceMesh) -> list[list[int]]:
    """For each dimension of a mesh the axes of its root along which it goes, the slowest first.

    Raises:
        ShardingError: A dimension goes through parts of axes.
    """
    root = root_of(device_mesh)
    if root is device_mesh:
        return [[axis] for axis in range(root.ndim)]
    grid = root.mesh.numpy()
    found = []
    for line in _lines(device_mesh):
        places = np.array([np.argwhere(grid == device)[0] for device in line])
        axes = [axis for axis in range(root.ndim) if len(set(places[:, axis])) > 1]
        whole = list(np.ndindex(*(grid.shape[axis] for axis in axes)))
        if [tuple(place) for place in places[:, axes].tolist()] != whole:
            raise ShardingError(
                f"DeviceMesh: expected dimensions that go along whole axes of {root}, got "
                f"{device_mesh}."
            )
        found.append(axes)
    return found


def checked(
    placements: Sequence[Placement],
    rank: int,
    device_mesh: DeviceMesh,
    who: str,
    may_be_partial: bool = False,
) -> tuple[Placement, ...]:
    """Placements for all dimensions of a mesh, as `normalized` gives them.

    Raises:
        ShardingError: Not one for each mesh dimension.
    """
    if len(placements) != device_mesh.ndim:
        raise ShardingError(
            f"{who}: expected a placement for each of the {device_mesh.ndim} mesh dimensions, got "
            f"[{_described(tuple(placements))}]."
        )
    return normalized(placements, rank, who, may_be_partial)


def normalized(
    placements: Sequence[Placement], rank: int, who: str, may_be_partial: bool = False
) -> tuple[Placement, ...]:
    """The placements with the dimensions of a tensor counted from the front.

    Raises:
        DimensionError: A dimension that the tensor lacks.
        NotImplementedError: Neither `Shard` nor `Replicate`, nor `Partial` where there may be one.
    """
    for placement in placements:
        if isinstance(placement, Replicate) or (may_be_partial and type(placement) is Partial):
            continue
        if not isinstance(placement, Shard):
            kinds = "Shard, Replicate or Partial" if may_be_partial else "Shard or Replicate"
            told = f"{who}: expected {kinds} on an xla mesh, got {_described((placement,))}."
            if type(placement) is Partial:
                told += " DTensor.from_local and distribute_tensor make it."
            raise NotImplementedError(told)
        if not -rank <= placement.dim < rank:
            raise DimensionError(
                f"{who}: expected dimensions of a tensor of {rank}, got {_described((placement,))}."
            )
    return _from_front(tuple(placements), rank)


def has_partial(placements: Sequence[Placement]) -> bool:
    """True if devices hold what is to be reduced along some dimension of the mesh."""
    return any(isinstance(p, Partial) for p in placements)


@constant
def _from_front(placements: tuple[Placement, ...], rank: int) -> tuple[Placement, ...]:
    return tuple(Shard(p.dim % rank) if isinstance(p, Shard) else p for p in placements)


@constant
def _described(placements: tuple[Placement, ...]) -> str:
    return ", ".join(map(repr, placements))


def spec_along(
    rank: int, axes: Sequence[Sequence[int]], placements: Sequence[Placement]
) -> PartitionSpec:
    """The partition spec for placements, each of which is along some axes."""
    dims: list[list[int]] = [[] for _ in range(rank)]
    for along, placement in zip(axes, placements, strict=True):
        if isinstance(placement, Shard):
            dims[placement.dim].extend(along)
    return tuple(tuple(sorted(of)) if len(of) > 1 else of[0] if of else None for of in dims)


def partition_spec(
    rank: int, device_mesh: DeviceMesh, placements: Sequence[Placement], present: str = ""
) -> PartitionSpec:
    """The spec on the mesh of all devices for placements on a mesh or a sub-mesh.

    Args:
        rank: The number of dimensions of the tensor.
        placements: As `checked` gives them.
        present: How the tensor is split now. A sub-mesh leaves that as it is along other axes.
    """
    axes, said = axes_of(device_mesh), list(placements)
    root = root_of(device_mesh)
    if root is not device_mesh:
        other = placements_of(present, root, rank)
        rest = set(range(root.ndim)) - {axis for along in axes for axis in along}
        axes = [*axes, *([axis] for axis in rest)]
        said += [other[axis] for axis in rest]
    return spec_along(rank, axes, said)


def op_sharding(
    rank: int, device_mesh: DeviceMesh, placements: Sequence[Placement], present: str = ""
) -> _XLAC.OpSharding:
    """The sharding that `_XLAC._xla_mark_sharding` takes; see `partition_spec`."""
    spec = partition_spec(rank, device_mesh, placements, present)
    return convert_to_xla_mesh(device_mesh).get_op_sharding(spec)


def placements_of(sharding: str, device_mesh: DeviceMesh, rank: int) -> tuple[Placement, ...]:
    """The placements that say a sharding, as GSPMD writes it; `ByCompiler` where none does."""
    if sharding == "{replicated}":
        return (Replicate(),) * device_mesh.ndim
    tiles = tiles_of(sharding)
    if tiles is None:
        return (ByCompiler(),) * device_mesh.ndim
    part_of = {int(device): part[:rank] for part, device in np.ndenumerate(tiles)}
    found = tuple(_placement([part_of[device] for device in line]) for line in _lines(device_mesh))
    if root_of(device_mesh) is device_mesh and ByCompiler() not in found:
        said = spec_along(rank, axes_of(device_mesh), found)
        if str(convert_to_xla_mesh(device_mesh).get_op_sharding(said)) != sharding:
            return (ByCompiler(),) * device_mesh.ndim
    return found


def placements_of_spec(
    spec: PartitionSpec, mesh_shape: Sequence[int], mesh: Mesh | None
) -> tuple[Placement, ...]:
    """The placements that say a partition spec.

    Args:
        spec: Axes by their index, or by their name in `mesh`.
        mesh_shape: The sizes of the mesh.
        mesh: The mesh, where it is known.
    """
    dims: dict[int | str | None, int] = {}
    for dim, entry in enumerate(spec):
        for axis in entry if isinstance(entry, (tuple, list)) else (entry,):
            if isinstance(axis, str) and mesh is not None:
                axis = mesh.get_axis_name_idx(axis)
            dims[axis] = dim
    return tuple(Shard(dims[i]) if i in dims else Replicate() for i in range(len(mesh_shape)))


def _placement(parts: Sequence[tuple[int, ...]]) -> Placement:
    """The placement of a line of devices, of which each holds the part with these indices."""
    split = [dim for dim, along in enumerate(zip(*parts, strict=True)) if len(set(along)) > 1]
    if not split:
        return Replicate()
    along = [part[split[0]] for part in parts]
    if len(split) > 1 or along != sorted(set(along)):
        return ByCompiler()
    return Shard(split[0])


# Captured graphs have strings for meshes: it keeps constants, and guards on them.
_NAMES: dict[tuple[DeviceMesh, DeviceMesh], str] = {}
_MESHES: dict[str, DeviceMesh] = {}


def name_of(device_mesh: DeviceMesh) -> str:
    """The name of a mesh; equal slices of equal meshes have one."""
    return _name_of((device_mesh, device_mesh._root_mesh))


@constant
def _name_of(mesh_and_root: tuple[DeviceMesh, DeviceMesh | None]) -> str:
    mesh = mesh_and_root[0]
    name = _NAMES.setdefault((mesh, root_of(mesh)), f"mesh{len(_NAMES)}")
    _MESHES.setdefault(name, mesh)
    return name


def mesh_of(name: str) -> DeviceMesh:
    """The mesh that has a name."""
    return _MESHES[name]


@constant
def placements_by_name(sharding: str, mesh_name: str, rank: int) -> tuple[Placement, ...]:
    """`placements_of`, of a mesh by its name."""
    return placements_of(sharding, _MESHES[mesh_name], rank)


@constant
def constraint_along(
    mesh_name: str, placements: tuple[Placement, ...], rank: int, present: str
) -> str | None:
    """The constraint for placements, as `partition_spec` takes them. None where a sub-mesh says
    nothing about the other axes, and the value is not split yet: then the compiler chooses, since
    a constraint is one along all axes.
    """
    mesh = _MESHES[mesh_name]
    if present == "" and root_of(mesh) is not mesh:
        return None
    return op_sharding(rank, mesh, placements, present).constraint(rank)
