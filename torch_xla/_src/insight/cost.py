"""The cost of a program: the time of its lines, modules and operators, and their limits."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._src.insight.kept_runs import (
    Call,
    KeptRun,
    barrier,
    keeping,
    kept_runs,
    leaves,
    runs_of_second,
    runs_to_examine,
)

_SECONDS = 0.02  # for each part of a program; three runs at least


@dataclasses.dataclass(frozen=True)
class Machine:
    """The device's best rates, as measured here.

    Attributes:
        operations: Floating-point operations in a second, of a product of large matrices, by dtype.
        bandwidth: Bytes in a second, read and written by an addition to a large tensor.
        launch: Seconds that the smallest program takes.
    """

    operations: dict[torch.dtype, float]
    bandwidth: float
    launch: float


@dataclasses.dataclass
class Row:
    """A line, module or operator of a program.

    Attributes:
        name: Which.
        seconds: What its calls take.
        flops: Floating-point operations, by PyTorch's formulas for products, convolutions and
            attention; one for each element of all else.
        bytes: That its calls read and write.
        limit: Seconds that the machine needs for that at best.
        calls: How many.
    """

    name: str
    seconds: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    limit: float = 0.0
    calls: int = 0


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a step. `print` shows the slowest.

    Attributes:
        seconds: That its programs take, each run as a whole.
        lines, modules, operators: The slowest first. Times are those of the parts run alone, and
            their sum is `seconds_of_parts`: what the compiler would have computed together with
            other lines writes and reads memory more often there.
        programs: How many the step runs.
        machine: Whose limits they are compared with.
    """

    seconds: float
    seconds_of_parts: float
    lines: list[Row]
    modules: list[Row]
    operators: list[Row]
    programs: int
    machine: Machine

    def __str__(self) -> str:
        return self.text()

    def text(self, most: int = 12) -> str:
        """Tables of lines, modules and operators, of at most `most` rows each."""
        rows = self.lines
        flops, moved = sum(r.flops for r in rows), sum(r.bytes for r in rows)
        limit = sum(r.limit for r in rows)
        programs = "1 program" if self.programs == 1 else f"{self.programs} programs"
        head = [
            f"The step takes {_time(self.seconds)} in {programs}, "
            f"{_time(self.seconds_of_parts)} part by part; {flops / 1e9:.3g} GFLOP, "
            f"{moved / 1e6:.3g} MB, for which this machine needs {_time(limit)} at best",
            f"({max(self.machine.operations.values()) / 1e9:.3g} GFLOP/s, "
            f"{self.machine.bandwidth / 1e9:.3g} GB/s).",
        ]
        tables = [("line", self.lines), ("module", self.modules), ("operator", self.operators)]
        return "\n".join(head + [_table(kind, rows, most) for kind, rows in tables])


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _table(kind: str, rows: list[Row], most: int) -> str:
    total = sum(r.seconds for r in rows) or 1.0
    text = ["", "      ms  share    GFLOP       MB  x limit  calls  " + kind]
    rows = [r for r in rows if r.seconds > 0 or r.limit > 0]
    for r in rows[:most]:
        over = f"{r.seconds / r.limit:8.1f}" if r.limit > 0 else "       -"
        text.append(
            f"{r.seconds * 1e3:8.3f}  {r.seconds / total:5.1%}  {r.flops / 1e9:7.3f} "
            f"{r.bytes / 1e6:8.2f} {over}  {r.calls:5}  {r.name}"
        )
    if len(rows) > most:
        rest = sum(r.seconds for r in rows[most:])
        text.append(f"{rest * 1e3:8.3f}  {rest / total:5.1%}  in {len(rows) - most} others")
    return "\n".join(text)


