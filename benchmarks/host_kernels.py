"""One operator on the CPU platform: XLA's code, PyTorch's CPU kernel called from the program, and
PyTorch alone, in milliseconds. Shows which way `XLA_HOST_KERNELS=auto` should take, and takes.

    python -m benchmarks.host_kernels [--only conv] [--repeat 15]

Each figure is the least of several runs, so that other work on the machine disturbs little. A
program repeats its operator on results of the one before, and what a program costs beside it is
taken off.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import torch_xla

Case = tuple[str, Callable[..., object], list[torch.Tensor]]


def rand(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size).to(dtype)


def convolutions() -> list[Case]:
    cases = []
    # name, batch, channels in, out, kernel, stride, image
    table = [
        ("lenet 1->32 k3 28", 64, 1, 32, 3, 1, 28),
        ("32->64 k3 28", 64, 32, 64, 3, 1, 28),
        ("32->64 k3 14", 64, 32, 64, 3, 1, 14),
        ("stem 3->64 k7 s2 112", 8, 3, 64, 7, 2, 112),
        ("64->64 k3 28", 8, 64, 64, 3, 1, 28),
        ("64->128 k3 s2 28", 8, 64, 128, 3, 2, 28),
        ("64->128 k1 s2 28", 8, 64, 128, 1, 2, 28),
        ("128->128 k3 14", 8, 128, 128, 3, 1, 14),
        ("256->256 k3 7", 8, 256, 256, 3, 1, 7),
        ("512->512 k3 4", 8, 512, 512, 3, 1, 4),
        ("64->64 k3 56", 8, 64, 64, 3, 1, 56),
        ("256->1024 k1 14", 8, 256, 1024, 1, 1, 14),
        ("depthwise 96 k3 28", 8, 96, 96, 3, 1, 28),
    ]
    for name, batch, c_in, c_out, k, stride, image in table:
        groups = c_in if name.startswith("depthwise") else 1
        x, w = rand(batch, c_in, image, image), rand(c_out, c_in // groups, k, k)
        bias = rand(c_out)
        args = ([stride] * 2, [k // 2] * 2, [1, 1], False, [0, 0], groups)

        def forward(x, w, b, args=args):
            return torch.ops.aten.convolution(x, w, b, *args)

        def backward(g, x, w, args=args, c_out=c_out):
            return torch.ops.aten.convolution_backward(g, x, w, [c_out], *args, [True] * 3)

        cases.append((f"conv {name}", forward, [x, w, bias]))
        cases.append((f"conv backward {name}", backward, [forward(x, w, bias), x, w]))
    return cases


# Rows, inputs and outputs of a layer.
LINEAR_SIZES = [(16, 1024, 1024), (64, 3136, 128), (512, 256, 1024), (512, 1024, 1024)]
LINEAR_SIZES += [(512, 384, 8192), (4096, 256, 256)]


def products() -> list[Case]:
    cases = []
    for dtype in (torch.float32, torch.bfloat16):
        for size in (64, 256, 1024):
            a, b = rand(size, size, dtype=dtype), rand(size, size, dtype=dtype)
            cases.append((f"mm {str(dtype)[6:]} {size}", torch.mm, [a, b]))
        for m, k, n in LINEAR_SIZES:
            x, w = rand(m, k, dtype=dtype), rand(n, k, dtype=dtype)
            name = f"{str(dtype)[6:]} {m}x{k}x{n}"
            cases.append((f"linear {name}", F.linear, [x, w, rand(n, dtype=dtype)]))
            cases.append(
                (f"linear gradient {name}", lambda g, x: g.t() @ x, [rand(m, n, dtype=dtype), x])
            )
        a, b = rand(32, 128, 64, dtype=dtype), rand(32, 64, 128, dtype=dtype)
        cases.append((f"bmm {str(dtype)[6:]} 32x128x64x128", torch.bmm, [a, b]))
    return cases


def attentions() -> list[Case]:
    cases = []
    for dtype in (torch.float32, torch.bfloat16):
        for batch, heads, length, width in (
            (16, 4, 32, 32),
            (8, 6, 64, 64),
            (4, 8, 256, 64),
            (1, 8, 1024, 64),
        ):
            q, k, v = (rand(batch, heads, length, width, dtype=dtype) for _ in range(3))
            name = f"attention {str(dtype)[6:]} {batch}x{heads}x{length}x{width}"
            cases.append(
                (
                    name,
                    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                    [q, k, v],
                )
            )

            def both(q, k, v):
                q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                return torch.autograd.grad(y.sum(), [q, k, v])

            cases.append((f"{name} with gradients", both, [q, k, v]))
    return cases


def recurrent() -> list[Case]:
    cases = []
    for kind, batch in ((nn.LSTM, 16), (nn.LSTM, 64), (nn.GRU, 16), (nn.RNN, 16)):
        modules = {"cpu": kind(128, 128, 2)}
        modules["xla"] = kind(128, 128, 2).to("xla")
        x = rand(32, batch, 128)

        def inference(x, modules=modules):
            with torch.no_grad():
                return modules[x.device.type](x)[0]

        def training(x, modules=modules):
            m = modules[x.device.type]
            return torch.autograd.grad(m(x)[0].square().sum(), list(m.parameters()))

        cases.append((f"{kind.__name__} 2x128 steps 32 batch {batch}", inference, [x]))
        cases.append(
            (f"{kind.__name__} 2x128 steps 32 batch {batch} with gradients", training, [x])
        )
    return cases


def functions() -> list[Case]:
    cases = []
    for name in ("sin", "cos", "tan", "asin", "acos", "atan", "log1p", "exp", "tanh"):
        for size in (4096, 1 << 20):
            cases.append((f"{name} {size}", getattr(torch, name), [torch.rand(size)]))
    return cases


FAMILIES = {
    "conv": convolutions,
    "mm": products,
    "attention": attentions,
    "rnn": recurrent,
    "functions": functions,
}


def best(call: Callable[[], object], repeat: int) -> float:
    for _ in range(3):
        call()
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


def on_xla(fn: Callable[..., object], inputs: list[torch.Tensor], way: str, repeat: int) -> float:
    os.environ["XLA_HOST_KERNELS"] = way
    inputs = [t.to("xla") for t in inputs]

    def call() -> None:
        result = fn(*inputs)  # kept alive: what nobody holds is not computed
        torch_xla.sync(wait=True)
        del result

    return best(call, repeat)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="families and cases whose name contains this")
    parser.add_argument("--repeat", type=int, default=15)
    options = parser.parse_args()
    x = torch.ones(1)
    empty = on_xla(lambda x: x + 1, [x], "none", options.repeat)
    print(f"(a program that does nothing: {empty:.3f}, taken off)")
    print(f"{'':52}{'XLA':>9}{'host':>9}{'auto':>9}{'eager':>9}")
    for family, cases in FAMILIES.items():
        for name, fn, inputs in cases():
            if options.only not in name and options.only != family:
                continue
            ways = [on_xla(fn, inputs, way, options.repeat) for way in ("none", "all", "auto")]
            eager = best(lambda fn=fn, inputs=inputs: fn(*inputs), options.repeat)
            print(
                f"{name:52}" + "".join(f"{t - empty:9.3f}" for t in ways) + f"{eager:9.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
