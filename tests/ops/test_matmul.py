"""Matrix products against PyTorch's CPU result."""

from __future__ import annotations

import time

import pytest
import torch
import torch.nn.functional as F

from .harness import DEVICE, assert_same, check, to_xla

R = torch.randn
REAL = (torch.float32, torch.bfloat16, torch.float64)
# Sums over k in another order.
LOOSE = {"rtol": 2e-2, "atol": 2e-2}
SIZES = [(3, 4, 5), (1, 1, 1), (0, 3, 2), (3, 0, 2), (16, 33, 17)]


def tolerances(dtype):
    return LOOSE if dtype in (torch.bfloat16, torch.float16) else {"rtol": 1e-5, "atol": 1e-5}


def products(a, b, v, w, batch_a, batch_b):
    return [
        a @ b,
        torch.mm(a, b),
        torch.bmm(batch_a, batch_b),
        torch.mv(a, v),
        torch.dot(v, v),
        torch.vdot(v, v),
        torch.outer(v, w),
        torch.matmul(batch_a, b),
        torch.matmul(v, batch_b),
        torch.einsum("bik,bkj->ij", batch_a, batch_b),
    ]


def sums(c, a, b, v, batch_c, batch_a, batch_b):
    return [
        torch.addmm(c, a, b),
        torch.addmm(c, a, b, beta=2, alpha=3),
        torch.addmm(c[:1], a, b, alpha=2),
        torch.baddbmm(batch_c, batch_a, batch_b, beta=3),
        torch.addbmm(c, batch_a, batch_b, beta=2, alpha=2),
        torch.addmv(c[:, 0], a, v, alpha=2),
        torch.addr(c, c[:, 0], c[0], beta=2, alpha=3),
    ]


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("i,k,j", SIZES)
def test_products(dtype, i, k, j):
    inputs = [R(i, k), R(k, j), R(k), R(j), R(2, i, k), R(2, k, j)]
    check(products, *inputs, dtypes=[dtype], **tolerances(dtype))


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("i,k,j", [(3, 4, 5), (3, 0, 2), (16, 33, 17)])
def test_scaled_sums(dtype, i, k, j):
    inputs = [R(i, j), R(i, k), R(k, j), R(k), R(2, i, j), R(2, i, k), R(2, k, j)]
    check(sums, *inputs, dtypes=[dtype], **tolerances(dtype))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.complex64])
def test_other_dtypes(dtype):
    def make(*size):
        if dtype.is_complex:
            return R(*size, dtype=dtype)
        return torch.randint(-5, 5, size, dtype=dtype)

    a, b, v = make(3, 4), make(4, 5), make(4)
    inputs = [a, b, v, make(5), make(2, 3, 4), make(2, 4, 5)]
    check(products, *inputs, grad=dtype.is_complex, rtol=1e-5, atol=1e-5)
    inputs = [make(3, 5), a, b, v, make(2, 3, 5), make(2, 3, 4), make(2, 4, 5)]
    check(sums, *inputs, grad=dtype.is_complex, rtol=1e-5, atol=1e-5)


def test_float_factors_on_floats():
    check(lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=1.5), R(3, 5), R(3, 4), R(4, 5))


def test_beta_zero_hides_nan():
    nan = torch.full((3, 5), float("nan"))
    for beta in (0, 0.0):
        check(
            lambda c, a, b, f=beta: torch.addmm(c, a, b, beta=f), nan, R(3, 4), R(4, 5), grad=False
        )


def test_factors_do_not_recompile():
    import torch_xla.debug.metrics as met

    def step(alpha):
        c, a, b = to_xla([torch.ones(2, 2)] * 3)
        return torch.addmm(c, a, b, alpha=alpha, beta=alpha).cpu()

    torch.testing.assert_close(step(0.5), torch.full((2, 2), 1.5))
    before = met.counter_value("UncachedCompile") or 0
    torch.testing.assert_close(step(0.25), torch.full((2, 2), 0.75))
    assert (met.counter_value("UncachedCompile") or 0) == before


