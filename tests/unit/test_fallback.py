"""Operators that only the host can run: seen, counted, and under the user's control."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch

import torch_xla.debug.metrics as met
from torch_xla.experimental import host_fallback


@pytest.fixture
def matrix():
    return torch.arange(1.0, 10).reshape(3, 3)


def test_counted_and_right(matrix):
    before = met.counter_value("aten::linalg_lstsq") or 0
    b, regular = torch.ones(3, 1), matrix + 10 * torch.eye(3)
    with host_fallback("allow"):
        actual = torch.linalg.lstsq(regular.to("xla"), b.to("xla"))
    torch.testing.assert_close(actual.solution.cpu(), torch.linalg.lstsq(regular, b).solution)
    assert met.counter_value("aten::linalg_lstsq") == before + 1


def test_warned_of_once_at_the_line_of_the_call(matrix):
    x = matrix.to("xla")
    with host_fallback("warn"):
        with pytest.warns(UserWarning, match=r"aten::linalg_lstsq\S*: runs on the host") as caught:
            torch.linalg.lstsq(x, x)
            torch.linalg.lstsq(x, x)
    (warning,) = [w for w in caught if "lstsq" in str(w.message)]
    lines, first = inspect.getsourcelines(test_warned_of_once_at_the_line_of_the_call)
    calls = [first + i for i, line in enumerate(lines) if "torch.linalg.lstsq(x, x)" in line]
    assert warning.filename == __file__ and warning.lineno == calls[0]


def test_an_error_where_that_is_asked_for(matrix):
    x = matrix.to("xla") * 2
    with host_fallback("error"):
        with pytest.raises(
            NotImplementedError, match=r"aten::linalg_lstsq\S*: runs on the host.*'allow'"
        ):
            torch.linalg.lstsq(x, x)
        assert x.sum().item() == 90  # reading a value is no fallback
    with host_fallback("allow"):
        torch.linalg.lstsq(x, x)


def test_modes_are_checked(monkeypatch, matrix):
    with pytest.raises(ValueError, match="expected 'allow', 'warn' or 'error', got 'never'"):
        host_fallback("never")
    monkeypatch.setenv("XLA_HOST_FALLBACK", "never")
    with pytest.raises(ValueError, match="XLA_HOST_FALLBACK: expected allow, warn or error"):
        torch.linalg.lstsq(matrix.to("xla"), matrix.to("xla"))


def test_without_a_block_it_holds_for_the_process():
    program = """
import os, torch, torch_xla
torch_xla.experimental.host_fallback("error")
try:
    torch.linalg.lstsq(*torch.ones(2, 2, 2, device="xla"))
except NotImplementedError:
    print("refused", os.environ["XLA_HOST_FALLBACK"])
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.split() == ["refused", "error"], run.stderr
