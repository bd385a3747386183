"""The loops that XLA has compiled for the CPU, as events of a profile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_xla import _XLAC
from torch_xla._src.profile.messages import messages

# Two loops that take their time, the first of them most, and one kernel of PyTorch's.
PROGRAM = """
import glob, json, os, sys, time
import torch, torch_xla
import torch_xla.debug.profiler as xp
from torch_xla import _XLAC

HERE = 1  # line 7 and what follows are those that the events must name
def slow(x):
    for _ in range(40):
        x = x * 1.25 - x.abs() / (x * x + 3)
    return x

def step(x):
    y = slow(x)
    z = torch.sin(x.mT).mT
    return (y + z).argmax(0)

x = torch.linspace(-1, 1, 1 << 18, device="xla").reshape(512, 512)
y = step(x)
torch_xla.sync(wait=True)
OTHER
xp.start_trace(sys.argv[1])
begin = time.monotonic()
count = 0
while time.monotonic() < begin + 1:
    with xp.Trace("launch"):  # a name of ours
        y = step(x)
        torch_xla.sync(wait=True)
    count += 1
xp.stop_trace()
(path,) = glob.glob(sys.argv[1] + "/plugins/profile/*/*.trace.json")
events = [e for e in json.load(open(path))["traceEvents"] if e["ph"] == "X"]
metrics = {m: _XLAC._xla_counter_value(m) for m in ("PersistentCacheHit", "PersistentCacheMiss")}
print(json.dumps({"events": events, "steps": count, "metrics": metrics}))
"""


@pytest.fixture(autouse=True)
def allowed():
    """What is tested needs a system that takes samples."""
    try:
        _XLAC._xla_start_sampling()
    except RuntimeError as why:
        pytest.skip(str(why))
    _XLAC._xla_stop_sampling()


def profile(folder: Path, other: str = "", **environment: str) -> tuple[dict, str]:
    path = folder / "program.py"
    path.write_text(PROGRAM.replace("OTHER", other))
    log = folder / f"log{len(list(folder.iterdir()))}"
    done = subprocess.run(
        [sys.executable, str(path), str(log)],
        env={**os.environ, "XLA_EXPLAIN": "0", "XLA_HLO_DEBUG": "1", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def loops(told: dict) -> list[dict]:
    return [e for e in told["events"] if "samples" in e["args"]]


@pytest.mark.parametrize("devices", ["1", "2"])
def test_loops_of_compiled_and_of_loaded_programs(tmp_path, devices):
    cache = str(tmp_path / "cache")
    for loaded in (False, True):
        told, stderr = profile(tmp_path, XLA_PERSISTENT_CACHE_PATH=cache, CPU_NUM_DEVICES=devices)
        assert "missing" not in stderr
        assert bool(told["metrics"]["PersistentCacheHit"]) == loaded
        found = loops(told)
        runs = [e for e in told["events"] if "graph" in e["args"] and e["name"].startswith("sync ")]
        assert {e["args"]["program"] for e in found} == {e["name"] for e in runs}
        here = f"{tmp_path}/program.py:"
        lines = {e["args"]["line"] for e in found if "line" in e["args"]}
        assert any(line.startswith(here + "10") for line in lines), lines
        by_line: dict[str, float] = {}
        for e in found:
            where = e["args"].get("line", "")
            by_line[where] = by_line.get(where, 0) + e["dur"]
        # The longest loop is that of the line with the most work.
        assert max(by_line, key=by_line.__getitem__).startswith(here + "10"), by_line
        assert any(e["args"].get("operation", "").startswith("slow/aten::") for e in found)
        # Half a millisecond for each sample at most, and on no thread two loops at a time.
        for e in found:
            assert 0 <= e["dur"] <= 1500 * int(e["args"]["samples"])
        for thread in {(e["pid"], e["tid"]) for e in found}:
            mine = sorted((e["ts"], e["dur"]) for e in found if (e["pid"], e["tid"]) == thread)
            for (ts, dur), (following, _) in zip(mine, mine[1:], strict=False):
                assert ts + dur <= following + 1
        # They are from the first launch to the last end, give or take half a period.
        launches = [e["ts"] for e in told["events"] if e["name"] == "launch"]
        first, last = min(launches), max(e["ts"] + e["dur"] for e in runs)
        assert all(first - 500 <= e["ts"] and e["ts"] + e["dur"] <= last + 500 for e in found)
        assert len(found) > 50


def test_the_kernels_of_pytorch_are_not_among_them(tmp_path):
    told, _ = profile(tmp_path)
    kernels = [e for e in told["events"] if e["name"] == "aten::sin"]
    assert len(kernels) == told["steps"]
    for k in kernels:
        for e in loops(told):
            if (e["pid"], e["tid"]) == (k["pid"], k["tid"]):
                assert e["ts"] + e["dur"] <= k["ts"] + 1 or k["ts"] + k["dur"] <= e["ts"] + 1


def test_without_the_package_the_profile_says_so(tmp_path):
    told, stderr = profile(tmp_path, "sys.modules['elftools.elf.elffile'] = None")
    assert not loops(told)
    assert (
        "the loops of the CPU's programs are missing: torch_xla.debug.profiler: expected" in stderr
    )
    assert "pyelftools" in stderr
    assert any(e["name"] == "aten::sin" for e in told["events"])


def test_a_program_that_xla_does_not_save(tmp_path):
    sorts = "inner = step; step = lambda x: (inner(x), torch_xla.sync(), x.int().sort(0).values)"
    told, stderr = profile(tmp_path, sorts)
    named = {e["args"]["program"] for e in loops(told)}
    runs = {e["name"] for e in told["events"] if e["name"].startswith("sync ")}
    (missing,) = runs - named
    assert f"the loops of {missing} are missing: " in stderr and "not serializable" in stderr


def test_a_system_that_refuses(tmp_path):
    refuses = "\n".join(
        [
            "def refuse(): raise RuntimeError('profiler: expected .., got EPERM')",
            "_XLAC._xla_start_sampling = refuse",
        ]
    )
    told, stderr = profile(tmp_path, refuses)
    assert not loops(told) and any(e["name"] == "aten::sin" for e in told["events"])
    missing = "the loops of the CPU's programs are missing: profiler: expected"
    assert missing in stderr
    (path,) = tmp_path.glob("log*/plugins/profile/*/*.xplane.pb")
    space = messages().XSpace.FromString(path.read_bytes())
    assert space.warnings[0].startswith(missing) and not space.errors


def test_products_keep_their_stack_in_the_heap(tmp_path):
    """oneDNN's do, which the frame of a signal's handler would overwrite."""
    products = "\n".join(
        [
            "a, b = (torch.rand(size, device='xla') for size in ((64, 128), (128, 128)))",
            "torch_xla.sync(wait=True)",
            "expected = a.cpu() @ b.cpu()",
            "def step(x):",
            "    for _ in range(200):",
            "        c = a @ b",
            "        torch_xla.sync()",
            "    torch.testing.assert_close(c.cpu(), expected)",
        ]
    )
    told, _ = profile(tmp_path, products)
    runs = [e for e in told["events"] if "graph" in e["args"] and e["name"].startswith("sync ")]
    assert len(runs) >= 200


def test_programs_with_equal_loops(tmp_path):
    """Which of them ran when decides."""
    alike = "\n".join(
        [
            "a = torch_xla.compile(lambda x: (slow(x),), name='often')",
            "b = torch_xla.compile(lambda x: (slow(x), x.sum()), name='seldom')",
            "turn = iter(range(10**9))",
            "def step(x): return b(x) if next(turn) % 5 == 0 else a(x)",
            "step(x), step(x); torch_xla.sync(wait=True)",
        ]
    )
    told, _ = profile(tmp_path, alike)
    runs = {}
    for e in told["events"]:
        if "graph" in e["args"] and e["name"].split()[0] in ("often", "seldom"):
            runs[e["name"].split()[0]] = runs.get(e["name"].split()[0], 0) + 1
    found: dict[str, float] = {}
    for e in loops(told):
        if e["args"].get("operation", "").startswith("slow/"):
            name = e["args"]["program"].split()[0]
            found[name] = found.get(name, 0) + e["dur"]
    assert runs["often"] > 3 * runs["seldom"] > 0
    assert found["often"] > 1.5 * found.get("seldom", 0), found


def test_programs_that_are_gone(tmp_path):
    """Neither their code nor their file is there any more: no loops, and no error."""
    gone = "import torch_xla.runtime as xr; stop = xp.stop_trace\n" + "\n".join(
        ["def forget():", "    xr.clear_computation_cache(); stop()", "xp.stop_trace = forget"]
    )
    told, stderr = profile(tmp_path, gone)
    assert not loops(told) and "missing" not in stderr
    assert any(e["name"] == "aten::sin" for e in told["events"])


def test_a_forked_child_is_not_asked(tmp_path):
    forks = "\n".join(
        [
            "import multiprocessing",
            "def child():",
            "    t = time.monotonic()",
            "    while time.monotonic() < t + 0.2: pass",
            "start = xp.start_trace",
            "def begin(*args):",
            "    start(*args)",
            "    p = multiprocessing.get_context('fork').Process(target=child)",
            "    p.start(); p.join(); assert p.exitcode == 0, p.exitcode",
            "xp.start_trace = begin",
        ]
    )
    told, _ = profile(tmp_path, forks)
    assert loops(told)
