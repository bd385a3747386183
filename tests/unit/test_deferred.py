"""Runs that wait for their programs (csrc/executor/step/deferred.h): their order, and what becomes
of them when a run before them fails in flight.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
import torch

import torch_xla
from torch_xla import _XLAC


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No background compilation begins inside it."""
    _XLAC._xla_set_background("pause")
    try:
        yield
    finally:
        _XLAC._xla_set_background("")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    torch_xla.sync(wait=True)
    _XLAC._xla_clear_cached_programs()
    yield
    torch_xla.sync(wait=True)


def waiting() -> int:
    return _XLAC._xla_num_deferred_runs()


def with_known_step() -> torch.Tensor:
    """Data whose step `x += 1` has a program."""
    x = torch.zeros(3, device="xla")
    torch_xla.sync(wait=True)
    x += 1
    torch_xla.sync(wait=True)
    return x


def test_barriers_are_launched_in_their_order():
    other = torch.ones(2, device="xla")
    x = with_known_step()
    with paused():
        y = other.exp()
        torch_xla.sync()
        x += 1  # its program is there, and it shares no data with the run that waits
        torch_xla.sync()
        assert waiting() == 2
    assert x.tolist() == [2, 2, 2] and waiting() == 0
    torch.testing.assert_close(y.cpu(), torch.ones(2).exp())


def test_a_read_that_needs_nothing_of_them_comes_before_runs_that_wait():
    other = torch.ones(2, device="xla")
    x = with_known_step()
    with paused():
        y = other.exp()
        torch_xla.sync()
        x += 1
        assert x.tolist() == [2, 2, 2]
        assert waiting() == 1
    torch.testing.assert_close(y.cpu(), torch.ones(2).exp())


def test_a_barrier_that_waits_for_its_run_waits_for_the_runs_before():
    other = torch.ones(2, device="xla")
    x = with_known_step()
    with paused():
        y = other.exp()
        torch_xla.sync()
        x += 1
        threading.Timer(0.2, _XLAC._xla_set_background, ("",)).start()
        torch_xla.sync(wait=True)
        assert waiting() == 0
    assert x.tolist() == [2, 2, 2]
    torch.testing.assert_close(y.cpu(), torch.ones(2).exp())


FAILS_IN_FLIGHT = """
import torch
import torch_xla
from torch_xla import _XLAC
from tests import fault_plugin

p, known = torch.tensor([1.0, 2.0], device="xla"), torch.tensor([1.0, 2.0], device="xla")
torch_xla.sync(wait=True)
known.mul_(2)
torch_xla.sync(wait=True)

fault_plugin.arm(fault_plugin.RUN, 1, late=True)
fault_plugin.hold(fault_plugin.END)
p.mul_(2)
torch_xla.sync()  # in flight, and will fail
_XLAC._xla_set_background("pause")
p.add_(1)
torch_xla.sync()  # waits for its program
assert _XLAC._xla_num_deferred_runs() == 1
fault_plugin.release()
"""


@pytest.mark.parametrize(
    "told_by",
    [
        "torch_xla.sync(wait=True)",
        "_XLAC._xla_set_background(''); _XLAC._xla_finish_deferred_runs(); torch_xla.sync()",
        "_XLAC._xla_set_background(''); p.cpu()",
    ],
)
def test_a_failure_in_flight_takes_back_what_runs_that_wait_have_overwritten(
    run_python, fault_plugin, told_by
):
    code = f"""
{FAILS_IN_FLIGHT}
failures = []
for _ in range(3):
    try:
        {told_by}
    except RuntimeError as error:
        failures.append(str(error))
    _XLAC._xla_set_background("")
assert len(failures) == 1, failures
assert "launched at" in failures[0], failures
assert p.tolist() == [1, 2]  # as before both runs
p.mul_(2)
torch_xla.sync(wait=True)
assert p.tolist() == [2, 4]
"""
    env = {
        "PJRT_DEVICE": "CPU",
        "PJRT_LIBRARY_PATH": str(fault_plugin),
        "XLA_NO_DONATION": "1",
        "XLA_EXPLAIN": "0",
    }
    run_python(code, env=env)
