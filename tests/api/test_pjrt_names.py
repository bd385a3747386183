"""Names of 2.9 that start processes and threads, in a job of one process.

Units: _src/old_names/pjrt.
"""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist

import torch_xla.core.xla_model as xm
from torch_xla._internal import c10d_registration, pjrt, rendezvous


def test_one_device():
    seen = []
    assert pjrt.spawn(lambda index, word: seen.append((index, word)), 1, args=("a",)) is None
    pjrt.spawn(lambda index: seen.append(index))
    pjrt._SpawnFn(lambda index, *more, key: seen.append((index, more, key)), "b", key="c")()
    assert seen == [(0, "a"), 0, (0, ("b",), "c")]
    assert pjrt.run_multiprocess(lambda a, b=0: a + b, 1, b=2) == {0: 3}
    assert pjrt._run_singleprocess(lambda a: a + 1, 1) == 2
    assert str(xm.xla_device()) == "xla:0"


def test_threads():
    seen = []
    pjrt.spawn_threads(lambda index, word: seen.append((index, word, xm.xla_device())), ("a",))
    count = len(xm.get_xla_supported_devices())
    assert sorted(seen) == [(i, "a", torch.device("xla", i)) for i in range(count)]
    calls = []

    def name():
        return threading.current_thread() is not threading.main_thread()

    done = pjrt._run_thread_per_device(0, 1, name, lambda *place: calls.append(place))
    assert done == dict.fromkeys(range(count), True) and calls == [(0, 1)]


def test_results_come_once():
    assert pjrt._merge_replica_results([(1, "a"), (0, "b")]) == {0: "b", 1: "a"}
    with pytest.raises(AssertionError, match="one result for each ordinal"):
        pjrt._merge_replica_results([(1, "a"), (1, "b")])


def test_rendezvous():
    assert isinstance(rendezvous.DummyStore(), dist.Store) and rendezvous._store is None
    found = next(rendezvous.pjrt_rendezvous_handler("xla://"))
    assert found[1:] == (0, 1) and isinstance(found[0], dist.Store)
    assert c10d_registration.broadcast_xla is None


def test_modules_of_earlier_versions():
    from torch_xla.experimental import pjrt as experimental
    from torch_xla.experimental import pjrt_backend

    assert pjrt_backend.xla_backend.pjrt_rendezvous_handler is rendezvous.pjrt_rendezvous_handler
    assert (experimental.world_size(), experimental.global_ordinal()) == (1, 0)
    assert experimental.rendezvous is xm.rendezvous
    assert next(dist.rendezvous("pjrt://"))[1:] == (0, 1)
