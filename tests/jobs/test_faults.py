"""A process of a job that is lost, in each of the ways, ends the others within ten seconds.

Nobody watches over these processes but themselves, unless a test says so.

Units: _src/job/watch, _src/job/judge, _src/job/messages.
"""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

CODE = """
import os, signal, sys, time
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla._src.job import groups, watch



def exchange():
    groups.ensure()
    x = torch.ones(1000, device="xla")
    return torch.ops.torch_xla.all_reduce(x, "add", 1.0, [0, 1], 2, True).sum().item()


def kill(number):
    os.kill(os.getpid(), number)


def main():
    rank, fault, lost = xr.global_ordinal(), os.environ["FAULT"], int(os.environ["LOST"])
    assert exchange() == 2000
    xm.rendezvous("all are here")
    time.sleep(1.5 + (rank == lost))  # the watch has begun
    print("begins", time.time(), flush=True)
    if rank == lost:
        if fault == "raises":
            raise LookupError("no such thing")
        if fault == "raises in Gloo's words":
            raise RuntimeError("Connection closed by peer")
        if fault == "is stopped":
            kill(signal.SIGSTOP)
        if fault == "is killed beside a loader":
            # Its worker has copies of all connections.
            loader = torch.utils.data.DataLoader(range(1000), num_workers=1)
            next(iterator := iter(loader))
            kill(signal.SIGKILL)
        if fault == "is killed":
            kill(signal.SIGKILL)
        if fault == "crashes":
            kill(signal.SIGSEGV)
        if fault == "leaves":
            sys.exit(3)
        if fault == "leaves at once":
            os._exit(3)
        if fault == "is cut off":
            watch._watch._lines.connection.close()
            time.sleep(60)
        if fault == "is interrupted":
            kill(signal.SIGINT)
        if fault == "is elsewhere":
            xm.rendezvous("one place")
    if fault == "is elsewhere":
        xm.rendezvous("another place")
    wait = os.environ["WAIT"]
    if wait == "exchange":
        exchange()
    elif wait == "rendezvous":
        xm.rendezvous("a place")
    else:
        time.sleep(60)
    print("went on", flush=True)


if os.environ.get("SPAWNS") and __name__ == "__main__":
    torch_xla.launch(lambda index: main(), start_method="fork")
elif __name__ == "__main__":
    main()
"""


def limit() -> int:
    """Seconds until all are gone; processes of a machine that is busy with others take longer."""
    return 10 if os.getloadavg()[0] < 3 * os.cpu_count() else 60


def gone(job, timeout=60.0):
    """Waits until all are gone: the seconds since the fault, and what was printed."""
    begins = {}
    for process in job.processes:
        line = process.stdout.readline()
        assert line.startswith("begins"), line + process.communicate(timeout=60)[1]
        begins[process] = float(line.split()[1])
    begun = max(begins.values())
    while any(process.poll() is None for process in job.processes):
        if time.time() - begun > timeout:
            break
        time.sleep(0.02)
    seconds = time.time() - begun
    return seconds, job.wait(5)


FAULTS = [
    ("raises", 1, "exchange", r"rank 1 \(process \d+ of \S+\) failed: LookupError: no such thing\. "
     r"Rank 0, at \S+job1.py:\d+, ends, too\."),
    ("raises", 0, "rendezvous", r"rank 0 .* failed: LookupError: no such thing"),
    ("raises", 1, "sleep", r"rank 1 .* failed: LookupError: no such thing"),
    ("raises in Gloo's words", 1, "sleep", r"rank 1 .* failed: RuntimeError: Connection closed by"),
    ("is killed", 1, "exchange", r"rank 1 .* was killed, crashed or cut off"),
    ("is killed", 0, "exchange", r"rank 0 .* was killed, crashed or cut off"),
    ("is killed beside a loader", 1, "exchange", r"rank 1 .* was killed, crashed or cut off"),
    ("crashes", 1, "rendezvous", r"rank 1 .* was killed, crashed or cut off"),
    ("leaves at once", 1, "exchange", r"rank 1 .* was killed, crashed or cut off"),
    ("leaves", 1, "exchange", r"rank 1 .* has ended, and then rank 0 .* failed: Runt"),
    ("is interrupted", 1, "exchange", r"rank 1 .* has ended by KeyboardInterrupt, and then rank 0"),
    ("is stopped", 1, "exchange", r"rank 1 .* is stopped: nothing was heard of it for \d+ s"),
    ("is stopped", 0, "exchange", r"rank 0 .* is stopped: nothing was heard of it for \d+ s"),
    ("is cut off", 1, "exchange", r"rank 1 .* was killed, crashed or cut off"),
    ("is elsewhere", 1, "", r"(?s)(?=.*'one place')(?=.*'another place').*same order"),
]  # fmt: skip


@pytest.mark.parametrize("fault, lost, wait, text", FAULTS)
def test_the_others_end(jobs, fault, lost, wait, text):
    job = jobs.start_by_hand(CODE, env={"FAULT": fault, "LOST": str(lost), "WAIT": wait})
    seconds, done = gone(job)
    survivor = done[1 - lost]
    print(f"{fault}, {lost}, {wait}: {seconds:.1f} s, status {[d.returncode for d in done]}")
    print(*(d.stderr for d in done), sep="\n----\n")
    assert seconds < limit()
    assert re.search(text, done[0].stderr + done[1].stderr)
    assert "Error in sys.excepthook" not in survivor.stderr
    assert survivor.returncode not in (0, -signal.SIGABRT) and "went on" not in survivor.stdout


