"""The groups that a caller names, as exchanges take them."""

from __future__ import annotations

import pytest

from torch_xla._src.collectives import replica_groups


def test_groups_of_a_job(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("RANK", "4")
    for nothing in (None, []):
        assert replica_groups.of("f", nothing) == ((0, 1, 2, 3, 4, 5), 6, 4)
    named = replica_groups.of("f", [[2, 0, 1], (5, 4, 3)])
    assert named == ((2, 0, 1, 5, 4, 3), 3, 1) and named.own == (5, 4, 3)
    assert replica_groups.of("f", [[4]]) == ((4,), 1, 0)
    monkeypatch.setenv("RANK", "1")
    assert replica_groups.of("f", [[2, 0, 1], [5, 4, 3]]).place == 2
    for wrong, message in {
        (
            (0, 1),
            (1, 2),
        ): r"f: expected groups of the replicas.*\[\[0, 1, 2, 3, 4, 5\]\].*got \[\[0",
        ((1, 6),): r"got \[\[1, 6\]\]",
        ((0, 1), (2,)): r"expected groups of one size, got groups of \[2, 1\] replicas",
        ((),): "of one size",
        ((2, 3),): "with this process's rank, 1, in one of them",
    }.items():
        with pytest.raises(ValueError, match=message):
            replica_groups.of("f", wrong)
