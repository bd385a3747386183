"""Trains a small convolutional network on the handwritten digits that come with scikit-learn.

python examples/train_digits.py                 # on the XLA device: CPU, or what PJRT_DEVICE names
python examples/train_digits.py --device cpu    # the same with PyTorch alone
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


class DigitNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, padding=1)
        self.bn1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.bn2 = nn.BatchNorm2d(64)
        self.fc1 = nn.Linear(64 * 4 * 4, 128)
        self.dropout = nn.Dropout(0.25)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        x = torch.max_pool2d(x, 2).flatten(1)
        x = self.dropout(torch.relu(self.fc1(x)))
        return torch.log_softmax(self.fc2(x), dim=1)


def datasets():
    """1797 images of 8x8 pixels with values from 0 to 16; every fifth is kept for the test."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    test = torch.arange(len(labels)) % 5 == 0
    return TensorDataset(images[~test], labels[~test]), TensorDataset(images[test], labels[test])


def train(args, device, epochs, show_progress=True):
    """Trains a model; returns it, its last loss, and its steps per second after the first epoch."""
    torch.manual_seed(args.seed)
    on_xla = device.type == "xla"
    if on_xla:
        import torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.distributed.parallel_loader as pl

    loader = DataLoader(datasets()[0], batch_size=args.batch_size, shuffle=True, drop_last=True)
    steps = epochs * len(loader)
    if on_xla:
        loader = pl.MpDeviceLoader(loader, device)

    model = DigitNet().train().to(device)
    loss_fn = nn.NLLLoss()
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)

    bar = tqdm(total=steps, unit="step", disable=not show_progress, mininterval=0.5)
    start = None
    for epoch in range(epochs):
        if epoch == 1 or epochs == 1:
            start = time.perf_counter()
        for data, target in loader:
            optimizer.zero_grad()
            output = model(data)
            loss = loss_fn(output, target)
            loss.backward()
            if on_xla:
                xm.optimizer_step(optimizer)
            else:
                optimizer.step()
            bar.update()
        # Once an epoch, since reading a value waits for the device.
        bar.set_postfix(epoch=epoch + 1, loss=f"{loss.item():.4f}")
    if on_xla:
        torch_xla.sync(wait=True)
    seconds = time.perf_counter() - start
    bar.close()
    return model, loss.item(), len(loader) * max(epochs - 1, 1) / seconds


def accuracy(model, device):
    loader = DataLoader(datasets()[1], batch_size=120)
    if device.type == "xla":
        import torch_xla.distributed.parallel_loader as pl

        loader = pl.MpDeviceLoader(loader, device)
    model.eval()
    correct, total = 0, 0
    with torch.no_grad():
        for data, target in loader:
            correct += (model(data).argmax(dim=1) == target).sum()
            total += len(target)
    return correct.item() / total


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["xla", "cpu"], default="xla")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    if args.device == "xla":
        import torch_xla

        device = torch_xla.device()
        print(f"training on {device}, which is {torch_xla.real_devices()[device.index]}")
    else:
        device = torch.device("cpu")
        print("training with PyTorch on the CPU")

    model, loss, rate = train(args, device, args.epochs)
    print(f"loss: {loss:.4f}")
    print(f"test accuracy: {accuracy(model, device):.2%}")
    print(f"steps per second: {rate:.1f}")

    if args.device == "xla":
        import torch_xla.debug.metrics as met

        eager = train(args, torch.device("cpu"), min(args.epochs, 6), show_progress=False)[2]
        print(
            f"steps per second of PyTorch eager on the CPU: {eager:.1f} ({rate / eager:.2f} times)"
        )
        print()
        print(met.short_metrics_report())


if __name__ == "__main__":
    main()
