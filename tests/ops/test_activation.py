"""Activations and their gradients against PyTorch's CPU results."""

import pytest
import torch
import torch.nn.functional as F

from .harness import Batch, in_float32, nothing_on_the_host

FLOATS = (torch.float32, torch.bfloat16, torch.float64)
X = torch.tensor([-30.0, -7.5, -3.0, -1.25, -0.5, 0.0, 0.375, 0.5, 1.0, 2.75, 3.0, 6.0, 8.5, 30.0])
# Where a gradient jumps PyTorch picks a side, and nan travels: the same one and the same way.
EDGES = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0, float("nan")])

ACTIVATIONS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "threshold": lambda x: F.threshold(x, 0.5, -2.0),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "rrelu in evaluation": lambda x: F.rrelu(x, 0.1, 0.3, training=False),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 3.0),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardshrink": lambda x: F.hardshrink(x, 0.5),
    "softshrink": lambda x: F.softshrink(x, 0.5),
    "tanhshrink": F.tanhshrink,
    "elu": lambda x: F.elu(x, 1.5),
    "elu by default": F.elu,
    "celu": lambda x: F.celu(x, 0.75),
    "selu": F.selu,
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "softplus with beta": lambda x: F.softplus(x, beta=2.0, threshold=5.0),
    "softsign": F.softsign,
    "logsigmoid": F.logsigmoid,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
# Their gradients at bfloat16 differ by the rounding of PyTorch's own intermediate results.
SUBTRACTS = {"tanhshrink", "softsign", "tanh", "sigmoid"}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name):
    fn = ACTIVATIONS[name]
    with nothing_on_the_host(), Batch() as batch:
        for dtype in FLOATS:
            atol = 1e-2 if name in SUBTRACTS and dtype is torch.bfloat16 else None
            batch.add(
                fn, X, label=str(dtype), dtype=dtype, atol=atol, rtol=1.6e-2 if atol else None
            )
        batch.add(fn, EDGES, label="edges")
        batch.add(fn, X.reshape(2, 7).T, label="strided")
        batch.add(fn, X[3], label="0-dim")
        batch.add(fn, X[:0], label="empty")


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "hardtanh", "elu", "threshold", "celu"])
def test_in_place_activation(name):
    in_place = {
        "relu": lambda x: F.relu(x, inplace=True),
        "leaky_relu": lambda x: F.leaky_relu(x, 0.2, inplace=True),
        "hardtanh": lambda x: F.hardtanh(x, inplace=True),
        "elu": lambda x: F.elu(x, 2.0, inplace=True),
        "threshold": lambda x: F.threshold(x, 0.5, -2.0, inplace=True),
        "celu": lambda x: F.celu(x, 2.0, inplace=True),
    }[name]
    with nothing_on_the_host(), Batch() as batch:
        batch.add(lambda x: in_place(x * 1.0), X)


def test_relu_of_integers():
    with nothing_on_the_host(), Batch() as batch:
        batch.add(F.relu, torch.tensor([-2, 0, 3]))
        batch.add(F.hardtanh, torch.tensor([-2, 0, 3], dtype=torch.int32))


def test_prelu():
    x = X.reshape(2, 7)
    with nothing_on_the_host(), Batch() as batch:
        batch.add(F.prelu, x, torch.tensor([0.25]), label="one weight")
        batch.add(F.prelu, x, torch.linspace(0.1, 0.9, 7), label="a weight per channel")
        batch.add(F.prelu, x.reshape(1, 7, 2), torch.linspace(0.1, 0.9, 7), label="3 dimensions")


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_glu(dim):
    x = torch.linspace(-3, 3, 48).reshape(4, 6, 2)
    # The CPU's gradient takes 1 - sigmoid of a sigmoid that was rounded to bf16.
    glu = in_float32(lambda x: F.glu(x, dim))
    with nothing_on_the_host(), Batch() as batch:
        for dtype in FLOATS:
            batch.add(glu, x, label=str(dtype), dtype=dtype)
