"""Operators that PyTorch writes in terms of others: the ways in which that can fail.

Units: dispatch/record/decompose.
"""

from __future__ import annotations

import pytest
import torch

import torch_xla
from torch_xla._src import decompositions


@pytest.fixture
def instead(monkeypatch):
    """Puts `body(x)` in place of transpose_copy's decomposition; gives what it was called with."""

    def use(body):
        seen = []

        def run(name, overload, args, kwargs):
            assert name == "aten::transpose_copy"
            seen.append(args[0])
            return body(args[0])

        monkeypatch.setattr(decompositions, "run", run)
        return seen

    return use


def transposed(x):
    return torch.transpose_copy(x, -2, -1)


def of_shape(*shape):
    """A transposed tensor of this shape, which no call before had, on xla and on the CPU."""
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    return transposed(x.to("xla")), transposed(x)


def test_tensors_of_a_failed_one_are_not_computed(instead):
    kept = []

    def fails(x):
        kept.append(x * 2)
        kept.append(x.new_ones(3).add_(x.sum()))
        raise ValueError

    seen = instead(fails)
    actual, expected = of_shape(3, 1, 5)
    assert len(seen) == 1
    torch_xla.sync()
    assert torch.equal(actual.cpu(), expected)
    for tensor in kept:
        with pytest.raises(RuntimeError, match="placeholder"):
            tensor.cpu()


def test_one_that_calls_itself(instead):
    seen = instead(transposed)
    actual, expected = of_shape(3, 1, 6)
    assert len(seen) == 1
    assert torch.equal(actual.cpu(), expected)


def test_one_that_calls_itself_with_another_shape(instead):
    seen = instead(lambda x: torch.stack([transposed(a) for a in x]) if len(x) > 1 else None)
    actual, expected = of_shape(3, 1, 7)
    assert [t.shape for t in seen] == [(3, 1, 7), (1, 7)]
    assert torch.equal(actual.cpu(), expected)


@pytest.mark.parametrize(
    "name", ["bessel_j0", "bessel_j1", "gammainc", "gammaincc", "ndtri", "spherical_bessel_j0"]
)
def test_operators_that_are_their_own_decomposition(name, monkeypatch):
    monkeypatch.setattr(decompositions, "run", None)
    xs = [torch.linspace(0.1, 0.9, 7)] * (2 if name.startswith("gamma") else 1)
    run = getattr(torch.special, name)
    torch.testing.assert_close(run(*(x.to("xla") for x in xs)).cpu(), run(*xs))


def test_one_of_an_operator_that_has_a_seed_and_other_results():
    """PyTorch's decomposition gives attention's weights in the place of their logarithms' sums."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def run(device):
        torch.manual_seed(0)
        inputs = [torch.randn(2, 3, 5, 4).to(device).requires_grad_() for _ in range(3)]
        output, sums = flash(*inputs, is_causal=True)
        output.square().sum().backward()
        return output, sums, *(x.grad for x in inputs)

    for actual, expected in zip(run("xla"), run("cpu"), strict=True):
        assert actual.stride() == expected.stride()
        torch.testing.assert_close(actual.cpu(), expected)
    with pytest.raises(RuntimeError) as expected:
        flash(*[torch.ones(1, 1, 2, 2)] * 3, dropout_p=0.5)
    with pytest.raises(RuntimeError) as actual:
        flash(*[torch.ones(1, 1, 2, 2, device="xla")] * 3, dropout_p=0.5)
    assert str(actual.value) == str(expected.value)
