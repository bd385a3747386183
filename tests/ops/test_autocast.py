"""Autocast's policies on xla: the dtype in which each operator runs, and what it computes.

PyTorch's own lists of operators for testing its CUDA and CPU autocast say what to expect.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists, AutocastTestLists

import torch_xla
from tests.ops.harness import DEVICE, nothing_on_the_host

NARROW = [torch.bfloat16, torch.float16]
# Their programs compile for long.
ONE_OF_THEM = [NARROW[0], pytest.param(NARROW[1], marks=pytest.mark.slow)]


def cast(value: Any, dtype: torch.dtype) -> Any:
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, value
    )


def narrow_as(value: Any, dtype: torch.dtype) -> Any:
    """The lists' narrow tensors in this dtype; the wide ones as they are."""
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.to(dtype) if t.dtype in NARROW else t, value
    )


class Comparison:
    """Calls under autocast against calls on arguments that were cast by hand; one program."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.cases: list[tuple[str, Any, Any]] = []
        self.wrong: list[str] = []

    def add(
        self, module: Any, row: tuple, runs_in: torch.dtype, result: torch.dtype | None = None
    ) -> None:
        name, args = row[0], narrow_as(row[1], self.dtype)
        kwargs = row[2] if len(row) > 2 and isinstance(row[2], dict) else {}

        def call(args: Any) -> Any:
            if module is not None and hasattr(module, name):
                return getattr(module, name)(*args, **kwargs)
            return getattr(args[0], name)(*args[1:], **kwargs)

        try:
            with torch.autocast("xla", dtype=self.dtype):
                actual = call(args)
            expected = call(cast(args, runs_in))
        except Exception as e:
            self.wrong.append(f"{name}: {e}")
            return
        for t in pytree.tree_leaves(actual):
            if isinstance(t, torch.Tensor) and t.dtype != (result or runs_in):
                self.wrong.append(f"{name}: {t.dtype}, expected {result or runs_in}")
        self.cases.append((name, actual, expected))

    def finish(self) -> None:
        torch_xla.sync()
        for name, actual, expected in self.cases:
            pairs = zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True)
            for a, e in pairs:
                if not isinstance(a, torch.Tensor):
                    assert a == e
                    continue
                try:
                    torch.testing.assert_close(a.cpu(), e.cpu(), equal_nan=True)
                except AssertionError as error:
                    self.wrong.append(f"{name}: {error}")
        assert self.cases
        assert not self.wrong, "\n".join(self.wrong)


# cuDNN's own, and PyTorch's internal `_convolution`, which is for backends that it knows; the
# arguments listed for einsum do not fit each other.
NOT_HERE = {"cudnn_convolution", "cudnn_convolution_transpose", "_convolution", "einsum"}


@pytest.mark.parametrize("dtype", ONE_OF_THEM)
def test_operators_of_cuda_autocast(dtype):
    lists = AutocastTestLists(DEVICE)
    torch_xla.sync()
    compare = Comparison(dtype)
    with nothing_on_the_host():
        for rows, module, runs_in in (
            (lists.torch_fp16, torch, dtype),
            (lists.nn_fp16, torch._C._nn, dtype),
            (lists.linalg_fp16, torch._C._linalg, dtype),
            (lists.methods_fp16, None, dtype),
            (lists.torch_fp32, torch, torch.float32),
            (lists.nn_fp32, torch._C._nn, torch.float32),
            (lists.methods_fp32, None, torch.float32),
            (lists.torch_need_autocast_promote, torch, torch.float32),
        ):
            for row in rows:
                if row[0] not in NOT_HERE:
                    compare.add(module, row, runs_in)
        for rows, module in (
            (lists.torch_expect_builtin_promote, torch),
            (lists.methods_expect_builtin_promote, None),
        ):
            for name, args, result in rows:
                if name not in ("equal", "__div__"):  # a bool; a method of Python 2
                    compare.add(module, (name, args), torch.float32, result)
        compare.finish()


# What CPU autocast runs in float32 because its kernels have no narrow form. On xla, as on CUDA, it
# runs in the dtype of its input.
IN_THE_DTYPE_OF_THE_INPUT = {"avg_pool3d", "reflection_pad1d"}


@pytest.mark.parametrize("dtype", ONE_OF_THEM)
def test_operators_of_cpu_autocast(dtype):
    lists = AutocastCPUTestLists(DEVICE)
    torch_xla.sync()
    compare = Comparison(dtype)
    for rows, module, runs_in in (
        (lists.torch_16, torch, dtype),
        (lists.nn_16, torch._C._nn, dtype),
        (lists.torch_fp32, torch, torch.float32),
        (lists.nn_fp32, torch._C._nn, torch.float32),
        ([row[:2] for row in lists.torch_need_autocast_promote], torch, torch.float32),
    ):
        for row in rows:
            if row[0] in ("_native_multi_head_attention", "binary_cross_entropy"):
                continue  # below
            compare.add(module, row, dtype if row[0] in IN_THE_DTYPE_OF_THE_INPUT else runs_in)
    compare.finish()


def test_every_operator_with_a_policy_elsewhere_has_one():
    def operators(backend: str) -> set[str]:
        return set(torch._C._dispatch_get_registrations_for_dispatch_key("Autocast" + backend))

    ours = operators("XLA")
    cudnn = {"aten::cudnn_convolution", "aten::cudnn_convolution_transpose"}
    assert operators("CUDA") - cudnn <= ours
    # Composites whose parts have policies, promotion that the operator itself does, and operators
    # that run in the dtype of their input.
    not_needed = {
        "conv1d.padding",
        "conv2d.padding",
        "conv3d.padding",
        "cross_entropy_loss",
        "cat",
        "stack",
        "mkldnn_rnn_layer",
        "multilabel_margin_loss_forward",
        "_grid_sampler_2d_cpu_fallback",
        "grid_sampler_2d",
        "grid_sampler_3d",
        "fake_quantize_per_tensor_affine",
        "trace",
        "adaptive_avg_pool3d",
        "adaptive_max_pool3d",
        "avg_pool3d",
        "fractional_max_pool2d",
        "fractional_max_pool3d",
        "max_pool3d",
        "max_unpool2d",
        "max_unpool3d",
        "reflection_pad1d",
        "reflection_pad2d",
        "replication_pad1d",
        "replication_pad2d",
        "replication_pad3d",
    }
    assert operators("CPU") - ours == {f"aten::{name}" for name in not_needed}


# --- what the lists leave out -------------------------------------------------------------------


def randn(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*sizes).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(
    "layer", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN], ids=["lstm", "gru", "rnn"]
)
def test_recurrent_layers_run_narrow(layer, dtype):
    model = layer(4, 3, num_layers=2, bidirectional=True).to(DEVICE)
    with torch.autocast("xla", dtype=dtype):
        output, state = model(randn(5, 2, 4))
    assert all(t.dtype == dtype for t in pytree.tree_leaves((output, state)))
    output.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_packed_sequence():
    model = torch.nn.LSTM(4, 3).to(DEVICE)
    x = torch.nn.utils.rnn.pack_padded_sequence(randn(5, 2, 4), torch.tensor([5, 3]))
    with torch.autocast("xla"):
        output, _ = model(x)
    assert output.data.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", NARROW)
def test_attention_runs_narrow(dtype):
    q, k, v = (randn(2, 3, 5, 4).requires_grad_() for _ in range(3))
    with torch.autocast("xla", dtype=dtype):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert out.dtype == dtype
    expected = F.scaled_dot_product_attention(
        *(t.detach().cpu() for t in (q, k, v)), is_causal=True
    )
    torch.testing.assert_close(out.detach().cpu().float(), expected, rtol=0.05, atol=0.05)
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32


def test_multi_head_attention_and_encoder():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(DEVICE)
    for training in (True, False):
        layer.train(training)
        with torch.autocast("xla"):
            out = layer(randn(2, 5, 8))
        assert out.dtype == torch.float32  # it ends in layer_norm
        assert torch.isfinite(out).all()


def test_binary_cross_entropy():
    p, y = torch.rand(3, 4).to(DEVICE, torch.bfloat16), torch.rand(3, 4).to(DEVICE, torch.bfloat16)
    with torch.autocast("xla"):
        loss = F.binary_cross_entropy(p, y)
    expected = F.binary_cross_entropy(p.cpu().float(), y.cpu().float())
    torch.testing.assert_close(loss.cpu(), expected)
    with torch.autocast("xla", dtype=torch.float16):
        message = "binary_cross_entropy_with_logits"
        with pytest.raises(RuntimeError, match=message):
            F.binary_cross_entropy(p.half(), y.half())


NO_NARROW_FORM = {
    "fft": lambda x: torch.fft.rfft(x),
    "stft": lambda x: torch.stft(x[0], 4, return_complex=True),
    "inverse": lambda x: torch.linalg.inv(x),
    "solve": lambda x: torch.linalg.solve(x, x.new_ones(8, 1)),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT + 16 * torch.eye(8, device=x.device)),
    "svd": lambda x: torch.linalg.svdvals(x),
    "determinant": lambda x: torch.linalg.det(x),
    "quantile": lambda x: torch.quantile(x, 0.3),
    "polar": lambda x: torch.polar(x.abs(), x),
}


@pytest.mark.parametrize("name", NO_NARROW_FORM)
def test_without_a_narrow_form(name):
    x = torch.randn(8, 8).bfloat16()
    with torch.autocast("xla"):
        actual = NO_NARROW_FORM[name](x.to(DEVICE))
    assert actual.dtype in (torch.float32, torch.complex64)
    if name == "cholesky":
        return  # of a product in bfloat16
    torch.testing.assert_close(actual.cpu(), NO_NARROW_FORM[name](x.float()), rtol=1e-3, atol=1e-3)


NARROW_INPUT = {
    "max_pool3d": lambda x: F.max_pool3d(x, 2),
    "avg_pool3d": lambda x: F.avg_pool3d(x, 2),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, 2),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, 2),
    "replication_pad3d": lambda x: F.pad(x, (1,) * 6, mode="replicate"),
    "reflection_pad2d": lambda x: F.pad(x[0], (1,) * 4, mode="reflect"),
    "trace": lambda x: torch.trace(x[0, 0, 0]),
    "relu": lambda x: F.relu(x),
    "gelu": lambda x: F.gelu(x),
    "add": lambda x: x + 1,
    "mean": lambda x: x.mean(),
    "batch_norm": lambda x: F.batch_norm(
        x, None, None, torch.ones(3, device=x.device), torch.ones(3, device=x.device), True
    ),
    "dropout": lambda x: F.dropout(x, 0.5),
    "embedding": lambda x: F.embedding(torch.tensor([0, 1], device=x.device), x[0, 0, 0]),
    "max_unpool2d": lambda x: F.max_unpool2d(*F.max_pool2d(x[0], 2, return_indices=True), 2),
}


@pytest.mark.parametrize("name", NARROW_INPUT)
def test_runs_in_the_dtype_of_its_input(name):
    for dtype in (torch.bfloat16, torch.float32):
        x = randn(2, 3, 4, 4, 4, dtype=dtype)
        with torch.autocast("xla"):
            assert NARROW_INPUT[name](x).dtype == dtype


def test_composites():
    with torch.autocast("xla"):
        assert torch.einsum("ij,jk->ki", randn(2, 3), randn(3, 4)).dtype == torch.bfloat16
        assert (
            F.conv2d(randn(1, 2, 4, 4), randn(3, 2, 3, 3), padding="same").dtype == torch.bfloat16
        )
        logits = randn(3, 4, dtype=torch.bfloat16)
        target = torch.tensor([0, 1, 2], device=DEVICE)
        assert F.cross_entropy(logits, target).dtype == torch.float32


def test_double_and_integers_are_left_alone():
    with torch.autocast("xla"):
        assert (randn(2, 2).double() @ randn(2, 2).double()).dtype == torch.float64
        assert torch.ones(3, dtype=torch.int64, device=DEVICE).sum().dtype == torch.int64
        assert randn(3).double().exp().dtype == torch.float64


def test_in_place_and_out_variants_are_not_cast():
    a, b = randn(2, 2), randn(2, 2)
    with torch.autocast("xla"):
        out = torch.mm(a, b, out=torch.empty(2, 2, device=DEVICE))
        assert out.dtype == torch.float32
        assert a.addmm_(b, b).dtype == torch.float32
