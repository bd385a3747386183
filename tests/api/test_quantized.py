"""Quantization and products of quantized weights."""

from __future__ import annotations

import pytest
import torch

import torch_xla  # noqa: F401
from torch_xla import _XLAC
from torch_xla.experimental import quantized
from torch_xla.experimental import xla_quantized_matmul as qm

X = torch.rand(4, 6) * 8 - 4
RANGE = (-128, 127, torch.int8)


def reference():
    import torch.ao.quantization.fx._decomposed  # noqa: F401 (registers the operators)

    return torch.ops.quantized_decomposed


def test_one_scale():
    ops = reference()
    expected = ops.quantize_per_tensor(X, 0.05, 3, *RANGE)
    found = quantized.xla_quantize_per_tensor(X.to("xla"), 0.05, 3, *RANGE)
    assert found.dtype == torch.int8 and torch.equal(found.cpu(), expected)
    back = quantized.xla_dequantize_per_tensor(found, 0.05, 3, *RANGE)
    assert torch.equal(back.cpu(), ops.dequantize_per_tensor(expected, 0.05, 3, *RANGE))
    by_binding = _XLAC._xla_quantize_tensor(X.to("xla"), [0.05], [3], -128, 127, "torch.int8", -1)
    assert torch.equal(by_binding.cpu(), expected)
    back = _XLAC._xla_dequantize_tensor(by_binding, [0.05], [3], -128, 127, "int8", -1)
    torch.testing.assert_close(back.cpu(), X, atol=0.03, rtol=0)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_scale_for_each_index(axis):
    scales = torch.rand(X.shape[axis]) + 0.1
    zeros = torch.arange(X.shape[axis])
    expected = reference().quantize_per_channel(X, scales, zeros, axis, *RANGE)
    found = quantized.xla_quantize_per_channel(X.to("xla"), scales, zeros, axis, *RANGE)
    assert torch.equal(found.cpu(), expected)
    assert quantized._unpack_tensor_to_list(zeros.to("xla")) == zeros.tolist()


def test_what_does_not_fit():
    one = torch.ones(1)
    for arguments, message in (
        ((one, one, torch.int8, 0), "4 scales"),
        ((one, one, torch.float32, -1), "integers"),
        ((one, one, torch.int8, 5), "axis"),
    ):
        scale, zero, dtype, axis = arguments
        with pytest.raises(ValueError, match=message):
            quantized._xla_quantize(X, scale, zero, -128, 127, dtype, axis)
    with pytest.raises(ValueError, match="int8"):
        quantized._xla_dequantize(X, one, one, -128, 127, torch.int8)


def weight(block_size):
    if block_size == -1:
        return torch.randint(-8, 8, (5, 6), dtype=torch.int8), torch.rand(5), torch.rand(5)
    blocks = 6 // block_size
    w = torch.randint(-8, 8, (blocks, block_size, 5), dtype=torch.int8)
    return w, torch.rand(blocks, 5), torch.rand(blocks, 5)


@pytest.mark.parametrize("block_size", [-1, 2, 3])
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_products(block_size, is_symmetric):
    w, scaler, zero = weight(block_size)
    if block_size == -1:
        floats = w * scaler[:, None] - (0 if is_symmetric else zero[:, None])
        expected = X @ floats.t()
    else:
        floats = w * scaler[:, None] - (0 if is_symmetric else zero[:, None])
        expected = X @ floats.reshape(6, 5)
    layer = qm.XlaQuantizedLinear(6, 5, is_symmetric, block_size)
    layer.load_quantized_weight(w, scaler, None if is_symmetric else zero)
    torch.testing.assert_close(layer(X), expected, rtol=1e-4, atol=1e-4)
    layer.to("xla")
    torch.testing.assert_close(layer(X.to("xla")).cpu(), expected, rtol=1e-4, atol=1e-4)
    run = torch.compile(layer, backend="openxla")
    torch.testing.assert_close(run(X.to("xla")).cpu(), expected, rtol=1e-4, atol=1e-4)
    by_name = torch.ops.xla.quantized_matmul(X, w, scaler, block_size=block_size)
    if is_symmetric:
        torch.testing.assert_close(by_name, expected, rtol=1e-4, atol=1e-4)


