"""What programs see is what torch_xla 2.9 shows, as an interpreter that has it tells.

    TORCH_XLA_PEER_PYTHON=<venv with torch 2.9 and torch_xla 2.9>/bin/python pytest tests/peer

Differences on purpose are in `ON_PURPOSE`, each with a row in docs/differences.md.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

PEER = os.environ.get("TORCH_XLA_PEER_PYTHON")
HERE = pathlib.Path(__file__).parent
DEVICES = {"one": 1, "spmd": 4, "debug": 1}


def programs(group: str) -> dict[str, str]:
    """The programs of a group's file by their headings."""
    parts = (HERE / f"{group}.txt").read_text().split("\n## ")[1:]
    return {name: code for name, _, code in (part.partition("\n") for part in parts)}


# Programs whose results differ, and how the row of docs/differences.md that tells why begins.
ON_PURPOSE = {
    "hardware of no device": "`xm.xla_device_hw` and the like",
    "parse no device": "`parse_xla_device` gives None",
    "rendezvous": "`xm.rendezvous` gives a list",
    "fallback": "`aten::linalg_eig` and other operators",
    "placements": "`XLAShardedTensor.placements` take axes",
    "where with a number of the CPU": "`torch.where` refuses a number",
    "clear": "After `clear_sharding` a tensor",
    "torch.compile": "`Number of Graph Inputs` of a graph of torch.compile",
}

pytestmark = pytest.mark.skipif(PEER is None, reason="TORCH_XLA_PEER_PYTHON names no interpreter")


@functools.cache
def results(group: str, python: str) -> dict[str, tuple]:
    texts = programs(group)
    environment = {
        **os.environ,
        "PJRT_DEVICE": "CPU",
        "CPU_NUM_DEVICES": str(DEVICES[group]),
        "XLA_PERSISTENT_CACHE_PATH": "",
        "PYTHONPATH": "" if python == PEER else str(HERE.parent.parent),
    }
    if group == "debug":
        environment["PT_XLA_DEBUG_LEVEL"] = "2"
        environment["PT_XLA_DEBUG_FILE"] = f"{tempfile.mkdtemp()}/told"
    ran = subprocess.run(
        [python, HERE / "run.py", group],
        input=json.dumps(list(texts.items())),
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
        cwd="/",
    )
    lines = [line[7:] for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
    found = {name: rest for name, *rest in map(json.loads, lines)}
    assert len(found) == len(texts), (
        f"{python} ended after {list(found)[-1:]}: {ran.stderr[-2000:]}"
    )
    return found


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group in DEVICES for name in programs(group)]
)
def test_as_in_2_9(group, name):
    theirs, ours = results(group, PEER)[name], results(group, sys.executable)[name]
    if name in ON_PURPOSE:
        rows = (HERE.parent.parent / "docs" / "differences.md").read_text()
        assert theirs[:2] != ours[:2] and f"\n| {ON_PURPOSE[name]}" in rows
    else:
        told = f"2.9: {theirs}, here: {ours}"
        if theirs[0][0] == "raises":  # what catches theirs catches ours
            assert ours[0][0] == "raises" and theirs[0][1] in ours[0][1:], told
            assert ours[1] == theirs[1], told
        else:
            assert ours[:2] == theirs[:2], told
