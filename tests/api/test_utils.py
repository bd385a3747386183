"""torch_xla.utils, test and debug: queues, closures, tags, files, and reports that are read."""

from __future__ import annotations

import inspect
import os
import socket
import sys
import threading
import time
import types
import unittest

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.utils.checkpoint as checkpoint
import torch_xla.utils.utils as xu
from torch_xla.debug import (
    frame_parser_util,
    graph_saver,
    metrics_compare_utils,
    metrics_saver,
    model_comparator,
)
from torch_xla.test.test_utils import mp_test
from torch_xla.utils.checkpoint_tagger import CheckpointTagger
from torch_xla.utils.closures import AsyncClosureHandler, ClosureHandler
from torch_xla.utils.keyd_queue import KeydQueue, Queue


def in_thread(function):
    """Starts it; returns a function that waits for its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()

    def result():
        thread.join(10)
        assert not thread.is_alive()
        return results[0]

    return result


def test_queue_keeps_the_order_and_its_bound():
    queue = Queue(maxsize=2)
    assert queue.max_size() == 2
    queue.put(1)
    queue.put(2)
    third = in_thread(lambda: queue.put(3))
    time.sleep(0.05)
    assert [queue.get(), queue.get(), queue.get()] == [1, 2, 3]
    third()
    waiting = in_thread(queue.get)
    queue.put("late")
    assert waiting() == "late"


def test_queue_ends():
    queue = Queue()
    queue.put(1)
    queue.close_write()
    assert queue.get() == 1 and queue.get() is None
    with pytest.raises(RuntimeError, match="after close_write"):
        queue.put(2)
    queue = Queue(maxsize=1)
    queue.put(1)
    blocked = in_thread(lambda: queue.put(2))
    queue.close()
    blocked()
    assert queue.get() is None
    queue.put(3)  # to a closed queue: dropped
    assert queue.get() is None


def test_keyed_queue():
    queue = KeydQueue(maxsize=3)
    waiting = in_thread(lambda: queue.get("b"))
    queue.put("a", 1)
    queue.put("b", 2)
    queue.put("a", 3)
    assert waiting() == 2 and queue.get("a") == 1 and queue.get("a") == 3
    waiting = in_thread(lambda: queue.get("a"))
    queue.close_write()
    assert waiting() is None and queue.get("c") is None


def test_asynchronous_handler_runs_in_order_and_raises_at_the_next_call():
    handler, seen, gate = AsyncClosureHandler(max_queue_size=2), [], threading.Event()
    handler.start_event_loop()
    handler.run(gate.wait)
    handler.run_all([lambda: seen.append(1), lambda: seen.append(2)])
    full = in_thread(lambda: handler.run(lambda: seen.append(threading.get_ident())))
    time.sleep(0.05)
    assert seen == []
    gate.set()
    full()
    handler.run(lambda: 1 / 0)
    deadline = time.monotonic() + 10
    with pytest.raises(ZeroDivisionError):
        while time.monotonic() < deadline:
            handler.run(int)
    assert seen[:2] == [1, 2] and seen[2] != threading.get_ident()
    done = threading.Event()
    handler.run(done.set)
    assert done.wait(10)


def test_handlers_of_ones_own():
    class Direct(ClosureHandler):
        def run(self, closure):
            closure()

    seen = []
    Direct().run_all([lambda: seen.append(1), lambda: seen.append(2)])
    assert seen == [1, 2]
    with pytest.raises(TypeError, match="abstract"):
        ClosureHandler()


def test_tags_move_and_the_last_one_removes():
    removed = []
    tagger = CheckpointTagger(remover=removed.append)
    tagger.tag("best", "1.pt")
    tagger.tag("last", "1.pt")
    tagger.tag("last", "2.pt")
    assert tagger.tags == {"best": "1.pt", "last": "2.pt"} and removed == []
    tagger.tag("last", "2.pt")
    tagger.tag("best", "2.pt")
    assert removed == ["1.pt"]
    again = CheckpointTagger.load_from_json(tagger.save_to_json(), remover=removed.append)
    assert again.tags == tagger.tags
    again.tag("best", "3.pt")
    again.tag("last", "3.pt")
    assert removed == ["1.pt", "2.pt"]


def test_device_states_repeat_random_numbers():
    x = torch.ones(2, device="xla")
    devices, states = checkpoint.get_device_states(x, torch.ones(2), 7, x + 1)
    assert devices == [torch.device("xla:0")] and isinstance(states[0], int)
    first = torch.rand(3, device="xla").tolist()
    checkpoint.set_device_states(devices, states)
    assert torch.rand(3, device="xla").tolist() == first
    assert issubclass(checkpoint.CheckpointFunction, torch.autograd.Function)


def test_eprint(capsys):
    xu.eprint("a", 1, sep="-")
    assert capsys.readouterr().err == "a-1\n"


def test_folders_and_cleaners():
    with xu.TmpFolder() as folder:
        open(os.path.join(folder, "file"), "w").close()
        assert os.listdir(folder) == ["file"]
    assert not os.path.exists(folder)
    seen = []
    with pytest.raises(KeyError), xu.Cleaner(lambda: seen.append(1)):
        raise KeyError
    assert seen == [1]


def test_free_ports_are_distinct_and_free():
    ports = xu.get_free_tcp_ports(3)
    assert len(set(ports)) == 3
    for port in ports:
        with socket.socket() as s:
            s.bind(("", port))


def test_nested_values_with_a_memory():
    def number(v):
        return isinstance(v, float)

    big, seen, visited = 1000.5, set(), []
    xu._for_each_instance([big, (big, 2.5)], number, visited.append, seen)
    assert sorted(visited) == [2.5, 1000.5] and id(big) in seen
    xu._for_each_instance([big], number, visited.append, seen)
    assert len(visited) == 2
    known = {id(big): "known"}
    other = 3.25
    rewritten = xu._for_each_instance_rewrite({"a": big, "b": other}, number, str, known)
    assert rewritten == {"a": "known", "b": "3.25"} and known[id(other)] == "3.25"


def test_metrics_files(tmp_path, monkeypatch):
    met.clear_all()
    (torch.ones(2, device="xla") + 1).tolist()
    path = tmp_path / "metrics"
    metrics_saver.save_metrics(path)
    monkeypatch.delenv("XLA_METRICS_FILE", raising=False)
    metrics_saver.save_metrics()
    monkeypatch.setenv("XLA_METRICS_FILE", str(path))
    metrics_saver.save_metrics()
    text = path.read_text()
    assert text.count("[MetricsData; step=") == 2 and text.count("Metric: ExecuteTime\n") == 2


def test_graphs_are_saved_once_each(tmp_path):
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    for _ in range(2):
        graph_saver.save_tensors_graph(tmp_path / "graphs", "loss", [x.sin() + 1])
    graph_saver.save_tensors_graph(tmp_path / "graphs", "loss", [x.cos() + 1])
    first, second = sorted((tmp_path / "graphs").iterdir())
    assert (first.name, second.name) == ("loss-0.txt", "loss-1.txt")
    assert "aten::sin" in first.read_text() and "aten::cos" in second.read_text()


def test_runs_are_compared(tmp_path):
    for run, change in (("a", 0.0), ("b", 0.5)):
        model_comparator.configure(tmp_path / run)
        for step in (0, 1):
            x = torch.arange(6.0, device="xla").reshape(2, 3)
            model_comparator.save("layer/x", x, step=step)
            x[1, 2] += change * step
            x[0, 1] += 4 * change * step
            model_comparator.save("layer/x", x, step=step)
    model_comparator.save("only", torch.ones(2), step=1)
    line = inspect.currentframe().f_lineno + 1
    model_comparator.save(None, torch.ones(2), step=1)
    unnamed = [p.name for p in (tmp_path / "b").glob("*.py.*")]
    assert unnamed == [f"{os.path.basename(__file__)}.l{line}-0-1.pt"]
    (tmp_path / "b" / unnamed[0]).unlink()
    assert model_comparator.compare(tmp_path / "a", tmp_path / "a") == ""
    assert model_comparator.compare(tmp_path / "a", tmp_path / "b").splitlines() == [
        f"only-0-1.pt: only in {tmp_path / 'b'}",
        "layer.x-1-1.pt:",
        "  (0, 1): 1.0 != 3.0",
        "  (1, 2): 5.0 != 5.5",
    ]
    compare = model_comparator.compare_tensors
    zeros, nan = torch.zeros(40), torch.full((40,), torch.nan)
    assert compare(nan, nan) == "" and compare(zeros, zeros + 1e-9) == ""
    lines = compare(zeros, nan, max_diffs=3).splitlines()
    assert len(lines) == 4 and lines[-1] == "  and 37 others"
    assert "(40,) torch.float32 != (40,) torch.int64" in compare(zeros, zeros.long())


def found(value, kind=int):
    values = []
    xu.for_each_instance(value, lambda v: isinstance(v, kind), values.append)
    return values


class Holder:
    def __init__(self, **values):
        self.__dict__.update(values)


@pytest.mark.forks
def test_a_test_in_a_process_of_its_own(tmp_path):
    class Case(unittest.TestCase):
        @mp_test
        def test_passes(self):
            (tmp_path / "process").write_text(str(os.getpid()))

        @mp_test
        def test_fails(self):
            sys.stderr = open(os.devnull, "w")
            self.assertEqual(1, 2)

        @mp_test
        def test_exits(self):
            os._exit(7)

    assert Case.test_passes.__name__ == "test_passes"
    results = {}
    for name in ("test_passes", "test_fails", "test_exits"):
        result = unittest.TestResult()
        Case(name).run(result)
        results[name] = (result.testsRun, len(result.failures), len(result.errors))
    assert results == {"test_passes": (1, 0, 0), "test_fails": (1, 1, 0), "test_exits": (1, 1, 0)}
    assert int((tmp_path / "process").read_text()) != os.getpid()
    assert mp_test(lambda status: os._exit(status))(3) == 3


def test_what_is_inside_is_visited_in_order_and_once():
    holder = Holder(a=3, b=[4, {7: 8}])
    assert found({1: 2, 30: [40, holder, holder], "k": (6, {9})}) == [
        1,
        2,
        30,
        40,
        3,
        4,
        7,
        8,
        6,
        9,
    ]
    assert found({"b": {"c": "d"}, "a": ["e"]}, str) == ["b", "c", "d", "a", "e"]
    assert found([1000, int("1000")]) == [1000, 1000]  # equal, and two objects
    cycle: list = [1]
    cycle.append(cycle)
    assert found(cycle) == [1] and found(5) == [5]
    whole = []
    xu.for_each_instance({1: 2}, lambda v: True, whole.append)
    assert whole == [{1: 2}]


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


def test_deprecated_names_warn_once(caplog):
    from torch_xla.experimental import deprecation

    old = types.ModuleType("old")

    def new(a, b=2):
        """What it does."""
        return a + b

    deprecation.register_deprecated(old, new)
    renamed = deprecation.deprecated(old, new, old_name="former", extra_msg="It adds.")
    assert renamed.__doc__ == "What it does."

    @deprecation.mark_deprecated(new, extra_msg="It goes.")
    def marked(a):
        raise AssertionError("the old function is called")

    for _ in range(2):
        assert (old.new(1, b=3), renamed(1), marked(5)) == (4, 3, 7)
    assert caplog.messages == [
        f"old.new is deprecated. Use {__name__}.new instead.",
        f"old.former is deprecated. Use {__name__}.new instead. It adds.",
        f"{__name__}.marked is deprecated. Use {__name__}.new instead. It goes.",
    ]


def test_summaries(tmp_path):
    from torch_xla.test import test_utils

    calls = []
    writer = types.SimpleNamespace(
        add_scalar=lambda *args: calls.append(args),
        flush=lambda: calls.append("flush"),
        close=lambda: calls.append("close"),
    )
    met.clear_all()
    (torch.ones(2, device="xla") + 1).tolist()
    test_utils.write_to_summary(writer, 3, {"loss": 0.5})
    assert calls == [("loss", 0.5, 3)]
    test_utils.write_to_summary(writer, 4, write_xla_metrics=True)
    shown = {name: value for name, value, _ in calls[1:]}
    assert shown["ExecuteTime"] == met.metric_data("ExecuteTime")[1] > 0
    assert all(shown[name] == met.counter_value(name) for name in met.counter_names())
    test_utils.close_summary_writer(writer)
    assert calls[-2:] == ["flush", "close"]
    assert test_utils.get_summary_writer(None) is None
    test_utils.write_to_summary(None, 0, {"loss": 1.0}, write_xla_metrics=True)
    test_utils.close_summary_writer(None)
    assert test_utils._get_device_spec(xm.xla_device()) == "xla:0/0"
