"""Split tensors in checkpoints of torch.distributed.checkpoint: any layout loads into any other."""

from __future__ import annotations

import textwrap

import pytest

PLAIN = """
import io, os, sys
import numpy as np
import torch, torch.nn as nn
import torch.distributed.checkpoint as dcp

def make(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.BatchNorm1d(8), nn.Linear(8, 6))

def train(model, optimizer, device="cpu", steps=3, split=lambda x: x):
    g = torch.Generator().manual_seed(7)
    for _ in range(steps):
        x = split(torch.randn(8, 16, generator=g).to(device))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return model

def bits(state):
    "All tensors of a state dict on the CPU, and what else is in it."
    if isinstance(state, torch.Tensor):
        return state.detach().cpu().clone()
    if isinstance(state, dict):
        return {key: bits(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(map(bits, state))
    return state

def check_equal(found, expected, path=""):
    assert type(found) == type(expected), (path, found, expected)
    if isinstance(found, dict):
        assert found.keys() == expected.keys(), (path, found.keys(), expected.keys())
        for key in found:
            check_equal(found[key], expected[key], f"{path}.{key}")
    elif isinstance(found, (list, tuple)):
        assert len(found) == len(expected), (path, found, expected)
        for i, (f, e) in enumerate(zip(found, expected)):
            check_equal(f, e, f"{path}.{i}")
    elif isinstance(found, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True, msg=path)
    else:
        assert found == expected, (path, found, expected)

def chunks(path):
    "The places of the chunks of each tensor."
    contents = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    return {name: sorted((tuple(c.offsets), tuple(c.sizes)) for c in md.chunks)
            for name, md in contents.items() if hasattr(md, "chunks")}
"""

XLA = """
import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla import _XLAC
from torch_xla.experimental.distributed_checkpoint import (
    CheckpointManager, SPMDLoadPlanner, SPMDSavePlanner, prime_optimizer)

def spec(t):
    "Of a value that has not been made, and that nobody has split, there is none."
    return _XLAC._get_xla_sharding_spec(t) or "{replicated}"
"""

SPMD = """
xr.use_spmd()
N = xr.global_runtime_device_count()
mesh = xs.Mesh(np.arange(N), (N // 2, 2) if N > 1 else (1, 1), ("data", "model"))

def split_model(model):
    model.to("xla")
    xs.mark_sharding(model[0].weight, mesh, ("model", "data"))
    xs.mark_sharding(model[0].bias, mesh, ("model",))
    xs.mark_sharding(model[3].weight, mesh, (None, ("data", "model")))
    return model

def split_batch(x):
    return xs.mark_sharding(x, mesh, ("data", None)).global_tensor

def trained():
    model = split_model(make())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, "xla", split=split_batch)
    return model, optimizer
"""


@pytest.fixture
def run(run_python):
    """Runs code in a process: of so many devices in SPMD mode, 0 for one device without it, None
    for plain PyTorch."""

    def run(code, devices, **names):
        given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
        start = PLAIN + (XLA if devices is not None else "") + (SPMD if devices else "") + given
        env = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices or 1)}
        return run_python(start + textwrap.dedent(code), env=env)

    return run


SAVE = """
model, optimizer = trained()
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}
if old:
    dcp.save_state_dict(state, dcp.FileSystemWriter("saved"),
                        planner=SPMDSavePlanner() if ours else None, no_dist=True)
else:
    dcp.save(state, checkpoint_id="saved", planner=SPMDSavePlanner() if ours else None)
torch.save(bits(state), "expected.pt")
train(model, optimizer, "xla", split=split_batch)
torch.save(bits({"model": model.state_dict(), "optimizer": optimizer.state_dict()}), "later.pt")
"""

