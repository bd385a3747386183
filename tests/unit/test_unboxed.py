"""Kernels that borrow the tensors of a call (csrc/dispatch/record/unboxed.h) leave their counts as
they were, whichever way the call goes.
"""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import torch_xla


def uses(t: torch.Tensor) -> int:
    return t._use_count()


# A call of each kind of function, and of each way that a call may go.
WAYS = {
    "one": lambda x, y: torch.relu(x),
    "two": lambda x, y: x * y,
    "two and a number": lambda x, y: torch.add(x, y, alpha=2),
    "a number": lambda x, y: x + 1.5,
    "three": lambda x, y: torch.where(x > 0, x, y),
    "three and numbers": lambda x, y: torch.addmm(x, y, y.t() @ y, alpha=2),
    "maybe numbers": lambda x, y: x.clamp(min=0.5),
    "maybe a tensor": lambda x, y: torch.nn.functional.linear(x, x[:2], y[0, :2]),
    "none of it": lambda x, y: torch.nn.functional.linear(x, y),
    "a text": lambda x, y: torch.nn.functional.gelu(x, approximate="tanh"),
    "dims": lambda x, y: x.sum((0, 1), dtype=torch.float64),
    "a dim": lambda x, y: torch.softmax(x, 1),
    "a pair": lambda x, y: x.max(0),
    "triples": lambda x, y: torch.nn.functional.layer_norm(x, (4,), y[0], y[1]),
    "symbolic numbers": lambda x, y: torch.nn.functional.embedding(y.long(), x),
    "in place": lambda x, y: x.mul_(y),
    "in place by a number": lambda x, y: x.add_(1),
    "in place of an operand": lambda x, y: x.mul_(x),
    "the same twice": lambda x, y: x * x,
    "a list": lambda x, y: torch.cat([x, y, x]),
    "an index of the CPU": lambda x, y: x[torch.tensor([1, 0])],
    "a number of the CPU": lambda x, y: x + torch.tensor(2.0),
    "a gradient": lambda x, y: _gradient(x, y),
    "of another device": lambda x, y: torch.zeros_like(x, device="cpu"),
}


def _gradient(x, y):
    leaf = x.detach().requires_grad_()
    (leaf * y).exp().sum().backward()
    return leaf.grad


def pair():
    return torch.rand(3, 4, device="xla") + 1, torch.rand(3, 4, device="xla") + 1


@pytest.mark.parametrize("way", WAYS)
def test_counts_are_as_before(way):
    x, y = pair()
    for _ in range(2):  # a new call, and one that was seen before
        before = uses(x), uses(y)
        result = WAYS[way](x, y)
        del result
        assert (uses(x), uses(y)) == before
    torch_xla.sync()
    assert torch.isfinite(x.cpu()).all() and torch.isfinite(y.cpu()).all()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, y: x + torch.ones(7, device="xla"),
        lambda x, y: torch.mm(x, y),
        lambda x, y: x + torch.ones(3, 4),
        lambda x, y: x.add_(torch.ones(2, 3, 4, device="xla")),
        lambda x, y: torch.softmax(x, 5),
        lambda x, y: x.int().bitwise_and(y),
    ],
)
def test_counts_after_an_error(wrong):
    x, y = pair()
    before = uses(x), uses(y)
    for _ in range(2):
        with pytest.raises((RuntimeError, IndexError)):
            wrong(x, y)
        gc.collect()
        assert (uses(x), uses(y)) == before
    assert torch.equal((x + y).cpu(), x.cpu() + y.cpu())


def test_an_operator_in_place_returns_its_tensor():
    x, y = pair()
    assert x.mul_(y) is x and x.add_(1) is x and x.relu_() is x
    with torch_xla.experimental.host_fallback("allow"):
        assert x.lgamma_() is x


def test_tensors_end():
    """Those that a call took and gave, in the forward and the backward pass."""
    x, y = pair()
    x.requires_grad_()
    made = [x * y, torch.nn.functional.layer_norm(x, (4,)), x.max(0).values]
    sum(m.sum() for m in made).backward()
    marks = [weakref.ref(t) for t in (x, y, *made)]
    del x, y, made
    gc.collect()
    assert [mark() for mark in marks] == [None] * len(marks)


OFTEN = """
    add.Tensor sub.Tensor mul.Tensor div.Tensor add_.Tensor mul_.Tensor addcmul_ addcdiv_ sqrt relu
    gelu gelu_backward sigmoid tanh exp mm bmm addmm linear linear_backward convolution embedding
    _softmax _log_softmax _softmax_backward_data native_layer_norm native_layer_norm_backward
    sum sum.dim_IntList mean mean.dim where.self eq.Scalar lt.Tensor clamp pow.Tensor_Scalar
    max.dim gather index_select threshold_backward slice_backward select_backward
""".split()


@pytest.mark.parametrize("operator", OFTEN)
def test_operators_of_every_step_borrow(operator):
    """A C++ function that PyTorch changes would cost its calls this, and say nothing."""
    dump = torch._C._dispatch_dump(f"aten::{operator}").splitlines()
    (kernel,) = (line for line in dump if line.startswith("XLA:"))
    assert ":: (Tensor _0" in kernel, f"{operator}: add its function to record/unboxed.cpp"
