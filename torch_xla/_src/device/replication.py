"""This process among the replicas of a job; in this version there is one."""

from __future__ import annotations

import os


def world_size() -> int:
    """The number of replicas.

    Raises:
        NotImplementedError: A launcher such as torchrun started this process as one of several.
    """
    size = int(os.environ.get("WORLD_SIZE") or 1)
    if size > 1:
        raise NotImplementedError(
            f"torch_xla: expected a job of one process, got WORLD_SIZE={size} from the launcher. "
            "Jobs of "
            "several processes are not supported yet. Start one process, or unset WORLD_SIZE."
        )
    return 1


def global_ordinal() -> int:
    """The ordinal of the calling thread's replica among all."""
    return world_size() - 1


def check_groups(function: str, groups: list[list[int]] | None) -> None:
    """Refuses replica groups that name replicas which do not exist."""
    if groups is not None and [list(group) for group in groups] not in ([], [[0]]):
        raise ValueError(
            f"{function}: expected groups of the replicas of this job, [[0]], got {groups}. Leave "
            "groups out."
        )
