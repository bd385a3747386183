"""Nested data: to the device, to the CPU, to files and back."""

from __future__ import annotations

import collections
import dataclasses
import io
import re
import types
from typing import NamedTuple

import pytest
import torch
from torch import nn, optim

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.utils.serialization as xser
import torch_xla.utils.utils as xu


class Pair(NamedTuple):
    image: torch.Tensor
    label: int


@dataclasses.dataclass(frozen=True)
class Record:
    value: torch.Tensor
    name: str


class Wrapped(xu.DataWrapper):
    def __init__(self, tensors, tag):
        self._tensors, self.tag = tensors, tag

    def get_tensors(self):
        return self._tensors

    def from_tensors(self, tensors):
        return Wrapped(tensors, self.tag)


def nested(device: str) -> dict:
    t = torch.arange(6.0, device=device).reshape(2, 3)
    state = collections.OrderedDict(weight=t, tied=t)
    state._metadata = {"version": 2}
    return {
        "state": state,
        "pair": Pair(t + 1, 3),
        "record": Record(t + 2, "x"),
        "list": [t + 3, 1, None, "text"],
        "tuple": (t + 4, (t + 5,)),
        "set": {t + 6},
        "deque": collections.deque([t + 7], maxlen=3),
        "default": collections.defaultdict(list, key=t + 8),
        "object": types.SimpleNamespace(tensor=t + 9, other=2),
        "plain": [1, 2],
        "int": torch.tensor([1, 2], device=device),
        "bfloat16": torch.tensor([1.5], dtype=torch.bfloat16, device=device),
        "bool": torch.tensor([True, False], device=device),
        "empty": torch.empty(0, 2, device=device),
        "scalar": torch.tensor(7, device=device),
    }


def tensors_of(data) -> list[torch.Tensor]:
    found = []
    xu.for_each_instance(data, lambda v: isinstance(v, torch.Tensor), found.append)
    return found


def assert_nested(data: dict, device: str, original: dict) -> None:
    assert all(t.device.type == device for t in tensors_of(data))
    assert list(data) == list(original)
    assert type(data["state"]) is collections.OrderedDict
    assert data["state"]._metadata == {"version": 2}
    assert data["state"]["weight"] is data["state"]["tied"]
    assert type(data["pair"]) is Pair and data["pair"].label == 3
    assert type(data["record"]) is Record and data["record"].name == "x"
    assert data["list"][1:] == [1, None, "text"]
    assert type(data["set"]) is set and data["deque"].maxlen == 3
    assert data["default"].default_factory is list
    assert data["object"].other == 2
    expected = {t.sum().item() for t in tensors_of(original)}
    assert {t.sum().item() for t in tensors_of(data)} == expected
    for key in ("int", "bfloat16", "bool", "empty", "scalar"):
        assert data[key].dtype == original[key].dtype and data[key].shape == original[key].shape


def test_cpu_data_to_device_and_back():
    data = nested("cpu")
    there = xm.send_cpu_data_to_device(data, xm.xla_device())
    assert_nested(there, "xla", data)
    assert all(t.device.type == "cpu" for t in tensors_of(data))
    assert there["plain"] is data["plain"]  # what holds no tensor is not copied
    assert_nested(xm._maybe_convert_to_cpu(there), "cpu", data)
    t = torch.ones(2)
    (moved,) = xm.send_cpu_data_to_device(t, "xla")  # a list, as programs index it
    assert moved.device.type == "xla" and torch.equal(moved.cpu(), t)
    state = xm.send_cpu_data_to_device({"step": t, "lr": 0.1}, xm.xla_device())
    assert state["step"].device.type == "xla" and state["lr"] == 0.1
    assert xm.send_cpu_data_to_device("text", "xla") == "text"
    with pytest.raises(TypeError, match="input_sharding: expected a ShardingSpec"):
        xm.send_cpu_data_to_device(t, "xla", input_sharding=object())


def test_parameters_and_gradient_flags_survive():
    parameter = nn.Parameter(torch.ones(2), requires_grad=False)
    leaf = torch.ones(2, requires_grad=True)
    there = xm.send_cpu_data_to_device([parameter, leaf, leaf * 2], "xla")
    assert isinstance(there[0], nn.Parameter) and not there[0].requires_grad
    assert there[1].requires_grad and there[1].is_leaf
    back = xm._maybe_convert_to_cpu(there)
    assert isinstance(back[0], nn.Parameter) and back[1].requires_grad


