"""Where a rank waits for others for long, a line for each rank says what it does.

Units: _src/job/states, _src/job/waits, executor/run/doing.
"""

from __future__ import annotations

import re
from pathlib import Path

PLUGIN = Path(__file__).parents[2] / "build/fault_plugin.so"

CODE = """
import datetime, time
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from tests import fault_plugin
from torch_xla._src.job import place, store

rank = place.rank()
x = torch.arange(4.0).to("xla")
xm.rendezvous("begins")

fault_plugin.hold(fault_plugin.COMPILATION)
if rank == 1:
    xm.rendezvous("it is compiled")
y = x.sin() + 1
torch_xla.sync()
if rank == 0:
    while fault_plugin.num_held() == 0:
        time.sleep(0.05)
    xm.rendezvous("it is compiled")
    time.sleep(8)
fault_plugin.release()
y.tolist()

if rank == 0:
    time.sleep(5)  # in Python
xm.rendezvous("a place")

z = xm.all_reduce(xm.REDUCE_SUM, x)  # of rank 1
z.tolist()
if rank == 0:
    time.sleep(9)  # beside an exchange
xm.all_reduce(xm.REDUCE_SUM, z).tolist()

if rank == 0:
    time.sleep(5)
else:
    store.store("rendezvous").set_timeout(datetime.timedelta(seconds=2))
    try:
        xm.rendezvous("nobody comes")
    except RuntimeError as error:
        print(error, flush=True)
"""


def test_all_are_told_of(jobs):
    env = {"PJRT_LIBRARY_PATH": str(PLUGIN), "XLA_JOB_WAIT_SECONDS": "2"}
    done = jobs.by_hand(CODE, env=env)
    told, line = done[0].stderr, r"\S+job1\.py:\d+(?: \(<module>\))?"
    assert "has waited for others" not in done[1].stderr  # once on each host
    assert told.count("torch_xla: a process has waited for others for 2 s:\n  rank 0: ") >= 2, told
    for words in (
        rf'rank 0: compiles "sync" of {line} for \d+ s, Python is at {line}',
        rf'rank 1: waits for rank 0, which compiles "\w+" of {line} for \d+ s, Python is at {line}',
        rf"rank 0: runs Python at {line} \(no program launched for \d+ s\)",
        rf"rank 1: waits for rank 0 at the rendezvous 'a place' for \d+ s, Python is at {line}",
        rf"rank 1: waits for an exchange: all_reduce add Float\[4\] of {line} for \d+ s",
    ):
        assert re.search(words, told), (words, told)
    assert "rendezvous 'nobody comes': expected rank 0 here in time" in done[1].stdout
    assert re.search(rf"rank 0: runs Python at {line}", done[1].stdout), done[1].stdout


def test_processes_send_few_words(jobs):
    """About one a second; each answering the other, it would be thousands."""
    code = """
    import time
    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xla._src.job.messages import Lines

    sent, send = [], Lines.send
    Lines.send = lambda self, message: (sent.append(message), send(self, message))
    torch_xla.device()
    xm.rendezvous("all are here")
    begin, first = time.monotonic(), len(sent)
    while len(sent) < first + 3:  # who sends none is not watched
        time.sleep(0.05)
    time.sleep(3)
    most = 20 * (time.monotonic() - begin + 2)  # each sends about three: the bound is no time
    assert len(sent) - first < most, (len(sent) - first, most)
    xm.rendezvous("it is counted")
    """
    jobs.by_hand(code)
