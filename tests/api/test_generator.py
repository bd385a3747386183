"""`torch.Generator` of xla: seeds, states, and random functions that draw from it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

DRAWS = {
    "randn": lambda g: torch.randn(5, generator=g, device="xla"),
    "rand": lambda g: torch.rand(2, 3, generator=g, device="xla"),
    "randint": lambda g: torch.randint(10**6, (5,), generator=g, device="xla"),
    "randperm": lambda g: torch.randperm(9, generator=g, device="xla"),
    "normal": lambda g: torch.normal(torch.zeros(5, device="xla"), 1.0, generator=g),
    "normal_": lambda g: torch.empty(5, device="xla").normal_(generator=g),
    "uniform_": lambda g: torch.empty(5, device="xla").uniform_(-1, 1, generator=g),
    "exponential_": lambda g: torch.empty(5, device="xla").exponential_(generator=g),
    "random_": lambda g: torch.empty(5, device="xla").random_(generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((64,), 0.5, device="xla"), generator=g),
    "bernoulli_": lambda g: torch.empty(64, device="xla").bernoulli_(0.5, generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(64, device="xla"), 9, generator=g),
    "init": lambda g: nn.init.kaiming_uniform_(torch.empty(3, 4, device="xla"), generator=g),
    "poisson": lambda g: torch.poisson(torch.full((64,), 9.0, device="xla"), generator=g),
    "rand_like": lambda g: torch.rand_like(torch.empty(5, device="xla"), generator=g),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_functions_draw_from_a_generator(draw):
    g = torch.Generator(device="xla").manual_seed(7)
    before = xm.get_rng_state()
    first, second = draw(g).tolist(), draw(g).tolist()
    assert first != second
    g.manual_seed(7)
    assert (draw(g).tolist(), draw(g).tolist()) == (first, second)
    assert draw(torch.Generator(device="xla").manual_seed(8)).tolist() != first
    assert xm.get_rng_state() == before  # the device's own state is another


def test_a_generator_is_what_pytorch_makes_of_one():
    g = torch.Generator(device="xla")
    assert g.device == torch.device("xla:0")
    assert isinstance(g, torch.Generator)
    assert g.initial_seed() == torch.Generator().initial_seed()
    assert g.manual_seed(3) is g and g.initial_seed() == 3
    g.manual_seed(-1)
    assert g.initial_seed() == torch.Generator().manual_seed(-1).initial_seed()
    assert g.seed() == g.initial_seed()
    assert g.seed() != g.seed()
    assert torch.Generator(torch.device("xla", 0)).device.index == 0
    with pytest.raises(RuntimeError, match="xla:99"):
        torch.Generator("xla:99")


def test_states_can_be_kept_and_set():
    g = torch.Generator("xla").manual_seed(5)
    torch.rand(2, generator=g, device="xla")
    state = g.get_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu"
    assert g.get_offset() == 1
    expected = torch.rand(4, generator=g, device="xla").tolist()
    g.set_state(state)
    assert g.initial_seed() == 5
    assert torch.rand(4, generator=g, device="xla").tolist() == expected
    g.manual_seed(5).set_offset(1)
    assert torch.rand(4, generator=g, device="xla").tolist() == expected
    other = torch.Generator("xla")
    other.set_state(state)
    assert torch.rand(4, generator=other, device="xla").tolist() == expected
    with pytest.raises(RuntimeError, match="wrong size"):
        g.set_state(state[:8].clone())
    with pytest.raises(TypeError, match="torch.ByteTensor"):
        g.set_state(torch.zeros(16))
    with pytest.raises(TypeError, match="torch.ByteTensor"):
        g.set_state(state.to("xla"))


def test_a_clone_goes_on_alone():
    g = torch.Generator("xla").manual_seed(5)
    torch.rand(2, generator=g, device="xla")
    clone = g.clone_state()
    expected = torch.rand(4, generator=g, device="xla").tolist()
    torch.rand(4, generator=g, device="xla")
    assert torch.rand(4, generator=clone, device="xla").tolist() == expected
    assert clone.get_state().tolist() != g.get_state().tolist()


def test_the_default_generator_is_the_state_of_the_device():
    (default, *_) = torch.xla.default_generators
    assert default is torch.xla.default_generators[0]
    torch.manual_seed(11)
    assert default.initial_seed() == 11 == torch.xla.initial_seed()
    expected = torch.rand(3, device="xla").tolist()
    default.manual_seed(11)
    assert torch.rand(3, device="xla").tolist() == expected
    xm.set_rng_state(11)
    assert torch.rand(3, generator=default, device="xla").tolist() == expected
    assert default.get_state().tolist() == torch.xla.get_rng_state().tolist()
    state = xm.get_rng_state()
    expected = torch.rand(3, device="xla").tolist()
    xm.set_rng_state(state)
    assert torch.rand(3, device="xla").tolist() == expected


@pytest.mark.parametrize("own", [True, False], ids=["own", "default"])
def test_steps_differ_without_another_program(own):
    g = torch.Generator("xla").manual_seed(1) if own else None
    seen = set()
    for step in range(5):
        if step == 2:
            met.clear_all()
        x = torch.randn(8, generator=g, device="xla") + 1
        torch_xla.sync()
        seen.add(tuple(x.tolist()))
    assert len(seen) == 5
    assert not met.counter_value("UncachedCompile")


def test_a_generator_of_another_device_is_refused():
    message = "Expected a 'xla' device type for generator but found 'cpu'"
    with pytest.raises(RuntimeError, match=message):
        torch.randn(3, generator=torch.Generator(), device="xla")
    with pytest.raises(RuntimeError, match=message):
        torch.empty(3, device="xla").normal_(generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
        torch.randn(3, generator=torch.Generator("xla"))


def test_numbers_are_those_of_the_distribution():
    g = torch.Generator("xla").manual_seed(0)
    x = torch.randn(20000, generator=g, device="xla")
    assert abs(x.mean().item()) < 0.05 and abs(x.std().item() - 1) < 0.05
    p = torch.bernoulli(torch.full((20000,), 0.3, device="xla"), generator=g)
    assert abs(p.mean().item() - 0.3) < 0.02


def test_a_function_that_runs_on_the_host_draws_from_it_too():
    def draw(seed):
        g = torch.Generator("xla").manual_seed(seed)
        return torch.binomial(
            torch.full((9,), 50.0, device="xla"), torch.full((9,), 0.5, device="xla"), g
        ).tolist()

    assert draw(1) == draw(1) != draw(2)


def test_fork_rng_gives_the_state_back():
    torch.manual_seed(4)
    expected = torch.rand(3, device="xla").tolist()
    torch.manual_seed(4)
    with torch.random.fork_rng(device_type="xla"):
        torch.manual_seed(99)
        torch.rand(7, device="xla")
    assert torch.rand(3, device="xla").tolist() == expected


def test_nothing_of_it_needs_a_client(run_python):
    run_python(
        """
        import torch, torch_xla
        g = torch.Generator("xla")
        g.manual_seed(3)
        g.set_state(g.get_state())
        torch.xla.set_rng_state(torch.xla.get_rng_state())
        assert not torch_xla._XLAC._xla_is_initialized()
        """
    )


def test_generators_are_pickled_and_copied_as_in_pytorch():
    g = torch.Generator("xla").manual_seed(5)
    torch.rand(2, generator=g, device="xla")
    clone = copy.deepcopy(g)
    assert clone.device == g.device
    expected = torch.rand(4, generator=g, device="xla").tolist()
    assert torch.rand(4, generator=clone, device="xla").tolist() == expected
