"""SPMD mode in one of two processes, which addresses half of the devices."""

from __future__ import annotations

import textwrap

import pytest

from tests.spmd.test_sharding import EIGHT, REFUSED

PRELUDE = (
    REFUSED
    + """
import inspect
import numpy as np
import torch, torch.nn as nn
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr
import torch_xla.distributed.spmd as xs
from torch_xla import _XLAC

xr.use_spmd()
mesh = xs.Mesh(np.arange(8), (8,), ("x",))
pairs = xs.Mesh(np.arange(8), (2, 4), ("process", "device"))
device = torch_xla.device()
torch.manual_seed(0)
mine = range(4 * process, 4 * process + 4)

def shards(t):
    return xs.wrap_as_sharded_tensor(t).local_shards

def ours(value):
    "Of rows that the eight devices share, those of this process's."
    rows = len(value) // 8
    return value[mine[0] * rows : (mine[-1] + 1) * rows]

def of_both(value):
    "The value whose halves are both as ours."
    return torch.cat([ours(value), ours(value)])
"""
)


@pytest.fixture(params=[0, 1], ids=["first", "second"])
def run(request, run_python, half_plugin):
    """Runs code in that process of the job."""
    env = {"PJRT_LIBRARY_PATH": half_plugin, "HALF_PLUGIN_PROCESS": request.param}

    def run(code):
        code = f"process = {request.param}\n" + PRELUDE + textwrap.dedent(code)
        return run_python(code, env=EIGHT | {k: str(v) for k, v in env.items()}, timeout=300)

    return run


def test_counts(run):
    run("""
    assert xr.global_runtime_device_count() == 8
    assert xr.addressable_runtime_device_count() == 4
    assert xr.addressable_device_count() == xr.global_device_count() == 1
    assert _XLAC._xla_get_num_processes() == 2 and _XLAC._xla_get_process_index() == process
    names = [f"CPU:{i}" for i in range(8)]
    assert xm.xla_real_devices() == [names[i] for i in mine]
    assert [d["name"] for d in xr.global_runtime_device_attributes()] == names
    assert xr.runtime_device_attributes("xla:0")["name"] == names[mine[0]]
    """)


def test_without_spmd_mode_only_our_devices_are_there(run_python, half_plugin):
    code = """
import torch, torch_xla
assert torch_xla.device_count() == 4
x = torch.arange(4.0, device="xla:3")
assert (x + 1).tolist() == [1, 2, 3, 4]
assert torch_xla.real_devices() == ["CPU:4", "CPU:5", "CPU:6", "CPU:7"]
"""
    env = {"PJRT_LIBRARY_PATH": str(half_plugin), "HALF_PLUGIN_PROCESS": "1"}
    run_python(code, env=EIGHT | env)


def test_an_upload_sends_what_our_devices_hold(run):
    run("""
    value = torch.randn(16, 4)
    sent = lambda: (met.metric_data("OutboundData") or (0, 0))[1]
    before = sent()
    t = value.to(device)
    xs.mark_sharding(t, mesh, ("x", None))
    assert sent() - before == value.nbytes / 2
    held = shards(t)
    assert [s.shard_device for s in held] == xm.xla_real_devices()
    for shard, i in zip(held, mine, strict=True):
        assert shard.replica_id == 0
        assert [(s.start, s.stop) for s in shard.indices] == [(2 * i, 2 * i + 2), (0, 4)]
        torch.testing.assert_close(shard.data, value[2 * i : 2 * i + 2], rtol=0, atol=0)

    uneven = torch.randn(13).to(device)
    xs.mark_sharding(uneven, mesh, ("x",))
    assert [len(s.data) for s in shards(uneven)] == [2] * 4
    there = [len(s.unpadded_data) for s in shards(uneven)]
    assert there == ([2, 2, 2, 2], [2, 2, 1, 0])[process]
    """)


def test_what_each_device_has_whole_is_read_here(run):
    run("""
    value = torch.randn(8, 4)
    t = value.to(device)
    torch.testing.assert_close((t * 2).cpu(), value * 2)  # not split at all
    torch.testing.assert_close((t.sum() * 2).cpu(), value.sum() * 2)
    xs.mark_sharding(t, mesh, (None, None))
    assert [s.replica_id for s in shards(t)] == list(mine)
    torch.testing.assert_close(t.cpu(), value, rtol=0, atol=0)
    both = torch.randn(8, 4)
    t = both.to(device)
    xs.mark_sharding(t, pairs, ("device", None))  # each process has all parts
    torch.testing.assert_close(t.cpu(), both, rtol=0, atol=0)
    assert [s.replica_id for s in shards(t)] == [process] * 4
    """)


