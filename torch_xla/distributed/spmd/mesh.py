"""Meshes of devices and partition specs.

A `Mesh` arranges the devices in a grid with named axes. A partition spec has an entry for each
dimension of a tensor: the mesh axis along which the dimension is split (its name or its index), a
tuple of axes, the one that changes slowest first, or None. The value is split in equal parts: of
a dimension that the devices along its axis do not divide, every device holds the whole.
"""

from __future__ import annotations

import ast
import collections
import math
from enum import IntEnum
from typing import Any

import numpy as np

from torch_xla import _XLAC
from torch_xla._src.dynamo.uncaptured import constant
from torch_xla.distributed.spmd.torus import (
    _create_device_mesh_for_nd_torus,
    _get_physical_tpu_mesh,
)

AxisSpec = None | int | str | tuple[int | str, ...]
PartitionSpec = tuple[AxisSpec, ...]


class ShardingError(ValueError, AssertionError):
    """A mesh or a partition spec that does not fit. (torch_xla used to raise AssertionError.)"""


class ShardingType(IntEnum):
    """Ways in which devices share a value: each holds the whole, one does, each a part, or some."""

    REPLICATED = 0
    MAXIMAL = 1
    TUPLE = 2
    TILED = 3
    MANUAL = 4
    PARTIAL = 5
    UNKNOWN = 6


MANUAL = _XLAC.OpSharding([], [], [], int(ShardingType.MANUAL))


_MESH_LABELS: dict[tuple[Any, ...], str] = {}
_LABELLED_MESHES: dict[str, Mesh] = {}


class Mesh:
    """The devices of the job in a grid with named axes.

    Args:
        device_ids: All devices, as positions among `xr.global_runtime_device_count()`, in the
            order in which they fill the grid row by row.
        mesh_shape: The sizes of the grid; they multiply to the number of devices.
        axis_names: A name for each axis; without them axes are told by their indices.

    Raises:
        ShardingError: The arguments do not fit together, or, in SPMD mode, a device of the job
            is missing.
    """

    def __init__(
        self,
        device_ids: np.ndarray | list[int],
        mesh_shape: tuple[int, ...],
        axis_names: tuple[str, ...] | None = None,
    ):
        self.device_ids = np.asarray(device_ids).ravel()
        self.mesh_shape = tuple(int(size) for size in mesh_shape)
        self.axis_names = None if axis_names is None else tuple(axis_names)
        self._check()
        self._op_shardings: dict[PartitionSpec, _XLAC.OpSharding] = {}
        # Equal meshes have one label, which is a constant for graphs of torch.compile.
        self._label = _MESH_LABELS.setdefault(self._key(), f"mesh{len(_MESH_LABELS)}")
        _LABELLED_MESHES.setdefault(self._label, self)

    def _check(self) -> None:
        count, size = len(self.device_ids), self.size()
        devices = _XLAC._xla_num_global_devices()
        if _XLAC._xla_is_spmd() and count != devices:
            raise ShardingError(
                f"Number of device IDs ({count}) must match the global number of devices "
                f"({devices})"
            )
        if self.axis_names is not None:
            names, dims = self.axis_names, len(self.mesh_shape)
            if len(names) != dims:
                raise ShardingError(
                    f"Number of axis names ({len(names)}) must match mesh dimensions ({dims})"
                )
            if len(set(names)) != len(names):
                raise ShardingError(f"Axis names must be unique, got: {names}")
        if count != size:
            raise ShardingError(f"Number of device IDs ({count}) must match mesh size ({size})")
        if len(np.unique(self.device_ids)) != count:
            raise ShardingError(f"Device IDs must be unique, got: {self.device_ids}")
        if not all(0 <= device < size for device in self.device_ids):
            raise ShardingError(
                f"Device IDs must be less than mesh size ({size}), got: {self.device_ids}"
            )

    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.mesh_shape)

    def shape(self) -> collections.OrderedDict[str | int, int]:
        """The size of each axis by its name, or by its index where axes have no names."""
        names = range(len(self.mesh_shape)) if self.axis_names is None else self.axis_names
        return collections.OrderedDict(zip(names, self.mesh_shape, strict=True))

    def get_logical_mesh(self) -> np.ndarray:
        """The device ids as an array of `mesh_shape`."""
        return self.device_ids.reshape(self.mesh_shape)

    def get_axis_name_idx(self, name: str) -> int | None:
        """The index of an axis; None where there is none of this name."""
        names = self.axis_names or ()
        return names.index(name) if name in names else None

    def get_op_sharding(self, partition_spec: PartitionSpec) -> _XLAC.OpSharding:
        """The sharding that `_XLAC._xla_mark_sharding` takes.

        Raises:
            ShardingError: The spec names an axis that the mesh lacks, or one twice.
        """
        spec = tuple(tuple(of) if isinstance(of, list) else of for of in partition_spec)
        if spec not in self._op_shardings:
            self._op_shardings[spec] = _XLAC.OpSharding.along(
                self._names(),
                list(self.mesh_shape),
                self.device_ids.tolist(),
                _axes_of_dimensions(self, spec),
            )
        return self._op_shardings[spec]

    def _names(self) -> list[str]:
        return list(self.axis_names or map(str, range(len(self.mesh_shape))))

    @classmethod
    def from_str(cls, mesh_str: str) -> Mesh | None:
        """The mesh that `str()` of it describes; None for another text."""
        try:
            fields = ast.literal_eval(mesh_str)
            return cls(np.array(fields["device_ids"]), fields["mesh_shape"], fields["axis_names"])
        except (SyntaxError, ValueError, KeyError, TypeError):
            return None

    def get_jax_mesh(self) -> Any:
        """A `jax.sharding.Mesh` of JAX's devices in the same grid.

        Raises:
            ImportError: JAX is not installed.
        """
        import jax

        devices = np.array(jax.devices())[self.device_ids]
        return jax.sharding.Mesh(devices.reshape(self.mesh_shape), tuple(self._names()))

    def _key(self) -> tuple[Any, ...]:
        return tuple(self.device_ids.tolist()), self.mesh_shape, self.axis_names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return str(
            {
                "device_ids": self.device_ids.tolist(),
                "mesh_shape": self.mesh_shape,
                "axis_names": self.axis_names,
            }
        )

    def __repr__(self) -> str:
        return f"Mesh({self})"


