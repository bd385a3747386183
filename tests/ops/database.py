"""PyTorch's databases of tests on xla: what comparing one entry in one dtype with the CPU finds."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.testing._internal import common_methods_invocations as databases
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core
from torch.testing._internal.opinfo.core import ForeachFuncInfo, OpInfo, SampleInput
from torch.utils._python_dispatch import TorchDispatchMode

from . import database_notes, operands
from .harness import (
    DEVICE,
    NoDigits,
    assert_as_close,
    assert_same,
    assert_same_strides,
    gradients,
    host_calls,
)

# Each maker of samples looks for the name of PyTorch's own test on the stack, which is deep.
for _module in (common_utils, core):
    _module.extract_test_fn = lambda: None

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
# The branch of a complex logarithm of a sum depends on the order of the sum.
LOGARITHMS = {"logcumsumexp"}
# Their arguments after the input stay on the CPU, as PyTorch demands on every device.
STAYS_ON_CPU = {"tensor_split"}


def _name(entry: OpInfo) -> str:
    """The operator's; a Python reference of it has the same traits."""
    return entry.name.removeprefix("_refs.")


def title(entry: OpInfo) -> str:
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else entry.name


def entries(database: Iterable[OpInfo]) -> dict[str, OpInfo]:
    return {title(e): e for e in database if _name(e) not in NOT_APPLICABLE}


ENTRIES = entries(databases.op_db)
FOREACH_ENTRIES = entries(
    itertools.chain.from_iterable(
        getattr(databases, f"foreach_{kind}_op_db")
        for kind in ("unary", "binary", "pointwise", "reduce", "other")
    )
)


@dataclass
class Outcome:
    compared: int = 0  # results that hold at least one value
    shapes: int = 0  # results of which only shapes can be compared: random numbers, say
    empty: int = 0  # results without an element, inputs without a gradient
    noise: int = 0  # results of which the CPU itself has no digit of the truth
    refused: int = 0  # calls that both devices refuse alike, with the same words
    wrong: list[str] = field(default_factory=list)
    host: set[str] = field(default_factory=set)  # operators that ran on the host

    def fail(self, label: str, why: object) -> None:
        self.wrong.append(f"{label}: {why}")

    def check(self) -> None:
        assert not self.wrong, "\n".join(self.wrong)
        nothing = f"nothing to compare: {self.empty} results were empty or had no gradient"
        nothing += f", {self.noise} were noise"
        assert self.compared or self.shapes or self.refused, nothing


class _Randomness(TorchDispatchMode):
    """Whether an operator that draws random numbers ran inside."""

    seen = False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen |= torch.Tag.nondeterministic_seeded in function.tags
        return function(*args, **(kwargs or {}))


def _placed(source: torch.Tensor, device: str) -> torch.Tensor:
    """A copy with the strides of the source. What an expanded dimension repeats lies there once."""
    once = tuple(
        slice(0, 1 if stride == 0 and size > 1 else None)
        for stride, size in zip(source.stride(), source.shape, strict=True)
    )
    single = source[once]
    copy = torch.empty_strided(single.shape, single.stride(), dtype=source.dtype, device=device)
    copy.copy_(single)
    return copy if single.shape == source.shape else copy.expand(source.shape)


def moved(nest: Any, device: str, wider: bool = False, operand: str = "uploaded") -> Any:
    """A copy of what is on the CPU; its tensors want a gradient as those of the source do, and are
    made as `operand` says (operands.py)."""

    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.is_meta:
                return value
            source = value.detach()
            if wider:
                source = source.to(WIDER.get(source.dtype, source.dtype))
            copy = operands.made(operand, source, lambda t: _placed(t, device))
            return copy.detach().requires_grad_(value.requires_grad)
        if isinstance(value, torch.device):
            return torch.device(device)
        if isinstance(value, torch.dtype):
            return WIDER.get(value, value) if wider else value
        return "xla" if value == "cpu" and device == DEVICE else value

    return pytree.tree_map_only((torch.Tensor, torch.device, torch.dtype, str), one, nest)


