"""torch_xla.amp.syncfree: optimizer steps as functions."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from torch_xla import _XLAC


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("use_adamw", [False, True])
def test_adam_steps(use_adamw, amsgrad, maximize):
    from torch_xla.amp.syncfree import _functional

    kind = torch.optim.AdamW if use_adamw else torch.optim.Adam
    a = [torch.randn(3), torch.randn(2, 2)]
    p = [t.to("xla") for t in a]
    reference = [nn.Parameter(t.clone()) for t in a]
    options = {"weight_decay": 0.1, "eps": 1e-6, "amsgrad": amsgrad, "maximize": maximize}
    optimizer = kind(reference, lr=0.01, betas=(0.8, 0.9), **options)
    steps = [torch.zeros((), device="xla") for _ in p]
    states = [[torch.zeros_like(t) for t in p] for _ in range(3)]
    for skip in (0.0, 1.0, 0.0, 0.0):
        gradients = [torch.randn(t.shape) for t in a]
        _functional.adam_step(
            torch.tensor([skip], device="xla"),
            steps,
            p,
            [g.to("xla") for g in gradients],
            *states,
            beta1=0.8,
            beta2=0.9,
            lr=0.01,
            use_adamw=use_adamw,
            **options,
        )
        if not skip:
            for r, g in zip(reference, gradients, strict=True):
                r.grad = g
            optimizer.step()
    assert [s.item() for s in steps] == [3, 3]
    for t, r in zip(p, reference, strict=True):
        torch.testing.assert_close(t.cpu(), r.detach())


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.0, "dampening": 0.0, "nesterov": False},
        {"momentum": 0.9, "dampening": 0.0, "nesterov": True},
        {"momentum": 0.9, "dampening": 0.5, "nesterov": False},
    ],
)
def test_sgd_steps(options, maximize):
    from torch_xla.amp.syncfree import _functional

    a = [torch.randn(3), torch.randn(2, 2)]
    p = [t.to("xla") for t in a]
    reference = [nn.Parameter(t.clone()) for t in a]
    options = {**options, "weight_decay": 0.1, "maximize": maximize, "lr": 0.05}
    optimizer = torch.optim.SGD(reference, **options)
    steps = [torch.zeros((), device="xla") for _ in p]
    buffers = [None, None]
    for skip in (1.0, 0.0, 1.0, 0.0, 0.0):
        gradients = [torch.randn(t.shape) for t in a]
        _functional.sgd_step(
            torch.tensor(skip, device="xla"),
            steps,
            p,
            [g.to("xla") for g in gradients],
            buffers,
            **options,
        )
        if not skip:
            for r, g in zip(reference, gradients, strict=True):
                r.grad = g
            optimizer.step()
    for t, r in zip(p, reference, strict=True):
        torch.testing.assert_close(t.cpu(), r.detach())


def test_optimizer_steps_by_the_extensions_names():
    no = torch.zeros((), device="xla")
    sgd, adam = torch.ones(2), torch.ones(2)
    p, q = sgd.to("xla"), adam.to("xla")
    g, step, zeros = torch.ones(2, device="xla"), no.clone(), torch.zeros_like(p)
    _XLAC._xla_sgd_optimizer_step_(no, step, p, zeros, g, 0.0, 0.9, 0.5, 0.0, False, False)
    assert p.tolist() == [0.5, 0.5] and zeros.tolist() == [1, 1] and step.item() == 1
    states = [torch.zeros_like(q) for _ in range(3)]
    step = no.clone()
    _XLAC._xla_adam_optimizer_step_(
        *(no, step, q, g, *states, 0.9, 0.999, 0.1, 0.0, 1e-8, False, False, False)
    )
    torch.testing.assert_close(q.cpu(), torch.full((2,), 0.9))
    before = copy.deepcopy(q)
    _XLAC._xla_adam_optimizer_step_(
        *(no + 1, step, q, g, *states, 0.9, 0.999, 0.1, 0.0, 1e-8, False, False, True)
    )
    assert torch.equal(before.cpu(), q.cpu()) and step.item() == 1
