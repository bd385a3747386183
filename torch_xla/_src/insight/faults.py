"""Where a step first goes wrong: NaN, Inf, or a number that PyTorch's CPU kernels do not give."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torch_xla._src.insight.kept_runs import Call, KeptRun, leaves, runs_of, runs_to_examine

# Largest difference that counts as equal, as a share of the largest element: sums of thousands of
# terms in another order.
_TOLERANCES = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
_CANCELLED = 1e-2  # share of the operands that counts like the result
_WHOLE = 0.05  # of whole programs, in which small differences grow
_AT_ONCE = 32  # calls that are one program
_SHOWN = 6  # operands and results in the text of a fault
# Their second result is where the first was found; of equal elements, any may be named.
_ANY_OF_EQUALS = {
    "aten::kthvalue",
    "aten::median.dim",
    "aten::mode",
    "aten::nanmedian.dim",
    "aten::sort",
    "aten::topk",
}
KINDS = ("nan", "inf", "difference")


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Figures of the elements of a tensor.

    Attributes:
        dtype, shape: The tensor's.
        least, mean, largest: Of those that are finite; None where none is.
        nans, infs: How many are none.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    least: float | None
    mean: float | None
    largest: float | None
    nans: int
    infs: int

    @staticmethod
    def of(tensor: torch.Tensor) -> Statistics:
        x = tensor.detach()
        x = x.abs() if x.is_complex() else x
        x = x.to(torch.float64)
        finite = x[torch.isfinite(x)]
        some = finite.numel() > 0
        return Statistics(
            dtype=tensor.dtype,
            shape=tuple(tensor.shape),
            least=finite.min().item() if some else None,
            mean=finite.mean().item() if some else None,
            largest=finite.max().item() if some else None,
            nans=int(torch.isnan(x).sum()),
            infs=int(torch.isinf(x).sum()),
        )

    def __str__(self) -> str:
        text = f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"
        if self.least is not None:
            text += f" from {self.least:.4g} to {self.largest:.4g}, mean {self.mean:.4g}"
        for count, name in ((self.nans, "NaN"), (self.infs, "Inf")):
            if count:
                text += f", {count} of {math.prod(self.shape)} {name}"
        return text


@dataclasses.dataclass(frozen=True)
class Fault:
    """The first call of a step that gave something wrong.

    Attributes:
        kind: "nan" or "inf": its operands had none, or they are data in which it was already;
            "difference": PyTorch's CPU kernel gives something else for the same operands;
            "program": no call alone gives something else, but the program as a whole does, so that
            a compiler's optimization is at fault.
        what: The fault in words.
        operator: "aten::log".
        line: The user's line that recorded the call, "train.py:31 (Net.forward)".
        frames: Of the user's program, innermost first: the line alone, or the stack where
            XLA_IR_DEBUG is set.
        module: The module or optimizer that did, "Net.layers.3"; "" where none is known.
        number: Of the call among those of its run.
        run: Which run of a program, "sync of train.py:40 (train)".
        operands, results: What the call was given and what it gave.
    """

    kind: str
    what: str
    operator: str
    line: str
    frames: tuple[str, ...]
    module: str
    number: int
    run: str
    operands: list[Statistics]
    results: list[Statistics]

    def __str__(self) -> str:
        place = "".join(
            [f" at {self.line}" if self.line else "", f" in {self.module}" if self.module else ""]
        )
        text = [f"{self.operator}{place}: {self.what}."]
        for name, all_of_them in (("operand", self.operands), ("result", self.results)):
            text += [f"  {name} {i}: {s}" for i, s in enumerate(all_of_them[:_SHOWN])]
            if len(all_of_them) > _SHOWN:
                text.append(f"  and {len(all_of_them) - _SHOWN} other {name}s")
        return "\n".join(text + [f"  call {self.number} of the {self.run}"])


def first_fault(
    step: Callable[..., Any] | None = None,
    *args: Any,
    kinds: tuple[str, ...] = KINDS,
    tolerance: float | None = None,
    **kwargs: Any,
) -> Fault | None:
    """Runs a step call by call and returns the first that gives NaN, Inf or something else than
    PyTorch's CPU kernels.

    Each call gets the operands that it had on the device, so that what an earlier call has done
    is not held against it. Inf is no fault of a call that is given it as a number (`masked_fill`
    with `-inf`). Random calls, control flow and operators without a kernel for the CPU are not
    compared. The step is called once, so a training step trains.

    Args:
        step: A function that records a step; without it, the runs that `keep_runs` keeps.
        args, kwargs: Its arguments.
        kinds: What to look for, of "nan", "inf" and "difference".
        tolerance: Of single calls, the largest difference that counts as equal, as a share of the
            largest element of the result and of a hundredth of the largest operand, which sums may
            cancel. By default 1e-9 for float64, 1e-4 for float32, 1e-2 for float16 and 5e-2 for
            bfloat16. Integers have to be equal. A whole program may differ by 5e-2 from its calls.

    Returns:
        The fault, or None.

    Raises:
        ValueError: Nothing ran, or `kinds` has another word.

    Example:
        >>> print(torch_xla.debug.first_fault(train_step, batch))
        aten::log at model.py:12 (Net.forward) in Net: gives NaN, its operands have none.
          operand 0: float32[8, 4] from -0.3 to 1.7, mean 0.6
    """
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise ValueError(f"first_fault: expected kinds of {KINDS}, got {unknown[0]!r}.")
    of_step = None if step is None else runs_of(step, *args, **kwargs)
    for run in runs_to_examine("first_fault", of_step):
        fault = _Search(run, kinds, tolerance).first()
        if fault is not None:
            return fault
    return None


def raise_nans(run: Any) -> None:
    """Raises for a run (`_XLAC._KeptRun`) that gave NaN."""
    kept = KeptRun(run)
    fault = _Search(kept, ("nan",), None).origin()
    if fault is None:
        raise FloatingPointError(
            f"NaN in the {kept}, which did not make it again when it was searched."
        )
    raise FloatingPointError(f"NaN: {fault}")


class _Search:
    def __init__(self, run: KeptRun, kinds: tuple[str, ...], tolerance: float | None) -> None:
        self._run = run
        self._kinds = kinds
        self._tolerance = tolerance
        self._replay = run.replay()
        self._outputs: dict[tuple[int, int], torch.Tensor] = {}  # the run's results
        self._given: Fault | None = None  # the first call that data of before the step spoils
        # Results that matter: kernels leave others as they like.
        self._read = {place for call in run.calls for place in call.places} | set(run.results)

    def first(self) -> Fault | None:
        for i in self._computed(len(self._run.calls)):
            fault = self._look_at(i)
            if fault is not None:
                return fault
        if self._given is not None:
            return self._given
        return self._whole() if "difference" in self._kinds else None

    def origin(self) -> Fault | None:
        """The first call that makes a NaN which the run gives. Others may be of no account, as one
        that `nan_to_num` replaces."""
        calls = self._run.calls
        bad: set[tuple[int, int]] = set()
        for i in self._computed(len(calls)):
            results = self._replay.results(i)
            found = [k for k, t in enumerate(results) if t is not None and _has(t, torch.isnan)]
            bad |= {(i, k) for k in found}
            data = [k for k, place in enumerate(calls[i].places) if place[0] < 0]
            if found and data:
                operands = self._replay.operands(i)
                bad |= {calls[i].places[k] for k in data if _has(operands[k], torch.isnan)}
        makers, given = set(), set()
        ahead = [place for place in self._run.results if place in bad and place[0] >= 0]
        known = set(ahead)
        while ahead:
            number, _ = ahead.pop()
            sources = {place for place in calls[number].places if place in bad}
            if not sources:
                makers.add(number)
            elif all(place[0] < 0 for place in sources):
                given.add(number)
            ahead += [place for place in sources - known if place[0] >= 0]
            known |= sources
        if not makers and not given:
            return None
        return _Search(self._run, ("nan",), None)._at(min(makers or given))

    def _at(self, number: int) -> Fault | None:
        for i in self._computed(number + 1):
            if i == number:
                return self._look_at(number) or self._given
        return None

    def _computed(self, count: int) -> Iterator[int]:
        """The numbers of the first calls, whose results are computed some at once."""
        for begin in range(0, count, _AT_ONCE):
            chunk = range(begin, min(begin + _AT_ONCE, len(self._run.calls)))
            self._replay.compute(list(chunk), all_results=True)
            yield from range(begin, min(chunk.stop, count))

    def _look_at(self, number: int) -> Fault | None:
        call = self._run.calls[number]
        results = self._replay.results(number)
        for of, k in self._run.results:
            if of == number:
                self._outputs[of, k] = results[k]
        given = [t for t in results if t is not None]
        operands = None
        for kind, is_bad in (("nan", torch.isnan), ("inf", torch.isinf)):
            if kind not in self._kinds or not any(_has(t, is_bad) for t in given):
                continue
            operands = operands or self._replay.operands(number)
            name = {"nan": "NaN", "inf": "Inf"}[kind]
            if bad := [k for k, t in enumerate(operands) if t is not None and _has(t, is_bad)]:
                if self._given is None and call.places[bad[0]][0] < 0:
                    what = f"is given {name}: its operand {bad[0]} is data of before the step"
                    self._given = self._fault(kind, what, number, operands, results)
                continue
            if kind == "inf" and self._is_given_inf(number):
                continue
            what = f"gives {name}, its operands have none"
            if kind == "nan" and self._has_number(number, math.isnan):
                what = "gives NaN, which is a number among its arguments"
            return self._fault(kind, what, number, operands, results)
        if "difference" in self._kinds and not call.random:
            operands = operands or self._replay.operands(number)
            return self._compare(number, operands, results)
        return None

    def _is_given_inf(self, number: int) -> bool:
        """As a number among its arguments, or as an operand."""
        if self._has_number(number, math.isinf):
            return True
        # One that makes tensors of nothing, or reduces nothing.
        return not any(t.is_floating_point() and t.numel() > 0 for t in self._operands_of(number))

    def _has_number(self, number: int, is_it: Callable[[float], bool]) -> bool:
        return any(
            isinstance(x, float) and is_it(x)
            for _, arguments, _ in self._run.parts(number)
            for x in leaves(arguments)
        )

    def _operands_of(self, number: int) -> list[torch.Tensor]:
        return self._run.calls[number].operands

    def _compare(
        self, number: int, operands: list[torch.Tensor], results: list[torch.Tensor]
    ) -> Fault | None:
        try:
            expected = self._replay.on_cpu(number, operands)
        except NotImplementedError:
            return None
        except RuntimeError as e:
            what = f"PyTorch's CPU kernel raises: {str(e).splitlines()[0]}"
            return self._fault("difference", what, number, operands, results)
        for k, (result, other) in enumerate(zip(results, expected, strict=True)):
            if result is None or other is None or (number, k) not in self._read:
                continue
            if not other.numel():  # statistics that a kernel has no use for
                continue
            tied = k == 1 and self._run.calls[number].operator in _ANY_OF_EQUALS
            if tied and _points(operands[0], results[0], result):
                continue
            what = difference(result, other, self._tolerance, operands)
            if what:
                what = f"PyTorch's CPU kernel gives another result {k}: {what}"
                return self._fault("difference", what, number, operands, results)
        return None

    def _whole(self) -> Fault | None:
        """The run as one program against what its calls have given."""
        replay = self._run.replay()
        replay.compute(list(range(len(self._run.calls))))
        for number in sorted({number for number, _ in self._outputs}):
            results = replay.results(number)
            for k, result in enumerate(results):
                if (number, k) not in self._outputs:
                    continue
                # What the run gives beside it tells what noise is.
                beside = list(self._outputs.values())
                what = difference(result, self._outputs[number, k], _WHOLE, beside)
                if what:
                    what = (
                        "computed with the rest of its program it has another result "
                        f"{k} than call by call: {what}"
                    )
                    return self._fault("program", what, number, [], [result])
        return None

    def _fault(
        self,
        kind: str,
        what: str,
        number: int,
        operands: list[torch.Tensor],
        results: list[torch.Tensor],
    ) -> Fault:
        call: Call = self._run.calls[number]
        return Fault(
            kind=kind,
            what=what,
            operator=call.operator,
            line=call.line,
            frames=call.frames,
            module=call.module,
            number=number,
            run=str(self._run),
            operands=[Statistics.of(t) for t in operands if t is not None],
            results=[Statistics.of(t) for t in results if t is not None],
        )


def _has(tensor: torch.Tensor, is_bad: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    tensor = _computable(tensor)
    if torch.isfinite(tensor.sum()):  # one pass where all is well
        return False
    return bool(is_bad(tensor).any())


def _points(values: torch.Tensor, chosen: torch.Tensor, indices: torch.Tensor) -> bool:
    """True if indices along one dimension choose just these values."""
    for dim in range(values.dim()):
        index, wanted = indices, chosen
        if indices.dim() < values.dim():
            index, wanted = indices.unsqueeze(dim), chosen.unsqueeze(dim)
        try:
            found = values.gather(dim, index)
        except RuntimeError:  # of other sizes, or beyond the end
            continue
        if torch.allclose(found, wanted, rtol=0, atol=0, equal_nan=True):
            return True
    return False


def _computable(tensor: torch.Tensor) -> torch.Tensor:
    """In a dtype that PyTorch's CPU kernels compute in, which those of 8 bits are not."""
    if tensor.is_floating_point() and tensor.element_size() == 1:
        return tensor.to(torch.float32)
    return tensor


