"""Conjugated and negated views: of memory that others see, and that is read as it lies."""

from __future__ import annotations

import pytest
import torch

import torch_xla  # noqa: F401  the device


def numbers(device):
    return torch.tensor([[1 + 2j, 3 + 4j], [5 + 6j, 7 + 8j]]).to(device)


def both(program):
    expected, found = program(numbers("cpu")), program(numbers("xla"))
    for e, f in zip(expected, found, strict=True):
        torch.testing.assert_close(f.cpu().resolve_conj(), e.resolve_conj().resolve_neg())


VIEWS = {
    "conj": lambda x: x.conj(),
    "row of conj": lambda x: x.conj()[1:],
    "conj twice": lambda x: x.conj().t().conj(),
    "imag": lambda x: x.imag,
    "imag of conj": lambda x: x.conj().imag,
    "real of conj": lambda x: x.conj().real,
    "negated": lambda x: torch._neg_view(x.real),
    "negated imag of conj": lambda x: torch._neg_view(x.conj().imag),
}


@pytest.mark.parametrize("name", VIEWS)
def test_windows_and_writes(name):
    def program(x):
        y = VIEWS[name](x)
        y.fill_diagonal_(3)
        window = torch.as_strided(y, (2,), (2,), 0)
        window.mul_(5)
        y[..., 0] = -5
        return x, y, window

    both(program)


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_resolved_is_a_copy(name):
    def program(x):
        y = VIEWS[name](x)
        conj, neg = y.resolve_conj(), y.resolve_neg()
        conj.add_(1)
        neg.mul_(2)
        return x, y, conj, neg

    both(program)


def test_resizing_keeps_what_is_computed():
    def program(x):
        shorter, longer = x.conj(), x[1].conj()
        shorter.resize_(3)
        longer.resize_(2, 1)
        shorter.add_(1j)
        return x, shorter, longer

    both(program)


def test_inference_mode():
    def program(x):
        with torch.inference_mode():
            return x.conj().imag, x.conj().resolve_conj(), x.conj().real

    both(program)


def test_gradients():
    def program(x):
        x.requires_grad_()
        y = x.conj()
        (y.imag * y.real * x.imag.resolve_neg()).sum().backward()
        (y.resolve_conj() ** 2).real.sum().backward()
        return [x.grad]

    both(program)


@pytest.mark.parametrize(
    "look",
    [
        lambda x: torch.view_as_real(x.conj()),
        lambda x: x.conj().view(torch.int32),
        lambda x: x.conj().imag.view(torch.int32),
        lambda x: x.imag.imag,
    ],
)
def test_refused_as_on_the_cpu(look):
    with pytest.raises(RuntimeError) as expected:
        look(numbers("cpu"))
    with pytest.raises(RuntimeError) as found:
        look(numbers("xla"))
    assert str(found.value) == str(expected.value)
