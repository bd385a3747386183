"""Programs that torch_xla.aot compiles for several chips: how what they take and give is split. No
compiler for other chips is needed here; tests/tpu compiles them."""

from __future__ import annotations

import textwrap

import pytest

from tests.spmd.test_sharding import EIGHT, PRELUDE

PROGRAM = """
from torch_xla import _XLAC
from torch_xla._src.aot import programs as aot_programs
import re

def program(step, *args):
    "The text of main, and what its arguments and results say of their shardings."
    made = aot_programs.of_call(step, args, {}, "TPU")
    text = _XLAC._pretty_stablehlo(made.text)
    head = next(line for line in text.splitlines() if "func.func @main" in line)
    takes, _, gives = head.partition(" -> ")
    of = lambda side: re.findall(r"sdy.sharding = #sdy.sharding<@mesh, (.*?)>[,}]", side)
    return made, of(takes), of(gives)
"""


@pytest.fixture
def run(run_python):
    """Runs code in an SPMD process of eight devices."""

    def run(code):
        return run_python(PRELUDE + PROGRAM + textwrap.dedent(code), env=EIGHT)

    return run


@pytest.mark.parametrize("where", ["meta", "xla"])
def test_a_step_takes_and_gives_what_is_split(run, where):
    run(f"""
    with torch.device("meta" if {where!r} == "meta" else "cpu"):
        model = nn.Linear(16, 32)
    if {where!r} == "xla":
        model.to(device)
    xs.mark_sharding(model.weight, mesh, ("model", "data"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    x = torch.empty(8, 16, device="meta")
    xs.mark_sharding(x, mesh, ("data", None))
    made, takes, gives = program(step, x)
    weight, whole = '[{{"model"}}, {{"data"}}]', "[{{}}]"
    names = [given.name for given in made.inputs]
    expected = {{
        "x": '[{{"data"}}, {{}}]',
        "model.weight": weight,
        "model.bias": whole,
        "optimizer.state.0.momentum_buffer": weight,
        "optimizer.state.1.momentum_buffer": whole,
    }}
    assert dict(zip(names, takes, strict=True)) == expected, (names, takes)
    # The loss is split as the compiler chooses, what is written as it was.
    written = [expected[given.name] for given in made.outputs[1:]]
    assert gives == written, (gives, written)
    assert '<["data"=4, "model"=2]>' in made.text
    assert "loc(" in made.text  # the lines that collectives come from
    if {where!r} == "meta":
        assert model.weight.device.type == "meta" and x.device.type == "meta"
    """)


def test_what_is_split_nowhere_is_for_one_chip(run):
    run("""
    made, takes, gives = program(lambda x: x * 2, torch.empty(8, 8, device="meta"))
    assert takes == gives == [] and "sdy" not in made.text
    """)


def test_what_the_body_says(run):
    run("""
    def f(x):
        h = x * 2
        xs.mark_sharding(h, mesh, ("data", "model"))
        return h + 1

    made, takes, gives = program(f, torch.empty(8, 8, device="meta"))
    assert takes == ["[{}, {}]"] and gives == []
    assert made.text.count("sdy.sharding_constraint") == 1
    assert '[{"data"}, {"model"}]' in made.text
    """)


def test_sizes_that_do_not_divide_are_whole(run):
    run("""
    x = torch.empty(6, 8, device="meta")
    xs.mark_sharding(x, mesh, ("data", "model"))
    made, takes, gives = program(lambda x: x * 2, x)
    assert takes == ['[{}, {"model"}]'], takes
    """)


def test_fsdp_of_a_module_on_meta(run):
    run("""
    from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
        SpmdFullyShardedDataParallel as FSDPv2,
    )

    line = xs.Mesh(np.arange(8), (8, 1), ("fsdp", "model"))
    with torch.device("meta"):
        model = FSDPv2(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)), line)
    made, takes, gives = program(model, torch.empty(8, 16, device="meta"))
    by_name = dict(zip([given.name for given in made.inputs], takes, strict=True))
    splits = {n: t for n, t in by_name.items() if n.endswith("weight")}
    assert set(splits.values()) == {'[{"fsdp"}, {}]', '[{}, {"fsdp"}]'}, by_name
    """)


def test_saved_steps_stay_programs_for_one_device(run):
    run("""
    from torch_xla._src.saved_step import recording as step_recording

    x = torch.ones(8, 8).to(device)
    xs.mark_sharding(x, mesh, ("data", None))
    text = step_recording.record(step_recording.ExampleCall(lambda x: x + 1, (x,), {}), "test").text
    assert "sdy" not in text
    """)
