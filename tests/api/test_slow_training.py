"""Each fault of examples/slow_training.py is told, with its line, and is no longer once mended."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "slow_training.py"
SOURCE = SCRIPT.read_text().splitlines()

# The report at exit is of runs that are longer than a test should be.
PROGRAM = f"""
import runpy, sys
from torch_xla._src.insight import explain
explain._SECONDS = explain._SHARE = 1e-6
sys.argv = ["slow_training.py", *ARGUMENTS]
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""


def at(text: str) -> str:
    """How a line of the script is named, by a text that is in it alone."""
    numbers = [i + 1 for i, line in enumerate(SOURCE) if text in line]
    assert len(numbers) == 1, f"{text!r} is in lines {numbers}"
    return f"slow_training.py:{numbers[0]} ("


@dataclasses.dataclass
class Fault:
    """What tells of a fault: `told` are texts of one message, `wait` one of the report at exit."""

    told: tuple[str, ...] = ()
    line: str = ""
    wait: str = ""


# The number of a fault is its place here, from 1 on.
FAULTS = [
    Fault(
        told=("`end` of aten::slice.Tensor is ", "Slice to one of a few sizes"),
        line="numbers[:, :longest]",
    ),
    Fault(
        told=("A mask selects as many elements", "Keep the size: torch.where(mask, x, 0)"),
        line="losses[mask]",
    ),
    Fault(
        told=("slow_training::focal: runs on the host", "This is said once per operator"),
        line="weights = focal(",
        wait=": slow_training::focal",
    ),
    Fault(
        told=(" is Long[20,65], was Long[32,65]", "DataLoader(drop_last=True)"),
        line="numbers[:, :-1]",
    ),
    Fault(
        told=('Recompiled "sync"', "went away", "Python took another way: a branch", "torch.where"),
        line="p.grad.mul_(",
    ),
    Fault(line="total += loss.item()", wait=": a number that Python reads"),
]
STAGES = range(len(FAULTS) + 1)


@dataclasses.dataclass
class Output:
    losses: list[float]
    err: str

    @property
    def messages(self) -> list[str]:
        """What was told before the end: recompiles, with all their lines, and warnings."""
        lines = self.err.split("torch_xla: this program waited")[0].splitlines()
        starts = [i for i, line in enumerate(lines) if not line.startswith("  ")]
        ends = [*starts[1:], len(lines)][: len(starts)]
        return ["\n".join(lines[a:b]) for a, b in zip(starts, ends, strict=True)]

    @property
    def waits(self) -> list[str]:
        """The lines of the report at exit."""
        report = self.err.partition("torch_xla: this program waited")[2].splitlines()
        return [line for line in report if " times " in line]

    def told(self, fault: Fault) -> list[str]:
        """The messages of a fault."""
        if not fault.told:
            return []
        return [m for m in self.messages if all(text in m for text in fault.told)]

    def waited(self, text: str) -> list[str]:
        return [line for line in self.waits if at(text) in line]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory, fork_server) -> Callable[[int], Output]:
    """What the script prints with so many faults mended; it runs once for each number."""
    folder = tmp_path_factory.mktemp("slow_training")

    @functools.cache
    def run(fixed: int) -> Output:
        # Steps of the first two stages compile for most of a second.
        count, epochs = (84, 2) if fixed < 2 else (116, 3)
        arguments = ["--fixed", fixed, "--epochs", epochs, "--sequences", count]
        code = PROGRAM.replace("ARGUMENTS", repr(list(map(str, arguments))))
        env = dict(os.environ)
        if fork_server is not None and fork_server.takes(env):
            done = fork_server.run(code, folder, env, 300)
        else:
            command = [sys.executable, "-c", code]
            done = subprocess.run(
                command, cwd=folder, env=env, capture_output=True, text=True, timeout=300
            )
        assert done.returncode == 0, done.stderr[-4000:]
        losses = re.findall(r"^epoch \d+: loss (\S+)$", done.stdout, re.MULTILINE)
        assert len(losses) == epochs and "steps per second: " in done.stdout
        return Output([float(loss) for loss in losses], done.stderr)

    return run


@pytest.mark.parametrize("number", range(1, len(FAULTS) + 1))
def test_a_fault_is_told_until_it_is_mended(outputs, number):
    fault = FAULTS[number - 1]
    before, after = outputs(number - 1), outputs(number)
    if fault.told:
        assert before.told(fault), before.err
        assert not after.told(fault), after.err
    if fault.wait:
        assert any(fault.wait in line for line in before.waited(fault.line)), before.err
        assert not after.waited(fault.line), after.err


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_its_line_is_named(outputs, number):
    fault = FAULTS[number - 1]
    told = outputs(number - 1).told(fault)
    assert told and any(at(fault.line) in message for message in told), told


def test_branches_on_values_wait(outputs):
    assert outputs(4).waited("elif norm > LIMIT:")
    assert not outputs(5).waited("elif norm > LIMIT:")


def test_the_last_fault_compiles_nothing(outputs):
    assert outputs(5).messages == []


def test_without_faults_nothing_is_told(outputs):
    assert outputs(6).err == ""


@pytest.mark.parametrize("fixed", STAGES)
def test_it_learns(outputs, fixed):
    losses = outputs(fixed).losses
    assert all(map(math.isfinite, losses)), losses
    assert losses[-1] < 0.9 * losses[0], losses


def test_faults_change_speed_alone(outputs):
    """But for the last batches, which are left out, each stage computes the same."""
    assert outputs(2).losses == pytest.approx(outputs(3).losses, rel=1e-3)
    for fixed in (5, 6):
        assert outputs(4).losses == pytest.approx(outputs(fixed).losses, rel=1e-3)
    assert outputs(0).losses == pytest.approx(outputs(1).losses, rel=1e-3)