def cost(step: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Cost:
    """Measures what a step spends where.

    The programs that the step runs are cut where the line or module changes, and each part is
    compiled and run alone, several times, on the step's own values. Beside its time stands what the
    machine needs for its operations and bytes at best (the roofline of Williams, Waterman and
    Patterson, 2009). A part's time is divided among its operators by that. The step is called
    twice, so a training step trains.

    Args:
        step: A function that records a step; without it, the runs that `keep_runs` keeps.
        args, kwargs: Its arguments.

    Returns:
        Tables by line, module and operator.

    Raises:
        ValueError: Nothing ran.

    Example:
        >>> print(torch_xla.debug.cost(train_step, batch))
    """
    of_step = None if step is None else runs_of_second(step, *args, **kwargs)
    runs = runs_to_examine("cost", of_step)
    limits = _Limits()
    tables: dict[str, dict[str, Row]] = {k: {} for k in ("line", "module", "operator")}
    whole = parts = 0.0
    for run in runs:
        whole += _seconds(run.replay(), range(len(run.calls)), limits)
        replay = run.replay()
        for group in _groups(run.calls):
            seconds = _seconds(replay, group, limits)
            parts += seconds
            estimates = [limits.of(run, i) for i in group]
            shares = _shares([limit for _, _, limit in estimates])
            for i, share, (flops, moved, limit) in zip(group, shares, estimates, strict=True):
                call = run.calls[i]
                names = (call.line or "no line", call.module or "no module", call.operator)
                for rows, name in zip(tables.values(), names, strict=True):
                    row = rows.setdefault(name, Row(name))
                    row.seconds += seconds * share
                    row.flops += flops
                    row.bytes += moved
                    row.limit += limit
                    row.calls += 1
    lines, modules, operators = (
        sorted(t.values(), key=lambda r: -r.seconds) for t in tables.values()
    )
    return Cost(whole, parts, lines, modules, operators, len(runs), limits.machine())


def _seconds(replay: Any, calls: Iterable[int], limits: _Limits) -> float:
    taken = replay.compute(list(calls), _SECONDS)
    return max(0.0, min(taken, default=0.0) - limits.launch)


def _shares(weights: list[float]) -> list[float]:
    total = sum(weights)
    return [w / total if total > 0 else 1 / len(weights) for w in weights]


def _groups(calls: list[Call]) -> list[list[int]]:
    """Calls in a row that one line of one module recorded, with the views that they read."""
    groups: list[list[int]] = []
    views: list[int] = []
    last = None
    for i, call in enumerate(calls):
        if _is_view(call.operator):
            views.append(i)
            continue
        place = (call.frames, call.module, call.operator in _RUN_FUNCTIONS)
        if place != last or not call.frames:
            groups.append([])
        groups[-1] += [*views, i]
        views.clear()
        last = place
    return [*groups, views] if views else groups


@functools.cache
def _is_view(name: str) -> bool:
    """True if the operator's result shows the memory of an argument: in a program nothing moves."""
    returns = _overload(name)._schema.returns
    return bool(returns) and all(r.alias_info and not r.alias_info.is_write for r in returns)


def _overload(name: str) -> Any:
    """The function of "aten::add.Tensor"."""
    namespace, operator = name.split("::")
    packet, _, overload = operator.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


class _Limits:
    """The least time of calls on this machine."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[float, float]] = {}
        self.launch = _launch_seconds()
        self._operations: dict[torch.dtype, float] = {}

    def machine(self) -> Machine:
        if not self._operations:
            self._rate(torch.float32)
        return Machine(dict(self._operations), _bandwidth(), self.launch)

    def of(self, run: KeptRun, number: int) -> tuple[float, float, float]:
        """Operations, bytes and seconds."""
        call = run.calls[number]
        key = (call.operator, _shapes(call.operands), _shapes(call.results))
        if key not in self._known:
            self._known[key] = (sum(map(_flops, run.parts(number))), _bytes(call))
        flops, moved = self._known[key]
        floating = [t.dtype for t in call.operands if _is_counted(t)]
        seconds = moved / _bandwidth()
        if floating:
            seconds = max(seconds, flops / self._rate(floating[0]))
        return flops, moved, seconds

    def _rate(self, dtype: torch.dtype) -> float:
        if dtype not in self._operations:
            self._operations[dtype] = _product_rate(dtype)
        return self._operations[dtype]


def _shapes(tensors: Sequence[torch.Tensor | None]) -> tuple:
    return tuple(None if t is None else (t.dtype, tuple(t.shape)) for t in tensors)


def _bytes(call: Call) -> float:
    """Each operand read once and each result written once; a view is neither."""
    if _is_view(call.operator):
        return 0.0
    different = {place: t for place, t in zip(call.places, call.operands, strict=True)}
    read = [t.numel() * t.element_size() for t in different.values()]
    written = [t.numel() * t.element_size() for t in call.results if t is not None]
    if call.operator in _GATHERS and read:
        read[0] = min(read[0], sum(written))
    return float(sum(read) + sum(written))


def _is_counted(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


# Operators that PyTorch's table of formulas lacks: the products that each gradient is.
def _linear_backward(
    x: torch.Tensor, gradient: torch.Tensor, weight: torch.Tensor, wanted: list[bool]
) -> int:
    return 2 * gradient.numel() * weight.shape[-1] * sum(map(bool, wanted[:2]))


def _products(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, of_keys: int, of_values: int
) -> int:
    """Products of queries with keys, and of as large ones with values."""
    widths = of_keys * k.shape[-1] + of_values * v.shape[-1]
    return 2 * math.prod(q.shape[:-1]) * k.shape[-2] * widths


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> int:
    return _products(q, k, v, 1, 1)


def _attention_backward(
    gradient: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any
) -> int:
    return _products(q, k, v, 3, 2)  # the scores are computed again


def _rnn_layer(x: torch.Tensor, hx: Any, cx: Any, of_x: Any, of_h: Any, *_: Any) -> int:
    return 2 * math.prod(x.shape[:-1]) * (of_x.numel() + of_h.numel())


def _rnn_layer_backward(gradient: Any, of_hy: Any, of_cy: Any, *forward: Any) -> int:
    *_, input_gradient = forward
    x, of_x, of_h = forward[0], forward[3], forward[4]
    weights = (1 + bool(input_gradient)) * of_x.numel() + 2 * of_h.numel()
    return 2 * math.prod(x.shape[:-1]) * weights


_FORMULAS: dict[str, Callable[..., int]] = {
    "aten::linear_backward": _linear_backward,
    "torch_xla::attention": _attention,
    "torch_xla::attention_backward": _attention_backward,
    "torch_xla::rnn_layer": _rnn_layer,
    "torch_xla::rnn_layer_backward": _rnn_layer_backward,
}
# These read no more of their first operand than they give.
_GATHERS = {
    "aten::embedding",
    "aten::gather",
    "aten::index.Tensor",
    "aten::index_select",
    "aten::take",
}
# They run functions of the user's, whose time is not that of the calls beside them.
_RUN_FUNCTIONS = {"torch_xla::cond", "torch_xla::scan", "torch_xla::while_loop"}


def _flops(part: tuple[str, list[Any], list[torch.Tensor | None]]) -> float:
    """By PyTorch's formulas where it has one, else one for each element of the larger side."""
    name, arguments, results = part
    if name in _FORMULAS:
        return float(_FORMULAS[name](*arguments))
    if _is_view(name):
        return 0.0
    from torch.utils.flop_counter import FlopCounterMode

    try:
        with FlopCounterMode(display=False) as counter:
            _overload(name)(*arguments)
        flops = counter.get_total_flops()
    except (NotImplementedError, RuntimeError, TypeError, AttributeError, ValueError):
        flops = 0  # no formula applies
    if flops > 0:
        return float(flops)
    flat = leaves(results if name in _GATHERS else [arguments, results])
    sizes = [t.numel() for t in flat if isinstance(t, torch.Tensor) and _is_counted(t)]
    return float(max(sizes, default=0))


def _fastest(function: Callable[[], torch.Tensor], seconds: float) -> float:
    """The time of the runs of a program that computes the function."""
    with keeping(1):
        result = function()
        barrier()
        run = kept_runs()[-1]
    del result
    return min(run.replay().compute(list(range(len(run.calls))), seconds))


def _tensor(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    tensor = torch.ones(*size, device="xla", dtype=dtype)
    barrier()
    return tensor


@functools.cache
def _launch_seconds() -> float:
    x = _tensor(1)
    return _fastest(lambda: x + 1, 0.02)


@functools.cache
def _bandwidth() -> float:
    x = _tensor(1 << 25)  # 128 MiB: larger than caches
    return 2 * 4 * x.numel() / _fastest(lambda: x + 1, 0.3)


@functools.cache
def _product_rate(dtype: torch.dtype) -> float:
    n = 1024 if _XLAC._xla_device_type() == "CPU" else 8192
    x = _tensor(n, n, dtype=dtype)
    return 2 * math.prod((n, n, n)) / _fastest(lambda: x @ x, 0.3)
