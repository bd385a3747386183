"""Drawn loops over a few values, whose parts run in pieces, against the CPU in float64. What the
first part reads may be one value where later parts read several."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

import torch_xla
from tests.unit.test_pieces import USUAL
from torch_xla import _XLAC

Tensors = list[torch.Tensor]
SMALL = (2, 3, 1, 4)  # calls of a part, parts, elements, calls that need not be compiled
SIZE = 8

UNARY = [
    torch.sin,
    torch.tanh,
    lambda t: t.abs() + 0.5,
    lambda t: t * 0.7 - 0.1,
    lambda t: t.t().clone(),
    lambda t: t.flip(0),
    lambda t: torch.softmax(t, 1),
    lambda t: t.cumsum(0) / 4,
    lambda t: t.clamp(-1, 1),
    lambda t: t.sum(0, keepdim=True).expand(SIZE, SIZE).clone(),
]
BINARY = [
    lambda a, b: torch.tanh(a @ b),
    lambda a, b: a * 0.5 + b * 0.5,
    torch.maximum,
    lambda a, b: torch.where(a > b, a, -b * 0.5),
    lambda a, b: (a - b).sin(),
    lambda a, b: torch.cat([a[: SIZE // 2], b[SIZE // 2 :]]),
]


class Loop:
    """The same statements again and again over some states, which begin as inputs: some as one."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        states, self.inputs = draw.randint(1, 4), draw.randint(1, 3)
        self.times = draw.randint(4, 9)
        self.begin = [draw.randrange(self.inputs) for _ in range(states)]
        self.writes = draw.random() < 0.4
        self.keeps = draw.random() < 0.4
        self.results = [draw.randrange(states) for _ in range(draw.randint(1, 3))]
        self.body = []
        for _ in range(draw.randint(3, 9)):
            function, count = draw.choice([(draw.choice(UNARY), 1), (draw.choice(BINARY), 2)])
            sources = [draw.randrange(states + self.inputs) for _ in range(count)]
            in_place = self.writes and draw.random() < 0.25
            self.body.append((function, sources, draw.randrange(states), in_place))

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        states = [inputs[i] for i in self.begin]
        if self.writes:
            states = [t.clone() for t in states]
        sums = []
        for _ in range(self.times):
            for function, sources, target, in_place in self.body:
                value = function(*([*states, *inputs][i] for i in sources))
                if in_place:
                    states[target].copy_(value.clone())
                else:
                    states[target] = value
            sums.append(states[0].sum())
        results = [states[i] * 1.0 for i in self.results]
        return [*results, torch.stack(sums)] if self.keeps else results


@pytest.fixture(autouse=True)
def _limits(monkeypatch):
    monkeypatch.setenv("XLA_COMPILE_IN_PIECES", "1")
    yield
    _XLAC._xla_set_piece_limits(*USUAL)
    torch._dynamo.reset()


def compare(seeds: range, wrap: Callable[[Callable], Callable]) -> None:
    in_pieces = 0
    for seed in seeds:
        loop = Loop(seed)
        torch.manual_seed(seed)
        inputs = [torch.randn(SIZE, SIZE) / 2 for _ in range(loop.inputs)]
        there = [x.to("xla") for x in inputs]
        torch_xla.sync()
        _XLAC._xla_clear_cached_programs()
        _XLAC._xla_set_piece_limits(*SMALL)
        found = wrap(loop)(*there)
        torch_xla.sync(wait=True)
        in_pieces += any(p["pieces"] for p in _XLAC._xla_programs())
        exact, rounded = loop(*[x.double() for x in inputs]), loop(*inputs)
        for f, e, r in zip(found, exact, rounded, strict=True):
            noise = 20 * (r.double() - e).abs().max().item()
            torch.testing.assert_close(
                f.cpu().double(), e, rtol=1e-5, atol=1e-4 + noise, msg=lambda m, s=seed: f"{s}: {m}"
            )
    assert in_pieces > len(seeds) / 4


def compiled(function: Callable) -> Callable:
    torch._dynamo.reset()
    return torch.compile(lambda *inputs: function(*inputs), backend="openxla")


def test_loops():
    compare(range(90, 105), lambda loop: loop)


def test_loops_of_torch_compile():
    compare(range(90, 95), compiled)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_many_loops(block):
    compare(range(1000 * (block + 1), 1000 * (block + 1) + 300), lambda loop: loop)


@pytest.mark.slow
def test_many_loops_of_torch_compile():
    compare(range(50_000, 50_200), compiled)
