"""Which batch fits: a training step compiled for TPUs that are not there, its weights on meta.

pip install libtpu
python examples/aot_memory.py [--topology v5e:2x2] [--width 4096] [--batches 1024 16384]
"""

import argparse

import torch
from torch import nn

from torch_xla import aot

parser = argparse.ArgumentParser()
parser.add_argument("--topology", default="v5e:2x2")
parser.add_argument("--width", type=int, default=4096)
parser.add_argument("--blocks", type=int, default=4)
parser.add_argument("--batches", type=int, nargs="+", default=[1024, 16384, 131072])
options = parser.parse_args()

wide = 4 * options.width
with torch.device("meta"):
    model = nn.Sequential(
        *(
            nn.Sequential(nn.Linear(options.width, wide), nn.GELU(), nn.Linear(wide, options.width))
            for _ in range(options.blocks)
        )
    ).bfloat16()
optimizer = torch.optim.AdamW(model.parameters())
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters")


def step(x):
    optimizer.zero_grad()
    loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    return loss


for batch in options.batches:
    x = torch.empty(batch, options.width, dtype=torch.bfloat16, device="meta")
    try:
        compiled = aot.compile(step, x, topology=options.topology)
    except aot.DoesNotFit as error:
        print(f"batch {batch}: does not fit")
        for buffer in error.largest[:3]:
            print(f"    {buffer}")
        continue
    memory, limit = compiled.memory.total / 2**30, compiled.chip.memory / 2**30
    print(
        f"batch {batch}: {memory:.2f} of {limit:.2f} GiB, {compiled.operations_text()}, "
        f"time {compiled.time_text()}, bound by {compiled.bound}"
    )
