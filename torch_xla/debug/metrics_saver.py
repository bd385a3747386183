"""Reports of the metrics, appended to a file."""

from __future__ import annotations

import itertools
import os

from torch_xla._src import replication as _replication
from torch_xla.debug import metrics

_steps = itertools.count()


def _get_metrics_file() -> str | None:
    """The file of this process: `XLA_METRICS_FILE`, with the ordinal where there are several."""
    path = os.environ.get("XLA_METRICS_FILE")
    if not path:
        return None
    if _replication.world_size() > 1:
        return f"{path}.{_replication.global_ordinal()}"
    return path


def save_metrics(metrics_file: str | os.PathLike | None = None) -> None:
    """Appends the metrics' report to a file, under a line with the number of the report.

    Args:
        metrics_file: The file; without it that of `XLA_METRICS_FILE`, and nothing if that is not
            set.
    """
    path = metrics_file or _get_metrics_file()
    if path:
        with open(path, "a") as file:
            file.write(f"[MetricsData; step={next(_steps)}]\n{metrics.metrics_report()}\n")