LOAD = """
def load(state, planner):
    if old:
        dcp.load_state_dict(state, dcp.FileSystemReader("saved"), planner=planner, no_dist=True)
    else:
        dcp.load(state, checkpoint_id="saved", planner=planner)

planners = [None]
if "torch_xla" in sys.modules:
    planners.append(SPMDLoadPlanner())
for planner in planners:
    model = make(seed=1)
    device, split = "cpu", lambda x: x
    if "N" in globals():
        model, device, split = split_model(model), "xla", split_batch
    elif "torch_xla" in sys.modules:
        model, device = model.to("xla"), "xla"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, device, steps=1, split=split)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 0}
    before = {name: spec(p) for name, p in model.named_parameters()} if device == "xla" else {}
    load(state, planner)
    if before:
        assert before == {name: spec(p) for name, p in model.named_parameters()}
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    found = bits({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step":
                  state["step"]})
    expected = torch.load("expected.pt")
    if device == "cpu":  # there a count is a tensor as well
        assert found["optimizer"]["param_groups"][0].pop("fused") is None
        assert expected["optimizer"]["param_groups"][0].pop("fused") is None
    check_equal(found, expected)
    # Training goes on as if nothing had been.
    train(model, optimizer, device, split=split)
    later = torch.load("later.pt")
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach().cpu(), later["model"][name], rtol=1e-3, atol=1e-5)
"""


@pytest.mark.parametrize(
    "old, ours, loaders",
    [
        (False, True, [8]),
        pytest.param(False, True, [4, 1, 0, None], marks=pytest.mark.slow),
        pytest.param(False, False, [4, 8, 1, 0, None], marks=pytest.mark.slow),
        pytest.param(True, True, [4, 8, 1, 0, None], marks=pytest.mark.slow),
        pytest.param(True, False, [8, None], marks=pytest.mark.slow),
    ],
)
def test_any_layout_loads_into_any_other(run, old, ours, loaders):
    """Saved from four devices by `save` or the older `save_state_dict`, by our planner or by
    PyTorch's, and loaded by both."""
    run(SAVE, devices=4, ours=ours, old=old)
    for devices in loaders:
        run(LOAD, devices=devices, old=old)


def test_what_plain_pytorch_saved_is_loaded(run):
    run(
        """
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        train(model, optimizer)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}
        dcp.save(state, checkpoint_id="saved")
        torch.save(bits(state), "expected.pt")
        train(model, optimizer)
        torch.save(bits({"model": model.state_dict()}), "later.pt")
        """,
        devices=None,
    )
    run(LOAD, devices=8, old=False)


def test_each_part_is_saved_once_and_nothing_is_gathered(run):
    run(
        """
        def marked(shape, partition):
            t = torch.randn(shape).to("xla")
            xs.mark_sharding(t, mesh, partition)
            return t

        state = {
            "tiled": marked((64, 64), ("data", "model")),
            "rows": marked((64, 64), ("data", None)),
            "columns": marked((64, 64), (None, "model")),
            "cube": marked((8, 3, 8), ("model", None, "data")),
            "both": marked((64,), (("model", "data"),)),
            "whole": marked((64, 64), (None, None)),
            "uneven": marked((7, 64), ("data", "model")),
            "unmarked": torch.randn(64, 64).to("xla") * 2,
        }
        torch_xla.sync(wait=True)
        met.clear_all()
        for how in ("direct", "copied"):
            if how == "direct":
                dcp.save(state, checkpoint_id=how, planner=SPMDSavePlanner())
            else:
                from torch_xla.experimental.distributed_checkpoint._helpers import (
                    _CpuShards, _sharded_cpu_state_dict)
                copied = _sharded_cpu_state_dict(state)
                assert isinstance(copied["rows"], _CpuShards) and "4 parts" in repr(copied["rows"])
                dcp.save(copied, checkpoint_id=how, planner=SPMDSavePlanner())
            assert not {"CompileTime", "ExecuteReplicatedTime"} & set(met.metric_names())
            found = chunks(how)
            assert len(found["tiled"]) == 8 and len(found["both"]) == 8
            assert found["rows"] == [((16 * i, 0), (16, 64)) for i in range(4)]
            assert found["columns"] == [((0, 32 * i), (64, 32)) for i in range(2)]
            assert len(found["cube"]) == 8 and found["cube"][0] == ((0, 0, 0), (4, 3, 2))
            assert found["uneven"] == [
                ((2 * i, 32 * j), (min(2, 7 - 2 * i), 32)) for i in range(4) for j in range(2)
            ]
            assert found["whole"] == found["unmarked"] == [((0, 0), (64, 64))]
            data = sum(t.numel() for t in state.values()) * 4
            size = sum(os.path.getsize(f"{how}/{name}") for name in os.listdir(how))
            assert data < size < data + 150_000, (data, size)  # torch.save adds 2 KB to each
            loaded = {name: torch.zeros(t.shape) for name, t in state.items()}
            dcp.load(loaded, checkpoint_id=how)
            check_equal(loaded, bits(state))
        """,
        devices=8,
    )


