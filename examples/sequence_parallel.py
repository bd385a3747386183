"""Attention over a sequence that is split among devices, in two ways that are only shardings.

CPU_NUM_DEVICES=4 python examples/sequence_parallel.py

Ulysses (https://arxiv.org/abs/2309.14509): before attention the split goes from the positions to
the heads and back after it; each device sends its part of all (all-to-all) and attends over the
whole sequence for some heads. Ring attention (https://arxiv.org/abs/2310.01889): queries stay,
blocks of keys and values go from device to device (collective-permute), and sums are corrected as
larger scores appear; no device ever holds the scores of more than a block by a block. Here blocks
visit the devices along the edges of a cube, one axis of two devices at a time, since `flip` is sent
to a neighbour while `roll` gathers all blocks.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla.distributed.spmd.debugging import collectives


def ulysses_attention(q, k, v, mesh):
    """Causal attention of (batch, heads, positions, size), split along the positions by all axes
    of the mesh. The devices divide the heads."""

    def split(t, dim):
        spec = [mesh.axis_names if i == dim else None for i in range(4)]
        return xs.mark_sharding_with_gradients(t, mesh, spec)

    q, k, v = (split(split(t, 2), 1) for t in (q, k, v))
    return split(split(F.scaled_dot_product_attention(q, k, v, is_causal=True), 1), 2)


def ring_attention(q, k, v, mesh):
    """Causal attention of (batch, heads, positions, size), split along the positions by all axes
    of the mesh, which have two devices each. The devices divide the positions."""
    batch, heads, positions, size = q.shape
    blocks = mesh.mesh_shape  # (2, 2, ..)
    count, length = math.prod(blocks), positions // math.prod(blocks)

    def split(t):
        spec = [*mesh.axis_names, *[None] * (t.dim() - len(blocks))]
        return xs.mark_sharding_with_gradients(t, mesh, spec)

    def blocks_first(t):  # `@` makes one of these dimensions, whose parts have to be stretches
        t = t.reshape(batch, heads, count, length, size).movedim(2, 0)
        return split(t.reshape(*blocks, *t.shape[1:]))

    q, k, v = (blocks_first(t) for t in (q, k, v))
    of_queries = of_keys = torch.arange(positions, device=q.device).view(*blocks, 1, 1, length)
    largest = torch.full_like(q[..., :1], -math.inf)
    total, weighted = torch.zeros_like(largest), torch.zeros_like(q)
    for turn in range(1, count + 1):
        scores = q @ k.transpose(-1, -2) / math.sqrt(size)
        scores = scores.masked_fill(of_keys[..., None, :] > of_queries[..., None], -math.inf)
        found = torch.maximum(largest, scores.amax(-1, keepdim=True))  # turn 1: its own block
        weights, kept = (scores - found).exp(), (largest - found).exp()
        total = total * kept + weights.sum(-1, keepdim=True)
        weighted = weighted * kept + weights @ v
        largest = found
        if turn < count:
            axis = (turn & -turn).bit_length() - 1  # the order of a Gray code: all blocks come by
            k, v, of_keys = split(k.flip(axis)), split(v.flip(axis)), of_keys.flip(axis)
    attended = split(weighted / total).reshape(count, batch, heads, length, size)
    return attended.movedim(0, 2).reshape(batch, heads, positions, size)


WAYS = {"Ulysses": ulysses_attention, "ring": ring_attention}


def main():
    xr.use_spmd()
    count = xr.global_runtime_device_count()
    axes = count.bit_length() - 1
    if count != 2**axes:
        raise SystemExit(f"expected a power of two of devices, got {count}")
    mesh = xs.Mesh(np.arange(count), (2,) * axes, tuple(f"s{i}" for i in range(axes)))
    torch.manual_seed(0)
    host = [torch.randn(2, count, 16 * count, 8, dtype=torch.float64) for _ in range(3)]
    plain = [t.clone().requires_grad_() for t in host]
    want = F.scaled_dot_product_attention(*plain, is_causal=True)
    want.sin().sum().backward()
    print(f"{count} devices; a tensor has {host[0].nbytes} bytes")
    for name, attention in WAYS.items():
        inputs = [t.to("xla").requires_grad_() for t in host]
        for t in inputs:
            xs.mark_sharding(t, mesh, (None, None, mesh.axis_names, None))
        output = attention(*inputs, mesh)
        output.sin().sum().backward()
        torch_xla.sync()
        sent = collectives()
        pairs = [(output, want), *((a.grad, b.grad) for a, b in zip(inputs, plain, strict=True))]
        off = max((a.detach().cpu() - b).abs().max().item() for a, b in pairs)
        kinds = ", ".join(sorted({kind for kind, _ in sent})) or "nothing"
        largest = max((size for _, size in sent), default=0)
        print(f"{name}: differs by {off:.0e}; sends {kinds}, at most {largest} bytes at once")


if __name__ == "__main__":
    main()
