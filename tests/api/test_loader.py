"""MpDeviceLoader and ParallelLoader: what arrives, in which order, and how threads end.

Units: _src/prefetch.
"""

from __future__ import annotations

import copy
import gc
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl
from torch_xla._src.prefetch import Prefetcher
from torch_xla.distributed.data_parallel import DataParallel

DEVICE = torch.device("xla:0")


@pytest.fixture(autouse=True)
def no_thread_is_left():
    torch_xla.sync(wait=True)
    yield
    gc.collect()
    deadline = time.monotonic() + 10
    while (left := loader_threads()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


def loader_threads() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return [n for n in names if n.startswith(("torch_xla loader", "torch_xla transfer"))]


def numbers(count: int = 10, batch_size: int = 2) -> DataLoader:
    return DataLoader(TensorDataset(torch.arange(count)), batch_size=batch_size)


# MpDeviceLoader


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.forks)])
def test_batches_are_those_of_the_loader_on_the_device(workers):
    data = TensorDataset(torch.randn(10, 3), torch.arange(10))
    loader = DataLoader(data, batch_size=4, num_workers=workers)
    expected = list(loader)
    batches = list(pl.MpDeviceLoader(loader, DEVICE))
    assert len(batches) == 3
    for batch, cpu_batch in zip(batches, expected, strict=True):
        assert type(batch) is type(cpu_batch)
        for t, u in zip(batch, cpu_batch, strict=True):
            assert t.device == DEVICE and t.dtype == u.dtype
            assert torch.equal(t.cpu(), u)


def test_structure_is_kept():
    batch = {
        "image": torch.ones(2),
        "nested": [(torch.zeros(1), "name"), {"x": torch.arange(3)}],
        "number": 4,
        "none": None,
    }
    (out,) = pl.MpDeviceLoader([batch], "xla")
    assert list(out) == list(batch) and out["number"] == 4 and out["none"] is None
    assert type(out["nested"][0]) is tuple and out["nested"][0][1] == "name"
    assert out["nested"][1]["x"].tolist() == [0, 1, 2]
    assert out["image"].device.type == out["nested"][0][0].device.type == "xla"
    assert batch["image"].device.type == "cpu"


def test_length_and_several_epochs():
    loader = pl.MpDeviceLoader(numbers(10, 2), DEVICE)
    assert len(loader) == 5
    for _ in range(3):
        assert [b.tolist() for (b,) in loader] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert len(iter(loader)) == 5


def test_other_iterables():
    assert [t.item() for t in pl.MpDeviceLoader((torch.tensor(i) for i in range(3)), DEVICE)] == [
        0,
        1,
        2,
    ]
    assert list(pl.MpDeviceLoader([], DEVICE)) == []
    assert list(pl.MpDeviceLoader(["a", 1], DEVICE)) == ["a", 1]
    on_device = torch.ones(1, device="xla")
    assert next(iter(pl.MpDeviceLoader([on_device], DEVICE))) is on_device


def test_attributes_are_those_of_the_loader_and_can_be_set():
    inner = numbers(10, 2)
    loader = pl.MpDeviceLoader(inner, DEVICE, batches_per_execution=3)
    assert loader._loader is inner and loader.batch_size == 2 and loader.dataset is inner.dataset
    assert loader._parallel_loader_kwargs == {"batches_per_execution": 3}
    loader.dataset = "mine"
    loader.batch_sampler = None
    assert loader.dataset == "mine" and loader.batch_sampler is None
    with pytest.raises(AttributeError):
        _ = loader.nothing
    assert copy.copy(loader)._loader is inner


def test_a_subclass_that_overrides_properties_and_iteration():
    class Wrapper(pl.MpDeviceLoader):  # as accelerate does
        def __iter__(self):
            yield from super().__iter__()

        @property
        def batch_sampler(self):
            return self._loader.batch_sampler

    inner = numbers(4, 2)
    wrapper = Wrapper(inner, DEVICE)
    assert wrapper.batch_sampler is inner.batch_sampler
    assert [b.tolist() for (b,) in wrapper] == [[0, 1], [2, 3]]


# Barriers


def counter(name: str) -> int:
    return met.counter_value(name) or 0


