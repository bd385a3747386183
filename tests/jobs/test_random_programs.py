"""Random programs of a job against all its ranks simulated on the CPU (random_programs.py)."""

from __future__ import annotations

import pytest

CODE = """
import sys
from tests.jobs import random_programs

sys.argv[1:] = {seeds!r}
random_programs.main()
"""
PLANTED = """
import torch
from tests.jobs import random_programs

plain = random_programs.xm.all_gather
random_programs.xm.all_gather = lambda value, dim=0: plain(value, dim).flip(dim)
"""


@pytest.mark.parametrize(
    ("ranks", "seeds"),
    [(2, ["0", "12"]), pytest.param(4, ["20", "100"], marks=pytest.mark.slow)],
)
def test_random_programs(jobs, ranks, seeds):
    for done in jobs.by_hand(CODE.format(seeds=seeds), ranks=ranks, timeout=400):
        assert f"{seeds[1]} programs are right" in done.stdout


def test_a_wrong_order_is_found(jobs):
    done = jobs.by_hand(PLANTED + CODE.format(seeds=["0", "12"]), check=False, timeout=300)
    assert any("Mismatch" in process.stderr for process in done)
    assert any("all_gather" in process.stdout for process in done)