class HybridMesh(Mesh):
    """A mesh over several slices, which a slower network (DCN) connects than the devices within one
    (ICI).

    Each axis has `dcn_mesh_shape[i] * ici_mesh_shape[i]` devices; those of one slice come next to
    each other. Axes should be ordered by how much is sent along them, the least first. Within a
    slice of a TPU they are laid along the axes of its torus.

    Args:
        ici_mesh_shape: The grid of the devices of one slice.
        dcn_mesh_shape: The grid of the slices; without it there is one.
        axis_names: A name for each axis.

    Raises:
        ShardingError: The shapes do not multiply to the number of devices, or have different
            lengths.

    Example:
        >>> mesh = HybridMesh(ici_mesh_shape=(1, 4, 1), dcn_mesh_shape=(2, 1, 1),
        ...                   axis_names=('data', 'fsdp', 'tensor'))
        >>> mesh.shape()
        OrderedDict([('data', 2), ('fsdp', 4), ('tensor', 1)])
    """

    def __init__(
        self,
        *,
        ici_mesh_shape: tuple[int, ...],
        dcn_mesh_shape: tuple[int, ...] | None = None,
        axis_names: tuple[str, ...] | None = None,
    ):
        ici = tuple(ici_mesh_shape)
        dcn = tuple(dcn_mesh_shape) if dcn_mesh_shape is not None else (1,) * len(ici)
        if len(ici) != len(dcn):
            raise ShardingError(f"HybridMesh: expected shapes of one length, got {ici} and {dcn}.")
        count = _XLAC._xla_num_global_devices()
        if math.prod(ici) * math.prod(dcn) != count:
            raise ShardingError(
                f"HybridMesh: expected shapes that multiply to the {count} devices, got {ici} of "
                f"one slice and {dcn} of the slices."
            )
        self.ici_mesh_shape, self.dcn_mesh_shape = ici, dcn
        slices = np.stack([_laid_out(one, ici) for one in _devices_of_slices(math.prod(dcn))])
        slices = slices.reshape(dcn + ici)
        order = [axis + part * len(ici) for axis in range(len(ici)) for part in (0, 1)]
        shape = tuple(a * b for a, b in zip(dcn, ici, strict=True))
        super().__init__(slices.transpose(order).reshape(shape), shape, axis_names)


