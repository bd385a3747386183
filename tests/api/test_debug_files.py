"""The files that debugging variables name: graphs, metrics, failing programs; and the log.

Units: executor/insight/dumps.
"""

from __future__ import annotations

import re

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla.debug import metrics_saver
from torch_xla.experimental.stablehlo_custom_call import stablehlo_custom_call

GRAPH = re.compile(r"## BEGIN_GRAPH\n(.*?)\nGraph Hash: [0-9a-f]{32}\n\n## END_GRAPH\n\n", re.S)
VARIABLES = (
    "XLA_SAVE_TENSORS_FILE",
    "XLA_SAVE_TENSORS_FMT",
    "XLA_SAVE_HLO_FILE",
    "XLA_DUMP_HLO_GRAPH",
    "XLA_METRICS_FILE",
)


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    torch_xla.sync()
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def x() -> torch.Tensor:
    x = torch.rand(2, 3).to("xla")
    torch_xla.sync()
    return x


def step(x):
    y = torch.tanh(x) * 2
    torch_xla.sync()
    return y


def test_graphs_are_added(x, tmp_path, monkeypatch):
    path = tmp_path / "graphs.0"
    path.write_text("kept\n")
    monkeypatch.setenv("XLA_SAVE_TENSORS_FILE", str(tmp_path / "graphs"))
    step(x)
    once = path.read_text()
    assert once.startswith("kept\n[ScheduleSyncTensorsGraph]\nTensorsGraphInfo:\n  sync (")
    assert f"  step ({__file__}:" in once
    assert f"  test_graphs_are_added ({__file__}:" in once
    (graph,) = GRAPH.findall(once)
    assert graph.startswith("IR {\n") and "aten::tanh(%0) : Float[2,3]" in graph
    assert "Graph Name" not in once
    hashes = re.findall(r"^Root Hashes: \(([0-9a-f]{32})\)$", once, re.M)
    step(x)
    assert GRAPH.findall(path.read_text()) == [graph, graph]
    assert re.findall(r"^Root Hashes: \((.*)\)$", path.read_text(), re.M) == 2 * hashes
    float(x.sum())  # a read is a run, too
    assert "aten::sum" in GRAPH.findall(path.read_text())[2]
    monkeypatch.delenv("XLA_SAVE_TENSORS_FILE")
    size = path.stat().st_size
    step(x)
    assert path.stat().st_size == size


def test_graphs_of_compiled_functions_are_added_with_their_names(x, tmp_path, monkeypatch):
    path = tmp_path / "graphs.0"
    monkeypatch.setenv("XLA_SAVE_TENSORS_FILE", str(tmp_path / "graphs"))
    both = torch_xla.compile(lambda a: (a.tanh(), a + 3), name="both")
    both(x)
    tanh = step(x)
    del tanh
    first, second = path.read_text().split("[ScheduleSyncTensorsGraph]\n")[1:]
    assert first.startswith("Graph Name: both\nTensorsGraphInfo:\n  ")
    assert second.startswith("TensorsGraphInfo:\n  ")
    roots = re.search(r"^Root Hashes: \((\w{32}), (\w{32})\)$", first, re.M).groups()
    assert roots[0] != roots[1]
    with torch_xla.compile():
        alone = x + 3
    text = path.read_text()
    assert text.rpartition("Root Hashes: ")[2].startswith(f"({roots[1]})\n")  # of another graph
    run = torch.compile(lambda a: a * 5, backend="openxla")
    for _ in range(3):
        run(x)
    text = path.read_text()
    assert text.count("[ScheduleSyncTensorsGraph]\n") == text.count("[dynamo]\n") == 3
    assert len(GRAPH.findall(text)) == 6
    del alone


@pytest.mark.parametrize(
    ("form", "has"),
    [
        ("dot", ["digraph G {"]),
        ("hlo", ["HloModule "]),
        ("stablehlo", ["stablehlo.tanh"]),
        ("hlo|text", ["HloModule ", "IR {"]),
    ],
)
def test_forms_of_graphs(x, tmp_path, monkeypatch, form, has):
    path = tmp_path / "graphs.0"
    monkeypatch.setenv("XLA_SAVE_TENSORS_FILE", str(tmp_path / "graphs"))
    monkeypatch.setenv("XLA_SAVE_TENSORS_FMT", form)
    step(x)
    graphs = GRAPH.findall(path.read_text())
    assert len(graphs) == len(has)
    for graph, beginning in zip(graphs, has, strict=True):
        assert beginning in graph and "tanh" in graph


