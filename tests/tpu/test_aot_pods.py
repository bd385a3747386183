"""Programs for several TPUs that are not there: memory of each, and what they send."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.spmd.test_sharding import PRELUDE
from tests.tpu.test_aot import LIBRARY, pytestmark  # noqa: F401  (the marks are this file's)

FOUR = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4", "TPU_LIBRARY_PATH": LIBRARY}
WIDE = """
from torch_xla import aot

line = xs.Mesh(np.arange(4), (4, 1), ("fsdp", "tensor"))
n = 2048
with torch.device("meta"):
    model = nn.Sequential(*(nn.Linear(n, n, bias=False) for _ in range(2))).bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.empty(64, n, dtype=torch.bfloat16, device="meta")
weights = 2 * n * n * 2  # bytes

def step(x):
    optimizer.zero_grad()
    loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    return loss
"""


@pytest.fixture
def run(run_python):
    prelude = PRELUDE.replace("(4, 2)", "(2, 2)") + WIDE
    return lambda code: run_python(prelude + code, env=FOUR)


def test_weights_are_split_and_gathered(run):
    run("""
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2,
)

model = FSDPv2(model, line)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # of the parameters that it has now
xs.mark_sharding(x, line, ("fsdp", None))
compiled = aot.compile(step, x, topology="v5e:2x2")
assert compiled.mesh == {"fsdp": 4, "tensor": 1}
on_each = weights / 4
assert on_each <= compiled.memory.arguments < 1.1 * on_each + x.nbytes
assert compiled.memory.aliased >= on_each
assert {c.axes for c in compiled.collectives} <= {("fsdp",)}, compiled.collectives
assert any("aten::" in c.operation and c.line for c in compiled.collectives)
kinds = {c.kind for c in compiled.collectives}
assert "all-gather" in kinds or "collective-permute" in kinds, kinds
text = str(compiled)
assert "split along fsdp=4, tensor=1, on each chip" in text and "exchanged" in text, text
""")


def test_replicas_send_gradients(run):
    run("""
xs.mark_sharding(x, line, ("fsdp", None))
compiled = aot.compile(step, x, topology="v5e:2x2")
assert weights <= compiled.memory.arguments < 1.1 * weights
sent = sum(c.bytes for c in compiled.collectives if c.kind in ("all-reduce", "reduce-scatter"))
assert weights / 4 <= sent <= 2.1 * weights, compiled.collectives
""")


def test_the_mesh_has_the_chips(run):
    run("""
xs.mark_sharding(x, line, ("fsdp", None))
try:
    aot.compile(step, x, topology="v5e:2x4")
except aot.Refused as error:
    assert "expected a mesh of the 8 devices of v5e:2x4, got one of 4" in str(error), error
else:
    raise AssertionError("it was compiled")
""")


def test_a_script_in_spmd_mode(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("""
import numpy as np, torch, torch_xla, torch_xla.runtime as xr, torch_xla.distributed.spmd as xs
assert xr.is_spmd() and xr.global_runtime_device_count() == 4
mesh = xs.Mesh(np.arange(4), (4,), ("data",))
x = torch.ones(1024, 1024).to("xla")
xs.mark_sharding(x, mesh, ("data", None))
print("sum", (x @ x).sum().item())
""")
    command = [sys.executable, "-m", "torch_xla.aot", script, "--spmd", "--topology", "v5e:2x2"]
    done = subprocess.run(
        [*map(str, command), "--plugin", LIBRARY], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"sum {float(1024**3)}" in done.stdout
    assert "read" in done.stdout and "does not" not in done.stdout, done.stdout
