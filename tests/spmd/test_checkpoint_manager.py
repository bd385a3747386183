"""CheckpointManager: which steps it saves and keeps, in the background, on preemption; errors."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = """
import os, signal, sys, threading, time, warnings
import numpy as np
import torch
import torch.distributed.checkpoint as dcp
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, SPMDLoadPlanner

xr.use_spmd()

def split(t):
    n = xr.global_runtime_device_count()
    t = t.to("xla")
    return xs.mark_sharding(t, xs.get_1d_mesh("x"), ("x",) + (None,) * (t.dim() - 1)).global_tensor

def state(value, size=64):
    return {"w": split(torch.full((size, 4), float(value))), "n": value, "cpu": torch.tensor(value)}

def restored(manager, step, size=64):
    found = state(-1, size)
    manager.restore(step, found)
    assert torch.equal(found["w"].cpu(), torch.full((size, 4), float(found["n"]))), found
    assert found["cpu"].item() == found["n"], found
    return found["n"]

def raised(kind, call, *words):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
        return error
    raise AssertionError(f"expected {kind}")

def folders():
    return sorted(os.listdir("saved"))
"""


@pytest.fixture
def run(run_python):
    """Runs code in an SPMD process of four devices."""

    def run(code, check=True):
        env = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}
        return run_python(PRELUDE + textwrap.dedent(code), env=env, check=check)

    return run


@pytest.mark.parametrize("path", ["saved", "file://saved", "memory://saved"])
def test_steps_are_saved_and_kept(run, path):
    run(f"""
    path = {path!r}.replace("file://", "file://" + os.getcwd() + "/")
    manager = CheckpointManager(path, save_interval=10, max_to_keep=2, num_of_threads=3)
    assert manager.all_steps() == []
    manager.join()
    assert [step for step in range(31) if manager.should_save(step)] == [0, 10, 20, 30]
    assert [step for step in range(31) if manager.save(step, state(step))] == [0, 10, 20, 30]
    assert manager.all_steps() == [20, 30]
    assert manager.save(7, state(7), force=True) and not manager.save(8, state(8))
    assert manager.all_steps() == [7, 30]
    assert manager.save(30, state(99)) and manager.all_steps() == [7, 30]  # again
    # Another manager, as in a process that goes on, finds them.
    other = CheckpointManager(path, save_interval=10)
    assert other.all_steps() == [7, 30]
    assert [restored(other, step) for step in (7, 30)] == [7, 99]
    assert [other.save_async(step, state(step)) for step in (40, 41, 50)] == [True, False, True]
    other.join()
    assert other.all_steps() == [7, 30, 40, 50]  # max_to_keep=0 keeps all
    assert [restored(manager, step) for step in manager.all_steps()] == [7, 99, 40, 50]
    raised(ValueError, lambda: manager.restore(8, state(0)), "[7, 30, 40, 50]", "got 8")
    if "memory" not in path:
        assert folders() == ["30", "40", "50", "7"]
        # PyTorch alone reads a folder of it.
        plain = {{"w": torch.zeros(64, 4), "n": 0, "cpu": torch.tensor(0)}}
        dcp.load(plain, checkpoint_id="saved/40")
        assert plain["n"] == 40 and (plain["w"] == 40).all()
        # What has no mark, or no contents, is no checkpoint; other files are nobody's business.
        dcp.save(state(5), checkpoint_id="saved/60")
        os.remove("saved/50/.metadata")
        open("saved/notes.txt", "w").close()
        assert manager.all_steps() == [7, 30, 40]
    """)


def test_arguments_out_of_range_are_refused(run):
    run("""
    for name, wrong in [("save_interval", 0), ("save_interval", -1), ("save_interval", 1.5),
                        ("max_to_keep", -1), ("max_pending_async", 0), ("num_of_threads", 0)]:
        given = {"save_interval": 1, name: wrong}
        raised(ValueError, lambda: CheckpointManager("saved", **given), name, repr(wrong))
    manager = CheckpointManager("saved", 1, None, None, None)
    for step in (-1, 1.0, "1"):
        raised(ValueError, lambda: manager.save(step, state(1)), "step", repr(step))
        raised(ValueError, lambda: manager.should_save(step), "step", repr(step))
    raised(ValueError, lambda: CheckpointManager("nosuch://x", 1))
    assert not os.path.exists("saved")
    assert manager.save(np.int64(3), {}) and manager.all_steps() == [3]
    manager.restore(3, {})
    """)


def test_a_background_save_has_the_state_of_its_step(run):
    run("""
    class Counter:  # PyTorch's protocol Stateful
        def __init__(self, n): self.n = n
        def state_dict(self): return {"n": self.n}
        def load_state_dict(self, state): self.n = state["n"]

    manager = CheckpointManager("saved", 1, max_pending_async=3)
    w, cpu, numbers = split(torch.zeros(64, 4)), torch.zeros(3), [0]
    count = Counter(0)
    for step in range(6):
        given = {"w": w, "cpu": cpu, "numbers": numbers, "deep": {"m": [w * 2, 1]}, "count": count}
        assert manager.save_async(step, given)
        w += 1  # overwrites what is being saved, by donation too
        cpu += 1
        numbers[0] += 1
        count.n += 1
        torch_xla.sync()
    manager.join()
    for step in range(6):
        found = {"w": split(torch.zeros(64, 4)), "cpu": torch.zeros(3), "numbers": [9],
                 "deep": {"m": [torch.zeros(64, 4), 0]}, "count": Counter(9)}
        counter = found["count"]
        manager.restore(step, found)
        assert (found["w"] == step).all() and (found["deep"]["m"][0] == 2 * step).all(), step
        assert (found["cpu"] == step).all() and found["numbers"] == [step], step
        assert found["deep"]["m"][1] == 1
        assert found["count"] is counter and counter.n == step
    """)


def test_background_saves_run_in_order_and_so_many(run):
    run("""
    from torch_xla.experimental.distributed_checkpoint import _stores
    gate, begun, ended = threading.Semaphore(0), [], []

    class Writer(_stores._LocalWriter):
        def write_data(self, plan, planner):
            begun.append(self.step)
            gate.acquire()
            return super().write_data(plan, planner)

        def finish(self, metadata, results):
            super().finish(metadata, results)
            ended.append(self.step)

    def soon(holds):
        end = time.time() + 60
        while not holds():
            if time.time() > end:
                os._exit(3)  # threads that wait for the gate would never end
            time.sleep(0.01)

    _stores._LocalWriter = Writer
    manager = CheckpointManager("saved", 1, max_pending_async=2)
    for step in (1, 2):
        assert manager.save_async(step, state(step))  # neither waits
    blocked = threading.Thread(target=manager.save_async, args=(3, state(3)))
    blocked.start()
    soon(lambda: begun == [1])
    time.sleep(0.3)
    # The third waits for a place, and what is not complete is not there.
    soon(lambda: begun == [1] and ended == [] and blocked.is_alive() and not manager.all_steps())
    gate.release()
    soon(lambda: not blocked.is_alive() and ended == [1] == manager.all_steps())
    gate.release(3)
    assert manager.save(4, state(4))  # after those before it
    assert begun == ended == [1, 2, 3, 4] == manager.all_steps()
    """)


def test_the_process_waits_for_background_saves_at_its_end(run):
    run("""
    manager = CheckpointManager("saved", 1, num_of_threads=3, max_pending_async=2)
    manager.save_async(1, state(1, 200_000))
    manager.save_async(2, state(2, 200_000))
    sys.exit(0)
    """)
    run("""
    manager = CheckpointManager("saved", 1)
    assert [restored(manager, step, 200_000) for step in manager.all_steps()] == [1, 2]
    """)


def test_files_of_torch_xla_are_read(run):
    """A folder as torch_xla 2.9 leaves it: PyTorch's files, and the pickled note."""
    run("""
    import datetime, pickle
    from torch_xla.experimental.distributed_checkpoint import manager as module
    for step, hour in ((5, 2), (6, 1)):
        dcp.save(state(step), checkpoint_id=f"saved/{step}")
        note = module._CheckpointMetadata(step=step, ts=datetime.datetime(2024, 5, 1, hour))
        with open(f"saved/{step}/{module._MANAGER_METADATA_FILE}", "wb") as file:
            pickle.dump(note, file)
    manager = CheckpointManager("saved", 1)
    assert manager.save(1, state(1)) and manager.all_steps() == [1, 5, 6]
    assert [restored(manager, step) for step in (6, 5, 1)] == [6, 5, 1]
    # Those saved first go first.
    assert CheckpointManager("saved", 1, max_to_keep=2).save(2, state(2))
    assert manager.all_steps() == [1, 2]
    """)


