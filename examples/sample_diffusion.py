"""Sampling by denoising: a loop of equal steps, each ended by a barrier, compiles one program.

A small network learns to take noise from points of a spiral; the sampler (Ho et al., "Denoising
Diffusion Probabilistic Models", 2020) then starts at noise alone. The loop reads no value.

python examples/sample_diffusion.py
"""

import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

STEPS = 100
device = torch_xla.device()
torch.manual_seed(0)
torch_xla.manual_seed(0)
beta = torch.linspace(1e-4, 0.1, STEPS, device=device)
kept = torch.cumprod(1 - beta, 0)  # the share of the signal in a noisy point


def spiral(count):
    turn = torch.rand(count, 1, device=device).sqrt() * 9
    return torch.cat([turn.cos(), turn.sin()], 1) * turn / 9


class Denoiser(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.time = nn.Embedding(STEPS, width)
        self.point = nn.Linear(2, width)
        self.layers = nn.Sequential(
            nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, 2),
        )  # fmt: skip

    def forward(self, noisy, time):
        return self.layers(self.point(noisy) + self.time(time))


model = Denoiser().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(3000):
    time = torch.randint(STEPS, (512,), device=device)
    noise = torch.randn(512, 2, device=device)
    signal = kept[time].unsqueeze(1)
    noisy = signal.sqrt() * spiral(512) + (1 - signal).sqrt() * noise
    loss = (model(noisy, time) - noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    xm.mark_step()
print(f"loss: {loss.item():.4f}")

met.clear_all()
points = torch.randn(2000, 2, device=device)
with torch.no_grad():
    for step in reversed(range(STEPS)):
        time = torch.full((1,), step, device=device)  # a tensor: a program for all steps
        noise = model(points, time)
        points = points - beta[time] / (1 - kept[time]).sqrt() * noise
        points = points / (1 - beta[time]).sqrt()
        points = points + (beta[time] * (time > 0)).sqrt() * torch.randn_like(points)
        xm.mark_step()
xm.wait_device_ops()
programs = [met.counter_value(name) or 0 for name in ("UncachedCompile", "PersistentCacheHit")]
print(f"programs compiled or loaded in {STEPS} steps: {sum(programs)}")


def distance(points):
    return torch.cdist(points, spiral(2000)).min(1).values.mean().item()


print(f"mean distance from the spiral: {distance(points):.3f}")
print(f"that of noise: {distance(torch.randn_like(points)):.3f}")
