"""Small models whose sharded training is compared with PyTorch's on the CPU.

Run in an SPMD process of eight devices. A model's `specs` say how its parameters are split along
the axes "data" and "model" (or "expert"); axes that a mesh has not are left out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

WORDS, WIDTH = 40, 16


class Cnn(nn.Module):
    specs = {
        "2.weight": ("model", None, None, None),
        "2.bias": ("model",),
        "3.": ("model",),
        "6.weight": (None, "model"),
    }

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * 4 * 4, 10),
        )

    def forward(self, x):
        return self.layers(x)

    def loss(self, batch: int, seed: int, device: str, split: Callable) -> torch.Tensor:
        g = torch.Generator().manual_seed(seed)
        x, y = torch.randn(batch, 3, 8, 8, generator=g), torch.randint(10, (batch,), generator=g)
        return F.cross_entropy(self(split(x.to(device))), split(y.to(device)))


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        shape = (*x.shape[:2], 4, WIDTH // 4)
        q, k, v = (
            t.reshape(shape).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(x.shape)))
        return x + self.dropout(self.down(F.gelu(self.up(self.second_norm(x)))))


class Transformer(nn.Module):
    """A language model whose output layer is its embedding."""

    specs = {
        "embed": ("model", None),
        "qkv.weight": ("model", None),
        "qkv.bias": ("model",),
        "out.weight": (None, "model"),
        "up.weight": ("model", None),
        "up.bias": ("model",),
        "down.weight": (None, "model"),
    }

    def __init__(self, dropout: float = 0.0, run: Callable = lambda layer, x: layer(x)):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block(dropout) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight
        self.run = run

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = self.run(layer, x)
        return self.head(x)

    def loss(self, batch: int, seed: int, device: str, split: Callable) -> torch.Tensor:
        g = torch.Generator().manual_seed(seed)
        tokens = split(torch.randint(WORDS, (batch, 12), generator=g).to(device))
        return F.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


class Recurrent(nn.Module):
    specs = {
        "weight_ih": ("model", None),
        "weight_hh": (None, "model"),
        "head.weight": (None, "model"),
    }

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])

    def loss(self, batch: int, seed: int, device: str, split: Callable) -> torch.Tensor:
        g = torch.Generator().manual_seed(seed)
        x, y = torch.randn(batch, 7, 6, generator=g), torch.randn(batch, 3, generator=g)
        return F.mse_loss(self(split(x.to(device))), split(y.to(device)))


class Experts(nn.Module):
    """Each token goes to two of eight experts, which have room for all: rows are put into their
    places by a scatter and added up by index_add."""

    specs = {"up": ("expert", None, "model"), "down": ("expert", "model", None)}

    def __init__(self, experts: int = 8):
        super().__init__()
        self.router = nn.Linear(WIDTH, experts)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, 2 * WIDTH) / 4)
        self.down = nn.Parameter(torch.randn(experts, 2 * WIDTH, WIDTH) / 4)

    def forward(self, x):
        tokens, experts = len(x), len(self.up)
        gates, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        chosen, source = (
            chosen.flatten(),
            torch.arange(tokens, device=x.device).repeat_interleave(2),
        )
        taken = F.one_hot(chosen, experts)
        place = (taken.cumsum(0) * taken).sum(-1) - 1
        slot = chosen * tokens + place
        rows = torch.zeros(experts * tokens, x.shape[1], device=x.device, dtype=x.dtype)
        rows = rows.scatter(0, slot[:, None].expand(-1, x.shape[1]), x[source])
        rows = rows.view(experts, tokens, -1)
        rows = torch.bmm(F.silu(torch.bmm(rows, self.up)), self.down).flatten(0, 1)
        return torch.zeros_like(x).index_add(0, source, rows[slot] * gates.flatten()[:, None])

    def loss(self, batch: int, seed: int, device: str, split: Callable) -> torch.Tensor:
        g = torch.Generator().manual_seed(seed)
        x, y = torch.randn(batch, WIDTH, generator=g), torch.randn(batch, WIDTH, generator=g)
        return F.mse_loss(self(split(x.to(device))), split(y.to(device)))


MODELS = {"cnn": Cnn, "transformer": Transformer, "lstm": Recurrent, "experts": Experts}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, eps=1e-6),
}
MESHES = {
    "data": ((8,), ("data",)),
    "model": ((8,), ("model",)),
    "expert": ((8,), ("expert",)),
    "data model": ((4, 2), ("data", "model")),
    "model data": ((2, 4), ("model", "data")),
    "data expert": ((2, 4), ("data", "expert")),
    "data model expert": ((2, 2, 2), ("data", "model", "expert")),
    "fsdp": ((8,), ("fsdp",)),
    "fsdp model": ((4, 2), ("fsdp", "model")),
    "fsdp data model": ((2, 2, 2), ("fsdp", "data", "model")),
}


def mesh_of(name: str) -> xs.Mesh:
    shape, axes = MESHES[name]
    return xs.Mesh(np.arange(xr.global_runtime_device_count()), shape, axes)


def build(kind: str, **options: Any) -> nn.Module:
    torch.manual_seed(4)
    return MODELS[kind](**options)


def split_parameters(model: nn.Module, mesh: xs.Mesh) -> nn.Module:
    """Moves a model to the devices, split as its `specs` say."""
    model.to("xla")
    for name, p in model.named_parameters():
        found = [spec for part, spec in model.specs.items() if part in name]
        if found:
            spec = tuple(axis if axis in mesh.axis_names else None for axis in found[0])
            xs.mark_sharding(p, mesh, spec[: p.dim()])
    return model


def batch_splitter(mesh: xs.Mesh | None, axes: tuple[str, ...] = ("fsdp", "data")) -> Callable:
    """Splits a tensor's first dimension along those of the axes that the mesh has."""

    def split(t: torch.Tensor) -> torch.Tensor:
        present = tuple(axis for axis in axes if mesh is not None and axis in mesh.axis_names)
        if present:
            xs.mark_sharding(t, mesh, (present, *[None] * (t.dim() - 1)))
        return t

    return split


