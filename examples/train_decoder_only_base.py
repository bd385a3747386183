"""Trains a decoder-only transformer, as language models are, on random tokens.

python examples/train_decoder_only_base.py --hidden_size 128 --num_layers 2 --seq_len 64
"""

import argparse
import time

import torch
from torch import nn, optim

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.utils.utils as xu


class Attention(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x):
        batch, length, size = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        return self.out(found.transpose(1, 2).reshape(batch, length, size))


class Layer(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.attention_norm = nn.RMSNorm(hidden_size)
        self.attention = Attention(hidden_size, num_heads)
        self.mlp_norm = nn.RMSNorm(hidden_size)
        self.gate_and_up = nn.Linear(hidden_size, 8 * hidden_size, bias=False)
        self.down = nn.Linear(4 * hidden_size, hidden_size, bias=False)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        gate, up = self.gate_and_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(nn.functional.silu(gate) * up)


class DecoderOnlyModel(nn.Module):
    """Takes tokens `[N, length]`, gives logits `[N, length, vocab_size]`."""

    def __init__(self, vocab_size, hidden_size, num_layers, num_heads, seq_len):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, hidden_size)
        self.positions = nn.Embedding(seq_len, hidden_size)
        self.layers = nn.Sequential(*[Layer(hidden_size, num_heads) for _ in range(num_layers)])
        self.norm = nn.RMSNorm(hidden_size)
        self.logits = nn.Linear(hidden_size, vocab_size, bias=False)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.logits(self.norm(self.layers(self.tokens(tokens) + self.positions(positions))))


class Training:
    def __init__(self, args):
        self.args = args
        self.device = torch_xla.device()
        torch.manual_seed(42)
        sizes = (args.vocab_size, args.hidden_size, args.num_layers, args.num_heads, args.seq_len)
        self.model = DecoderOnlyModel(*sizes).to(self.device)
        self.optimizer = optim.Adam(self.model.parameters(), lr=args.lr)
        tokens = torch.randint(args.vocab_size, (args.batch_size, args.seq_len + 1))
        batch = (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loader = xu.SampleGenerator(batch, args.num_steps)
        self.loader = pl.MpDeviceLoader(loader, self.device)

    def train_loop_fn(self, epoch):
        tracker = xm.RateTracker()
        self.model.train()
        for step, (tokens, target) in enumerate(self.loader):
            self.optimizer.zero_grad()
            logits = self.model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
            loss.backward()
            self.optimizer.step()
            tracker.add(self.args.batch_size)
            if step % self.args.log_steps == 0:
                xm.add_step_closure(self.report, args=(epoch, step, loss, tracker))

    def report(self, epoch, step, loss, tracker):
        print(f"epoch: {epoch}, step: {step}, loss: {loss.item()}, rate: {tracker.rate()}")

    def start_training(self):
        for epoch in range(1, self.args.num_epochs + 1):
            print(f"Epoch {epoch} train begin {time.strftime('%X')}")
            self.train_loop_fn(epoch)
            torch_xla.sync(wait=True)
            print(f"Epoch {epoch} train end {time.strftime('%X')}")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--vocab_size", type=int, default=3200)
    p.add_argument("--hidden_size", type=int, default=1024)
    p.add_argument("--num_layers", type=int, default=2)
    p.add_argument("--num_heads", type=int, default=8)
    p.add_argument("--seq_len", type=int, default=512)
    p.add_argument("--batch_size", type=int, default=16)
    p.add_argument("--num_steps", type=int, default=200)
    p.add_argument("--num_epochs", type=int, default=1)
    p.add_argument("--log_steps", type=int, default=10)
    p.add_argument("--lr", type=float, default=1e-3)
    Training(p.parse_args()).start_training()


if __name__ == "__main__":
    main()
