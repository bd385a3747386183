"""Orders of a host's TPU chips in which neighbours of a ring are neighbours in the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import cast

from torch_xla import _XLAC
from torch_xla._src.device import plugins

_TPU_V5P = "v5p"
_TPU_V6E = "v6e"

# By the number of the device: around a cube, and around a board of two rows.
_V5P_2x2x2_ORDER = (0, 1, 3, 2, 6, 7, 5, 4)
_V6E_2x4_ORDER = (0, 2, 4, 6, 7, 5, 3, 1)


@cache
def _get_xyz_bounds() -> tuple[int, int, int]:
    """The number of chips in each direction; 1 where the plugin tells of no places."""
    places = [
        cast(Sequence[int], device.get("coords", (0, 0, 0)))
        for device in _XLAC._xla_get_all_device_attributes()
    ]
    x, y, z = (max(place[axis] for place in places) + 1 for axis in range(3))
    return x, y, z


def _v5p_create_replica_groups() -> list[list[int]] | None:
    """One group around a cube of eight chips; None elsewhere."""
    return [list(_V5P_2x2x2_ORDER)] if _get_xyz_bounds() == (2, 2, 2) else None


def _v6e_create_replica_groups() -> list[list[int]] | None:
    """One group around a board of two by four chips; None elsewhere."""
    return [list(_V6E_2x4_ORDER)] if _get_xyz_bounds()[:2] == (2, 4) else None


device_kind_handler_dict: dict[str, Callable[..., list[list[int]] | None]] = {
    _TPU_V5P: _v5p_create_replica_groups,
    _TPU_V6E: _v6e_create_replica_groups,
}


def _is_tpu() -> bool:
    is_used = _XLAC._xla_is_initialized()
    return (_XLAC._xla_device_type() if is_used else plugins.chosen()) == "TPU"


def create_optimized_replica_groups() -> list[list[int]] | None:
    """Groups for `xm.all_reduce` and its kin in a good order; None where any order is as good."""
    if not _is_tpu():
        return None
    from torch_xla._internal import tpu

    handler = device_kind_handler_dict.get(tpu.get_tpu_type())
    return None if handler is None else handler()
