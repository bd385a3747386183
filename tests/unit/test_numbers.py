"""Numbers of programs that have many: each is cut from the packed ones before the calls, on the
CPU by one call of this process, so that equal kernels are compiled once."""

from __future__ import annotations

import copy

import pytest
import torch

import torch_xla
from torch_xla import _XLAC

CALL = 'call_target_name = "torch_xla.numbers"'


def results(x: torch.Tensor, count: int) -> list[torch.Tensor]:
    made = []
    for i in range(count):
        made.append(x * 2 + i)  # integers
        made.append((x - 0.25 * i) / (i + 0.5))  # floats
        made.append(x + complex(i, -i))
        made.append(x.clamp(-0.1 * i, i))
        made.append(torch.where(x > 0, x, i % 2 == 0))
    return made


@pytest.mark.parametrize("count", [1, 2, 40])
def test_values_of_many_numbers(count):
    x = torch.linspace(-2, 2, 9)
    y = x.to("xla")
    torch_xla.sync()
    found, expected = results(y, count), results(x, count)
    torch_xla.sync()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b)
    # Other numbers are the same program.
    before = _XLAC._xla_num_cached_programs()
    again = results(y + 0, count)
    del again
    assert _XLAC._xla_num_cached_programs() == before


def test_numbers_that_need_64_bits():
    x = torch.zeros(3, dtype=torch.int64, device="xla")
    torch_xla.sync()
    numbers = [2**63 - 1 - i for i in range(10)] + [-(2**63) + i for i in range(10)]
    made = [x + n for n in numbers]
    torch_xla.sync()
    assert [m[0].item() for m in made] == numbers
    f = torch.zeros(2, dtype=torch.float64, device="xla")
    exact = [0.1 * i + 1e-17 for i in range(12)]
    sums = [f + n for n in exact]
    torch_xla.sync()
    assert [s[1].item() for s in sums] == exact


def test_the_call_is_there_where_it_helps():
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    few = [x + 0.5 * i for i in range(1, 4)]
    many = [x + 0.5 * i for i in range(1, 20)]
    assert CALL not in _XLAC._get_stablehlo(few)
    assert _XLAC._get_stablehlo(many).count(CALL) == 1
    assert "custom_call" not in _XLAC._get_stablehlo(many, "TPU")


@pytest.mark.parametrize("count", [3, 64, 65, 150])
def test_fused_optimizers_of_many_parameters(count):
    """PyTorch's kernel takes 64 parameters at a time."""
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(i % 3 + 1, 2, generator=generator) for i in range(count)]
    on_cpu = [torch.nn.Parameter(t.clone()) for t in made]
    on_xla = [torch.nn.Parameter(t.to("xla")) for t in made]
    optimizers = []
    for parameters in (on_cpu, on_xla):
        optimizers.append(torch.optim.AdamW(parameters, lr=0.05, amsgrad=True, fused=True))
    for step in range(3):
        for parameters, optimizer in zip((on_cpu, on_xla), optimizers, strict=True):
            for i, p in enumerate(parameters):
                p.grad = torch.full_like(p, 0.1 * (i + 1) * (step + 1)) * p.detach()
            optimizer.step()
        torch_xla.sync()
    for a, b in zip(on_xla, on_cpu, strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach())
    state = copy.deepcopy(optimizers[1].state_dict())["state"]
    assert len(state) == count and all(s["step"].item() == 3 for s in state.values())
