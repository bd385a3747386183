"""The parts of the page of `torch_xla.debug.report`: numbers in words, tables, bars."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

_MOST_ROWS = 200
_SHOWN_ROWS = 10
_LONGEST_NAME = 400

KINDS = {
    "python": "Python, recording",
    "sync": "finding the program",
    "lower": "lowering",
    "compile": "compiling",
    "launch": "launching",
    "upload": "uploads",
    "wait": "waits and reads",
    "host": "operators on the host",
    "run": "runs on a device",
}
MEMORY_KINDS = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer state": "optimizer state",
    "other": "activations and other",
    "temporaries": "temporaries",
}


class Column(NamedTuple):
    """A column: `kind` is "name", "text", "number" or "share" (a bar of this part of 1)."""

    title: str
    kind: str = "number"


class Cell(NamedTuple):
    """Its HTML, and the key by which it is sorted."""

    shown: str
    value: float | str


def text(value: object) -> str:
    """As HTML; of very long texts the beginning."""
    whole = str(value)
    if len(whole) > _LONGEST_NAME:
        whole = whole[:_LONGEST_NAME] + "…"
    return html.escape(whole, quote=True)


def slug(kind: str) -> str:
    """A kind of memory as a class of the page's style."""
    return kind.replace(" ", "-")


def dotted(name: str) -> str:
    """The name of a module or operator, which may go on in the next line after a dot."""
    return f"<code>{text(name).replace('.', '.<wbr>')}</code>"


def place(line: str) -> str:
    """A line of the user's program: the file's name is seen, its folders when pointed at."""
    if not line:
        return '<span class="dim">no line is known</span>'
    folder, slash, file = line.partition(" (")[0].rpartition("/")
    rest = file + line[len(folder) + len(slash) + len(file) :]
    shown = text(rest if slash else line)
    return f'<code title="{text(line)}">{shown}</code>'


def _digits(value: float) -> str:
    """Three of them, or all before the point."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def split_time(seconds: float) -> tuple[str, str]:
    """The number and its unit."""
    if seconds >= 120:
        hours, minutes = divmod(round(seconds / 60), 60)
        if seconds >= 7200:
            return f"{hours} h {minutes:02}", "min"
        return f"{int(seconds // 60)} min {int(seconds % 60):02}", "s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale * 0.9995:
            return _digits(seconds / scale), unit
    return ("0", "s") if seconds <= 0 else (_digits(seconds / 1e-6), "µs")


def split_size(count: float) -> tuple[str, str]:
    """The number of bytes and its unit, by thousands."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale * 0.9995:
            return _digits(count / scale), unit
    return f"{count:.0f}", "B"


def split_count(count: float, unit: str) -> tuple[str, str]:
    """A number of things per thousand, million and so on: 3.20, GFLOP."""
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale * 0.9995:
            return _digits(count / scale), prefix + unit
    return f"{count:.0f}", unit


def duration(seconds: float) -> str:
    return "\N{NO-BREAK SPACE}".join(split_time(seconds))


def size(count: float) -> str:
    return "\N{NO-BREAK SPACE}".join(split_size(count))


def count_of(count: float, unit: str) -> str:
    return "\N{NO-BREAK SPACE}".join(split_count(count, unit))


def percent(part: float) -> str:
    if 0 < part < 0.0005:
        return "<0.1%"
    return f"{part:.0%}" if part >= 0.0995 or part == 0 else f"{part:.1%}"


def round_number(shown: str) -> str:
    """A value that is marked on an axis, without zeros that say nothing: 2 s for 2.00 s."""
    number, space, unit = shown.partition("\N{NO-BREAK SPACE}")
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return number + space + unit


def plural(count: int, word: str, words: str = "") -> str:
    return f"{count:,} {word if count == 1 else words or word + 's'}"


def time_cell(seconds: float) -> Cell:
    return Cell(duration(seconds), seconds)


def size_cell(count: float) -> Cell:
    return Cell(size(count), count)


