"""Random programs against the CPU, and that the fuzzer finds and cuts down planted faults."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.compare import difference
from tests.fuzz.draw import draw
from tests.fuzz.program import Step, run
from tests.fuzz.reduce import simpler_lines, without_chunks

ROOT = Path(__file__).resolve().parents[2]


def fuzz(*arguments):
    """`python -m tests.fuzz` in a process of its own: its status and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=7200,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode, done.stdout + done.stderr


def expect_none(*arguments):
    status, printed = fuzz(*arguments)
    assert status == 0, printed
    assert re.search(r"^[1-9]\d* programs .* 0 distinct failures", printed, re.M), printed


def test_programs():
    expect_none("--seed", 0, "--programs", 25, "--jobs", 1)


@pytest.mark.parametrize(
    "mode",
    [
        *("no-donation", "refused", "check-key", "spmd", "sharded", "planned", "eager", "pieces"),
        "compiled",
    ],
)
def test_programs_in_other_modes(mode):
    expect_none("--seed", 5000, "--programs", 6, "--jobs", 1, "--mode", mode)


# 20,000 in all: some 40 minutes of two cores. More seeds: `python -m tests.fuzz`.
MANY = 250  # a block takes less than the time limit of a test, also on a busy machine
THOUSANDS = ["plain"] * 4 + ["quick-compiler"] * 5 + ["pieces"] * 2 + ["no-donation"] * 2
THOUSANDS += ["refused", "check-key", "spmd", "sharded", "planned", "eager", "compiled"]
BLOCKS = [(THOUSANDS[block * MANY // 1_000], block) for block in range(20_000 // MANY)]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "block"), BLOCKS)
def test_many_programs(mode, block):
    expect_none("--seed", 100_000 + MANY * block, "--programs", MANY, "--jobs", 1, "--mode", mode)


def steps_printed(printed):
    """The steps of the reduced programs in a report."""
    scripts = re.findall(r'    print\("---", device\)\n(.*?)\n    for name in', printed, re.S)
    return [line for line in "\n".join(scripts).splitlines() if re.search(r"[to]\d", line)]


@pytest.mark.parametrize(
    "fault, what, line",
    [
        ("wrong-value", "value", "flip"),
        pytest.param("crash", "crash", "cumsum", marks=pytest.mark.slow),
        pytest.param("lost-write", "value", "zero_", marks=pytest.mark.slow),
        pytest.param("lost-version", "_version", "zero_", marks=pytest.mark.slow),
        pytest.param("wrong-error", "error", "cumsum", marks=pytest.mark.slow),
        pytest.param("history", "value", "tanh", marks=pytest.mark.slow),
    ],
)
def test_a_planted_fault_is_found_and_reduced(fault, what, line):
    status, printed = fuzz("--plant", fault, "--programs", 400, "--findings", 1, "--jobs", 1)
    assert status == 1 and "1 distinct failures" in printed, printed
    assert re.search(f"^=== {what}", printed, re.M), printed
    steps = steps_printed(printed)
    # What needs three calls needs a tensor before each.
    assert len(steps) <= (6 if fault == "history" else 3) and any(line in step for step in steps), (
        printed
    )


@pytest.mark.slow
def test_a_planted_version_of_what_a_graph_keeps_is_found():
    status, printed = fuzz(
        *("--mode", "compiled", "--plant", "own-version", "--programs", 400, "--jobs", 1),
        *("--findings", 1, "--reduce", 0),
    )
    assert status == 1 and re.search("^=== error", printed, re.M), printed
    assert "compiled(" in printed


def test_one_seed_is_one_program():
    assert draw(7) == draw(7) != draw(8)


def test_what_rounding_explains_is_forgiven_and_nothing_else():
    program = (
        Step("factory", "t1 = torch.full((4,), 0.1, device=device)"),
        Step("op", "t2 = (t1 * 3 - 0.3) * 1e7"),
        Step("op", "t3 = t1 * 2"),
    )
    want, got = run(program, "cpu"), run(program, "cpu")
    assert difference(program, got, want) is None
    got.end["t2"] = want.end["t2"] + 1.0  # of a rounding error that is 1e7 times as large
    assert difference(program, got, want) is None
    got.end["t3"] = want.end["t3"] + 1e-3
    assert difference(program, got, want).what == "value"


def test_chunks_that_are_not_needed_go():
    assert without_chunks(range(40), lambda kept: {3, 17, 18} <= set(kept)) == [3, 17, 18]


def test_lines_become_simpler():
    lines = set(simpler_lines("with torch.no_grad(): t1[1:].add_(t2.clone(), alpha=2)"))
    assert "t1[1:].add_(t2.clone(), alpha=2)" in lines
    assert "with torch.no_grad(): t1.add_(t2.clone(), alpha=2)" in lines
    assert "with torch.no_grad(): t1[1:].add_(t2.clone())" in lines
    assert "with torch.no_grad(): t1[1:].add_(t2, alpha=2)" in lines
