"""Checkpoints of every kind of tensor, by each planner, loaded on other numbers of devices."""

from __future__ import annotations

import pytest

from .test_checkpoint import run  # noqa: F401 (a fixture)

KINDS = """
import itertools, warnings
import torch_xla.experimental.distributed_checkpoint as checkpoints
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

ids = list(range(N))
flat = DeviceMesh("xla", ids)
turned = DeviceMesh("xla", ids[::-1])
grid = init_device_mesh("xla", (N // 2, 2) if N > 1 else (1, 1), mesh_dim_names=("a", "b"))

def distributed(mesh, *placements):
    return lambda t: distribute_tensor(t, mesh, list(placements))

def marked(*spec, wrap=False):
    def mark(t):
        t = t.to("xla")
        wrapped = xs.mark_sharding(t, mesh, spec)
        return wrapped if wrap else t
    return mark

# By name: the value's sizes and dtype, and what makes the tensor of it.
KINDS = {
    "rows": ((8, 6), torch.float, distributed(flat, Shard(0))),
    "columns": ((6, 8), torch.float, distributed(flat, Shard(1))),
    "backwards": ((8, 6), torch.float, distributed(turned, Shard(-2))),
    "both": ((8, 8), torch.float, distributed(grid, Shard(1), Shard(0))),
    "twice": ((8, 3), torch.float, distributed(grid, Shard(0), Shard(0))),
    "copies": ((8, 6), torch.float, distributed(grid, Replicate(), Shard(0))),
    "replicated": ((5, 3), torch.float, distributed(flat, Replicate())),
    "sum": ((4, 4), torch.float, distributed(flat, Partial())),
    "average": ((4, 4), torch.float, distributed(grid, Shard(0), Partial("avg"))),
    "maximum": ((4, 4), torch.int64, distributed(flat, Partial("max"))),
    "of a slice": ((8, 6), torch.float, distributed(grid["b"], Shard(0))),
    "uneven": ((10, 3), torch.float, distributed(flat, Shard(0))),
    "uneven twice": ((5, 7), torch.float, distributed(grid, Shard(0), Shard(1))),
    "few rows": ((3, 2), torch.float, distributed(flat, Shard(0))),
    "one row": ((1,), torch.float, distributed(flat, Shard(0))),
    "scalar": ((), torch.float, distributed(flat, Replicate())),
    "scalar sum": ((), torch.float, distributed(grid, Partial(), Replicate())),
    "empty": ((0, 3), torch.float, distributed(flat, Shard(0))),
    "half": ((8, 2), torch.bfloat16, distributed(flat, Shard(0))),
    "flags": ((8, 2), torch.bool, distributed(flat, Shard(0))),
    "complex": ((8, 2), torch.cfloat, distributed(flat, Shard(0))),
    "parameter": ((8, 2), torch.float,
                  lambda t: nn.Parameter(distribute_tensor(t, flat, [Shard(0)]))),
    "waits": ((8, 2), torch.float, lambda t: distribute_tensor(t, flat, [Shard(0)]) * 1),
    "turned": ((8, 2), torch.float, lambda t: distribute_tensor(t.t(), flat, [Shard(1)]).t()),
    "of mark": ((8, 4), torch.float, marked("data", "model")),
    "wrapped": ((8, 4), torch.float, marked("data", None, wrap=True)),
    "of mark, copies": ((8, 4), torch.float, marked(None, "model")),
    "of mark, uneven": ((10, 8), torch.float, marked(("data", "model"), None)),
    "of mark, partly uneven": ((10, 8), torch.float, marked("data", "model")),
    "of mark, few rows": ((3, 1), torch.float, marked(("data", "model"), None, wrap=True)),
    "of mark, whole": ((3, 4), torch.float, marked(None, None, wrap=True)),
    "part of a marked one": ((8, 3), torch.float, lambda t: padded(t)[:, 1:4]),
    "plain": ((3, 4), torch.float, lambda t: t.to("xla")),
    "on the CPU": ((3, 4), torch.float, lambda t: t.clone()),
}

def padded(t):
    wide = torch.nn.functional.pad(t, (1, 4)).to("xla")
    xs.mark_sharding(wide, mesh, ("data", None))
    return wide
"""

VALUES = """
def value(name, sizes, dtype):
    g = torch.Generator().manual_seed(sum(map(ord, name)))
    t = torch.randn(sizes, generator=g) * 8
    return t > 0 if dtype == torch.bool else t.round().to(dtype)

def whole(t):
    return t.full_tensor().detach().cpu() if isinstance(t, dt.DTensor) else t.detach().cpu()

import torch.distributed.tensor as dt
"""

MODEL = """
def split_model(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10)).to("xla")
    model[0].weight = nn.Parameter(distribute_tensor(model[0].weight.detach(), flat, [Shard(0)]))
    model[2].weight = nn.Parameter(distribute_tensor(model[2].weight.detach(), flat, [Shard(0)]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 8, device="xla")).square().mean().backward()
    optimizer.step()
    return model, optimizer

def tensors_of(model, optimizer):
    found = {n: whole(t) for n, t in model.state_dict().items()}
    for i, of in optimizer.state_dict()["state"].items():
        found.update({f"{i}.{key}": whole(t) for key, t in of.items()})
    return found
"""