def test_what_is_kept_does_not_hang_on_the_clock(run):
    """Steps saved while the clock was ahead, in any order, go before those saved later."""
    run("""
    import datetime
    from torch_xla.experimental.distributed_checkpoint import manager as module

    class Ahead(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + datetime.timedelta(hours=hours)

    class Clock:
        datetime, timezone = Ahead, datetime.timezone

    module.datetime = Clock
    manager = CheckpointManager("saved", 1, max_to_keep=3)
    for step, hours, kept in [(0, 1, [0]), (5, 1, [0, 5]), (2, 0, [0, 2, 5]), (3, 0, [2, 3, 5]),
                              (1, -9, [1, 2, 3]), (6, 0, [1, 3, 6])]:
        assert manager.save(step, state(step))
        assert manager.all_steps() == kept, (step, manager.all_steps())
    """)


@pytest.mark.parametrize("path", ["saved", "memory://saved"])
@pytest.mark.parametrize("damaged", [b"", b"junk", b"I5\n."], ids=["empty", "junk", "a number"])
def test_a_damaged_mark_spoils_no_other_checkpoint(run, path, damaged):
    run(f"""
    import fsspec
    path, damaged = {path!r}, {damaged!r}
    manager = CheckpointManager(path, 1, max_to_keep=3)
    for step in range(3):
        assert manager.save(step, state(step))
    with fsspec.open(f"{{path}}/1/.manager_metadata", "wb") as file:
        file.write(damaged)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert manager.all_steps() == [0, 2]
    assert len(told) == 1 and f"{{path}}/1/.manager_metadata" in str(told[0].message), told
    warnings.simplefilter("ignore")
    assert restored(manager, 2) == 2
    raised(ValueError, lambda: manager.restore(1, state(0)), "which has [0, 2], got 1")
    assert manager.save(3, state(3)) and manager.save(4, state(4))
    assert manager.all_steps() == [2, 3, 4]
    assert manager.save(1, state(9)) and manager.all_steps() == [1, 3, 4]
    assert restored(manager, 1) == 9
    """)


