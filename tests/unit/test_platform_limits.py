"""What a platform's compiler does not take: typed errors, or the same from other operations.

The programs for a TPU are run by the CPU plugin, which bears the name of a TPU's here."""

from __future__ import annotations

import re

import pytest
import torch
import xla_plugins.xla_cpu_pjrt as cpu_plugin

from torch_xla import _XLAC


def for_tpu(*tensors: torch.Tensor) -> str:
    return _XLAC._get_stablehlo(list(tensors), platform="TPU")


@pytest.fixture
def run_as_tpu(run_python):
    folder = next(iter(cpu_plugin.__path__))
    env = {"PJRT_DEVICE": "TPU", "TPU_LIBRARY_PATH": f"{folder}/xla_cpu_pjrt.so"}
    return lambda code: run_python(code, env=env)


COMPLEX128 = {
    "aten::add.Tensor": lambda x, z: z + 1,
    "aten::_fft_r2c": lambda x, z: torch.fft.rfft(x),
    "aten::complex": lambda x, z: torch.complex(x, x),
    "aten::sgn": lambda x, z: torch.sgn(z),
    "aten::_to_copy": lambda x, z: x.to(torch.complex128),
}


@pytest.mark.parametrize("operator", COMPLEX128)
def test_a_missing_dtype_is_a_type_error(operator):
    x = torch.randn(4, dtype=torch.float64).to("xla")
    z = torch.randn(4, dtype=torch.complex128).to("xla")
    result = COMPLEX128[operator](x, z)
    said = (
        f"{operator}: expected a dtype that TPU has, got complex128. "
        "A TPU has no complex128; use complex64."
    )
    with pytest.raises(TypeError, match=re.escape(said)):
        for_tpu(result)
    assert "complex<f64>" in _XLAC._get_stablehlo([result])


def test_a_missing_dtype_is_not_uploaded(run_as_tpu):
    run_as_tpu("""
        import torch, torch_xla
        try:
            torch.ones(2, dtype=torch.complex128).to("xla")
        except TypeError as e:
            assert "to('xla'): expected a dtype that TPU has, got complex128. A TPU" in str(e), e
        else:
            raise AssertionError("no error")
        z = torch.ones(2, dtype=torch.float64, device="xla") * 1j
        try:
            z.cpu()
        except TypeError as e:
            assert "aten::mul" in str(e) and "use complex64" in str(e), e
        else:
            raise AssertionError("no error")
        # What does not need it goes on.
        assert (torch.ones(2, device="xla") * 1j).cpu().tolist() == [1j, 1j]
    """)


@pytest.mark.slow
def test_products_of_int64_are_exact_in_limbs(run_as_tpu):
    run_as_tpu("""
        import torch, torch_xla
        from torch_xla import _XLAC
        F = torch.nn.functional
        low, high = -(2**63), 2**63 - 1

        def ints(*shape):
            x = torch.randint(low, high, shape)
            x.view(-1)[:3] = torch.tensor([low, high, -1])[: x.numel()]
            return x

        # All bits set: the largest sums. Limbs of 8 bits last up to 66051 terms.
        ones = {n: torch.full((n,), -1) for n in (66051, 66052, 300000)}
        calls = [
            (torch.mm, ints(5, 7), ints(7, 4)),
            (torch.bmm, ints(3, 2, 9), ints(3, 9, 4)),
            (torch.mv, ints(5, 7), ints(7)),
            (torch.matmul, ints(2, 1, 3, 4), ints(5, 4, 2)),
            (torch.addmm, ints(5, 4), ints(5, 7), ints(7, 4)),
            (torch.mm, ints(3, 0), ints(0, 2)),
            (torch.einsum, "bij,bkj->ik", ints(2, 3, 4), ints(2, 5, 4)),
            (F.linear, ints(2, 3, 4), ints(5, 4), ints(5)),
            *[(torch.dot, x, x) for x in ones.values()],
            (F.conv1d, ints(2, 3, 9), ints(4, 3, 3)),
            (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1, dilation=2, groups=2),
             ints(2, 4, 9, 8), ints(6, 2, 3, 3), ints(6)),
            (F.conv3d, ints(1, 2, 4, 5, 4), ints(3, 2, 2, 3, 2)),
            (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, groups=2),
             ints(2, 4, 5, 4), ints(4, 3, 3, 2)),
        ]
        for call, *args in calls:
            on_xla = [a.to("xla") if isinstance(a, torch.Tensor) else a for a in args]
            result = call(*on_xla)
            text = _XLAC._get_stablehlo([result])
            for line in text.splitlines():
                if "dot_general" in line or "stablehlo.convolution" in line:
                    assert "ui8>) -> " in line and line.rstrip().endswith("ui32>"), line
            assert torch.equal(result.cpu(), call(*args)), call
        # Narrower ones are multiplied as they are.
        x = torch.ones(2, 2, dtype=torch.int32, device="xla")
        assert _XLAC._get_stablehlo([x @ x]).count("dot_general") == 1
    """)
