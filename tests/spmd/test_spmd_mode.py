"""SPMD mode: one logical device of all devices of the process, each of which holds all data."""

from __future__ import annotations

import textwrap

import pytest

FOUR = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}

PRELUDE = """
import os, warnings
import torch, torch.nn as nn
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr

ALL = ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]

def copies(tensor):
    "What each device holds of a tensor."
    shards = torch_xla._XLAC._xla_local_shards(tensor)
    assert [name for name, _ in shards] == xm.xla_real_devices([tensor.device])
    return [data for _, data in shards]

def check_copies(*tensors):
    for tensor in tensors:
        first, *others = copies(tensor)
        for other in others:
            assert torch.equal(first, other), (first - other).abs().max()

def counter(name):
    return met.counter_value(name) or 0
"""

MODEL = """
def make_model(dropout=0.0):
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(dropout), nn.Linear(64, 32), nn.LayerNorm(32), nn.GELU(),
        nn.Linear(32, 5))

def batches(n):
    g = torch.Generator().manual_seed(7)
    for _ in range(n):
        yield torch.randn(6, 2, 8, 8, generator=g), torch.randint(5, (6,), generator=g)

def train(model, device, steps, finish):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    losses = []
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        schedule.step()
        finish()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()
"""


@pytest.fixture
def run(run_python):
    """Runs code in a process of four devices, in SPMD mode unless told otherwise."""

    def run(code, spmd=True, env=None):
        start = PRELUDE + MODEL + ("xr.use_spmd()\n" if spmd else "")
        return run_python(start + textwrap.dedent(code), env={**FOUR, **(env or {})})

    return run


COUNTS = """
assert xr.is_spmd()
assert torch_xla.device() == torch.device("xla:0") == xm.xla_device() == torch_xla.device(0)
assert torch_xla.devices() == [torch.device("xla:0")]
assert xm.get_xla_supported_devices() == ["xla:0"]
xm.set_replication(xm.xla_device(), xm.get_xla_supported_devices())  # all are one replica
assert torch_xla.device_count() == N and xm.xla_device_count() == 1 == torch.xla.device_count()
assert os.environ.get("XLA_USE_SPMD") == "1"  # for the processes that this one starts
assert xr.addressable_device_count() == 1 == xr.local_device_count() == xr.global_device_count()
assert xr.global_runtime_device_count() == N == xr.addressable_runtime_device_count()
assert torch_xla.real_devices() == ALL[:N] == xm.xla_real_devices()
assert xm.xla_real_devices(["xla:0"]) == ALL[:N] and xm.xla_device_hw("xla:0") == "CPU"
assert xr.world_size() == 1 and xr.global_ordinal() == 0
x = torch.ones(3, device="xla")
assert x.device == torch.device("xla:0")
torch_xla.sync()
assert [c.tolist() for c in copies(x)] == [[1, 1, 1]] * N
assert [c.tolist() for c in copies(torch.arange(2.0).to("xla"))] == [[0, 1]] * N
for wrong in (lambda: torch_xla.device(1), lambda: torch.ones(2, device="xla:1"),
              lambda: x.to("xla:1"), lambda: torch.xla.set_device(1)):
    try:
        wrong()
    except (RuntimeError, IndexError) as error:
        assert "expected xla:0, which stands for the N " in str(error).replace(str(N), "N") or (
            "expected an index from 0 to 0, got 1" in str(error)), error
    else:
        raise AssertionError("there is no such device")
xr.use_spmd()  # again: nothing
print("ok")
"""


@pytest.mark.parametrize("count", [1, 4])
def test_one_device_stands_for_all(run, count):
    done = run(f"N = {count}\n{COUNTS}", env={"CPU_NUM_DEVICES": str(count)})
    assert done.stdout == "ok\n" and done.stderr == ""


def test_environment_switches_it_on(run):
    done = run(f"N = 4\n{COUNTS}", spmd=False, env={"XLA_USE_SPMD": "1"})
    assert done.stdout == "ok\n" and done.stderr == ""
    run(
        """
        import os
        assert not xr.is_spmd()
        os.environ["XLA_USE_SPMD"] = "1"  # read when a device is first used
        assert xr.is_spmd() and torch_xla.devices() == [torch.device("xla:0")]
        os.environ["XLA_USE_SPMD"] = "0"
        assert xr.is_spmd()
        """,
        spmd=False,
    )
    run(
        """
        import os
        assert torch_xla.device_count() == 4 and not xr.is_spmd()
        os.environ["XLA_USE_SPMD"] = "1"  # too late
        assert torch_xla.device_count() == 4 and not xr.is_spmd()
        """,
        spmd=False,
    )