def test_two_managers_of_one_folder(run):
    """Each waits while another saves, and nothing of what the other writes is touched."""
    run("""
    import logging, subprocess
    code = (
        "import sys, torch\\n"
        "from torch_xla.experimental.distributed_checkpoint import CheckpointManager\\n"
        "manager = CheckpointManager('saved', 1)\\n"
        "for step in range(int(sys.argv[1]), 60, 2):\\n"
        "    assert manager.save(step, {'w': torch.full((500, 500), float(step))})\\n"
    )
    others = [subprocess.Popen([sys.executable, "-c", code, str(first)]) for first in (0, 1)]
    assert [other.wait() for other in others] == [0, 0]
    manager = CheckpointManager("saved", 1)
    assert manager.all_steps() == list(range(60)) and len(folders()) == 60
    w = {"w": torch.zeros(500, 500)}
    for step in manager.all_steps():
        manager.restore(step, w)
        assert (w["w"] == step).all(), step

    # In one process, and where one fails.
    logged = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())
    logging.getLogger("torch_xla").addHandler(handler)
    second, began, go_on = CheckpointManager("saved", 1), threading.Event(), threading.Event()

    class Waits:
        def __reduce__(self):
            began.set()
            assert go_on.wait(60)
            raise OSError("refused")

    slow = threading.Thread(target=lambda: raised(
        RuntimeError, lambda: manager.save(70, {"w": Waits()}), "refused"))
    slow.start()
    assert began.wait(60) and ".saving-70" in folders()
    quick = threading.Thread(target=lambda: second.save(71, state(71)))
    quick.start()
    while not any("waits for another" in message for message in logged):
        time.sleep(0.01)
    assert ".saving-70" in folders() and 71 not in manager.all_steps()
    go_on.set()
    slow.join(60)
    quick.join(60)
    assert restored(manager, 71) == 71 and not [f for f in folders() if f.startswith(".")]
    """)


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_a_file_that_cannot_be_written(run, threads):
    run(f"""
    import logging, resource
    logged = []
    logging.getLogger("torch_xla").addHandler(handler := logging.Handler())
    handler.emit = logged.append
    manager = CheckpointManager("saved", 1, max_to_keep=1, num_of_threads={threads},
                                max_pending_async=2)
    big = 20_000  # 320 KB
    assert manager.save(1, state(1, big))
    limit = lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    for kept in range(3):
        limit((4096, 100_000, 200_000)[kept])
        raised(RuntimeError, lambda: manager.save(2, state(2, big)), "save step 2 to saved",
               "File too large")
        assert folders() == ["1"] and manager.all_steps() == [1]
        assert manager.save_async(3, state(3, big))
        raised(RuntimeError, manager.join, "save step 3", "File too large")
        manager.join()  # raised once
        assert manager.save_async(4, state(4, big))
        manager._pending[0].join()
        error = raised(RuntimeError, lambda: manager.save_async(6, state(6, big)), "step 4")
        assert isinstance(error.__cause__, OSError), error.__cause__
        assert folders() == ["1"]
        limit(resource.RLIM_INFINITY)
        assert restored(manager, 1, big) == 1
    assert len(logged) == 6 and logged[0].levelname == "ERROR", logged
    assert manager.save_async(7, state(7, big)) and manager.save(8, state(8, big))
    assert manager.all_steps() == [8]
    """)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_disk_that_is_full(run, small_disk):
    """However little is left: the old checkpoint stays, what was written of the new one goes."""
    run(f"""
    os.chdir({str(small_disk)!r})
    size = 6_000  # 96 KB
    manager = CheckpointManager("saved", 1, max_to_keep=1, num_of_threads=2)
    assert manager.save(1, state(1, size))
    failed = saved = 0
    for spare in range(0, 150_000, 4096):
        left = os.statvfs(".").f_bavail * os.statvfs(".").f_bsize
        with open("filler", "wb") as file:
            file.write(bytes(left - spare))
        last = manager.all_steps()
        try:
            if spare % 8192:
                manager.save(2 + saved, state(2 + saved, size))
            else:
                manager.save_async(2 + saved, state(2 + saved, size))
                manager.join()
        except RuntimeError as error:
            assert "No space left" in str(error), error
            assert manager.all_steps() == last, (last, folders())
            failed += 1
        else:
            assert manager.all_steps() == [2 + saved]
            saved += 1
        assert folders() == [str(step) for step in manager.all_steps()], folders()
        assert restored(manager, *manager.all_steps(), size) == 1 + saved
        os.remove("filler")
    assert failed > 10 and saved > 3, (failed, saved)
    os.chdir("/")
    """)