def test_frames_in_the_documents_recipe(x, tmp_path, monkeypatch):
    path = tmp_path / "graphs.0"
    for name, value in [
        ("XLA_IR_DEBUG", "1"),
        ("XLA_HLO_DEBUG", "1"),
        ("XLA_SAVE_TENSORS_FMT", "hlo|text"),
        ("XLA_SAVE_TENSORS_FILE", str(tmp_path / "graphs")),
    ]:
        monkeypatch.setenv(name, value)
    torch_xla.sync()  # from here on stacks are kept
    step(x)
    hlo, text = GRAPH.findall(path.read_text())
    assert re.search(r'metadata=\{.*source_file="[^"]*test_debug_files\.py" source_line=\d+', hlo)
    assert re.search(r"aten::tanh.*// \S*test_debug_files.py:\d+ \(step\) < ", text)


def test_wrong_settings_of_graphs(x, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_SAVE_TENSORS_FILE", str(tmp_path / "none" / "graphs"))
    with pytest.raises(RuntimeError, match="XLA_SAVE_TENSORS_FILE: expected a file that can be"):
        step(x)
    monkeypatch.setenv("XLA_SAVE_TENSORS_FILE", str(tmp_path / "graphs"))
    monkeypatch.setenv("XLA_SAVE_TENSORS_FMT", "png")
    with pytest.raises(ValueError, match="expected text, dot, hlo or stablehlo.*got 'png'"):
        step(x)
    monkeypatch.delenv("XLA_SAVE_TENSORS_FMT")
    torch.testing.assert_close(step(x).cpu(), torch.tanh(x.cpu()) * 2)  # nothing was lost


def no_such_target(x):
    """Cannot be compiled."""
    return stablehlo_custom_call((x,), "no_such_target", [(2, 3)], [torch.float32], api_version=2)


def too_large(x):
    """Compiles, and fails when it is run."""
    column = x.reshape(-1)[:1].expand(1 << 20).reshape(-1, 1)
    return torch.mm(column, column.t())


@pytest.mark.parametrize("dump", [False, True])
@pytest.mark.parametrize(
    ("fail", "message", "holds"),
    [
        (no_such_target, "no_such_target", "stablehlo.custom_call @no_such_target("),
        (too_large, "Out of memory", "stablehlo.dot_general"),
    ],
    ids=["compilation", "run"],
)
def test_a_program_that_fails(x, tmp_path, monkeypatch, fail, message, holds, dump):
    path = tmp_path / "failed"
    monkeypatch.setenv("XLA_SAVE_HLO_FILE", str(path))
    if dump:
        monkeypatch.setenv("XLA_DUMP_HLO_GRAPH", "1")
    y = fail(x)
    with pytest.raises(RuntimeError, match=message) as raised:
        torch_xla.sync(wait=True)
    del y  # else it would fail again
    assert (holds in str(raised.value)) is dump
    assert holds in path.read_text() and "func.func @main" in path.read_text()
    torch.testing.assert_close(step(x).cpu(), torch.tanh(x.cpu()) * 2)  # nothing was lost


def test_an_error_stays_where_the_file_cannot_be_written(x, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_SAVE_HLO_FILE", str(tmp_path / "none" / "failed"))
    y = no_such_target(x)
    with pytest.raises(RuntimeError, match="no_such_target.*\n.*none/failed' cannot be written"):
        torch_xla.sync()
    del y


def test_programs_that_do_not_fail_leave_nothing(x, tmp_path, monkeypatch):
    path = tmp_path / "failed"
    monkeypatch.setenv("XLA_SAVE_HLO_FILE", str(path))
    monkeypatch.setenv("XLA_DUMP_HLO_GRAPH", "1")
    torch.testing.assert_close(step(x).cpu(), torch.tanh(x.cpu()) * 2)
    assert not path.exists()


def test_metrics_are_added_after_each_step(x, tmp_path, monkeypatch):
    path = tmp_path / "metrics"
    path.write_text("kept\n")
    monkeypatch.setenv("XLA_METRICS_FILE", str(path))
    met.clear_all()
    step(x)
    step(x)
    text = path.read_text()
    assert text.startswith("kept\n[MetricsData; step=")
    heads = re.findall(r"^\[MetricsData; step=(\d+)\]$", text, re.M)
    assert int(heads[1]) == int(heads[0]) + 1
    assert re.findall(r"Counter: MarkStep\n  Value: (\d+)", text) == ["1", "2"]
    monkeypatch.delenv("XLA_METRICS_FILE")
    step(x)
    assert path.read_text() == text
    metrics_saver.save_metrics(tmp_path / "other")
    assert "Counter: MarkStep\n  Value: 3" in (tmp_path / "other").read_text()


def test_nothing_is_written_without_them(run_python, tmp_path):
    done = run_python(
        """
        import torch, torch_xla
        x = torch.rand(3).to("xla")
        for _ in range(20):
            x = x * 2
            torch_xla.sync()
        print(x.cpu().shape)
        """,
        env={name: None for name in (*VARIABLES, "PT_XLA_DEBUG_LEVEL", "TF_CPP_MIN_LOG_LEVEL")},
    )
    assert done.stderr == "" and done.stdout == "torch.Size([3])\n"
    assert list(tmp_path.iterdir()) == []


LOGS = """
    import torch, torch_xla
    x = torch.rand(3).to("xla")
    (x * 2).cpu()
"""


def test_verbose_log(run_python):
    names = "xla_graph_executor=5,pjrt_computation_client=3"
    env = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": names, "TF_CPP_LOG_THREAD_ID": None}
    lines = run_python(LOGS, env=env).stderr.splitlines()
    verbose = [line for line in lines if re.match(r"V\d{4} [\d:.]+ executor/", line)]
    assert verbose, lines
    env["TF_CPP_LOG_THREAD_ID"] = "1"
    with_thread = run_python(LOGS, env=env).stderr
    assert re.search(r"^V\d{4} [\d:.]+ \d+ executor/", with_thread, re.M), with_thread
    env["TF_CPP_MIN_LOG_LEVEL"] = "1"
    assert not re.search(r"^V\d{4}", run_python(LOGS, env=env).stderr, re.M)


@pytest.mark.parametrize(("level", "told"), [("0", True), ("1", True), ("2", False)])
def test_log_levels(run_python, level, told):
    code = """
        import torch, torch_xla
        def step(n):
            y = torch.ones(n).to("xla") * 2
            torch_xla.sync()
        step(2), step(3)
    """
    done = run_python(code, env={"TF_CPP_MIN_LOG_LEVEL": level})
    assert bool(re.search(r"^W\d{4} .*Recompiled", done.stderr, re.M)) is told


def test_stacks_of_a_fatal_signal(run_python):
    code = """
        import os, signal, torch, torch_xla
        def crash():
            os.kill(os.getpid(), signal.SIGSEGV)
        crash()
    """
    for value in ("1", "0"):
        done = run_python(
            code, env={"XLA_DUMP_FATAL_STACK": value}, check=False, fresh=True, timeout=600
        )
        assert done.returncode == -11
        assert ("Fatal Python error: Segmentation fault" in done.stderr) is (value == "1")
        assert ("in crash" in done.stderr) is (value == "1")
        assert ("SIGSEGV" in done.stderr) is (value == "1")  # the stacks of C++


def test_fatal_signals_have_room_on_their_stack(run_python):
    # The handlers of Python and PyTorch need 12 KiB of it, and more on some processors.
    code = """
        import ctypes, torch_xla
        class Stack(ctypes.Structure):
            _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
        stack = Stack()
        assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack)) == 0
        print(stack.size)
    """
    done = run_python(code, env={"XLA_DUMP_FATAL_STACK": "1"}, fresh=True)
    assert int(done.stdout) >= 1 << 20
