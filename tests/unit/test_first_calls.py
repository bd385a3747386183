"""First calls of operators import nothing: `torch._dynamo` and `sympy` take a second, which
PyTorch's Python functions of shapes would spend within the first step."""

import subprocess
import sys

import pytest

MODEL = """
import torch, torch_xla
from benchmarks.networks import NETWORKS, Loss

network = NETWORKS[{name!r}]
model = network.make()
model = (model if network.is_language else Loss(model)).to("xla")
x, target = (t.to("xla") for t in network.data())
before = heavy()
model(x, target).backward()
torch_xla.sync()
"""

# What other models of tests/models call.
OPERATORS = """
import torch, torch_xla
import torch.nn.functional as F

before = heavy()
x = torch.randn(2, 4, 8, 8).to("xla").requires_grad_()
ints = torch.arange(8, device="xla")
weight = torch.ones(4, device="xla")
results = [
    F.hardtanh(x), F.hardswish(x), F.relu(x), x.abs(), F.dropout(x, 0.5), F.layer_norm(x, (8, 8)),
    F.batch_norm(x, weight * 0, weight, weight, weight, training=True),
    F.batch_norm(x, weight * 0, weight, weight, weight), F.batch_norm(x, None, None, training=True),
    F.conv_transpose2d(x, x.mT[0, :, None, :3, :3]), F.layer_norm(x, (8,), weight=x[0, 0, 0]),
    torch.where(x > 0, x, 0.0), x.index_select(3, ints), F.embedding(ints, x[0, 0]), x[:, 1],
    torch.stack([x, x]), torch.cat([x, x]), x.clone(), torch.zeros_like(x) + x,
    F.scaled_dot_product_attention(x, x, x), x.roll(1, 3), x * torch.rand(8, device="xla"),
]
sum(r.sum() for r in results).backward()
found = [ints.abs(), x.isnan(), x.isinf(), x.logical_not(), torch.full((2,), 1.0, device="xla")]
states = [[torch.zeros(3, device="xla")] for _ in range(4)]
steps = [torch.ones((), device="xla")]
torch._fused_adamw_(
    *states, [], steps, lr=0.1, beta1=0.9, beta2=0.9, weight_decay=0.1, eps=1e-8,
    amsgrad=False, maximize=False,
)
torch_xla.sync()
"""

CHECK = """
import sys
def heavy():
    return {name for name in ("sympy", "torch._dynamo") if name in sys.modules}
%s
assert not before, f"imported before the first call: {before}"
assert not heavy(), f"imported by first calls: {heavy()}"
"""


@pytest.mark.parametrize("name", ["cnn", "mlp", "resnet18", "lstm"])
def test_a_model_imports_nothing(name):
    run(MODEL.format(name=name))


def test_operators_import_nothing():
    run(OPERATORS)


def run(calls: str) -> None:
    done = subprocess.run([sys.executable, "-c", CHECK % calls], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