def number_cell(count: int) -> Cell:
    return Cell(f"{count:,}", count)


def share_cell(part: float, kind: str = "run") -> Cell:
    width = max(0.0, min(1.0, part)) * 100
    bar = f'<span class="meter"><i class="k-{kind}" style="width:{width:.2f}%"></i></span>'
    return Cell(f'{bar}<span class="n">{text(percent(part))}</span>', part)


def table(caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> str:
    """A table that can be sorted; of many rows the first are shown until all are asked for.

    On a narrow screen each row is a card, on which the numbers carry their titles.
    """
    out = ['<div class="table"><table role="table">']
    out.append(f'<caption>{text(caption)}</caption><thead role="rowgroup"><tr role="row">')
    for column in columns:
        out.append(f'<th role="columnheader" scope="col" class="{column.kind}">{column.title}</th>')
    out.append('</tr></thead><tbody role="rowgroup">')
    for i, row in enumerate(rows[:_MOST_ROWS]):
        out.append(f'<tr role="row"{" class=more" if i >= _SHOWN_ROWS else ""}>')
        for column, cell in zip(columns, row, strict=True):
            value = f"{cell.value:.9g}" if isinstance(cell.value, float) else text(cell.value)
            out.append(
                f'<td role="cell" class="{column.kind}" data-v="{value}" '
                f'data-t="{column.title}">{cell.shown}</td>'
            )
        out.append("</tr>")
    out.append("</tbody></table>")
    if len(rows) > _SHOWN_ROWS:
        kept = min(len(rows), _MOST_ROWS)
        out.append(
            f'<label class="all"><input type="checkbox"> Show all {kept}</label>'
            f'<p class="paper dim">The first {_SHOWN_ROWS} of {plural(kept, "row")}.</p>'
        )
    if len(rows) > _MOST_ROWS:
        out.append(f'<p class="dim">{len(rows) - _MOST_ROWS:,} more are left out.</p>')
    out.append("</div>")
    return "".join(out)


def legend(entries: Sequence[tuple[str, str, str]]) -> str:
    """Colours in words: class, name and value of each."""
    items = (
        f'<li><i class="k-{kind}"></i>{text(name)}{f" <b>{value}</b>" if value else ""}</li>'
        for kind, name, value in entries
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def stacked_bar(parts: Sequence[tuple[str, str, float]], words: str) -> str:
    """One bar of all parts (class, title, amount). `words` says the same to who cannot see it."""
    total = sum(amount for _, _, amount in parts) or 1.0
    pieces = (
        f'<i class="k-{kind}" style="width:{amount / total * 100:.3f}%" title="{text(title)}"></i>'
        for kind, title, amount in parts
        if amount > 0
    )
    return f'<div class="stack" role="img" aria-label="{text(words)}">{"".join(pieces)}</div>'


def bars(rows: Sequence[tuple[str, str, float, str, str]], total: float) -> str:
    """Horizontal bars: class, name (HTML), amount, its text, and a note. The longest is as wide as
    they get."""
    longest = max((amount for _, _, amount, _, _ in rows), default=0.0) or 1.0
    out = ['<ol class="bars">']
    for kind, name, amount, shown, note in rows:
        width = amount / longest * 100
        share = f'<span class="dim">{text(percent(amount / total))}</span>' if total > 0 else ""
        out.append(
            f'<li><span class="what">{name}</span><span class="bar">'
            f'<i class="k-{kind}" style="width:{width:.2f}%"></i></span>'
            f'<span class="much"><b>{shown}</b> {share}</span>'
            f'<span class="note dim">{note}</span></li>'
        )
    return "".join(out) + "</ol>"


def nice_step(length: float, most: int) -> float:
    """The least of 1, 2 or 5 times a power of ten that gives at most so many steps."""
    if length <= 0:
        return 1.0
    rough = length / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * f for f in (1, 2, 5, 10) if power * f >= rough * 0.999999)