def test_a_read_of_what_others_hold_says_what_to_do(run):
    run("""
    value = torch.randn(16, 4)
    t = value.to(device)
    xs.mark_sharding(t, mesh, ("x", None))
    y = t * 3
    xs.mark_sharding(y, mesh, ("x", None))
    torch_xla.sync()
    words = ("to('cpu'): expected a value of which this process has all parts", "[16, 4]",
             "{devices=[8,1]0,1,2,3,4,5,6,7}", "4 of 8", "mark_sharding", "local_shards")
    for split in (t, y):
        for read in (split.cpu, split.tolist, lambda: split.numpy(force=True)):
            refused(RuntimeError, read, *words)
    line = inspect.currentframe().f_lineno + 1
    z = t + 1
    xs.mark_sharding(z, mesh, ("x", None))
    torch_xla.sync()
    refused(RuntimeError, z.cpu, f":{line + 1}", *words)
    torch.testing.assert_close(torch.cat([s.data for s in shards(y)]), ours(value) * 3)

    # What it says.
    xs.clear_sharding(y)
    torch_xla.sync()
    torch.testing.assert_close(y.cpu(), of_both(value) * 3)
    xs.clear_sharding(t)
    xs.mark_sharding(t, mesh, (None, None))
    torch_xla.sync()
    torch.testing.assert_close(t.cpu(), of_both(value), rtol=0, atol=0)
    """)


def test_parts_are_put_together(run):
    run("""
    value = torch.randn(16, 4)
    t = torch.zeros(16, 4).to(device)
    sharded = xs.mark_sharding(t, mesh, ("x", None))
    held = sharded.local_shards
    for shard, i in zip(held, mine, strict=True):
        shard.data = value[2 * i : 2 * i + 2]
    sharded.load_local_shards_(held)
    torch.testing.assert_close(torch.cat([s.data for s in shards(t)]), ours(value), rtol=0, atol=0)
    torch.testing.assert_close((t.sum(0) * 1).cpu(), of_both(value).sum(0))

    op = mesh.get_op_sharding(("x", None))
    made = _XLAC._global_tensor_from_cpu_shards([s.data for s in held], op, (16, 4))
    assert made.shape == (16, 4) and _XLAC._get_xla_sharding_spec(made) == str(op)
    torch.testing.assert_close(made.mean(0).cpu(), of_both(value).mean(0))
    too_many = [s.data for s in held] * 2
    refused(RuntimeError, lambda: _XLAC._global_tensor_from_cpu_shards(too_many, op),
            "expected a shard for each of 4 devices, got 8")
    """)


def test_manual_code_runs_on_all_devices(run):
    run("""
    value = torch.arange(16.0)
    t = value.to(device)
    xs.mark_sharding(t, mesh, ("x",))
    part = xs.enable_manual_sharding(t, ("x",), mesh=mesh).global_tensor
    total = xs.all_reduce("sum", part)
    whole = xs.disable_manual_sharding(total, (None,), (2,), mesh=mesh).global_tensor
    torch.testing.assert_close(whole.cpu(), of_both(value).reshape(8, 2).sum(0))
    """)


TRAINING = """
    def model():
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        for p in net.parameters():  # what is split is the same in both halves, and stays so
            p.data = of_both(p.data)
            if p.dim() == 2:
                p.data = of_both(p.data.T).T.contiguous()
        return net
    data, target = torch.randn(3, 16, 16), torch.randn(3, 16, 4).repeat(1, 1, 2)

    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    expected = []
    for x, y in zip(data, target):
        loss = nn.functional.mse_loss(net(of_both(x)), of_both(y))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        expected.append(loss.item())

    theirs = model().to(device)
    if split_parameters:
        for p in theirs.parameters():
            xs.mark_sharding(p, mesh, ("x",) + (None,) * (p.dim() - 1))
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.1)
    losses = []
    for x, y in zip(data, target):
        x, y = x.to(device), y.to(device)
        xs.mark_sharding(x, mesh, ("x", None))
        xs.mark_sharding(y, mesh, ("x", None))
        loss = nn.functional.mse_loss(theirs(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    torch.testing.assert_close(losses, expected)
    for p, q in zip(theirs.parameters(), net.parameters()):
        if split_parameters:
            held = torch.cat([s.data for s in shards(p)])
            torch.testing.assert_close(held, ours(q.detach()), rtol=1e-4, atol=1e-5)
        else:
            torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-4, atol=1e-5)
"""


@pytest.mark.parametrize("split_parameters", [False, True], ids=["data", "data and parameters"])
def test_training(run, split_parameters):
    run(f"    split_parameters = {split_parameters}\n" + TRAINING)
