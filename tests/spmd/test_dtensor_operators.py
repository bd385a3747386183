"""Operators on DTensors as PyTorch's own tests of DTensor take them: samples of its database, with
tensors placed as its `DTensorConverter` does, against the same on plain tensors.
"""

from __future__ import annotations

import textwrap

import pytest

TWO = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2", "XLA_EXPLAIN": "0"}
COUNT = 70
ALL = 700  # more than there are

CODE = """
import random, warnings
warnings.simplefilter("ignore")
import torch
import torch_xla
import torch_xla.runtime as xr
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorConverter
from torch.utils._pytree import tree_leaves, tree_map_only

xr.use_spmd()
mesh = init_device_mesh("xla", (2,))
rng = random.Random(first)
SAMPLES, WAYS = 2, 3
# Uninitialised, or of random numbers whatever the seed; vectors whose signs nothing decides; a
# gradient of which single precision leaves 3% of noise.
LEFT_OUT = ("empty", "new_empty", "svd", "pca_lowrank", "linalg.svd", "linalg.eig", "matrix_exp")

def whole(t):
    return (t.full_tensor() if isinstance(t, DTensor) else t).detach().cpu()

def tensors_of(values):
    return [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]

def computed(op, args, kwargs):
    "Results, and gradients of what wants some, as tensors on the CPU."
    torch.manual_seed(0)
    results = op(*args, **kwargs)
    wanting = [t for t in tensors_of(results) if t.requires_grad]
    inputs = [t for t in tensors_of((args, kwargs)) if t.requires_grad and t.is_leaf]
    gradients = []
    if wanting and inputs and op.supports_autograd:
        loss = sum((t * t.conj()).real.sum() for t in wanting)
        gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [whole(t) for t in (*tensors_of(results), *tensors_of(gradients))]

def expect_close(got, want):
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        scale = 1.0
        if b.is_floating_point() or b.is_complex():  # what cancels is noise
            scale = max([scale, *b.abs()[b.isfinite()].flatten().tolist()])
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * scale, equal_nan=True)

failures, ran, split, graded = [], 0, 0, 0
for op in op_db[first : first + count]:
    if torch.float32 not in op.dtypes or op.name.startswith(LEFT_OUT):
        continue
    samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))
    rng.shuffle(samples)
    done = 0
    for sample in samples:
        if done == SAMPLES:
            break
        given = (sample.input, *sample.args), sample.kwargs
        move = lambda t: t.detach().to("xla").requires_grad_(t.requires_grad)
        try:
            want = computed(op, *tree_map_only(torch.Tensor, move, given))
        except Exception:
            continue  # not on plain tensors either: tests/ops is there for that
        done += 1
        leaf = lambda t: t.detach().requires_grad_(t.requires_grad)
        ways = list(DTensorConverter(mesh, *tree_map_only(torch.Tensor, leaf, given)))
        rng.shuffle(ways)
        for way in ways[:WAYS]:
            own = lambda t: t.detach().requires_grad_(t.requires_grad)
            way = tree_map_only(torch.Tensor, own, way)
            placed = [t.placements for t in tensors_of(way) if isinstance(t, DTensor)]
            ran += 1
            split += any(p.is_shard() for of in placed for p in of)
            try:
                got = computed(op, *way)
                graded += any(t.requires_grad for t in tensors_of(way))
                expect_close(got, want)
            except Exception as e:
                failures.append(f"{op.name} {placed}: {type(e).__name__}: {str(e)[:200]}")
print(f"{ran} calls, {split} of them with split tensors, {graded} with gradients")
assert not failures, f"{len(failures)}: " + "\\n".join(failures)
assert first + count >= len(op_db) or (ran > count and split > count // 3 and graded)
"""


@pytest.fixture
def run(run_python):
    def run(first, count):
        said = f"first, count = {first}, {count}\n"
        return run_python(said + textwrap.dedent(CODE), env=TWO, timeout=1200)

    return run


def test_some_operators(run):
    run(200, 12)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, ALL, COUNT))
def test_all_operators(run, first):
    run(first, COUNT)