WORK = """
import ctypes, os, sys, time
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr

torch_xla.device()
xm.rendezvous("all are here")
time.sleep(0.5)
begun = time.monotonic()
if xr.global_ordinal() == int(os.environ["RANK_THAT_WORKS"]):
    ctypes.PyDLL(None).sleep(4)  # C that keeps Python's lock
    while time.monotonic() - begun < 8:  # Python alone
        pass
    for turn in range(2):  # the compiler, first behind the program and then before its eyes
        x = torch.ones(8, 8, device="xla")
        for i in range(900):
            x = torch.cat([x[:, :4] @ x[:4, :] + i + turn, x[4:]], 0)[:8].sort().values
        x.sum().item()
xm.rendezvous("all are there")
print("over", flush=True)
"""


@pytest.mark.parametrize("rank", ["0", "1"])
def test_work_is_no_silence(jobs, rank):
    env = {"RANK_THAT_WORKS": rank, "XLA_JOB_HEARTBEAT_SECONDS": "2"}
    done = jobs.by_hand(WORK, env=env)
    assert [(process.stdout, process.stderr) for process in done] == [("over\n", "")] * 2


def test_silence_may_be_allowed(jobs):
    code = """
        import os, signal, time, torch_xla, torch_xla.core.xla_model as xm
        torch_xla.device()
        xm.rendezvous("all are here")
        time.sleep(0.5)
        if xm.get_ordinal() == 1:
            pid = os.getpid()
            os.system(f"(sleep 4; kill -CONT {pid}) & kill -STOP {pid}")
        xm.rendezvous("all are there")
    """
    jobs.by_hand(code, env={"XLA_JOB_HEARTBEAT_SECONDS": "0"})
    done = jobs.by_hand(code, env={"XLA_JOB_HEARTBEAT_SECONDS": "2"}, check=False)
    assert "rank 1" in done[0].stderr and "is stopped" in done[0].stderr


@pytest.mark.parametrize("launcher", ["spawn", "torchrun"])
def test_the_launcher_is_killed(jobs, launcher):
    env = {"FAULT": "", "LOST": "-1", "WAIT": "sleep", "SPAWNS": "1"}
    if launcher == "spawn":
        job = jobs.start_spawn(CODE, env=env)
    else:
        job = jobs.start_torchrun(CODE, env={**env, "SPAWNS": None})
    parent = job.processes[0]
    assert all(parent.stdout.readline().startswith("begins") for _ in range(2))
    parent.kill()
    begun = time.monotonic()
    (done,) = job.wait(60)  # until nobody has its pipes
    assert time.monotonic() - begun < limit()
    assert "which started the job, has ended" in done.stderr


@pytest.mark.parametrize("fault", ["raises", "is stopped"])
@pytest.mark.parametrize("launcher", ["spawn", "torchrun"])
def test_a_launcher_ends_all(jobs, launcher, fault):
    env = {"FAULT": fault, "LOST": "1", "WAIT": "exchange", "SPAWNS": "1"}
    if launcher == "spawn":
        job = jobs.start_spawn(CODE, env=env)
    else:
        job = jobs.start_torchrun(CODE, env={**env, "SPAWNS": None})
    for _ in range(2):
        assert job.processes[0].stdout.readline().startswith("begins")
    begun = time.monotonic()
    (done,) = job.wait(60)
    assert time.monotonic() - begun < limit() + 2 and done.returncode == 1
    said = "failed: LookupError: no such thing" if fault == "raises" else "is stopped: nothing"
    assert re.search(rf"torch_xla: rank 1 \(process \d+ of \S+\) {said}", done.stderr)


@pytest.mark.parametrize("first", [0, 1])
def test_who_is_ready_first_may_end(jobs, first):
    code = """
        import os, time, torch_xla, torch_xla.core.xla_model as xm
        torch_xla.device()
        xm.rendezvous("all are here")
        time.sleep(0 if xm.get_ordinal() == int(os.environ["FIRST"]) else 4)
        print("over", torch_xla.device())
    """
    done = jobs.by_hand(code, env={"FIRST": str(first), "XLA_JOB_HEARTBEAT_SECONDS": "2"})
    assert [(process.stdout, process.stderr) for process in done] == [("over xla:0\n", "")] * 2


def test_torchrun_starts_again(jobs):
    code = """
        import os
        import torch, torch_xla
        import torch_xla.core.xla_model as xm

        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        begin = torch.load("step.pt")["step"].item() if os.path.exists("step.pt") else 0
        text = str(attempt).encode()
        assert xm.rendezvous(f"begins at {begin}", text) == (text, text)
        for step in range(begin, 4):
            t = torch.full((1,), step + 1, device="xla")
            xm.rendezvous("step")
            if attempt == 0 and step == 2 and xm.get_ordinal() == 1:
                raise LookupError("a fault")
            xm.save({"step": t}, "step.pt")
        print("over from", begin)
    """
    (done,) = jobs.torchrun(code, options=("--max-restarts=1",))
    # Rank 0 may have saved the step of the fault.
    assert done.stdout in ("over from 2\n" * 2, "over from 3\n" * 2)
    assert "failed: LookupError: a fault" in done.stderr