def _largest(tensor: torch.Tensor | None) -> float:
    """The largest finite magnitude."""
    if tensor is None or not tensor.numel():
        return 0.0
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    x = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    largest = max(abs(end.item()) for end in x.aminmax())
    if math.isfinite(largest):
        return largest
    finite = x[torch.isfinite(x)].abs()
    return finite.max().item() if finite.numel() else 0.0


def difference(
    result: torch.Tensor,
    expected: torch.Tensor,
    tolerance: float | None = None,
    operands: Sequence[torch.Tensor | None] = (),
) -> str:
    """The difference of two CPU tensors, in words; "" where they are equal enough.

    Sums of `operands` whose terms cancel each other may differ by more than their own size tells.
    """
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return (
            f"{result.dtype}{list(result.shape)}, expected {expected.dtype}{list(expected.shape)}"
        )
    if not (result.is_floating_point() or result.is_complex()):
        differ = int((result != expected).sum())
        return f"{differ} of {result.numel()} elements differ" if differ else ""
    bound = _TOLERANCES.get(result.dtype, 0.1) if tolerance is None else tolerance
    result, expected = _computable(result), _computable(expected)
    operands = [t if t is None else _computable(t) for t in operands]
    scale = _largest(expected)
    if not result.is_complex() and _are_near(result, expected, bound * scale):
        return ""
    scale += _CANCELLED * max(map(_largest, operands), default=0.0)
    wide = torch.complex128 if result.is_complex() else torch.float64
    x, y = result.to(wide), expected.to(wide)
    same = (x == y) | (torch.isnan(x) & torch.isnan(y))
    gap = torch.where(same, torch.zeros_like(x), x - y).abs().nan_to_num(nan=math.inf)
    if not gap.numel() or gap.max().item() <= bound * scale:
        return ""
    index = tuple(int(i) for i in torch.unravel_index(gap.argmax(), gap.shape))
    return (
        f"{result[index].item():.6g} at {list(index)}, expected {expected[index].item():.6g}, "
        f"the largest of {int((gap > bound * scale).sum())} such elements of {result.numel()}"
    )


def _are_near(x: torch.Tensor, y: torch.Tensor, most: float) -> bool:
    """True if no elements differ by more, in one pass; False where one is not finite."""
    if not x.numel():
        return True
    least, largest = (x - y).aminmax()
    return max(-least.item(), largest.item()) <= most
