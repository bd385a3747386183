"""The handwritten digits that come with scikit-learn, or made-up ones, for scripts that train."""

import torch
import train_digits
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import torch_xla.runtime as xr
import torch_xla.utils.utils as xu


def datasets(size=28):
    """Those of train_digits.py, `size` pixels square."""

    def enlarged(images, labels):
        images = torch.nn.functional.interpolate(images, size, mode="bilinear", antialias=True)
        return TensorDataset(images, labels)

    return tuple(enlarged(*part.tensors) for part in train_digits.datasets())


def loaders(args, size=28):
    """For training and for the test: this rank's share of each."""
    ranks, rank = xr.world_size(), xr.global_ordinal()
    if args.fake_data:
        batch = (
            torch.zeros(args.batch_size, 1, size, size),
            torch.zeros(args.batch_size, dtype=torch.int64),
        )
        return tuple(
            xu.SampleGenerator(batch, count // args.batch_size // ranks or 1)
            for count in (6_000, 1_000)
        )
    train, test = datasets(size)
    sampler = DistributedSampler(train, ranks, rank, shuffle=True) if ranks > 1 else None
    shared = {"batch_size": args.batch_size, "num_workers": args.num_workers}
    train_loader = DataLoader(
        train, sampler=sampler, shuffle=sampler is None, drop_last=args.drop_last, **shared
    )
    share = torch.utils.data.Subset(test, range(rank, len(test), ranks))
    return train_loader, DataLoader(share, **shared)


def add_arguments(parser):
    """The flags of every script that trains on digits."""
    parser.add_argument("--fake_data", action="store_true", help="images of zeros")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--num_epochs", type=int, default=18)
    parser.add_argument("--num_workers", type=int, default=0)
    parser.add_argument("--drop_last", action="store_true")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--log_steps", type=int, default=20)
    parser.add_argument("--target_accuracy", type=float, default=0.0, help="in percent")
    parser.add_argument("--logdir", help="where TensorBoard finds the accuracy")
    parser.add_argument("--metrics_debug", action="store_true")
