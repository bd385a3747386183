"""Trains a small convolutional network on handwritten digits, a process for each device.

python examples/train_mnist.py
CPU_NUM_DEVICES=2 python examples/train_mnist.py --ddp --pjrt_distributed --fake_data --num_epochs 1
torchrun --nproc-per-node 2 examples/train_mnist.py
"""

import argparse

import digits
import ranks
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.functional import log_softmax, max_pool2d, relu

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_backend  # noqa: F401  registers the backend
import torch_xla.test.test_utils as test_utils


class MNIST(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.bn1 = nn.BatchNorm2d(10)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.bn2 = nn.BatchNorm2d(20)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = self.bn1(relu(max_pool2d(self.conv1(x), 2)))
        x = self.bn2(relu(max_pool2d(self.conv2(x), 2)))
        x = relu(self.fc1(torch.flatten(x, 1)))
        return log_softmax(self.fc2(x), dim=1)


def train_epoch(args, model, loader, optimizer, device, epoch):
    loss_fn = nn.NLLLoss()
    tracker = xm.RateTracker()
    model.train()
    for step, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = loss_fn(model(data), target)
        loss.backward()
        if args.ddp:
            optimizer.step()  # DDP has averaged the gradients
        else:
            xm.optimizer_step(optimizer)
        tracker.add(args.batch_size)
        if step % args.log_steps == 0:
            xm.add_step_closure(ranks.report, args=(device, step, loss, tracker, epoch))


def train_mnist(args):
    torch.manual_seed(1)
    if args.ddp or args.pjrt_distributed:
        dist.init_process_group("xla", init_method="xla://")
    device = torch_xla.device()
    train_loader, test_loader = (
        pl.MpDeviceLoader(loader, device) for loader in digits.loaders(args)
    )
    model = ranks.prepared(MNIST().to(device), args.ddp)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    writer = test_utils.get_summary_writer(args.logdir) if xm.is_master_ordinal() else None
    accuracy = 0.0
    for epoch in range(1, args.num_epochs + 1):
        xm.master_print(f"Epoch {epoch} train begin {test_utils.now()}")
        train_epoch(args, model, train_loader, optimizer, device, epoch)
        xm.master_print(f"Epoch {epoch} train end {test_utils.now()}")
        accuracy = ranks.accuracy_of(model, test_loader)
        xm.master_print(f"Epoch {epoch} test end {test_utils.now()}, Accuracy={accuracy:.2f}")
        test_utils.write_to_summary(writer, epoch, dict_to_write={"Accuracy/test": accuracy})
        if args.metrics_debug:
            xm.master_print(met.metrics_report())
    test_utils.close_summary_writer(writer)
    if args.ddp or args.pjrt_distributed:
        dist.destroy_process_group()
    return accuracy


def run(index, args):
    accuracy = train_mnist(args)
    if accuracy < args.target_accuracy:
        raise SystemExit(f"accuracy: expected {args.target_accuracy}%, got {accuracy:.2f}%.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    digits.add_arguments(parser)
    parser.add_argument("--ddp", action="store_true", help="DistributedDataParallel averages")
    parser.add_argument("--pjrt_distributed", action="store_true", help="makes a process group")
    torch_xla.launch(run, args=(parser.parse_args(),))


if __name__ == "__main__":
    main()
