"""The drawings on the page of `torch_xla.debug.report`.

Shapes are SVG that is stretched to the width of the page; what is written stands above it as HTML,
so that letters keep their size on a phone and on paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch_xla._src.insight.cost import Cost, Row
from torch_xla._src.insight.recording import Curve, Recording, Track
from torch_xla._src.report.parts import (
    MEMORY_KINDS,
    count_of,
    duration,
    nice_step,
    percent,
    round_number,
    size,
    slug,
    text,
)

_WIDE = 10_000  # units of a drawing's width
_STEPS = (15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10_800, 21_600)  # seconds
_ORDER = ("python", "sync", "lower", "compile", "launch", "upload", "wait", "host")


def _x(part: float) -> str:
    return f"{part * 100:.3f}%"


def time_step(seconds: float, most: int) -> float:
    """Between marks of so many seconds: from two minutes on, whole parts of a minute or hour."""
    if seconds < 120:
        return nice_step(seconds, most)
    return next((s for s in _STEPS if s * most >= seconds), nice_step(seconds / 3600, most) * 3600)


def time_mark(at: float, seconds: float) -> str:
    """The text at a mark, in one unit for all of a ruler."""
    if at == 0:
        return "0"
    if seconds < 120:
        return round_number(duration(at))
    whole, unit = (round(at), "min") if seconds < 7200 else (round(at / 60), "h")
    return f"{whole // 60}:{whole % 60:02}\N{NO-BREAK SPACE}{unit}"


def ruler(seconds: float) -> str:
    """Marks of time, from 0 to so many seconds. Those on the right have no room on a phone."""
    step = time_step(seconds, 8)
    marks = []
    for i in range(int(seconds / step + 1e-9) + 1):
        at = i * step / seconds if seconds > 0 else 0
        if at <= 0.94:
            classes = " ".join(["odd"] * (i % 2) + ["far"] * (at > 0.8))
            label = time_mark(i * step, seconds)
            marks.append(f'<span style="left:{_x(at)}" class="{classes}">{label}</span>')
    return f'<div class="ruler" aria-hidden="true">{"".join(marks)}</div>'


def _lane(name: str, note: str, content: str, height: float, label: str) -> str:
    return (
        f'<div class="lane"><div class="lane-name">{text(name)}<small class="dim">{note}</small>'
        f'</div><div class="lane-plot">{_svg(content, height, "flat", label)}</div></div>'
    )


def _svg(content: str, height: float, classes: str, label: str) -> str:
    return (
        f'<svg class="{classes}" role="img" aria-label="{text(label)}" '
        f'viewBox="0 0 {_WIDE} {height:g}" preserveAspectRatio="none" '
        f'style="height:{height:g}px">{content}</svg>'
    )


def main_track(recording: Recording) -> tuple[int, Track] | None:
    """The thread on which the program runs, and its number."""
    threads = [(id_, t) for (is_device, id_), t in recording.tracks.items() if not is_device]
    named = [item for item in threads if item[1].name == "main"]
    return max(named or threads, key=lambda item: item[1].count, default=None)


def devices(recording: Recording) -> list[tuple[int, Track]]:
    return sorted((id_, t) for (is_device, id_), t in recording.tracks.items() if is_device)


def over_time(recording: Recording) -> str:
    """The work of the main thread and each device in each part of the time."""
    seconds = (recording.until - recording.began) / 1e9
    width = recording.density.width / 1e9
    lanes = [ruler(seconds)]
    main = main_track(recording)
    if main is not None:
        rows = {kind: recording.density.rows.get((main[0], kind)) for kind in _ORDER[1:]}
        content = _columns(rows, width, seconds, 96, fill_with="python")
        lanes.append(_lane("main thread", "100% high", content, 96, "Main thread over time"))
    for number, track in devices(recording):
        rows = {"run": recording.density.rows.get((-1 - number, "run"))}
        content = _columns(rows, width, seconds, 36)
        busy = track.seconds["run"] / seconds if seconds > 0 else 0.0
        note = f"busy {percent(min(1.0, busy))}"
        lanes.append(_lane(track.name, note, content, 36, f"{track.name}: {note}"))
    return f'<div class="chart">{"".join(lanes)}</div>'


def _columns(
    rows: dict[str, list[float] | None],
    width: float,
    seconds: float,
    height: int,
    fill_with: str = "",
) -> str:
    """Stacked columns, one for each part of the time, as one path for each kind."""
    paths: dict[str, list[str]] = {}
    count = math.ceil(seconds / width) if seconds > 0 else 0
    for i in range(count):
        whole = min(width, seconds - i * width)
        left, right = i * width / seconds * _WIDE, (i * width + whole) / seconds * _WIDE
        bottom = float(height)
        amounts = [(k, parts[i] / 1e9) for k, parts in rows.items() if parts and i < len(parts)]
        if fill_with:
            amounts.append((fill_with, whole - sum(a for _, a in amounts)))
        for kind, amount in amounts:
            tall = min(bottom, max(0.0, amount) / whole * height)
            if tall > 0.05:
                path = f"M{left:.0f} {bottom:.1f}H{right:.0f}V{bottom - tall:.1f}H{left:.0f}z"
                paths.setdefault(kind, []).append(path)
                bottom -= tall
    return "".join(f'<path class="k-{k}" d="{"".join(p)}"/>' for k, p in paths.items())


def _grid(highest: float, tall: int, shown: Callable[[float], str]) -> tuple[str, str, float]:
    """Lines and their values, and the value at the top."""
    step = nice_step(highest, 3)
    top = math.ceil(highest / step - 1e-9) * step or 1.0
    lines, labels = [], []
    for i in range(1, round(top / step) + 1):
        y = tall - i * step / top * tall
        lines.append(f'<path class="grid" d="M0 {y:.1f}H{_WIDE}"/>')
        labels.append(
            f'<span class="level" style="top:{y:.1f}px">{round_number(shown(i * step))}</span>'
        )
    return "".join(lines), "".join(labels), top


def curve(
    values: Curve,
    recording: Recording,
    shown: Callable[[float], str],
    kind: str,
    label: str,
    layers: Sequence[tuple[int, dict[str, int]]] = (),
    fullest: tuple[int, float] | None = None,
) -> str:
    """A line over time; below it, where they are given, layers by kind. Its highest point is
    marked, or `fullest`."""
    tall = 140
    length = max(recording.until - recording.began, 1)
    highest = max((value for _, value in values.points), default=0.0)
    highest = max([highest, *(sum(parts.values()) for _, parts in layers)])
    lines, labels, top = _grid(highest, tall, shown)

    def at(when: int, value: float) -> tuple[float, float]:
        return (when - recording.began) / length * _WIDE, tall - value / top * tall

    points: list[tuple[float, float]] = []
    for point in values.points:  # a value holds until the next one
        x, y = at(*point)
        points += [(x, points[-1][1]), (x, y)] if points else [(x, y)]
    shapes = []
    if len(layers) > 1:
        ends = [when for when, _ in layers[1:]] + [layers[-1][0]]
        below = [0.0] * len(layers)
        for name in (k for k in MEMORY_KINDS if any(k in parts for _, parts in layers)):
            above = [b + parts.get(name, 0) for b, (_, parts) in zip(below, layers, strict=True)]
            there, back = [], []
            for (when, _), end, high, low in zip(layers, ends, above, below, strict=True):
                there += [at(when, high), at(end, high)]
                back += [at(when, low), at(end, low)]
            outline = " ".join(f"{x:.0f},{y:.1f}" for x, y in [*there, *reversed(back)])
            shapes.append(f'<polygon class="k-{slug(name)}" points="{outline}"/>')
            below = above
    elif points:
        outline = " ".join(f"{x:.0f},{y:.1f}" for x, y in points)
        closed = f"{points[0][0]:.0f},{tall} {outline} {points[-1][0]:.0f},{tall}"
        shapes.append(f'<polygon class="k-{kind} faint" points="{closed}"/>')
    line = " ".join(f"{x:.0f},{y:.1f}" for x, y in points)
    shapes.append(f'<polyline class="line" points="{line}"/>')
    peak = fullest or max(values.points, key=lambda point: point[1], default=None)
    mark = ""
    if peak is not None:
        x, y = at(*peak)
        side = " left" if x > 0.75 * _WIDE else ""
        mark = (
            f'<span class="peak{side}" style="left:{_x(x / _WIDE)};top:{y:.1f}px">'
            f"{shown(peak[1])}</span>"
        )
    svg = _svg("".join(shapes) + lines, tall, "curve", label)
    return (
        f'<div class="chart"><div class="lane-plot tall">{svg}{labels}{mark}</div>'
        f"{ruler(length / 1e9)}</div>"
    )


def step_lengths(recording: Recording) -> str:
    """A column for each step, as wide as it is long; its height is logarithmic."""
    tall = 120
    points = [(when, max(seconds, 1e-6)) for when, seconds in recording.steps.points]
    length = max(recording.until - recording.began, 1)
    low = math.floor(math.log10(min(seconds for _, seconds in points)) - 0.2)
    high = math.log10(max(seconds for _, seconds in points)) + 0.15
    shapes, words = [], []
    for power in range(low + 1, math.floor(high) + 1):
        y = tall * (1 - (power - low) / (high - low))
        shapes.append(f'<path class="grid" d="M0 {y:.1f}H{_WIDE}"/>')
        label = round_number(duration(10.0**power))
        words.append(f'<span class="level" style="top:{y:.1f}px">{label}</span>')
    columns = []
    for when, seconds in points:
        right = (when - recording.began) / length * _WIDE
        wide = max(seconds * 1e9 / length * _WIDE, 4)
        y = tall * (1 - (math.log10(seconds) - low) / (high - low))
        columns.append(f"M{right - wide:.0f} {tall}V{y:.1f}H{right:.0f}V{tall}z")
    path = f'<path class="k-sync" d="{"".join(columns)}"/>'
    classes = "curve columns" if len(points) <= 100 else "curve"
    svg = _svg(path + "".join(shapes), tall, classes, "Length of each step")
    return (
        f'<div class="chart"><div class="lane-plot tall">{svg}{"".join(words)}</div>'
        f"{ruler(length / 1e9)}</div>"
    )


def roofline(cost: Cost, rows: Sequence[Row], most: int = 40) -> str:
    """Operations in a second over operations for each byte, and what the machine allows at best."""
    known = [r for r in rows if r.seconds > 0 and r.flops > 0 and r.bytes > 0][:most]
    best = max(cost.machine.operations.values(), default=0.0)
    if not known or best <= 0 or cost.machine.bandwidth <= 0:
        return ""
    ridge = best / cost.machine.bandwidth
    intensities = [r.flops / r.bytes for r in known]
    rates = [r.flops / r.seconds for r in known]
    low, high = (
        math.log10(min([*intensities, ridge / 10])),
        math.log10(max([*intensities, ridge * 10])),
    )
    low, high = math.floor(low), math.ceil(high)
    floor = math.floor(math.log10(min([*rates, best / 100])))
    ceiling = math.log10(max([*rates, best])) + 0.15
    tall = 300

    def at(intensity: float, rate: float) -> tuple[float, float]:
        x = (math.log10(intensity) - low) / (high - low)
        return x, tall * (1 - (math.log10(rate) - floor) / (ceiling - floor))

    def unit(power: int) -> str:
        return round_number(count_of(10.0**power, "FLOP/s"))

    shapes, words = [], []
    for power in range(low + 1, high):
        x, _ = at(10.0**power, best)
        shapes.append(f'<path class="grid" d="M{x * _WIDE:.0f} 0V{tall}"/>')
        words.append(f'<span class="tick" style="left:{_x(x)}">{10.0**power:g}</span>')
    words.append('<span class="tick end">FLOP per byte</span>')
    for power in range(floor + 1, math.floor(ceiling) + 1):
        _, y = at(1.0, 10.0**power)
        shapes.append(f'<path class="grid" d="M0 {y:.1f}H{_WIDE}"/>')
        words.append(f'<span class="level" style="top:{y:.1f}px">{unit(power)}</span>')
    start = max(10.0**low, 10.0**floor / cost.machine.bandwidth)
    (x0, y0), (x1, y1) = at(start, start * cost.machine.bandwidth), at(ridge, best)
    shapes.append(
        f'<polyline class="line roof" points="{x0 * _WIDE:.0f},{y0:.1f} {x1 * _WIDE:.0f},{y1:.1f} '
        f'{_WIDE},{y1:.1f}"/>'
    )
    longest = max(r.seconds for r in known)
    for i, row in enumerate(known):
        x, y = at(intensities[i], rates[i])
        wide = 8 + 26 * math.sqrt(row.seconds / longest)
        told = f"{row.name}: {duration(row.seconds)}, {count_of(rates[i], 'FLOP/s')}"
        words.append(
            f'<i class="dot" style="left:{_x(x)};top:{y:.1f}px;width:{wide:.0f}px;'
            f'height:{wide:.0f}px" title="{text(told)}"></i>'
        )
        if i < 5:
            side = " left" if x > 0.7 else ""
            name = text(row.name.removeprefix("aten::"))
            words.append(
                f'<span class="dot-name{side}" style="left:{_x(x)};top:{y:.1f}px;'
                f'--r:{wide / 2:.0f}px">{name}</span>'
            )
    svg = _svg("".join(shapes), tall, "curve", "Roofline of the operators")
    return (
        f'<figure><div class="chart roofline"><div class="lane-plot tall">{svg}{"".join(words)}'
        '</div></div><figcaption class="dim">Floating-point operations in a second, over '
        "operations for each byte that is read or written; both axes are logarithmic. The line is "
        f"what this machine does at best: {count_of(best, 'FLOP/s')} and "
        f"{size(cost.machine.bandwidth)}/s. "
        "The larger a dot, the more time.</figcaption></figure>"
    )


def kind_seconds(recording: Recording) -> list[tuple[str, float]]:
    """The main thread's time by kind of work; the rest is Python."""
    main: Any = main_track(recording)
    seconds = dict(main[1].seconds) if main is not None else {}
    whole = (recording.until - recording.began) / 1e9
    seconds["python"] = max(0.0, whole - sum(seconds.values()))
    return [(kind, seconds[kind]) for kind in _ORDER if seconds.get(kind, 0.0) > 0]
