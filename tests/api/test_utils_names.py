"""Helpers of torch_xla.utils and torch_xla.debug: queues, closures, tags, functions, files."""

from __future__ import annotations

import inspect
import os
import socket
import threading
import time

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.utils.checkpoint as checkpoint
import torch_xla.utils.utils as xu
from torch_xla.debug import graph_saver, metrics_saver, model_comparator
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


# Queues


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


# Closures


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


# Checkpoints


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


# Small functions


def test_small_functions(monkeypatch):
    assert xu.as_list(1) == [1] and xu.as_list((1, 2)) == (1, 2)
    items = [1]
    assert xu.list_copy_append(items, 2) == [1, 2] and items == [1]
    assert xu.flatten_nested_tuple((1, (2, (3,)), ([4],))) == (1, 2, 3, [4])
    assert xu.shape([[1, 2, 3], [4, 5, 6]]) == [2, 3] and xu.shape(1) == [] and xu.shape([]) == [0]
    for text, yes in (("1", True), ("on", True), ("Yes", True), ("0", False), ("", False)):
        monkeypatch.setenv("SOME_FLAG", text)
        assert xu.check_env_flag("SOME_FLAG") is yes
    assert xu.check_env_flag("SOME_MISSING", default="true")
    assert xu.parallel_work(3, lambda a, b: a * b, range(5), [2] * 5) == [0, 2, 4, 6, 8]
    made = []
    lazy = xu.LazyProperty(lambda: made.append(1))
    assert lazy.value is None and lazy.value is None and made == [1]


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


def test_generators_by_next():
    samples = xu.SampleGenerator("data", 2)
    assert [samples.next(), next(samples)] == ["data", "data"]
    with pytest.raises(StopIteration):
        samples.next()
    assert list(samples) == ["data", "data"]  # an iteration has its own count
    batches = xu.FnDataGenerator(lambda data: data * 2, 4, torch.ones, dims=[3], count=1)
    data, label = batches.next()
    assert data.shape == (4, 3) and torch.equal(label, data * 2)
    with pytest.raises(StopIteration):
        batches.next()


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


# Files of the debugging tools


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


def test_view_sharing_is_found():
    x = torch.arange(4.0, device="xla")
    xm.check_view_sharing({"a": x, "b": [x, x.clone()], "c": x.cpu(), "d": 1})
    for y in (x[1:], x.view(2, 2), x.detach()):
        with pytest.raises(RuntimeError, match="share no memory.*Clone one of them"):
            xm.check_view_sharing([x, {"y": y}])
    cpu = torch.arange(4.0)
    with pytest.raises(RuntimeError, match="cpu"):
        xm.check_view_sharing((cpu, cpu[:2]))
