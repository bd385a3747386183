"""Ranks that would exchange different things are told before they do, or while they wait.

Units: _src/job/pending.
"""

from __future__ import annotations

import textwrap

import pytest

BEGIN = """
import time

import torch
import torch_xla
from torch_xla._src.job import groups, place

rank, count = place.rank(), place.world_size()
groups.ensure()
ops = torch.ops.torch_xla
ALL = ([], count, True)
"""

CODE = (
    BEGIN
    + """
x = ops.all_reduce(torch.ones(4, device="xla"), "add", 1.0, *ALL)
torch_xla.sync()
try:
    {case}
    torch_xla.sync(wait=True)
except RuntimeError as error:
    text = str(error)
    assert "expected the same of all ranks of group [0, 1]" in text, text
    for side in {words}:
        assert side in text, (side, text)
    print("refused", flush=True)
else:
    raise AssertionError("nothing was said")
"""
)

# The rest of the line is searched for as well: the words of both sides.
CASES = {
    "another kind": (
        """y = ops.all_reduce(x, "add", 1.0, *ALL)
    y = ops.all_gather(y, 0, *ALL) if rank == 0 else ops.all_reduce(y, "maximum", 1.0, *ALL)""",
        ["number 3", "rank 0: all_gather Float[4] at ", "rank 1: all_reduce maximum Float[4] at "],
    ),
    "another one after a read of one rank": (
        """y = ops.all_reduce(x, "maximum", 1.0, *ALL)
    if rank == 0:
        y.tolist()
    y = ops.all_reduce(y[:2] if rank == 0 else y, "maximum", 1.0, *ALL)""",
        [
            "number 3",
            "rank 0: all_reduce maximum Float[2] at ",
            "rank 1: all_reduce maximum Float[4] at ",
        ],
    ),
    "a program that one of them has run before": (
        """y = ops.all_reduce(torch.ones(4 + rank, device="xla"), "add", 1.0, *ALL)""",
        ["number 2", "rank 0: all_reduce add Float[4] at ", "rank 1: all_reduce add Float[5] at "],
    ),
    "as much as a program that one of them has run before": (
        """x = torch.ones(4, device="xla")
    kinds = ["add", "add"] if rank == 0 else ["add", "maximum"]
    for kind in kinds:
        ops.all_reduce(x, kind, 1.0, *ALL).tolist()""",
        ["number 3", "rank 0: all_reduce add Float[4] at ", "rank 1: all_reduce maximum Float[4] "],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_both_ranks_are_told(jobs, case):
    code, words = CASES[case]
    done = jobs.by_hand(CODE.format(case=code, words=words), timeout=60)
    assert [process.stdout for process in done] == ["refused\n"] * 2


def test_a_rank_that_is_ahead_is_waited_for(jobs):
    """It is about to run a new program while another one still works for the step before."""
    jobs.by_hand(
        BEGIN
        + textwrap.dedent("""
        x = torch.ones(4, device="xla")
        for step in range(2):
            x = ops.all_reduce(x, "add", 0.5, *ALL)
            torch_xla.sync()
            if rank == 1 and step:
                time.sleep(7)  # longer than a wait without a word
        y = ops.all_gather(x, 0, *ALL)
        assert y.tolist() == [1.0] * 8, y
        """),
        timeout=60,
    )


def test_nothing_is_exchanged_any_more(jobs):
    case = 'ops.all_reduce(torch.ones(4 + rank, 2, device="xla"), "add", 1.0, *ALL).tolist()'
    code = CODE.format(case=case, words=["number 2"]) + (
        "\ntry:\n"
        '    ops.all_reduce(x, "add", 1.0, *ALL).tolist()\n'
        "except RuntimeError as error:\n"
        '    assert "Nothing is exchanged since" in str(error), error\n'
        "else:\n"
        '    raise AssertionError("it was exchanged")\n'
    )
    jobs.by_hand(code, timeout=60)


def test_programs_may_be_cut_differently(jobs):
    """What one rank reads at once the other one launches later, with more."""
    jobs.by_hand(
        BEGIN
        + textwrap.dedent("""
        for step in range(3):
            results = []
            for i in range(4):
                x = torch.full((i + 1,), 1.0 + rank, device="xla")
                y = ops.collective_broadcast(x, [], count, True) if i % 2 else ops.all_reduce(
                    x, "add", 1.0, *ALL)
                results.append(y)
                if (i + step) % 2 == rank:
                    y.tolist()
            expected = [[1.0 if i % 2 else 3.0] * (i + 1) for i in range(4)]
            assert [y.tolist() for y in results] == expected, results
            if step == 1:
                torch_xla.sync()
        """),
        timeout=60,
    )


def test_what_others_wait_for_is_launched(jobs):
    """One rank reads alone, while the other one waits by a file, or has only begun to."""
    jobs.by_hand(
        """
        import os, time

        import torch
        import torch_xla
        import torch_xla.core.xla_model as xm

        rank = xm.get_ordinal()

        def wait_for(name):
            while not os.path.exists(name):
                time.sleep(0.05)

        for reader in (0, 1):
            x = torch.full((2,), rank + 1.0, device="xla")
            y = xm.all_reduce(xm.REDUCE_SUM, x * 2)
            z = y + 1
            if rank == reader:
                assert y.tolist() == [6.0, 6.0]
                open(f"{reader}", "w").close()
            else:
                wait_for(f"{reader}")
            assert z.tolist() == [7.0, 7.0]
            y = xm.all_reduce(xm.REDUCE_MAX, x)
            if rank == reader:
                assert y.tolist() == [2.0, 2.0]
            xm.rendezvous("both are here")
        """,
        timeout=60,
    )
