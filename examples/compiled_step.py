"""Eager mode with one compiled training step: each operation runs at once, but a step is one graph.

python examples/compiled_step.py
"""

import torch
from torch import nn

import torch_xla

torch_xla.experimental.eager_mode(True)

torch.manual_seed(0)
x = torch.rand(256, 2, device="xla") * 6 - 3
y = torch.sin(x[:, :1]) * torch.cos(x[:, 1:])  # each operation has run here
print("target in", float(y.min()), float(y.max()))

model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1)).to("xla")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


@torch_xla.compile(full_graph=True)
def step(x, y):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


for i in range(300):
    loss = step(x, y)
    if i % 100 == 0:
        print(f"step {i}: loss {loss.item():.4f}")
print(f"loss: {loss.item():.4f}")
