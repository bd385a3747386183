"""Thousands of small values: those that are there come to a program as rows of arrays, and long
chains of calls run some hundred at a time, with the values of the CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch

import torch_xla
from torch_xla import _XLAC

MANY = 512  # inputs of one type
ROWS = 128  # of an array of them


@pytest.fixture(autouse=True)
def _no_programs() -> Iterator[None]:
    _XLAC._xla_clear_cached_programs()
    yield


def pieces() -> list[int]:
    """The executables of the latest program, in the order of its runs."""
    return _XLAC._xla_programs()[0]["pieces"]


def repeats() -> int:
    """How often the executable runs that runs most often."""
    return max(Counter(pieces()).values(), default=0)


def numbers(n: int, size: int = 0, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    sizes = (size,) if size else ()
    return [torch.arange(max(size, 1)).add(i).remainder(97).to(dtype).view(sizes) for i in range(n)]


def on_both(fn: Callable[[list[torch.Tensor]], torch.Tensor], made: list[torch.Tensor]) -> None:
    there = [t.to("xla") for t in made]
    torch_xla.sync(wait=True)
    found = fn(there)
    torch_xla.sync(wait=True)
    torch.testing.assert_close(found.cpu(), fn(made), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [MANY, MANY + 1, 5 * ROWS - 1, 1000])
def test_values_are_joined(n):
    on_both(lambda values: torch.stack(values).mean(), numbers(n))
    packs = Counter(pieces()[:-1])
    assert list(packs.values()) == [-(-n // ROWS)], "one executable joins all"


def test_few_values_are_not():
    on_both(lambda values: torch.stack(values).mean(), numbers(MANY - 1))
    assert pieces() == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_values_of_each_dtype(dtype):
    on_both(torch.stack, numbers(MANY, dtype=dtype))
    assert repeats() == MANY // ROWS


def test_rows_of_two_sizes():
    on_both(lambda values: torch.cat(values) * 2, numbers(MANY, 3) + numbers(MANY, 6))
    assert len(set(pieces())) == 3, "rows of each size, and the call"


def test_large_values_are_not_joined():
    on_both(lambda values: torch.cat(values).sum(), numbers(MANY, 300))
    assert pieces() == []


def test_one_value_in_many_places():
    on_both(lambda values: torch.stack([v for v in values for _ in range(3)]), numbers(MANY))
    assert len(pieces()) == MANY // ROWS + 1


def test_what_is_updated_is_taken_over():
    """Its memory is that of the result, of which rows of an array have none."""
    weights = [torch.zeros(2).to("xla") for _ in range(MANY + 8)]
    torch_xla.sync(wait=True)
    for _ in range(2):
        torch._foreach_add_(weights, 1.5)
        torch_xla.sync(wait=True)
    assert pieces() == []
    assert all(w.cpu().tolist() == [3.0, 3.0] for w in weights)


@pytest.mark.parametrize("n", [2100, 2560])
def test_a_sum_of_many(n):
    on_both(sum, numbers(n))
    assert repeats() >= 7, "parts of the chain are one executable"


def test_a_sum_with_numbers_and_casts():
    def total(values):
        out = values[0]
        for i, v in enumerate(values):
            out = out * 0.5 + v.double() * (i % 7) - 1.5
        return out

    on_both(total, numbers(700))
    assert repeats() >= 4


def test_values_that_wait():
    def losses(values):
        each = [(values[0] * i).sin().sum() for i in range(1100)]
        return torch.stack(each).mean()

    on_both(losses, [torch.arange(4.0)])
    assert repeats() >= 4


def test_a_chain_that_reads_further_back():
    def steps(values):
        a, b = values
        for _ in range(1500):
            a, b = b, (a + b) * 0.5
        return b

    on_both(steps, numbers(2))


def test_gradients_of_many():
    made = [torch.tensor(float(i), requires_grad=True) for i in range(MANY)]
    there = [t.detach().to("xla").requires_grad_() for t in made]
    for values in (made, there):
        (torch.stack(values) ** 2).mean().backward()
    torch_xla.sync()
    for a, b in zip(there, made, strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad)


@pytest.mark.slow  # the whole is compiled for half a minute
def test_random_numbers_are_those_of_the_whole(monkeypatch):
    found = []
    for where in ("auto", "0"):
        monkeypatch.setenv("XLA_COMPILE_IN_PIECES", where)
        _XLAC._xla_clear_cached_programs()
        torch.manual_seed(3)
        total = torch.zeros((), device="xla")
        for _ in range(1100):
            total = total + torch.rand((), device="xla")
        found.append(total.item())
        assert (repeats() > 1) == (where == "auto")
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_longer_than_a_stack():
    """A plan is made without recursion."""
    total = torch.ones(()).to("xla")
    torch_xla.sync(wait=True)
    for _ in range(20000):
        total = total * 0.5 + 1
    assert total.item() == 2