def _devices_of_slices(count: int) -> np.ndarray:
    """The devices of each slice, as the plugin tells them apart, else so many equal stretches."""
    attributes = _XLAC._xla_get_all_device_attributes()
    slices = [device.get("slice_index") for device in attributes]
    if None in slices or len(set(slices)) != count:
        return np.arange(len(attributes)).reshape(count, -1)
    order = sorted(range(len(slices)), key=lambda i: (slices[i], i))
    return np.array(order).reshape(count, -1)


def _laid_out(devices: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The devices of a slice in a grid: of a TPU's such that its axes go along those of the torus,
    of others in their order.
    """
    attributes = [_XLAC._xla_get_all_device_attributes()[device] for device in devices]
    if any(device.get("coords") is None for device in attributes):
        return devices.reshape(shape)
    physical = _get_physical_tpu_mesh(
        [(*device["coords"], device.get("core_on_chip", 0)) for device in attributes]
    )
    order, _ = _create_device_mesh_for_nd_torus(physical, shape, allow_split_physical_axes=True)
    return devices[order]


_GLOBAL_MESH: Mesh | None = None


def set_global_mesh(mesh: Mesh) -> None:
    """Sets the mesh that `get_global_mesh` returns, which FSDPv2 uses where it is given none."""
    global _GLOBAL_MESH
    _GLOBAL_MESH = mesh


def get_global_mesh() -> Mesh | None:
    """The mesh of `set_global_mesh`."""
    return _GLOBAL_MESH


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """A mesh of all devices along one axis.

    Args:
        axis_name: The name of the axis.
    """
    count = _XLAC._xla_num_global_devices()
    names = None if axis_name is None else (axis_name,)
    return Mesh(np.arange(count), (count,), names)


def _axes_of_dimensions(mesh: Mesh, partition_spec: PartitionSpec) -> list[list[int]]:
    """The indices of the axes along which each dimension is split."""
    dimensions: list[list[int]] = []
    for axes in partition_spec:
        if axes is None:
            axes = ()
        elif not isinstance(axes, (tuple, list)):
            axes = (axes,)
        dimensions.append([_axis_index(mesh, axis, partition_spec) for axis in axes])
    used = [axis for axes in dimensions for axis in axes]
    if len(set(used)) != len(used):
        raise ShardingError(
            f"partition spec: expected each mesh axis at most once, got {partition_spec}."
        )
    return dimensions


def _axis_index(mesh: Mesh, axis: int | str, partition_spec: PartitionSpec) -> int:
    if isinstance(axis, str):
        index = mesh.get_axis_name_idx(axis)
        if index is not None:
            return index
    elif isinstance(axis, (int, np.integer)) and 0 <= axis < len(mesh.mesh_shape):
        return int(axis)
    raise ShardingError(
        f"partition spec: expected axes of the mesh {dict(mesh.shape())} by name or index, got "
        f"{axis!r} in {partition_spec}."
    )


def _translate_named_partition_spec(mesh: Mesh, partition_spec: PartitionSpec) -> PartitionSpec:
    """The spec with the index of each axis in place of its name."""
    translated: list[AxisSpec] = []
    axes_of = _axes_of_dimensions(mesh, partition_spec)
    for given, axes in zip(partition_spec, axes_of, strict=True):
        if isinstance(given, (tuple, list)):
            translated.append(tuple(axes))
        else:
            translated.append(axes[0] if axes else None)
    return tuple(translated)


def _get_sharding_type(partition_spec: PartitionSpec, num_devices: int) -> ShardingType:
    """The type of a sharding that has each axis of its mesh, or None, for each dimension."""
    if num_devices == 1:
        return ShardingType.MAXIMAL
    whole = [axes is None for axes in partition_spec]
    if all(whole):
        return ShardingType.REPLICATED
    return ShardingType.PARTIAL if any(whole) else ShardingType.TILED


def _get_tile_assignment(mesh: Mesh, partition_spec: PartitionSpec) -> np.ndarray:
    """The devices by the parts that they hold.

    Returns:
        An array with the number of parts along each dimension of the tensor; if axes of the mesh
        are left, a last dimension has the devices that hold the same part.
    """
    split = _axes_of_dimensions(mesh, partition_spec)
    used = [axis for axes in split for axis in axes]
    rest = [axis for axis in range(len(mesh.mesh_shape)) if axis not in used]
    parts = list(parts_of(mesh, partition_spec))
    replicas = [math.prod(mesh.mesh_shape[axis] for axis in rest)] if rest else []
    return mesh.get_logical_mesh().transpose([*used, *rest]).reshape(parts + replicas)


def tiles_of(sharding: str) -> np.ndarray | None:
    """The devices by the parts that they hold, read from a sharding as GSPMD writes it.

    Returns:
        An array with the number of parts along each dimension of the tensor, and a last dimension
        of the devices that hold the same part; None for a sharding that splits no dimension.
    """
    tiles = _XLAC.OpSharding.tiles(sharding)
    return None if tiles is None else np.array(tiles[1]).reshape(tiles[0])


def _get_group_assignment(
    sharding_type: ShardingType,
    tile_assignment: np.ndarray,
    tensor_rank: int,
    replicate_dims: set[int],
) -> tuple[list[Any], list[Any]]:
    """The devices that hold the same parts.

    Args:
        sharding_type: Of others than PARTIAL both lists are empty.
        tile_assignment: The devices.
        tensor_rank: The number of dimensions of the tensor.
        replicate_dims: The dimensions of `tile_assignment` along which devices hold the same part;
            those beyond the tensor's are such, too.

    Returns:
        The number of each part in nested lists, one for each dimension of the tensor, and for each
        part the devices that hold it.
    """
    if sharding_type != ShardingType.PARTIAL:
        return [], []
    dims = range(tile_assignment.ndim)
    copies = [dim for dim in dims if dim in replicate_dims or dim >= tensor_rank]
    order = [dim for dim in dims if dim not in copies] + copies
    replicas = math.prod(tile_assignment.shape[dim] for dim in copies)
    holders = tile_assignment.transpose(order).reshape(-1, replicas)
    parts = [1 if dim in copies else tile_assignment.shape[dim] for dim in range(tensor_rank)]
    return np.arange(len(holders)).reshape(parts).tolist(), holders.tolist()


def check_rank(rank: int, partition_spec: PartitionSpec, who: str) -> None:
    if len(partition_spec) != rank:
        raise ShardingError(
            f"{who}: expected a partition spec with an entry for each of the {rank} dimensions "
            f"of the tensor, got {partition_spec}."
        )


def check_mesh(mesh: Mesh, who: str) -> None:
    count = _XLAC._xla_num_global_devices()
    if mesh.size() != count:
        raise ShardingError(
            f"{who}: expected a mesh of the {count} devices of this job, got one of {mesh.size()}, "
            f"{dict(mesh.shape())}."
        )


@constant
def sharding_text(mesh_label: str, partition_spec: PartitionSpec, rank: int, who: str) -> str:
    """The operators' text for a partition spec of a tensor: a constant of graphs."""
    mesh = labelled(mesh_label)
    check_mesh(mesh, who)
    check_rank(rank, partition_spec, who)
    return mesh.get_op_sharding(partition_spec).constraint(rank)


def labelled(label: str) -> Mesh:
    """The mesh, or one that equals it, that has this `_label`."""
    return _LABELLED_MESHES[label]


def parts_of(mesh: Mesh, partition_spec: PartitionSpec) -> tuple[int, ...]:
    """Into how many parts a spec splits each dimension."""
    axes_of = _axes_of_dimensions(mesh, partition_spec)
    return tuple(math.prod(mesh.mesh_shape[axis] for axis in axes) for axes in axes_of)
