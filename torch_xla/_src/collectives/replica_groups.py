"""The groups of replicas in which an exchange of `torch_xla.core.xla_model` takes place."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from torch_xla._src.job import place as _place


class Groups(NamedTuple):
    """Groups of one size, in which replicas exchange among themselves.

    Attributes:
        members: The ranks of all of them, one group after the other.
        size: How many ranks a group has.
        place: This process's place in its own.
    """

    members: tuple[int, ...]
    size: int
    place: int

    @property
    def own(self) -> tuple[int, ...]:
        """The ranks of this process's group."""
        here, _ = _place.replica()
        start = self.members.index(here) // self.size * self.size
        return self.members[start : start + self.size]


def of(function: str, groups: Sequence[Sequence[int]] | None) -> Groups:
    """The groups that a caller of `function` names; one of all replicas where it names none.

    Raises:
        ValueError: They are of several sizes, or not of ranks of the job, each once, among them
            this process's.
    """
    rank, count = _place.replica()
    named = tuple(tuple(group) for group in groups) if groups else ()
    return _checked(function, named, rank, count)


@functools.lru_cache(maxsize=1024)
def _checked(function: str, groups: tuple[tuple[int, ...], ...], rank: int, count: int) -> Groups:
    if not groups:
        return Groups(tuple(range(count)), count, rank)
    sizes = [len(group) for group in groups]
    members = tuple(member for group in groups for member in group)
    if len(set(sizes)) != 1 or sizes[0] == 0:
        raise ValueError(
            f"{function}: expected groups of one size, got groups of {sizes} replicas. Call it "
            "for each size by itself."
        )
    if len(set(members)) != len(members) or not all(0 <= member < count for member in members):
        raise ValueError(
            f"{function}: expected groups of the replicas of this job, {[list(range(count))]} or "
            f"parts of it, got {[list(group) for group in groups]}. Leave groups out."
        )
    if rank not in members:
        raise ValueError(
            f"{function}: expected groups with this process's rank, {rank}, in one of them, got "
            f"{[list(group) for group in groups]}. Ranks that are in none do not call it."
        )
    return Groups(members, sizes[0], members.index(rank) % sizes[0])


def connect(groups: Groups) -> None:
    """Connects this process with the other members of its group, once."""
    if groups.size > 1:
        from torch_xla._src.job import groups as _groups  # a job of one process needs none of it

        _groups.ensure(groups.own)
