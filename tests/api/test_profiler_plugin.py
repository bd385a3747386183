"""torch_xla.debug.profiler where the plugin makes a profile itself: tests/cpp/profiling_plugin is
the CPU plugin with a profiler. And the kernels of PyTorch that run inside programs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_xla
import torch_xla.debug.profiler as xp
from torch_xla import _XLAC
from torch_xla._src.profile import spaces as profile_spaces
from torch_xla._src.profile.messages import messages

THREE_STEPS = """
import sys, torch, torch_xla
import torch_xla.debug.profiler as xp
x = torch.ones(64, 64, device="xla")
torch_xla.sync()
xp.start_trace(sys.argv[1])
for _ in range(3):
    with xp.Trace("step"):
        x = x @ x / 64
        torch_xla.sync()
xp.stop_trace()
assert x.cpu().equal(torch.ones(64, 64)), x
"""


def run(plugin: Path, code: str, log: Path, oddity: str = "") -> subprocess.CompletedProcess:
    chosen = {"PJRT_DEVICE": "CPU", "PJRT_LIBRARY_PATH": str(plugin), "PROFILING_PLUGIN": oddity}
    chosen["XLA_BACKGROUND_COMPILE"] = "0"  # the first step's run is within the step
    return subprocess.run(
        [sys.executable, "-c", code, str(log)],
        capture_output=True,
        text=True,
        env={**os.environ, **chosen},
        timeout=120,
    )


def space_in(log: Path):
    (path,) = log.glob("plugins/profile/*/*.xplane.pb")
    return messages().XSpace.FromString(path.read_bytes())


def planes_of(space) -> dict:
    assert len({plane.name for plane in space.planes}) == len(space.planes)
    return {plane.name: plane for plane in space.planes}


def shown(event) -> str:
    return event.display_name or event.name


def spans_of(plane, line) -> list[tuple[str, int, int]]:
    """Name, begin and end, in picoseconds since the epoch."""
    begins = [line.timestamp_ns * 1000 + e.offset_ps for e in line.events]
    assert begins == sorted(begins)
    return [
        (shown(plane.event_metadata[e.metadata_id]), begin, begin + e.duration_ps)
        for e, begin in zip(line.events, begins, strict=True)
    ]


@pytest.mark.parametrize("oddity", ["", "copy", "long"])
def test_the_plugins_profile_is_in_ours(profiling_plugin, tmp_path, oddity):
    done = run(profiling_plugin, THREE_STEPS, tmp_path, oddity)
    assert done.returncode == 0 and "profile" not in done.stderr, done.stderr
    space = space_in(tmp_path)
    assert not space.errors
    planes = planes_of(space)
    assert set(planes) == {"/device:GPU:0", "/host:CPU", "/device:CUSTOM:xla:0"}
    (device,) = planes["/device:GPU:0"].lines
    runs = spans_of(planes["/device:GPU:0"], device)
    assert device.id == 7 and [name for name, _, _ in runs] == ["loop_fusion"] * 3
    # What the plugin says of the thread that launched is on that thread's line, in its place.
    host = planes["/host:CPU"]
    lines = {line.name: spans_of(host, line) for line in host.lines}
    ((name, spans),) = ((n, s) for n, s in lines.items() if "Execute" in {e[0] for e in s})
    launched = [(b, e) for name, b, e in spans if name == "Execute"]
    assert len(launched) == 3
    within = {"step", "sync", "launch"} if name == "main" else {"launch"}
    for outer in within:
        around = [(b, e) for name, b, e in spans if name == outer]
        assert len(around) == 3
        assert all(
            b <= run[0] and run[1] <= e for (b, e), run in zip(around, launched, strict=True)
        )
    # Fields that are not ours come through, and references still lead to their names.
    event = device.events[0]
    stats = planes["/device:GPU:0"].stat_metadata
    assert stats[event.stats[0].ref_value].name == "the_module"
    assert b"three words here" in space.SerializeToString()


def test_the_same_for_perfetto(profiling_plugin, tmp_path):
    assert run(profiling_plugin, THREE_STEPS, tmp_path).returncode == 0
    (path,) = tmp_path.glob("plugins/profile/*/*.trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    processes = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert set(processes) == {"/device:GPU:0", "/host:CPU", "/device:CUSTOM:xla:0"}
    fusions = [e for e in events if e["name"] == "loop_fusion"]
    assert len(fusions) == 3
    for fusion in fusions:
        assert fusion["pid"] == processes["/device:GPU:0"] and fusion["tid"] == 7
        assert fusion["args"] == {"hlo_module": "the_module"}
    (first, *_), (step, *_) = fusions, [e for e in events if e["name"] == "step"]
    assert step["ts"] <= first["ts"] and first["ts"] + first["dur"] <= step["ts"] + step["dur"]


@pytest.mark.parametrize(
    ("oddity", "why"),
    [
        ("start", "[PLUGIN_Profiler_Start] PERMISSION_DENIED: no right to read the counters"),
        ("stop", "[PLUGIN_Profiler_Stop] INTERNAL: the counters were lost"),
        ("broken", "Error parsing message"),
    ],
)
def test_without_the_plugins_profile_ours_is_there(profiling_plugin, tmp_path, oddity, why):
    done = run(profiling_plugin, THREE_STEPS, tmp_path, oddity)
    assert done.returncode == 0, done.stderr
    told = f"the plugin's own profile of its devices is missing: {why}"
    assert done.stderr.count(told) == 1
    space = space_in(tmp_path)
    (error,) = space.errors
    assert error.startswith(told)
    planes = planes_of(space)
    assert set(planes) == {"/host:CPU", "/device:CUSTOM:xla:0"}
    assert len(planes["/device:CUSTOM:xla:0"].lines[0].events) == 3


def test_a_profile_with_nothing_in_it(profiling_plugin, tmp_path):
    done = run(profiling_plugin, THREE_STEPS, tmp_path, "empty")
    assert done.returncode == 0 and "missing" not in done.stderr, done.stderr
    assert set(planes_of(space_in(tmp_path))) == {"/host:CPU", "/device:CUSTOM:xla:0"}


def test_a_profile_that_begins_before_the_first_device(profiling_plugin, tmp_path):
    code = """