def test_each_device_is_sent_its_part(run):
    run(
        """
        value = torch.randn(512, 512)
        source = value.to("xla")
        xs.mark_sharding(source, mesh, ("data", "model"))
        dcp.save({"w": source}, checkpoint_id="saved", planner=SPMDSavePlanner())
        target = torch.zeros(512, 512).to("xla")
        xs.mark_sharding(target, mesh, ("model", "data"))
        torch_xla.sync(wait=True)
        met.clear_all()
        dcp.load({"w": target}, checkpoint_id="saved", planner=SPMDLoadPlanner())
        shards = xs.wrap_as_sharded_tensor(target).local_shards
        assert not {"CompileTime", "ExecuteReplicatedTime"} & set(met.metric_names())
        assert met.metric_data("OutboundData")[1] == value.nbytes, met.metric_data("OutboundData")
        for shard in shards:
            assert torch.equal(shard.data, value[tuple(shard.indices)])
        assert spec(target) == "{devices=[2,4]0,2,4,6,1,3,5,7}"
        """,
        devices=8,
    )


@pytest.mark.parametrize("ours", [True, False], ids=["our planner", "PyTorch's planner"])
def test_all_kinds_of_values(run, ours):
    run(
        """
        def value(fresh):
            draw = torch.randn if fresh else torch.zeros
            def split(t):
                t = t.to("xla")
                return xs.mark_sharding(t, mesh, ("data",) + (None,) * (t.dim() - 1)).global_tensor
            w = split(draw(8, 4))
            return {
                # PyTorch's planner wants a mesh.
                "wrapped": xs.wrap_if_sharded(w) if ours else xs.mark_sharding(
                    draw(8, 4).to("xla"), mesh, ("data", None)),
                "part": nn.Parameter(split(draw(8))),
                "half": split(draw(8, 4).bfloat16()), "complex": split(draw(8, dtype=torch.cfloat)),
                "bool": split(draw(8) > 0), "long": split((draw(8, 2) * 9).long()),
                "empty": torch.zeros(0, 3, device="xla"), "split empty": split(torch.zeros(8, 0)),
                "scalar": draw(()).to("xla"), "cpu": draw(3), "transposed": split(draw(8, 4)).t(),
                "view": split(draw(8, 8))[:, 2:5], "waits": split(draw(8, 4)) * 2 + 1,
                "nested": {"list": [split(draw(8)), 5 if fresh else 0, {"deep": draw(2)}],
                           "numbers": [1, 2] if fresh else [], "None": None if fresh else 1,
                           "pair": (1.5, "text") if fresh else ()},
                "text": "new" if fresh else "", "dotted.key": split(draw(8)),
            }

        saved, loaded = value(True), value(False)
        expected = bits(saved)
        planner = SPMDSavePlanner() if ours else None
        dcp.save(saved, checkpoint_id="saved", planner=planner)
        check_equal(bits(saved), expected)  # saving changes nothing
        dcp.load(loaded, checkpoint_id="saved", planner=SPMDLoadPlanner() if ours else None)
        check_equal(bits(loaded), expected)
        assert isinstance(loaded["wrapped"], xs.XLAShardedTensor)
        assert isinstance(loaded["part"], nn.Parameter) and loaded["part"].requires_grad
        for name in ("wrapped", "part", "half", "long"):
            assert spec(getattr(loaded[name], "global_tensor", loaded[name])).startswith(
                "{devices=[4,"), name
        """,
        devices=8,
        ours=ours,
    )


