"""Trains a ResNet on ImageNet, or on made-up images, a process for each device.

python examples/train_imagenet.py --fake_data --batch_size 128 --num_epochs 1
CPU_NUM_DEVICES=2 python examples/train_imagenet.py --fake_data --model resnet18 --batch_size 4 \\
    --image_size 64 --train_samples 80
python examples/train_imagenet.py --datadir /datasets/imagenet-1k --amp --num_epochs 90
"""

import argparse
import os
from contextlib import nullcontext
from functools import partial

import ranks
import resnet
import torch
import torch.distributed as dist
from torch import nn, optim

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.debug.profiler as xp
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_backend  # noqa: F401  registers the backend
import torch_xla.runtime as xr
import torch_xla.test.test_utils as test_utils
import torch_xla.utils.utils as xu


def fake_loaders(args):
    shape = (args.batch_size, 3, args.image_size, args.image_size)
    batch = (torch.zeros(shape), torch.zeros(args.batch_size, dtype=torch.int64))
    share = args.batch_size * xr.world_size()
    return [
        xu.SampleGenerator(batch, max(samples // share, 1))
        for samples in (args.train_samples, args.train_samples // 25)
    ]


def folder_loaders(args):
    """Images in folders that bear the names of their classes; torchvision reads them."""
    import torchvision
    from torchvision import transforms as T

    norm = T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    size = args.image_size
    of_train = [T.RandomResizedCrop(size), T.RandomHorizontalFlip(), T.ToTensor(), norm]
    of_test = [T.Resize(size * 8 // 7), T.CenterCrop(size), T.ToTensor(), norm]
    loaders = []
    for name, steps, batch_size in (
        ("train", of_train, args.batch_size),
        ("val", of_test, args.test_set_batch_size),
    ):
        folder = os.path.join(args.datadir, name)
        data = torchvision.datasets.ImageFolder(folder, T.Compose(steps))
        sampler = torch.utils.data.DistributedSampler(
            data, xr.world_size(), xr.global_ordinal(), shuffle=name == "train"
        )
        loader = torch.utils.data.DataLoader(
            data,
            batch_size,
            sampler=sampler,
            drop_last=args.drop_last,
            num_workers=args.num_workers,
        )
        loaders.append(loader)
    return loaders


def prepared(model, args):
    """The model as ranks train it, and what averages their gradients."""
    if args.fsdp:
        from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

        return XlaFullyShardedDataParallel(model)
    return ranks.prepared(model, args.ddp)


def block_of(args):
    """Makes a block of the network: in FSDP by itself, with checkpoints, or as it is."""
    if not args.use_nested_fsdp:
        return resnet.Block
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel, checkpoint_module

    def make(*given):
        block = resnet.Block(*given).to(torch_xla.device())
        block = checkpoint_module(block) if args.use_gradient_checkpointing else block
        return XlaFullyShardedDataParallel(block)

    return make


def rate_at(args, steps_an_epoch, step):
    """The factor of the learning rate: it grows for some epochs, then falls every few."""
    epoch = step / steps_an_epoch
    if epoch < args.num_warmup_epochs:
        return (step + 1) / (args.num_warmup_epochs * steps_an_epoch)
    return args.lr_scheduler_divisor ** -(epoch // args.lr_scheduler_divide_every_n_epochs)


def train_imagenet(args):
    print("==> Preparing data..")
    device = torch_xla.device()
    loaders = fake_loaders(args) if args.fake_data else folder_loaders(args)
    train_loader, test_loader = (pl.MpDeviceLoader(loader, device) for loader in loaders)
    torch.manual_seed(42)
    model = prepared(resnet.make(args.model, block=block_of(args)).to(device), args)
    optimizer = optim.SGD(
        model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay
    )
    rates = optim.lr_scheduler.LambdaLR(optimizer, partial(rate_at, args, len(train_loader)))
    loss_fn = nn.CrossEntropyLoss()
    writer = test_utils.get_summary_writer(args.logdir) if xm.is_master_ordinal() else None
    autocast = partial(torch.autocast, "xla", torch.bfloat16) if args.amp else nullcontext
    reduces = args.ddp or args.fsdp
    if args.profile:
        xp.start_server(args.profiler_port)

    def train(epoch):
        tracker = xm.RateTracker()
        model.train()
        for step, (data, target) in enumerate(train_loader):
            with xp.StepTrace("train_imagenet"):
                optimizer.zero_grad()
                with autocast():
                    loss = loss_fn(model(data), target)
                loss.backward()
                optimizer.step() if reduces else xm.optimizer_step(optimizer)
                rates.step()
                tracker.add(args.batch_size)
                if step % args.log_steps == 0:
                    given = (device, step, loss, tracker, epoch, writer)
                    xm.add_step_closure(ranks.report, args=given, run_async=args.async_closures)

    accuracy = best = 0.0
    for epoch in range(1, args.num_epochs + 1):
        xm.master_print(f"Epoch {epoch} train begin {test_utils.now()}")
        train(epoch)
        xm.master_print(f"Epoch {epoch} train end {test_utils.now()}")
        if epoch % args.eval_interval == 0 or epoch == args.num_epochs:
            accuracy = ranks.accuracy_of(model, test_loader)
            best = max(best, accuracy)
            xm.master_print(f"Epoch {epoch} test end {test_utils.now()}, Accuracy={accuracy:.2f}")
            test_utils.write_to_summary(writer, epoch, dict_to_write={"Accuracy/test": accuracy})
        if args.metrics_debug:
            xm.master_print(met.metrics_report())
    test_utils.close_summary_writer(writer)
    xm.master_print(f"Max Accuracy: {best:.2f}%")
    return best


def run(index, args):
    uses_groups = args.ddp or args.pjrt_distributed
    if uses_groups:
        dist.init_process_group("xla", init_method="xla://")
    train_imagenet(args)
    if uses_groups:
        dist.destroy_process_group()


def main(fsdp=False):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--fake_data", action="store_true", help="images of zeros")
    p.add_argument("--datadir", default="/tmp/imagenet", help="with the folders train and val")
    p.add_argument("--model", choices=resnet.NAMES, default="resnet50")
    p.add_argument("--image_size", type=int, default=224)
    p.add_argument("--train_samples", type=int, default=1_281_167, help="of --fake_data")
    p.add_argument("--batch_size", type=int, default=128)
    p.add_argument("--test_set_batch_size", type=int, default=64)
    p.add_argument("--num_epochs", type=int, default=18)
    p.add_argument("--num_workers", type=int, default=4)
    p.add_argument("--drop_last", action="store_true")
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--momentum", type=float, default=0.9)
    p.add_argument("--weight_decay", type=float, default=1e-4)
    p.add_argument("--num_warmup_epochs", type=float, default=0.9)
    p.add_argument("--lr_scheduler_divide_every_n_epochs", type=int, default=20)
    p.add_argument("--lr_scheduler_divisor", type=int, default=5)
    p.add_argument("--eval_interval", type=int, default=1)
    p.add_argument("--log_steps", type=int, default=20)
    p.add_argument("--logdir", help="where TensorBoard finds loss and accuracy")
    p.add_argument("--metrics_debug", action="store_true")
    p.add_argument("--async_closures", action="store_true")
    p.add_argument("--amp", action="store_true", help="autocast to bfloat16")
    p.add_argument("--profile", action="store_true", help="starts a server for profiles")
    p.add_argument("--profiler_port", type=int, default=9012)
    p.add_argument("--ddp", action="store_true", help="DistributedDataParallel averages")
    p.add_argument("--pjrt_distributed", action="store_true", help="makes a process group")
    p.add_argument("--fsdp", action="store_true", default=fsdp, help="splits the parameters")
    p.add_argument("--use_nested_fsdp", action="store_true", help="wraps each block")
    p.add_argument("--use_gradient_checkpointing", action="store_true")
    torch_xla.launch(run, args=(p.parse_args(),))


if __name__ == "__main__":
    main()
