"""torch.compile(backend="openxla"): a training step is one program, inference another.

python examples/torch_compile.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import torch_xla.debug.metrics as met

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
train, test = torch.randperm(len(labels)).split([1536, len(labels) - 1536])
images, labels = images.to("xla"), labels.to("xla")

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 10),
).to("xla")  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
compiled = torch.compile(model, backend="openxla")

batches = train.split(128)
for epoch in range(5):
    met.clear_all()
    for batch in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(compiled(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")

# Forward, backward and optimizer are launched together, and nothing was compiled anew.
launches, _, _ = met.metric_data("ExecuteTime")
print(f"launches in the last {len(batches)} steps: {launches}")
programs = [met.counter_value(name) or 0 for name in ("UncachedCompile", "PersistentCacheHit")]
print("programs compiled or loaded for them:", sum(programs))

model.eval()
with torch.no_grad():
    for size in (64, 128, len(test)):  # the size of a batch that has changed becomes dynamic
        predicted = compiled(images[test[:size]]).argmax(1)
    accuracy = (predicted == labels[test]).float().mean().item()
print(f"test accuracy: {accuracy:.1%}")
