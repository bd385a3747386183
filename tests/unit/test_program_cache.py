"""Compiled programs in memory: at most XLA_COMPILATION_CACHE_SIZE, of which the oldest go."""

from __future__ import annotations

import pytest
import torch

import torch_xla.debug.metrics as met


def compiles(size: int) -> int:
    """How many programs are compiled for a product of as many numbers."""

    def count() -> int:
        return (met.metric_data("CompileTime") or (0,))[0]

    before = count()
    values = torch.arange(size)
    assert torch.equal((values.to("xla") * 3).cpu(), values * 3)
    return count() - before


def test_the_least_recently_used_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_COMPILATION_CACHE_SIZE", "2")
    assert [compiles(size) for size in (1001, 1002, 1001, 1003)] == [1, 1, 0, 1]
    assert [compiles(size) for size in (1001, 1003)] == [0, 0]
    assert [compiles(size) for size in (1002, 1003, 1001)] == [1, 0, 1]


def test_the_newest_stays_whatever_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_COMPILATION_CACHE_SIZE", "0")
    assert [compiles(size) for size in (1004, 1004, 1005, 1004)] == [1, 0, 1, 1]
