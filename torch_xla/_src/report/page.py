"""The sections of the page of `torch_xla.debug.report`, and the page."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from torch_xla._src.insight.cost import Row
from torch_xla._src.insight.explain import Recompile, ran_on_host
from torch_xla._src.insight.memory_snapshot import MemorySnapshot
from torch_xla._src.insight.recording import Program
from torch_xla._src.report import charts
from torch_xla._src.report.figures import RunReport
from torch_xla._src.report.parts import (
    KINDS,
    MEMORY_KINDS,
    Cell,
    Column,
    bars,
    count_of,
    dotted,
    duration,
    legend,
    number_cell,
    percent,
    place,
    plural,
    share_cell,
    size,
    size_cell,
    slug,
    split_size,
    split_time,
    stacked_bar,
    table,
    text,
    time_cell,
)

_BARS = 10
_MOST = 50  # lines that were compiled again
# Operators that run on the host to be read, and what a line says that waits for one.
_SIZE = "a size that values decide"
_READS = {
    "aten::_local_scalar_dense": "a number that Python reads",
    "aten::nonzero": _SIZE,
    "aten::masked_select": _SIZE,
    "aten::_unique2": _SIZE,
    "aten::unique_consecutive": _SIZE,
    "aten::unique_dim": _SIZE,
    "aten::unique_dim_consecutive": _SIZE,
}
# Nothing but what is in the page itself may be loaded.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

_HOW_TO_RECORD = (
    "<pre>with torch_xla.debug.record():\n    train()\n"
    'torch_xla.debug.report("report.html")</pre>'
    "<p>or run the program with <code>XLA_REPORT_FILE=report.html</code>.</p>"
)


def page(run: RunReport) -> str:
    """The page as HTML."""
    sections = [
        ("time", "Where the time went", _time),
        ("recompiles", "Compiled again", _recompiles),
        ("waits", "Waits", _waits),
        ("programs", "Programs", _programs),
        ("cost", "Operators, lines and modules", _cost),
        ("memory", "Memory", _memory),
        ("host", "Operators on the host", _host),
        ("shardings", "Split parameters", _split),
    ]
    links = "".join(f'<a href="#{id_}">{title}</a>' for id_, title, _ in sections)
    title = f"{text(run.program)}: report of a run"
    body = "".join(
        f'<section id="{id_}"><h2>{title_}</h2>{draw(run)}</section>'
        for id_, title_, draw in sections
    )
    style, script = _asset("page.css"), _asset("page.js")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><style>{style}</style></head><body>"
        f"<header>{_head(run)}</header><main>{_figures(run)}{_findings(run)}"
        f'<nav aria-label="Sections">{links}</nav>{body}</main>'
        '<footer class="dim">Written by torch_xla.debug.report. The page needs no network.</footer>'
        f"<script>{script}</script></body></html>\n"
    )


def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _head(run: RunReport) -> str:
    made = time.strftime("%d %B %Y, %H:%M", time.localtime(run.made)).lstrip("0")
    facts = "".join(f"<li>{text(word)} <b>{text(value)}</b></li>" for word, value in run.facts)
    return (
        f'<p class="kicker">torch_xla &middot; report of a run</p><h1>{text(run.program)}</h1>'
        f'<ul class="facts"><li>{made}</li>{facts}</ul>'
    )


def _figure(name: str, value: tuple[str, str], note: str = "") -> str:
    words = " ".join(value).split()  # 2 min 18 s
    shown = " ".join(
        f"<span>{word}</span>" if i % 2 else f"<b>{word}</b>" for i, word in enumerate(words)
    )
    return (
        f'<div class="figure"><dt>{name}</dt><dd><span class="value">{shown}</span>'
        f'<small class="dim">{note}</small></dd></div>'
    )


def _figures(run: RunReport) -> str:
    part = run.seconds or 1.0
    figures = [
        _figure(
            "Wall time",
            split_time(run.seconds),
            "of the recording" if run.recording else "since the import of torch_xla",
        )
    ]
    if run.steps is not None:
        note = ""
        if run.recording and run.recording.newest_steps:
            typical = statistics.median(run.recording.newest_steps)
            note = f"typically {duration(typical)}"
        figures.append(_figure("Steps", (f"{run.steps:,}", ""), note))
    recompiled = [r for r in run.recompiles if not r.from_disk]
    again = f"{len(recompiled):,} of them again" if recompiled else "none again"
    figures.append(
        _figure(
            "Compiled", (f"{run.compiled:,}", "program" if run.compiled == 1 else "programs"), again
        )
    )
    share = f"{percent(run.compile_seconds / part)} of the time"
    figures.append(_figure("Compiling", split_time(run.compile_seconds), share))
    share = f"{percent(run.wait_seconds / part)} of the time"
    figures.append(_figure("Waiting for values", split_time(run.wait_seconds), share))
    if run.memory is not None:
        whose = "of this process" if run.memory["source"] == "process" else "of the fullest device"
        of_what = "the machine" if run.memory["source"] == "process" else "it"
        limit = f"{whose}; {of_what} has {size(run.memory['bytes_limit'])}"
        figures.append(_figure("Memory now", split_size(run.memory["bytes_used"]), whose))
        figures.append(_figure("Memory at most", split_size(run.memory["peak_bytes_used"]), limit))
    return f'<dl class="figures">{"".join(figures)}</dl>'


def _findings(run: RunReport) -> str:
    """Findings that are worth a look, in a sentence each."""
    found = []
    whole = run.seconds or 1.0
    if run.compile_seconds > 0.1 * whole:
        found.append(
            f"The compiler took {duration(run.compile_seconds)}, "
            f"{percent(run.compile_seconds / whole)} of the time."
        )
    for from_disk, what in ((False, "compiled again"), (True, "taken from the disk")):
        again = [r for r in run.recompiles if r.from_disk == from_disk]
        if again:
            found.append(
                f'<a href="#recompiles">{plural(len(again), "program")}</a> of '
                f"{plural(len({r.place for r in again}), 'line')} "
                f"{'was' if len(again) == 1 else 'were'} {what}, in "
                f"{duration(sum(r.seconds for r in again))}."
            )
    if run.wait_seconds > 0.05 * whole and run.waits:
        longest = run.waits[0]
        found.append(
            f'<a href="#waits">Waits for values</a> took {duration(run.wait_seconds)}, '
            f"{percent(run.wait_seconds / whole)} of the time: most of all {place(longest.place)}, "
            f"{duration(longest.seconds)}."
        )
    missing = [name for name, _ in run.host_operators if name not in _READS]
    if missing:
        names = ", ".join(f"<code>{text(name)}</code>" for name in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        found.append(f'<a href="#host">Ran on the host</a>: {names}{more}.')
    if run.recording is not None:
        for _, track in charts.devices(run.recording)[:4]:
            idle = 1 - track.seconds["run"] / whole
            if idle > 0.4:
                found.append(
                    f"{text(track.name)} had nothing to run for {percent(idle)} of the time."
                )
    if run.memory is not None and run.memory["bytes_limit"]:
        full = run.memory["peak_bytes_used"] / run.memory["bytes_limit"]
        if full > 0.85:
            found.append(f'<a href="#memory">Memory</a> was {percent(full)} full at its peak.')
    if not found:
        return '<p class="findings calm">Nothing stands out.</p>'
    items = "".join(f"<li>{sentence}</li>" for sentence in found)
    return f'<div class="findings"><h2>What stands out</h2><ul>{items}</ul></div>'


def _time(run: RunReport) -> str:
    out = []
    if run.recording is not None:
        parts = charts.kind_seconds(run.recording)
        words = ", ".join(f"{KINDS[kind]} {duration(taken)}" for kind, taken in parts)
        out.append("<h3>The main thread</h3>")
        titled = [(k, f"{KINDS[k]}: {duration(s)}", s) for k, s in parts]
        out.append(stacked_bar(titled, f"Main thread: {words}"))
        out.append(legend([(k, KINDS[k], duration(s)) for k, s in parts]))
        out.append("<h3>Over time</h3>")
        out.append(charts.over_time(run.recording))
        shown = [(k, KINDS[k], "") for k, _ in parts] + [("run", KINDS["run"], "")]
        out.append(legend(shown))
        if run.recording.broken:
            out.append(f'<p class="note-box">It ends early. {text(run.recording.broken)}</p>')
        if len(run.recording.steps.points) > 1:
            out.append("<h3>Length of each step <small class=dim>logarithmic</small></h3>")
            out.append(charts.step_lengths(run.recording))
            out.append('<p class="dim">The first has all that came before its barrier.</p>')
    causes = [c for c in run.causes if c.seconds > 0]
    if causes:
        out.append("<h3>By cause</h3>")
        rows = [
            (
                c.kind,
                f"{text(c.what)}, {place(c.line)}" if c.line else text(c.what),
                c.seconds,
                duration(c.seconds),
                f"{plural(c.count, 'time')}, {duration(c.seconds / c.count)} each"
                if c.count > 1
                else "",
            )
            for c in causes[:_BARS]
        ]
        rest = causes[_BARS:]
        if rest:
            taken = sum(c.seconds for c in rest)
            rows.append(("user", plural(len(rest), "other cause"), taken, duration(taken), ""))
        out.append(bars(rows, run.seconds))
        out.append(
            '<p class="dim">Shares are of the wall time. While a line waits, a device may well be '
            "busy for it.</p>"
        )
    if not out:
        out.append("<p>Nothing was compiled, and no line waited.</p>")
    if run.recording is None:
        out.append(f"<p>Nothing was recorded. To see the time as it went:</p>{_HOW_TO_RECORD}")
    else:
        out.append(
            '<p class="dim">Each span of each thread and device is in a profile: '
            "<code>torch_xla.debug.profiler.start_trace</code>.</p>"
        )
    return "".join(out)


def _recompiles(run: RunReport) -> str:
    """An entry for what changes in the same way at the same line, with the newest as an example."""
    if not run.recompiles:
        return "<p>Every line used the program that it had.</p>"
    alike: dict[tuple[str, str, str, str, bool], list[Recompile]] = {}
    for r in run.recompiles:
        alike.setdefault((r.name, r.place, r.kind, r.line, r.from_disk), []).append(r)
    groups = sorted(alike.values(), key=lambda group: -sum(r.seconds for r in group))
    out = ['<ol class="recompiles">']
    for group in groups[:_MOST]:
        r = group[-1]
        facts = [text(r.kind), plural(len(group), "program")]
        if r.from_disk:
            facts.append("from the disk")
        where = f", at {place(r.line)}" if r.line else ""
        if r.earlier_line and r.earlier_line != r.line:
            where += f", before at {place(r.earlier_line)}"
        last = "The last: " if len(group) > 1 else ""
        out.append(
            f'<li><p class="head"><b>{text(r.name)}</b> of {place(r.place)} '
            f'<span class="much">{duration(sum(r.seconds for r in group))}</span></p>'
            f"<p>{last}{text(r.what)}{where}.</p>"
            f'<p class="dim">{text(r.advice)}</p>'
            f'<p class="tags">{"".join(f"<span>{fact}</span>" for fact in facts)}</p></li>'
        )
    out.append("</ol>")
    if len(groups) > _MOST:
        out.append(f'<p class="dim">{len(groups) - _MOST:,} more are left out.</p>')
    return "".join(out)


def _waits(run: RunReport) -> str:
    if not run.waits:
        return "<p>No line waited for a value.</p>"
    total = sum(w.seconds for w in run.waits) or 1.0
    columns = [
        Column("Line", "name"),
        Column("It waited for", "text"),
        Column("Times"),
        Column("Each"),
        Column("In all"),
        Column("Share", "share"),
    ]
    rows = [
        [
            Cell(place(w.place), w.place),
            Cell(text(w.why), w.why),
            number_cell(w.count),
            time_cell(w.seconds / w.count),
            time_cell(w.seconds),
            share_cell(w.seconds / total, "host" if ran_on_host(w.why) else "wait"),
        ]
        for w in run.waits
    ]
    advice = (
        "Read values less often, or after the barrier (<code>torch_xla.sync()</code>). The time of "
        "a line is from its call to its value, with what is found, uploaded and launched for it."
    )
    return (
        table("Lines that waited, the longest first", columns, rows)
        + f'<p class="dim">{advice}</p>'
    )


def _programs(run: RunReport) -> str:
    if run.recording is None:
        return "<p>Programs are listed where a run is recorded.</p>"
    if not run.programs:
        return "<p>No program ran while this was recorded.</p>"
    total = sum(p.run_seconds for p in run.programs) or 1.0
    columns = [
        Column("Program", "name"),
        Column("Calls"),
        Column("Compiling"),
        Column("Runs"),
        Column("Each"),
        Column("In all"),
        Column("Share", "share"),
    ]
    rows = [
        [
            Cell(_program_name(p), f"{p.name} {p.line} {p.key}"),
            number_cell(p.calls),
            time_cell(p.compile_seconds) if p.compiled else Cell("&ndash;", 0.0),
            number_cell(p.runs),
            time_cell(p.run_seconds / p.runs) if p.runs else Cell("&ndash;", 0.0),
            time_cell(p.run_seconds),
            share_cell(p.run_seconds / total),
        ]
        for p in run.programs
    ]
    return table("Programs, by what they took on the devices and in the compiler", columns, rows)


def _program_name(program: Program) -> str:
    """As the spans of devices have it: "sync 6a53da7a"."""
    where = f" of {place(program.line)}" if program.line else ""
    return f'{text(program.name)} <code class="dim">{text(program.key)}</code>{where}'


def _cost(run: RunReport) -> str:
    cost = run.cost
    if cost is None:
        return (
            "<p>No cost was given. To have operators, lines and modules by time, and how far "
            "they are from what the machine does at best:</p>"
            "<pre>cost = torch_xla.debug.cost(train_step, batch)\n"
            'torch_xla.debug.report("report.html", cost=cost)</pre>'
        )
    flops, moved = sum(r.flops for r in cost.lines), sum(r.bytes for r in cost.lines)
    limit = sum(r.limit for r in cost.lines)
    out = [
        f"<p>The step takes <b>{duration(cost.seconds)}</b> in "
        f"{plural(cost.programs, 'program')}, {duration(cost.seconds_of_parts)} part by part. "
        f"It has {count_of(flops, 'FLOP')} and moves {size(moved)}, for which this machine needs "
        f"<b>{duration(limit)}</b> at best.</p>",
        charts.roofline(cost, cost.operators),
    ]
    for title, what, rows in (
        ("Operators", "Operator", cost.operators),
        ("Lines", "Line", cost.lines),
        ("Modules", "Module", cost.modules),
    ):
        shown = place if what == "Line" else dotted
        out.append(f"<h3>{title}</h3>{_cost_table(title, what, rows, shown)}")
    out.append(
        '<p class="dim">Times are those of parts that run alone. &ldquo;&times; limit&rdquo; is '
        "how many times longer a row takes than the machine needs at best for its operations and "
        "bytes: 1 is as fast as it gets.</p>"
    )
    return "".join(out)


def _cost_table(caption: str, what: str, rows: list[Row], shown: Callable[[str], str]) -> str:
    total = sum(r.seconds for r in rows) or 1.0
    columns = [
        Column(what, "name"),
        Column("Time"),
        Column("Share", "share"),
        Column("Operations"),
        Column("Bytes"),
        Column("&times; limit"),
        Column("Calls"),
    ]
    cells = [
        [
            Cell(shown(r.name), r.name),
            time_cell(r.seconds),
            share_cell(r.seconds / total),
            Cell(count_of(r.flops, "FLOP"), r.flops),
            size_cell(r.bytes),
            _times_limit(r),
            number_cell(r.calls),
        ]
        for r in rows
    ]
    return table(f"{caption}, the slowest first", columns, cells)


def _times_limit(row: Row) -> Cell:
    if row.limit <= 0:
        return Cell("&ndash;", 0.0)
    return Cell(f"{row.seconds / row.limit:,.1f}", row.seconds / row.limit)


def _memory(run: RunReport) -> str:
    kept, out = run.recording, []
    when = "What lies there now"
    snapshot = run.snapshot
    fullest = None
    if kept is not None and kept.peak is not None:
        at, snapshot = kept.peak
        fullest = (at, float(snapshot.bytes))
        when = f"At its fullest, {duration((at - kept.began) / 1e9)} into the recording"
    if kept is not None and kept.live.points:
        out.append("<h3>Tensors on the devices</h3>")
        out.append(
            charts.curve(
                kept.live, kept, size, "parameter", "Bytes of tensors", kept.snapshots, fullest
            )
        )
        if len(kept.snapshots) > 1:
            seen = {kind for _, parts in kept.snapshots for kind in parts}
            shown = [(slug(k), n, "") for k, n in MEMORY_KINDS.items() if k in seen]
            out.append(legend([("ink", "all, at each barrier", ""), *shown]))
    if kept is not None and kept.used.points and run.memory is not None:
        whose = "This process" if run.memory["source"] == "process" else "The fullest device"
        out.append(f"<h3>{whose} as a whole</h3>")
        out.append(charts.curve(kept.used, kept, size, "user", f"Memory: {whose}"))
        if run.memory["source"] == "process":
            out.append(
                '<p class="dim">This device keeps no statistics: it is the memory of the process, '
                "Python and the compiler included.</p>"
            )
    if kept is None:
        out.append('<p class="dim">The memory over time is there where a run is recorded.</p>')
    elif kept.trouble:
        out.append(f'<p class="note-box">The memory was not watched: {text(kept.trouble)}</p>')
    if snapshot is None:
        return "".join(out) or "<p>No device was used.</p>"
    return "".join(out) + _at_peak(snapshot, when)


def _at_peak(snapshot: MemorySnapshot, when: str) -> str:
    largest = max((t for t in snapshot.temporaries), key=lambda t: t.bytes, default=None)
    kinds = dict(snapshot.by_kind())
    if largest is not None and largest.bytes:
        kinds["temporaries"] = largest.bytes
    ordered = [(k, kinds[k]) for k in MEMORY_KINDS if kinds.get(k)]
    words = ", ".join(f"{MEMORY_KINDS[k]} {size(b)}" for k, b in ordered)
    titled = [(slug(k), f"{MEMORY_KINDS[k]}: {size(b)}", b) for k, b in ordered]
    out = [
        f"<h3>{when}</h3>",
        f"<p><b>{size(snapshot.bytes)}</b> in {plural(len(snapshot.tensors), 'tensor')}"
        + (
            f"; while it runs, the program &ldquo;{text(largest.program)}&rdquo;"
            f"{f' of {place(largest.line)}' if largest.line else ''} needs "
            f"{size(largest.bytes)} more for what it computes on the way."
            if largest is not None and largest.bytes
            else "."
        )
        + "</p>",
        stacked_bar(titled, f"Memory: {words}"),
        legend([(slug(k), MEMORY_KINDS[k], size(b)) for k, b in ordered]),
    ]
    total = snapshot.bytes or 1
    sides = []
    for title, sums, shown in (
        ("Module", snapshot.by_module(), dotted),
        ("Line", snapshot.by_line(), lambda name: place("" if name == "no line" else name)),
    ):
        columns = [Column(title, "name"), Column("Bytes"), Column("Share", "share")]
        rows = [
            [Cell(shown(name), name), size_cell(b), share_cell(b / total, "parameter")]
            for name, b in sums.items()
        ]
        sides.append(table(f"By {title.lower()}", columns, rows))
    out.append(f'<div class="sides">{"".join(sides)}</div>')
    columns = [
        Column("Tensor", "name"),
        Column("Type", "text"),
        Column("Kind", "text"),
        Column("Made at", "text"),
        Column("Bytes"),
    ]
    rows = [
        [
            Cell(dotted(t.name or t.module or "\N{EN DASH}"), t.name or t.module),
            Cell(f'<code class="whole">{text(t.type)}</code>', t.type),
            Cell(text(t.kind), t.kind),
            Cell(place(t.line), t.line),
            size_cell(t.bytes),
        ]
        for t in snapshot.tensors[:50]
    ]
    out.append(table("The largest tensors", columns, rows))
    return "".join(out)


def _host(run: RunReport) -> str:
    if not run.host_operators:
        return "<p>None.</p>"
    seconds: dict[str, float] = {}
    for w in run.waits:
        seconds[w.why] = seconds.get(w.why, 0.0) + w.seconds
    # Waits for sizes are told together: by one name they are its own.
    if sum(_READS.get(name) == _SIZE for name, _ in run.host_operators) > 1:
        seconds.pop(_SIZE, None)
    columns = [Column("Operator", "name"), Column("Times"), Column("Waits")]
    rows = [
        [
            Cell(f"<code>{text(name)}</code>{_that_reads(name)}", name),
            number_cell(count),
            time_cell(seconds.get(_READS.get(name, name), 0.0)),
        ]
        for name, count in run.host_operators
    ]
    return table("Operators without a lowering, and reads", columns, rows) + (
        '<p class="dim">Each is a detour from the device to the host and back.</p>'
    )


def _that_reads(name: str) -> str:
    return ' <span class="dim">reads a value</span>' if name in _READS else ""


def _split(run: RunReport) -> str:
    if not run.split:
        return "<p>No parameter is split over devices.</p>"
    columns = [Column("Parameter", "name"), Column("Shape", "text"), Column("Sharding", "text")]
    rows = [
        [
            Cell(dotted(s.name), s.name),
            Cell(f"<code>{text(list(s.shape))}</code>", str(s.shape)),
            Cell(f"<code>{text(s.spec)}</code>", s.spec),
        ]
        for s in run.split
    ]
    return table("Parameters and how they are split", columns, rows)
