"""`torch_xla.debug.report`: the file of the page that shows a run."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

from torch_xla import _XLAC
from torch_xla._src.insight import recording
from torch_xla._src.insight.cost import Cost
from torch_xla._src.report import page as report_page
from torch_xla._src.report.figures import collect


def report(path: str | os.PathLike, cost: Cost | None = None) -> None:
    """Writes a page about this run: one HTML file that needs nothing else.

    Of the `record()` that is on, or of the one that ended last, it has where the time went, what
    was compiled again and why, which lines waited, and what lies in the memory. Without a recording
    it has what is counted always.

    Args:
        path: Of the file. One that is there is replaced, at once and as a whole; a device or a pipe
            is written to.
        cost: What `torch_xla.debug.cost` has measured, for tables of operators, lines and modules.

    Raises:
        OSError: The file cannot be written.
        TypeError: `cost` is something else.

    Example:
        >>> with torch_xla.debug.record():
        ...     train()
        >>> torch_xla.debug.report("report.html", cost=torch_xla.debug.cost(train_step, batch))
    """
    if cost is not None and not all(hasattr(cost, name) for name in ("lines", "machine")):
        raise TypeError(
            "report: expected cost to be what torch_xla.debug.cost(..) returns, got "
            f"{type(cost).__name__}."
        )
    target = _target(path)
    _write(target, report_page.page(collect(cost)))


def report_at_exit() -> None:
    """Writes the page that `XLA_REPORT_FILE` asks for. What goes wrong is printed."""
    path = _XLAC._xla_flag("XLA_REPORT_FILE")
    if not path:
        return
    if multiprocessing.parent_process() is not None:
        if not _XLAC._xla_is_initialized():
            return  # a worker of a data loader
        target = Path(path)
        path = target.with_name(f"{target.stem}.{os.getpid()}{target.suffix}")
    on = recording.current()
    try:
        try:
            if on is not None:
                on.stop()
        finally:
            report(path)
    except Exception as error:
        print(f"torch_xla: {error}", file=sys.stderr)


def _target(path: str | os.PathLike) -> Path:
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        what = "a folder" if target.is_dir() else "one in a folder that does not exist"
        raise OSError(
            f"report: expected the path of a file, in a folder that exists, got {what}: {target}."
        )
    return target


def _write(target: Path, text: str) -> None:
    """The whole file or none. What is no file, as /dev/null, is not to be replaced by one."""
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8", errors="replace")
        return
    target = Path(os.path.realpath(target))  # a link stays
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8", errors="replace")
        os.replace(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
