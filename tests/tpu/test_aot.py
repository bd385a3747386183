"""torch_xla.aot with libtpu: what it tells of programs for TPUs that are not there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_xla
from torch_xla import aot

LIBRARY = os.environ.get("TPU_LIBRARY_PATH")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        LIBRARY is None,
        reason="TPU_LIBRARY_PATH names no libtpu.so. `make test-all` installs one.",
    ),
]


def product(x, w):
    return x @ w


def total(x, w):
    return x + w


def meta(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("topology", "kind"),
    [
        ("v4:2x2x1", "TPU v4"),
        ("v5e:2x2", "TPU v5 lite"),
        ("v5e:1x1", "TPU v5 lite"),
        ("v5p:2x2x1", "TPU v5"),
        ("v6e:2x4", "TPU v6 lite"),
        ("tpu7x:2x2x1", "TPU7x"),
    ],
)
def test_figures_of_a_product(topology, kind):
    n = 4096
    args = [meta(n, n, dtype=torch.bfloat16) for _ in range(2)]
    compiled = aot.compile(product, *args, topology=topology)
    assert compiled.chip.kind == kind
    assert compiled.flops == pytest.approx(2 * n**3, rel=0.01)
    assert compiled.memory.arguments == 2 * compiled.memory.outputs == 2 * 2 * n * n
    assert compiled.bound == "compute"
    assert compiled.compute_seconds <= compiled.optimal_seconds < 2 * compiled.compute_seconds
    assert compiled.chip.memory > compiled.memory.total
    if kind != "TPU7x":  # its clock is not known here
        assert 0.5 < compiled.kernel_seconds / compiled.compute_seconds < 2
    assert compiled.executable


def test_sums_are_bound_by_memory(tmp_path):
    compiled = aot.compile(total, meta(1 << 24), meta(1 << 24))
    assert compiled.bound == "memory"
    assert compiled.memory_seconds == pytest.approx(compiled.optimal_seconds, rel=0.01)
    compiled.save(tmp_path / "sum")
    assert (tmp_path / "sum").read_bytes() == compiled.executable
    lines = str(compiled).splitlines()
    assert lines[0] == "total for v5e:2x2 (TPU v5 lite), on each chip"
    assert any(line.split() == ["arguments", "128.00", "MiB"] for line in lines)


def test_state_takes_over_its_memory():
    model = nn.Linear(1024, 1024, bias=False, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @torch_xla.compile
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    memory = aot.compile(step, meta(8, 1024)).memory
    state = 2 * 4 * 1024 * 1024
    assert memory.aliased == state
    assert state <= memory.arguments < state + 10**5
    assert memory.outputs - memory.aliased < 10**4
    assert memory.total < 2 * state


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoints_take_no_memory(use_reentrant):
    with torch.device("meta"):
        layers = [
            nn.Sequential(nn.Linear(256, 2048), nn.GELU(), nn.Linear(2048, 256)).bfloat16()
            for _ in range(4)
        ]

    def temporaries(call):
        def step(x):
            for layer in layers:
                x = call(layer, x)
            x.sum().backward()

        x = meta(4096, 256, dtype=torch.bfloat16).requires_grad_()
        return aot.compile(step, x).memory.temporaries

    def checkpointed(layer, x):
        return checkpoint(layer, x, use_reentrant=use_reentrant)

    assert temporaries(checkpointed) < temporaries(lambda layer, x: layer(x)) / 2


def test_what_waits_and_what_is_exported():
    x = torch.ones(256, 256, device="xla")
    torch_xla.sync()
    x.add_(x @ x)
    compiled = aot.compile()
    assert compiled.memory.aliased == 4 * 256 * 256 and compiled.inputs is None
    exported = torch.export.export(nn.Linear(256, 256), (torch.randn(8, 256),))
    compiled = aot.compile(exported)
    assert [i.name for i in compiled.inputs] == ["input", "weight", "bias"]


def test_what_does_not_fit():
    weight, x = meta(1 << 16, 1 << 15), meta(1 << 16, 1 << 16)
    with pytest.raises(aot.DoesNotFit) as error:
        aot.compile(product, x, weight)
    gigabytes = 1 << 30
    assert 15 * gigabytes < error.value.limit < 16 * gigabytes
    assert error.value.needed >= 32 * gigabytes
    assert error.value.largest[0] == aot.Buffer("argument x", "float32[65536, 65536]", 1 << 34)
    assert "does not fit on a chip of v5e:2x2" in str(error.value)


@pytest.mark.parametrize("topology", ["v9:2x2", "v5e:3x3", "nonsense"])
def test_topologies_that_are_not_known(topology):
    with pytest.raises(aot.UnknownTopology, match=rf"got '{topology}'\. .*v5e:2x2.*plugin says"):
        aot.compile(product, meta(2, 2), meta(2, 2), topology=topology)


SCRIPT = """
import sys
import torch
import torch_xla

model = torch.nn.Linear(64, 64).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torch_xla.compile
def step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss

for _ in range(3):
    loss = step(torch.randn(8, 64).to("xla"))
print("loss", loss.item() > 0, sys.argv[1:])
{end}
"""


def run_script(tmp_path, end, *options):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(end=end))
    return subprocess.run(
        [sys.executable, "-m", "torch_xla.aot", str(path), *options],
        capture_output=True,
        text=True,
    )


def test_the_command(tmp_path):
    folder = tmp_path / "executables"
    result = run_script(
        tmp_path, "", "--topology", "v6e:2x2", "--rate", "3", "--save", str(folder), "--", "--save"
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "loss True ['--rate', '3', '--save']"
    assert lines[2].endswith("programs for v6e:2x2 (TPU v6 lite), on each chip")
    (row,) = [line for line in lines if " step " in line]
    assert row.split()[-1] in ("compute", "memory")
    assert any(file.name.endswith(".step.executable") for file in folder.iterdir())


def test_the_command_and_a_script_that_fails(tmp_path):
    result = run_script(tmp_path, "raise ValueError('why')")
    assert result.returncode == 1
    assert " step " in result.stdout  # what ran until then
    lines = result.stderr.splitlines()
    assert lines[-1] == "ValueError: why"
    assert "runpy" not in result.stderr and "script.py" in lines[-3]
    assert run_script(tmp_path, "sys.exit(3)").returncode == 3
