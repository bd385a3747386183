"""The job's store and the groups that meet in it, seen from one process.

Units: _src/job/store, _src/job/groups.
"""

from __future__ import annotations

import pytest
import torch.distributed as dist

from torch_xla._src.job import groups, store

NAMES = ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT", "XLA_JOB_STORE")


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    for name in (*NAMES, "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)


def job(monkeypatch, rank: int, server: dist.TCPStore, **more: str) -> None:
    here = {"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", **more}
    for name, value in here.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def server() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)


def test_one_process_has_one_of_its_own():
    store.store().set("a", "1")
    assert store.store().get("a") == b"1"
    assert store.store() is store.store()


def test_the_launchers_is_used(monkeypatch, server):
    job(monkeypatch, 0, server, MASTER_PORT="1", XLA_JOB_STORE=f"127.0.0.1:{server.port}")
    store.store().set("a", "1")
    assert server.get("torch_xla/0/a") == b"1"
    monkeypatch.delenv("XLA_JOB_STORE")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    store.store().set("a", "2")
    assert server.get("torch_xla/1/a") == b"2"


def test_wrong_groups_are_errors(monkeypatch, server):
    assert groups.ensure() is groups.ensure([0]) is None
    job(monkeypatch, 1, server, XLA_JOB_STORE=f"127.0.0.1:{server.port}")
    assert groups.ensure([1]) is None
    for members in ([0], [1, 1], [1, 2], [-1, 1], []):
        with pytest.raises(
            ValueError, match="ranks of a job of 2 processes.*this process's rank 1"
        ):
            groups.ensure(members)
