"""What a compiled program knows of itself: parameters, what it reuses, results, calls.

Units: executor/program/interface, _src/insight/programs.
"""

from __future__ import annotations

import torch

import torch_xla
from torch_xla import _XLAC


def newest() -> dict:
    return _XLAC._xla_programs()[0]


def test_a_program_of_a_sync():
    w = torch.ones(3, 4, device="xla")
    x = torch.ones(4, 2, device="xla")
    torch_xla.sync()
    y = w @ x + 1.5  # two calls
    torch_xla.sync()
    program = newest()
    assert program["name"] == "sync" and not program["can_fail"]
    assert program["parameters"] == ["Float[3,4]", "Float[4,2]"]
    assert program["results"] == ["Float[3,2]"] and program["reused_by"] == [None, None]
    assert program["numbers"] >= 1
    product, total = program["calls"]
    assert product.startswith("%2 = aten::mm(%0, %1) : Float[3,2]  // " + __file__)
    assert total.startswith("%3 = aten::add.Tensor(%2") and total.endswith(
        "(test_a_program_of_a_sync)"
    )
    assert y.sum().item() == 33


def test_a_program_that_overwrites():
    x = torch.ones(5, device="xla")
    torch_xla.sync()
    x.mul_(2)
    torch_xla.sync()
    program = newest()
    assert program["parameters"] == ["Float[5]"] and program["reused_by"] == [0]


def test_the_programs_that_users_see():
    named = torch_xla.compile(lambda x: x.mul_(3), name="tripled")
    x = torch.ones(7, device="xla")
    torch_xla.sync()
    named(x)
    program = torch_xla.debug.programs()[0]
    assert program.name == "tripled" and len(program.key) == 32
    assert (program.parameters, program.results) == (["Float[7]"], ["Float[7]"])
    assert program.reused_by == [0] and "aten::mul" in program.calls[0]
    assert len(torch_xla.debug.programs()) == len(_XLAC._xla_programs())
    torch_xla.runtime.clear_computation_cache()
    assert torch_xla.debug.programs() == []


def test_a_program_of_a_read():
    x = torch.arange(6.0, device="xla")
    torch_xla.sync()
    assert x.exp().max().item() > 148
    names = [program["name"] for program in _XLAC._xla_programs()]
    assert names[0] == "read"
    assert any("aten::max" in line for line in newest()["calls"])


def test_results_of_a_call_that_gives_several():
    x = torch.tensor([[3.0, 1.0], [2.0, 5.0]], device="xla")
    torch_xla.sync()
    values, indices = x.sort(1)
    y = indices + 1
    del values
    torch_xla.sync()
    calls = newest()["calls"]
    assert any("aten::sort" in line and ": Float[2,2], Long[2,2]" in line for line in calls)
    assert any("aten::add.Tensor(%1.1" in line for line in calls)
    assert y.tolist() == [[2, 1], [1, 2]]


def test_programs_that_are_gone_are_not_told():
    before = len(_XLAC._xla_programs())
    assert before > 0
    _XLAC._xla_clear_cached_programs()
    assert _XLAC._xla_programs() == []
