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


def test_the_profile_of_a_training_run(tmp_path):
    code = PROGRAM.replace("EXAMPLE", str(ROOT / "examples" / "train_lm.py"))
    log = tmp_path / "log"
    command = [sys.executable, "-c", code, "train_lm.py", "--steps", "12", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    (path,) = log.glob("plugins/profile/*/*.xplane.pb")
    result = tmp_path / "tools.json"
    done = subprocess.run(
        [sys.executable, "-c", CONVERT, str(path), str(result)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGES)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    tools = json.loads(result.read_text())
    assert {"trace_viewer@", "overview_page", "input_pipeline_analyzer"} <= set(tools["names"])
    spans = [e for e in tools["trace_viewer"]["traceEvents"] if e.get("ph") == "X"]
    names = [e["name"] for e in spans]
    assert {"sync", "lower", "compile", "launch"} <= set(names)
    assert {f"train_step {i}" for i in range(10)} <= set(names)  # as xprof names steps
    processes = {
        e["pid"]: e["args"]["name"]
        for e in tools["trace_viewer"]["traceEvents"]
        if e.get("name") == "process_name"
    }
    runs = [e for e in spans if processes[e["pid"]] == "/device:CUSTOM:xla:0"]
    assert len(runs) >= 12 and all("graph" in e["args"] for e in runs)
