"""Programs that GSPMD partitions: for plugins that have no Shardy, and by XLA_USE_SHARDY=0."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .test_sharding import PRELUDE, runner

ROOT = Path(__file__).resolve().parents[2]
GSPMD = {"XLA_USE_SHARDY": "0"}
# Constraints between, dimensions that must be whole, results of the compiler's choice, gradients.
STEP = """
from torch_xla.distributed.spmd.debugging import collectives

torch.set_default_dtype(torch.float64)
x, w, v = torch.randn(16, 24), torch.randn(24, 12), torch.randn(12, 10)
plain = [t.clone().requires_grad_() for t in (x, w, v)]
split = [t.to(device).requires_grad_() for t in (x, w, v)]
for t, axes in zip(split, (("data", None), (None, "model"), ("model", None))):
    xs.mark_sharding(t.detach(), mesh, axes)

def step(x, w, v, mark):
    h = mark((x @ w).tanh())
    y = h @ v
    return y, torch.cat([y[1::3], y.flip(0)[:5]]).cumsum(0)  # in parts that are not equal

def marked(h):
    return xs.mark_sharding_with_gradients(h, mesh, ("data", "model"))

want = step(*plain, lambda h: h)
made = step(*split, marked)
text = _XLAC._get_stablehlo(list(made))
(want[1] ** 2).sum().backward()
(made[1] ** 2).sum().backward()
torch_xla.sync()
for got, expected in zip([*made, *(t.grad for t in split)], [*want, *(t.grad for t in plain)]):
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-9, atol=1e-9)
# What the compiler chose is read back.
assert spec(made[0]).startswith("{devices=[4,1,2]"), spec(made[0])
check_shards(made[0].detach(), made[0].detach().cpu())
"""
IN_GSPMDS_WORDS = """
assert "sdy" not in text
assert 'mhlo.sharding = "{devices=[4,2]0,1,2,3,4,5,6,7}"' in text
assert 'backend_config = "unspecified_dims=[1]"' in text
"""


@pytest.fixture
def run(run_python):
    return runner(run_python, PRELUDE)


def test_values_gradients_and_shardings(run):
    run(STEP + IN_GSPMDS_WORDS, GSPMD)
    run(STEP + "assert 'sdy.mesh' in text and 'mhlo' not in text")


def test_manual_code(run):
    code = """
    x = torch.randn(16, 8)
    t = x.to(device).requires_grad_()
    part = xs.enable_manual_sharding(t, ("data", "model"), mesh=mesh)
    assert tuple(part.shape) == (4, 4) and spec(part) == "{manual}"
    made = xs.disable_manual_sharding(part.sum(1, keepdim=True) * part, ("data", "model"),
                                      (16, 8), mesh=mesh)
    text = _XLAC._get_stablehlo([made])
    assert "SPMDFullToShardShape" in text and "SPMDShardToFullShape" in text
    plain = x.clone().requires_grad_()
    halves = [h.sum(1, keepdim=True) * h for h in plain.chunk(2, 1)]
    want = torch.cat(halves, 1)
    torch.testing.assert_close(made.cpu(), want)
    made.square().sum().backward()
    want.square().sum().backward()
    torch.testing.assert_close(t.grad.cpu(), plain.grad)
    """
    run(code, GSPMD)


def test_a_plugin_that_refuses_shardy(run, plugin_without_shardy):
    """Nobody has to say so."""
    chosen = {"PJRT_DEVICE": "CPU", "PJRT_LIBRARY_PATH": str(plugin_without_shardy)}
    logged = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    told = run(STEP + IN_GSPMDS_WORDS, chosen | logged)
    assert "the plugin refuses Shardy, so GSPMD partitions programs" in told.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    ["manual_sharding", "sharding", "sharding_in_graphs", "sharded_operators", "dtensor"],
)
def test_what_shardy_does(file):
    """The tests of sharding, by GSPMD."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", f"tests/spmd/test_{file}.py"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **GSPMD}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
