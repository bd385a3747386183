"""torch_xla.debug.frame_parser_util and metrics_compare_utils."""

from __future__ import annotations

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla.debug import frame_parser_util, metrics_compare_utils


def test_stacks_of_a_debug_file(tmp_path, monkeypatch, capsys):
    path = tmp_path / "debug.txt"
    monkeypatch.setenv("PT_XLA_DEBUG_FILE", str(path))
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "2")
    x = torch.rand(3).to("xla")

    def often():
        (x + 1).sum().item()

    def seldom():
        torch_xla.sync()

    for _ in range(3):
        often()
    y = x * 5
    seldom()
    del y
    monkeypatch.delenv("PT_XLA_DEBUG_FILE")
    frames = frame_parser_util.parse_frames(path.read_text().splitlines(keepends=True))
    by_count = sorted((count, stack) for stack, count in frames.items())
    assert by_count[-1][0] >= 3 and "often (" in by_count[-1][1]
    assert any("seldom (" in stack for stack in frames)
    frame_parser_util.process_frames(path)
    printed = capsys.readouterr().out
    assert printed.index("often (") < printed.index("seldom (")
    assert f"FRAME (count={by_count[-1][0]}):" in printed
    monkeypatch.setenv("PT_XLA_DEBUG_FILE", str(tmp_path / "report"))
    frame_parser_util.process_frames(path)
    assert (tmp_path / "report").read_text() + "\n" == printed
    assert capsys.readouterr().out == ""


def test_lines_of_stacks():
    content = frame_parser_util.parse_frame_content
    assert content("train (train.py:12)\n") == "train (train.py:12)\n"
    assert content("[TAG aten::nonzero From Thread 12]\n") == 'Unlowered Op: "aten::nonzero"\n'
    assert content("Graph Info:\n") is None
    lines = [
        "Python Frames:\n", "a (a.py:1)\n", "C++ Frames:\n", "b (b.cpp:2)\n",
        "*** End stack trace ***\n", "\n", "c (c.py:3)",
    ]  # fmt: skip
    parsed = frame_parser_util.parse_frames(lines)
    assert parsed == {"Python Frames:\na (a.py:1)\n": 1, "c (c.py:3)": 1}


OLD = """
Metric: CompileTime
  TotalSamples: 2
  Accumulator: 01m02s003ms004.500us
  Percentiles: 25%=1s; 50%=002ms; 80%=3s; 90%=4s; 95%=5s; 99%=6s
Counter: aten::nonzero
  Value: 7
"""


def test_parsing_reports():
    parse = metrics_compare_utils.parse_metrics_report
    old = parse(OLD)
    assert old["CompileTime__TotalSamples"] == 2 and old["aten::nonzero__Value"] == 7
    assert old["CompileTime__Accumulator_sec"] == pytest.approx(62.0030045)
    assert old["CompileTime__Percentile_50_sec"] == pytest.approx(0.002)
    assert parse(OLD, dehumanize=False)["CompileTime__Accumulator"] == "01m02s003ms004.500us"

    met.clear_all()
    x = torch.rand(300, 500).to("xla")
    torch_xla.sync()
    (x @ x.mT).cpu()
    x.sum().item()
    now = parse(met.metrics_report())
    total, accumulated, samples = met.metric_data("InboundData")
    assert now["InboundData__TotalSamples"] == total
    assert now["InboundData__Accumulator_mb"] == pytest.approx(accumulated / 1e6, rel=0.05)
    total, accumulated, samples = met.metric_data("TransferFromDeviceTime")
    assert now["TransferFromDeviceTime__Accumulator_sec"] == pytest.approx(
        accumulated * 1e-9, rel=1e-3, abs=2e-6
    )
    median = sorted(value for _, value in samples)[total // 2]
    assert now["TransferFromDeviceTime__Percentile_50_sec"] == pytest.approx(
        median * 1e-9, rel=1e-3, abs=2e-6
    )
    counters = {name: met.counter_value(name) for name in met.counter_names()}
    assert counters and all(now[f"{name}__Value"] == value for name, value in counters.items())
    metrics = {key.split("__")[0] for key in now if key.endswith("TotalSamples")}
    assert metrics == set(met.metric_names())
    with pytest.raises(ValueError, match="expected a number, a duration .* got 'much'"):
        metrics_compare_utils._metric_str_to_number("much")


def test_comparing_reports():
    def report(compiled: int, extra: str = "") -> str:
        return f"Counter: UncachedCompile\n  Value: {compiled}\n{extra}"

    points = metrics_compare_utils.get_data_points_from_metrics_reports(
        [report(10), report(12), "", report(11)]
    )
    assert points == {"UncachedCompile__Value": [10, 12, None, 11]}
    compare = metrics_compare_utils.compare_metrics
    assert compare(points, report(12)) == ""
    assert compare(points, report(13)).startswith("UncachedCompile__Value failed its expectation")
    strict = {"UncachedCompile__Value_expression": "v < v_mean"}
    assert "v < v_mean" in compare(points, report(11), strict)
    assert compare(points, report(10), strict) == ""
    new = report(11, "Counter: aten::nonzero\n  Value: 3\nCounter: other\n  Value: 1\n")
    assert compare(points, new) == "Found new aten counter: aten::nonzero__Value: 3\n"
