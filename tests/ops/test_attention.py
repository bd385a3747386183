"""Scaled dot product attention and the modules built on it, against PyTorch's CPU result."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .harness import DEVICE, assert_same, check, to_xla

R = torch.randn
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
SDPA = F.scaled_dot_product_attention


@pytest.mark.parametrize(
    "shape",
    [
        ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)),
        ((5, 8), (7, 8), (7, 8)),
        ((3, 5, 8), (3, 7, 8), (3, 7, 6)),
        ((2, 2, 2, 5, 8), (2, 2, 2, 7, 8), (2, 2, 2, 7, 8)),
        ((2, 3, 5, 8), (1, 3, 7, 8), (2, 1, 7, 8)),
        ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
        ((2, 0, 4), (2, 3, 4), (2, 3, 4)),
    ],
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_shapes(shape, is_causal):
    check(lambda q, k, v: SDPA(q, k, v, is_causal=is_causal), *map(R, shape), **TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype):
    loose = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    q, k, v = R(2, 3, 5, 8), R(2, 3, 7, 8), R(2, 3, 7, 8)
    check(lambda q, k, v: SDPA(q, k, v, is_causal=True), q, k, v, dtypes=[dtype], **loose)


@pytest.mark.parametrize("mask_shape", [(5, 7), (2, 1, 5, 7), (2, 3, 5, 7), (1, 1, 1, 7)])
def test_masks(mask_shape):
    q, k, v = R(2, 3, 5, 8), R(2, 3, 7, 8), R(2, 3, 7, 8)
    check(SDPA, q, k, v, R(mask_shape), **TOLERANCE)
    keep = R(mask_shape) > -0.5
    keep[..., 0] = True
    check(SDPA, q, k, v, keep, **TOLERANCE)


def test_rows_that_see_nothing_are_zero():
    keep = torch.ones(5, 7, dtype=torch.bool)
    keep[2] = False
    q, k, v = to_xla([R(2, 3, 5, 8), R(2, 3, 7, 8), R(2, 3, 7, 8)])
    q.requires_grad_()
    y = SDPA(q, k, v, keep.to(DEVICE))
    y.sum().backward()
    assert torch.equal(y[:, :, 2].detach().cpu(), torch.zeros(2, 3, 8))
    assert torch.isfinite(y.detach().cpu()).all() and torch.isfinite(q.grad.cpu()).all()


def test_scale():
    check(lambda *x: SDPA(*x, scale=0.3), R(2, 3, 5, 8), R(2, 3, 7, 8), R(2, 3, 7, 8), **TOLERANCE)


@pytest.mark.parametrize("masked", [False, True])
def test_grouped_queries(masked):
    mask = [R(2, 6, 5, 7)] if masked else []
    check(
        lambda q, k, v, *m: SDPA(q, k, v, *m, enable_gqa=True, is_causal=not masked),
        R(2, 6, 5, 8), R(2, 2, 7, 8), R(2, 2, 7, 8), *mask, **TOLERANCE,
    )  # fmt: skip


def test_dropout():
    q, k, v = to_xla([R(2, 3, 64, 8), R(2, 3, 64, 8), R(2, 3, 64, 8)])
    v.requires_grad_()
    # The rows of `eye` make the output the matrix of probabilities itself.
    eye = torch.eye(64, device=DEVICE).expand(2, 3, 64, 64)
    dropped = SDPA(q, k, eye, dropout_p=0.25).cpu()
    full = SDPA(q, k, eye).cpu()
    kept = dropped != 0
    assert 0.72 < kept.float().mean() < 0.78
    torch.testing.assert_close(dropped[kept], full[kept] / 0.75)
    # The output is linear in v, so its gradient, taken with the same kept elements, gives it back.
    y = SDPA(q, k, v, dropout_p=0.5)
    (grad,) = torch.autograd.grad(y.sum(), v)
    torch.testing.assert_close((grad * v).sum().detach().cpu(), y.sum().detach().cpu())


def test_twice_differentiable():
    def second(q, k, v):
        # PyTorch's flash kernel for the CPU refuses a second derivative.
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            y = SDPA(q, k, v, is_causal=True).sin()
        return torch.autograd.grad(y.sum(), q, create_graph=True)[0]

    check(second, R(1, 2, 4, 8), R(1, 2, 4, 8), R(1, 2, 4, 8), **TOLERANCE)


def test_under_functorch():
    q, k, v = R(1, 2, 4, 8), R(1, 2, 4, 8), R(1, 2, 4, 8)
    gradient = torch.func.grad(lambda q, k, v: SDPA(q, k, v).square().sum())
    assert_same(gradient(*to_xla([q, k, v])), gradient(q, k, v), **TOLERANCE)


def test_mask_and_causal_together_are_refused():
    q, k, v = to_xla([R(2, 3, 5, 8)] * 3)
    with pytest.raises(RuntimeError, match="is_causal"):
        SDPA(q, k, v, torch.ones(5, 5, device=DEVICE), is_causal=True).cpu()


def test_one_call_each_way():
    import torch_xla.debug.metrics as met

    q, k, v = to_xla([R(2, 3, 5, 8)] * 3)
    q.requires_grad_()
    before = met.counter_value("xla::attention_backward") or 0
    SDPA(q, k, v).sum().backward()
    assert met.counter_value("xla::attention_backward") == before + 1


def run_both(module, *inputs, **tolerances):
    """A module on both devices, with the gradients of its parameters in training."""
    twin = copy.deepcopy(module).to(DEVICE)
    expected, actual = module(*inputs), twin(*to_xla(list(inputs)))
    assert_same(actual, expected, **tolerances)
    if module.training:
        expected.square().mean().backward()
        actual.square().mean().backward()
        for (name, p), q in zip(module.named_parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(q.grad.cpu(), p.grad, msg=lambda m, n=name: f"{n}: {m}",
                                       **tolerances)  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder(training, norm_first):
    layer = nn.TransformerEncoderLayer(
        16, 2, 32, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    if training:
        run_both(encoder, R(2, 5, 16), rtol=1e-3, atol=1e-5)
        return
    with torch.no_grad():
        run_both(encoder, R(2, 5, 16), rtol=1e-3, atol=1e-5)
        twin, x = copy.deepcopy(encoder).to(DEVICE), R(2, 5, 16)
        padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        actual = twin(x.to(DEVICE), src_key_padding_mask=padding.to(DEVICE)).cpu()
        expected = encoder(x, src_key_padding_mask=padding)
        torch.testing.assert_close(actual[~padding], expected[~padding], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention(need_weights):
    module = nn.MultiheadAttention(16, 4, batch_first=True)
    twin = copy.deepcopy(module).to(DEVICE)
    q, k = R(2, 5, 16), R(2, 7, 16)
    expected = module(q, k, k, need_weights=need_weights)
    actual = twin(q.to(DEVICE), k.to(DEVICE), k.to(DEVICE), need_weights=need_weights)
    assert_same(actual, expected, rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        actual = twin.eval()(q.to(DEVICE), k.to(DEVICE), k.to(DEVICE), need_weights=need_weights)
    assert_same(actual[0], expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", [5, 19])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_beside_large_scores(dtype, seed):
    """One weight of each row is nearly 1, and gradients are what is left of a difference of two
    large numbers: it must not be taken from an output that was rounded."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (4, 3, 8), (4, 6, 8), (4, 6, 8)
    given = [(torch.rand(s, generator=generator) * 18 - 9).to(dtype) for s in shapes]

    def gradients(tensors):
        inputs = [t.requires_grad_() for t in tensors]
        output = F.scaled_dot_product_attention(*inputs)
        weights = torch.linspace(-1, 1, output.numel(), device=output.device).view_as(output)
        return torch.autograd.grad(output, inputs, weights.to(output.dtype))

    exact = gradients([t.double() for t in given])
    found = gradients([t.to("xla") for t in given])
    for f, e in zip(found, exact, strict=True):
        off = (f.cpu().double() - e).abs().max() / e.abs().max()
        assert off < 4 * torch.finfo(dtype).eps
