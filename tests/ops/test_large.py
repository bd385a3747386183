"""Sums over a million elements and more. The database's samples have some hundred, of which a loop
that adds one after another loses nothing; of a million it loses three digits."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from .harness import DEVICE

N = 1 << 20
GENERATOR = torch.Generator().manual_seed(0)
UNIFORM, NORMAL = torch.rand(N, generator=GENERATOR), torch.randn(N, generator=GENERATOR)
WIDE, TALL = UNIFORM.view(64, -1), NORMAL.view(-1, 64)
IMAGES = UNIFORM.view(4, 4, 256, 256)
WEIGHTS = torch.randn(8, 4, 3, 3, generator=GENERATOR)


def positions(x, count):
    return torch.arange(x.shape[0], device=x.device) % count


def accumulated(x, rows):
    return torch.zeros(rows, dtype=x.dtype, device=x.device)


CALLS = {
    "sum": (lambda x: x.sum(), UNIFORM),
    "mean": (lambda x: x.mean(), UNIFORM),
    "var": (lambda x: x.var(), UNIFORM),
    "var far from zero": (lambda x: (x + 16).var(), UNIFORM),
    "std of columns": (lambda x: x.std(0), TALL),
    "norm": (lambda x: x.norm(), UNIFORM),
    "nansum": (lambda x: x.nansum(), UNIFORM),
    "trapezoid": (lambda x: torch.trapezoid(x), UNIFORM),
    "cumsum": (lambda x: x[: N // 4].cumsum(0), UNIFORM),
    "logsumexp": (lambda x: x.logsumexp(0), NORMAL),
    "softmax": (lambda x: x.softmax(0), NORMAL),
    "log_softmax of rows": (lambda x: (x * 8).log_softmax(1), WIDE),
    "dot": (torch.dot, UNIFORM, NORMAL.abs()),
    "matrix by vector": (lambda x, y: x @ y[: x.shape[1]], WIDE, UNIFORM),
    "vector by matrix": (lambda x, y: x[: y.shape[0]] @ y, UNIFORM, TALL),
    "product": (lambda x, y: x @ y, WIDE, TALL),
    "product with itself": (lambda x: x @ x.t(), WIDE),
    "products of batches": (
        lambda x, y: torch.bmm(x.view(4, 16, -1), y.view(4, -1, 16)),
        UNIFORM,
        NORMAL,
    ),
    "linear": (F.linear, TALL, WEIGHTS.view(-1)[:256].view(4, 64), WEIGHTS.view(-1)[:4]),
    "convolution": (F.conv2d, IMAGES, WEIGHTS),
    "convolution of each channel": (
        lambda x, w: F.conv2d(x, w[:4, :1], groups=4),
        IMAGES,
        WEIGHTS,
    ),
    "transposed convolution": (
        lambda x, w: F.conv_transpose2d(x, w[:4]),
        IMAGES,
        WEIGHTS,
    ),
    "average pool": (lambda x: F.adaptive_avg_pool2d(x, 1), IMAGES),
    "layer norm": (lambda x, w: F.layer_norm(x, [64], w), TALL, UNIFORM[:64]),
    "layer norm of long rows": (lambda x: F.layer_norm(x, x.shape[1:]), WIDE),
    "batch norm": (
        lambda x, w: F.batch_norm(x + 3, None, None, w, training=True),
        TALL,
        UNIFORM[:64],
    ),
    "group norm": (lambda x: F.group_norm(x, 2), IMAGES),
    "RMS norm": (lambda x, w: F.rms_norm(x, [64], w), TALL, UNIFORM[:64]),
    "row that is added": (lambda x, w: x * w, TALL, UNIFORM[:64]),
    "column that is added": (lambda x, w: x + w, WIDE, UNIFORM[:64, None]),
    "factor of all": (lambda x, w: x * w, UNIFORM, UNIFORM[0]),
    "mse_loss": (F.mse_loss, UNIFORM, NORMAL),
    "huber_loss": (F.huber_loss, UNIFORM, NORMAL),
    "kl_div": (lambda x, y: F.kl_div(x.log(), y, reduction="sum"), UNIFORM + 0.1, UNIFORM),
    "cross_entropy": (lambda x: F.cross_entropy(x, positions(x, 64)), TALL),
    "embedding": (lambda w: F.embedding(torch.arange(N // 16, device=w.device) % 8, w), TALL[:8]),
    "index_add": (lambda x: accumulated(x, 4).index_add(0, positions(x, 4), x), UNIFORM),
    "scatter_add": (lambda x: accumulated(x, 4).scatter_add(0, positions(x, 4), x), UNIFORM),
    "weight_norm": (lambda x, g: torch._weight_norm(x, g, 0), WIDE, UNIFORM[:64, None]),
    "prelu": (F.prelu, NORMAL, UNIFORM[:1]),
}


def results(call, given, dtype, device):
    inputs = [t.to(dtype).to(device).requires_grad_() for t in given]
    result = call(*inputs)
    weights = torch.linspace(0.5, 1, result.numel(), dtype=torch.float64).to(dtype).to(device)
    found = [result, *torch.autograd.grad(result, inputs, weights.view_as(result))]
    return [t.detach().cpu().double() for t in found]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_large(name, dtype):
    call, *given = CALLS[name]
    given = [t.to(dtype).double() for t in given]  # the same numbers in every dtype
    exact = results(call, given, torch.float64, "cpu")
    rounded = results(call, given, dtype, "cpu")
    found = results(call, given, dtype, DEVICE)
    for e, r, f in zip(exact, rounded, found, strict=True):
        assert f.shape == e.shape
        largest = e.abs().max().item()
        assert math.isfinite(largest) and largest > 0
        off, cpu_off = (f - e).abs().max().item(), (r - e).abs().max().item()
        assert off <= 4 * cpu_off + 16 * torch.finfo(dtype).eps * largest, (off, cpu_off, largest)
