"""Strides of results, where PyTorch's shape functions do not say what its CPU kernels do."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from .harness import HAS_BFLOAT16, assert_same_strides, on_xla

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def check(function, *inputs):
    """Strides of `function`, whose inputs have those of the CPU on xla too."""
    there = [on_xla(t) for t in inputs]
    assert_same_strides(there, list(inputs))
    assert_same_strides(function(*there), function(*inputs))


def randn(*shape, dtype=torch.float32, last=False):
    t = torch.randn(shape).to(dtype)
    return t.contiguous(memory_format=LAST[t.dim()]) if last else t


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("last", [(True, True), (True, False), (False, True), (False, False)])
def test_convolution(dtype, last):
    for dims, convolve in (2, F.conv2d), (3, F.conv3d), (2, F.conv_transpose2d):
        if dims == 3 and dtype == torch.bfloat16 and not HAS_BFLOAT16:
            continue  # PyTorch computes it in a way of its own
        x = randn(2, 4, *[6] * dims, dtype=dtype, last=last[0])
        w = randn(4, 4, *[3] * dims, dtype=dtype, last=last[1])
        check(convolve, x, w)
    check(lambda x: F.conv2d(x, x.new_ones(4, 2, 1, 1), groups=2), x[..., :4])


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training):
    for x in (
        randn(3, 4).t(),
        randn(2, 3, 4).mT,
        randn(2, 3, 4, 5).permute(1, 0, 3, 2),
        randn(2, 3, 4, 5, last=True),
        randn(2, 6, 4, 6, last=True)[:, ::2, :, ::2],
        randn(2, 3, 4, 5, 6, last=True),
        randn(2, 3, 4, 6)[..., ::2],
        randn(2, 3, 4, 5, last=True)[0][None],
        randn(1, 1, 4, 5, last=True),
    ):
        mean, variance = torch.zeros(x.shape[1]), torch.ones(x.shape[1])
        check(lambda x, m, v: F.batch_norm(x, m, v, training=training), x, mean, variance)
        check(lambda x: F.batch_norm(x, None, None, training=True), x)


@pytest.mark.parametrize("last", [True, False])
def test_shuffled_pixels(last):
    x = randn(2, 4, 6, 6, last=last)
    check(lambda x: F.pixel_shuffle(x, 2), x)
    check(lambda x: F.pixel_unshuffle(x, 2), x)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("shape", [(2, 4, 4, 6), (1, 4, 4, 6), (2, 4, 4, 6, 8)])
def test_memory_formats(shape, last):
    x = randn(*shape, last=last)
    sides = [1, 2, 1, 0, 1, 1][: 2 * (x.dim() - 2)]
    for mode in ("reflect", "replicate"):
        check(lambda x, mode=mode: F.pad(x, sides, mode), x)
        check(lambda x, mode=mode: F.pad(x, sides, mode), x[0])
    check(lambda x: F.channel_shuffle(x, 2), x)
    check(lambda x: torch.native_channel_shuffle(x, 2), x)
    check(lambda x: torch.native_group_norm(x, None, None, *shape[:2], x[0, 0].numel(), 2, 0.1), x)
    pool, unpool = (
        (F.max_pool2d, F.max_unpool2d) if x.dim() == 4 else (F.max_pool3d, F.max_unpool3d)
    )
    check(lambda x: unpool(*pool(x, 2, return_indices=True), 2), x)
    check(lambda x: pool(x, 2, return_indices=True), x[0])
    check(lambda x: [x.roll(1, 1), x.roll((1, 2), (0, 1)), x.roll(3)], x)
    check(lambda x: [F.rrelu(x), F.rrelu(x, training=True)], x)


def test_whole_quotients():
    x, y = randn(4, 6).t(), randn(6)[:, None]
    check(lambda x, y: [x // y, y // x, x // x, x // 2.0, torch.floor_divide(x, y)], x, y)
    check(lambda x: [x // x[0], x // 3], torch.arange(1, 25).view(2, 3, 4).permute(2, 0, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int32])
def test_angles(dtype):
    for x in randn(4, 6).t(), randn(2, 3, 4).permute(2, 0, 1):
        check(lambda x: [x.angle(), x.abs()], (x * 3).to(dtype))


def test_logic():
    x, y = randn(10, 1, 5), randn(5, 10).t()
    check(lambda x, y: [torch.logical_and(x, y), torch.logical_or(y, x)], x, y)
    check(lambda x, y: [torch.logical_xor(x, y), x.mT.logical_not()], x, y)


def test_diagonal_matrices():
    for x in randn(1, 4).mT, randn(3, 4).t(), randn(2, 3, 1).mT:
        check(lambda x: torch.kron(x.diag_embed(), x.new_ones(2, 2)), x)
        check(torch.diag_embed, x)


def test_matrices_of_lapack():
    for x in randn(4, 4), randn(2, 4, 4).mT, randn(4, 4, dtype=torch.float64):
        check(lambda x: list(torch.linalg.eig(x)), x)
    for x in randn(2, 5, 3), randn(2, 3, 5).mT, randn(5, 3):
        check(lambda x: list(torch.geqrf(x)), x)
        # With more rows than columns the CPU's solution is a part of a larger tensor.
        x = x if x.shape[-1] >= x.shape[-2] else x.mT
        check(lambda x: torch.linalg.lstsq(x, x[..., :2]).solution, x)
        check(lambda x: torch.linalg.lstsq(x, x[..., 0]).solution, x)


@pytest.mark.parametrize("convolve", [F.conv1d, F.conv_transpose1d])
def test_signals(convolve):
    x, w = randn(4, 3, 6), randn(3, 3, 2)
    for signal in x, x.mT.contiguous().mT, x[:1].mT.contiguous().mT:
        check(convolve, signal, w)
        check(convolve, signal, w.mT.contiguous().mT)
        check(convolve, signal[0], w)


def test_losses_of_pixels():
    x = randn(2, 3, 4, 5, last=True)
    target = torch.ones(2, 4, 5, dtype=torch.int64).mT.contiguous().mT
    check(lambda x, t: [F.nll_loss(x, t, reduction="none"), F.nll_loss(x, t)], x, target)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2)])
@pytest.mark.parametrize("kind", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_fourier_transforms(kind, order):
    x = randn(4, 5, 6).permute(order)
    if kind in ("fft", "irfft", "hfft"):
        x = torch.complex(x, x)
    transform = getattr(torch.fft, f"{kind}n")
    for count in (1, 2, 3):
        for dims in itertools.permutations(range(3), count):
            check(lambda x, dims=dims: transform(x, dim=dims), x)


def test_positions():
    x = randn(2, 3, 4)
    for t in (x, x[0], x[0, 0], x.mT, x > 9, x[:0]):
        check(torch.nonzero, t)
        check(torch.argwhere, t)
        check(lambda t: list(torch.where(t > 0)), t)
        for size in (0, 3, 40):
            check(lambda t, size=size: torch.nonzero_static(t, size=size), t)


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.double(),
        lambda x: x.to(torch.bfloat16),
        lambda x: x.to(torch.float32, copy=True),
        lambda x: x.to(x.device, torch.int32),
        lambda x: x.to(torch.float64, memory_format=torch.contiguous_format),
    ],
)
def test_conversions(convert):
    for x in (
        randn(3, 4),
        randn(3, 4).t(),
        randn(3, 4, 5).permute(2, 0, 1),
        randn(2, 3, 4, 5, last=True),
        randn(6, 4)[::2, ::2],
        randn(6, 4).t()[::2, ::2],
        randn(1, 4).expand(3, 4),
        randn(4, 1).expand(4, 3).t(),
        randn(0, 4).t(),
        torch.tensor(2.5),
    ):
        view = torch.empty_strided(x.shape, x.stride(), device="xla")
        assert_same_strides(convert(view), convert(x))


def test_what_comes_from_the_cpu_and_goes_back():
    for x in (
        randn(3, 4).t(),
        randn(3, 4, 5).permute(2, 0, 1),
        randn(2, 3, 4, 5, last=True),
        randn(6, 4).t()[::2, ::2],
        randn(4, 1).expand(4, 3).t(),
    ):
        for there in x.to("xla"), x.to("xla", copy=True), x.to("xla", torch.float64):
            dense = x.to(torch.float64).stride()  # PyTorch's rule for what has gaps
            assert there.stride() == dense
            assert torch.equal(there.cpu().float(), x)
            assert there.cpu().stride() == dense
            assert torch.equal((there * 2).float().cpu(), x * 2)
        assert x.to("xla", memory_format=torch.contiguous_format).is_contiguous()


def test_a_conversion_keeps_values_and_gradients():
    x = torch.arange(12.0).view(3, 4)
    there = x.to("xla").requires_grad_()
    y = there.t().double()
    assert torch.equal(y.cpu(), x.t().double())
    (y * torch.arange(12.0, device="xla").view(4, 3)).sum().backward()
    assert torch.equal(there.grad.cpu(), torch.arange(12.0).view(4, 3).t())
    z = torch.complex(there.detach(), there.detach()).conj()
    assert torch.equal(
        z.to(torch.complex128).cpu(), torch.complex(x, x).conj().to(torch.complex128)
    )
    assert y.to(torch.float64) is y


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [
        ((4, 3, 1), (6, 2, 2)),
        ((4, 3, 2), (10, 0, 3)),
        ((4, 3, 2), (10, 1, 2)),
        ((4, 1, 1, 2), (10, 0, 0, 2)),
        ((4, 2, 3), (10, 3, 3)),
    ],
)
def test_memory_like_that_of_a_tensor_with_gaps(sizes, strides):
    def made(device):
        x = torch.empty_strided(sizes, strides, device=device)
        for order in itertools.permutations(range(x.dim())):
            y = x.permute(order)
            yield torch.empty_like(y)
            yield torch.empty_like(y, dtype=torch.int8)
            yield torch.empty_like(y, device="cpu" if device == "xla" else "xla")
            yield torch.empty_like(y, memory_format=torch.contiguous_format)
            yield torch.empty_like(y, device="meta")

    there, here = list(made("xla")), list(made("cpu"))
    assert_same_strides(there, here)
    assert [t.dtype for t in there] == [t.dtype for t in here]
    assert {t.device.type for t in there} == {"xla", "cpu", "meta"}
