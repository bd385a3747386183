"""Runs a function on the CPU and on xla, and compares what comes back: values, shapes, dtypes, and
the gradients of its floating-point inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

import torch_xla
from torch_xla.debug import metrics

DEVICE = "xla"
# Whether PyTorch computes products in bfloat16 by instructions of this processor.
HAS_BFLOAT16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()


def to_xla(value: Any) -> Any:
    """Tensors of any nest of containers as leaves on xla."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().to(DEVICE), value)


def on_xla(t: torch.Tensor) -> torch.Tensor:
    """A copy on xla with the strides of the source; Tensor.to keeps only those of channels_last."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=DEVICE).copy_(t)


def in_float32(fn: Callable[..., Any]) -> Callable[..., Any]:
    """On the CPU: fn on narrow floats in float32, its results rounded once. For operators that
    PyTorch's CPU kernels compute in many narrow steps, or not at all; xla runs fn as it is."""

    def wide(t: torch.Tensor) -> torch.Tensor:
        return t.float() if t.dtype in (torch.bfloat16, torch.float16) else t

    def run(*inputs: Any) -> Any:
        tensors = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
        narrow = {t.dtype for t in tensors} & {torch.bfloat16, torch.float16}
        if not narrow or any(t.device.type == DEVICE for t in tensors):
            return fn(*inputs)
        (dtype,) = narrow
        results = fn(*pytree.tree_map_only(torch.Tensor, wide, inputs))
        return pytree.tree_map_only(
            torch.Tensor, lambda t: t.to(dtype) if t.dtype == torch.float32 else t, results
        )

    return run


def _as_inputs(value: Any, dtype: torch.dtype | None, device: str, grad: bool) -> Any:
    def one(t: torch.Tensor) -> torch.Tensor:
        if dtype is not None and t.is_floating_point():
            t = t.to(dtype)
        # A copy, for functions that write into their inputs, with the strides of the source.
        t = on_xla(t.detach()) if device != "cpu" else t.detach().clone()
        differentiable = t.is_floating_point() or t.is_complex()
        return t.requires_grad_() if grad and differentiable else t

    return pytree.tree_map_only(torch.Tensor, one, value)


def significant_strides(t: torch.Tensor) -> tuple[int, ...]:
    """Those that say where elements lie: not of dimensions of one element, nor of empty tensors."""
    if t.numel() == 0:
        return ()
    return tuple(stride for stride, size in zip(t.stride(), t.shape, strict=True) if size > 1)


def assert_same(
    actual: Any, expected: Any, of_largest: float | None = None, **tolerances: Any
) -> None:
    """`actual` (on xla) against `expected` (on the CPU): structure, shape, dtype and values.

    `of_largest` allows each tensor that share of its largest element, as the error bounds of
    algorithms on matrices do: they say nothing of small elements beside large ones."""
    torch_xla.sync()  # One program for all of them; each would compile its own part when read.
    actual_leaves, actual_spec = pytree.tree_flatten(actual)
    expected_leaves, expected_spec = pytree.tree_flatten(expected)
    assert actual_spec == expected_spec, f"{actual_spec} != {expected_spec}"
    for a, e in zip(actual_leaves, expected_leaves, strict=True):
        if not isinstance(e, torch.Tensor):
            assert a == e, f"{a!r} != {e!r}"
            continue
        assert a.device.type == DEVICE, f"result on {a.device}, expected xla"
        assert a.dtype == e.dtype, f"result has dtype {a.dtype}, expected {e.dtype}"
        if of_largest is not None and e.numel() > 0 and (e.is_floating_point() or e.is_complex()):
            largest = e.detach().abs().nan_to_num(0, 0, 0).max().item()
            tolerances = {"rtol": 0, "atol": of_largest * max(largest, 1)}
        torch.testing.assert_close(
            a.detach().cpu(), e.detach(), equal_nan=True, check_stride=False, **tolerances
        )


# Devices add and round in their own order; results may be farther from the truth than the CPU's by
# this factor and a few units in the last place of the largest element. The CPU must be close to the
# truth itself: by 1024 such units, and never off by more than this share of the largest element.
TIMES_AS_FAR = 2
UNITS_MORE = 4
MOST_OF_LARGEST = 0.12


class NoDigits(AssertionError):
    """The CPU's result has not one digit of the truth: it says nothing of another device's."""


