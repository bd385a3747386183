"""Gradient checkpointing: the same values and gradients, with random operations too.

Units: _src/patches/checkpointing.
"""

from __future__ import annotations

import copy
import os
import re

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._src.patches import checkpointing
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


def nested(use_reentrant):
    def inner(t):
        return torch.tanh(t * 2)

    def outer(t):
        made, given = (
            torch.utils.checkpoint.checkpoint(inner, u, use_reentrant=use_reentrant)
            for u in (torch.exp(t), t)
        )
        return made * given

    return outer


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize(
    "function",
    [
        nested,
        lambda _: lambda t: t.mul(2).sin_().mul_(3),
        lambda _: lambda t: t[torch.tensor([1, 0]).to(t.device)].sin(),
    ],
    ids=["nested", "in place", "indices"],
)
def test_what_is_computed_again_is_what_it_was(function, use_reentrant):
    def gradient(device):
        x = torch.linspace(-1, 1, 6, dtype=torch.float64).view(3, 2).to(device).requires_grad_()
        out = torch.utils.checkpoint.checkpoint(
            function(use_reentrant), x.t() * 1.5, use_reentrant=use_reentrant
        )
        out.sum().backward(retain_graph=True)
        out.sum().backward()
        return x.grad.cpu()

    torch.testing.assert_close(gradient("xla"), gradient("cpu"))


def test_gradients_of_gradients():
    def both(device):
        x = torch.linspace(-1, 1, 6, dtype=torch.float64).to(device).requires_grad_()
        scale = x.detach() * 2
        out = torch.utils.checkpoint.checkpoint(
            lambda t, s: torch.sin(t) * s, x * 2, s=scale, use_reentrant=False
        )
        (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        first.pow(2).sum().backward()
        return first.detach().cpu(), x.grad.cpu()

    torch.testing.assert_close(both("xla"), both("cpu"))


def test_gradients_end_with_the_backward_pass():
    def failing(t):
        t.register_hook(lambda g: 1 / 0)
        return t * 2

    x = torch.ones(3, device="xla", requires_grad=True)
    for use_reentrant in (True, False):
        y = checkpoint(torch.sin, x * 2, use_reentrant=use_reentrant)
        z = checkpoint(failing, y, use_reentrant=use_reentrant)
        with pytest.raises(ZeroDivisionError):
            z.sum().backward()
        y = x
        for _ in range(3):
            y = checkpoint(torch.sin, y * 2, use_reentrant=use_reentrant)
        y.sum().backward()
        assert checkpointing._come_to == (-1, ())


def test_it_saves_memory(run_python, tmp_path):
    """By the compiler's account of what the program of a training step needs."""
    code = """
        import torch, torch_xla
        from torch import nn
        from torch.utils.checkpoint import checkpoint

        layers = [nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)).to("xla")
                  for _ in range(6)]
        x = torch.ones(512, 64, device="xla", requires_grad=True)
        torch_xla.sync()
        y = x
        for layer in layers:
            y = HOW
        y.sum().backward()
        torch_xla.sync(wait=True)
    """

    def needed(name, how):
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={tmp_path / name}"
        run_python(code.replace("HOW", how), env={"XLA_FLAGS": flags})
        reports = list((tmp_path / name).glob("*memory-usage-report.txt"))
        assert reports
        text = "".join(report.read_text() for report in reports)
        return max(map(int, re.findall(r"Total bytes used: (\d+)", text)))

    plain = needed("plain", "layer(y)")
    for use_reentrant in (True, False):
        how = f"checkpoint(layer, y, use_reentrant={use_reentrant})"
        assert needed(str(use_reentrant), how) < plain / 2


def test_inputs_on_two_devices(run_python):
    code = """
        import torch, torch_xla
        from torch.utils.checkpoint import checkpoint

        for use_reentrant in (True, False):
            def gradients(first, second):
                a = torch.ones(3, device=first, requires_grad=True)
                b = torch.full((3,), 2.0, device=second, requires_grad=True)
                product = lambda x, y: x.sin().to(second) * y
                inner = checkpoint(torch.exp, a * 1, use_reentrant=use_reentrant)
                checkpoint(product, inner, b * 1, use_reentrant=use_reentrant).sum().backward()
                return a.grad.cpu(), b.grad.cpu()

            torch.testing.assert_close(gradients("xla:0", "xla:1"), gradients("cpu", "cpu"))
    """
    run_python(code, env={"CPU_NUM_DEVICES": "2"})


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("backend", ["openxla", "aot_eager"])
def test_dropout_in_a_graph(backend, use_reentrant):
    """The second run drops what the first one dropped; another call drops other elements."""
    torch._dynamo.reset()

    def squared(x):
        return F.dropout(F.dropout(x.sin(), 0.3), 0.5) * x

    def function(x):
        return torch.utils.checkpoint.checkpoint(squared, x * 1, use_reentrant=use_reentrant) + 0

    run = torch.compile(function, backend=backend)
    dropped = []
    for _ in range(2):
        x = torch.linspace(0.5, 1.5, 64, device="xla").requires_grad_()
        y = run(x)
        y.sum().backward()
        factor = y.detach() / (x.sin() * x).detach()
        expected = factor * (x.cos() * x + x.sin()).detach()
        torch.testing.assert_close(x.grad.cpu(), expected.cpu())
        dropped.append((factor == 0).cpu())
    assert 0 < dropped[0].sum() < 64 and not torch.equal(*dropped)
