"""Reports of the metrics, appended to a file after each step where `XLA_METRICS_FILE` names one."""

from __future__ import annotations

import itertools
import os

from torch_xla import _XLAC
from torch_xla._src.job import place as _place
from torch_xla.debug import metrics

_steps = itertools.count()


def _counter() -> int:
    """The number of the next report, from 0."""
    return next(_steps)


def _extract_metrics_file() -> str | None:
    """The file of this process: `XLA_METRICS_FILE`, with the ordinal where there are several."""
    path = _XLAC._xla_flag("XLA_METRICS_FILE")
    if not path:
        return None
    if _place.world_size() > 1:
        return f"{path}.{_place.rank()}"
    return path


def _get_metrics_file() -> str | None:
    return _extract_metrics_file()


def save_metrics(metrics_file: str | os.PathLike[str] | None = None) -> None:
    """Appends the metrics' report to a file, under a line with the number of the report.

    Args:
        metrics_file: The file; without it that of `XLA_METRICS_FILE`, and nothing if that is not
            set.

    Raises:
        OSError: The file cannot be written.
    """
    path = metrics_file or _get_metrics_file()
    if path:
        with open(path, "a") as file:
            file.write(f"[MetricsData; step={_counter()}]\n{metrics.metrics_report()}\n")