def test_what_planners_hold_and_plan(run):
    run(
        """
        from torch_xla.experimental.distributed_checkpoint._helpers import (
            _CpuShards, _sharded_cpu_state_dict)

        def state(value):
            tensors = {name: torch.full((8, 6), float(value)).to("xla")
                       for name in ("tiled", "rows", "waits", "copies", "whole")}
            for name, spec in (("tiled", ("data", "model")), ("rows", (("data", "model"), None)),
                               ("waits", ("data", None)), ("copies", (None, "model"))):
                xs.mark_sharding(tensors[name], mesh, spec)
            tensors["waits"] = tensors["waits"] * 1
            tensors["wrapped"] = xs.wrap_as_sharded_tensor(tensors["whole"] * 1)
            return {"of": tensors, "cpu": torch.full((2,), float(value)), "number": value}

        split = {"of.tiled": 4, "of.rows": 4, "of.waits": 2, "of.copies": 2}
        others = {"of.whole", "of.wrapped", "cpu", "number"}
        saver, given = SPMDSavePlanner(), state(3)
        for of in (given, _sharded_cpu_state_dict(given)):
            saver.set_up_planner(of, True)
            assert saver.sharded_state_dict.keys() == split.keys()
            assert saver.unsharded_state_dict.keys() == others
            kind = xs.XLAShardedTensor if of is given else _CpuShards
            assert all(isinstance(v, kind) for v in saver.sharded_state_dict.values())
            assert not isinstance(saver.unsharded_state_dict["of.wrapped"], xs.XLAShardedTensor)
            items = saver.create_local_plan().items
            for name in (*split, *others):
                assert sum(i.index.fqn == name for i in items) == split.get(name, 1), name
            for item in items:
                if item.index.fqn in split:
                    assert saver.resolve_data(item).shape == item.tensor_data.chunk.sizes
        given["of"]["wrapped"] = given["of"]["wrapped"].global_tensor  # which has no mesh
        dcp.save(given, checkpoint_id="saved")  # each tensor as one chunk

        loader, loaded = SPMDLoadPlanner(), state(0)
        loader.set_up_planner(loaded, dcp.FileSystemReader("saved").read_metadata(), True)
        assert loader.sharded_state_dict.keys() == split.keys()
        assert loader.unsharded_state_dict.keys() == others
        items = loader.create_local_plan().items
        for name, tensor in loader.sharded_state_dict.items():
            own = [i for i in items if i.dest_index.fqn == name]
            shards = [s for s in tensor.local_shards if s.replica_id == 0]
            assert len(own) == len(shards) == split[name]
            for item, shard in zip(own, shards):
                assert item.dest_index.offset == tuple(s.start for s in shard.indices)
                assert item.lengths == shard.data.shape and set(item.dest_offsets) == {0}
                assert tensor.cpu().sum() == 0  # until all is read
                target = loader.resolve_tensor(item)
                loader.commit_tensor(item, target.copy_(torch.full(item.lengths, 3.0)))
            assert (tensor.cpu() == 3).all(), name
        """,
        devices=4,
    )


