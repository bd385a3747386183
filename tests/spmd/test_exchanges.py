"""The operators by which devices exchange the values of manual code."""

from __future__ import annotations

import textwrap

import pytest

from tests.spmd.test_sharding import REFUSED

PRELUDE = (
    REFUSED
    + """
import numpy as np
import torch
import torch_xla
import torch_xla.runtime as xr
import torch_xla.distributed.spmd as xs
from torch_xla import _XLAC

ops = torch.ops.torch_xla
torch.manual_seed(0)
"""
)

MANUAL = """
xr.use_spmd()
mesh = xs.Mesh(np.arange(4), (4,), ("x",))
PAIRS = [0, 2, 1, 3]  # groups: devices 0 and 2, 1 and 3

def parts(value, requires_grad=False):
    "Each device's part of the rows of a value."
    t = value.to("xla").requires_grad_(requires_grad)
    spec = ("x",) + (None,) * (value.dim() - 1)
    xs.mark_sharding(t, mesh, spec)
    return t, xs.enable_manual_sharding(t, spec, mesh=mesh).global_tensor

def whole(part):
    "The parts, one after the other."
    sizes = (4 * part.shape[0], *part.shape[1:])
    spec = ("x",) + (None,) * (part.dim() - 1)
    return xs.disable_manual_sharding(part, spec, sizes, mesh=mesh).global_tensor
"""


@pytest.fixture
def run(run_python):
    """Runs code in an SPMD process of four devices."""

    def run(code):
        env = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}
        run_python(PRELUDE + MANUAL + textwrap.dedent(code), env=env, timeout=300)

    return run


def test_devices_of_manual_code_exchange(run):
    run("""
    value = torch.randn(16, 4)
    _, part = parts(value)
    a, b, c, d = value.chunk(4)
    for made, expected in [
        (ops.all_reduce(part, "add", 0.5, [], 0), [(a + b + c + d) / 2] * 4),
        (ops.all_reduce(part, "maximum", 1.0, PAIRS, 2), [a.maximum(c), b.maximum(d)] * 2),
        (ops.reduce_scatter(part, "add", 1.0, 0, PAIRS, 2),
         [(a + c)[:2], (b + d)[:2], (a + c)[2:], (b + d)[2:]]),
        (ops.all_gather(part, 1, PAIRS, 2), [torch.cat([a, c], 1), torch.cat([b, d], 1)] * 2),
        (ops.all_to_all(part, 0, 1, [0, 1, 2, 3], 4),
         [torch.cat([p[i:i + 1] for p in (a, b, c, d)], 1) for i in range(4)]),
        (ops.all_to_all(part, 1, 1, PAIRS, 2),
         [torch.cat([a[:, :2], c[:, :2]], 1), torch.cat([b[:, :2], d[:, :2]], 1),
          torch.cat([a[:, 2:], c[:, 2:]], 1), torch.cat([b[:, 2:], d[:, 2:]], 1)]),
        (ops.collective_permute(part, [0, 1, 1, 2, 2, 3, 3, 0]), [d, a, b, c]),
        (ops.collective_permute(part, [3, 1]), [a * 0, d, a * 0, a * 0]),
        (ops.collective_permute(part, []), [a * 0] * 4),
        (ops.collective_broadcast(part, [2, 0, 1, 3], 4), [c] * 4),
        (ops.collective_broadcast(part, [2, 0, 1, 3], 2), [c, b, c, b]),
    ]:
        torch.testing.assert_close(whole(made).cpu(), torch.cat(expected))
    """)


def test_several_exchanges_of_one_value(run):
    run("""
    _, part = parts(torch.arange(8.0))
    everyone = [0, 1, 2, 3]
    a = ops.all_to_all(ops.all_gather(part, 0, everyone, 4), 0, 0, everyone, 4)
    b = ops.all_reduce(part, "add", 1.0, everyone, 4)
    c = ops.all_reduce(part, "multiply", 1.0, everyone, 4)
    d = ops.collective_permute(part, [0, 1])
    assert whole(b).tolist() == [12.0, 16] * 4 and whole(c).tolist() == [0, 105.0] * 4
    assert whole(d).tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    assert whole(a).tolist() == [0.0, 1] * 4 + [2.0, 3] * 4 + [4.0, 5] * 4 + [6.0, 7] * 4
    """)


def test_gradients(run):
    run("""
    value, weight = torch.randn(8, 4), torch.randn(8, 4)

    def gradient(exchange):
        t, part = parts(value, requires_grad=True)
        made = whole(exchange(part))
        (made * weight.to("xla").reshape(made.shape)).sum().backward()
        return t.grad.cpu()

    def expected(exchange):
        "`exchange` is linear: its gradient is its transpose applied to the weights."
        t = value.clone().requires_grad_()
        made = torch.cat(exchange(t.chunk(4)))
        (made * weight.reshape(made.shape)).sum().backward()
        return t.grad

    everyone = [0, 1, 2, 3]
    for ours, of_cpu in [
        (lambda p: ops.all_to_all(p, 1, 0, everyone, 4),
         lambda p: [torch.cat([q[:, i:i + 1] for q in p]) for i in range(4)]),
        (lambda p: ops.all_to_all(p, 0, 1, PAIRS, 2),
         lambda p: [torch.cat([p[i][j:j + 1], p[i + 2][j:j + 1]], 1)
                    for i, j in ((0, 0), (1, 0), (0, 1), (1, 1))]),
        (lambda p: ops.collective_permute(p, [0, 1, 1, 2]),
         lambda p: [p[0] * 0, p[0], p[1], p[0] * 0]),
    ]:
        torch.testing.assert_close(gradient(ours), expected(of_cpu))
    sent = lambda p: ops.collective_broadcast(p, everyone, 4)
    refused(NotImplementedError, lambda: gradient(sent),
            "collective_broadcast: expected a tensor without a gradient")
    """)


def test_what_does_not_fit_is_refused(run):
    run("""
    _, part = parts(torch.randn(8, 3))
    def read(made):
        return lambda: whole(made()).cpu()
    refused(ValueError, lambda: ops.all_to_all(part, 1, 0, PAIRS, 2),
            "all_to_all: expected a dimension that the 2 members of a group divide, got 3")
    refused(IndexError, lambda: ops.all_to_all(part, 2, 0, PAIRS, 2),
            "expected a dimension from 0 to 1, got 2")
    refused(ValueError, read(lambda: ops.all_reduce(part, "add", 1.0, [0, 1, 1, 3], 2)),
            "torch_xla::all_reduce: expected groups of the devices [0, 1, 2, 3], each once")
    refused(ValueError, read(lambda: ops.collective_permute(part, [0, 1, 0, 2])),
            "got [0, 1, 0, 2]")
    refused(ValueError, read(lambda: ops.collective_permute(part, [0, 9])), "pairs of members")
    plain = torch.ones(4, device="xla")
    refused(ValueError, lambda: ops.all_gather(plain, 0, [0, 1, 2, 3], 4).cpu(),
            "expected a manual tensor")
    refused(ValueError, read(lambda: ops.all_reduce(part, "add", 1.0, [], 4, True)),
            "got SPMD mode")
    """)
