"""Rules for functions of torch.compile, in the mode `compiled` alone. Later steps write what they
take and give, before the backward pass and after it."""

from __future__ import annotations

from typing import Any

import torch

from tests.fuzz.draw import Draw, rule
from tests.fuzz.expressions import number

MODE = "compiled"

# Of a tensor {x} and another {y}. Many keep their result or an operand for the backward pass.
VALUES = [
    *("{x}.exp()", "{x}.sigmoid()", "{x}.tanh()", "{x}.relu()", "{x}.sin()", "{x}.abs().sqrt()"),
    *("{x} * {y}", "{x} + {y}", "{x} * {n}", "{x}.softmax(-1)", "{x} @ {y}.t()", "{x} @ {y}"),
    *("{x}.sum(0)", "{x}.clone()", "torch.where({x} > {n}, {x}, {y})", "{x} / ({y}.abs() + 1)"),
]
VIEWS = [
    *("{x}.t()", "{x}.flatten()", "{x}.view(-1)", "{x}[0]", "{x}[1:]", "{x}.detach()"),
    *("{x}.unsqueeze(0)", "{x}.chunk(2)[1]", "{x}[:1].expand_as({x})", "{x}.reshape(-1)[::2]"),
    *("{x}.mT", "{x}.squeeze()", "{x}.contiguous()", "{x}.narrow(0, 0, 1)"),
]
WRITES = [
    *("{x}.mul_({n})", "{x}.add_({y})", "{x}.zero_()", "{x}.copy_({y})", "{x}[0].mul_({n})"),
    *("{x}.detach().add_({n})", "{x}.t().mul_({n})", "{x}.clamp_(-1, 1)", "{x}.relu_()"),
]
LARGEST = 1e3
MOST = 3  # compiled functions of one program: each takes some time


def _tame(value: Any) -> bool:
    """Whether what follows is not about size and rounding."""
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.numel() <= 400
        and bool((value.abs() < LARGEST).all())
    )


def _function(d: Draw, taken: list[torch.Tensor]) -> tuple[str, int] | None:
    """A lambda of so many tensors, and how many it returns."""
    arguments = [chr(ord("a") + i) for i in range(len(taken))]
    known = {name: t.detach().clone() for name, t in zip(arguments, taken, strict=True)}
    parts: list[str] = []
    for _ in range(d.choose.randint(1, 5)):
        kinds = [VALUES] * 5 + [VIEWS] * 4 + [WRITES] * 2
        shape = d.one(d.one(kinds))
        x, y = d.one(list(known)), d.one(list(known))
        expression = shape.format(x=x, y=y, n=number(d))
        name = chr(ord("a") + len(arguments) + len(parts))
        try:
            with torch.no_grad():
                value = eval(expression, {"torch": torch}, known)
        except Exception:
            continue
        if not _tame(value) or not all(map(_tame, known.values())):
            return None
        known[name] = value
        parts.append(f"{name} := {expression}")
        if d.chance(0.06):
            parts.append("_ := torch._dynamo.graph_break()")
    made = [name for name in known if name not in arguments]
    if not made:
        return None
    count = d.choose.randint(1, 3)
    results = [d.one(made if d.chance(0.85) else list(known)) for _ in range(count)]
    steps = ", ".join(f"({part})" for part in parts)
    return f"lambda {', '.join(arguments)}: ({steps}, ({', '.join(results)},))[-1]", count


@rule("compiled", 150, mode=MODE)
def call(d: Draw) -> str | None:
    if sum(step.kind == "compiled" for step in d.steps) >= MOST:
        return None
    usable = d.tensors(lambda t: _tame(t) and t.numel() > 0 and not t.is_inference())
    wanted = [n for n in usable if d.tensor(n).requires_grad] or usable
    if not usable:
        return None
    for _ in range(10):
        names = [d.one(wanted), *(d.one(usable) for _ in range(d.choose.randint(0, 2)))]
        made = _function(d, [d.tensor(n) for n in names])
        if made is not None:
            function, count = made
            results = ", ".join(d.new() for _ in range(count))
            return f"{results}, = compiled({function})({', '.join(names)})"
    return None


@rule("parameter", 15, mode=MODE)
def parameter(d: Draw) -> str | None:
    name = d.pick(lambda t: t.is_floating_point() and not t.requires_grad and t.is_leaf)
    return f"{d.new()} = torch.nn.Parameter({name}.detach().clone())" if name else None


@rule("write between", 90, mode=MODE)
def write_between(d: Draw) -> str | None:
    """Of what a compiled function has just taken or given."""
    calls = [step for step in d.steps[-3:] if step.kind == "compiled"]
    if not calls:
        return None
    names = sorted(calls[-1].names & set(d.tensors(_tame)))
    if not names:
        return None
    write = d.one(WRITES).format(x=(a := d.one(names)), y=a, n=number(d))
    return d.one([f"with torch.no_grad(): {write}", write, f"with torch.no_grad(): {write}"])


@rule("go back", 120, mode=MODE, keep_errors=0.8)
def go_back(d: Draw) -> str | None:
    """Through what a compiled function has given. PyTorch refuses it where a write came between."""
    calls = [step for step in d.steps[-5:] if step.kind == "compiled"]
    if not calls:
        return None
    given = calls[-1].line.partition("=")[0]
    ready = d.tensors(lambda t: t.grad_fn is not None and t.is_floating_point())
    names = [name for name in ready if f"{name}," in given]
    return f"({d.one(names)} * 1.5).sum().backward()" if names else None
