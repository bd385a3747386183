"""PyTorch's databases of tests on xla: what comparing one entry in one dtype with the CPU finds."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import ForeachFuncInfo, OpInfo, SampleInput
from torch.utils._python_dispatch import TorchDispatchMode

from .harness import DEVICE, assert_same, gradients, host_calls, on_xla

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
# What the CPU computes in this dtype is as far from the truth as what xla computes: results are
# right if they are close to either the CPU's or those of the wider dtype, rounded.
WIDER = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}

# Not for this device, with the reason.
NOT_APPLICABLE = {
    "jiterator_unary": "CUDA source text",
    "jiterator_binary": "CUDA source text",
    "jiterator_binary_return_by_ref": "CUDA source text",
    "jiterator_4inputs_with_extra_args": "CUDA source text",
    "jiterator_2inputs_2outputs": "CUDA source text",
    "sparse.sampled_addmm": "sparse tensors",
    "sparse.mm": "sparse tensors",
    "to_sparse": "sparse tensors",
    "chalf": "XLA has no complex32",
    "_conversions.chalf": "XLA has no complex32",
}
# Their results are memory as it was found.
UNINITIALIZED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty"}
UNINITIALIZED |= {"new_empty_strided"}
# Indices of a sort that is not stable, of values that repeat.
ARBITRARY = {"argsort"}
# Only these many of their results are compared. Among equal elements PyTorch's devices choose
# different indices; a normalization's statistics have each device's own dtype, and its own shape
# where they are not used.
COMPARED_RESULTS = {
    "kthvalue": 1,
    "mode": 1,
    "topk": 1,
    "sort": 1,
    "native_batch_norm": 1,
    "native_layer_norm": 1,
    "_native_batch_norm_legit": 1,
    "_batch_norm_with_update": 1,
}
# Their arguments after the input stay on the CPU, as PyTorch demands on every device.
STAYS_ON_CPU = {"tensor_split"}


def _name(entry: OpInfo) -> str:
    """The operator's; a Python reference of it has the same traits."""
    return entry.name.removeprefix("_refs.")


def title(entry: OpInfo) -> str:
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else entry.name


def entries(database: Iterable[OpInfo]) -> dict[str, OpInfo]:
    return {title(e): e for e in database if _name(e) not in NOT_APPLICABLE}


ENTRIES = entries(op_db)


@dataclass
class Outcome:
    compared: int = 0
    wrong: list[str] = field(default_factory=list)
    host: set[str] = field(default_factory=set)  # operators that ran on the host

    def fail(self, label: str, why: object) -> None:
        self.wrong.append(f"{label}: {why}")


class _Randomness(TorchDispatchMode):
    """Whether an operator that draws random numbers ran inside."""

    seen = False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen |= torch.Tag.nondeterministic_seeded in function.tags
        return function(*args, **(kwargs or {}))


def moved(nest: Any, device: str, wider: bool = False) -> Any:
    """A copy of what is on the CPU; its tensors want a gradient as those of the source do."""

    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.is_meta:
                return value
            source = value.detach()
            if torch._debug_has_internal_overlap(source) == 1:  # strides that nothing may write to
                source = source.contiguous()
            if wider:
                source = source.to(WIDER.get(source.dtype, source.dtype))
            if device == DEVICE:
                copy = on_xla(source)
            else:
                copy = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype).copy_(
                    source
                )
            return copy.requires_grad_(value.requires_grad)
        if isinstance(value, torch.device):
            return torch.device(device)
        if isinstance(value, torch.dtype):
            return WIDER.get(value, value) if wider else value
        return "xla" if value == "cpu" and device == DEVICE else value

    return pytree.tree_map_only((torch.Tensor, torch.device, torch.dtype, str), one, nest)


@dataclass
class _Call:
    """One sample on one device."""

    input: Any
    args: Any
    kwargs: Any
    device: str

    @classmethod
    def of(cls, entry: OpInfo, sample: SampleInput, device: str, wider: bool = False) -> _Call:
        nest = (sample.input, list(sample.args), dict(sample.kwargs))
        there = moved(nest, device, wider)
        args = nest[1] if _name(entry) in STAYS_ON_CPU else there[1]
        return cls(there[0], args, there[2], device)

    def run(self, function: Callable[..., Any], **more: Any) -> Any:
        places = (torch.Tensor, torch.device)
        if any(isinstance(leaf, places) for leaf in pytree.tree_leaves((self.tensors, more))):
            return function(self.input, *self.args, **self.kwargs, **more)
        is_reference = function.__module__.startswith("torch._refs")
        if is_reference and "device" in inspect.signature(function).parameters:
            # Its default is the CPU.
            given = {"device": self.device, **self.kwargs, **more}
            return function(self.input, *self.args, **given)
        with torch.device(self.device):  # a factory that is told no device
            return function(self.input, *self.args, **self.kwargs, **more)

    @property
    def tensors(self) -> Any:
        return (self.input, self.args, self.kwargs)


