"""A Llama 2 training step for pods that are not there: does it fit, what is sent, how long is it?

pip install libtpu
python examples/aot_llama.py --model 7b --topology v5p:2x2x1                      # FSDP on v5p-8
python examples/aot_llama.py --model 70b --topology v5p:4x4x4 --tensor 4 --batch 32  # v5p-128
python examples/aot_llama.py --auto  # it is chosen how weights and activations are split

Weights are on meta, the mesh is of CPU devices that stand for the chips: nothing is allocated.
"""

import argparse
import math
import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

MODELS = {  # width, layers, heads, heads of keys and values, width of the MLP
    "tiny": (256, 2, 8, 4, 704),
    "7b": (4096, 32, 32, 32, 11008),
    "13b": (5120, 40, 40, 40, 13824),
    "70b": (8192, 80, 64, 8, 28672),
}
WORDS = 32000


class Llama(nn.Module):
    """Llama 2. The weights of all layers are stacked, for a loop to run through."""

    def __init__(self, width, layers, heads, kv_heads, hidden, dtype):
        super().__init__()
        self.heads, self.kv_heads, self.dtype = heads, kv_heads, dtype
        kv = width // heads * kv_heads
        shapes = {
            "q": (width, width),
            "k": (kv, width),
            "v": (kv, width),
            "o": (width, width),
            "gate": (hidden, width),
            "up": (hidden, width),
            "down": (width, hidden),
            "attention_norm": (width,),
            "mlp_norm": (width,),
        }
        self.layers = nn.ParameterDict(
            {name: nn.Parameter(torch.empty(layers, *shape)) for name, shape in shapes.items()}
        )
        self.embedding = nn.Parameter(torch.empty(WORDS, width))
        self.norm = nn.Parameter(torch.empty(width))
        self.head = nn.Parameter(torch.empty(WORDS, width))

    def layer(self, x, w):
        batch, length, width = x.shape
        w = {name: value.to(self.dtype) for name, value in w.items()}
        h = F.rms_norm(x, (width,), w["attention_norm"], 1e-5)
        q, k, v = (
            F.linear(h, w[name]).view(batch, length, heads, -1).transpose(1, 2)
            for name, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads))
        )
        q, k = rotated(q), rotated(k)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + F.linear(h.transpose(1, 2).reshape(batch, length, width), w["o"])
        h = F.rms_norm(x, (width,), w["mlp_norm"], 1e-5)
        return split(x + F.linear(F.silu(F.linear(h, w["gate"])) * F.linear(h, w["up"]), w["down"]))

    def forward(self, tokens):
        def body(x, w):
            return checkpoint(self.layer, x, w, use_reentrant=False), None

        x = split(F.embedding(tokens, self.embedding.to(self.dtype)))
        x, _ = scan(body, x, dict(self.layers))
        logits = F.linear(F.rms_norm(x, x.shape[-1:], self.norm.to(x), 1e-5), self.head.to(x))
        return split(logits, "tensor")


def rotated(x):
    """Rotary position embeddings of [batch, heads, length, size]."""
    length, size = x.shape[-2:]
    rates = 10000.0 ** (-torch.arange(0, size, 2, device=x.device) / size)
    angles = torch.arange(length, device=x.device)[:, None] * rates
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def split(x, last=None):
    """Activations, [batch, length, ..]: along the batch, whatever the weights are."""
    if options.auto:
        return x
    return xs.mark_sharding_with_gradients(x, mesh, ("fsdp", None, last))


def split_weights(model):
    """FSDP along "fsdp"; heads and neurons along "tensor"."""
    columns, rows = (None, "tensor", "fsdp"), (None, "fsdp", "tensor")
    for name, weight in model.named_parameters():
        kind = name.rpartition(".")[2]
        spec = rows if kind in ("o", "down") else columns
        if kind in ("embedding", "head"):
            spec = ("tensor", "fsdp")
        elif "norm" in kind:
            spec = (None, "fsdp")
        xs.mark_sharding(weight, mesh, spec[len(spec) - weight.dim() :])


def compiled_step(shape):
    """The training step of a model of this shape, compiled for the topology."""
    with torch.device("meta"):
        model = Llama(*shape, torch.bfloat16)
    if not options.auto:
        split_weights(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens, targets = (
        torch.empty(batch, options.length, dtype=torch.long, device="meta") for _ in range(2)
    )
    for data in () if options.auto else (tokens, targets):
        xs.mark_sharding(data, mesh, ("fsdp", None))

    def step(tokens, targets):
        optimizer.zero_grad()
        logits = model(tokens)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss

    step.__qualname__ = "step"
    return aot.compile(step, tokens, targets, topology=options.topology)


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", choices=MODELS, default="7b")
parser.add_argument("--topology", default="v5p:2x2x1")
parser.add_argument("--tensor", type=int, default=1, help="devices along the mesh axis 'tensor'")
parser.add_argument("--batch", type=int, help="sequences in a step, default: one a chip")
parser.add_argument("--length", type=int, default=2048)
parser.add_argument("--auto", action="store_true", help="choose how weights and activations split")
options = parser.parse_args()

count = math.prod(int(size) for size in options.topology.partition(":")[2].split("x"))
os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES=str(count))

import torch_xla.distributed.spmd as xs  # noqa: E402  after the environment is set
import torch_xla.runtime as xr  # noqa: E402
from torch_xla import aot  # noqa: E402
from torch_xla.distributed.spmd import auto_sharding  # noqa: E402
from torch_xla.experimental.scan import scan  # noqa: E402

xr.use_spmd(auto=options.auto)
mesh = xs.Mesh(
    np.arange(count), (count // options.tensor, options.tensor), axis_names=("fsdp", "tensor")
)
batch = options.batch or count
shape = MODELS[options.model]
compiled = compiled_step(shape)
with torch.device("meta"):
    parameters = sum(p.numel() for p in Llama(*shape, torch.bfloat16).parameters())
print(f"{parameters / 1e9:.2f} billion parameters, {batch} x {options.length} tokens a step")
print(compiled)
if options.auto:
    print(auto_sharding.plans()[-1])

# The operations that the model needs: 6 for each parameter and token, and those of attention.
width, layers = shape[:2]
needed = 6 * parameters * batch * options.length
needed += 12 * layers * width * batch * options.length**2 / 2
seconds = needed / count / compiled.chip.flops_per_second
print(
    f"  {'model operations':18} {needed / count / 1e9:,.0f} GFLOP, {seconds * 1e3:.1f} ms at peak"
)
if compiled.kernel_seconds is not None and compiled.sending_seconds is not None:
    kernels, sending = compiled.kernel_seconds, compiled.sending_seconds
    print(
        f"  {'model utilization':18} {seconds / (kernels + sending):.0%} where nothing is sent "
        f"while something is computed, {seconds / max(kernels, sending):.0%} where all is"
    )