SAVE = (
    VALUES
    + MODEL
    + """
kinds = {name: make(value(name, sizes, dtype)) for name, (sizes, dtype, make) in KINDS.items()}
model, optimizer = split_model(seed=0)
for name, t in kinds.items():
    torch.testing.assert_close(whole(t), value(name, *KINDS[name][:2]))
state = {"kinds": kinds, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
placed = {name: (t.placements, spec(t)) for name, t in kinds.items()
          if isinstance(t, DTensor) and t.is_placed}
dcp.save(state, checkpoint_id="pytorch")
dcp.save(state, checkpoint_id="ours", planner=SPMDSavePlanner())
manager = CheckpointManager("managed", save_interval=1)
assert manager.save(0, state) and manager.save_async(1, state)
manager.join()
for path in ("pytorch", "ours", "managed/0", "managed/1"):
    saved = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    assert {f"kinds.{name}" for name in KINDS} <= saved.keys(), path
    for name, (sizes, dtype, _) in KINDS.items():
        md = saved[f"kinds.{name}"]
        assert tuple(md.size) == sizes and md.properties.dtype == dtype, (path, name)
        # No element is written twice.
        assert sum(c.sizes.numel() for c in md.chunks) == md.size.numel(), (path, name, md)
for name, how in placed.items():  # as they were
    assert how == (kinds[name].placements, spec(kinds[name])), name
torch.save(({n: (s, d) for n, (s, d, _) in KINDS.items()}, tensors_of(model, optimizer)), "told.pt")
"""
)

LOAD_SPLIT = (
    VALUES
    + MODEL
    + """
def how(t):
    said = t.placements if isinstance(t, DTensor) else None
    return type(t), said, spec(t) if t.device.type == "xla" else None

def keeps(t):
    "Whether it is split afterwards as it was: a Partial is not, nor what is a part of another."
    return not isinstance(t, DTensor) or (t.is_placed and not hasattr(t, "_held"))

_, expected = torch.load("told.pt")
manager = CheckpointManager("managed", save_interval=1)
ways = {
    "pytorch": lambda path, state: dcp.load(state, checkpoint_id=path),
    "ours": lambda path, state: dcp.load(state, checkpoint_id=path, planner=SPMDLoadPlanner()),
    "manager": lambda path, state: manager.restore(int(path[-1]), state),
}
for path, (way, load) in itertools.product(("pytorch", "ours", "managed/0", "managed/1"),
                                           ways.items()):
    if way == "manager" and not path.startswith("managed"):
        continue
    kinds = {name: make(torch.zeros(sizes, dtype=dtype))
             for name, (sizes, dtype, make) in KINDS.items()}
    model, optimizer = split_model(seed=1)
    state = {"kinds": kinds, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    before = {name: how(t) for name, t in kinds.items() if keeps(t)}
    load(path, state)
    for name, t in kinds.items():
        message = f"{name} of {path} by {way}"
        torch.testing.assert_close(whole(t), value(name, *KINDS[name][:2]), msg=message)
        if name in before:
            assert how(t) == before[name], (message, before[name], how(t))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    check_equal(tensors_of(model, optimizer), expected)
"""
)

LOAD_PLAIN = (
    VALUES
    + """
shapes, expected = torch.load("told.pt")
device = "xla" if "torch_xla" in sys.modules else "cpu"
planners = [None] if device == "cpu" else [None, SPMDLoadPlanner()]
for path in ("pytorch", "ours", "managed/0", "managed/1"):
    for planner in planners:
        state = {"kinds": {n: torch.zeros(s, dtype=d, device=device)
                           for n, (s, d) in shapes.items()}}
        dcp.load(state, checkpoint_id=path, planner=planner)
        for name, t in state["kinds"].items():
            torch.testing.assert_close(t.cpu(), value(name, *shapes[name]), msg=(path, name))
"""
)

# Saved from plain tensors, loaded into split ones.
SAVE_PLAIN = (
    VALUES
    + MODEL
    + """
state = {"kinds": {n: value(n, s, d) for n, (s, d, _) in KINDS.items()}}
model, optimizer = split_model(seed=0)
told = tensors_of(model, optimizer)
state |= {"model": {n: whole(t) for n, t in model.state_dict().items()}}
state["optimizer"] = optimizer.state_dict()
for of in state["optimizer"]["state"].values():
    of.update({key: whole(t) for key, t in of.items()})
dcp.save(state, checkpoint_id="pytorch")
dcp.save(state, checkpoint_id="ours", planner=SPMDSavePlanner())
manager = CheckpointManager("managed", save_interval=1)
manager.save(0, state)
manager.save(1, state)
torch.save(({n: (s, d) for n, (s, d, _) in KINDS.items()}, told), "told.pt")
"""
)


@pytest.mark.parametrize(
    "savers, loaders",
    [
        (4, [4, 1]),
        pytest.param(4, [8, 2, 0, None], marks=pytest.mark.slow),
        pytest.param(1, [4, 1, 0, None], marks=pytest.mark.slow),
        pytest.param(8, [4, 8, 2], marks=pytest.mark.slow),
    ],
)
def test_every_kind_by_each_planner(run, savers, loaders):  # noqa: F811
    """0: one device without SPMD. None: PyTorch without torch_xla."""
    run(KINDS + SAVE, devices=savers)
    for devices in loaders:
        run(KINDS + LOAD_SPLIT if devices else LOAD_PLAIN, devices=devices)


@pytest.mark.parametrize("devices", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_plain_ones_load_into_every_kind(run, devices):  # noqa: F811
    run(KINDS + SAVE_PLAIN, devices=4)
    run(KINDS + LOAD_SPLIT, devices=devices)