@pytest.mark.parametrize("per_execution, barriers", [(1, 6), (2, 4), (3, 3), (10, 2)])
def test_barriers(per_execution, barriers):
    """Before the first batch, after every so many, and after the last."""
    loader = pl.MpDeviceLoader(numbers(10, 2), DEVICE, batches_per_execution=per_execution)
    met.clear_all()
    counts = []
    for _ in loader:
        counts.append(counter("MarkStep"))
    assert counts == [i // per_execution + 1 for i in range(5)]
    assert counter("MarkStep") == barriers


def test_the_last_step_is_launched():
    total = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    for (batch,) in pl.MpDeviceLoader(numbers(10, 2), DEVICE, batches_per_execution=2):
        total += batch
    assert "aten::" not in torch_xla._XLAC._get_xla_tensors_text([total])
    assert total.tolist() == [20, 25]


def test_a_loop_compiles_once_and_step_closures_run():
    total = torch.zeros(4, device=DEVICE)
    seen = []
    loader = pl.MpDeviceLoader([torch.full((4,), float(i)) for i in range(8)], DEVICE)
    for _ in range(2):
        met.clear_all()
        for batch in loader:
            total += batch * 0.5
            torch_xla.core.xla_model.add_step_closure(
                lambda t: seen.append(t[0].item()), args=(total.clone(),)
            )
    assert counter("UncachedCompile") == 0
    assert seen == [0, 0.5, 1.5, 3, 5, 7.5, 10.5, 14, 14, 14.5, 15.5, 17, 19, 21.5, 24.5, 28]


# Background


def test_batches_are_read_ahead_while_the_consumer_is_busy():
    read = []

    def source():
        for i in range(50):
            read.append(i)
            yield torch.tensor(i)

    iterator = iter(
        pl.MpDeviceLoader(source(), DEVICE, loader_prefetch_size=5, device_prefetch_size=3)
    )
    next(iterator)
    deadline = time.monotonic() + 10
    while len(read) < 10 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    # One is consumed, 3 are on the device, 5 wait for it, and the reader holds one.
    assert len(read) == 10
    iterator.close()


def test_reading_overlaps_with_the_consumer():
    class Slow(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, i):
            time.sleep(0.02)
            return i

    def seconds() -> float:
        start = time.perf_counter()
        for _ in pl.MpDeviceLoader(DataLoader(Slow(), batch_size=1), DEVICE):
            time.sleep(0.02)
        return time.perf_counter() - start

    # One after the other takes 0.8 at least; a busy machine may take long now and then.
    assert any(seconds() < 0.7 for _ in range(5))


@pytest.mark.parametrize("threads", [2, 5])
def test_several_transfer_threads_keep_all_batches_in_order(threads, monkeypatch):
    import random

    original = pl.xm._move_to_device

    def delayed(batch, **kwargs):
        time.sleep(random.random() * 0.004)
        return original(batch, **kwargs)

    monkeypatch.setattr(pl.xm, "_move_to_device", delayed)
    loader = pl.MpDeviceLoader(
        [torch.tensor(i) for i in range(60)], DEVICE, host_to_device_transfer_threads=threads
    )
    assert [t.item() for t in loader] == list(range(60))


def test_every_documented_argument():
    loader = pl.ParallelLoader(
        numbers(6, 2),
        [DEVICE],
        batchdim=0,
        batches_per_execution=2,
        loader_prefetch_size=3,
        device_prefetch_size=2,
        host_to_device_transfer_threads=2,
        input_sharding=None,
    )
    assert loader.batches_per_execution == 2
    (moved,) = loader.send_cpu_data_to_device(torch.ones(2), DEVICE)
    assert moved.device.type == "xla"
    per_device = loader.per_device_loader(DEVICE)
    assert len(per_device) == 3 and iter(per_device) is per_device
    assert [b.tolist() for (b,) in per_device] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(StopIteration):
        per_device.next()


def test_arguments_are_checked():
    for name in ("loader_prefetch_size", "device_prefetch_size", "host_to_device_transfer_threads"):
        with pytest.raises(ValueError, match=f"expected {name} of at least 1, got 0"):
            pl.ParallelLoader([], [DEVICE], **{name: 0})
    with pytest.raises(ValueError, match="at least one device"):
        pl.ParallelLoader([], [])
    loader = pl.ParallelLoader([], [DEVICE])
    with pytest.raises(ValueError, match=r"expected one of the devices \['xla:0'\], got 'xla:7'"):
        loader.per_device_loader("xla:7")
    with pytest.raises(TypeError):
        pl.ParallelLoader(3, [DEVICE])


def test_next_item():
    loader = pl.ParallelLoader([torch.tensor(1)], [DEVICE])
    assert loader.next_item(DEVICE).item() == 1
    assert loader.next_item(DEVICE) is None
    assert loader.next_item("xla:0") is None


# Errors


def test_error_of_the_loader_comes_where_the_batch_would_have():
    class Failing(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            if i == 5:
                raise LookupError(f"no item {i}")
            return i

    loader = pl.MpDeviceLoader(DataLoader(Failing(), batch_size=2), DEVICE)
    seen = []
    with pytest.raises(LookupError, match="no item 5") as raised:
        for batch in loader:
            seen.append(batch.tolist())
    assert seen == [[0, 1], [2, 3]]
    # The traceback leads to the line in the dataset.
    assert raised.traceback[-1].path.name == "test_loader.py"
    with pytest.raises(LookupError):
        list(loader)


def test_error_of_the_iterator_itself():
    class Broken:
        def __iter__(self):
            raise OSError("cannot open")

    with pytest.raises(OSError, match="cannot open"):
        list(pl.MpDeviceLoader(Broken(), DEVICE))


def test_error_of_a_transfer():
    class Unmovable(torch.Tensor):
        def to(self, *args, **kwargs):
            raise MemoryError("no room")

        detach = lambda self: self  # noqa: E731

    batches = [
        torch.tensor(0),
        torch.tensor(1),
        torch.ones(1).as_subclass(Unmovable),
        torch.ones(1),
    ]
    seen = []
    iterator = iter(pl.MpDeviceLoader(batches, DEVICE, host_to_device_transfer_threads=3))
    with pytest.raises(MemoryError, match="no room"):
        for batch in iterator:
            seen.append(batch.item())
    assert seen == [0, 1]
    assert list(iterator) == []


def test_keyboard_interrupt_in_the_loader_reaches_the_consumer():
    def source():
        yield torch.tensor(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(pl.MpDeviceLoader(source(), DEVICE))


# Ends


def endless():
    i = 0
    while True:
        yield torch.tensor(i)
        i += 1


def test_leaving_a_loop_ends_the_threads():
    for batch in pl.MpDeviceLoader(endless(), DEVICE):
        if batch.item() == 3:
            break
    assert not loader_threads()


def test_an_exception_in_the_loop_ends_the_threads():
    with pytest.raises(ZeroDivisionError):
        for _ in pl.MpDeviceLoader(endless(), DEVICE):
            _ = 1 / 0
    # The traceback holds the iterator until here.


def test_close():
    loader = pl.ParallelLoader(endless(), [DEVICE])
    iterator = loader.per_device_loader(DEVICE)
    assert next(iterator).item() == 0
    iterator.close()
    assert not loader_threads()
    assert list(iterator) == []
    loader.close()


def test_a_waiting_consumer_sees_the_end_when_it_is_closed():
    release = threading.Event()

    def source():
        yield torch.tensor(0)
        release.wait(20)

    loader = pl.ParallelLoader(source(), [DEVICE])
    assert loader.next_item(DEVICE).item() == 0
    ends = []
    consumer = threading.Thread(target=lambda: ends.append(loader.next_item(DEVICE)))
    consumer.start()
    time.sleep(0.05)
    closer = threading.Thread(target=loader.close)
    closer.start()
    consumer.join(10)
    assert ends == [None]
    release.set()
    closer.join(10)


def test_a_loader_that_was_never_used_ends():
    loader = pl.ParallelLoader(endless(), [DEVICE])
    assert loader_threads()
    del loader
    assert not loader_threads()


def test_exit_in_the_middle_of_an_epoch(run_python):
    done = run_python(
        """
        import itertools, torch, torch_xla
        import torch_xla.distributed.parallel_loader as pl
        loader = pl.MpDeviceLoader((torch.full((1000,), i) for i in itertools.count()), "xla")
        total = torch.zeros(1000, device="xla")
        for i, batch in enumerate(loader):
            total += batch
            if i == 20:
                print("leaving")
                raise SystemExit(3)
        """,
        env={"XLA_EXPLAIN": "0"},  # the first step makes the total
        check=False,
        timeout=120,
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout == "leaving\n" and done.stderr == ""


@pytest.mark.forks
def test_workers_of_a_dataloader_do_not_outlive_the_loop():
    import multiprocessing

    data = TensorDataset(torch.arange(1000))
    for i, _ in enumerate(pl.MpDeviceLoader(DataLoader(data, num_workers=2), DEVICE)):
        if i == 3:
            break
    gc.collect()
    deadline = time.monotonic() + 20
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not multiprocessing.active_children()


# Several devices, which need no devices for this


def test_batches_of_several_devices_by_turns():
    moves = [lambda b: ("a", b), lambda b: ("b", b), lambda b: ("c", b)]
    prefetcher = Prefetcher(range(11), moves, 2, 2, 2)
    seen = {0: [], 1: [], 2: []}

    def consume(device):
        while True:
            try:
                seen[device].append(prefetcher.next(device))
            except StopIteration:
                return

    threads = [threading.Thread(target=consume, args=(device,)) for device in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    # The incomplete last round is left out: all devices make equally many steps.
    assert seen == {
        0: [("a", 0), ("a", 3), ("a", 6)],
        1: [("b", 1), ("b", 4), ("b", 7)],
        2: [("c", 2), ("c", 5), ("c", 8)],
    }
    prefetcher.close()


def test_one_device_after_the_other_does_not_block():
    prefetcher = Prefetcher(range(100), [lambda b: b, lambda b: b], 2, 2, 1)
    for device in (0, 1):
        seen = [prefetcher.next(device) for _ in range(50)]
        assert seen == list(range(device, 100, 2))
    prefetcher.close()


def test_error_reaches_every_device():
    def source():
        yield from range(4)
        raise LookupError("gone")

    prefetcher = Prefetcher(source(), [lambda b: b, lambda b: b], 8, 4, 2)
    for device in (0, 1):
        assert [prefetcher.next(device) for _ in range(2)] == [device, device + 2]
        with pytest.raises(LookupError, match="gone"):
            prefetcher.next(device)
        with pytest.raises(StopIteration):
            prefetcher.next(device)
    prefetcher.close()


def test_two_devices(run_python):
    run_python(
        """
        import threading, torch, torch_xla
        import torch_xla.distributed.parallel_loader as pl
        devices = torch_xla.devices()
        loader = pl.ParallelLoader([torch.tensor([i, i]) for i in range(7)], devices)
        assert loader.per_device_samples() == 3
        seen = {}
        def consume(device):
            torch.xla.set_device(device)
            seen[device.index] = [(b.device, b[0].item()) for b in loader.per_device_loader(device)]
        threads = [threading.Thread(target=consume, args=(d,)) for d in devices]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert seen == {d: [(devices[d], i) for i in range(d, 6, 2)] for d in (0, 1)}, seen
        """,
        env={"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2"},
    )


# DataParallel


def test_data_parallel():
    def loop(model, loader, device, context):
        context.getattr_or("calls", lambda: []).append(device)
        total = sum(model(batch).sum().item() for (batch,) in loader)
        return total, len(context.getattr_or("calls", None))

    network = DataParallel(lambda: torch.nn.Linear(1, 1, bias=False), device_ids=["xla:0"])
    assert network.devices == [torch.device("xla:0")]
    torch.nn.init.ones_(network.models[0].weight)
    data = DataLoader(TensorDataset(torch.arange(5.0).unsqueeze(1)), batch_size=2)
    assert network(loop, data) == [(10.0, 1)]
    assert network(loop, data, fixed_batch_size=True) == [(6.0, 2)]
    with pytest.raises(NotImplementedError, match="expected one device, got 2"):
        DataParallel(torch.nn.Linear(1, 1), device_ids=["xla:0", "xla:1"])
