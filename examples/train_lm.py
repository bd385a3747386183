"""Trains a small GPT on the English of Python's documentation, by character, and samples from it.

python examples/train_lm.py                 # on the XLA device: CPU, or what PJRT_DEVICE names
python examples/train_lm.py --device cpu    # the same with PyTorch alone
"""

import argparse
import ast
import math
import sysconfig
import time
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

# The characters the model knows; the text has no others.
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))


def english_text():
    """The docstrings of Python's standard library, and its licence."""
    library = Path(sysconfig.get_path("stdlib"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    pieces = []
    for path in sorted([*library.glob("*.py"), *library.glob("*/*.py")]):
        folder = path.relative_to(library).parts[0]
        if folder in ("site-packages", "test", "idlelib", "lib2to3", "__pycache__"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old escapes in the library's strings
            tree = ast.parse(path.read_text(encoding="utf-8", errors="ignore"))
        docs = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented))
        pieces += [doc for doc in docs if doc and len(doc) > 80]
    licence = library / "LICENSE.txt"
    if licence.is_file():
        pieces.append(licence.read_text(encoding="utf-8"))
    text = "\n\n".join(pieces)
    return "".join(character for character in text if character in CHARACTERS)


def encode(text):
    codes = {character: code for code, character in enumerate(CHARACTERS)}
    return torch.tensor([codes[character] for character in text])


class Windows(Dataset):
    """`steps * batch_size` windows of text, each with the same window one character later."""

    def __init__(self, data, length, count):
        self.data, self.length = data, length
        self.starts = torch.randint(len(data) - length - 1, (count,))

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        start = self.starts[i]
        window = self.data[start : start + self.length + 1]
        return window[:-1], window[1:]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, context, width, heads, layers):
        super().__init__()
        self.context = context
        self.token = nn.Embedding(len(CHARACTERS), width)
        self.position = nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(CHARACTERS), bias=False)
        self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens):
        x = self.token(tokens) + self.position[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def learning_rate(step, args):
    """Rises for 20 steps, then falls along a cosine to a tenth."""
    progress = step / args.steps
    return args.lr * min(1, (step + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * progress))


def train(args, data, device, steps, show_progress=True):
    """Trains a model; returns it, its mean loss over the last steps, and its steps per second."""
    torch.manual_seed(args.seed)
    on_xla = device.type == "xla"
    if on_xla:
        import torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.distributed.parallel_loader as pl

    windows = Windows(data, args.context, steps * args.batch_size)
    loader = DataLoader(windows, batch_size=args.batch_size)
    if on_xla:
        loader = pl.MpDeviceLoader(loader, device)

    model = GPT(args.context, args.width, args.heads, args.layers).train().to(device)
    optimizer = optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)

    bar = tqdm(total=steps, unit="step", disable=not show_progress, mininterval=0.5)
    warm_up = 3 if steps > 3 else 0
    losses = []
    for step, (tokens, targets) in enumerate(loader):
        if step == warm_up:
            if on_xla:
                xm.wait_device_ops()
            start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        optimizer.zero_grad()
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if on_xla:
            xm.optimizer_step(optimizer)
        else:
            optimizer.step()
        losses = [*losses[-19:], loss.detach()]
        bar.update()
        if step % 50 == 49:
            if on_xla:
                show = lambda loss: bar.set_postfix(loss=f"{loss.item():.3f}")  # noqa: E731
                xm.add_step_closure(show, args=(loss.detach(),))
            else:
                bar.set_postfix(loss=f"{loss.item():.3f}")
    if on_xla:
        torch_xla.sync(wait=True)
    seconds = time.perf_counter() - start
    bar.close()
    return model, torch.stack(losses).mean().item(), (steps - warm_up) / seconds


@torch.no_grad()
def sample(model, device, prompt, length, temperature=0.7):
    """Continues the prompt. As the window's size is fixed, one program serves all characters."""
    if device.type == "xla":
        import torch_xla
    model.eval()
    window = encode(prompt.rjust(model.context)[-model.context :]).unsqueeze(0).to(device)
    written = []
    for _ in range(length):
        probabilities = torch.softmax(model(window)[:, -1] / temperature, dim=-1)
        token = torch.multinomial(probabilities, 1)
        window = torch.cat([window[:, 1:], token], dim=1)
        written.append(token)
        if device.type == "xla":
            torch_xla.sync()
    return prompt + "".join(CHARACTERS[code] for code in torch.cat(written, dim=1)[0].tolist())


def add_arguments(parser):
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--context", type=int, default=96)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)


def arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["xla", "cpu"], default="xla")
    add_arguments(parser)
    return parser.parse_args(given)


def main():
    args = arguments()
    data = encode(english_text())
    print(f"text: {len(data)} characters")
    if args.device == "xla":
        import torch_xla

        device = torch_xla.device()
        print(f"training on {device}, which is {torch_xla.real_devices()[device.index]}")
    else:
        device = torch.device("cpu")
        print("training with PyTorch on the CPU")

    model, loss, rate = train(args, data, device, args.steps)
    print(f"loss: {loss:.3f}, or {loss / math.log(2):.2f} bits a character")
    print(f"steps per second: {rate:.1f}")
    print("sample:")
    print(sample(model, device, "Return the ", 300))
    print()

    if args.device == "xla":
        import torch_xla.debug.metrics as met

        eager = train(args, data, torch.device("cpu"), min(args.steps, 60), show_progress=False)[2]
        print(
            f"steps per second of PyTorch eager on the CPU: {eager:.1f} ({rate / eager:.2f} times)"
        )
        print()
        print(met.short_metrics_report())


if __name__ == "__main__":
    main()
