"""Interpolation and grid sampling against PyTorch's CPU kernels, with their gradients."""

import pytest
import torch
import torch.nn.functional as F

from .harness import Batch, check

FLOATS = (torch.float32, torch.float64)


def check_sizes(fn, shapes):
    """fn(x, size) to several sizes in float64, two of them in float32 too. Where many results share
    a pixel, the gradient of PyTorch's CPU kernel, which adds them one by one, is 1e-5 off there."""
    with Batch() as batch:
        for i, (shape, size) in enumerate(shapes):
            x, label = randn(*shape), f"{shape} to {size}"
            batch.add(lambda x, size=size: fn(x, size), x, dtype=torch.float64, label=label)
            if i < 2:
                batch.add(lambda x, size=size: fn(x, size), x, label=f"float32 {label}")


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def rand(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))


SIZES = {
    1: [((2, 3, 7), 14), ((2, 3, 7), 10), ((2, 3, 7), 3), ((2, 3, 7), 7), ((1, 2, 5), 1)],
    2: [
        ((2, 3, 6, 8), (12, 16)),
        ((2, 3, 6, 8), (9, 7)),
        ((2, 3, 9, 7), (4, 3)),
        ((1, 2, 5, 6), (5, 11)),
        ((1, 2, 3, 3), (90, 64)),
        ((1, 1, 64, 90), (3, 3)),
    ],
    3: [((1, 2, 4, 3, 5), (8, 6, 10)), ((1, 2, 4, 3, 5), (3, 5, 4))],
}
MODES = [
    ("nearest", (1, 2, 3)),
    ("nearest-exact", (1, 2, 3)),
    ("linear", (1,)),
    ("bilinear", (2,)),
    ("trilinear", (3,)),
    ("bicubic", (2,)),
    ("area", (1, 2, 3)),
]


def modes():
    for mode, ranks in MODES:
        corners = (False, True) if "linear" in mode or mode == "bicubic" else (None,)
        for rank in ranks:
            for align in corners:
                yield mode, rank, align


@pytest.mark.parametrize(("mode", "rank", "align"), list(modes()))
def test_interpolate_to_size(mode, rank, align):
    check_sizes(lambda x, size: F.interpolate(x, size, mode=mode, align_corners=align), SIZES[rank])


@pytest.mark.parametrize(("mode", "rank", "align"), list(modes()))
def test_interpolate_by_scale(mode, rank, align):
    with Batch() as batch:
        for scale, recompute in (2, None), (2.5, None), (2.5, True), (0.6, None), (1.3, True):
            batch.add(
                lambda x, scale=scale, recompute=recompute: F.interpolate(
                    x,
                    scale_factor=scale,
                    mode=mode,
                    align_corners=align,
                    recompute_scale_factor=recompute,
                ),
                randn(2, 2, *(7, 6, 5)[:rank]),
                label=f"{scale} {recompute}",
                grad=recompute is None,
            )


@pytest.mark.parametrize(("mode", "rank", "align"), list(modes()))
def test_gradient_of_a_sum(mode, rank, align):
    """Nothing of it depends on an input: XLA computes it when it compiles the program."""

    def gradient(x, size):
        x.requires_grad_()
        y = F.interpolate(x, size, mode=mode, align_corners=align)
        return torch.autograd.grad(y.sum(), x)[0]

    with Batch() as batch:
        for shape, size in [((1, 1, 4, 5, 4), (3, 4, 3)), ((2, 1, 6, 4, 5), (3, 3, 8))]:
            x, to = randn(*shape[: 2 + rank]), size[:rank]
            batch.add(lambda x, to=to: gradient(x, to), x, grad=False, label=f"{shape} to {size}")


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_interpolate_narrow(mode):
    check(
        lambda x: F.interpolate(x, (9, 5), mode=mode),
        randn(2, 3, 6, 8),
        dtypes=(torch.bfloat16,),
        rtol=3e-2,
        atol=3e-2,
    )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("align", [False, True])
def test_interpolate_antialiased(mode, align):
    check_sizes(
        lambda x, size: F.interpolate(x, size, mode=mode, align_corners=align, antialias=True),
        SIZES[2],
    )


def test_interpolation_keeps_infinities_where_they_are():
    x = randn(1, 1, 8, 8)
    x[0, 0, 3, 3] = torch.inf
    check(lambda x: F.interpolate(x, (12, 20), mode="nearest"), x, grad=False)
    y = F.interpolate(x.to("xla"), (13, 13), mode="bilinear").cpu()
    assert y.isfinite().sum() > 13 * 13 - 20


def test_nearest_of_bytes():
    x = torch.randint(0, 255, (2, 3, 5, 4), dtype=torch.uint8)
    check(lambda x: F.interpolate(x, (10, 9), mode="nearest"), x)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [False, True])
def test_grid_sample(mode, padding, align):
    x, grid = randn(2, 3, 6, 5), rand(2, 4, 7, 2) * 3 - 1.5
    check(
        lambda x, g: F.grid_sample(x, g, mode, padding, align),
        x,
        grid,
        # float64 differs in nothing that depends on the padding.
        dtypes=FLOATS if padding == "reflection" and not align else FLOATS[:1],
        grad=mode != "bicubic" or align == (padding == "border"),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_3d(mode, padding):
    x, grid = randn(2, 3, 4, 6, 5), rand(2, 3, 4, 2, 3) * 3 - 1.5
    check(lambda x, g: F.grid_sample(x, g, mode, padding, False), x, grid, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("align", [False, True])
def test_affine_grid(align):
    check(lambda t: F.affine_grid(t, (2, 3, 5, 4), align), randn(2, 2, 3), dtypes=FLOATS)
    check(lambda t: F.affine_grid(t, (2, 3, 5, 4, 3), align), randn(2, 3, 4))
    check(lambda t: F.affine_grid(t, (2, 3, 1, 4), align), randn(2, 2, 3))
    check(
        lambda x, t: F.grid_sample(x, F.affine_grid(t, x.shape, align), align_corners=align),
        randn(2, 3, 5, 4),
        randn(2, 2, 3),
    )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_images_of_bytes(mode, antialias):
    x = torch.randint(0, 255, (2, 3, 9, 8), dtype=torch.uint8)
    for size in ((5, 12), (17, 3)):
        check(
            lambda t, s=size: F.interpolate(t, size=s, mode=mode, antialias=antialias),
            x,
            grad=False,
        )