def test_rounded_activations():
    w, scaler, _ = weight(-1)
    units, unit = qm._quantize_tensor(X)
    torch.testing.assert_close(units * unit, X, atol=0.06, rtol=0)
    found = qm.quantized_matmul_xla(
        X.to("xla"), w.to("xla"), scaler.to("xla"), quantize_activation=True
    )
    expected = (units * unit) @ (w * scaler[:, None]).t()
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    zeros = qm._quantize_tensor(torch.zeros(2, 3))[0]
    assert not zeros.any()


def test_errors():
    w, scaler, zero = weight(-1)
    layer = qm.XlaQuantizedLinear(6, 5, is_symmetric=True)
    for arguments, message in (
        ((w, scaler, zero), "no zero point"),
        ((w.float(), scaler), "int8"),
        ((w.t(), scaler), r"\(5, 6\)"),
        ((w, scaler[:2]), "5 outputs"),
    ):
        with pytest.raises(ValueError, match=message):
            layer.load_quantized_weight(*arguments)
    blocks, numbers, _ = weight(2)
    with pytest.raises(ValueError, match="divides 6"):
        qm.quantized_matmul(X, blocks, numbers, block_size=4)
    with pytest.raises(ValueError, match="no blocks"):
        qm.quantized_matmul(X, blocks, numbers, block_size=2, quantize_activation=True)


def test_products_by_the_extensions_name():
    x, y = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    dims = (([2], [1]), ([0], [0]))
    found = _XLAC._xla_dot_general(x.to("xla"), y.to("xla"), dims)
    torch.testing.assert_close(found.cpu(), x @ y, rtol=1e-4, atol=1e-5)
    a, b = (torch.randint(-9, 9, (3, 3), dtype=torch.int8) for _ in range(2))
    found = _XLAC._xla_dot_general(
        a.to("xla"), b.to("xla"), (([1], [0]), ((), ())), None, torch.int32
    )
    assert found.dtype == torch.int32 and torch.equal(found.cpu(), a.int() @ b.int())


def test_products_as_2_9_calls_them():
    x, y = torch.randn(2, 3, 4), torch.randn(4, 5)
    found = _XLAC._xla_dot_general(x.to("xla"), y.to("xla"), (([-1], [0]), ()))
    torch.testing.assert_close(found.cpu(), x @ y, rtol=1e-4, atol=1e-5)
    batched = (([-1], [-2]), ([-3], [-3]))
    z = torch.randn(2, 4, 5)
    found = _XLAC._xla_dot_general(x.to("xla"), z.to("xla"), batched)
    torch.testing.assert_close(found.cpu(), x @ z, rtol=1e-4, atol=1e-5)
    words = r"Expected input tensor \(first argument\) to be an actual XLA .* CPUBFloat16Type"
    with pytest.raises(RuntimeError, match=words):
        _XLAC._xla_dot_general(x.bfloat16(), y.to("xla"), (([-1], [0]), ()))
    with pytest.raises(RuntimeError, match=r"\(second argument\).* Got: CPUFloatType"):
        _XLAC._xla_dot_general(x.to("xla"), y, (([-1], [0]), ()))
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        _XLAC._xla_dot_general(x.to("xla"), y.to("xla"), (([7], [0]), ()))


def test_pytorchs_operators_of_quantized_tensors(run_python):
    done = run_python(
        """
        import torch, torch_xla.experimental.xla_quantized_matmul
        x = torch.tensor([0.26, -3.0, 9.0])
        found = [torch.ops.quantized_decomposed.quantize_per_tensor(
            t, 0.5, 3, -8, 7, torch.int8).tolist() for t in (x, x.to("xla"))]
        print(found[0] == found[1], found[0])
        """
    )
    assert "True [4, -3, 7]" in done.stdout, done
