"""Draws programs. Each step is run on the CPU as it is drawn, so that the rules see the tensors
they may use and a step that the CPU refuses is kept only now and then. A seed is a program."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.fuzz.program import Program, Runner, Seen, Step, gradient, tensors_of

SHAPES = [(4,), (3, 4), (4, 4), (4, 3), (2, 3, 4), (1, 4), (3, 1), (6,), (12,), (2, 2, 3), ()]
RARE_SHAPES = [(0,), (0, 3), (1,), (1, 1, 4), (2, 3, 2, 2), (1, 2, 4, 4), (5, 8)]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64]
# Values beyond these make the next operator's rounding the subject.
LARGEST = {torch.float16: 200.0, torch.bfloat16: 1e3}

Rule = Callable[["Draw"], str | None]


class Rules:
    """Kinds of steps by weight; each has rules of equal weight."""

    def __init__(self) -> None:
        self.kinds: dict[str, tuple[float, list[Rule]]] = {}
        self.only_in: dict[str, str] = {}  # of kinds that one mode has
        self.kept_errors: dict[str, float] = {}  # of kinds whose errors are a subject: the share

    def add(
        self, kind: str, weight: float, mode: str = "", keep_errors: float = 0.0
    ) -> Callable[[Rule], Rule]:
        rules = self.kinds.setdefault(kind, (weight, []))[1]
        if mode:
            self.only_in[kind] = mode
        if keep_errors:
            self.kept_errors[kind] = keep_errors

        def register(rule: Rule) -> Rule:
            rules.append(rule)
            return rule

        return register


RULES = Rules()
rule = RULES.add


class Draw:
    """One program in the making: what rules ask for tensors, shapes and names."""

    def __init__(
        self,
        seed: int,
        refuse: Callable[[Draw, Step, Seen], bool] | None = None,
        mode: str = "",
    ):
        self.choose = random.Random(seed)
        self.steps: list[Step] = []
        self.runner = Runner("cpu")
        self.refuse = refuse
        self.thread = 0
        self.own: list[set[str]] = [set(), set(), set()]  # the names that each thread made
        self._made = 0
        palette = [torch.float32] * 6 + self.choose.sample(DTYPES, 2)
        self.palette = palette if self.chance(0.8) else [torch.float32, *DTYPES]
        # Each program has subjects of its own: one that does everything goes deep in nothing.
        self.weights = {
            k: w * self.one([0.3, 1, 1, 1, 3])
            for k, (w, _) in RULES.kinds.items()
            if RULES.only_in.get(k, mode) == mode
        }

    # What rules draw from.

    def chance(self, p: float) -> bool:
        return self.choose.random() < p

    def one(self, options: Sequence[Any]) -> Any:
        return self.choose.choice(options)

    def new(self, letter: str = "t") -> str:
        self._made += 1
        return f"{letter}{self._made}"

    def shape(self) -> tuple[int, ...]:
        return self.one(SHAPES if self.chance(0.92) else RARE_SHAPES)

    def dtype(self) -> torch.dtype:
        return self.one(self.palette)

    def tensors(self, ok: Callable[[torch.Tensor], bool] = lambda t: True) -> list[str]:
        visible = self.own[self.thread]
        return [n for n, t in tensors_of(self.runner.names, visible).items() if ok(t)]

    def pick(self, ok: Callable[[torch.Tensor], bool] = lambda t: True) -> str | None:
        names = self.tensors(ok)
        if not names:
            return None
        # Later tensors are more likely: chains of views grow.
        return names[-1] if self.chance(0.4) else self.one(names)

    def others(self, letter: str) -> list[str]:
        return [n for n in self.own[self.thread] if n.startswith(letter) and n in self.runner.names]

    def value(self, expression: str) -> Any:
        """What an expression is on the CPU now, or None if it is an error."""
        names = dict(self.runner.names)
        names["show"] = lambda *values: None
        try:
            with torch.no_grad():
                return eval(expression, names)
        except Exception:
            return None

    def tensor(self, name: str) -> torch.Tensor:
        return self.runner.names[name]

    # The program.

    def try_step(self, kind: str, line: str, keep_errors: float) -> bool:
        step = Step(kind, line, self.thread)
        visible = self.own[self.thread] | step.names if self.thread else None
        seen = self.runner.append(step, visible)
        if seen.error:
            # A list that is refused is left alone; the CPU writes what comes first in it.
            share = RULES.kept_errors.get(kind, keep_errors)
            keep = self.chance(share) and comparable_error(seen) and kind != "list write"
        else:
            keep = sane(self.runner, step)
        if not keep or (self.refuse is not None and self.refuse(self, step, seen)):
            self._replay()
            return False
        self.steps.append(step)
        self.own[self.thread] |= step.names
        return True

    def _replay(self) -> None:
        self.runner = Runner("cpu")
        for step in self.steps:
            visible = step.names | self.own[step.thread] if step.thread else None
            self.runner.append(step, visible)

    def some_steps(self, count: int, allowed: Callable[[str], bool], keep_errors: float) -> None:
        for _ in range(count):
            for _ in range(30):
                kinds = [k for k in self.weights if allowed(k)]
                (kind,) = self.choose.choices(kinds, [self.weights[k] for k in kinds])
                make = self.one(RULES.kinds[kind][1])
                try:
                    line = make(self)
                except RuntimeError:  # a tensor that raises this whatever it is asked
                    continue
                if line and self.try_step(kind, line, keep_errors):
                    break


# PyTorch says so of views that a graph of torch.compile gives, where the graph's calls make views
# that autograd knows: by `aot_eager`, not by inductor nor on xla.
VIEW_OF_GRAPH = "of CompiledFunction is a view"
# Where the CPU lacks a kernel xla may have one: no difference that a program should look for.
NOT_COMPARED = (
    VIEW_OF_GRAPH,
    "not implemented for",
    "is not supported",
    "not supported on",
    "only supports",
    "does not support complex inputs",
    "Could not run",
    "expected scalar type",
    "expected m1 and m2 to have the same dtype",
)


def comparable_error(seen: Seen) -> bool:
    if seen.error in ("NotImplementedError", "SyntaxError", "NameError", "AttributeError"):
        return False
    return not any(words in seen.message for words in NOT_COMPARED)


def has_refused_view(runner: Runner) -> bool:
    for t in tensors_of(runner.names).values():
        try:
            gradient(t)
        except RuntimeError as error:
            if VIEW_OF_GRAPH in str(error):
                return True
    return False


def sane(runner: Runner, step: Step) -> bool:
    """Whether values keep a size in which rounding is small, and memory stays defined."""
    if has_refused_view(runner):
        return False
    for t in tensors_of(runner.names, step.names).values():
        if t.numel() > 400 or t.dtype == torch.complex32:  # XLA has no complex32
            return False
        try:
            grad = gradient(t)
        except RuntimeError:
            continue
        for values in (t, grad):
            if values is None or not values.numel():
                continue
            if values.is_complex():
                values = torch.view_as_real(values.detach().resolve_conj())
            if not values.is_floating_point():
                continue
            size = values.detach().abs().double()
            size = size[size.isfinite() & (size > 0)]
            if size.numel() and (size.max() > LARGEST.get(t.dtype, 1e5) or size.min() < 1e-20):
                return False
    return True


def draw(
    seed: int, refuse: Callable[[Draw, Step, Seen], bool] | None = None, mode: str = ""
) -> Program:
    """The program of this seed, which some modes have programs of their own for."""
    from tests.fuzz import rules  # here: they register themselves in this module

    d = Draw(seed, refuse, mode)
    count = d.choose.randint(*rules.LENGTH)
    # Errors leave no trace in most programs; a few are made of them.
    keep_errors = d.one([0.0, 0.02, 0.02, 0.3])
    d.some_steps(2, lambda kind: kind == "factory", 0.0)
    while len(d.steps) < count:
        before = len(d.steps)
        if d.chance(0.012) and len(d.steps) + 6 < count:
            _threads(d)
        else:
            d.some_steps(1, lambda kind: True, keep_errors)
        if len(d.steps) == before:
            break
    if d.chance(0.93):
        d.steps.append(Step("sync", "sync()"))
    return tuple(d.steps)


def _threads(d: Draw) -> None:
    from tests.fuzz import rules

    for thread in (1, 2):
        d.thread = thread
        d.own[thread] = set()
        d.some_steps(1, lambda kind: kind == "factory", 0.0)
        d.some_steps(d.choose.randint(2, 5), lambda kind: kind in rules.IN_THREADS, 0.0)
    d.thread = 0
    d.own[0] |= d.own[1] | d.own[2]
