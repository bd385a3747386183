"""Addresses of storages, libraries that compare them, and files that are loaded onto xla.

Units: _src/patches/loading.
"""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import torch_xla

from .test_module_identity import Tied


def pointer(x):
    return x.untyped_storage().data_ptr()


def test_addresses_tell_storages_apart():
    x, y = (torch.zeros(100, device="xla") for _ in range(2))
    assert pointer(x) and pointer(x) != pointer(y)
    low, high = sorted([pointer(x), pointer(y)])
    assert low + 400 <= high  # the ranges do not overlap


def test_addresses_are_the_same_for_what_shares_memory():
    x = torch.zeros(6, 10, device="xla")
    for view in (x[1], x.t(), x.view(-1), x.detach(), x[:, 3:5], nn.Parameter(x)):
        assert pointer(view) == pointer(x)
    assert x.data_ptr() == pointer(x)
    assert x[1].data_ptr() == x.data_ptr() + 40
    assert x.view(-1)[-1].data_ptr() == x.data_ptr() + 59 * 4
    assert pointer(x.clone()) != pointer(x)
    model = Tied().to("xla")
    assert pointer(model.head.weight) == pointer(model.embedding.weight)


def test_addresses_stay():
    x = torch.zeros(6, device="xla")
    before = x.data_ptr()
    x.add_(1)
    x[2:] = 5
    torch_xla.sync()
    x.mul_(2)
    torch_xla.sync(wait=True)
    x.cpu()
    assert x.data_ptr() == before
    x.resize_(3)
    assert x.data_ptr() == before


def test_empty_tensors_have_none_as_in_pytorch():
    assert torch.empty(0, device="xla").data_ptr() == torch.empty(0).data_ptr() == 0
    assert torch.empty(0, device="xla").untyped_storage().nbytes() == 0
    torch.empty(0, device="xla").untyped_storage().data_ptr()


def test_no_tensor_refuses():
    x = torch.randn(3, 4, device="xla", requires_grad=True)
    model = nn.Linear(4, 2).to("xla")
    model(x).sum().backward()
    for t in (x, x.grad, x * 2, model.weight, model.weight.grad, model(x)[0], x.int(), x > 0):
        assert t.data_ptr() and pointer(t)
        assert t.storage_offset() * t.element_size() == t.data_ptr() - pointer(t)


def test_storages_are_read_and_written_as_bytes():
    cpu = torch.arange(4.0)
    x = cpu.to("xla")
    storage = x.untyped_storage()
    assert torch.empty(0, device="xla").set_(storage).tolist() == [0, 1, 2, 3]
    assert storage.tolist() == cpu.untyped_storage().tolist()
    assert storage.cpu().tolist() == cpu.untyped_storage().tolist()
    assert storage[6] == cpu.untyped_storage()[6]
    assert x.storage().tolist() == cpu.tolist()
    words = torch.empty(0, dtype=torch.int16, device="xla").set_(storage, 2, (2, 2))
    assert words.tolist() == cpu.view(torch.int16)[2:6].reshape(2, 2).tolist()
    words[0, 1] = cpu.view(torch.int16)[7].item()
    assert x.tolist() == [0, 3, 2, 3]
    assert x.share_memory_() is x and x.tolist() == [0, 3, 2, 3]
    storage.fill_(0)
    assert x.tolist() == [0] * 4


def test_what_is_the_same_memory():
    x = torch.arange(4.0, device="xla")
    assert x.is_set_to(x.view(4)) and x.is_set_to(torch.empty(0, device="xla").set_(x))
    assert not x.is_set_to(x.clone()) and not x.is_set_to(x[1:]) and not x.is_set_to(x.view(2, 2))


# --- safetensors -----------------------------------------------------------------------------