def samples(
    entry: OpInfo, dtype: torch.dtype, limit: int | None, grad: bool, **options: Any
) -> list[SampleInput]:
    """The first samples of an entry, on the CPU."""

    def collect() -> list[SampleInput]:
        made = entry.sample_inputs("cpu", dtype, requires_grad=grad, **options)
        return list(itertools.islice(made, limit))

    # Making a sample seeds every generator of PyTorch, and each walks the stack of its caller: in a
    # thread of its own that stack is short, which makes this several times as fast.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(collect).result()


def _without_values(value: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: (tuple(t.shape), t.dtype), value)


# So many samples make one program; the time to compile it grows faster than their number.
SAMPLES_OF_A_PROGRAM = 16


class _Comparison:
    """Results of xla and of the CPU, compared some samples at a time."""

    def __init__(self, outcome: Outcome, **tolerances: Any) -> None:
        self.outcome, self.tolerances = outcome, tolerances
        self._cases: list[tuple[str, Any, Any, bool, Callable[[], Any]]] = []

    def add(
        self,
        label: str,
        actual: Any,
        expected: Any,
        values: bool,
        wide: Callable[[], Any],
    ) -> None:
        """`wide` gives the CPU's results in the wider dtypes."""
        self._cases.append((label, actual, expected, values, wide))
        if len(self._cases) == SAMPLES_OF_A_PROGRAM:
            self.finish()

    def finish(self) -> None:
        cases, self._cases = self._cases, []
        for label, actual, expected, values, wide in cases:
            self.outcome.compared += 1
            try:
                if not values:
                    found, wanted = _without_values(actual), _without_values(expected)
                    assert found == wanted, f"{found} != {wanted}"
                    continue
                try:
                    assert_same(actual, expected, **self.tolerances)
                except AssertionError:
                    assert_same(actual, _like(wide(), expected), **self.tolerances)
            except Exception as e:
                self.outcome.fail(label, f"{type(e).__name__}: {e}")


def _like(value: Any, model: Any) -> Any:
    def one(v: Any, m: Any) -> Any:
        return v.to(m.dtype) if isinstance(v, torch.Tensor) else v

    return pytree.tree_map(one, value, model)


def _both(
    outcome: Outcome, label: str, on_cpu: Callable[[], Any], on_xla: Callable[[], Any]
) -> tuple[Any, Any] | None:
    """What both devices give. None where they raise alike, or where only one does: a failure."""
    try:
        expected = on_cpu()
    except Exception as refusal:
        try:
            on_xla()
        except type(refusal):
            return None
        except Exception as e:
            outcome.fail(label, f"expected {type(refusal).__name__}, got {type(e).__name__}: {e}")
            return None
        outcome.fail(label, f"expected {type(refusal).__name__}: {refusal}, got a result")
        return None
    try:
        return on_xla(), expected
    except Exception as e:
        outcome.fail(label, f"{type(e).__name__}: {e}")
        return None


def _compared(entry: OpInfo, results: Any) -> Any:
    count = COMPARED_RESULTS.get(_name(entry))
    return results if count is None else tuple(results[:count])


def call(entry: OpInfo, sample: SampleInput, device: str) -> Any:
    """What a sample gives on a device."""
    return _Call.of(entry, sample, device).run(entry.op)


# Runs a sample on a device, in wider dtypes if asked, and gives what is to be compared.
Run = Callable[..., Any]


def _forward(entry: OpInfo, sample: SampleInput) -> Run:
    def run(device: str, wider: bool = False) -> Any:
        return _compared(entry, _Call.of(entry, sample, device, wider).run(entry.op))

    return run


class Gradients:
    """The gradients of results under one random weighting of them, whatever the device."""

    def __init__(self) -> None:
        self._weights: list[torch.Tensor] = []

    def of(self, results: Any, inputs: Any) -> Any:
        outputs, leaves = gradients(results, inputs)
        if not outputs or not leaves:
            return None
        if not self._weights:
            generator = torch.Generator().manual_seed(0)
            self._weights.extend(torch.rand(o.shape, generator=generator) for o in outputs)
        weights = [w.to(o.dtype).to(o.device) for w, o in zip(self._weights, outputs, strict=True)]
        return torch.autograd.grad(outputs, leaves, weights, allow_unused=True)


