"""Compilations that take long, on a terminal."""

from __future__ import annotations

import sys
import threading

_bars: dict[int, object] = {}  # by thread: several may compile


def show(what: str, seconds: float, ended: bool) -> None:
    """Shows that `what` has taken some seconds until now, on stderr if that is a terminal.

    Without the package tqdm, and in a file, nothing is shown.
    """
    if not sys.stderr.isatty():
        return
    try:
        from tqdm import tqdm
    except ImportError:
        return
    thread = threading.get_ident()
    bar = _bars.get(thread)
    if bar is None:
        if ended:
            return
        bar = _bars[thread] = tqdm(
            desc=what, bar_format="{desc}: {elapsed}", leave=False, file=sys.stderr
        )
        bar.start_t -= seconds
    if ended:
        _bars.pop(thread).close()
    else:
        bar.refresh()