def test_data_wrapper():
    wrapped = xm.send_cpu_data_to_device(
        {"w": Wrapped([torch.ones(1), torch.zeros(1)], "t")}, "xla"
    )
    assert type(wrapped["w"]) is Wrapped and wrapped["w"].tag == "t"
    assert [t.device.type for t in wrapped["w"].get_tensors()] == ["xla", "xla"]


def test_shared_and_cyclic_data():
    t = torch.ones(2)
    inner = [t]
    outer = {"inner": inner, "again": inner}
    inner.append(outer)
    there = xm.send_cpu_data_to_device(outer, "xla")
    assert there["inner"] is there["again"] and there["inner"][1] is there
    assert there["inner"][0].device.type == "xla" and inner[0] is t


def test_conversion_to_cpu_is_one_run_and_keeps_the_rest_pending():
    x = torch.ones(4, device="xla")
    torch_xla.sync()
    met.clear_all()
    data = [x + i for i in range(5)]
    cpu = xm._maybe_convert_to_cpu(data)
    assert [t[0].item() for t in cpu] == [1, 2, 3, 4, 5]
    assert met.metric_data("ExecuteTime")[0] == 1
    unchanged = xm._maybe_convert_to_cpu(data, convert=False)
    assert all(t.device.type == "xla" for t in unchanged)


def test_arena():
    arena = xm.ToXlaTensorArena(lambda xs: [x * 2 for x in xs], lambda v: isinstance(v, int))
    assert arena.transform({"a": [1, (2, "b")], "c": 3.0}) == {"a": [2, (4, "b")], "c": 3.0}
    wrong = xm.ToXlaTensorArena(lambda xs: [], lambda v: isinstance(v, int))
    with pytest.raises(ValueError, match="expected as many values back as were passed, 2, got 0"):
        wrong.transform([1, 2])


# xm.save


def test_save_and_load(tmp_path):
    path = tmp_path / "data.pt"
    xm.save(nested("xla"), path)
    loaded = torch.load(path, weights_only=False)
    assert_nested(loaded, "cpu", nested("cpu"))


def test_save_of_a_model_and_its_optimizer(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to("xla")
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 3, device="xla")).sum().backward()
        xm.optimizer_step(optimizer, barrier=True)
    path = str(tmp_path / "checkpoint.pt")
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    xm.save(checkpoint, path, global_master=True)
    loaded = torch.load(path)
    assert loaded["epoch"] == 3
    assert all(t.device.type == "cpu" for t in tensors_of(loaded))
    fresh = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to("xla")
    fresh.load_state_dict(loaded["model"])
    fresh_optimizer = optim.AdamW(fresh.parameters(), lr=0.1)
    fresh_optimizer.load_state_dict(loaded["optimizer"])
    x = torch.randn(5, 3, device="xla")
    for m, o in ((model, optimizer), (fresh, fresh_optimizer)):
        o.zero_grad()
        m(x).sum().backward()
        xm.optimizer_step(o, barrier=True)
    for p, q in zip(model.parameters(), fresh.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach().cpu())


def test_save_to_file_objects_and_of_whole_modules(tmp_path):
    buffer = io.BytesIO()
    xm.save({"x": torch.ones(2, device="xla") * 3}, buffer)
    buffer.seek(0)
    assert torch.load(buffer)["x"].tolist() == [3, 3]
    model = nn.Linear(2, 2).to("xla")
    with open(tmp_path / "model.pt", "wb") as file:
        xm.save(model, file, master_only=False, sync=False)
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert loaded.weight.device.type == "cpu" and isinstance(loaded.weight, nn.Parameter)
    assert model.weight.device.type == "xla"
    assert loaded.weight.tolist() == model.weight.tolist()


def test_only_the_master_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(xm, "is_master_ordinal", lambda local=True: False)
    xm.save([torch.ones(1, device="xla")], tmp_path / "a.pt")
    assert not (tmp_path / "a.pt").exists()
    xm.save([torch.ones(1, device="xla")], tmp_path / "b.pt", master_only=False)
    assert (tmp_path / "b.pt").exists()
    xser.save([torch.ones(1, device="xla")], tmp_path / "c.pt")
    assert not (tmp_path / "c.pt").exists() and not (tmp_path / "c.pt.tensors").exists()


# torch.save


def test_torch_save_of_cpu_copies(tmp_path):
    tensors = (torch.randn(2, 2, device="xla"), torch.randn(2, 2, device="xla"))
    torch.save(tuple(t.cpu() for t in tensors), tmp_path / "tensors.pt")
    loaded = torch.load(tmp_path / "tensors.pt")
    for t, u in zip(tensors, loaded, strict=True):
        assert u.device.type == "cpu"
        assert torch.equal(u.to(xm.xla_device()).cpu(), t.cpu())