def test_importing_and_switching_create_no_client(run):
    run("assert xr.is_spmd() and not torch_xla._XLAC._xla_is_initialized()")


def test_training_equals_pytorch(run):
    """Convolution, pooling and the optimizer run as PyTorch's kernels inside the program."""
    run(
        """
        reference = make_model()
        expected = train(reference, "cpu", 8, lambda: None)
        model = make_model().to("xla")
        losses = train(model, "xla", 8, torch_xla.sync)
        torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
        for p, q in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-3, atol=1e-4)
            assert len(copies(p)) == 4
        check_copies(*model.state_dict().values())
        # The learning rate is a number of the program: later steps compile nothing.
        assert counter("UncachedCompile") <= 4 and counter("CachedCompile") >= 5
        assert not [n for n in met.counter_names() if n.startswith("aten::")]
        """
    )


def test_random_numbers_are_the_same_on_all_devices_and_reproducible(run):
    run(
        """
        runs = []
        for _ in range(2):
            model = make_model(dropout=0.5).to("xla")
            torch.manual_seed(11)
            losses = train(model, "xla", 4, torch_xla.sync)
            drawn = torch.randn(100, device="xla"), torch.randperm(50, device="xla")
            torch_xla.sync()
            check_copies(*model.state_dict().values(), *drawn)
            runs.append([losses, *(t.cpu() for t in (*model.state_dict().values(), *drawn))])
            assert xm.get_rng_state() == torch_xla._XLAC._xla_get_rng_seed("xla:0")
        assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
        torch.manual_seed(12)
        assert not torch.equal(torch.randn(100, device="xla").cpu(), runs[0][-2])
        """
    )


@pytest.mark.slow
def test_same_numbers_as_one_device(run):
    code = """
        torch.manual_seed(5)
        model = make_model(dropout=0.3).to("xla")
        losses = train(model, "xla", 3, torch_xla.sync)
        print(losses.tolist(), torch.rand(3, device="xla").tolist())
        """
    assert run(code).stdout == run(code, spmd=False).stdout


@pytest.mark.process_memory
def test_overwritten_buffers_are_reused_on_each_device(run):
    """A step over 4 x 64 MiB of state needs no second copy of it after its first run."""
    run(
        """
        p = torch.ones(1 << 24, device="xla")
        torch_xla.sync(wait=True)
        for _ in range(2):
            p.add_(1.0)
            torch_xla.sync(wait=True)
            p.mul_(2.0)
            torch_xla.sync(wait=True)
        before = xm.get_memory_info()["peak_bytes_used"]
        assert before < (2 * 4 * 64 + 400) << 20, before >> 20
        for _ in range(5):
            p.mul_(2.0)
            torch_xla.sync(wait=True)
            p.add_(1.0)
            torch_xla.sync(wait=True)
        grown = xm.get_memory_info()["peak_bytes_used"] - before
        assert grown < 64 << 20, grown >> 20
        check_copies(p[:4])
        assert p[-1].item() == 351
        """
    )


def test_tensors_made_before_stay_valid(run):
    done = run(
        """
        model = make_model()
        before = model.to("xla")
        optimizer = torch.optim.AdamW(before.parameters(), lr=1e-2)
        held = torch.arange(4.0, device="cpu").to("xla")
        view = held[1:]
        before(torch.ones(2, 2, 8, 8, device="xla")).sum().backward()
        optimizer.step()
        torch_xla.sync()
        pending = held * 2 + 1  # recorded, not run
        held_by = lambda t: [name for name, _ in torch_xla._XLAC._xla_local_shards(t)]
        assert held_by(held) == ALL[:1]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            xr.use_spmd()
        (warning,) = caught
        assert "there are xla tensors already" in str(warning.message)
        assert warning.filename == "<string>"

        assert held.tolist() == [0, 1, 2, 3] and held_by(held) == ALL[:1]
        assert pending.tolist() == [1, 3, 5, 7]
        check_copies(pending, held)  # the run has used both
        assert view.tolist() == [1, 2, 3]
        held.add_(1)
        torch_xla.sync()
        assert [c.tolist() for c in copies(held)] == [[1, 2, 3, 4]] * 4
        assert view.tolist() == [2, 3, 4]
        before(torch.ones(2, 2, 8, 8, device="xla")).sum().backward()
        optimizer.step()
        torch_xla.sync()
        state = [t for s in optimizer.state.values() for t in s.values() if t.device.type == "xla"]
        check_copies(*before.parameters(), *state)
        """,
        spmd=False,
    )
    assert done.stderr == ""


