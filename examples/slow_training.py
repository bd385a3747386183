"""Trains a small language model with six faults that cost speed; `--fixed 4` mends four of them.

python examples/slow_training.py                # all six
python examples/slow_training.py --fixed 6      # none

What it prints about them, and what to do, is in docs/debugging.md.
"""

import argparse
import time

import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_xla

VOCABULARY, LONGEST, PADDING = 32, 64, 0
LIMIT = 0.5  # of the norm of the gradients


class Model(nn.Module):
    """Predicts each token from the four before it."""

    def __init__(self, width=64, hidden=1024, context=4):
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.hidden = nn.Linear(context * width, hidden)
        self.head = nn.Linear(hidden, VOCABULARY)

    def forward(self, tokens):
        x = self.tokens(F.pad(tokens, (self.context - 1, 0)))
        x = x.unfold(1, self.context, 1).flatten(2)
        return self.head(F.gelu(self.hidden(x)))


@torch.library.custom_op("slow_training::focal", mutates_args=(), device_types="cpu")
def focal(losses: torch.Tensor) -> torch.Tensor:
    """How much each loss counts: less where the model is sure already."""
    return torch.from_numpy((1 - numpy.exp(-losses.numpy())) ** 2)


@focal.register_fake
def _(losses):
    return torch.empty_like(losses)


def sequences(count, seed=0):
    """Numbers that grow by a constant, modulo the vocabulary, and are of different lengths."""
    g = torch.Generator().manual_seed(seed)
    first = torch.randint(VOCABULARY - 1, (count, 1), generator=g)
    by = torch.randint(1, 6, (count, 1), generator=g)
    numbers = (first + by * torch.arange(LONGEST + 1)) % (VOCABULARY - 1) + 1
    lengths = LONGEST * (1 + 3 * torch.rand(count, generator=g) ** 4) // 4  # few are long
    numbers[torch.arange(LONGEST + 1) > lengths[:, None]] = PADDING
    return TensorDataset(numbers, lengths)


def train(fixed, epochs, count, batch):
    """Returns the last epoch's loss, and the steps per second from the second step on."""
    torch.manual_seed(0)
    device = torch.device("xla")
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    # Fault 4
    if fixed >= 4:
        loader = DataLoader(sequences(count), batch, shuffle=True, drop_last=True)
    else:
        loader = DataLoader(sequences(count), batch, shuffle=True)

    step = 0
    for epoch in range(epochs):
        total = torch.zeros((), device=device)
        torch_xla.sync()
        for numbers, lengths in loader:
            numbers = numbers.to(device)
            # Fault 1
            if fixed >= 1:
                tokens, targets = numbers[:, :-1], numbers[:, 1:]
            else:
                longest = int(lengths.max())
                tokens, targets = numbers[:, :longest], numbers[:, 1 : longest + 1]

            logits = model(tokens)
            losses = F.cross_entropy(logits.mT, targets, reduction="none")
            # Fault 3
            if fixed >= 3:
                weights = (1 - torch.exp(-losses.detach())) ** 2
            else:
                weights = focal(losses.detach())
            losses = weights * losses
            mask = targets != PADDING
            # Fault 2
            if fixed >= 2:
                loss = torch.where(mask, losses, 0).sum() / mask.sum()
            else:
                loss = losses[mask].mean()

            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
            # Fault 5
            if fixed >= 5:
                nn.utils.clip_grads_with_norm_(model.parameters(), LIMIT, norm)
            elif norm > LIMIT:
                for p in model.parameters():
                    p.grad.mul_(LIMIT / norm)
            optimizer.step()

            # Fault 6
            if fixed >= 6:
                total += loss.detach()
            else:
                total += loss.item()
            torch_xla.sync()
            step += 1
            if step == 1:
                torch_xla.sync(wait=True)
                start = time.perf_counter()
        mean = total.item() / len(loader)
        print(f"epoch {epoch + 1}: loss {mean:.4f}")
    return mean, (step - 1) / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fixed", type=int, choices=range(7), default=0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--sequences", type=int, default=660)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    loss, rate = train(args.fixed, args.epochs, args.sequences, args.batch)
    print(f"loss: {loss:.4f}")
    print(f"steps per second: {rate:.1f}")


if __name__ == "__main__":
    main()
