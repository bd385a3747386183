"""Counters and metrics of the running process, and their reports.

A counter is a named integer: `aten::nonzero` counts how often `nonzero` ran on the host. A metric
is a named series of samples: `CompileTime` has one per compilation. Both grow until cleared.
What comes very often, as `LazyTracing` (recording a call), is counted each time and timed once in
64, but for the first ones.
"""

from __future__ import annotations

from torch_xla import _XLAC

_SHORT_COUNTERS = ["CachedCompile", "UncachedCompile", "MarkStep", "DynamoSyncInputExecuteTime"]
_SHORT_METRICS = [
    "CompileTime",
    "ExecuteTime",
    "ExecuteReplicatedTime",
    "TransferToDeviceTime",
    "TransferFromDeviceTime",
]


def metrics_report() -> str:
    """The report of every counter and metric that has counted since the last clear.

    For a metric it gives the number of samples (`TotalSamples`), their sum (`Accumulator`), and
    over the samples that are kept the sum and the number per second (`ValueRate`, `Rate`) and the
    percentiles.
    """
    return _XLAC._xla_metrics_report()


def short_metrics_report(
    counter_names: list[str] | None = None, metric_names: list[str] | None = None
) -> str:
    """The report of a few counters and metrics.

    Args:
        counter_names: The counters to print; without any, compilations and steps. Those of
            operators that ran on the host are always printed.
        metric_names: The metrics to print; without any, the times of compilations, executions and
            transfers.
    """
    return _XLAC._short_xla_metrics_report(
        list(counter_names or _SHORT_COUNTERS), list(metric_names or _SHORT_METRICS)
    )


def counter_names() -> list[str]:
    """The names of the active counters, sorted. One that was cleared is active once it counts."""
    return _XLAC._xla_counter_names()


def counter_value(name: str) -> int | None:
    """The value of an active counter, None for any other name."""
    return _XLAC._xla_counter_value(name)


def metric_names() -> list[str]:
    """The names of the active metrics, sorted. One that was cleared is back at its next sample."""
    return _XLAC._xla_metric_names()


def metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    """The samples of an active metric, None for any other name.

    Returns:
        `(total_samples, accumulator, samples)`. The first two are the number and the sum of all
        samples since the last clear. `samples` holds the last ones (at most 1024) as pairs
        `(time, value)`, oldest first: time in seconds since the epoch; value in nanoseconds where
        the metric is a time, in bytes where it is a size.
    """
    return _XLAC._xla_metric_data(name)


def clear_counters() -> None:
    """Sets all counters back, so that none is active."""
    _XLAC._clear_xla_counters()


def clear_metrics() -> None:
    """Drops the samples of all metrics, so that none is active."""
    _XLAC._clear_xla_metrics()


def clear_all() -> None:
    """Clears counters and metrics, for example between epochs."""
    clear_metrics()
    clear_counters()


def executed_fallback_ops() -> list[str]:
    """The operators that ran on the host since the last clear, as their counters' names.

    Each is a detour from the device to the host and back. `aten::_local_scalar_dense` reads a
    value; `aten::nonzero`, `aten::masked_select` and the forms of `unique` read how long their
    result is. Others mean that a lowering is missing.
    """
    # Recorded calls are counted as `xla::<operator>`.
    return [name for name in counter_names() if "::" in name and not name.startswith("xla::")]
