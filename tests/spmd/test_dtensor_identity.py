"""A write to a DTensor between forward and backward does as one to a plain tensor."""

from __future__ import annotations

import pytest

from .test_sharding import EIGHT, PRELUDE

CODE = (
    PRELUDE
    + """
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from tests.unit import test_aliasing as plain

mesh = init_device_mesh("xla", (8,))

def arguments(placement):
    v = plain.arguments("cpu")
    if placement is None:
        return v
    x, w, b = (distribute_tensor(t.detach(), mesh, [placement]) for t in v.values())
    return {"x": x.requires_grad_(), "w": nn.Parameter(w), "b": b}

def outcome(function, write, placement):
    v = arguments(placement)
    results = plain.results_of(function, v)
    try:
        write(v)
    except Exception as error:
        return "the write", type(error)
    try:
        sum(t.sum() for t in results if t.requires_grad).backward()
    except Exception as error:
        return "backward", type(error)
    values = [v["x"].grad, v["w"].grad, *results]
    values = [t.full_tensor() if isinstance(t, DTensor) else t for t in values]
    return [None if t is None else t.detach().cpu() for t in values], [t._version for t in results]

function = plain.GRAPHS[graph]
placement = {"replicated": Replicate(), "rows": Shard(0), "columns": Shard(1)}[placed]
runs = {None: function, placement: function}
if compiled:
    runs = {None: plain.compiled(function, "cpu"), placement: plain.compiled(function, "xla")}
wrong, raised = [], 0
for name, write in plain.WRITES.items():
    expected, found = (outcome(run, write, where) for where, run in runs.items())
    raised += expected[0] == "backward"
    if not plain.equal(found, expected):
        wrong.append(f"{name}: {found}, not {expected}")
assert not wrong, wrong
assert raised or graph == "arguments"
"""
)


@pytest.mark.parametrize("compiled", [False, True], ids=["recorded", "compiled"])
@pytest.mark.parametrize(
    ("graph", "placed"),
    [
        ("exp", "rows"),
        ("a result and its view", "columns"),
        ("arguments", "replicated"),
        ("transposed", "rows"),
        ("a result that it writes", "columns"),
    ],
)
def test_writes_between_forward_and_backward(run_python, graph: str, placed: str, compiled: bool):
    given = f"graph, placed, compiled = {graph!r}, {placed!r}, {compiled}\n"
    run_python(given + CODE, env=EIGHT)