def test_bool_addr():
    a, v = R(3, 4) > 0, R(3) > 0
    check(lambda a, v, w: torch.addr(a, v, w), a, v, R(4) > 0, grad=False)


def test_int_mm():
    a = torch.randint(-128, 127, (17, 8), dtype=torch.int8)
    b = torch.randint(-128, 127, (8, 16), dtype=torch.int8)
    check(torch._int_mm, a, b, grad=False)


@pytest.mark.parametrize("use_gelu", [True, False])
def test_addmm_activation(use_gelu):
    check(
        lambda c, a, b: torch._addmm_activation(c, a, b, use_gelu=use_gelu),
        R(5), R(3, 4), R(4, 5), grad=False,
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (0, 4), (2, 2, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear(shape, dtype):
    check(
        lambda x, w, b: [F.linear(x, w, b), F.linear(x, w)],
        R(shape), R(5, 4), R(5), dtypes=[dtype], **tolerances(dtype),
    )  # fmt: skip


def test_linear_of_non_contiguous_sources():
    check(lambda x, w, b: F.linear(x.t(), w.t(), b[::2]), R(4, 3), R(4, 5), R(10))


def test_linear_with_a_vector_as_weight():
    check(F.linear, R(3, 4), R(4), grad=False)


def test_linear_twice_differentiable():
    def second(x, w, b):
        y = F.linear(x, w, b).sin()
        (gx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return gx

    check(second, R(3, 4), R(5, 4), R(5))


def test_bilinear():
    check(F.bilinear, R(3, 4), R(3, 6), R(5, 4, 6), R(5), rtol=1e-5, atol=1e-5)


def test_trilinear_broadcasts():
    check(
        lambda a, b, c: torch._trilinear(a, b, c, [1, 3], [1, 2], [0], [2, 3]),
        R(3, 4), R(3, 6), R(5, 4, 6), grad=False, rtol=1e-5, atol=1e-5,
    )  # fmt: skip


GROUP_ENDS = torch.tensor([3, 3, 7, 16], dtype=torch.int32)


@pytest.mark.parametrize("kernels", ["auto", "none"])
@pytest.mark.parametrize(
    "left, right",
    [((16, 8), (4, 8, 24)), ((4, 24, 8), (8, 16)), ((8, 16), (16, 24)), ((4, 6, 8), (4, 8, 16))],
)
def test_grouped(left, right, kernels, monkeypatch):
    monkeypatch.setenv("XLA_HOST_KERNELS", kernels)
    ends = None if len(left) == len(right) == 3 else GROUP_ENDS

    def product(a, b):
        return F.grouped_mm(a, b, offs=None if ends is None else ends.to(a.device))

    check(product, R(*left), R(*right), rtol=1e-5, atol=1e-5)
    check(product, R(*left).bfloat16(), R(*right).bfloat16())


def test_grouped_with_transposed_weights():
    def product(a, b):
        return F.grouped_mm(a, b.transpose(-2, -1), offs=GROUP_ENDS.to(a.device))

    check(product, R(16, 8), R(4, 5, 8), grad=False, rtol=1e-5, atol=1e-5)


def test_grouped_refuses_what_does_not_fit():
    a, b = to_xla([R(16, 8), R(4, 8, 12)])
    with pytest.raises(RuntimeError, match="Offsets have to be int32"):
        F.grouped_mm(a, b, offs=GROUP_ENDS.long().to(DEVICE))
    with pytest.raises(RuntimeError, match="matrix batch sizes have to match"):
        F.grouped_mm(a, b, offs=GROUP_ENDS[:3].to(DEVICE))
    with pytest.raises(RuntimeError, match="Have to provide offsets"):
        F.grouped_mm(a, b)


def test_out_and_in_place():
    a, b, c = R(3, 4), R(4, 5), R(3, 5)
    xa, xb, xc = to_xla([a, b, c])
    out = torch.empty(0, device=DEVICE)
    torch.mm(xa, xb, out=out)
    assert_same([out, xc.addmm_(xa, xb)], [a @ b, c.addmm_(a, b)], rtol=1e-5, atol=1e-5)


def test_recording_a_product_computes_nothing():
    """PyTorch's kernel is asked for its dtypes only, on a corner of the operands."""
    size = 800  # in bfloat16, of which many processors have no products
    a, b = torch.zeros(size, size, dtype=torch.bfloat16), torch.zeros(size, size).bfloat16()
    start = time.perf_counter()
    a @ b
    computed = time.perf_counter() - start
    shares = []
    for columns in range(1, 4):
        x, y = to_xla([a, b[:, columns:].contiguous()])
        start = time.perf_counter()
        product = x @ y
        shares.append((time.perf_counter() - start) / computed)
        assert product.shape == (size, size - columns)
    assert min(shares) < 0.3, shares


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("outputs", [None, 1, 5])  # None: a weight of one dimension
@pytest.mark.parametrize("of", ["input", "weight", "bias", "input and bias", "weight and bias"])
def test_gradients_of_some_operands_of_linear(rank, outputs, of):
    def some(*operands):
        names = ("input", "weight", "bias")
        used = [t if n in of else t.detach() for n, t in zip(names, operands, strict=True)]
        # The CPU has no bias for a matrix times a vector.
        results = [] if outputs is None and rank == 2 else [F.linear(*used)]
        return results if of == "bias" else [*results, F.linear(*used[:2]).sin()]

    if of == "bias" and outputs is None and rank == 2:
        return
    weight, bias = (R(4), R(())) if outputs is None else (R(outputs, 4), R(outputs))
    check(some, R((2, 3, 4)[3 - rank :]), weight, bias)


def test_second_gradients_of_some_operands_of_linear():
    def second(x, w):
        (of_x,) = torch.autograd.grad(F.linear(x, w.detach()).exp().sum(), x, create_graph=True)
        (of_w,) = torch.autograd.grad(F.linear(x.detach(), w).exp().sum(), w, create_graph=True)
        return [of_x, of_w]

    check(second, R(3, 4), R(5, 4))


@pytest.mark.parametrize("of", ["input", "input and weight and bias"])
def test_gradients_of_complex_linear(of):
    def some(x, w, b):
        used = (x, w, b) if "weight" in of else (x, w.detach(), b.detach())
        return torch.view_as_real(F.linear(*used)).sin()

    check(some, *(R(s, dtype=torch.complex64) for s in ((2, 3, 4), (5, 4), (5,))))


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_second_gradients_of_complex_linear(shape, bias):
    def second(*used):
        loss = F.linear(*used).abs().square().sum()
        return torch.autograd.grad(loss, used, create_graph=True)

    shapes = (shape, (5, 4), (5,))
    check(second, *(R(s, dtype=torch.complex64) for s in shapes[: 2 + bias]), **tolerances(None))


LONG_SUMS = {
    "dot": lambda x: torch.dot(x[0], x[1]),
    "vdot": lambda x: torch.vdot(x[0], x[1]),
    "row by column": lambda x: x[:1] @ x[1:2].t(),
    "row by few columns": lambda x: x[:1] @ x[:3].t(),
    "column by rows": lambda x: x[:2] @ x[1:].t(),
    "rows by columns of batches": lambda x: torch.bmm(x[:, None], x[:, :, None]),
    "added": lambda x: torch.addmm(x[:1, :1], x[:1], x[1:2].t()),
    "einsum": lambda x: torch.einsum("i,i->", x[0], x[1]),
    "weights of one output": lambda x: torch.nn.functional.linear(x[:1], x[1:2]),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[1:])[:, :4],
    "group norm": lambda x: torch.nn.functional.group_norm(x.view(1, 4, -1), 2)[..., :4],
    "RMS norm": lambda x: torch.nn.functional.rms_norm(x, x.shape[1:])[:, :4],
}


@pytest.mark.parametrize("name", LONG_SUMS)
def test_long_sums(name):
    """A loop over a million elements would be off by 1e-4."""
    x = torch.rand(4, 1 << 20, generator=torch.Generator().manual_seed(0))
    found, exact = LONG_SUMS[name](x.to("xla")).cpu(), LONG_SUMS[name](x.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=2e-6)
