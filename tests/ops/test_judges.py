"""What judges operators is judged: each fault that it is there to find is put in, and found."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.testing._internal.opinfo.core import SampleInput

from . import operands
from .database import ENTRIES, Outcome, compare
from .harness import TIMES_AS_FAR, NoDigits, assert_as_close


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 if grad.device.type == "xla" else grad


def on_xla(wrong):
    return lambda x: wrong(x) if x.device.type == "xla" else x.clone()


def refuse(words):
    def call(x):
        raise RuntimeError(words if x.device.type == "xla" else "expected a matrix, got a vector")

    return call


def judged(op, check="forward", shape=(3, 4), **options) -> Outcome:
    """What is said of `op` under the name of a harmless entry."""
    entry = copy.copy(ENTRIES["sin"])
    entry.op = op

    def samples(op_info, device, dtype, requires_grad, **_):
        yield SampleInput(torch.randn(shape, requires_grad=requires_grad))

    entry.sample_inputs_func = samples
    return compare(entry, torch.float32, check, **options)


def test_what_is_right_is_right():
    ways = dict.fromkeys(operands.IN_PROGRAM, 1)
    for check in ("forward", "gradient"):
        outcome = judged(torch.sin, check, in_program=ways)
        outcome.check()
        assert outcome.compared == 1 + len(ways)


@pytest.mark.parametrize(
    ("op", "check"),
    [
        (on_xla(lambda x: x + 1), "forward"),
        (on_xla(lambda x: x.double()), "forward"),
        (on_xla(lambda x: x.t().contiguous().t()), "forward"),
        (WrongGradient.apply, "gradient"),
        (refuse("no"), "forward"),
    ],
    ids=["value", "dtype", "strides", "gradient", "words"],
)
def test_a_fault_is_found(op, check):
    assert judged(op, check).wrong


def test_a_fault_of_tensors_made_in_the_program_is_found():
    def wrong(x):  # as a compiler would that takes what is expanded for what it expands
        return x + 1 if x.device.type == "xla" and x.stride(0) == 0 else x + 0

    assert not judged(wrong).wrong
    assert judged(wrong, in_program={"expanded": 1}).wrong


def test_a_case_that_compares_nothing_fails():
    with pytest.raises(AssertionError, match="nothing to compare"):
        judged(torch.sin, shape=(0, 4)).check()
    judged(refuse("expected a matrix, got 7"), shape=(0, 4)).check()


def test_noise_counts_as_nothing_compared():
    def cancels(x):  # a billion and a bit, less a billion
        return (x + 2.0**30) - 2.0**30 if x.device.type == "cpu" else x * 1.5

    outcome = judged(cancels)
    assert outcome.noise and not outcome.wrong
    with pytest.raises(AssertionError, match="nothing to compare"):
        outcome.check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_results_may_be_as_far_from_the_truth_as_the_cpus(dtype):
    truth = torch.tensor([1.0, 2, 0.001]).to(torch.promote_types(dtype, torch.float64))
    eps = torch.finfo(dtype).eps
    expected = (truth + torch.tensor([0, 10 * eps, 0])).to(dtype)
    as_far = (truth + torch.tensor([0, 0, TIMES_AS_FAR * 9 * eps])).to(dtype).to("xla")
    too_far = (truth + torch.tensor([0, 0, (TIMES_AS_FAR + 1) * 12 * eps])).to(dtype).to("xla")
    assert_as_close(as_far, expected, truth)
    with pytest.raises(AssertionError, match="not close"):
        assert_as_close(too_far, expected, truth)
    with pytest.raises(NoDigits, match="the CPU is off"):
        assert_as_close(as_far, expected * 2, truth)
    with pytest.raises(AssertionError, match="not close"):
        assert_as_close([as_far, too_far], [expected * 2, expected], [truth, truth])
    nothing = torch.full_like(expected, torch.nan)
    with pytest.raises(AssertionError):
        assert_as_close(as_far, nothing, truth)
