"""torch_xla.debug.profiler: what a recording holds, its files, its server and its client.

Units: _src/profile.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import torch_xla
import torch_xla.debug.profiler as xp
import torch_xla.runtime as xr
from torch_xla import _XLAC
from torch_xla._src.profile.messages import messages


@pytest.fixture(autouse=True)
def ended():
    """No recording goes on into the next test."""
    yield
    if _XLAC._xla_is_tracing():
        _XLAC._xla_stop_trace()
    xp._profile_state.reset()


def work(x: torch.Tensor) -> torch.Tensor:
    with xp.Trace("forward", rows=x.shape[0]):
        y = torch.tanh(x @ x.mT)
    torch_xla.sync()
    return y


@pytest.fixture
def x() -> torch.Tensor:
    torch_xla.sync()
    xr.clear_computation_cache()
    return torch.rand(30, 30).to("xla")


def space_in(log_dir: Path):
    (path,) = Path(log_dir).glob("plugins/profile/*/*.xplane.pb")
    return messages().XSpace.FromString(path.read_bytes())


def events_of(space) -> dict[str, list[tuple[str, int, int, dict]]]:
    """Of each plane its events: name, begin and end in picoseconds, details."""
    found: dict[str, list] = {}
    for plane in space.planes:
        events = found.setdefault(plane.name, [])
        for line in plane.lines:
            for e in line.events:
                details = {
                    plane.stat_metadata[s.metadata_id].name: s.str_value or s.int64_value
                    for s in e.stats
                }
                begin = line.timestamp_ns * 1000 + e.offset_ps
                named = plane.event_metadata[e.metadata_id]
                name = named.display_name or named.name
                events.append((name, begin, begin + e.duration_ps, details))
    return found


def test_a_recording(x, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_BACKGROUND_COMPILE", "0")  # what is within what
    before = time.time_ns()
    xp.start_trace(tmp_path)
    first = work(x)
    work(x)
    first.cpu()
    float(first.sum())
    xp.stop_trace()
    after = time.time_ns()
    planes = events_of(space_in(tmp_path))
    host, device = planes["/host:CPU"], planes["/device:CUSTOM:xla:0"]
    names = [e[0] for e in host]
    assert names.count("forward") == 2 and names.count("sync") == 2
    assert names.count("compile") == names.count("lower") == 2  # the step and the sum
    assert names.count("launch") == 3
    assert {"TransferFromDevice", "a copy to the CPU", "a number that Python reads"} <= set(names)
    for name, begin, end, _ in (*host, *device):
        assert before <= begin // 1000 <= end // 1000 <= after, name
    named = {name: details for name, _, _, details in host}
    assert named["forward"] == {"rows": "30"}
    assert named["compile"]["program"] == "read" and len(named["compile"]["graph"]) == 32
    assert f"{__file__}:" in named["launch"]["line"]
    # What is within what.
    spans = {name: (begin, end) for name, begin, end, _ in host}
    syncs = [(b, e) for name, b, e, _ in host if name == "sync"]
    launches = [(b, e) for name, b, e, _ in host if name == "launch"]
    assert all(any(b <= lb <= le <= e for lb, le in launches) for b, e in syncs)
    outer, inner = spans["a number that Python reads"], spans["TransferFromDevice"]
    assert outer[0] <= inner[0] <= inner[1] <= outer[1]
    # What was recorded for a barrier, which begins when that ends.
    recorded = [(b, e) for name, b, e, _ in host if name == "record"]
    assert [e for _, e in recorded] == [b for b, _ in syncs]
    assert all(b <= e for b, e in recorded) and recorded[1][0] == syncs[0][1]
    forward = [(b, e) for name, b, e, _ in host if name == "forward"]
    assert all(b <= fb < fe <= e for (b, e), (fb, fe) in zip(recorded, forward, strict=True))
    # Programs are told apart, run one after the other, and not before their launch.
    assert len(device) == 3
    assert [e[0].split()[0] for e in device] == ["sync", "sync", "read"]
    assert device[0][0] == device[1][0] != device[2][0]
    for (_, _, end, _), (_, begin, _, _) in zip(device, device[1:], strict=False):
        assert end <= begin
    assert all(run[1] >= launch[0] for run, launch in zip(device, sorted(launches), strict=True))


def test_the_same_for_perfetto(x, tmp_path):
    xp.start_trace(tmp_path)
    work(x)
    xp.stop_trace()
    (path,) = tmp_path.glob("plugins/profile/*/*.trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    planes = events_of(space_in(tmp_path))
    assert len(spans) == sum(map(len, planes.values()))
    (forward,) = [e for e in spans if e["name"] == "forward"]
    assert forward["args"] == {"rows": "30"} and forward["dur"] > 0
    names = {(e["pid"], e["args"]["name"]) for e in events if e["ph"] == "M"}
    assert {(1, "/host:CPU"), (2, "/device:CUSTOM:xla:0"), (2, "Programs")} <= names


def test_steps(x, tmp_path):
    assert xp.get_tracer_marked_step() in (False, True)
    xp.set_tracer_marked_step(False)
    xp.start_trace(tmp_path)
    values = []
    for step in range(3):
        with xp.StepTrace("train_step", step_num=step):
            values.append(x + step)
        assert values[-1].cpu().equal(x.cpu() + step)
    xp.stop_trace()
    assert xp.get_tracer_marked_step()
    host = events_of(space_in(tmp_path))["/host:CPU"]
    steps = [e for e in host if e[0] == "train_step"]
    assert [e[3] for e in steps] == [{"_r": 1, "step_num": i} for i in range(3)]
    syncs = [e for e in host if e[0] == "sync"]
    assert all(any(step[1] <= sync[1] and sync[2] <= step[2] for sync in syncs) for step in steps)


def test_a_step_that_raises_is_not_run(x):
    with pytest.raises(ZeroDivisionError), xp.StepTrace("train_step"):
        y = x + 1
        _ = 1 / 0
    assert "aten::add" in _XLAC._get_xla_tensors_text([y])  # it still waits


def test_the_cause_of_a_step(x, tmp_path, monkeypatch):
    path = tmp_path / "told"
    monkeypatch.setenv("PT_XLA_DEBUG_FILE", str(path))
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "2")
    with xp.StepTrace("train_step"):
        y = x + 1
    assert "  torch_xla.sync when exiting a profiler StepTrace region\n" in path.read_text()
    del y


def test_traced_functions_and_threads(x, tmp_path):
    @xp.trace_me("loss")
    def loss(value):
        """Its text."""
        return value + 1

    assert loss.__name__ == "loss" and loss.__doc__ == "Its text."
    xp.start_trace(tmp_path)
    assert xp.Trace.is_enabled()
    thread = threading.Thread(target=loss, args=(1,))
    thread.start()
    thread.join()
    assert loss(2) == 3
    trace = xp.Trace("added", a=1)
    with trace:
        trace.set_metadata(b="two")
    xp.stop_trace()
    assert not xp.Trace.is_enabled()
    loss(4)
    space = space_in(tmp_path)
    (host,) = [plane for plane in space.planes if plane.name == "/host:CPU"]
    assert len(host.lines) == 2 and len({line.id for line in host.lines}) == 2
    events = events_of(space)["/host:CPU"]
    assert [e[0] for e in events].count("loss") == 2
    assert [e[3] for e in events if e[0] == "added"] == [{"a": "1", "b": "two"}]


def test_one_recording_at_a_time(tmp_path):
    with pytest.raises(RuntimeError, match=r"^No profile started"):
        xp.stop_trace()
    xp.start_trace(tmp_path)
    with pytest.raises(RuntimeError, match=r"^Only one profile may be run at a time"):
        xp.start_trace(tmp_path)
    with pytest.raises(RuntimeError, match="expected no other profile to be recorded"):
        _XLAC.profiler.TslProfilerSessionWrapper()
    xp.stop_trace()
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))


def test_names_of_the_extension(x, tmp_path):
    profiler = _XLAC.profiler
    session = profiler.TslProfilerSessionWrapper()
    scope = profiler.scope_pusher("scope")
    assert isinstance(scope, profiler.ScopePusher)
    with profiler.TraceMe("inner", n=1):
        work(x)
    del scope
    data = session.stop()
    session.export(data, tmp_path)
    names = [e[0] for e in events_of(space_in(tmp_path))["/host:CPU"]]
    assert {"scope", "inner", "forward"} <= set(names)


@pytest.fixture
def busy(x):
    """Steps, on a thread of their own, until the test ends."""
    done = threading.Event()

    def loop():
        while not done.is_set():
            work(x)
            time.sleep(0.005)

    thread = threading.Thread(target=loop)
    thread.start()
    yield
    done.set()
    thread.join()


def test_a_profile_that_is_asked_for(busy, tmp_path):
    server = xp.start_server(0)
    address = f"localhost:{server.port}"
    xp.trace(address, str(tmp_path), duration_ms=300)
    (path,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    assert path.name == f"localhost_{server.port}.xplane.pb"
    planes = events_of(space_in(tmp_path))
    assert {"sync", "launch", "forward"} <= {e[0] for e in planes["/host:CPU"]}
    assert len(planes["/device:CUSTOM:xla:0"]) > 3
    begin = min(e[1] for e in planes["/host:CPU"])
    assert max(e[2] for e in planes["/host:CPU"]) - begin < 2e12  # 300 ms, on a busy machine


def test_a_detached_trace_of_this_program(x, tmp_path):
    server = xp.start_server(0)
    thread = xp.trace_detached(f"localhost:{server.port}", str(tmp_path), duration_ms=200)
    while thread.is_alive():
        work(x)
    assert "forward" in {e[0] for e in events_of(space_in(tmp_path))["/host:CPU"]}


def test_nothing_to_record(tmp_path):
    server = xp.start_server(0)
    with pytest.raises(RuntimeError, match="expected the programs .* got 2 empty profiles"):
        xp.trace(f"localhost:{server.port}", str(tmp_path), duration_ms=10, num_tracing_attempts=2)
    assert not list(tmp_path.rglob("*.pb"))


def test_servers_that_are_not_there(tmp_path):
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        port = taken.getsockname()[1]
        with (
            pytest.warns(UserWarning, match=f"localhost:{port} cannot be asked .* again for 2 s"),
            pytest.raises(RuntimeError, match=f"expected a profile of localhost:{port}, got UNAV"),
        ):
            xp.trace(f"localhost:{port}", str(tmp_path), duration_ms=10, timeout_s=2, interval_s=1)
        taken.listen()
        with pytest.raises(RuntimeError, match=f"expected a free port, got localhost:{port}"):
            xp.start_server(port)
    with pytest.raises(RuntimeError, match="expected a port from 0 to 65535, got 70000"):
        xp.start_server(70000)
    with pytest.raises(ValueError, match="expected addresses such as"):
        xp.trace(" ", str(tmp_path))


def test_a_folder_that_cannot_be_written(busy, tmp_path):
    server = xp.start_server(0)
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match="INTERNAL: The profile cannot be written"):
        xp.trace(f"localhost:{server.port}", str(tmp_path / "file"), duration_ms=500)


def test_a_server_that_ends_while_it_records(busy, tmp_path):
    server = xp.start_server(0)
    assert xp.start_server(server.port) is server
    asked = threading.Thread(
        target=xp.trace,
        args=(f"localhost:{server.port}", str(tmp_path)),
        kwargs={"duration_ms": 600_000},
    )
    asked.start()
    while not _XLAC._xla_is_tracing():
        time.sleep(0.01)
    steps = _XLAC._xla_counter_value("MarkStep") or 0
    while (_XLAC._xla_counter_value("MarkStep") or 0) < steps + 3:
        time.sleep(0.01)
    del server
    gc.collect()
    names = {e[0] for e in events_of(space_in(tmp_path))["/host:CPU"]}  # it is there
    assert {"sync", "launch"} <= names
    asked.join(60)
    assert not asked.is_alive()


def test_events_have_the_old_names_too(x, tmp_path):
    xp.start_trace(tmp_path)
    work(torch.rand(30, 30).to("xla")).cpu()
    xp.stop_trace()
    space = space_in(tmp_path)
    (host,) = (plane for plane in space.planes if plane.name == "/host:CPU")
    names = {m.name: m.display_name for m in host.event_metadata.values()}
    old = "PjRtComputationClient::"
    assert names[old + "TransferToDevice"] == "upload"
    assert names[old + "Compile"] == "compile"
    assert names[old + "ExecuteComputation"] == "launch"
    assert names["sync"] == ""


def test_servers_end(tmp_path):
    server = xp.start_server(0)
    port = server.port
    del server
    gc.collect()
    for _ in range(100):  # it ends in the background
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", port)) != 0:
                break
        time.sleep(0.05)
    else:
        raise AssertionError("the port is still open")


def test_capture_script(run_python, tmp_path):
    """As the documents have it: the program in one process, the script in another."""
    import subprocess

    code = f"""
        import subprocess, sys, torch, torch_xla, torch_xla.debug.profiler as xp
        server = xp.start_server(0)
        x = torch.rand(3, 3).to("xla")
        script = [sys.executable, "-m", "torch_xla.debug.capture_profile", "--service_addr",
                  f"localhost:{{server.port}}", "--logdir", {str(tmp_path / "log")!r},
                  "--duration_ms", "500"]
        capture = subprocess.Popen(script)
        while capture.poll() is None:
            with xp.StepTrace("step"):
                x = x * 0.5
        sys.exit(capture.returncode)
    """
    run_python(code)
    assert "step" in {e[0] for e in events_of(space_in(tmp_path / "log"))["/host:CPU"]}
    bad = subprocess.run(
        [sys.executable, "-m", "torch_xla.debug.capture_profile", "--logdir", "x"],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert bad.returncode == 2 and "--service_addr" in bad.stderr


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("google.protobuf", "xp.start_trace('log')"),
        ("grpc", "xp.start_server(0)"),
        ("grpc", "xp.trace('localhost:1', 'log')"),
    ],
)
def test_packages_that_are_not_there(run_python, tmp_path, package, call):
    done = run_python(
        f"""
        import sys
        sys.modules[{package!r}] = None
        import torch_xla.debug.profiler as xp
        with xp.Trace("works"):
            pass
        try:
            {call}
        except ImportError as e:
            print(e)
        """
    )
    assert "pip install torch_xla[profiler]" in done.stdout
    assert not (tmp_path / "log").exists()


def test_torch_profiler(x, tmp_path, monkeypatch):
    """Its profiles have our spans of the calling thread, and ours its scopes."""
    monkeypatch.setenv("XLA_BACKGROUND_COMPILE", "0")
    xp.start_trace(tmp_path)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with torch.profiler.record_function("my scope"):
            work(x).cpu()
    xp.stop_trace()
    theirs = {e.name for e in profile.events()}
    assert {"aten::tanh", "sync", "lower", "compile", "launch", "TransferFromDevice"} <= theirs
    ours = events_of(space_in(tmp_path))["/host:CPU"]
    (scope,) = [e for e in ours if e[0] == "my scope"]
    inside = {e[0] for e in ours if scope[1] <= e[1] and e[2] <= scope[2]}
    assert {"forward", "sync", "compile", "TransferFromDevice"} <= inside
