"""xmp.spawn and torch_xla.launch: real processes, their arguments, exceptions and ends.

Units: _src/job/spawn, _src/device/launching, _src/job/turns.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

ARGUMENTS = """
import os, sys, time
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
import torch_xla.distributed.xla_multiprocessing as xmp

EXECUTOR = xmp.MpSerialExecutor()
MODEL = xmp.MpModelWrapper(torch.nn.Linear(2, 2))


def turn(folder, index):
    assert not os.path.exists(folder + "/busy")
    open(folder + "/busy", "w").close()
    time.sleep(0.2)
    os.unlink(folder + "/busy")
    return index + 1


def run(index, folder, word):
    assert (index, xr.world_size()) == (xr.global_ordinal(), 2) and word == "word"
    assert (xr.local_ordinal(), xr.local_process_count(), xr.host_index()) == (index, 2, 0)
    assert (xm.get_ordinal(), xm.xrt_world_size(), xm.is_master_ordinal()) == (index, 2, index == 0)
    assert str(torch_xla.device()) == "xla:0" and torch_xla.device_count() == 1
    assert xr.global_device_count() == 2 and xr.get_master_ip() == "127.0.0.1"
    assert (torch.ones(2, device="xla") + index).sum().item() == 2 + 2 * index
    assert EXECUTOR.run(lambda: turn(folder, index)) == index + 1
    assert MODEL.to("xla").weight.device.type == "xla"
    xm.do_on_ordinals(lambda t: print("on", index, t.device.type), (torch.ones(1).to("xla"),), (1,))
    xm.master_print("master", index)
    print("ran", index, flush=True)
    xmp.spawn(inner)  # each is a process of several already


def inner(index):
    print("inner", index, flush=True)


if __name__ == "__main__":
    folder = os.getcwd()
    for wrong in (3, 0, -1):
        try:
            xmp.spawn(run, (folder, "word"), nprocs=wrong)
        except ValueError as error:
            assert f"Unsupported nprocs ({wrong})" in str(error), error
        else:
            raise AssertionError("expected an error")
    seen = []
    xmp.spawn(lambda index: seen.append((index, xr.world_size())), nprocs=1)
    torch_xla.launch(lambda index: seen.append((index, 1)), debug_single_process=True)
    assert seen == [(0, 1), (0, 1)]
    before = dict(os.environ)
    method = sys.argv[1] if len(sys.argv) > 1 else os.environ["METHOD"]
    context = xmp.spawn(run, (folder, "word"), 2, join=False, daemon=True, start_method=method)
    assert len(context.pids()) == 2 and all(p.daemon for p in context.processes)
    assert not context.join(0.001)
    while not context.join():
        pass
    assert context.join() and dict(os.environ) == before
    assert not torch_xla._XLAC._xla_is_initialized()
    print(torch.ones(1, device="xla").item())
    for method in ("spawn", "fork"):
        try:
            torch_xla.launch(run, (folder, "word"), start_method=method)
        except RuntimeError as error:
            assert "Do not use the XLA device before" in str(error), error
        else:
            raise AssertionError("expected an error")
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_arguments(jobs, method):
    done = jobs.spawn(ARGUMENTS, env={"METHOD": method})
    lines = sorted(done.stdout.splitlines())
    assert lines == ["1.0", "inner 0", "inner 1", "master 0", "on 1 cpu", "ran 0", "ran 1"]
    assert done.stderr == ""


def test_pytorchs_own_process_group(jobs):
    """At the port that the processes are told, at one of the user's, and in the job's store."""
    code = """
        import os
        import torch, torch.distributed as dist, torch_xla

        def run(index, port):
            for method in (None, "xla://", "own"):
                if method == "own":
                    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", port
                    dist.init_process_group("gloo", rank=index, world_size=2)
                else:
                    dist.init_process_group("gloo", init_method=method)
                t = torch.full((1,), index + 1.0)
                dist.all_reduce(t)
                assert t.item() == 3
                dist.destroy_process_group()

        if __name__ == "__main__":
            torch_xla.launch(run, args=(os.environ["A_PORT"],))
    """
    assert jobs.spawn(code, env={"A_PORT": jobs.port()}).stderr == ""


