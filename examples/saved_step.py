"""A training step as a folder: saved, loaded, and trained on without the Python that made it.

python examples/saved_step.py [folder]
"""

import sys
import tempfile

import torch
from torch import nn

import torch_xla

folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp() + "/step"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1)).to("xla")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


@torch_xla.compile
def step(x, y):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


x = torch.rand(256, 2, device="xla") * 6 - 3
y = torch.sin(x[:, :1]) * torch.cos(x[:, 1:])
for _ in range(50):
    loss = step(x, y)
print(f"loss after 50 steps: {loss.item():.4f}")

torch_xla.saved_step.save(step, folder, (x, y))
again = torch_xla.saved_step.load(folder)
print("state:", ", ".join(list(again.state)[:4]), "..")
for _ in range(5):
    print(f"this process: {step(x, y).item():.6f}   the folder: {again(x, y).item():.6f}")
print(f"build/step_runner --plugin xla_cpu_pjrt.so {folder} --steps 5   # does so in C++")
