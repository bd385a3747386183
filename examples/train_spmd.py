"""Trains the small GPT of train_lm.py on several devices, as one program.

CPU_NUM_DEVICES=4 python examples/train_spmd.py --shard data    # batches are split
CPU_NUM_DEVICES=4 python examples/train_spmd.py --shard fsdp    # parameters and optimizer state too
CPU_NUM_DEVICES=4 python examples/train_spmd.py --shard tensor  # each layer's heads and neurons
CPU_NUM_DEVICES=4 python examples/train_spmd.py --shard none    # every device computes everything
"""

import argparse
import collections
import functools
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader
from tqdm import tqdm
from train_lm import CHARACTERS, GPT, Block, Windows, add_arguments, encode, english_text

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch_xla.distributed.spmd.debugging import collectives
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2,
)


def split_model(model, how):
    """Moves the model to the devices; returns it, and how its batches are split."""
    count = xr.global_runtime_device_count()
    if how == "none":
        return model.to("xla"), None
    if how == "data":
        mesh = xs.Mesh(np.arange(count), (count,), ("data",))
        return model.to("xla"), xs.ShardingSpec(mesh, ("data", None))
    if how == "fsdp":
        mesh = xs.Mesh(np.arange(count), (count,), ("fsdp",))
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
        model = FSDPv2(model, mesh, auto_wrap_policy=policy)
        return model, xs.ShardingSpec(mesh, ("fsdp", None))
    # The first matrix of each pair makes columns, the second takes rows: one sum for each pair.
    mesh = xs.Mesh(np.arange(count), (1, count), ("data", "model"))
    model.to("xla")
    for block in model.blocks:
        for first, second in ((block.qkv, block.proj), (block.mlp[0], block.mlp[2])):
            xs.mark_sharding(first.weight, mesh, ("model", None))
            xs.mark_sharding(first.bias, mesh, ("model",))
            xs.mark_sharding(second.weight, mesh, (None, "model"))
    return model, xs.ShardingSpec(mesh, ("data", None))


def bytes_on_first_device(tensors):
    shards = (xs.wrap_as_sharded_tensor(t.detach()).local_shards[0].data for t in tensors)
    return sum(shard.nbytes for shard in shards)


def train(args, data):
    """Returns the mean loss over the last steps, and the steps per second."""
    torch.manual_seed(args.seed)
    windows = Windows(data, args.context, args.steps * args.batch_size)
    model = GPT(args.context, args.width, args.heads, args.layers).train()
    model, batches = split_model(model, args.shard)
    optimizer = optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    loader = pl.MpDeviceLoader(
        DataLoader(windows, batch_size=args.batch_size), "xla", input_sharding=batches
    )
    losses, warm_up = [], min(3, args.steps - 1)
    for step, (tokens, targets) in enumerate(tqdm(loader, total=args.steps, unit="step")):
        if step == warm_up:
            xm.wait_device_ops()
            start = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        losses = [*losses[-19:], loss.detach()]
    torch_xla.sync(wait=True)
    speed = (args.steps - warm_up) / (time.perf_counter() - start)
    sent = collections.Counter()
    for kind, size in collectives():
        sent[kind] += size
    print("a step sends to each device:", {kind: f"{n / 1e6:.2f} MB" for kind, n in sent.items()})
    state = [t for of in optimizer.state.values() for t in of.values() if t.device.type == "xla"]
    held = bytes_on_first_device([*model.parameters(), *state])
    whole = sum(t.nbytes for t in [*model.parameters(), *state])
    print(f"parameters and optimizer state: {whole / 1e6:.2f} MB, {held / 1e6:.2f} on a device")
    return torch.stack(losses).mean().item(), speed


def arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shard", choices=["none", "data", "fsdp", "tensor"], default="fsdp")
    add_arguments(parser)
    parser.set_defaults(steps=100)
    return parser.parse_args(given)


def main():
    args = arguments()
    xr.use_spmd()
    data = encode(english_text())
    count = xr.global_runtime_device_count()
    print(f"text: {len(data)} characters of {len(CHARACTERS)}; {count} {xr.device_type()} devices")
    loss, speed = train(args, data)
    print(f"loss {loss:.3f}, {speed:.2f} steps/s")
    return loss


if __name__ == "__main__":
    main()
