"""What PyTorch has no kernel for is refused by the call, with the CPU's exception: not by the next
sync, and not by a compiler."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torch_xla


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
