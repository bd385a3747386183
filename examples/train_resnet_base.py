"""Trains a ResNet-50 on one device, on made-up images.

python examples/train_resnet_base.py
python examples/train_resnet_base.py --model resnet18 --batch_size 8 --image_size 64 --num_steps 30
"""

import argparse
import time

import resnet
import torch
from torch import nn, optim

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.utils.utils as xu


def parser(description=__doc__):
    p = argparse.ArgumentParser(description=description.split("\n")[0])
    p.add_argument("--model", choices=resnet.NAMES, default="resnet50")
    p.add_argument("--batch_size", type=int, default=128)
    p.add_argument("--image_size", type=int, default=224)
    p.add_argument("--num_steps", type=int, default=300)
    p.add_argument("--num_epochs", type=int, default=1)
    p.add_argument("--log_steps", type=int, default=10)
    return p


def clock():
    return time.strftime("%l:%M%p %Z on %b %d, %Y").strip()


class Training:
    """A model, its optimizer, and batches of made-up images, all on this process's device."""

    is_one_graph = True  # each step

    def __init__(self, args):
        self.args = args
        self.device = torch_xla.device()
        shape = (args.batch_size, 3, args.image_size, args.image_size)
        batch = (torch.zeros(shape), torch.zeros(args.batch_size, dtype=torch.int64))
        loader = xu.SampleGenerator(batch, args.num_steps)
        self.loader = pl.MpDeviceLoader(loader, self.device)
        torch.manual_seed(42)
        self.model = self.wrapped(resnet.make(args.model).to(self.device))
        self.optimizer = optim.SGD(
            self.model.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4
        )
        self.loss_fn = nn.CrossEntropyLoss()
        self.compiled_step = torch_xla.compile(
            self.step, full_graph=self.is_one_graph, name="resnet_step"
        )

    def wrapped(self, model):
        return model

    def run_optimizer(self):
        self.optimizer.step()

    def step(self, data, target):
        self.optimizer.zero_grad()
        loss = self.loss_fn(self.model(data), target)
        loss.backward()
        self.run_optimizer()
        return loss

    def train(self, epoch):
        tracker = xm.RateTracker()
        self.model.train()
        for step, (data, target) in enumerate(self.loader):
            loss = self.compiled_step(data, target)
            tracker.add(self.args.batch_size)
            if step % self.args.log_steps == 0:
                xm.add_step_closure(self.report, args=(epoch, step, loss, tracker))
        torch_xla.sync(wait=True)

    def report(self, epoch, step, loss, tracker):
        xm.master_print(
            f"epoch: {epoch}, step: {step}, loss: {loss.item()}, rate: {tracker.rate()}", flush=True
        )

    def start(self):
        xm.master_print(clock())
        for epoch in range(1, self.args.num_epochs + 1):
            self.train(epoch)
            xm.master_print(f"Epoch {epoch} train end {clock()}")


if __name__ == "__main__":
    Training(parser().parse_args()).start()
