"""Operators that only the host can run: seen, counted, and under the user's control."""

from __future__ import annotations

import inspect
import re

import pytest
import torch

import torch_xla.debug.metrics as met
from torch_xla.experimental import host_fallback

# It tells its kernel alone, so that no program can hold it: nobody knows the shape of its result.
DEFINE = """
import torch
library = torch.library.Library("fallback_test", "DEF")
library.define("large(Tensor self, Tensor bound) -> Tensor")
library.impl("large", lambda x, bound: x[x > bound], "CPU")
"""
exec(DEFINE)
large = torch.ops.fallback_test.large


@pytest.fixture
def matrix():
    return torch.arange(1.0, 10).reshape(3, 3)


def test_counted_and_right(matrix):
    before = met.counter_value("fallback_test::large") or 0
    bound = torch.tensor(5.0)
    with host_fallback("allow"):
        actual = large(matrix.to("xla"), bound.to("xla"))
    torch.testing.assert_close(actual.cpu(), large(matrix, bound), rtol=0, atol=0)
    assert met.counter_value("fallback_test::large") == before + 1


def test_operators_of_pytorch_count_under_their_names():
    """CTC's lengths as tensors: its kernel reads their values before it knows any shape."""
    torch.manual_seed(0)
    scores, targets = torch.randn(5, 2, 4).log_softmax(2), torch.tensor([[1, 2], [3, 1]])
    lengths = torch.tensor([5, 4]), torch.tensor([2, 1])
    there = [t.to("xla") for t in (scores, targets, *lengths)]
    met.clear_counters()
    with host_fallback("allow"):
        for _ in range(3):
            losses, _ = torch._ctc_loss(*there)
            assert losses.device.type == "xla"
    torch.testing.assert_close(losses.cpu(), torch._ctc_loss(scores, targets, *lengths)[0])
    assert met.executed_fallback_ops() == ["aten::_ctc_loss"]
    assert met.counter_value("aten::_ctc_loss") == 3
    assert "Counter: aten::_ctc_loss\n  Value: 3\n" in met.metrics_report()


def test_warned_of_once_with_the_line_of_the_call(matrix, capfd):
    x = matrix.to("xla")
    with host_fallback("warn"):
        large(x, x)
        large(x, x)
    (warning,) = [w for w in capfd.readouterr().err.splitlines() if "runs on the host" in w]
    lines, first = inspect.getsourcelines(test_warned_of_once_with_the_line_of_the_call)
    call = first + next(i for i, line in enumerate(lines) if "large(x, x)" in line)
    assert re.search(rf"fallback_test::large: .* here at {__file__}:{call} \(test_warned", warning)


def test_an_error_where_that_is_asked_for(matrix):
    x = matrix.to("xla") * 2
    with host_fallback("error"):
        with pytest.raises(
            NotImplementedError, match=r"fallback_test::large: runs on the host.*'allow'"
        ):
            large(x, x)
        assert x.sum().item() == 90  # reading a value is no fallback
    with host_fallback("allow"):
        large(x, x)


def test_modes_are_checked(monkeypatch, matrix):
    with pytest.raises(ValueError, match="expected 'allow', 'warn' or 'error', got 'never'"):
        host_fallback("never")
    monkeypatch.setenv("XLA_HOST_FALLBACK", "never")
    with pytest.raises(ValueError, match="XLA_HOST_FALLBACK: expected allow, warn or error"):
        large(matrix.to("xla"), matrix.to("xla"))


def test_without_a_block_it_holds_for_the_process(run_python):
    program = """
import os, torch_xla
torch_xla.experimental.host_fallback("error")
try:
    torch.ops.fallback_test.large(*torch.ones(2, 2, 2, device="xla"))
except NotImplementedError:
    print("refused", os.environ["XLA_HOST_FALLBACK"])
"""
    run = run_python(DEFINE + program)
    assert run.stdout.split() == ["refused", "error"], run.stderr
