"""A sample of PyTorch's own device-generic tests: what the CPU passes, xla passes, but for the
tests that `notes.py` names. The list is held to both sides: what it names fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from fnmatch import fnmatch
from pathlib import Path

import pytest

import torch_xla

from .notes import KNOWN
from .source import Unreachable, fetch

ROOT = Path(__file__).resolve().parents[2]
BASE = Path(torch_xla.__file__).parent / "test" / "pytorch_test_base.py"
SECONDS = 3600  # for a file on a device

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def pytorch_tests() -> Path:
    try:
        return fetch(ROOT / "build" / "pytorch-tests")
    except Unreachable as error:
        pytest.skip(f"PyTorch's own tests cannot be fetched: {error}")


def outcomes(folder: Path, file: str, device: str, report: Path) -> dict[str, tuple[str, str]]:
    """What became of each of the file's tests of a device, by its name without the device."""
    env = {
        **os.environ,
        "PJRT_DEVICE": "CPU",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(folder))),
        "PYTORCH_TEST_WITH_SLOW": "0",
        "TORCH_TEST_DEVICES": str(BASE),
    }
    env.pop("CI", None)  # PyTorch would write reports with a package of its own CI
    # No settings of this project's: PyTorch's tests have marks of their own.
    settings = report.with_suffix(".ini")
    settings.write_text("[pytest]\n")
    options = ["-q", "-c", settings, "--rootdir", folder, "-p", "no:cacheprovider"]
    options += ["-o", "junit_family=xunit2", "-k", device]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--junitxml", report, file],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    said = (done.stdout + done.stderr)[-3000:]
    assert report.is_file(), f"{file} on {device}: {done.returncode}\n{said}"
    results = {}
    for case in ElementTree.parse(report).iter("testcase"):
        of = case.get("classname", "").rpartition(".")[2]
        if not of.endswith(device.upper()):
            continue
        test = re.sub(rf"(.*)_{device}(?=_|$)", r"\1", case.get("name", ""))
        name = f"{of.removesuffix(device.upper())}.{test}"
        bad = [c for c in case if c.tag in ("failure", "error")]
        if bad:
            results[name] = ("failed", (bad[0].get("message") or "")[:300])
        elif case.find("skipped") is None:
            results[name] = ("passed", "")
        else:
            results[name] = ("skipped", "")
    return results


@pytest.mark.parametrize("file", KNOWN)
def test_what_the_cpu_passes(pytorch_tests, tmp_path, file):
    cpu = outcomes(pytorch_tests, file, "cpu", tmp_path / "cpu.xml")
    xla = outcomes(pytorch_tests, file, "xla", tmp_path / "xla.xml")
    counted = [name for name, (outcome, _) in cpu.items() if outcome == "passed" and name in xla]
    assert counted, f"{file}: no test of both devices"
    new = {
        name: xla[name][1]
        for name in counted
        if xla[name][0] == "failed" and not any(fnmatch(name, p) for p in KNOWN[file])
    }
    assert not new, f"{file}: fails on xla and is no known failure"
    for pattern in KNOWN[file]:
        named = [name for name in counted if fnmatch(name, pattern)]
        assert named, f"{pattern}: names no test; take it out of notes.py"
        passed = [name for name in named if xla[name][0] != "failed"]
        assert not passed, f"{pattern}: passes; take it out of notes.py"
