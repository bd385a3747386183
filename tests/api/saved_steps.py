"""Trainings that are saved as steps, and what the tests compare."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

import torch_xla


def training(model: nn.Module, make_optimizer: Callable, **options: Any) -> tuple:
    """The model and its optimizer on xla, and a step of theirs."""
    model = model.to("xla")
    optimizer = make_optimizer(model.parameters(), **options)

    @torch_xla.compile(full_graph=True)
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(
            16, 2, 32, dropout=0.2, batch_first=True, bias=False
        )
        self.head = nn.Linear(16, 20)

    def forward(self, x):
        return self.head(self.layer(self.embed(x)).mean(1))


def mlp():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    return model, torch.optim.AdamW, {"lr": 0.01}, lambda: torch.randn(32, 8), 4


def dropout():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    return model, torch.optim.Adam, {"lr": 0.01}, lambda: torch.randn(16, 4), 3


def cnn():
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 4))
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}
    return model, torch.optim.SGD, options, lambda: torch.randn(16, 1, 8, 8), 4


def transformer():
    return Transformer(), torch.optim.AdamW, {"lr": 0.01}, lambda: torch.randint(20, (8, 6)), 20


def made(case: Callable) -> tuple:
    torch.manual_seed(0)
    model, optimizer, options, draw, classes = case()
    batches = [(x := draw(), torch.randint(classes, (len(x),))) for _ in range(12)]
    return (*training(model, optimizer, **options), batches)


def on_xla(batch):
    return [t.to("xla") for t in batch]


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """All values of a training by the names that a saved step gives them."""
    values = {f"model.{n}": t for n, t in model.state_dict(keep_vars=True).items()}
    for i, state in optimizer.state_dict()["state"].items():
        values.update({f"optimizer.state.{i}.{key}": t for key, t in state.items()})
    return {n: t.detach().cpu().clone() for n, t in values.items() if torch.is_tensor(t)}


def assert_equal(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name


def losses_in(output: str, name: str = "result") -> list[float]:
    """A float32 for each step. The runner prints the shortest text that reads as the same one."""
    texts = [line.split(f" {name} ")[1].split()[0] for line in output.splitlines()]
    return torch.tensor([float(text) for text in texts]).tolist()


def inputs_of(folder) -> dict[str, dict]:
    return {i["name"]: i for i in json.loads((folder / "step.json").read_text())["inputs"]}


def save_batches(path, batches, names=("x", "y")):
    columns = zip(*batches, strict=True)
    save_file({n: torch.stack(c) for n, c in zip(names, columns, strict=True)}, path)