def test_what_cannot_be_copied_or_pickled(run):
    run("""
    manager = CheckpointManager("saved", 1)
    raised(TypeError, lambda: manager.save_async(1, {"lock": threading.Lock()}), "pickle")
    raised(RuntimeError, lambda: manager.save(1, {"w": state(1)["w"], "lock": threading.Lock()}),
           "TypeError in process 0", "pickle")
    assert manager.all_steps() == [] and folders() == []
    open("file", "w").close()
    raised(RuntimeError, lambda: CheckpointManager("file/x", 1).save(1, state(1)), "NotADirectory")
    manager.join()
    """)


def test_a_broken_checkpoint_is_told(run):
    run("""
    manager = CheckpointManager("saved", 1)
    manager.save(1, state(1))
    with open("saved/1/__0_0_0.distcp", "r+b") as file:
        file.truncate(100)
    raised(RuntimeError, lambda: restored(manager, 1), "restore step 1 from saved")
    os.remove("saved/1/__0_0_0.distcp")
    raised(RuntimeError, lambda: restored(manager, 1), "FileNotFoundError")
    raised(ValueError, lambda: manager.restore(1, {"w": split(torch.zeros(4, 4))}), "mismatch")
    raised(RuntimeError, lambda: manager.restore(1, {"v": 1}), "Missing key")
    """)


# --- preemption -------------------------------------------------------------------------------


