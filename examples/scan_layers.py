"""A deep transformer whose layers are one loop of the program, and the same with a Python loop.

python examples/scan_layers.py
"""

import time

import torch
from torch import nn

import torch_xla
from torch_xla.experimental.scan_layers import scan_layers


class Model(nn.Module):
    def __init__(self, layers: int, width: int = 64, words: int = 100):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 128, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor, in_one_loop: bool) -> torch.Tensor:
        x = self.embedding(tokens)
        if in_one_loop:
            x = scan_layers(self.layers, x, is_layer_pure=True)
        else:
            for layer in self.layers:
                x = layer(x)
        return self.head(x)


def train(layers: int, in_one_loop: bool, steps: int = 10) -> list[float]:
    torch.manual_seed(0)
    model = Model(layers).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(100, (4, 16)).to("xla")
    losses = []
    for step in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        logits = model(tokens, in_one_loop)[:, :-1].flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        torch_xla.sync(wait=True)
        if step == 0:
            first = time.perf_counter() - start
        losses.append(loss.item())
    how = "one loop" if in_one_loop else "layer by layer"
    print(f"{layers} layers, {how}: first step {first:.2f} s, last loss {losses[-1]:.4f}")
    return losses


for layers in (4, 24):
    scanned, unrolled = train(layers, True), train(layers, False)
    assert all(abs(a - b) < 1e-3 for a, b in zip(scanned, unrolled, strict=True))