def _gradient(entry: OpInfo, sample: SampleInput) -> Run:
    weighted = Gradients()

    def run(device: str, wider: bool = False) -> Any:
        call = _Call.of(entry, sample, device, wider)
        results = sample.output_process_fn_grad(
            call.run(
                lambda x, *args, **kwargs: entry.gradcheck_wrapper(entry.op, x, *args, **kwargs)
            )
        )
        return weighted.of(results, call.tensors)

    return run


def _in_place(entry: OpInfo, sample: SampleInput) -> Run | None:
    """The in-place form: its result, and what it leaves in its input."""
    kind = list if isinstance(entry, ForeachFuncInfo) else torch.Tensor
    if not isinstance(sample.input, kind) or sample.broadcasts_input:
        return None

    def run(device: str, wider: bool = False) -> Any:
        call = _Call.of(entry, sample, device, wider)
        with torch.no_grad():
            return call.run(entry.inplace_variant), call.input

    return run


def _out(entry: OpInfo, sample: SampleInput) -> Run:
    """The out= form, into tensors of the right shape that hold something else."""

    def run(device: str, wider: bool = False) -> Any:
        call = _Call.of(entry, sample, device, wider)
        with torch.no_grad():
            model = _Call.of(entry, sample, "cpu", wider).run(entry.op)
            out = pytree.tree_map(lambda t: torch.full_like(t, 1, device=device), model)
            result = call.run(entry.op, out=out)
        return tuple(_compared(entry, pytree.tree_leaves(tree)) for tree in (result, out))

    return run


def _add(comparison: _Comparison, label: str, run: Run, values: bool) -> None:
    randomness = _Randomness()

    def on_cpu() -> Any:
        with randomness:
            return run("cpu")

    both = _both(comparison.outcome, label, on_cpu, lambda: run(DEVICE))
    if both is not None:
        values = values and not randomness.seen
        comparison.add(label, *both, values, lambda: run("cpu", wider=True))


def compare_runs(
    runs: Iterable[tuple[str, Run]], values: bool = True, **tolerances: Any
) -> Outcome:
    """Runs each on both devices; without `values` only shapes and dtypes must agree, as they must
    where random numbers are drawn."""
    outcome = Outcome()
    before = host_calls()
    comparison = _Comparison(outcome, **tolerances)
    for label, run in runs:
        _add(comparison, label, run, values)
    comparison.finish()
    outcome.host = {n for n, count in host_calls().items() if count != before.get(n, 0)}
    return outcome


CHECKS = {"forward": _forward, "gradient": _gradient, "in-place": _in_place, "out": _out}


def applies(entry: OpInfo, dtype: torch.dtype, check: str) -> bool:
    if dtype not in entry.supported_dtypes("cpu"):
        return False
    if check == "gradient":
        return entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu")
    if check == "in-place":
        return entry.inplace_variant is not None
    return entry.supports_out if check == "out" else True


def compare(
    entry: OpInfo,
    dtype: torch.dtype,
    check: str,
    limit: int | None = None,
    sampling: dict[str, Any] | None = None,
    **tolerances: Any,
) -> Outcome:
    """Runs the first `limit` samples of an entry on both devices."""
    found = samples(entry, dtype, limit, check == "gradient", **(sampling or {}))
    runs = ((i, CHECKS[check](entry, sample)) for i, sample in enumerate(found))
    labelled = ((f"{check}, {dtype}, sample {i}", run) for i, run in runs if run is not None)
    values = _name(entry) not in UNINITIALIZED | ARBITRARY
    return compare_runs(labelled, values, **tolerances)


def compare_errors(entry: OpInfo) -> Outcome:
    """The entry's wrong calls: the class of exception that the CPU raises, and PyTorch's message,
    from the call or, where only the values are wrong, from reading the result. A reference may have
    another message than its operator on the CPU too."""
    outcome = Outcome()
    for i, wrong in enumerate(entry.error_inputs("cpu")):
        sample = wrong.sample_input
        label = f"error {i}"
        try:
            _Call.of(entry, sample, "cpu").run(entry.op)
            continue  # an error of other devices
        except Exception as e:
            kind, words = type(e), str(e)  # not e itself: its frames would keep the tensors
        outcome.compared += 1
        pattern = wrong.error_regex if re.search(wrong.error_regex, words) else re.escape(words)
        try:
            result = _Call.of(entry, sample, DEVICE).run(entry.op)
            pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, result)
        except kind as e:
            if not re.search(pattern, str(e)):
                outcome.fail(label, f"expected a message like {pattern!r}, got {e}")
        except Exception as e:
            outcome.fail(label, f"expected {kind.__name__}, got {type(e).__name__}: {e}")
        else:
            outcome.fail(label, f"expected {kind.__name__}: {words}, got a result")
    return outcome
