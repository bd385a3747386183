"""Compares reports of the metrics of several runs, and tells which values are unusual."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any


def _metric_with(*percentiles: int) -> str:
    """The regular expression of a metric whose report has these percentiles."""
    return (
        r"Metric: (?P<metric_name>\S+)\s+TotalSamples: (?P<TotalSamples>\d+)"
        r"\s+(?:Counter|Accumulator): (?P<Accumulator>\S+)"
        r"(?:\s+(?:Value)?Rate: [^\n]*)*\s+Percentiles: "
        + "; ".join(rf"{p}%=(?P<Percentile_{p}>[^;\s]+)" for p in percentiles)
    )


_METRIC_REGEX = _metric_with(1, 5, 10, 20, 50, 80, 90, 95, 99)
_SERVER_METRIC_REGEX = _metric_with(25, 50, 80, 90, 95, 99)
_COUNTER_REGEX = r"Counter: (\S+)\s+Value: (\d+)"
_TIME_FIND_REGEX = (
    r"(?:(?P<days>\d+)d)?(?:(?P<hours>\d+)h)?(?:(?P<minutes>\d+)m(?!s))?"
    r"(?:(?P<seconds>\d+)s)?(?:(?P<milliseconds>\d+)ms)?(?:(?P<microseconds>[\d.]+)us)?$"
)
_DISK_SIZE_REGEX = r"(?P<size>[\d.]+)(?P<unit>[PTGMK]?)B$"

_SECONDS = {
    "days": 86400.0,
    "hours": 3600.0,
    "minutes": 60.0,
    "seconds": 1.0,
    "milliseconds": 1e-3,
    "microseconds": 1e-6,
}
_MEGABYTES = {"P": 1e9, "T": 1e6, "G": 1e3, "M": 1.0, "K": 1e-3, "": 1e-6}


def _regex_matches_groupdict(regex: str, target_str: str) -> dict[str, str | None] | None:
    """The groups that a regular expression matches at the start of a text; None if none does."""
    match = re.match(regex, target_str, re.IGNORECASE)
    return match.groupdict() if match is not None and any(match.groups()) else None


def _metric_str_to_number(metric_str: str) -> tuple[float, str]:
    """A value of a report as a number, and its unit: "" of plain numbers, "sec", "mb" (10^6 bytes).

    Raises:
        ValueError: The text is none of these.
    """
    try:
        return float(metric_str), ""
    except ValueError:
        pass
    parts = _regex_matches_groupdict(_TIME_FIND_REGEX, metric_str)
    if parts is not None:
        return sum(float(parts[unit] or 0) * size for unit, size in _SECONDS.items()), "sec"
    size = _regex_matches_groupdict(_DISK_SIZE_REGEX, metric_str)
    if size is not None:
        return float(size["size"] or 0) * _MEGABYTES[(size["unit"] or "").upper()], "mb"
    raise ValueError(
        "metrics_compare_utils: expected a number, a duration such as 01s200ms or a size such as "
        f"1.5GB, got '{metric_str}'."
    )


def parse_metrics_report(report: str, dehumanize: bool = True) -> dict[str, float | int | str]:
    """The values of a report.

    Args:
        report: As `torch_xla.debug.metrics.metrics_report()` gives it, or an earlier version of it.
        dehumanize: Whether durations and sizes become numbers, of seconds and 10^6 bytes.

    Returns:
        By name: `Metric__TotalSamples`, `Metric__Accumulator` and `Metric__Percentile_50`, the
        last two with `_sec` or `_mb` where they have become numbers of that unit, and
        `Counter__Value`.
    """
    values: dict[str, float | int | str] = {}
    for regex in (_METRIC_REGEX, _SERVER_METRIC_REGEX):
        for match in re.finditer(regex, report):
            found = match.groupdict()
            metric = found.pop("metric_name")
            values[f"{metric}__TotalSamples"] = int(found.pop("TotalSamples"))
            for name, text in found.items():
                if dehumanize:
                    number, unit = _metric_str_to_number(text)
                    values[f"{metric}__{name}" + (f"_{unit}" if unit else "")] = number
                else:
                    values[f"{metric}__{name}"] = text
    for name, value in re.findall(_COUNTER_REGEX, report):
        values[f"{name}__Value"] = int(value)
    return values


def get_data_points_from_metrics_reports(
    metrics_reports: Sequence[str],
) -> dict[str, list[float | None]]:
    """Each value's series over reports, in their order; None where one lacks it."""
    points: dict[str, list[Any]] = defaultdict(lambda: [None] * len(metrics_reports))
    for i, report in enumerate(metrics_reports):
        for name, value in parse_metrics_report(report).items():
            points[name][i] = value
    return dict(points)


def _compute_aggregates(
    data_points: Mapping[str, Sequence[float | None]],
) -> dict[str, dict[str, float]]:
    """The mean and the standard deviation (of the whole, not of a sample) of each series."""
    aggregates = {}
    for name, series in data_points.items():
        known = [v for v in series if v is not None]
        if known:
            aggregates[name] = {"mean": statistics.mean(known), "stddev": statistics.pstdev(known)}
    return aggregates


def compare_metrics(
    data_points: Mapping[str, Sequence[float | None]],
    metrics_report: str,
    config: Mapping[str, str] | None = None,
) -> str:
    """Which values of a report are not what earlier reports lead to expect.

    Args:
        data_points: Of the earlier reports, as `get_data_points_from_metrics_reports` gives them.
        metrics_report: The report to judge.
        config: For a value `NAME` the expression `NAME_expression` that holds where it is as
            expected, over `v`, `v_mean` and `v_stddev`; for all others `base_expression`, which is
            "v <= v_mean + (v_stddev * 2.0)" unless given. It is evaluated as Python: take it from
            nobody whom you would not let run code.

    Returns:
        A line for each value that is not; "" where all are. Counters of operators that ran on the
        host (`aten::`) and did not before are among them.
    """
    config = {"base_expression": "v <= v_mean + (v_stddev * 2.0)", **(config or {})}
    expected = _compute_aggregates(data_points)
    report = ""
    for name, v in parse_metrics_report(metrics_report).items():
        if name not in expected:
            if name.startswith("aten::"):
                report += f"Found new aten counter: {name}: {v}\n"
            continue
        mean, stddev = expected[name]["mean"], expected[name]["stddev"]
        expression = config.get(f"{name}_expression", config["base_expression"])
        scope = {"v": v, "v_mean": mean, "v_stddev": stddev}
        if not eval(expression, {"__builtins__": {}}, scope):
            report += (
                f"{name} failed its expectation: {expression}. Mean: {mean}  Standard deviation: "
                f"{stddev}  Actual value: {v}\n"
            )
    return report
