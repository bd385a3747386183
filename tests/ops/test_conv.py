"""Convolutions against PyTorch's CPU result, and their gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from .harness import check, nothing_on_the_host

R = torch.randn
# Sums of up to a thousand products in another order.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
SPACE = {1: [9], 2: [9, 8], 3: [5, 6, 4]}
KERNEL = {1: [3], 2: [3, 2], 3: [3, 2, 1]}


def plain(dim, groups, **options):
    fn = [F.conv1d, F.conv2d, F.conv3d][dim - 1]
    check(
        lambda x, w, b: fn(x, w, b, groups=groups, **options),
        R(2, 4, *SPACE[dim]), R(6, 4 // groups, *KERNEL[dim]), R(6), **TOLERANCE,
    )  # fmt: skip


def transposed(dim, groups, **options):
    fn = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d][dim - 1]
    check(
        lambda x, w, b: fn(x, w, b, groups=groups, **options),
        R(2, 4, *SPACE[dim]), R(4, 6 // groups, *KERNEL[dim]), R(6), **TOLERANCE,
    )  # fmt: skip


GEOMETRIES = list(itertools.product((1, 2), (0, 1), (1, 2)))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride,padding,dilation", GEOMETRIES)
@pytest.mark.parametrize("dim", [1, 2])
def test_plain(dim, groups, stride, padding, dilation):
    plain(dim, groups, stride=stride, padding=padding, dilation=dilation)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride,padding,dilation", GEOMETRIES)
@pytest.mark.parametrize("dim", [1, 2])
def test_transposed(dim, groups, stride, padding, dilation):
    output_padding = 1 if max(stride, dilation) > 1 else 0
    transposed(
        dim, groups, stride=stride, padding=padding, dilation=dilation,
        output_padding=output_padding,
    )  # fmt: skip


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("batch,channels", [(2, 0), (0, 0), (0, 3)])
def test_nothing_to_convolve(batch, channels, groups):
    shape = (12, channels // groups, 3)
    check(lambda x, w: F.conv1d(x, w, groups=groups), R(batch, channels, 5), R(shape))
    check(lambda x, w, b: F.conv1d(x, w, b, groups=groups), R(batch, channels, 5), R(shape), R(12))


@pytest.mark.parametrize("groups", [1, 2])
def test_three_dimensions(groups):
    plain(3, groups, stride=(2, 1, 1), padding=(1, 0, 1), dilation=1)
    transposed(3, groups, stride=(2, 1, 1), padding=(1, 0, 1), output_padding=(1, 0, 0))


def test_per_dimension_options():
    plain(2, 1, stride=(2, 1), padding=(0, 3), dilation=(1, 3))


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_named_padding(padding):
    plain(2, 1, padding=padding)


@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise(multiplier):
    check(
        lambda x, w: F.conv2d(x, w, groups=4, padding=1),
        R(2, 4, 8, 8), R(4 * multiplier, 1, 3, 3), **TOLERANCE,
    )  # fmt: skip


def test_float64():
    check(
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1),
        R(2, 4, 9, 9), R(6, 4, 3, 3), R(6), dtypes=[torch.float64],
    )  # fmt: skip


def test_bfloat16():
    # PyTorch's own gradients are off by more than one rounding here, so values are kept small.
    check(
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        R(2, 4, 9, 9), R(6, 4, 3, 3) / 6, R(6), dtypes=[torch.bfloat16], rtol=3e-2, atol=6e-2,
    )  # fmt: skip


def test_sizes_at_the_edge():
    check(lambda x, w: F.conv2d(x, w), R(0, 4, 9, 9), R(6, 4, 3, 3), grad=False)
    check(lambda x, w: F.conv2d(x, w), R(1, 1, 3, 3), R(1, 1, 3, 3), **TOLERANCE)
    check(lambda x, w: F.conv2d(x, w), R(4, 9, 9), R(6, 4, 1, 1), **TOLERANCE)
    check(lambda x, w: F.conv1d(x, w, stride=4), R(2, 3, 10), R(2, 3, 3), **TOLERANCE)


def test_non_contiguous_and_channels_last():
    x = R(2, 9, 9, 4).permute(0, 3, 1, 2)
    w = R(6, 4, 3, 3).to(memory_format=torch.channels_last)
    check(lambda x, w: F.conv2d(x, w), x, w, **TOLERANCE)


def test_gradients_of_some_inputs_only():
    def weight_gradient(x, w, b):
        w = w.detach().requires_grad_()
        y = F.conv2d(x, w, b, padding=1)
        return torch.autograd.grad(y.square().sum(), w)[0]

    check(weight_gradient, R(2, 4, 9, 9), R(6, 4, 3, 3), R(6), grad=False, rtol=1e-4, atol=1e-3)


def test_twice_differentiable():
    def second(x, w):
        y = F.conv2d(x, w).sin()
        return torch.autograd.grad(y.sum(), x, create_graph=True)[0]

    check(second, R(1, 2, 6, 6), R(3, 2, 3, 3), **TOLERANCE)


def test_conv_tbc():
    check(lambda x, w, b: torch.conv_tbc(x, w, b, 1), R(5, 2, 4), R(3, 4, 6), R(6), **TOLERANCE)


@pytest.mark.parametrize("transposed", [False, True])
def test_pytorchs_internal_convolution(transposed):
    def run(x, weight, bias):
        more = [1, 1], [1, 1], [1, 1], transposed, [0, 0], 1, False, False, True, True
        return torch._convolution(x, weight, bias, *more)

    weight = torch.randn(3, 4, 3, 3) if transposed else torch.randn(4, 3, 3, 3)
    check(run, torch.randn(2, 3, 8, 8), weight, torch.randn(4), rtol=1e-4, atol=1e-4)


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_in_a_mode_of_pytorchs():
    """The C++ code that finds its shape calls other operators: a mode at work sends them another
    way."""
    with Passing(), nothing_on_the_host():
        check(F.conv2d, R(2, 3, 11, 7), R(4, 3, 3, 2), R(4), **TOLERANCE)
