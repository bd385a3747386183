"""What PyTorch has no kernel for is refused by the call, with the CPU's exception: not by the next
sync, and not by a compiler. So are indices out of range, where their values are there."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torch_xla
from torch_xla.debug import metrics


def of(dtype, *sizes):
    return lambda device: torch.ones(sizes or (3, 3), dtype=dtype).to(device)


BITS, WHOLE, COMPLEX = of(torch.bool), of(torch.int64), of(torch.complex64)
HALF, FLOAT = of(torch.float16), of(torch.float32)

CALLS = {
    # refused by the lowering
    "softmax of integers": (lambda x: F.softmax(x, 1), WHOLE),
    "cross entropy of integers": (lambda x: F.cross_entropy(x, x[0]), WHOLE),
    "order of complex numbers": (lambda x: x < 1, COMPLEX),
    "largest complex number": (lambda x: x.max(), COMPLEX),
    "bits of floats": (lambda x: x & x, FLOAT),
    "uniform integers": (lambda x: x.uniform_(), WHOLE),
    "random numbers like integers": (torch.rand_like, WHOLE),
    "class weights of another dtype": (
        lambda x: F.nll_loss(x, x[0].long(), x[0].half()),
        FLOAT,
    ),
    "product of bits": (lambda x: x @ x, BITS),
    "sum after a product of bits": (lambda x: torch.addmv(x[0], x, x[0]), BITS),
    "remainder of bits": (lambda x: torch.fmod(x, x), BITS),
    # refused by PyTorch's kernel that the program would call
    "cholesky in float16": (torch.linalg.cholesky, HALF),
    "airy_ai in float16": (torch.special.airy_ai, HALF),
    "eigh of integers": (torch.linalg.eigh, WHOLE),
    "convolution of bits": (lambda x: F.conv1d(x[None], x[None]), BITS),
    # elementwise, with a lowering that would give something
    "hardsigmoid of complex numbers": (F.hardsigmoid, COMPLEX),
    "clamp of complex numbers": (lambda x: x.clamp_min(0), COMPLEX),
    "frac of integers": (torch.frac, WHOLE),
    "list of ceil of complex numbers": (lambda x: torch._foreach_ceil([x]), COMPLEX),
    "list of frac of integers": (lambda x: torch._foreach_frac_([x]), WHOLE),
    # refused by the Meta kernel, in other words than the CPU's
    "layer norm of integers": (lambda x: F.layer_norm(x, (3,)), WHOLE),
}


@pytest.mark.parametrize(("call", "make"), CALLS.values(), ids=CALLS.keys())
def test_refused_by_the_call(call, make):
    with pytest.raises(Exception) as expected:  # noqa: PT011
        call(make("cpu"))
    x = make("xla")
    with pytest.raises(type(expected.value)) as found:
        call(x)
    assert str(found.value) == str(expected.value)
    torch_xla.sync()
    torch.testing.assert_close(x.cpu(), make("cpu"))


def test_asking_the_cpu_draws_no_random_number_of_the_user():
    state = torch.get_rng_state()
    with pytest.raises(NotImplementedError):
        torch.empty(3, dtype=torch.int64, device="xla").uniform_()
    assert torch.equal(torch.get_rng_state(), state)


X = torch.arange(12.0).reshape(3, 4)


def known(*values, **options):
    return torch.tensor(values, **options)


def known_on_xla(*values, **options):
    return known(*values, **options).to("xla")


INDICES = {
    "gather": lambda x, i: x.gather(1, i([0, 9])),
    "gather before the first": lambda x, i: x.gather(1, i([0, -1])),
    "scatter": lambda x, i: x.scatter(0, i([0, 9]), 1.0),
    "scatter in place": lambda x, i: x.scatter_(0, i([0, 9]), 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i([0, 9]), x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i([0, 9]), x, "amax"),
    "index_select": lambda x, i: x.index_select(0, i(0, 3)),
    "index_add": lambda x, i: x.index_add(0, i(0, 3), x[:2]),
    "index_copy": lambda x, i: x.index_copy(0, i(0, 3), x[:2]),
    "index_reduce": lambda x, i: x.index_reduce(0, i(0, 3), x[:2], "amax"),
    "index_fill": lambda x, i: x.index_fill(0, i(0, 3), 2.0),
    "take": lambda x, i: x.take(i(0, 12)),
    "put": lambda x, i: x.put(i(0, 12), x[0, :2]),
    "x[i]": lambda x, i: x[i(0, 3)],
    "x[:, i]": lambda x, i: x[:, i(0, -5)],
    "x[i] = y": lambda x, i: x.__setitem__(i(0, 3), 1.0),
    "embedding": lambda x, i: F.embedding(i(0, 7), x),
    "embedding of int32": lambda x, i: F.embedding(i(0, 7, dtype=torch.int32), x),
    "embedding of a column": lambda x, i: F.embedding(i([0, 1], [2, 7])[:, 1], x),
    "embedding of a transpose": lambda x, i: F.embedding(i([0, 1], [2, 7]).t(), x),
    "embedding_bag": lambda x, i: F.embedding_bag(i([0, 7]), x),
    "cross_entropy": lambda x, i: F.cross_entropy(x, i(0, 1, 4)),
    "cross_entropy of pixels": lambda x, i: F.cross_entropy(x[None], i([4, 0, 0, 3])),
    "multi_margin_loss": lambda x, i: F.multi_margin_loss(x, i(0, 1, 4)),
    "one_hot": lambda x, i: F.one_hot(i(0, 5), 4),
    "one_hot below zero": lambda x, i: F.one_hot(i(0, -1)),
    "multinomial of zeros": lambda x, i: torch.multinomial(i(0.0, 0.0), 1),
    "multinomial of inf": lambda x, i: torch.multinomial(i(1.0, float("inf")), 1),
}


@pytest.mark.parametrize("call", INDICES.values(), ids=INDICES.keys())
def test_values_out_of_range(call):
    with pytest.raises(Exception) as expected:  # noqa: PT011
        call(X.clone(), known)
    x = X.to("xla")

    with pytest.raises(type(expected.value)) as found:
        call(x, known_on_xla)
    assert str(found.value) == str(expected.value)
    torch_xla.sync()
    torch.testing.assert_close(x.cpu(), X)


IN_RANGE = {
    "gather": lambda x, i: x.gather(1, i([0, 3])),
    "x[i]": lambda x, i: x[i(-3, 2)],
    "index_fill": lambda x, i: x.index_fill(0, i(0, -3), 2.0),
    "take": lambda x, i: x.take(i(-12, 11)),
    "cross_entropy": lambda x, i: F.cross_entropy(x, i(0, -100, 3)),
    "cross_entropy that ignores": lambda x, i: F.cross_entropy(x, i(0, 9, 3), ignore_index=9),
    "embedding of a column": lambda x, i: F.embedding(i([0, 9], [2, 7])[:, 0], x),
    "mask and index": lambda x, i: x.index_put((x[:, 0] > 0, i(3, -4)), x[0, 0]),
}


@pytest.mark.parametrize("call", IN_RANGE.values(), ids=IN_RANGE.keys())
def test_values_at_the_ends_of_the_range(call):
    actual = call(X.to("xla"), known_on_xla)
    torch.testing.assert_close(actual.cpu(), call(X, known))


def test_values_on_their_way_are_not_waited_for():
    x = X.to("xla")
    index = known_on_xla(0, 3) * 2
    before = metrics.counter_value("UncachedCompile")
    rows = x[index]
    assert metrics.counter_value("UncachedCompile") == before
    torch.testing.assert_close(rows[0].cpu(), X[0])