def test_tensors_on_another_device_are_refused(run):
    run(
        """
        torch.xla.set_device(1)
        x, y = torch.ones(2, device="xla:0"), torch.ones(2, device="xla:1")
        z = y + 1
        try:
            xr.use_spmd()
        except RuntimeError as error:
            assert "expected tensors on xla:0 only, got 2 on xla:1" in str(error), error
            assert ".to('xla:0')" in str(error)
        else:
            raise AssertionError("the tensors on xla:1 have no place")
        # Nothing has changed.
        assert not xr.is_spmd() and torch_xla.device_count() == 4
        assert torch_xla.device() == torch.device("xla:1")
        assert z.tolist() == [2, 2]
        # What the message says.
        y, z = y.to("xla:0"), z.to("xla:0")
        with warnings.catch_warnings(record=True):
            xr.use_spmd()
        assert xr.is_spmd() and torch_xla.device() == torch.device("xla:0")
        assert (x + y + z).tolist() == [4, 4]
        """,
        spmd=False,
    )


def test_auto_needs_scipy(run):
    run(
        """
        import importlib.util
        find, importlib.util.find_spec = importlib.util.find_spec, lambda *names: None
        try:
            xr.use_spmd(auto=True)
        except ImportError as error:
            assert "pip install scipy" in str(error), error
        else:
            raise AssertionError("a planner without a solver")
        importlib.util.find_spec = find
        assert not xr.is_spmd()
        xr.use_spmd(auto=None)
        assert xr.is_spmd() and not torch_xla._XLAC._xla_get_auto_sharding()
        """,
        spmd=False,
    )


def test_indices_that_leave_the_range_are_refused(run):
    run(
        """
        x = torch.ones(6, device="xla")
        for wrong in (-7, 6):
            where = torch.tensor([wrong, 3], device="xla")
            for call in (lambda: x[where], lambda: x.index_add_(0, where, x[:2] * 2)):
                try:
                    call()
                except IndexError:
                    continue
                raise AssertionError(wrong)
        assert x.tolist() == [1] * 6
        """
    )


def test_failed_run_is_told_once(run):
    """All four devices fail; one of them is reported, and the process goes on."""
    run(
        """
        column = torch.ones(1 << 20, 1, device="xla")
        torch_xla.sync()
        square = torch.mm(column, column.t())  # 4 TiB
        failures = []
        for _ in range(2):
            try:
                torch_xla.sync(wait=True)
            except torch.OutOfMemoryError as error:
                failures.append(str(error))
        (failure,) = failures
        assert "RESOURCE_EXHAUSTED" in failure and "launched at <string>:" in failure, failure
        del square
        z = torch.ones(2, device="xla") + 1
        torch_xla.sync(wait=True)
        check_copies(z)
        assert z.tolist() == [2, 2]
        """
    )


def test_failure_of_an_earlier_run_leaves_the_mode_as_it_was(run):
    run(
        """
        column = torch.ones(1 << 20, 1, device="xla")
        torch_xla.sync()
        square = torch.mm(column, column.t())
        torch_xla.sync()
        try:
            xr.use_spmd()
        except torch.OutOfMemoryError:
            assert not xr.is_spmd() and torch_xla.device_count() == 4
        else:
            raise AssertionError("nobody was told of the failure")
        """,
        spmd=False,
    )


