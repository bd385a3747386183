"""The profile of an example, read by xprof itself, the converter of TensorBoard's profile plugin.

`make test-all` installs the package; XPROF_PACKAGES_PATH names the folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = os.environ.get("XPROF_PACKAGES_PATH")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PACKAGES,
        reason="XPROF_PACKAGES_PATH names no folder with xprof. `make test-all` installs it.",
    ),
]

# Trains for a few steps of the example's own loop, under a StepTrace each.
PROGRAM = """
import runpy, sys
import torch_xla
import torch_xla.debug.profiler as xp

steps = iter(range(1000))
sync = torch_xla.sync
open_step = None

def traced_sync(*args, **kwargs):
    with xp.StepTrace("train_step", step_num=next(steps)):
        sync(*args, **kwargs)

torch_xla.sync = traced_sync
sys.argv = ["train_lm.py", *sys.argv[2:]]
xp.start_trace(sys.argv.pop())
try:
    runpy.run_path("EXAMPLE", run_name="__main__")
finally:
    xp.stop_trace()
"""

CONVERT = """
import json, sys
from xprof.convert import raw_to_tool_data as convert

path = sys.argv[1]
tools = {"names": list(convert.xspace_to_tool_names([path]))}
for tool in ("trace_viewer", "overview_page", "input_pipeline_analyzer"):
    data, kind = convert.xspace_to_tool_data([path], tool, {})
    tools[tool] = json.loads(data)
json.dump(tools, open(sys.argv[2], "w"))
"""


# The same for a plugin that makes a profile itself.
STEPS = """
import sys
import torch, torch_xla
import torch_xla.debug.profiler as xp

x = torch.ones(64, 64, device="xla")
xp.start_trace(sys.argv[1])
for i in range(4):
    with xp.StepTrace("train_step", step_num=i):
        x = x @ x / 64
xp.stop_trace()
"""


def spans_by_process(log: Path, result: Path) -> dict[str, list[dict]]:
    """What xprof's trace viewer shows of the profile; other tools must take it, too."""
    (path,) = log.glob("plugins/profile/*/*.xplane.pb")
    done = subprocess.run(
        [sys.executable, "-c", CONVERT, str(path), str(result)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGES)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    tools = json.loads(result.read_text())
    assert {"trace_viewer@", "overview_page", "input_pipeline_analyzer"} <= set(tools["names"])
    events = tools["trace_viewer"]["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    spans: dict[str, list[dict]] = {name: [] for name in processes.values()}
    for event in events:
        if event.get("ph") == "X":
            spans[processes[event["pid"]]].append(event)
    return spans


def test_the_profile_of_a_training_run(tmp_path):
    code = PROGRAM.replace("EXAMPLE", str(ROOT / "examples" / "train_lm.py"))
    log = tmp_path / "log"
    command = [sys.executable, "-c", code, "train_lm.py", "--steps", "12", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    spans = spans_by_process(log, tmp_path / "tools.json")
    names = {e["name"] for of_process in spans.values() for e in of_process}
    assert {"sync", "lower", "compile", "launch"} <= names
    assert {f"train_step {i}" for i in range(10)} <= names  # as xprof names steps
    runs = spans["/device:CUSTOM:xla:0"]
    assert len(runs) >= 12 and all("graph" in e["args"] for e in runs)


def test_the_profile_of_a_plugin(profiling_plugin, tmp_path):
    log = tmp_path / "log"
    chosen = {"PJRT_DEVICE": "CPU", "PJRT_LIBRARY_PATH": str(profiling_plugin)}
    done = subprocess.run(
        [sys.executable, "-c", STEPS, str(log)],
        capture_output=True,
        text=True,
        env={**os.environ, **chosen},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    spans = spans_by_process(log, tmp_path / "tools.json")
    kernels = [e for e in spans["/device:GPU:0"] if e["name"] == "loop_fusion"]
    assert len(kernels) == 4
    host = {e["name"] for e in spans["/host:CPU"]}
    assert {"sync", "launch", "Execute", "train_step 0", "train_step 3"} <= host
