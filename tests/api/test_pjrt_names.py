"""Names of 2.9 that start processes and threads, in a job of one process.

Units: _src/old_names/pjrt, _src/old_names/replica_groups.
"""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist

import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
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


def test_orders_of_chips(monkeypatch):
    from torch_xla._src.old_names import replica_groups

    assert xmp.create_optimized_replica_groups() is None
    monkeypatch.setattr(replica_groups, "_is_tpu", lambda: True)
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    for kind, bounds, order in (
        ("v5p-16", (2, 2, 2), [0, 1, 3, 2, 6, 7, 5, 4]),
        ("v6e-8", (2, 4, 1), [0, 2, 4, 6, 7, 5, 3, 1]),
        ("v5p-8", (2, 2, 1), None),
        ("v4-8", (2, 2, 1), None),
    ):
        monkeypatch.setenv("TPU_ACCELERATOR_TYPE", kind)
        monkeypatch.setattr(replica_groups, "_get_xyz_bounds", lambda bounds=bounds: bounds)
        found = xmp.create_optimized_replica_groups()
        assert found == (None if order is None else [order])
        if order is not None:  # a ring of neighbours
            places = [_place(number, bounds) for number in order]
            for one, next_ in zip(places, places[1:] + places[:1], strict=True):
                assert sum(abs(a - b) for a, b in zip(one, next_, strict=True)) == 1


def _place(number, bounds):
    return (number % bounds[0], number // bounds[0] % bounds[1], number // bounds[0] // bounds[1])
