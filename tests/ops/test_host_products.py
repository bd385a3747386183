"""Products of matrices that PyTorch's kernels compute within programs, in parts, each way round."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torch_xla

from .harness import check

# Rows, contracted, columns: cut along rows or columns, odd, and too small for a kernel.
SIZES = [(300, 200, 130), (130, 200, 300), (129, 333, 127), (8, 384, 1024), (512, 1024, 64)]
SMALL = (8, 9, 10)
CLOSE = {"rtol": 1e-4, "atol": 1e-3}


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def program_of(function, *tensors: torch.Tensor) -> str:
    result = function(*(t.to("xla") for t in tensors))
    return torch_xla._XLAC._get_stablehlo([result])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [*SIZES, SMALL], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_linear_and_its_gradients(size, bias, dtype):
    rows, contracted, columns = size
    x = values(2, rows // 2, contracted, dtype=dtype)
    w = values(columns, contracted, dtype=dtype, seed=1)
    b = [values(columns, dtype=dtype, seed=2)] if bias else []
    check(F.linear, x, w, *b, **CLOSE)
    # Of what the program makes: none of the operands lies in memory before it runs.
    check(lambda x, w, *b: F.linear(x * 2, w + 1, *(t - 1 for t in b)), x, w, *b, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("left", [False, True], ids=["left", "left.t"])
@pytest.mark.parametrize("right", [False, True], ids=["right", "right.t"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_transposed_factors(size, left, right, dtype):
    rows, contracted, columns = size
    a = values(*((contracted, rows) if left else (rows, contracted)), dtype=dtype)
    b = values(*((columns, contracted) if right else (contracted, columns)), dtype=dtype, seed=1)

    def product(a, b):
        return (a.t() if left else a) @ (b.t() if right else b)

    check(product, a, b, **CLOSE)
    check(lambda a, b: product(a.exp(), b * 2) + 1, a, b, grad=False, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("shape", [(127,), (1, 127), (129, 127), (129, 1), ()], ids=str)
@pytest.mark.parametrize("factors", [{}, {"beta": 2}, {"alpha": 0.5}, {"beta": 0}], ids=str)
def test_added_to(shape, factors):
    a, b, c = values(129, 333), values(333, 127, seed=1), values(*shape, seed=2)
    check(lambda c, a, b: torch.addmm(c, a, b, **factors), c, a, b, **CLOSE)
    check(lambda c, a, b: torch.addmm(c, a, b.t().contiguous().t(), **factors), c, a, b, **CLOSE)


def test_a_factor_with_gaps():
    """oneDNN's product of parts of columns took ten thousand times as long."""
    a, b = values(64, 600), values(700, 2048, seed=1)
    check(lambda a, b: a @ b[50:650, 1024:], a, b, **CLOSE)
    check(lambda a, b: a[:, 1::2] @ b[:600:2].t()[:300].t(), a, b, **CLOSE)


@pytest.mark.parametrize("bias", [False, True])
def test_a_product_of_many_parts(bias):
    """More parts than threads, each some columns that stay in the cache until they are copied."""
    x, w = values(1100, 40), values(4111, 40, seed=1)
    b = [values(4111, seed=2)] if bias else []
    check(F.linear, x, w, *b, **CLOSE)
    assert "mkldnn::_linear_pointwise p0/-1 p1/0" in program_of(F.linear, x, w, *b)


def test_which_kernel_is_called():
    x, w = values(256, 256), values(256, 256, seed=1)
    assert "torch_xla.host_kernel" in program_of(F.linear, x, w)
    assert "aten::mm" in program_of(lambda x, w: x.t() @ w, x, w)
    for product in (lambda x, w: x[:4, :8] @ w[:8], lambda x, w: x.int() @ w.int()):
        assert "torch_xla.host_kernel" not in program_of(product, x, w)


def test_without_host_kernels(monkeypatch):
    monkeypatch.setenv("XLA_HOST_KERNELS", "none")
    x, w = values(256, 256), values(256, 256, seed=1)
    assert "torch_xla.host_kernel" not in program_of(F.linear, x, w)
    check(F.linear, x, w, **CLOSE)