def test_torch_save_of_xla_tensors_comes_back_to_xla(tmp_path):
    t = torch.randn(3, device="xla", requires_grad=True)
    torch.save({"t": t, "p": nn.Parameter(torch.ones(2, device="xla"))}, tmp_path / "t.pt")
    loaded = torch.load(tmp_path / "t.pt")
    assert loaded["t"].device == torch.device("xla:0") and loaded["t"].requires_grad
    assert torch.equal(loaded["t"].detach().cpu(), t.detach().cpu())
    assert isinstance(loaded["p"], nn.Parameter)
    mapped = torch.load(tmp_path / "t.pt", map_location="cpu")
    assert mapped["t"].device.type == "cpu"


# Serialization


def test_serialization_round_trip(tmp_path):
    path = tmp_path / "model.ckpt"
    data = nested("xla")
    for key in ("object", "record", "pair", "set", "deque", "default"):  # not for weights_only
        del data[key]
    data["cpu"] = torch.ones(2)
    xser.save(data, path)
    loaded = xser.load(path)
    assert all(t.device.type == "cpu" for t in tensors_of(loaded))
    assert list(loaded) == list(data)
    assert loaded["state"]["weight"] is loaded["state"]["tied"]
    assert loaded["state"]["weight"].tolist() == data["state"]["weight"].tolist()
    assert loaded["tuple"][1][0].tolist() == data["tuple"][1][0].tolist()
    assert loaded["bfloat16"].dtype == torch.bfloat16 and loaded["list"][1:] == [1, None, "text"]


def test_serialization_of_other_objects_asks_for_trust(tmp_path):
    path = str(tmp_path / "data")
    xser.save(nested("xla"), path)
    with pytest.raises(Exception, match="weights_only"):
        xser.load(path)
    assert_nested(xser.load(path, weights_only=False), "cpu", nested("cpu"))


def test_serialization_has_one_tensor_on_the_host_at_a_time(tmp_path, monkeypatch):
    batches = []
    original = torch_xla._XLAC._xla_get_cpu_tensors

    def counted(tensors):
        batches.append(len(tensors))
        return original(tensors)

    monkeypatch.setattr(torch_xla._XLAC, "_xla_get_cpu_tensors", counted)
    x = torch.ones(4, device="xla")
    torch_xla.sync()
    met.clear_all()
    xser.save([x + i for i in range(5)], tmp_path / "x")
    assert batches == [1] * 5
    assert met.metric_data("ExecuteTime")[0] == 1


def test_serialization_replaces_what_was_there(tmp_path):
    path = tmp_path / "x"
    xser.save([torch.full((1,), float(i), device="xla") for i in range(4)], path)
    xser.save([torch.full((1,), 9.0, device="xla")], path)
    assert len(list((tmp_path / "x.tensors").iterdir())) == 1
    assert xser.load(path)[0].tolist() == [9]
    next((tmp_path / "x.tensors").iterdir()).unlink()
    with pytest.raises(FileNotFoundError, match="expected the tensors of .* Keep the folder"):
        xser.load(path)


@pytest.mark.parametrize("stop_at", range(3))
def test_an_interrupted_save_leaves_the_one_before(tmp_path, monkeypatch, stop_at):
    """Whichever of its files it was writing, a save that ends early changes nothing."""
    path = tmp_path / "x"
    xser.save({"a": torch.zeros(2, device="xla"), "b": torch.ones(2, device="xla")}, path)
    save, written = torch.save, []

    def interrupted(data, file):
        if len(written) == stop_at:
            raise KeyboardInterrupt
        written.append(file)
        save(data, file)

    monkeypatch.setattr(torch, "save", interrupted)
    new = {"b": torch.full((2,), 7.0, device="xla"), "c": torch.full((2,), 8.0, device="xla")}
    with pytest.raises(KeyboardInterrupt):
        xser.save(new, path)
    monkeypatch.undo()
    loaded = xser.load(path)
    assert {name: t.tolist() for name, t in loaded.items()} == {"a": [0, 0], "b": [1, 1]}
    assert len(list((tmp_path / "x.tensors").iterdir())) == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x", "x.tensors"]


