"""A model as StableHLO, for any compiler: exported with a dynamic batch, saved, loaded and run.

python examples/export_model.py
"""

import tempfile

import torch
from torch import nn

from torch_xla.stablehlo import StableHLOGraphModule, exported_program_to_stablehlo

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).eval()

x = torch.randn(8, 16)
exported = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
program = exported_program_to_stablehlo(exported)

text = program.get_stablehlo_text()
print(next(line.strip() for line in text.splitlines() if "@main" in line))

with tempfile.TemporaryDirectory() as folder:
    program.save(folder)
    loaded = StableHLOGraphModule.load(folder)

for batch in (3, 100):
    x = torch.randn(batch, 16)
    difference = (loaded(x) - model(x)).abs().max().item()
    print(f"batch {batch}: differs from PyTorch by at most {difference:.1e}")
    assert difference < 1e-5