@pytest.mark.slow
def test_persistent_cache(run, tmp_path):
    code = """
        xr.initialize_cache("cache")
        model = make_model(dropout=0.1).to("xla")
        torch.manual_seed(1)
        losses = train(model, "xla", 3, torch_xla.sync)
        check_copies(*model.state_dict().values())
        print(counter("UncachedCompile"), counter("PersistentCacheHit"), losses.tolist())
        """
    first = run(code)
    compiled, hits, losses = first.stdout.split(maxsplit=2)
    assert int(compiled) > 0 and hits == "0" and first.stderr == ""
    second = run(code)
    assert second.stdout == f"0 {compiled} {losses}" and second.stderr == ""
    # Programs for one device are others.
    alone = run(code, spmd=False)
    assert alone.stdout == f"{compiled} 0 {losses}"


def test_metrics_and_memory(run):
    run(
        """
        x = torch.ones(1 << 10, device="cpu").to("xla")
        assert met.metric_data("OutboundData") is None  # until a device needs it
        y = x + 1
        created = counter("CreateDataHandles")
        torch_xla.sync(wait=True)
        assert met.metric_data("OutboundData")[1] == 4 * (4 << 10), met.metric_data("OutboundData")
        assert counter("CreateDataHandles") == created + 1
        y.cpu()
        assert met.metric_data("InboundData")[1] == 4 << 10
        assert xm.get_memory_info()["bytes_used"] > 0
        assert torch.xla.get_device_name()
        """
    )


def test_python_goes_on_while_the_devices_run(run):
    """Runs end in their order on every device; reading one value waits for what it needs."""
    run(
        """
        x = torch.eye(600, device="xla")
        order = []
        for i in range(6):
            x = x @ x * 1.0
            xm.add_step_closure(order.append, args=(i,))
            torch_xla.sync()
        assert order == list(range(6))
        check_copies(x)
        assert torch.equal(x.cpu(), torch.eye(600))
        xm.wait_device_ops()
        """
    )


def test_threads_and_loader(run):
    run(
        """
        import threading
        import torch_xla.distributed.parallel_loader as pl
        data = [(torch.full((2,), float(i)), i) for i in range(8)]
        loader = pl.MpDeviceLoader(torch.utils.data.DataLoader(data, batch_size=2), "xla:0")
        seen = []
        for x, i in loader:
            assert len(copies(x)) == 4
            seen += x[:, 0].tolist()
        assert seen == list(range(8))

        results = {}
        def work(i):
            x = torch.full((50,), float(i), device="xla")
            for _ in range(20):
                x = (x * 2 + 1) / 2
            results[i] = x.cpu()
        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert all(torch.equal(results[i], torch.full((50,), i + 10.0)) for i in range(6))
        """
    )


def test_switch_while_other_threads_work(run):
    run(
        """
        import threading
        stop, errors = threading.Event(), []
        def work():
            try:
                x = torch.zeros(4, device="xla")
                while not stop.is_set():
                    x += 1
                    assert x.min().item() == x.max().item()
            except Exception as error:
                errors.append(error)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads: t.start()
        torch.ones(3, device="xla").cpu()
        with warnings.catch_warnings(record=True):
            xr.use_spmd()
        for _ in range(5):
            check_copies(torch.ones(3, device="xla") + 1)
        stop.set()
        for t in threads: t.join()
        assert not errors, errors
        """,
        spmd=False,
    )


@pytest.mark.parametrize("spmd", [True, False])
def test_collectives_of_other_libraries_are_refused(run, spmd):
    """They would end after the call had written back what the host had."""
    run(
        f"""
        import torch.distributed as dist
        import pytest
        spmd = {spmd}
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        x = torch.arange(4.0, device="xla")
        empty = torch.empty_like(x)
        advice = "one process has all devices.*mark_sharding" if spmd else r"\\.cpu\\(\\)"
        for call in (
            lambda: dist.all_reduce(x),
            lambda: dist.broadcast(x, 0),
            lambda: dist.all_gather([empty], x),
            lambda: dist.all_gather_into_tensor(empty, x),
            lambda: dist.reduce_scatter_tensor(empty, x),
        ):
            with pytest.raises(NotImplementedError, match="expected tensors of the CPU.*" + advice):
                call()
        assert x.tolist() == [0, 1, 2, 3]
        host = x.cpu()
        dist.all_reduce(host)
        assert host.tolist() == [0, 1, 2, 3]
        dist.destroy_process_group()
        """,
        spmd=spmd,
    )
