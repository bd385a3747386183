"""Gradient checkpointing: the same values and gradients, with random operations too."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla.utils.checkpoint import checkpoint


def block() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), nn.LayerNorm(4))


@pytest.mark.parametrize("call", [checkpoint, torch.utils.checkpoint.checkpoint])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_values_and_gradients_are_those_of_a_plain_call(call, use_reentrant):
    plain = block().to("xla")
    saved = copy.deepcopy(plain)
    x = torch.randn(3, 4, device="xla", requires_grad=True)
    y = x.detach().clone().requires_grad_()
    expected = plain(x)
    expected.pow(2).sum().backward()
    out = call(saved, y, use_reentrant=use_reentrant)
    out.pow(2).sum().backward()
    torch_xla.sync()
    torch.testing.assert_close(out.detach().cpu(), expected.detach().cpu())
    torch.testing.assert_close(y.grad.cpu(), x.grad.cpu())
    for p, q in zip(saved.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad.cpu())


@pytest.mark.parametrize("call", [checkpoint, torch.utils.checkpoint.checkpoint])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_dropout_is_recomputed_with_the_same_mask(call, use_reentrant):
    x = torch.ones(1000, device="xla", requires_grad=True)
    for _ in range(2):
        x.grad = None
        out = call(lambda t: nn.functional.dropout(t, 0.5) * 3, x, use_reentrant=use_reentrant)
        out.sum().backward()
        assert torch.equal(x.grad.cpu(), out.detach().cpu())
        assert 300 < (out == 0).sum().item() < 700


def test_the_recomputation_does_not_disturb_the_sequence_of_numbers():
    def run(call):
        torch.manual_seed(1)
        x = torch.ones(8, device="xla", requires_grad=True)
        call(lambda t: nn.functional.dropout(t, 0.5), x).sum().backward()
        return torch.rand(4, device="xla").tolist()

    assert run(lambda f, x: checkpoint(f, x)) == run(lambda f, x: f(x))


def test_it_transfers_nothing():
    model, x = block().to("xla"), torch.randn(3, 4, device="xla", requires_grad=True)
    torch_xla.sync()
    met.clear_all()
    checkpoint(model, x).sum().backward()
    assert met.metric_data("TransferFromDeviceTime") is None
    assert met.metric_data("ExecuteTime") is None
