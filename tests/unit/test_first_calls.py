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
if {name!r} == "cnn":  # compiling is C++; once is enough
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

# By family, with gradients. Nothing is computed: shapes are found when a call is recorded.
FAMILIES = {
    "pools": """[
        F.adaptive_avg_pool2d(image, 3), F.adaptive_avg_pool3d(volume, 2), F.max_pool3d(volume, 2),
        torch.ops.aten.max_unpool2d(image, where, [16, 16]),
        torch.ops.aten.max_unpool3d(volume, whole, [8, 8, 8], [2, 2, 2], [0, 0, 0]),
    ]""",
    "images": """[
        F.grid_sample(image, grid, align_corners=True), torch.ops.aten.grid_sampler_3d(
            volume, volume.detach()[:, :3].movedim(1, 4), 0, 0, True
        ),
        F.pixel_shuffle(image, 2), F.pixel_unshuffle(image, 2), F.channel_shuffle(image, 2),
        F.pad(image, (1, 1, 1, 1), mode="reflect"), F.pad(image, (1, 1, 1, 1), mode="replicate"),
    ]""",
    "losses": """[
        F.binary_cross_entropy(rows.sigmoid(), zeros), F.huber_loss(rows, zeros),
        F.mse_loss(rows, zeros), F.smooth_l1_loss(rows, zeros),
        F.multi_margin_loss(rows, classes), F.multilabel_margin_loss(rows, zeros.long()),
        F.rms_norm(rows, (8,), rows[0]),
    ]""",
    "embedding bags": """[
        F.embedding_bag(classes, rows, classes[:2], mode=mode) for mode in ("sum", "mean", "max")
    ]""",
    "statistics": """[
        rows.var(), rows.std(0), *torch.var_mean(rows, 1), *torch.std_mean(rows, 1, keepdim=True),
        rows.median(0)[0], rows.nanmedian(1)[0], rows.kthvalue(2, 0)[0], rows.trace(),
    ]""",
    "elements": """[
        rows.nan_to_num(), rows.logit(0.1), rows.frexp()[0], torch.complex(rows, rows).abs(),
        torch.polar(rows, rows).angle(), rows.take(classes), rows.unfold(0, 2, 1),
        torch.fft.ihfft(rows).abs(),
    ]""",
    "products": """[
        rows[0].dot(rows[1]), torch.vdot(rows[0], rows[1]), torch.cdist(rows, rows), F.pdist(rows),
        torch.addbmm(square, square[None], square[None]), torch.addr(square, rows[0], rows[1]),
        torch.diag_embed(rows),
    ]""",
    "matrices": """[
        torch.linalg.solve_triangular(square, square, upper=True), torch.linalg.matrix_exp(square),
        torch.cholesky_inverse(square), torch.linalg.householder_product(square, rows[0]),
        torch.ormqr(square, rows[0], square),
    ]""",
    "made": """[
        rows.abs().multinomial(2), torch.linspace(0, 1, 5, device="xla"),
        torch.logspace(0, 1, 5, device="xla"), torch.searchsorted(zeros[0], rows.detach()),
    ]""",
}

CALLS = """
import torch, torch_xla
import torch.nn.functional as F

before = heavy()
new = lambda *sizes: torch.ones(sizes, device="xla").requires_grad_()
image, volume, rows, square = new(2, 4, 8, 8), new(2, 4, 4, 4, 4), new(8, 8), new(8, 8)
zeros, classes = torch.zeros(8, 8, device="xla"), torch.arange(8, device="xla")
where, whole = image.detach().long(), volume.detach().long()
grid = image.detach()[:, :2].movedim(1, 3)
for name, calls in {families}.items():
    results = [r for r in eval(calls) if r.requires_grad]
    if results:
        sum(r.sum() for r in results).backward()
    assert not heavy(), f"imported by {{name}}: {{heavy()}}"
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


def test_operators_of_all_families_import_nothing():
    run(CALLS.format(families=FAMILIES))


def run(calls: str) -> None:
    done = subprocess.run([sys.executable, "-c", CHECK % calls], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
