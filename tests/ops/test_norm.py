"""Normalizations against PyTorch's CPU kernels: results, gradients, running statistics."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .harness import assert_same, check

FLOATS = (torch.float32, torch.bfloat16, torch.float64)


def randn(*shape, scale=1.0, shift=0.0):
    g = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(shape, generator=g) * scale + shift


BATCH_SHAPES = [(4, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 4, 2, 3), (16, 5, 32, 32), (2, 3, 1, 1)]


@pytest.mark.parametrize("shape", BATCH_SHAPES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm(shape, training, affine):
    x = randn(*shape, scale=2.0, shift=1.0)
    c = shape[1]
    weight, bias = (randn(c), randn(c, shift=0.5)) if affine else (None, None)
    mean, var = randn(c), torch.rand(c) + 0.5

    def run(x, mean, var, weight, bias):
        mean, var = mean.detach().clone(), var.detach().clone()
        y = F.batch_norm(x, mean, var, weight, bias, training=training, momentum=0.3)
        return y, mean, var

    # Sums of many numbers of both signs lose what cancels, on either device.
    atol, rtol = (2e-3, 1e-4) if x.numel() > 10000 else (None, None)
    check(run, x, mean, var, weight, bias, atol=atol, rtol=rtol)
    check(run, x, mean, var, weight, bias, dtypes=(torch.float64,))
    # In bf16 the statistics of xla are those of f32; PyTorch's CPU kernels round some of them.
    check(
        lambda x, *rest: run(x, *rest)[0],
        x.bfloat16(),
        mean,
        var,
        weight,
        bias,
        atol=3e-2,
        rtol=3e-2,
    )


def test_batch_norm_without_running_statistics():
    check(lambda x: F.batch_norm(x, None, None, training=True), randn(4, 3, 5))
    check(lambda x: F.instance_norm(x), randn(4, 3, 5, 4), dtypes=(torch.float32, torch.float64))
    check(lambda x, w, b: F.instance_norm(x, None, None, w, b), randn(4, 3, 5), randn(3), randn(3))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_module_follows_its_statistics(momentum):
    torch.manual_seed(0)
    cpu = nn.BatchNorm2d(3, momentum=momentum)
    xla = nn.BatchNorm2d(3, momentum=momentum).to("xla")
    for step in range(3):
        x = randn(4, 3, 5, 5, shift=step)
        assert_same(xla(x.to("xla")), cpu(x))
    assert_same(list(xla.buffers()), list(cpu.buffers()))
    cpu.eval(), xla.eval()
    assert_same(xla(x.to("xla")), cpu(x))


def test_instance_norm_module_follows_its_statistics():
    cpu = nn.InstanceNorm2d(3, affine=True, track_running_stats=True)
    xla = nn.InstanceNorm2d(3, affine=True, track_running_stats=True).to("xla")
    for step in range(2):
        x = randn(4, 3, 5, 5, shift=step)
        assert_same(xla(x.to("xla")), cpu(x))
    assert_same(list(xla.buffers()), list(cpu.buffers()))


def test_batch_norm_of_large_numbers():
    """The variance survives a mean far from zero."""
    check(
        lambda x: F.batch_norm(x, None, None, training=True),
        randn(8, 4, 16, 16, shift=1000.0),
        rtol=1e-3,
        atol=1e-3,
    )


NORMALIZATIONS = {
    "batch": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    "instance": lambda x, w, b: F.instance_norm(x, None, None, w, b),
    "layer": lambda x, w, b: F.layer_norm(x, x.shape[2:]) * w[:, None, None] + b[:, None, None],
    "group": lambda x, w, b: F.group_norm(x, 2, w, b),
}


@pytest.mark.parametrize("name", NORMALIZATIONS)
@pytest.mark.parametrize("make", ["uploaded", "filled", "near"])
def test_a_mean_far_from_zero(name, make):
    """Results are as near to those of float64 as the last place of an element lets them be, which
    1/std magnifies. Equal elements have no distance from their mean."""
    shape, number = (64, 4, 24, 24), 8.4784
    g = torch.Generator().manual_seed(0)
    x = torch.full(shape, number)
    if make == "near":
        x += torch.randn(shape, generator=g) * 0.01
    weight, bias = torch.rand(4, generator=g) + 0.5, torch.randn(4, generator=g)
    on_xla = torch.full(shape, number, device="xla") if make == "filled" else x.to("xla")
    found = NORMALIZATIONS[name](on_xla, weight.to("xla"), bias.to("xla"))
    wide = NORMALIZATIONS[name](x.double(), weight.double(), bias.double())
    if make == "near":
        allowed = 1.5 * number * 2**-23 / (x.var().item() + 1e-5) ** 0.5
        if name == "layer":  # by PyTorch's own kernel, whose mean rounds a little more
            own = (NORMALIZATIONS[name](x, weight, bias).double() - wide).abs().max().item()
            allowed = max(allowed, own)
        torch.testing.assert_close(found.cpu().double(), wide, rtol=0, atol=allowed)
    else:
        torch.testing.assert_close(found.cpu(), wide.float())


def test_infinite_elements_reach_the_running_statistics():
    x = randn(4, 3, 5)
    x[0, 0, 0], x[1, 1, 1], x[0, 2, 0] = torch.inf, -torch.inf, torch.nan

    def statistics(x):
        mean, var = x.new_zeros(3), x.new_ones(3)
        F.batch_norm(x, mean, var, training=True)
        return mean, var

    check(statistics, x, grad=False)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["native_batch_norm", "_native_batch_norm_legit"])
def test_native_batch_norms_into_given_tensors(name, training):
    def run(x, mean, var):
        out = {key: x.new_empty(0) for key in ("out", "save_mean", "save_invstd")}
        operator = getattr(torch.ops.aten, name).out
        operator(x, None, None, mean, var, training, 0.1, 1e-5, **out)
        used = list(out.values()) if training else out["out"]  # else of each device's own shape
        return used, mean, var

    check(run, randn(4, 3, 5), randn(3), torch.rand(3) + 0.5, grad=False)


def test_native_batch_norms():
    aten = torch.ops.aten
    x, c = randn(4, 3, 5), randn(3)
    var = torch.rand(3) + 0.5
    check(
        lambda x, m, v: aten._native_batch_norm_legit_no_training(x, m, None, m, v, 0.1, 1e-5)[0],
        x,
        c,
        var,
        grad=False,
    )
    check(
        lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5),
        x,
        grad=False,
    )
    check(
        lambda x, m, v: aten._native_batch_norm_legit_functional(x, m, m, m, v, True, 0.1, 1e-5),
        x,
        c,
        var,
        grad=False,
    )


LAYER = [
    ((4, 6), (6,)),
    ((2, 3, 5), (5,)),
    ((2, 3, 5), (3, 5)),
    ((7, 300), (300,)),
    ((6,), (6,)),
    ((0, 6), (6,)),
]


@pytest.mark.parametrize(("shape", "normalized"), LAYER)
@pytest.mark.parametrize("affine", ["both", "weight", "none"])
def test_layer_norm(shape, normalized, affine):
    x = randn(*shape, scale=2.0, shift=1.0)
    weight = randn(*normalized) if affine != "none" else None
    bias = randn(*normalized, shift=0.5) if affine == "both" else None
    run = lambda x, w, b: F.layer_norm(x, normalized, w, b)  # noqa: E731
    check(run, x, weight, bias, dtypes=(torch.float32, torch.float64))
    check(run, x, weight, bias, dtypes=(torch.bfloat16,), rtol=3e-2, atol=3e-2)


def test_layer_norm_with_wide_parameters():
    check(
        lambda x, w, b: F.layer_norm(x, (6,), w, b),
        randn(4, 6).bfloat16(),
        randn(6),
        randn(6),
        rtol=2e-2,
        atol=2e-2,
    )


GROUP = [((2, 6, 5), 3), ((2, 6, 4, 4), 2), ((3, 4), 2), ((2, 6, 3, 2, 2), 6), ((2, 6, 20, 20), 1)]


@pytest.mark.parametrize(("shape", "groups"), GROUP)
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm(shape, groups, affine):
    x = randn(*shape, scale=2.0, shift=1.0)
    c = shape[1]
    weight, bias = (randn(c), randn(c, shift=0.5)) if affine else (None, None)
    run = lambda x, w, b: F.group_norm(x, groups, w, b)  # noqa: E731
    check(run, x, weight, bias, atol=1e-4, rtol=1e-4)
    check(run, x, weight, bias, dtypes=(torch.float64,))
    check(run, x, weight, bias, dtypes=(torch.bfloat16,), rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize(("shape", "normalized"), LAYER)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("eps", [None, 1e-3])
def test_rms_norm(shape, normalized, affine, eps):
    x = randn(*shape)
    weight = randn(*normalized) if affine else None
    run = lambda x, w: F.rms_norm(x, normalized, w, eps)  # noqa: E731
    check(run, x, weight, dtypes=(torch.float32, torch.float64))
    check(run, x, weight, dtypes=(torch.bfloat16,), rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_rms_norm_default_eps(dtype):
    check(lambda x: F.rms_norm(x, (4,)), (randn(2, 4) * 2e-4).to(dtype), rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dim):
    g = randn(4, 1, 1) if dim == 0 else randn(1, 1, 5)
    check(
        lambda v, g: torch._weight_norm(v, g, dim),
        randn(4, 3, 5),
        g,
        dtypes=(torch.float32, torch.float64),
    )


def test_local_response_norm():
    check(lambda x: F.local_response_norm(x, 3), randn(2, 6, 5, 5))


def test_normalize():
    check(lambda x: F.normalize(x, dim=1), randn(4, 6, 3))
