"""`module.to("xla")` keeps the Parameter objects, as PyTorch does between other devices."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import nn, optim

import torch_xla


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.norm(self.embedding(x)))


def test_parameters_stay_the_same_objects():
    model = Tied()
    before = list(model.parameters())
    values = [p.tolist() for p in before]
    assert model.to("xla") is model
    assert [p is q for p, q in zip(model.parameters(), before, strict=True)] == [True] * 3
    assert all(isinstance(p, nn.Parameter) and p.requires_grad and p.is_leaf for p in before)
    assert {p.device for p in before} == {torch.device("xla:0")}
    assert {b.device.type for b in model.buffers()} == {"xla"}
    assert [p.tolist() for p in before] == values
    assert model.head.weight is model.embedding.weight
    model.cpu()
    assert [p is q for p, q in zip(model.parameters(), before, strict=True)] == [True] * 3
    assert {p.device.type for p in before} == {"cpu"}
    assert [p.tolist() for p in before] == values


def test_tied_weights_stay_tied_in_training():
    torch.manual_seed(0)
    cpu = Tied()
    model = copy.deepcopy(cpu).to("xla")
    x, y = torch.randint(7, (5,)), torch.randint(7, (5,))
    for m, device in ((cpu, "cpu"), (model, "xla")):
        optimizer = optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(m(x.to(device)), y.to(device)).backward()
            optimizer.step()
            torch_xla.sync()
    assert model.head.weight is model.embedding.weight
    torch.testing.assert_close(model.head.weight.detach().cpu(), cpu.head.weight.detach())


@pytest.mark.parametrize("make", [optim.SGD, optim.AdamW])
def test_an_optimizer_built_before_the_move_updates_the_model(make):
    model = nn.Linear(3, 2)
    optimizer = make(model.parameters(), lr=0.5)
    model.to("xla")
    before = model.weight.tolist()
    model(torch.ones(4, 3, device="xla")).sum().backward()
    optimizer.step()
    assert model.weight.tolist() != before
    assert optimizer.param_groups[0]["params"][0] is model.weight


def test_gradients_move_and_stay_the_same_objects():
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    grad = model.weight.grad
    expected = grad.tolist()
    model.to("xla")
    assert model.weight.grad is grad and grad.device.type == "xla"
    assert grad.tolist() == expected
    model(torch.ones(1, 3, device="xla")).sum().backward()
    assert model.weight.grad.tolist() == [[2.0] * 3] * 2
    model.cpu()
    assert model.weight.grad.device.type == "cpu"


def test_flags_attributes_and_subclasses_survive():
    class Special(nn.Parameter):
        pass

    model = nn.Linear(2, 2)
    model.weight = Special(torch.ones(2, 2), requires_grad=False)
    model.weight.tag = {"a": 1}
    weight = model.weight
    reference = weakref.ref(weight)
    model.to("xla")
    assert model.weight is weight is reference()
    assert type(weight) is Special and weight.tag == {"a": 1} and not weight.requires_grad


def test_gradient_hooks_survive():
    model = nn.Linear(2, 1)
    seen = []
    model.weight.register_hook(lambda g: seen.append("grad") or g * 2)
    model.weight.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    model.to("xla")
    model(torch.ones(1, 2, device="xla")).sum().backward()
    assert seen == ["grad", "accumulated"]
    assert model.weight.grad.tolist() == [[2.0, 2.0]]


def test_backward_of_a_graph_from_before_the_move_is_an_error():
    model = nn.Linear(2, 1)
    loss = model(torch.ones(1, 2)).sum()
    model.to("xla")
    with pytest.raises(RuntimeError, match="the module was moved to or from xla in between"):
        loss.backward()
    model(torch.ones(1, 2, device="xla")).sum().backward()
    assert model.weight.grad.tolist() == [[1.0, 1.0]]


def test_a_dead_graph_from_before_the_move_does_no_harm():
    model = nn.Linear(2, 1)
    out = model(torch.ones(1, 2)).sum()
    model.to("xla")
    model(torch.ones(1, 2, device="xla")).sum().backward()
    assert model.weight.grad.tolist() == [[1.0, 1.0]]
    assert out.device.type == "cpu"


def test_dtype_changes_with_the_move():
    model = nn.Linear(2, 2)
    weight = model.weight
    model.to("xla", torch.bfloat16)
    assert model.weight is weight and weight.dtype == torch.bfloat16
    model.float()
    assert model.weight is weight and weight.dtype == torch.float32 and weight.device.type == "xla"
    model.to(device="cpu", dtype=torch.float64)
    assert model.weight is weight and weight.dtype == torch.float64


def test_other_conversions():
    model = nn.LSTM(3, 4)
    weights = list(model.parameters())
    model.to("xla")
    assert all(p is q for p, q in zip(model.parameters(), weights, strict=True))
    assert all(w is p for w, p in zip(model._flat_weights, weights, strict=True))
    output, _ = model(torch.ones(2, 1, 3, device="xla"))
    assert output.shape == (2, 1, 4)

    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    empty.to_empty(device="xla")
    assert empty.weight.device.type == "xla"
    nn.init.ones_(empty.weight)
    assert empty.weight.tolist() == [[1, 1], [1, 1]]


def test_moves_between_other_devices_are_untouched():
    model = nn.Linear(2, 2)
    weight, data = model.weight, model.weight.data_ptr()
    model.cpu()
    assert model.weight is weight and weight.data_ptr() == data
    model.double()
    assert model.weight is weight
    model.to("meta")
    assert model.weight is not weight  # what PyTorch does
    assert weight.device.type == "cpu"


def test_deepcopy_of_a_moved_module_is_its_own():
    model = Tied().to("xla")
    other = copy.deepcopy(model)
    assert other.head.weight is other.embedding.weight is not model.head.weight
    with torch.no_grad():
        other.head.weight.zero_()
    assert model.head.weight.abs().sum().item() > 0


def test_nested_modules_and_buffers():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
            self.register_buffer("scale", torch.tensor(2.0))
            self.register_buffer("absent", None)
            self.register_parameter("none", None)

    model = Outer()
    parameters = dict(model.named_parameters())
    model.to(torch.device("xla"))
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert model.scale.device.type == "xla" and model.absent is None and model.none is None
