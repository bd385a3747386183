"""Profiles of a job, and what its exchanges cost each rank.

Units: _src/profile/job, _src/insight/exchanges.
"""

from __future__ import annotations

import json
import re

import pytest

CODE = """
    import sys, time
    import torch, torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.debug.profiler as xp

    rank = xm.get_ordinal()
    xm.rendezvous("all are here")
    xp.start_trace("log")
    for step in range(3):
        if rank == 1:
            time.sleep(0.3)  # rank 0 waits for it
        x = torch.ones(4, device="xla")
        xm.all_reduce("sum", [x])
        assert x.cpu().tolist() == [2.0] * 4
    xp.stop_trace()
"""


@pytest.mark.parametrize("together", [True, False])
def test_one_file_of_all_ranks(jobs, tmp_path, together):
    """Also where one begins and ends before the other."""
    code = CODE if together else CODE.replace("xp.stop_trace()", "if rank: time.sleep(2)")
    code += "" if together else "    xp.stop_trace()\n"
    jobs.torchrun(code)
    (run,) = (tmp_path / "log/plugins/profile").iterdir()
    names = {re.sub(".*_rank", "", path.name): path for path in run.iterdir()}
    assert sorted(names) == [
        *(f"{rank}.{kind}" for rank in (0, 1) for kind in ("trace.json", "xplane.pb")),
        "job.trace.json",
    ]
    events = json.loads((run / "job.trace.json").read_text())["traceEvents"]
    of_ranks = [json.loads(names[f"{r}.trace.json"].read_text())["traceEvents"] for r in (0, 1)]
    assert events == of_ranks[0] + of_ranks[1]
    ranks = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {"rank 0: /host:CPU", "rank 1: /host:CPU"} <= set(ranks.values())
    taken = {0: 0.0, 1: 0.0}
    for event in events:
        if event["name"] == "all_reduce add Float[4]":
            assert re.search(r"job1\.py:\d+", event["args"]["line"])
            assert event["args"]["ranks"] == "[0, 1]"
            taken[int(ranks[event["pid"]][5])] += event["dur"] / 1e6
    assert taken[0] > taken[1] + 0.5  # of 0.9 s


def test_a_second_profile(jobs, tmp_path):
    """Each has a folder; of one rank alone there is no file of all."""
    code = (
        CODE
        + """
    time.sleep(1.1)  # folders are named by seconds
    xm.rendezvous("the first is written")
    if rank == 1:
        xp.start_trace("log")
        print((torch.ones(3, device="xla") + 1).cpu())
        xp.stop_trace()
"""
    )
    jobs.torchrun(code)
    first, second = sorted((tmp_path / "log/plugins/profile").iterdir())
    assert len(list(first.iterdir())) == 5
    assert {re.sub(".*_rank", "", path.name) for path in second.iterdir()} == {
        "1.trace.json",
        "1.xplane.pb",
    }


def test_a_rank_that_records_twice_meanwhile(jobs, tmp_path):
    """Its second profile leaves the first one's files alone."""
    code = """
        import time
        import torch, torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.debug.profiler as xp

        def work():
            assert (torch.ones(3, device="xla") + 1).tolist() == [2.0] * 3

        xp.start_trace("log")
        xm.rendezvous("both record")
        work()
        if xm.get_ordinal() == 1:
            time.sleep(1.1)  # folders are named by seconds
            xp.stop_trace()
            xp.start_trace("log")
            work()
        xp.stop_trace()
    """
    jobs.torchrun(code)
    runs = sorted((tmp_path / "log/plugins/profile").iterdir())
    ranks = [
        re.findall(r"rank(\d)\.xplane", " ".join(p.name for p in run.iterdir())) for run in runs
    ]
    assert [sorted(found) for found in ranks] == [["0", "1"], ["1"]]


def test_what_ranks_lose(jobs):
    code = """
        import time
        import torch, torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.debug

        def step(late):
            if xm.get_ordinal() == late:
                time.sleep(0.5)
            x = torch.ones(4, device="xla")
            xm.all_reduce("max", [x])
            torch_xla.sync(wait=True)

        step(late=None)
        torch_xla.debug.exchanges(clear=True)
        assert torch_xla.debug.exchanges() == []
        for _ in range(2):
            step(late=1)
        (mine,) = torch_xla.debug.exchanges()
        assert (mine.exchange, mine.ranks, mine.count) == ("all_reduce maximum Float[4]", (0, 1), 2)
        assert mine.place.endswith("(step)"), mine
        print(torch_xla.debug.exchange_report(), flush=True)
    """
    texts = jobs.by_hand(code)
    assert texts[0].stdout == texts[1].stdout
    head, row = texts[0].stdout.splitlines()
    assert head.startswith("torch_xla: 2 ranks")
    told = re.fullmatch(
        r"  2 times all_reduce maximum Float\[4\] at \S+job1\.py:\d+ \(step\): "
        r"rank 0 (\S+) s, rank 1 (\S+) s",
        row,
    )
    assert float(told[1]) > 0.6 and float(told[2]) == 0.0, row


def test_one_process_loses_nothing():
    import torch_xla.debug

    assert torch_xla.debug.exchanges() == []
    assert len(torch_xla.debug.exchange_report().splitlines()) == 1
