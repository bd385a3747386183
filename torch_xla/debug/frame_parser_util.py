"""Counts the stacks of Python frames in a file of debugging output, most frequent first.

`PT_XLA_DEBUG_FILE` holds such stacks, and each tells which line of a program asked for a
compilation or a run:

    >>> from torch_xla.debug import frame_parser_util
    >>> frame_parser_util.process_frames("debug.txt")
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from torch_xla import _XLAC

_TITLE = re.compile(r"(Compilation|Execution|Post Compilation) Analysis: ")
_FRAME = re.compile(r"\s*\S.* \(.*:\d+\)\s*$")
_TAG = re.compile(r"\[TAG (.*) From Thread \d+\]")
_RULE = "=" * 80


def parse_frame_content(line: str) -> str | None:
    """The part of a stack that a line adds: itself if it is a frame, `function (file:line)`, or a
    title; the operator's name if it is a tag; None for all others."""
    tag = _TAG.match(line)
    if tag is not None:
        return f'Unlowered Op: "{tag[1]}"\n'
    if line.startswith("Python Frames:") or _FRAME.match(line):
        return line
    return None


def parse_frames(lines: Iterable[str]) -> dict[str, int]:
    """The count of each stack.

    Args:
        lines: Of a text, with their ends. Stacks of C++ in it, from "C++ Frames:" to "*** End stack
            trace ***", are left out.
    """
    stacks: Counter[str] = Counter()
    stack, in_cpp = "", False
    for line in (*lines, ""):
        line = _TITLE.sub("", line)
        if line.startswith("C++ Frames:"):
            in_cpp = True
        elif line.startswith("*** End stack trace ***"):
            in_cpp = False
        elif not in_cpp:
            content = parse_frame_content(line)
            if content is not None:
                stack += content
            elif stack:
                stacks[stack] += 1
                stack = ""
    return dict(stacks)


def create_report(frames: Mapping[str, int]) -> None:
    """Prints stacks with their counts, or writes them to the file that `PT_XLA_DEBUG_FILE` names.

    Args:
        frames: As `parse_frames` gives them.
    """
    report = [_RULE, "Stacks by how often they occur", "-" * 80]
    for stack in sorted(frames, key=lambda s: -frames[s]):
        report += [f"FRAME (count={frames[stack]}):", stack, ""]
    text = "\n".join([*report, _RULE])
    path = _XLAC._xla_flag("PT_XLA_DEBUG_FILE")
    if path:
        with open(path, "w") as file:
            file.write(text)
    else:
        print(text)


def process_frames(fname: str | os.PathLike[str]) -> None:
    """`create_report` of the stacks in a file."""
    with open(fname) as file:
        frames = parse_frames(file)
    create_report(frames)