def train(
    model: nn.Module,
    optimizer: str,
    mesh: xs.Mesh | None = None,
    batch: int = 8,
    steps: int = 3,
    loss_of: Callable = lambda model, *batch: model.loss(*batch),
    after_backward: Callable[[nn.Module], object] = lambda model: None,
    accumulated: int = 1,
) -> dict[str, torch.Tensor]:
    """Losses, the gradients of each step, and the state after the last one, all on the CPU."""
    device = next(model.parameters()).device.type
    update = OPTIMIZERS[optimizer](model.parameters())
    split = batch_splitter(mesh)
    found = {}
    for step in range(steps):
        update.zero_grad()
        for part in range(accumulated):
            loss = loss_of(model, batch, 10 * step + part, device, split) / accumulated
            loss.backward()
            found[f"loss {step}.{part}"] = loss.detach()
        after_backward(model)
        for name, p in model.named_parameters():
            found[f"gradient {step} {name}"] = p.grad.clone()
        update.step()
        if device == "xla":
            torch_xla.sync()
    found.update({f"final {name}": value for name, value in model.state_dict().items()})
    for i, state in enumerate(update.state.values()):
        found.update(
            {f"state {i} {key}": value for key, value in state.items() if value is not None}
        )
    return {
        name.replace("_orig_module.", ""): value.detach().cpu() for name, value in found.items()
    }


def compare(got: dict, want: dict, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """Each is within `atol` and `rtol` times the largest value of its tensor."""
    assert list(got) == list(want), set(got) ^ set(want)
    for name, value in want.items():
        torch.testing.assert_close(
            got[name],
            value,
            rtol=0,
            atol=atol + rtol * value.abs().max().item(),
            check_dtype=not name.endswith(" step"),  # fused optimizers count in float32
            msg=lambda text, name=name: f"{name}: {text}",
        )


def check(
    kind: str, mesh: str, optimizer: str = "sgd", wrap: Any = None, **options: Any
) -> nn.Module:
    """Trains a model on the CPU and split over a mesh; returns the second."""
    plain = build(kind)
    model, over = copy.deepcopy(plain), mesh_of(mesh)
    model = split_parameters(model, over) if wrap is None else wrap(model, over)
    want = train(plain, optimizer, **options)
    compare(train(model, optimizer, over, **options), want)
    return model