def test_safetensors_keeps_tied_weights_tied(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model = Tied().to("xla")
    expected = {k: v.cpu() for k, v in model.state_dict().items()}
    safetensors.save_model(model, str(tmp_path / "model"))
    names = set(safetensors.load_file(str(tmp_path / "model")))
    assert len(names & {"embedding.weight", "head.weight"}) == 1
    other = Tied().to("xla")
    safetensors.load_model(other, str(tmp_path / "model"), device="xla")
    assert other.head.weight is other.embedding.weight
    for name, value in other.state_dict().items():
        assert value.device.type == "xla"
        assert torch.equal(value.cpu(), expected[name]), name


def test_safetensors_of_tensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    x, y = torch.randn(3, device="xla"), torch.arange(6, device="xla").reshape(2, 3)
    safetensors.save_file({"x": x, "y": y}, str(tmp_path / "f"))
    for device in ("cpu", "xla"):
        loaded = safetensors.load_file(str(tmp_path / "f"), device=device)
        assert loaded["x"].device.type == device
        assert torch.equal(loaded["x"].cpu(), x.cpu()) and torch.equal(loaded["y"].cpu(), y.cpu())
    with pytest.raises(RuntimeError, match="share memory"):
        safetensors.save_file({"a": x, "b": x.view(3, 1)}, str(tmp_path / "g"))
    assert torch.equal(safetensors.load(safetensors.save({"x": x}))["x"], x.cpu())


def test_huggingface_hub_knows_shared_tensors(tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    pytest.importorskip("safetensors")
    hub.save_torch_model(Tied().to("xla"), str(tmp_path))
    (file,) = tmp_path.glob("*.safetensors")
    from safetensors.torch import load_file

    assert len({"embedding.weight", "head.weight"} & set(load_file(str(file)))) == 1


# --- torch.load ------------------------------------------------------------------------------


def saved(obj, **kwargs):
    file = io.BytesIO()
    torch.save(obj, file, **kwargs)
    file.seek(0)
    return file


@pytest.mark.parametrize("source", ["cpu", "xla"])
@pytest.mark.parametrize("place", ["xla", "xla:0", torch.device("xla"), {"cpu": "xla"}], ids=str)
def test_files_are_loaded_onto_xla(source, place):
    cpu = {"x": torch.randn(3, 4), "n": torch.arange(5), "b": torch.tensor(2.5).bfloat16()}
    if source == "xla" and isinstance(place, dict):
        place = {"xla:0": "xla:0"}
    loaded = torch.load(saved({k: v.to(source) for k, v in cpu.items()}), map_location=place)
    for name, value in cpu.items():
        assert loaded[name].device == torch.device("xla:0"), name
        assert loaded[name].dtype == value.dtype
        assert torch.equal(loaded[name].cpu(), value), name


def test_loaded_tensors_share_what_was_shared():
    whole = torch.arange(12.0).reshape(3, 4)
    state = {"row": whole[1], "whole": whole, "again": whole, "t": whole.t()}
    loaded = torch.load(saved(state), map_location="xla")
    for name, value in state.items():
        assert torch.equal(loaded[name].cpu(), value), name
        assert pointer(loaded[name]) == pointer(loaded["whole"])
    loaded["whole"][1].fill_(9)
    assert loaded["row"].tolist() == [9.0] * 4
    assert loaded["again"][1].tolist() == [9.0] * 4


def test_a_state_dict_is_loaded_onto_xla():
    cpu = Tied()
    model = Tied().to("xla")
    model.load_state_dict(torch.load(saved(cpu.state_dict()), map_location="xla"))
    for name, value in cpu.state_dict().items():
        assert torch.equal(model.state_dict()[name].cpu(), value), name
    loaded = torch.load(saved(cpu), map_location="xla", weights_only=False)
    assert loaded.head.weight.device.type == "xla" and loaded.head.weight.requires_grad
    assert loaded.head.weight is loaded.embedding.weight


def test_loading_of_other_kinds():
    x = torch.arange(4.0, requires_grad=True)
    loaded = torch.load(saved(x), map_location="xla")
    assert loaded.requires_grad and loaded.is_leaf
    loaded.sum().backward()
    assert loaded.grad.tolist() == [1.0] * 4
    unusual = torch.arange(4).to(torch.uint16)
    loaded = torch.load(saved(unusual), map_location="xla")
    assert loaded.device.type == "xla" and loaded.cpu().tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="map_location='cpu'"):
        torch.load(saved(x, _use_new_zipfile_serialization=False), map_location="xla")
    assert torch.load(saved(x), map_location="cpu").device.type == "cpu"


def test_a_mapped_file_is_loaded_onto_xla(tmp_path):
    x = torch.randn(100)
    torch.save(x, tmp_path / "f")
    loaded = torch.load(tmp_path / "f", map_location="xla", mmap=True)
    assert torch.equal(loaded.cpu(), x)


def test_an_optimizer_state_is_loaded_onto_xla():
    def trained(device):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model.to(device)
        model(torch.ones(3, 4, device=device)).sum().backward()
        optimizer.step()
        return model, optimizer

    cpu, of_cpu = trained("cpu")
    model, optimizer = trained("xla")
    optimizer.load_state_dict(torch.load(saved(of_cpu.state_dict()), map_location="xla"))
    model.load_state_dict(torch.load(saved(cpu.state_dict()), map_location="xla"))
    for m, o, device in ((cpu, of_cpu, "cpu"), (model, optimizer, "xla")):
        m(torch.ones(3, 4, device=device)).sum().backward()
        o.step()
    for a, b in zip(model.parameters(), cpu.parameters(), strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach())


def test_copies_share_nothing():
    model = Tied().to("xla")
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.embedding.weight
    assert pointer(twin.head.weight) != pointer(model.head.weight)
    assert torch.equal(twin.head.weight.cpu(), model.head.weight.cpu())
