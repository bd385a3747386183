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


def test_what_loops_repeat_counts_as_often(run):
    """`experimental.scan` over eight layers: kernels, and what is sent."""
    run("""
from torch_xla.experimental.scan import scan

layers, n = 8, 1024
with torch.device("meta"):
    stacked = nn.Parameter(torch.empty(layers, n, n))
    x = torch.empty(256, n)
xs.mark_sharding(stacked, line, (None, "fsdp", None))
xs.mark_sharding(x, line, ("fsdp", None))

def forward(x, count):
    return scan(lambda c, w: (torch.tanh(c @ w), None), x, stacked[:count])[0]

with torch.no_grad():
    two, all = (aot.compile(forward, x, count, topology="v5e:2x2") for count in (2, layers))

def gathered(compiled):
    return [(c.count, c.bytes) for c in compiled.collectives if c.kind == "all-gather"]

weight = n * n * 4
((few, some),) = gathered(two)
((many, most),) = gathered(all)
assert (few, many) == (2, layers) and most == 4 * some and some >= weight, (gathered(all))
assert 2 < all.kernel_seconds / two.kernel_seconds < 5, (two.kernel_seconds, all.kernel_seconds)
assert all.sending_seconds == sum(c.bytes for c in all.collectives) / 2e11
""")


def test_auto_sharding_asks_the_compiler(run):
    """Of the meshes that the model thinks best, that of the least estimate."""
    run("""
from torch_xla.distributed.spmd import auto_sharding

xr.use_spmd(auto=True)
compiled = aot.compile(step, x, topology="v5p:2x2x1")
(plan,) = auto_sharding.plans()
assert compiled.mesh == plan.mesh
assert set(plan.estimates) == set(plan.alternatives) == {(4,), (2, 2)}, plan
assert min(plan.estimates.values()) == plan.estimates[plan.sizes]
assert plan.estimates[plan.sizes] == compiled.kernel_seconds + compiled.sending_seconds
assert "by the compiler" in str(plan), plan
aot.compile(step, x, topology="v5p:2x2x1")
assert len(auto_sharding.plans()) == 2
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