@dataclass
class Call:
    """One sample on one device."""

    input: Any
    args: Any
    kwargs: Any
    device: str

    @classmethod
    def of(
        cls,
        entry: OpInfo,
        sample: SampleInput,
        device: str,
        wider: bool = False,
        operand: str = "uploaded",
    ) -> Call:
        nest = (sample.input, list(sample.args), dict(sample.kwargs))
        there = moved(nest, device, wider, operand)
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


def samples(entry: OpInfo, dtype: torch.dtype, grad: bool, **options: Any) -> Iterator[SampleInput]:
    """The samples of an entry, on the CPU."""
    yield from entry.sample_inputs("cpu", dtype, requires_grad=grad, **options)


def tensors_of(sample: SampleInput) -> list[torch.Tensor]:
    """Those that hold values."""
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return [t for t in leaves if isinstance(t, torch.Tensor) and not t.is_meta]


def _without_values(value: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: (tuple(t.shape), t.dtype), value)


def _holds_values(results: Any) -> bool:
    return any(
        leaf.numel() > 0 if isinstance(leaf, torch.Tensor) else leaf is not None
        for leaf in pytree.tree_leaves(results)
    )


# So many samples make one program; the time to compile it grows faster than their number.
SAMPLES_OF_A_PROGRAM = 16


class _Comparison:
    """Results of xla and of the CPU, compared some samples at a time."""

    def __init__(self, outcome: Outcome, **tolerances: Any) -> None:
        self.outcome, self.tolerances = outcome, tolerances
        self._cases: list[tuple[str, Any, Any, bool, bool, Callable[[], Any]]] = []

    def add(
        self,
        label: str,
        actual: Any,
        expected: Any,
        values: bool,
        strides: bool,
        wide: Callable[[], Any],
    ) -> None:
        """`wide` gives the CPU's results in the wider dtypes."""
        if not _holds_values(expected):
            self.outcome.empty += 1
        elif values:
            self.outcome.compared += 1
        else:
            self.outcome.shapes += 1
        self._cases.append((label, actual, expected, values, strides, wide))
        if len(self._cases) == SAMPLES_OF_A_PROGRAM:
            self.finish()

    def finish(self) -> None:
        cases, self._cases = self._cases, []
        for label, actual, expected, values, strides, wide in cases:
            try:
                if not values:
                    found, wanted = _without_values(actual), _without_values(expected)
                    assert found == wanted, f"{found} != {wanted}"
                    continue
                try:
                    assert_same(actual, expected, **self.tolerances)
                except AssertionError:
                    _compare_with_truth(actual, expected, wide(), self.tolerances)
                if strides:
                    assert_same_strides(actual, expected)
            except NoDigits:
                self.outcome.compared -= 1
                self.outcome.noise += 1
            except Exception as e:
                self.outcome.fail(label, f"{type(e).__name__}: {e}")


def _compare_with_truth(actual: Any, expected: Any, truth: Any, tolerances: Any) -> None:
    try:
        assert_same(actual, _like(truth, expected), **tolerances)
    except AssertionError as difference:
        try:
            assert_as_close(actual, expected, truth)
        except NoDigits:
            raise
        except AssertionError as distance:
            raise AssertionError(f"{difference}\n{distance}") from None


def _like(value: Any, model: Any) -> Any:
    def one(v: Any, m: Any) -> Any:
        return v.to(m.dtype) if isinstance(v, torch.Tensor) else v

    return pytree.tree_map(one, value, model)


class Senseless(Exception):
    """The CPU refuses a call whose values are not those of the sample."""


# What the messages of both devices begin with alike.
WORDS_COMPARED = 3


def _same_words(found: str, wanted: str) -> bool:
    if found.split()[:WORDS_COMPARED] == wanted.split()[:WORDS_COMPARED]:
        return True
    pairs = database_notes.OTHER_WORDS
    return any(found.startswith(ours) and wanted.startswith(theirs) for ours, theirs in pairs)


def _both(
    outcome: Outcome, label: str, on_cpu: Callable[[], Any], on_xla: Callable[[], Any]
) -> tuple[Any, Any] | None:
    """What both devices give. None where they raise alike, or where only one does: a failure."""
    try:
        expected = on_cpu()
    except Senseless:
        return None
    except Exception as refusal:
        wanted = f"{type(refusal).__name__}: {refusal}"
        try:
            on_xla()
        except Exception as e:
            alike = type(e) is type(refusal)
            if alike and isinstance(e, RuntimeError):
                alike = _same_words(str(e), str(refusal))
            if alike:
                outcome.refused += 1
            else:
                outcome.fail(label, f"expected {wanted}, got {type(e).__name__}: {e}")
            return None
        outcome.fail(label, f"expected {wanted}, got a result")
        return None
    try:
        return on_xla(), expected
    except Exception as e:
        outcome.fail(label, f"{type(e).__name__}: {e}")
        return None