def test_a_manual_tensor_is_refused(run):
    run(
        """
        w = torch.ones(8, 4).to("xla") * 1
        manual = xs.enable_manual_sharding(w, (("data", "model"), None), mesh=mesh).global_tensor
        for save in (
            lambda: dcp.save({"w": manual}, checkpoint_id="saved"),
            lambda: dcp.save({"w": manual}, checkpoint_id="saved", planner=SPMDSavePlanner()),
            lambda: CheckpointManager("managed", 1).save(0, {"w": manual}),
            lambda: CheckpointManager("managed", 1).save_async(0, {"w": manual}),
        ):
            try:
                save()
            except BaseException as error:
                assert "manual" in str(error), error
            else:
                raise AssertionError("expected an error")
        """,
        devices=4,
    )


def test_keys_that_are_numbers_find_their_place(run):
    """PyTorch's planner would add a key "0" beside 0."""
    run(
        """
        state = {"optimizer": {0: {"step": 7, "m": torch.ones(2, device="xla")}, 5: {"step": 8}}}
        dcp.save(state, checkpoint_id="saved", planner=SPMDSavePlanner())
        loaded = {"optimizer": {0: {"step": 0, "m": torch.zeros(2, device="xla")}, 5: {"step": 0}}}
        dcp.load(loaded, checkpoint_id="saved", planner=SPMDLoadPlanner())
        check_equal(bits(loaded), bits(state))
        """,
        devices=2,
    )


def test_what_does_not_fit_is_refused(run):
    run(
        """
        def refused(call, kind, *words):
            try:
                call()
            except BaseException as error:
                told = str(error) + "".join(str(e) for e, _ in getattr(
                    error, "failures", {}).values())
                assert isinstance(error, kind) and all(w in told for w in words), (error, told)
            else:
                raise AssertionError("expected an error")

        from torch.distributed.checkpoint.api import CheckpointException
        w = torch.arange(8.0).to("xla")
        xs.mark_sharding(w, mesh, ("data",))
        state = {"w": w, "n": 1}
        dcp.save(state, checkpoint_id="saved", planner=SPMDSavePlanner())
        load = lambda state: dcp.load(state, checkpoint_id="saved", planner=SPMDLoadPlanner())
        refused(lambda: load({"w": w, "v": w}), CheckpointException, "Missing key", "v")
        refused(lambda: load({"w": torch.zeros(4, device="xla")}), CheckpointException, "mismatch")
        refused(lambda: dcp.save({"a": {"b": 0}, "a.b": w}, checkpoint_id="twice",
                                 planner=SPMDSavePlanner()),
                CheckpointException, "'a.b'", "Rename")
        assert not os.path.exists("twice/.metadata")

        # A checkpoint whose chunks leave something out.
        reader = dcp.FileSystemReader("saved")
        contents = reader.read_metadata()
        del contents.state_dict_metadata["w"].chunks[1]
        reader.read_metadata = lambda *a, **k: contents
        refused(lambda: dcp.load({"w": w}, storage_reader=reader, planner=SPMDLoadPlanner()),
                CheckpointException, "expected chunks of the 8 elements of w, got 6")
        assert w.tolist() == list(range(8))
        """,
        devices=8,
    )


def test_names_are_those_of_pytorch(run):
    run(
        """
        from torch.distributed.checkpoint._nested_dict import flatten_state_dict as theirs
        from torch_xla.experimental.distributed_checkpoint._helpers import (
            flatten_state_dict, set_element)
        t = torch.ones(2)
        for state in [
            {}, {"a": 1}, {"a": {}}, {"a": []}, {"a": [1, 2]}, {"a": [t, 1]}, {"a": [[t]]},
            {"a": [[1], [2]]}, {"a": [{"b": 1}, 2]}, {"a": (t, 1)}, {"a": ({"b": t},)},
            {"a": {"b": {1: t, 2: {3: [t, {4: 5}]}}}}, {0: {1: 2}}, {"a.b": 1, "c": {"d.e": t}},
            {"a": [[{"b": [t]}], 3, None]},
        ]:
            assert str(flatten_state_dict(state)) == str(theirs(state)), state
            flat, paths = flatten_state_dict(state)
            again = {}
            for name, value in flat.items():
                set_element(again, paths[name], value)
            assert str(flatten_state_dict(again)) == str((flat, paths)), state

        state = {"a": {0: 1, 5: [1, 2]}}
        set_element(state, ("a", "5"), 9)
        set_element(state, ("a", "7"), 8)
        set_element(state, ("b", 2, "c"), 7)
        assert state == {"a": {0: 1, 5: 9, "7": 8}, "b": [None, None, {"c": 7}]}, state
        """,
        devices=0,
    )


