"""Random state: seeds, states, and torch's own functions reaching xla.

Units: _src/device/rng.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met


def draw() -> list[float]:
    return torch.rand(4, device="xla").tolist()


@pytest.mark.parametrize(
    "seed",
    [
        torch.manual_seed,
        xm.set_rng_state,
        torch_xla.manual_seed,
        torch.xla.manual_seed,
        torch.xla.manual_seed_all,
        lambda s: xm.set_rng_state(s, "xla:0"),
        lambda s: torch_xla.manual_seed(s, device=xm.xla_device()),
        torch.random.manual_seed,
    ],
)
def test_seeds_reproduce(seed):
    seed(42)
    first, second = draw(), draw()
    assert first != second
    seed(42)
    assert (draw(), draw()) == (first, second)
    seed(43)
    assert draw() != first


def test_seed_does_not_depend_on_barriers():
    torch.manual_seed(1)
    a, b = torch.rand(3, device="xla"), torch.rand(3, device="xla")
    one_graph = a.tolist(), b.tolist()
    torch.manual_seed(1)
    a = torch.rand(3, device="xla")
    torch_xla.sync()
    b = torch.rand(3, device="xla")
    torch_xla.sync()
    assert (a.tolist(), b.tolist()) == one_graph


def test_numbers_differ_from_step_to_step_without_recompiling():
    x = torch.ones(64, device="xla")
    seen = set()
    for i in range(5):
        if i == 2:
            met.clear_all()
        y = nn.functional.dropout(x, 0.5)
        torch_xla.sync()
        seen.add(tuple(y.tolist()))
    assert len(seen) == 5
    assert not met.counter_value("UncachedCompile")


def test_state_is_an_integer_that_can_be_set_again():
    xm.set_rng_state(7)
    assert (
        xm.get_rng_state()
        == 7
        == xm.get_rng_state("xla:0")
        == xm.get_rng_state(torch.device("xla"))
    )
    draw()
    state = xm.get_rng_state()
    assert isinstance(state, int) and state != 7
    first = draw()
    xm.set_rng_state(state)
    assert draw() == first
    for value in (0, 1, 2**31, 2**63, 2**64 - 1):
        xm.set_rng_state(value)
        assert xm.get_rng_state() == value
    xm.set_rng_state(-1)
    assert xm.get_rng_state() == 2**64 - 1
    with pytest.raises(RuntimeError, match="expected a seed of 64 bits"):
        xm.set_rng_state(2**64)
    with pytest.raises(ValueError, match="expected an xla device, got 'cpu'"):
        xm.set_rng_state(1, "cpu")


def test_a_device_far_out_of_range():
    with pytest.raises((RuntimeError, IndexError, ValueError)):
        xm.get_rng_state("xla:100000")


def test_reading_the_state_computes_nothing():
    y = torch.rand(3, device="xla")
    met.clear_all()
    xm.get_rng_state()
    torch.xla.get_rng_state()
    assert met.metric_data("ExecuteTime") is None
    assert y.shape == (3,)


def test_state_of_the_device_module():
    state = torch.xla.get_rng_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu" and state.shape == (16,)
    first = draw()
    torch.xla.set_rng_state(state)
    assert draw() == first
    states = torch.xla.get_rng_state_all()
    second = draw()
    torch.xla.set_rng_state_all(states)
    assert draw() == second
    with pytest.raises(RuntimeError, match="expected the 16 bytes.*5056"):
        torch.xla.set_rng_state(torch.get_rng_state())


def test_fork_rng():
    torch.manual_seed(3)
    with torch.random.fork_rng(devices=[0], device_type="xla"):
        torch.manual_seed(99)
        draw()
    first = draw()
    torch.manual_seed(3)
    assert draw() == first


def test_seed_from_entropy():
    torch.seed()
    state = xm.get_rng_state()
    assert state == torch.initial_seed() % 2**64
    torch.xla.seed()
    assert xm.get_rng_state() != state
    torch.xla.seed_all()


def test_manual_seed_still_seeds_the_cpu():
    torch.manual_seed(5)
    first = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), first)


def test_seed_set_before_the_first_device(run_python):
    code = """
        import torch, torch_xla
        torch.manual_seed(11)
        print(torch.rand(3, device="xla").tolist())
        """
    assert run_python(code).stdout == run_python(code).stdout


def test_unseeded_processes_differ(run_python):
    code = "import torch, torch_xla; print(torch.rand(3, device='xla').tolist())"
    assert run_python(code).stdout != run_python(code).stdout