def _up_to_turns(logarithm: torch.Tensor) -> Any:
    """What the branches of a complex logarithm have in common."""
    if not logarithm.is_complex():
        return logarithm
    phase = logarithm.imag
    return logarithm.real, torch.polar(torch.ones_like(phase), phase)


def what_is_compared(entry: OpInfo, results: Any) -> Any:
    if _name(entry) in LOGARITHMS:
        return pytree.tree_map_only(torch.Tensor, _up_to_turns, results)
    count = COMPARED_RESULTS.get(_name(entry))
    return results if count is None else tuple(results[:count])


def call(entry: OpInfo, sample: SampleInput, device: str) -> Any:
    """What a sample gives on a device."""
    return Call.of(entry, sample, device).run(entry.op)


# Runs a sample on a device, in wider dtypes if asked, and gives what is to be compared.
Run = Callable[..., Any]


def _forward(entry: OpInfo, sample: SampleInput, operand: str = "uploaded") -> Run:
    def run(device: str, wider: bool = False) -> Any:
        return what_is_compared(entry, Call.of(entry, sample, device, wider, operand).run(entry.op))

    return run


def _irregular(shape: torch.Size) -> torch.Tensor:
    """Numbers between 0 and 1 without a pattern; random ones would make _Randomness take the
    operator for one that draws them. Every dtype holds them, so that they are the same in a wider
    one."""
    n = torch.arange(shape.numel(), dtype=torch.float64)
    return (((n * 0.6180339887498949 + 0.1) % 1 * 128).ceil() / 128).view(shape)


class Gradients:
    """The gradients of results under one weighting of them, whatever the device: irregular numbers,
    or a weighting that is made in the program (operands.py)."""

    def __init__(self, operand: str = "uploaded") -> None:
        self._operand = operand

    def of(self, results: Any, inputs: Any) -> Any:
        outputs, leaves = gradients(results, inputs)
        if not outputs or not leaves:
            return None
        weights = [
            moved(_irregular(o.shape).to(o.dtype), o.device.type, operand=self._operand)
            for o in outputs
        ]
        return torch.autograd.grad(outputs, leaves, weights, allow_unused=True)


def _gradient(entry: OpInfo, sample: SampleInput, operand: str = "uploaded") -> Run:
    weighted = Gradients(operands.cotangent_for(operand))

    def run(device: str, wider: bool = False) -> Any:
        call = Call.of(entry, sample, device, wider, operand)
        results = sample.output_process_fn_grad(
            call.run(
                lambda x, *args, **kwargs: entry.gradcheck_wrapper(entry.op, x, *args, **kwargs)
            )
        )
        return weighted.of(results, call.tensors)

    return run


def _in_program(
    entry: OpInfo, found: Iterable[SampleInput], check: str, operand: str
) -> Iterator[tuple[str, Run]]:
    """Runs of the samples with tensors made in their program, where that says anything of them."""
    for i, sample in enumerate(found):
        if not any(operands.differs(operand, t) for t in tensors_of(sample)):
            continue
        run = CHECKS[check](entry, sample, operand)

        def on(device: str, wider: bool = False, run: Run = run) -> Any:
            try:
                return run(device, wider)
            except Exception as e:
                raise e if device == DEVICE else Senseless from e

        yield f"{check}, {operand}, sample {i}", on


def _in_place(entry: OpInfo, sample: SampleInput) -> Run | None:
    """The in-place form: its result, and what it leaves in its input."""
    kind = list if isinstance(entry, ForeachFuncInfo) else torch.Tensor
    if not isinstance(sample.input, kind) or sample.broadcasts_input:
        return None

    def run(device: str, wider: bool = False) -> Any:
        call = Call.of(entry, sample, device, wider)
        with torch.no_grad():
            return call.run(entry.inplace_variant), call.input

    return run