@pytest.mark.parametrize(
    "devices", [8, pytest.param(0, marks=pytest.mark.slow)], ids=["split", "one device"]
)
@pytest.mark.parametrize(
    "makers", ["first", pytest.param("second", marks=pytest.mark.slow)], ids=str
)
def test_a_primed_optimizer_has_its_state_and_nothing_else(run, devices, makers):
    half = "makers[:4]" if makers == "first" else "makers[4:]"
    run(
        """
        split = split_model if "N" in globals() else lambda model: model.to("xla")
        makers = [
            lambda p: torch.optim.AdamW(p, lr=0.1),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.5),
            lambda p: torch.optim.RMSprop(p, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1),
            lambda p: torch.optim.Adam(p, eps=0.0), lambda p: torch.optim.Adagrad(p),
            lambda p: torch.optim.AdamW(p, foreach=True),
            lambda p: torch.optim.AdamW(p, amsgrad=True, weight_decay=0.3),
        ]
        for make_optimizer in HALF:
            model, plain = split(make()), split(make())
            model[3].bias.requires_grad_(False)
            plain[3].bias.requires_grad_(False)
            model[0].weight.grad = torch.ones_like(model[0].weight)
            gradient = model[0].weight.grad
            before = bits(model.state_dict())
            optimizer = make_optimizer(model.parameters())
            rng, rng_xla = torch.get_rng_state(), torch.xla.get_rng_state()
            assert prime_optimizer(optimizer) is optimizer
            assert torch.equal(rng, torch.get_rng_state())
            assert torch.equal(rng_xla, torch.xla.get_rng_state())
            check_equal(bits(model.state_dict()), before)
            assert model[0].weight.grad is gradient and model[0].bias.grad is None
            other = make_optimizer(plain.parameters())
            for m, o in ((model, optimizer), (plain, other)):
                train(m, o, "xla", steps=1)
            found, expected = optimizer.state_dict()["state"], other.state_dict()["state"]
            # The first step is that of an optimizer that was not primed.
            for p, q in zip(model.parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(p.detach().cpu(), q.detach().cpu())
            assert found.keys() == expected.keys()
            for i in found:
                assert found[i].keys() == expected[i].keys()
            assert "N" not in globals() or all(
                spec(t) == spec(p) for p, of in optimizer.state.items() if "devices" in spec(p)
                for t in of.values() if isinstance(t, torch.Tensor) and t.shape == p.shape)
            # What is there already stays.
            trained = bits(optimizer.state_dict())
            check_equal(bits(prime_optimizer(optimizer).state_dict()), trained)
        primed = prime_optimizer(torch.optim.Adam(make().parameters()))  # on the CPU
        assert all(of["step"] == 0 for of in primed.state.values()) and len(primed.state) == 6
        """.replace("HALF", half),
        devices=devices,
    )


def test_priming_what_needs_a_closure_raises_and_puts_everything_back(run):
    run(
        """
        model = make().to("xla")
        before = bits(model.state_dict())
        try:
            prime_optimizer(torch.optim.LBFGS(model.parameters()))
        except TypeError as error:
            assert "closure" in str(error)
        else:
            raise AssertionError("expected an error")
        check_equal(bits(model.state_dict()), before)
        assert all(p.grad is None for p in model.parameters())
        """,
        devices=0,
    )
