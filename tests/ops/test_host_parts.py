"""Host kernels that run in parts, side by side: large enough to be cut, values as PyTorch's."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import torch_xla
import torch_xla.debug.metrics as met

from .harness import in_float32

close = torch.testing.assert_close


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch):
    monkeypatch.setenv("XLA_HOST_KERNELS", "all")


def random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check(function, *tensors, **tolerance):
    """Values and gradients of `function`, and that one program computed them."""
    results = []
    for device in ("cpu", "xla"):
        inputs = [t.detach().to(device).requires_grad_() for t in tensors]
        out = function(*inputs)
        # Not of the result, whose rounding would be magnified by the sums of a gradient.
        out.backward(random(*out.shape, dtype=out.dtype, seed=9).to(device))
        results.append([t.detach() for t in (out, *(t.grad for t in inputs))])
    torch_xla.sync()
    for got, expected in zip(results[1], results[0], strict=True):
        close(got.cpu(), expected, **tolerance)


# Batches of 8 or more are cut, of smaller ones the channels; 9 does not divide by 2.
@pytest.mark.parametrize("batch", [9, 2, 1])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_convolution(batch, groups, bias):
    x, w, b = random(batch, 8, 40, 41), random(12, 8 // groups, 3, 3, seed=1), random(12, seed=2)
    tolerance = {"rtol": 1e-4, "atol": 1e-3}

    def convolve(x, w, *b):
        return F.conv2d(x, w, *b, stride=2, padding=1, groups=groups)

    check(convolve, x, w, *([b] if bias else []), **tolerance)


@pytest.mark.parametrize("batch", [9, 2])
def test_transposed_convolution(batch):
    x, w = random(batch, 8, 30, 31), random(8, 6, 3, 3, seed=1)
    check(
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1),
        *(x, w),
        **{"rtol": 1e-4, "atol": 1e-3},
    )


# Many rows, and few rows with many columns.
@pytest.mark.parametrize("rows", [129, 3])
def test_products(rows):
    dtype = torch.bfloat16
    a, b = random(rows, 130, dtype=dtype), random(130, 257, dtype=dtype, seed=1)
    # Rounded once, which leaves an addend that is ignored no room.
    once = {"rtol": 2e-2, "atol": 5e-2}
    check(in_float32(torch.mm), a, b, **once)
    for addend in ((257,), (rows, 257), (1, 257), (rows, 1)):
        check(in_float32(torch.addmm), random(*addend, dtype=dtype), a, b, **once)
    check(in_float32(F.linear), a, b.t().contiguous(), random(257, dtype=dtype), **once)
    check(in_float32(F.linear), a.view(rows, 1, 130), b.t().contiguous(), **once)


@pytest.mark.parametrize("batch", [9, 3])
def test_batched_products(batch):
    dtype = torch.bfloat16
    a, b = random(batch, 50, 60, dtype=dtype), random(batch, 60, 70, dtype=dtype, seed=1)
    once = {"rtol": 2e-2, "atol": 5e-2}
    check(in_float32(torch.bmm), a, b, **once)
    for addend in ((batch, 50, 70), (1, 50, 70), (50, 70), (70,)):
        check(in_float32(torch.baddbmm), random(*addend, dtype=dtype), a, b, **once)


@pytest.mark.parametrize("shape", [(5, 2, 64, 32), (1, 5, 64, 32)], ids=["batch", "heads"])
@pytest.mark.parametrize("mask", [None, (5, 1, 64, 64), (1, 1, 64, 64), (64, 64), "causal"])
def test_attention(shape, mask):
    q, k, v = (random(*shape, seed=i) for i in range(3))
    if isinstance(mask, tuple) and mask[0] == 5 and shape[0] == 1:
        mask = (1, 5, 64, 64)
    keep = random(*mask, seed=4) if isinstance(mask, tuple) else None

    def attend(q, k, v):
        there = None if keep is None else keep.to(q.device)
        return F.scaled_dot_product_attention(q, k, v, there, is_causal=mask == "causal")

    check(attend, q, k, v, **{"rtol": 1e-4, "atol": 1e-4})


def text_of(t):
    return torch_xla._XLAC._get_stablehlo([t])


@pytest.mark.parametrize("batch", [5, 1], ids=["batch", "heads"])
def test_attention_of_heads_as_they_lie(batch):
    """Models split heads off and join them by swapping dimensions: the kernel leaves them so."""
    x = random(batch, 64, 3 * 4 * 32)

    def attend(x):
        q, k, v = (t.view(batch, 64, 4, 32).transpose(1, 2) for t in x.mul(2).split(128, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).reshape(batch, 64, 128)

    check(attend, x, **{"rtol": 1e-4, "atol": 1e-4})
    cut = 0 if batch > 1 else 2
    text = text_of(attend(x.to("xla")))
    assert f"for_cpu x0/{cut} x1/{cut} x2/{cut} " in text and f" = x{cut} " in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("parameters", [0, 1, 2])
def test_layer_norm(monkeypatch, dtype, dims, parameters):
    monkeypatch.setenv("XLA_HOST_KERNELS", "auto")
    x = random(37, 5, 11, 31, dtype=dtype) + 3
    shape = tuple(x.shape[-dims:])
    weights = [random(*shape, dtype=dtype, seed=i) for i in range(1, 1 + parameters)]

    def norm(x, *w):
        return F.layer_norm(x, shape, *w, eps=1e-3)

    check(norm, x, *weights, **{"rtol": 1e-4, "atol": 1e-4})
    check(lambda x, *w: norm(x * 2, *w).sin(), x, *weights, **{"rtol": 1e-4, "atol": 1e-4})
    on_device = [t.to("xla") for t in (x, *weights)]
    result = norm(*on_device)
    assert "aten::native_layer_norm" in text_of(result)
    close(result.cpu(), norm(x, *weights), rtol=0, atol=0)
    assert "torch_xla.host_kernel" not in text_of(norm(on_device[0][:2], *on_device[1:]))


def test_gelu(monkeypatch):
    monkeypatch.setenv("XLA_HOST_KERNELS", "auto")
    x = random(3, 119, 93)
    check(F.gelu, x)
    result = F.gelu(x.to("xla"))
    assert "aten::gelu" in text_of(result)
    close(result.cpu(), F.gelu(x), rtol=0, atol=0, equal_nan=True)
    for other in (F.gelu(x.to("xla"), approximate="tanh"), F.gelu(x[:1].to("xla"))):
        assert "torch_xla.host_kernel" not in text_of(other)


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True, maximize=True, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, fused=True),
    "momentum": lambda p: torch.optim.SGD(
        p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1, fused=True
    ),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scaled", [False, True])
def test_fused_optimizers(make, dtype, scaled):
    """Large, small and odd parameters; gradients that the step unscales; a step that is skipped."""
    shapes = [(200, 300), (3,), (4097,), (), (1,), (5, 5)]
    results = []
    for device in ("cpu", "xla"):
        parameters = [
            random(*shape, dtype=dtype, seed=i).to(device).requires_grad_()
            for i, shape in enumerate(shapes)
        ]
        optimizer = make(parameters)
        for step in range(3):
            for i, p in enumerate(parameters):
                p.grad = random(*p.shape, dtype=dtype, seed=10 * step + i).to(device)
            if scaled:
                optimizer.grad_scale = torch.full((), 2.0, device=device)
                optimizer.found_inf = torch.full((), float(step == 1), device=device)
            optimizer.step()
            torch_xla.sync()
        results.append([t.detach().cpu() for p in parameters for t in (p, p.grad)])
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    close(results[1], results[0], **tolerance)


def _gradients_in_rows(stacked: torch.Tensor) -> list[torch.Tensor]:
    """Rows in another order, one of them with its dimension for a moment."""
    _, *others = stacked.unbind()
    return [*others, stacked[0:1].squeeze(0), others[0].clone()]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("made_here", [False, True])
def test_gradients_that_are_rows_of_one_tensor(make, scaled, made_here):
    """As those of layers that run as one loop. The tensor is read and written after the step."""
    shapes = [(200, 300), (3,), (4097,), (), (1, 5), (2, 1, 3)]
    results = []
    for device in ("cpu", "xla"):
        parameters = [
            random(*shape, seed=i).to(device).requires_grad_() for i, shape in enumerate(shapes * 5)
        ]
        optimizer = make(parameters)
        kept = []
        for step in range(3):
            stacks = [random(4, *s, seed=10 * step + i).to(device) for i, s in enumerate(shapes)]
            if made_here:
                stacks = [stack * 1.5 for stack in stacks]
            rows = [_gradients_in_rows(stack) for stack in stacks]
            for i, p in enumerate(parameters):
                p.grad = rows[i % len(shapes)][i // len(shapes)]
            if scaled:  # the step writes gradients
                optimizer.grad_scale = torch.full((), 2.0, device=device)
                optimizer.found_inf = torch.full((), float(step == 1), device=device)
            else:
                parameters[0].grad = parameters[len(shapes)].grad  # one row for two
            optimizer.step()
            kept += [stack.double().sum() for stack in stacks]
            for stack in stacks:
                stack[1:].mul_(3)
            kept += stacks
            if device == "xla" and not scaled:
                assert re.search(r"[{ ]r\d+/[123] ", text_of(parameters[0]))
            torch_xla.sync()
        results.append([t.detach().cpu() for t in (*parameters, *kept)])
    close(results[1], results[0])


def test_an_update_leaves_what_others_hold():
    p = random(100, 100).to("xla").requires_grad_()
    p.grad = random(100, 100, seed=1).to("xla")
    torch_xla.sync()
    before, kept = p.detach().clone(), p.detach().cpu()
    torch.optim.SGD([p], lr=0.5, fused=True).step()
    difference = before - p.detach()
    torch_xla.sync()
    close(before.cpu(), kept)
    close(difference.cpu(), p.grad.cpu() * 0.5)


def test_a_failing_part_is_reported():
    met.clear_all()
    q = torch.zeros(16, 64, 64, device="xla", dtype=torch.float64)
    with pytest.raises(RuntimeError, match="[Ss]ingular|cholesky"):
        torch.linalg.cholesky(q).cpu()
    close((q + 1).cpu(), torch.ones(16, 64, 64, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("operation", ["product", "convolution"])
def test_narrow_floats_are_multiplied_where_there_are_instructions_for_them(
    monkeypatch, operation, dtype
):
    """Without them PyTorch's kernels take a hundred times as long as XLA's code."""
    monkeypatch.setenv("XLA_HOST_KERNELS", "auto")
    name = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    native = getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported")()
    if operation == "product":
        out = random(9, 7, dtype=dtype).to("xla") @ random(7, 5, dtype=dtype).to("xla")
    else:
        x, w = random(2, 3, 5, 5, dtype=dtype), random(4, 3, 3, 3, dtype=dtype)
        out = F.conv2d(x.to("xla"), w.to("xla"))
    program = torch_xla._XLAC._get_stablehlo([out])
    assert ("custom_call" in program) == native


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
@pytest.mark.parametrize("name", ["sin", "cos", "tan", "asin", "acos", "atan", "log1p"])
def test_functions_that_pytorch_computes_many_elements_at_a_time(monkeypatch, name, dtype):
    """Values as PyTorch's to the bit, also beside the edges, of what the program makes, too."""
    monkeypatch.setenv("XLA_HOST_KERNELS", "auto")
    function = getattr(torch, name)
    scale = 3 if name in ("sin", "cos", "tan", "atan") else 0.4
    x = random(3, 57, 31).mul(scale) if dtype.is_floating_point else torch.arange(5301).view(57, 93)
    x = x.to(dtype)
    if dtype.is_floating_point:
        x.view(-1)[:6] = torch.tensor([0.0, -0.0, 1.0, -1.0, torch.inf, torch.nan])
    on_device = function(x.to("xla"))
    assert "torch_xla.host_kernel" in torch_xla._XLAC._get_stablehlo([on_device])
    close(on_device.cpu(), function(x), rtol=0, atol=0, equal_nan=True)
    made = function(x.to("xla").mT * 1).mT + 1
    close(made.cpu(), function(x) + 1, rtol=0, atol=0, equal_nan=True)
    if dtype.is_floating_point:
        check(lambda t: function(t * 0.5), random(40, 130).clamp(-1, 1).to(dtype))
    small = function(x[:1, :3].to("xla"))
    assert "torch_xla.host_kernel" not in torch_xla._XLAC._get_stablehlo([small])


@pytest.mark.parametrize("swapped", [False, True])
def test_a_gradient_that_is_a_row_of_what_the_step_updates(swapped):
    results = []
    for device in ("cpu", "xla"):
        matrix = random(4, 50_000).to(device).requires_grad_()
        vector = random(50_000, seed=1).to(device).requires_grad_()
        matrix.grad = random(4, 50_000, seed=2).to(device)
        torch_xla.sync()
        vector.grad = matrix.detach()[1].clone()
        parameters = [vector, matrix] if swapped else [matrix, vector]
        torch.optim.SGD(parameters, lr=0.5, fused=True).step()
        torch_xla.sync()
        results.append([matrix.detach().cpu(), vector.detach().cpu()])
    close(results[1], results[0])