def _out(entry: OpInfo, sample: SampleInput) -> Run:
    """The out= form, into tensors of the right shape that hold something else."""

    def run(device: str, wider: bool = False) -> Any:
        call = Call.of(entry, sample, device, wider)
        with torch.no_grad():
            model = Call.of(entry, sample, "cpu", wider).run(entry.op)
            out = pytree.tree_map(lambda t: torch.full_like(t, 1, device=device), model)
            result = call.run(entry.op, out=out)
        return tuple(what_is_compared(entry, pytree.tree_leaves(tree)) for tree in (result, out))

    return run


def _add(comparison: _Comparison, label: str, run: Run, values: bool, strides: bool) -> None:
    randomness = _Randomness()

    def on_cpu() -> Any:
        with randomness:
            return run("cpu")

    both = _both(comparison.outcome, label, on_cpu, lambda: run(DEVICE))
    if both is not None:
        values = values and not randomness.seen
        comparison.add(label, *both, values, strides, lambda: run("cpu", wider=True))


def compare_runs(
    *groups: tuple[Iterable[tuple[str, Run]], int | None],
    values: bool = True,
    strides: bool = False,
    **tolerances: Any,
) -> Outcome:
    """Runs each on both devices, of each group until so many gave something to compare. Without
    `values` only shapes and dtypes must agree, as they must where random numbers are drawn."""
    outcome = Outcome()
    before = host_calls()
    comparison = _Comparison(outcome, **tolerances)
    for runs, limit in groups:
        start = outcome.compared + outcome.shapes
        for label, run in runs:
            if limit is not None and outcome.compared + outcome.shapes - start >= limit:
                break
            _add(comparison, label, run, values, strides)
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


def has_values(entry: OpInfo) -> bool:
    """Whether PyTorch says what the results of an entry are."""
    return _name(entry) not in UNINITIALIZED | ARBITRARY


def compare(
    entry: OpInfo,
    dtype: torch.dtype,
    check: str,
    limit: int | None = None,
    sampling: dict[str, Any] | None = None,
    in_program: Mapping[str, int] | None = None,
    strides: bool = True,
    **tolerances: Any,  # of assert_same
) -> Outcome:
    """Runs samples of an entry on both devices, until `limit` of them gave something to compare;
    then, for each way of `in_program`, some with their tensors made in the program that way."""
    ways = in_program or {}
    made = samples(entry, dtype, check == "gradient", **(sampling or {}))
    first, *others = itertools.tee(made, 1 + len(ways))
    runs = ((i, CHECKS[check](entry, sample)) for i, sample in enumerate(first))
    groups = [(((f"{check}, {dtype}, sample {i}", r) for i, r in runs if r is not None), limit)]
    for found, (way, few) in zip(others, ways.items(), strict=True):
        groups.append((_in_program(entry, found, check, way), few))
    # A gradient's layout is that of whatever the last step of the formula was.
    strides = strides and check != "gradient"
    return compare_runs(*groups, values=has_values(entry), strides=strides, **tolerances)


def compare_errors(entry: OpInfo) -> Outcome:
    """The entry's wrong calls: the class of exception that the CPU raises, and PyTorch's message,
    from the call or, where only the values are wrong, from reading the result. A reference may have
    another message than its operator on the CPU too."""
    outcome = Outcome()
    for i, wrong in enumerate(entry.error_inputs("cpu")):
        sample = wrong.sample_input
        label = f"error {i}"
        try:
            Call.of(entry, sample, "cpu").run(entry.op)
            continue  # an error of other devices
        except Exception as e:
            kind, words = type(e), str(e)  # not e itself: its frames would keep the tensors
        outcome.compared += 1
        pattern = wrong.error_regex if re.search(wrong.error_regex, words) else re.escape(words)
        try:
            result = Call.of(entry, sample, DEVICE).run(entry.op)
            pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, result)
        except kind as e:
            if not re.search(pattern, str(e)):
                outcome.fail(label, f"expected a message like {pattern!r}, got {e}")
        except Exception as e:
            outcome.fail(label, f"expected {kind.__name__}, got {type(e).__name__}: {e}")
        else:
            outcome.fail(label, f"expected {kind.__name__}: {words}, got a result")
    return outcome