def test_results_by_an_old_name(jobs):
    code = """
        import torch_xla.runtime as xr
        from torch_xla._internal import pjrt

        def run(word, times):
            return word * times, xr.global_ordinal()

        if __name__ == "__main__":
            done = pjrt.run_multiprocess(run, "ab", times=2, start_method="fork")
            assert done == {0: ("abab", 0), 1: ("abab", 1)}, done
    """
    jobs.spawn(code)


def test_launch_under_torchrun(jobs):
    code = """
        import torch_xla, torch_xla.runtime as xr
        import torch_xla.distributed.xla_multiprocessing as xmp
        def run(index, word):
            assert (word, xr.world_size()) == ("word", 2)
            print("launched", index, xr.global_ordinal())
        torch_xla.launch(run, ("word",))
        xmp.spawn(run, ("word",))
    """
    done = jobs.torchrun(code, ranks=1, hosts=2)
    said = sorted(line for process in done for line in process.stdout.splitlines())
    assert said == ["launched 0 0"] * 2 + ["launched 0 1", "launched 1 1"]


FAILS = """
import os, signal, sys, time
import torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

def raise_(index):
    if index == 1:
        raise LookupError("in the replica")
    time.sleep(60)

def exit(index):
    sys.exit(3) if index == 0 else time.sleep(60)

def kill(index):
    os.kill(os.getpid(), signal.SIGKILL) if index == 1 else time.sleep(60)

if __name__ == "__main__":
    begun = time.monotonic()
    for function, kind, words in (
        (raise_, ProcessRaisedException, ("Process 1", "in raise_", "LookupError: in the replica")),
        (exit, ProcessExitedException, ("process 0 terminated with exit code 3",)),
        (kill, ProcessExitedException, ("process 1 terminated with signal SIGKILL",)),
    ):
        try:
            torch_xla.launch(function, start_method="fork")
        except kind as error:
            assert all(word in str(error) for word in words), error
        else:
            raise AssertionError("expected an error")
    try:
        torch_xla.launch(raise_)
    except ProcessRaisedException as error:
        assert "LookupError: in the replica" in str(error)
    assert time.monotonic() - begun < 200  # four sleeps would take longer
    os.system(f"ps -ww --no-headers -o stat,args --ppid {os.getpid()} | grep -v -e ps -e tracker")
"""


def test_a_failure_reaches_the_caller(jobs):
    done = jobs.spawn(FAILS)
    assert "rank 1" in done.stderr and "failed: LookupError: in the replica" in done.stderr
    assert done.stdout == ""  # no process is left


WAITS = """
import os, time
import torch_xla
def run(index):
    print(os.getpid(), flush=True)
    time.sleep(60)
if __name__ == "__main__":
    torch_xla.launch(run)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_no_process(jobs, number):
    job = jobs.start_spawn(WAITS)
    parent = job.processes[0]
    children = [int(parent.stdout.readline()) for _ in range(2)]
    if number == signal.SIGINT:
        os.killpg(parent.pid, number)  # as the terminal's Ctrl-C
    else:
        parent.send_signal(number)
    begun = time.monotonic()
    (done,) = job.wait(60)
    assert done.returncode == (1 if number == signal.SIGINT else -number) or done.returncode == -2
    while any(os.path.exists(f"/proc/{child}") for child in children):
        assert time.monotonic() - begun < 60, done.stderr
        time.sleep(0.05)


def test_processes_of_a_host_share_its_cores(jobs):
    """The CPU plugin would take a thread for each core in each of them."""
    code = """
        import os, time
        from pathlib import Path
        import torch, torch_xla

        x = torch.randn(64, 64, device="xla")
        print((x @ x.sin()).sum().item())
        share = int(os.environ.get("SHARE") or max(1, len(os.sched_getaffinity(0)) // 3))

        def names():
            for task in Path("/proc/self/task").iterdir():
                try:
                    yield (task / "comm").read_text().strip()
                except OSError:
                    pass  # it has ended

        until = time.monotonic() + 30  # threads name themselves when they begin
        while (found := list(names())).count("tf_XLAEigen") != share:
            assert time.monotonic() < until, (share, found)
            time.sleep(0.1)
    """
    jobs.by_hand(code, ranks=3)
    jobs.by_hand(code, env={"PJRT_NPROC": "5", "SHARE": "5"})
