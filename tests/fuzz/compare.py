"""Compares the traces of one program on two devices. What rounding alone may change is forgiven,
and nothing else: the program is run again on the CPU with noise of that size to know it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tests.fuzz.program import Program, Trace, run

NOISY_RUNS = 8

# Of the largest value in the tensor.
TOLERANCE = {
    torch.float64: 1e-8,
    torch.complex128: 1e-8,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 5e-3,
    torch.bfloat16: 4e-2,
}


@dataclass(frozen=True)
class Difference:
    """`step` is None for what is compared at the end; `what` is the same for the same fault."""

    what: str
    step: int | None
    detail: str

    def is_like(self, other: Difference) -> bool:
        """Whether it is likely the same fault; errors of one class are many, by their words."""
        if self.what != other.what:
            return False
        return not self.what.startswith("error") or self._words() == other._words()

    def _words(self) -> list[str]:
        return self.detail.split()[:3]


def _as_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (float, complex)):
        wide = torch.complex64 if isinstance(value, complex) else torch.float32
        return torch.tensor(value, dtype=wide)  # a number read from a tensor, float32 most often
    return None


def _far(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Which elements differ by more than rounding does in most operators."""
    if want.dtype not in TOLERANCE:
        return got != want
    if want.is_complex():
        got, want = torch.view_as_real(got), torch.view_as_real(want)
    finite = want[want.isfinite()].abs().double()
    scale = max(1.0, finite.max().item()) if finite.numel() else 1.0
    near = (got.double() - want.double()).abs() <= TOLERANCE[want.dtype] * scale
    far = ~(near | (got == want) | (got.isnan() & want.isnan()))
    return far


def _values(got: Any, want: Any) -> str:
    """How two values differ; empty if they do not."""
    if isinstance(want, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(want):
            return f"{got} instead of {want}"
        return next((d for g, w in zip(got, want, strict=True) if (d := _values(g, w))), "")
    expected, actual = _as_tensor(want), _as_tensor(got)
    if expected is None or actual is None or type(got) is not type(want):
        return "" if type(got) is type(want) and got == want else f"{got!r} instead of {want!r}"
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        shapes = f"{list(actual.shape)} instead of {expected.dtype} {list(expected.shape)}"
        return f"{actual.dtype} {shapes}"
    if not _far(actual, expected).any():
        return ""
    return f"{actual.tolist()} instead of {expected.tolist()}"


def _distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())


def _noisy(values: list[Any], got: Any, want: Any) -> bool:
    """True if the CPU's own value moves as far under noise."""
    if isinstance(want, (list, tuple)):
        lists = [v for v in values if isinstance(v, list) and len(v) == len(want)]
        if len(lists) < len(values) or not isinstance(got, list) or len(got) != len(want):
            return len(lists) < len(values)
        return all(
            not _values(g, w) or _noisy([v[i] for v in lists], g, w)
            for i, (g, w) in enumerate(zip(got, want, strict=True))
        )
    expected, actual = _as_tensor(want), _as_tensor(got)
    if expected is None or actual is None or expected.shape != actual.shape:
        return any(_values(v, want) for v in values)
    others = [_as_tensor(v) for v in values]
    if any(o is None or o.shape != expected.shape or o.dtype != expected.dtype for o in others):
        return True
    if expected.dtype != actual.dtype:
        return False
    far = _far(actual, expected)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    moved = torch.stack([_distance(o.to(wide), expected.to(wide)) for o in others]).amax(0)
    if expected.is_complex():
        far = far.any(-1)
    off = (actual.to(wide) - expected.to(wide)).abs()
    forgiven = (off <= 20 * moved) | ~moved.isfinite()
    return not (far & ~forgiven).any()


def _find(program: Program, got: Trace, want: Trace, noisy: Sequence[Trace] | None):
    """The first difference: any that is not small, or with `noisy` one that is not noise."""

    def differs(value: Any, expected: Any, others: list[Any]) -> str:
        found = _values(value, expected)
        return "" if found and noisy and _noisy(others, value, expected) else found

    first: dict[str, int] = {}  # how much its version differed when a tensor was new
    before: dict[str, tuple[int, int]] = {}  # its versions after the last step

    for i, (a, b) in enumerate(zip(got.steps, want.steps, strict=True)):
        if a.error != b.error:
            errors = f"{a.error or 'no error'} instead of {b.error or 'no error'}"
            messages = f"{a.message or '-'} | CPU: {b.message or '-'}"
            return Difference(f"error: {errors}", i, messages)
        if len(a.shown) != len(b.shown):
            return Difference("number of values shown", i, f"{a.shown} instead of {b.shown}")
        for k, (value, expected) in enumerate(zip(a.shown, b.shown, strict=True)):
            others = [n.steps[i].shown[k] for n in noisy or () if len(n.steps[i].shown) > k]
            if detail := differs(value, expected, others):
                return Difference("value shown", i, detail)
        for name in sorted(a.tensors.keys() | b.tensors.keys()):
            at, expected = a.tensors.get(name), b.tensors.get(name)
            if at is None or expected is None:
                one, other = ("no tensor", "a tensor") if at is None else ("a tensor", "none")
                return Difference("names", i, f"{name}: {one} instead of {other}")
            for what, value in expected.items():
                if what == "_version" and isinstance(value, int) and isinstance(at[what], int):
                    # How often a new tensor was written before anyone saw it is nobody's business,
                    # nor by how many calls an optimizer writes a parameter, if it does.
                    if re.search(rf"\b{name} = ", program[i].line):  # another tensor by now
                        first.pop(name, None)
                    last, before[name] = before.get(name), (at[what], value)
                    if last and ".step()" in program[i].line:
                        if (at[what] > last[0]) == (value > last[1]):
                            first[name] = at[what] - value
                    value += first.setdefault(name, at[what] - value)
                if at[what] != value:
                    if noisy and any(
                        n.steps[i].tensors.get(name, {}).get(what) != expected[what] for n in noisy
                    ):
                        continue
                    return Difference(what, i, f"{name}: {at[what]} instead of {value}")
    for name in sorted(got.end.keys() | want.end.keys()):
        value, expected = got.end.get(name), want.end.get(name)
        others = [n.end.get(name) for n in noisy or ()]
        if isinstance(value, str) and not isinstance(expected, str):
            return Difference(f"reading: {value.split(':')[0]}", None, f"{name}: {value}")
        if isinstance(value, str) and value.split(":")[0] == expected.split(":")[0]:
            continue  # the same class of error; messages name operators, which may differ
        if detail := differs(value, expected, others):
            what = "gradient" if name.endswith(".grad") else "value"
            return Difference(what, None, f"{name}: {detail}")
    return None


def difference(program: Program, got: Trace, want: Trace) -> Difference | None:
    """The first difference of `got` (xla) from `want` (CPU) that rounding does not explain."""
    if _find(program, got, want, None) is None:
        return None
    torch.manual_seed(1)
    again = run(program, "cpu")
    if _find(program, again, want, None) is not None:
        return None  # random numbers
    noisy = [run(program, "cpu", torch.Generator().manual_seed(n)) for n in range(NOISY_RUNS)]
    found = _find(program, got, want, noisy)
    if found is not None and found.step is not None:
        found = replace(found, detail=f"{found.detail} at: {program[found.step].line}")
    return found