def test_sigterm_makes_the_next_step_due(run):
    run("""
    terminate = lambda: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(0.05))
    manager = CheckpointManager("saved", save_interval=10)
    assert manager.save(0, state(0)) and not manager.save_async(1, state(1))
    assert not manager.reached_preemption(1)
    terminate()
    assert not manager.reached_preemption(1)  # a step has one answer
    assert manager.should_save(2) and manager.reached_preemption(2)
    assert manager.save_async(2, state(2)) and manager.reached_preemption(2)
    manager.join()
    assert manager.all_steps() == [0, 2] and restored(manager, 2) == 2
    assert not manager.reached_preemption(3) and not manager.save(3, state(3))  # once
    terminate()
    terminate()
    assert manager.save(4, state(4), force=True) and manager.reached_preemption(4)
    assert not manager.save(5, state(5))
    raised(ValueError, lambda: manager.reached_preemption(-1), "step")
    """)


def test_steps_asked_about_ahead_or_again_do_not_use_a_signal_up(run):
    run("""
    terminate = lambda: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(0.05))
    manager = CheckpointManager("saved", save_interval=3)
    assert not manager.reached_preemption(10)
    terminate()
    assert manager.should_save(11) and not manager.should_save(10)
    assert not manager.save(10, {}) and not manager.reached_preemption(10)
    assert manager.save(11, {}) and manager.reached_preemption(11)
    assert not manager.reached_preemption(10) and manager.reached_preemption(11)

    # A loop that looks ahead.
    terminate()
    due = []
    for step in range(12, 20):
        manager.should_save(step + 1)
        if manager.reached_preemption(step):
            due.append(step)
    assert due == [13], due  # the first that it asked about

    # Steps that come again, after a restoration, have new answers.
    assert not manager.reached_preemption(20)
    manager.restore(11, {})
    terminate()
    assert manager.reached_preemption(13) and not manager.reached_preemption(14)
    """)


def test_the_names_of_torch_xla_that_watch_the_signal(run):
    run("""
    from torch_xla import _XLAC
    for name in ("_activate_preemption_sync_manager", "_deactivate_preemption_sync_manager"):
        raised(RuntimeError, getattr(_XLAC, name), "_ensure_xla_coordinator_initialized")
    raised(RuntimeError, lambda: _XLAC._sync_point_reached(3), "_activate_preemption")
    raised(NotImplementedError, lambda: _XLAC._ensure_xla_coordinator_initialized(0, 2, "here"))
    assert _XLAC._ensure_xla_coordinator_initialized(0, 1, "localhost") is None
    _XLAC._activate_preemption_sync_manager()
    assert _XLAC._sync_point_reached(3) is False
    os.kill(os.getpid(), signal.SIGTERM)
    assert [_XLAC._sync_point_reached(step) for step in (4, 5, 4)] == [True, False, True]
    _XLAC._deactivate_preemption_sync_manager()
    raised(RuntimeError, lambda: _XLAC._sync_point_reached(3), "_activate_preemption")
    """)


def test_handlers_that_were_there_are_called(run):
    run("""
    heard = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    managers = [CheckpointManager("saved", 10) for _ in range(2)]
    os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    assert [m.reached_preemption(1) for m in managers] == [True, True]

    # A handler that calls ours, and then another manager.
    ours = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda number, frame: (heard.append("new"), ours(number, frame)))
    managers.append(CheckpointManager("saved", 10))
    os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM, "new", signal.SIGTERM], heard
    assert [m.reached_preemption(2) for m in managers] == [True] * 3

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    deaf = CheckpointManager("saved", 10, chkpt_on_preemption=False)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN  # it is left alone
    os.kill(os.getpid(), signal.SIGTERM)
    assert not deaf.reached_preemption(1) and not deaf.should_save(1) and deaf.should_save(20)
    """)


@pytest.mark.forks
def test_sigterm_ends_processes_without_a_manager(run):
    done = run(
        """
        manager = CheckpointManager("saved", 10)
        told, out = os.pipe()
        child = os.fork()  # say a worker of a loader
        if child == 0:
            os.write(out, b"there")
            time.sleep(60)
            os._exit(0)
        os.read(told, 1)  # Python drops signals that come while it forks
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        del manager
        print("before", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
        """,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-15, "before\n"), done.stderr


def test_outside_the_main_thread_it_warns(run):
    run("""
    found = []
    def make():
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            manager = CheckpointManager("saved", 10)
            found.append((manager, told))
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    (manager, told), = found
    assert "main thread" in str(told[0].message) and told[0].filename == "<string>", told
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert manager.save(10, state(1)) and not manager.save(11, state(1))
    """)