def test_a_save_that_cannot_take_its_place_leaves_nothing(tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(IsADirectoryError):
        xser.save({"x": torch.ones(3, device="xla")}, tmp_path / "there")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["there", "there.tensors"]


def test_a_killed_save_leaves_the_one_before(tmp_path, run_python):
    code = """
        import os, torch, torch_xla
        import torch_xla.utils.serialization as xser
        xser.save({"a": torch.zeros(2), "b": torch.ones(2)}, "x")
        save = torch.save
        def killed(data, file):
            if isinstance(data, dict):  # the structure
                os._exit(9)
            save(data, file)
        torch.save = killed
        xser.save({"b": torch.full((2,), 7.0), "c": torch.full((2,), 8.0)}, "x")
        """
    assert run_python(code, check=False).returncode == 9
    loaded = xser.load(tmp_path / "x")
    assert {name: t.tolist() for name, t in loaded.items()} == {"a": [0, 0], "b": [1, 1]}
    xser.save([torch.ones(1)], tmp_path / "x")  # takes the remains away
    assert len(list((tmp_path / "x.tensors").iterdir())) == 1


def test_serialization_into_links(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "x").symlink_to("there/structure")
    (tmp_path / "x.tensors").symlink_to("there/tensors")
    for value in (1.0, 2.0):
        xser.save([torch.full((2,), value, device="xla")], tmp_path / "x")
        assert xser.load(tmp_path / "x")[0].tolist() == [value] * 2
        assert (tmp_path / "x").is_symlink() and (tmp_path / "x.tensors").is_symlink()
        assert sorted(file.name for file in (tmp_path / "there").iterdir()) == [
            "structure",
            "tensors",
        ]


def test_serialization_reads_the_first_layout(tmp_path):
    """Numbered files without a name of their save."""
    reference = xser.TensorReference(0)
    reference.__dict__.pop("save_id", None)
    torch.save({"a": reference}, tmp_path / "x")
    (tmp_path / "x.tensors").mkdir()
    torch.save(torch.ones(2), tmp_path / "x.tensors" / "tensor_0.pt")
    assert xser.load(tmp_path / "x")["a"].tolist() == [1, 1]
    xser.save({"a": torch.zeros(2)}, tmp_path / "x")
    assert xser.load(tmp_path / "x")["a"].tolist() == [0, 0]
    assert len(list((tmp_path / "x.tensors").iterdir())) == 1


def test_serialization_of_a_model(tmp_path):
    model = nn.Linear(3, 2).to("xla")
    xser.save(model.state_dict(), tmp_path / "model")
    fresh = nn.Linear(3, 2)
    fresh.load_state_dict(xser.load(tmp_path / "model"))
    assert torch.equal(fresh.weight, model.weight.cpu())


# utils.utils


def test_generators():
    sample = (torch.ones(2), torch.zeros(2))
    generator = xu.SampleGenerator(sample, 3)
    assert len(generator) == 3
    assert [s is sample for s in generator] == [True] * 3 == [s is sample for s in generator]
    functional = xu.FnDataGenerator(lambda t: t.sum(), 4, torch.ones, dims=[2], count=2)
    assert [(tuple(d.shape), s.item()) for d, s in functional] == [((4, 2), 8.0)] * 2
    assert len(functional) == 2


def test_environment(monkeypatch):
    monkeypatch.setenv("SOME_NUMBER", "7")
    monkeypatch.setenv("SOME_BOOL", "true")
    assert xu.getenv_as("SOME_NUMBER", int) == 7
    assert xu.getenv_as("SOME_BOOL", bool) is True
    assert xu.getenv_as("SOME_MISSING", int, defval=3) == 3
    monkeypatch.setenv("SOME_BOOL", "maybe")
    with pytest.raises(ValueError, match="SOME_BOOL: expected 0 or 1"):
        xu.getenv_as("SOME_BOOL", bool)


def test_rewriting_nested_values():
    rewritten = xu.for_each_instance_rewrite(
        {"a": [1, 2]}, lambda v: isinstance(v, int), lambda v: -v
    )
    assert rewritten == {"a": [-1, -2]}
    lines = []
    assert xu.timed(lambda: 7, "call", printfn=lines.append) == 7
    with xu.TimedScope("block", printfn=lines.append) as scope:
        scope.set_error(ValueError("odd"))
    with pytest.raises(KeyError), xu.TimedScope(printfn=lines.append):
        raise KeyError("no")
    assert lines[0].startswith("call: 0.0") and lines[0].endswith(" s")
    assert re.fullmatch(r"block: 0\.0\d+ s \(failed: ValueError\('odd'\)\)", lines[1])
    assert "failed: KeyError" in lines[2]
