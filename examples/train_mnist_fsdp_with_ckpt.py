"""Trains on handwritten digits with FSDP, saves each rank's part, and puts the parts together.

CPU_NUM_DEVICES=2 python examples/train_mnist_fsdp_with_ckpt.py --batch_size 16 --drop_last \\
    --num_epochs 2 --use_nested_fsdp --use_gradient_checkpointing
"""

import argparse
import os
from functools import partial

import digits
import ranks
import torch
import train_mnist
from torch import nn, optim

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.runtime as xr
from torch_xla.distributed.fsdp import (
    XlaFullyShardedDataParallel,
    checkpoint_module,
    consolidate_sharded_model_checkpoints,
)
from torch_xla.distributed.fsdp.wrap import (
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)

POLICIES = {
    "none": None,
    "size_based": partial(size_based_auto_wrap_policy, min_num_params=1000),
    "type_based": partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.Conv2d}),
}


def wrapped(model, args):
    """The model in FSDP: its layers each by itself, those of a policy, or all in one."""
    settings = {
        "reshard_after_forward": args.reshard_after_forward,
        "flatten_parameters": args.flatten_parameters,
    }

    def layer(module, *given, **named):
        module = checkpoint_module(module) if args.use_gradient_checkpointing else module
        return XlaFullyShardedDataParallel(module, *given, **{**settings, **named})

    policy = POLICIES[args.auto_wrap_policy]
    if args.use_nested_fsdp:
        for name in ("conv1", "conv2", "fc1", "fc2"):
            setattr(model, name, layer(getattr(model, name)))
    elif policy is not None:
        return XlaFullyShardedDataParallel(
            model, auto_wrap_policy=policy, auto_wrapper_callable=layer, **settings
        )
    return XlaFullyShardedDataParallel(model, **settings)


def run(index, args):
    torch.manual_seed(42)
    device = torch_xla.device()
    train_loader, test_loader = (
        pl.MpDeviceLoader(loader, device) for loader in digits.loaders(args)
    )
    model = wrapped(train_mnist.MNIST().to(device), args)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    args.ddp = True  # FSDP has reduced the gradients, so that the optimizer steps by itself
    for epoch in range(1, args.num_epochs + 1):
        train_mnist.train_epoch(args, model, train_loader, optimizer, device, epoch)
        accuracy = ranks.accuracy_of(model, test_loader)
        xm.master_print(f"Epoch {epoch} test end, Accuracy={accuracy:.2f}", flush=True)
    if args.no_checkpoint:
        return
    path = f"{args.ckpt_prefix}_rank-{index:08d}-of-{xr.world_size():08d}.pth"
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    saved = {
        "model": model.state_dict(),
        "shard_metadata": model.get_shard_metadata(),
        "optimizer": optimizer.state_dict(),
    }
    xm.save(saved, path, master_only=False)
    if xm.is_master_ordinal(local=False):
        consolidate_sharded_model_checkpoints(args.ckpt_prefix, "_rank-*-of-*.pth")
    xm.rendezvous("consolidated")
    whole = train_mnist.MNIST().to(device)
    found = torch.load(f"{args.ckpt_prefix}_consolidated.pth", weights_only=True)
    whole.load_state_dict(found["model"])
    again = ranks.accuracy_of(whole, test_loader)
    xm.master_print(f"the consolidated model: Accuracy={again:.2f}")
    if abs(again - accuracy) > 1e-6 or accuracy < args.target_accuracy:
        raise SystemExit(
            f"accuracy: expected {accuracy:.2f}% of the consolidated model and at least "
            f"{args.target_accuracy}%, got {again:.2f}%."
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    digits.add_arguments(parser)
    parser.add_argument("--use_nested_fsdp", action="store_true", help="wraps each layer")
    parser.add_argument("--use_gradient_checkpointing", action="store_true")
    parser.add_argument("--auto_wrap_policy", choices=list(POLICIES), default="none")
    for name in ("reshard_after_forward", "flatten_parameters"):
        parser.add_argument(f"--no_{name}", action="store_false", dest=name)
    parser.add_argument("--ckpt_prefix", default="/tmp/mnist-fsdp/final_ckpt")
    parser.add_argument("--no_checkpoint", action="store_true", help="saves nothing")
    torch_xla.launch(run, args=(parser.parse_args(),))


if __name__ == "__main__":
    main()
