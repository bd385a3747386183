"""NEURON_RT_VISIBLE_CORES: which cores of a machine with Neuron chips a job may use."""

from __future__ import annotations

import os
import re

_VARIABLE = "NEURON_RT_VISIBLE_CORES"


def convert_range(range_spec: str) -> list[int]:
    """The cores of "3", or of "2-5".

    Raises:
        ValueError: It is neither, or the second number is the smaller one.
    """
    found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", range_spec)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if first > last:
        raise ValueError(
            f"{_VARIABLE}: expected a number, or two such as '2-5' in order, got '{range_spec}'."
        )
    return list(range(first, last + 1))


def get_visible_cores_list() -> list[int] | None:
    """The cores that the variable names, such as "0,2-5"; None where it is not set.

    Raises:
        ValueError: It names a core twice, or is not of this form.
    """
    text = os.environ.get(_VARIABLE)
    if not text:
        return None
    cores = [core for part in text.split(",") for core in convert_range(part)]
    if len(set(cores)) < len(cores):
        raise ValueError(f"{_VARIABLE}: expected each core once, got '{text}'.")
    return cores


def remap_visible_cores(local_rank: int, local_world_size: int) -> None:
    """Leaves a process the one core that is its own among those that the variable names.

    A process by itself keeps its core.

    Args:
        local_rank: This process among those of this machine.
        local_world_size: The number of these.

    Raises:
        ValueError: There is not one core for each process, or no process of this rank.
    """
    if local_world_size <= 0:
        raise AssertionError(f"{_VARIABLE}: expected one process or more, got {local_world_size}.")
    cores = get_visible_cores_list() or []
    if local_world_size == 1 and len(cores) <= 1:
        return
    if len(cores) != local_world_size:
        raise ValueError(
            f"{_VARIABLE}: expected a core for each of {local_world_size} processes, got {cores}."
        )
    if local_rank >= local_world_size:
        raise ValueError(
            f"{_VARIABLE}: expected a rank below {local_world_size}, got {local_rank}."
        )
    os.environ[_VARIABLE] = str(cores[local_rank])