# --- several processes ------------------------------------------------------------------------

TWO = """
import torch.distributed as dist

rank = 0 if os.fork() else 1  # before there is a device
def end(status):
    if rank == 0:
        status |= os.waitstatus_to_exitcode(os.wait()[1])
    os._exit(status)

def both():
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath("meet"), rank=rank,
                            world_size=2)
    xr.use_spmd()
    BODY

try:
    both()
except BaseException:
    import traceback
    traceback.print_exc()
    end(1)
end(0)
"""


@pytest.fixture
def run_two(run_python):
    """Runs code in two processes of four devices each, with a process group; `rank` tells them."""

    def run(code):
        start = PRELUDE.replace("xr.use_spmd()\n", "")
        body = textwrap.indent(textwrap.dedent(code), "    ")
        env = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}
        return run_python(start + TWO.replace("    BODY", body), env=env, timeout=200)

    return run


@pytest.mark.forks
def test_processes_save_together(run_two):
    run_two("""
    group = dist.new_group([0, 1], backend="gloo") if rank < 2 else None
    for given in (None, group):
        manager = CheckpointManager("saved", 10, max_to_keep=2, num_of_threads=2,
                                    max_pending_async=2, process_group=given)
        for step in range(0, 41):
            save = manager.save_async if step % 20 else manager.save
            assert save(step, {**state(step, 10_000), f"of {rank}": rank}) == (step % 10 == 0)
            dist.all_reduce(torch.ones(1))  # the program's own calls go on meanwhile
        manager.join()
        assert manager.all_steps() == [30, 40] and folders() == ["30", "40"]
        files = [os.path.getsize(f"saved/40/{name}") for name in os.listdir("saved/40")]
        assert 160_000 < sum(files) < 200_000, files  # what both have is saved once
        found = {**state(-1, 10_000), "of 0": None, "of 1": None}
        manager.restore(40, found)
        assert (found["w"] == 40).all() and found["n"] == 40
        assert (found["of 0"], found["of 1"]) == (0, 1)
        dist.barrier()
        if rank == 0:
            import shutil
            shutil.rmtree("saved")
        dist.barrier()
    """)


@pytest.mark.forks
def test_a_manager_made_too_early_is_told(run_python):
    early = TWO.replace("def both():", "manager = CheckpointManager('saved', 1)\ndef both():")
    code = "raised(RuntimeError, lambda: manager.save(1, state(1)), 'after init_process_group')"
    start = PRELUDE.replace("xr.use_spmd()\n", "")
    run_python(start + early.replace("BODY", code), env={"CPU_NUM_DEVICES": "4"}, timeout=200)


@pytest.mark.forks
def test_a_signal_to_one_process_makes_a_step_due_in_all(run_two):
    run_two("""
    manager = CheckpointManager("saved", 100)
    due = []
    for step in range(1, 30):
        if step == 10 and rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        if manager.save_async(step, state(step)):
            due.append(step)
        if manager.reached_preemption(step):
            break
    manager.join()
    assert due == [10] == manager.all_steps() and step == 10, (rank, due, step)
    raised(RuntimeError, lambda: manager.reached_preemption(20 + rank), "one step", "got 20 to 21")
    """)


@pytest.mark.forks
def test_an_error_of_one_process_is_raised_in_all(run_two):
    run_two("""
    import resource
    manager = CheckpointManager("saved", 1, max_to_keep=1)
    assert manager.save(1, state(1))
    own = {"w": state(2)["w"], f"of {rank}": torch.zeros(30_000)}
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
    raised(RuntimeError, lambda: manager.save(2, own), "step 2", "process 1", "File too large")
    assert manager.save_async(3, own)
    raised(RuntimeError, lambda: manager.save_async(4, own), "step 3", "process 1")
    manager.join()
    dist.barrier()
    assert folders() == ["1"] and restored(manager, 1) == 1
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    assert manager.save(5, own) and manager.all_steps() == [5]
    """)


def test_the_example_of_the_documents(run_python):
    text = (ROOT / "docs" / "checkpoints.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    env = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}
    assert run_python(code, env=env).stdout == "[20, 30]\n"