import sys, torch, torch_xla
import torch_xla.runtime as xr
import torch_xla.debug.profiler as xp
xp.start_trace(sys.argv[1])
xr.use_spmd()
x = torch.ones(4, device="xla") + 1
torch_xla.sync()
xp.stop_trace()
xp.start_trace(sys.argv[1] + "/second")
x = x + 1
torch_xla.sync()
xp.stop_trace()
"""
    done = run(profiling_plugin, code, tmp_path)
    assert done.returncode == 0, done.stderr
    for log in (tmp_path, tmp_path / "second"):
        assert len(planes_of(space_in(log))["/device:GPU:0"].lines[0].events) == 1


def test_a_profile_that_is_asked_for(profiling_plugin, tmp_path):
    code = """
import sys, torch, torch_xla
import torch_xla.debug.profiler as xp
x = torch.ones(64, 64, device="xla")
server = xp.start_server(0)
asked = xp.trace_detached(f"localhost:{server.port}", sys.argv[1], duration_ms=300)
while asked.is_alive():
    x = x @ x / 64
    torch_xla.sync()
"""
    done = run(profiling_plugin, code, tmp_path)
    assert done.returncode == 0, done.stderr
    planes = planes_of(space_in(tmp_path))
    assert len(planes["/device:GPU:0"].lines[0].events) > 3
    assert len(planes["/device:CUSTOM:xla:0"].lines[0].events) > 3


def test_a_plugin_with_another_clock():
    """Its events and ours have no order, and none is lost."""
    space = messages().XSpace()
    plane = space.planes.add(name="/host:CPU")
    line = plane.lines.add(id=5, name="launcher", timestamp_ns=17)
    line.events.add(metadata_id=1, offset_ps=3, duration_ps=4)
    plane.event_metadata[1].name = "Execute"
    begin = 1_800_000_000_000_000_000
    events = [("sync", begin, begin + 9, [("graph", "a")])]
    track = {"is_device": False, "name": "main", "id": 5, "events": events}
    (host,) = profile_spaces.to_xspace([track], "host", space).planes
    assert [spans_of(host, line) for line in host.lines] == [
        [("Execute", 17_003, 17_007)],
        [("sync", begin * 1000, (begin + 9) * 1000)],
    ]


def test_kernels_of_pytorch_inside_programs(tmp_path):
    conv = torch.nn.Conv2d(3, 8, 3).to("xla")
    x = torch.rand(2, 3, 16, 16).to("xla")

    def step():
        conv(x).square().mean().backward()
        torch_xla.sync()
        return conv.weight.grad.cpu()

    expected = step()
    conv.weight.grad = conv.bias.grad = None
    xp.start_trace(tmp_path)
    assert step().equal(expected)
    xp.stop_trace()
    plane = planes_of(space_in(tmp_path))["/host:CPU"]
    kernels = {}
    for line in plane.lines:
        for event in line.events:
            name = shown(plane.event_metadata[event.metadata_id])
            if name.startswith("aten::"):
                stats = {plane.stat_metadata[s.metadata_id].name: s.str_value for s in event.stats}
                assert event.duration_ps > 0
                kernels[name] = stats
    forward = next(name for name in kernels if "convolution" in name and "backward" not in name)
    backward = next(name for name in kernels if "convolution_backward" in name)
    assert "Float[2, 3, 16, 16]" in kernels[forward]["operands"]
    assert "Float[8, 3, 3, 3]" in kernels[forward]["operands"]
    assert int(kernels[backward]["parts"]) >= 1


def test_reports_have_no_kernels(monkeypatch):
    sampled = []
    monkeypatch.setattr(_XLAC, "_xla_start_sampling", lambda: sampled.append(True))
    conv = torch.nn.Conv2d(3, 8, 3).to("xla")
    with torch_xla.debug.record() as recording:
        conv(torch.rand(2, 3, 16, 16).to("xla")).cpu()
    kinds = {kind for track in recording.tracks.values() for kind in track.seconds}
    assert "launch" in kinds and not sampled
