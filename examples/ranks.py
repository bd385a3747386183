"""What scripts that train on several ranks share."""

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
import torch_xla.test.test_utils as test_utils


def prepared(model, ddp):
    """The model as ranks train it: all begin with the same parameters; `ddp` averages gradients."""
    if xr.world_size() > 1:
        xm.broadcast_master_param(model)
    return DistributedDataParallel(model, gradient_as_bucket_view=True) if ddp else model


def report(device, step, loss, tracker, epoch, writer=None):
    """For a step closure."""
    test_utils.print_training_update(
        device, step, loss.item(), tracker.rate(), tracker.global_rate(), epoch, writer
    )


def accuracy_of(model, loader):
    """In percent, of all ranks' samples."""
    correct, total = 0, 0
    model.eval()
    with torch.no_grad():
        for data, target in loader:
            correct += (model(data).argmax(dim=1) == target).sum()
            total += len(target)
    counts = xm.mesh_reduce("test_accuracy", (int(correct), total), lambda all_: np.sum(all_, 0))
    return 100.0 * counts[0] / counts[1]