def assert_as_close(actual: Any, expected: Any, truth: Any) -> None:
    """Each tensor of `actual` (on xla) is about as close to `truth`, computed in a wider dtype, as
    `expected` (on the CPU) is: the forward error of the same formula on another device."""
    leaves = map(pytree.tree_leaves, (actual, expected, truth))
    noise = ""
    for a, e, t in zip(*leaves, strict=True):
        if not isinstance(e, torch.Tensor) or not (e.is_floating_point() or e.is_complex()):
            assert_same(a, e)
            continue
        found, rounded, exact = a.detach().cpu(), e.detach(), t.detach()
        assert found.shape == rounded.shape and found.dtype == rounded.dtype
        finite = rounded.isfinite() & exact.isfinite()
        torch.testing.assert_close(found[~finite], rounded[~finite], equal_nan=True)
        if not finite.any():
            continue
        exact = exact[finite]
        largest = exact.abs().max().item()
        off = (rounded[finite] - exact).abs().max().item()
        unit = torch.finfo(e.dtype).eps * largest
        words = f"the CPU is off by {off} where the largest element is {largest}"
        if off > MOST_OF_LARGEST * largest:
            noise = words  # and the other tensors are still compared
            continue
        assert off <= 1024 * unit, words
        torch.testing.assert_close(
            found[finite].to(exact.dtype),
            exact,
            rtol=0,
            atol=TIMES_AS_FAR * off + UNITS_MORE * unit,
        )
    if noise:
        raise NoDigits(noise)


def assert_same_strides(actual: Any, expected: Any) -> None:
    leaves = zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True)
    for a, e in leaves:
        if not isinstance(e, torch.Tensor):
            continue
        found, wanted = significant_strides(a), significant_strides(e)
        assert found == wanted, f"strides of {tuple(e.shape)}: {found} != {wanted}"


def host_calls() -> dict[str, int]:
    return {n: metrics.counter_value(n) for n in metrics.counter_names() if n.startswith("aten::")}


@contextlib.contextmanager
def nothing_on_the_host() -> Iterator[None]:
    """Fails if an operator ran on the host inside: it has no lowering and no decomposition."""
    before = host_calls()
    yield
    ran = sorted(n for n, count in host_calls().items() if count != before.get(n, 0))
    assert not ran, f"ran on the host: {', '.join(ran)}"


def gradients(results: Any, inputs: Any) -> tuple[list[Any], list[Any]]:
    """The results that have a gradient, and the inputs that may have one."""
    outputs = [t for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
    leaves = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    return [t for t in outputs if t.requires_grad], [t for t in leaves if t.requires_grad]


class Batch:
    """Many comparisons under one compilation: the programs of every `add` run at its end."""

    def __init__(self) -> None:
        self._cases: list[tuple[str, Any, Any, dict[str, Any]]] = []

    def __enter__(self) -> Batch:
        return self

    def add(
        self,
        fn: Callable[..., Any],
        *inputs: Any,
        label: str = "",
        grad: bool = True,
        dtype: torch.dtype | None = None,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> None:
        """Records fn(*inputs) on both devices, and with `grad` the gradients of its inputs."""
        tolerances = {"rtol": rtol, "atol": atol}
        cpu = _as_inputs(inputs, dtype, "cpu", grad)
        xla = _as_inputs(_as_inputs(inputs, dtype, "cpu", False), None, DEVICE, grad)
        expected, actual = fn(*cpu), fn(*xla)
        self._cases.append((label, actual, expected, tolerances))
        if not grad:
            return
        of_cpu, of_xla = gradients(expected, cpu), gradients(actual, xla)
        if not of_cpu[0] or not of_cpu[1]:
            return
        assert len(of_cpu[0]) == len(of_xla[0]), f"{label}: results that need a gradient differ"
        generator = torch.Generator().manual_seed(0)
        weights = [torch.rand(e.shape, generator=generator).to(e.dtype) for e in of_cpu[0]]
        grads_cpu = torch.autograd.grad(*of_cpu, weights, allow_unused=True)
        grads_xla = torch.autograd.grad(*of_xla, [w.to(DEVICE) for w in weights], allow_unused=True)
        for i, (x, c) in enumerate(zip(grads_xla, grads_cpu, strict=True)):
            assert (x is None) == (c is None), f"{label}: one device has gradient {i}, one has none"
            if c is not None:
                self._cases.append((f"{label}, gradient of input {i}", x, c, tolerances))

    def __exit__(self, kind: type | None, *_: Any) -> None:
        if kind is not None:
            return
        assert self._cases, "a batch without a comparison proves nothing"
        torch_xla.sync()
        wrong = []
        for label, actual, expected, tolerances in self._cases:
            try:
                assert_same(actual, expected, **tolerances)
            except AssertionError as e:
                wrong.append(f"{label}: {e}")
        assert not wrong, "\n".join([f"{len(wrong)} of {len(self._cases)} differ:", *wrong])


def check(
    fn: Callable[..., Any],
    *inputs: Any,
    grad: bool = True,
    dtypes: Sequence[torch.dtype | None] = (None,),
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Compares fn(*inputs) on both devices, once for each dtype that floating-point inputs take.

    Inputs are CPU tensors, containers of them, or plain values. With `grad`, the gradients of the
    floating-point inputs under a fixed random weighting of the results are compared too.
    """
    with Batch() as batch:
        for dtype in dtypes:
            batch.add(
                fn, *inputs, label=str(dtype or ""), grad=grad, dtype=dtype, rtol=rtol, atol=atol
            )
