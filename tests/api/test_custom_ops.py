"""`torch.library` operators on xla."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla.experimental import host_fallback

_numbers = itertools.count()


@pytest.fixture
def name():
    return f"torch_xla_tests::op{next(_numbers)}"


def test_an_operator_of_torch_operators_is_recorded(name):
    @torch.library.custom_op(name, mutates_args=())
    def op(x: Tensor, factor: float) -> Tensor:
        return (x * factor).exp() + 1

    @op.register_fake
    def _(x, factor):
        return torch.empty_like(x)

    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * (y - 1) * ctx.factor, None

    def setup(ctx, inputs, output):
        ctx.factor = inputs[1]
        ctx.save_for_backward(output)

    op.register_autograd(backward, setup_context=setup)
    cpu = torch.randn(5, requires_grad=True)
    x = cpu.detach().to("xla").requires_grad_()
    met.clear_all()
    y = op(x, 0.5)
    y.sum().backward()
    assert met.metric_data("ExecuteTime") is None  # nothing had to run yet
    op(cpu, 0.5).sum().backward()
    torch.testing.assert_close(y.detach().cpu(), op(cpu, 0.5).detach())
    torch.testing.assert_close(x.grad.cpu(), cpu.grad)
    assert met.counter_value("xla::exp") == 1
    assert not [c for c in met.counter_names() if c.startswith("torch_xla_tests::")]


def test_an_operator_with_a_new_number_compiles_nothing(name):
    @torch.library.custom_op(name, mutates_args=())
    def op(x: Tensor, factor: float) -> Tensor:
        return x * factor

    x = torch.ones(3, device="xla")
    for step in range(4):
        if step == 2:
            met.clear_all()
        assert op(x, 2.0 + step).tolist() == [2.0 + step] * 3
    assert not met.counter_value("UncachedCompile")


def test_an_operator_that_goes_to_numpy(name):
    """Written for all devices: it fetches and uploads by itself."""

    @torch.library.custom_op(name, mutates_args=())
    def op(x: Tensor) -> Tensor:
        return torch.from_numpy(np.sin(x.cpu().numpy())).to(x.device)

    x = torch.randn(4, device="xla")
    y = op(x * 2)
    assert y.device == x.device
    torch.testing.assert_close(y.cpu(), torch.sin(x.cpu() * 2))


def test_an_operator_for_the_cpu_runs_on_the_host(name):
    @torch.library.custom_op(name, mutates_args=(), device_types="cpu")
    def op(x: Tensor, xs: list[Tensor]) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(np.sin(x.numpy())), sum(xs)

    x = torch.randn(4, device="xla")
    met.clear_all()
    y, z = op(x, [x, x * 2])
    op(x, [x])
    assert met.counter_value(name) == 2
    assert y.device.type == z.device.type == "xla"
    torch.testing.assert_close(y.cpu(), torch.sin(x.cpu()))
    torch.testing.assert_close(z.cpu(), x.cpu() * 3)
    host_fallback("error")
    try:
        with pytest.raises(NotImplementedError, match=f"{name}: runs on the host"):
            op(x, [x])
    finally:
        host_fallback("warn")


def test_an_operator_that_writes(name):
    @torch.library.custom_op(name, mutates_args={"x"})
    def op(x: Tensor, y: Tensor) -> None:
        x.add_(y)

    x = torch.zeros(2, 3, device="xla")
    assert op(x[1], torch.ones(3, device="xla")) is None
    assert x.tolist() == [[0.0] * 3, [1.0] * 3]


def test_an_operator_that_writes_on_the_host(name):
    @torch.library.custom_op(name, mutates_args={"x"}, device_types="cpu")
    def op(x: Tensor) -> None:
        x.numpy()[:] = 7

    x = torch.zeros(2, 3, device="xla")
    op(x[1])
    assert x.tolist() == [[0.0] * 3, [7.0] * 3]


def test_a_kernel_for_xla(name):
    @torch.library.custom_op(name, mutates_args=(), device_types="cpu")
    def op(x: Tensor) -> Tensor:
        return x + 1

    x = torch.zeros(2)
    assert op(x.to("xla")).tolist() == [1, 1]

    @op.register_kernel("xla")
    def _(x):
        return x + 2

    assert op(x.to("xla")).tolist() == [2, 2]
    assert op(x).tolist() == [1, 1]


@pytest.mark.parametrize("types", ["xla", ("cpu", "xla")])
def test_library_impl(name, types):
    torch.library.define(name, "(Tensor x) -> Tensor")

    @torch.library.impl(name, types)
    def op(x):
        return x * 3

    namespace, _, short = name.partition("::")
    call = getattr(getattr(torch.ops, namespace), short)
    assert call(torch.ones(2, device="xla")).tolist() == [3, 3]
    if "cpu" in types:
        assert call(torch.ones(2)).tolist() == [3, 3]


def test_library_objects():
    with torch.library._scoped_library("torch_xla_tests_lib", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "XLA")
        twice = torch.ops.torch_xla_tests_lib.twice
        assert twice(torch.ones(2, device="xla")).tolist() == [2, 2]


def test_an_operator_in_training(name):
    @torch.library.custom_op(name, mutates_args=())
    def op(x: Tensor, w: Tensor) -> Tensor:
        return x @ w

    op.register_autograd(
        lambda ctx, g: (g @ ctx.saved_tensors[1].t(), ctx.saved_tensors[0].t() @ g),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    torch.manual_seed(0)
    data, weight = torch.randn(6, 4), torch.randn(4, 3)

    def train(device):
        w = weight.clone().to(device).requires_grad_()
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            op(data.to(device), w).pow(2).mean().backward()
            optimizer.step()
            torch_xla.sync()
        return w.detach().cpu()

    torch.testing.assert_close(train("xla"), train("cpu"))


def test_a_wrong_call_raises_what_pytorch_raises(name):
    @torch.library.custom_op(name, mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x  # an output must not be an input

    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError, match="may not alias"):
            op(torch.ones(2, device=device))
