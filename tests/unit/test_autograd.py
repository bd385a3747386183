"""Autograd as PyTorch has it: hooks, modes, transforms, second derivatives, numbers in a graph."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import torch_xla
import torch_xla.debug.metrics as met

close = torch.testing.assert_close


def on_both(run, *tensors):
    """What `run` returns on the CPU and on xla, both as CPU tensors."""
    results = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        moved = [t.detach().to(device).requires_grad_(t.requires_grad) for t in tensors]
        out = run(*moved)
        out = out if isinstance(out, (tuple, list)) else [out]
        assert all(t.device.type == device for t in out)
        results.append([t.detach().cpu() for t in out])
    return results


def check(run, *tensors, **tolerance):
    expected, got = on_both(run, *tensors)
    close(got, expected, **tolerance)


def leaf(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).requires_grad_()


def test_hooks_see_and_change_gradients():
    def run(x):
        seen = []
        y = x.sin()
        y.register_hook(lambda g: seen.append(g) or g * 3)

        def halve(p):
            p.grad.mul_(0.5)

        x.register_post_accumulate_grad_hook(halve)
        (y * y).sum().backward()
        return x.grad, seen[0]

    check(run, leaf(3, 4))


OWN_GRADIENTS = {
    "prod": lambda x, w: x.prod(0),
    "cumprod": lambda x, w: x.cumprod(1),
    "attention": lambda x, w: F.scaled_dot_product_attention(
        x[None, None], w[None, None], x[None, None]
    ),
    "linear": F.linear,
    "max": lambda x, w: x.max() * w,
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", OWN_GRADIENTS)
def test_hooks_run_once(name, create_graph):
    def run(x, w):
        calls = [0, 0]

        def hook(i):
            def called(grad):
                calls[i] += 1
                return grad * 0.5

            return called

        x.register_hook(hook(0))
        w.register_hook(hook(1))
        loss = (OWN_GRADIENTS[name](x, w) * 2).sum() + w.sum()
        loss.backward(create_graph=create_graph)
        found = [x.grad, w.grad, torch.tensor(calls, device=x.device)]
        if create_graph and "prod" in name:  # the CPU's attention has no second derivative
            found += torch.autograd.grad(x.grad.square().sum(), x)
        return found

    check(run, leaf(3, 4), leaf(3, 4))


def test_hooks_of_lstm_weights_run_once():
    def run(x):
        torch.manual_seed(0)
        model = torch.nn.LSTM(4, 3).to(x.device)
        calls = []
        for p in model.parameters():
            p.register_hook(lambda g: calls.append(1) or g * 0.5)
        model(x)[0].sum().backward(create_graph=True)
        return [*(p.grad for p in model.parameters()), torch.tensor(len(calls), device=x.device)]

    check(run, leaf(5, 2, 4))


def test_module_hooks():
    def run(x):
        layer = torch.nn.Linear(4, 2)
        torch.nn.init.constant_(layer.weight, 0.3)
        layer = layer.to(x.device)
        seen = []
        layer.register_forward_hook(lambda m, a, out: out * 2)
        layer.register_full_backward_hook(lambda m, gi, go: seen.append(go[0]))
        layer(x).pow(2).sum().backward()
        return x.grad, seen[0], layer.weight.grad

    check(run, leaf(3, 4))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_second_gradients_of_products(size):
    def run(x):
        for product in x.prod(1), x.prod(1, keepdim=True), x[0].prod():
            (grad,) = torch.autograd.grad(product.sum(), [x], create_graph=True)
            assert grad.requires_grad
            yield grad
            yield torch.autograd.grad(grad.sum(), [x])[0]

    check(lambda x: list(run(x)), leaf(2, size))
    if size > 1:  # of one zero PyTorch's has no history
        check(lambda x: list(run(x)), torch.zeros(2, size, requires_grad=True))


def test_modes():
    x = torch.ones(3, device="xla", requires_grad=True)
    with torch.no_grad():
        y = x * 2
        x.add_(1)
    assert not y.requires_grad and x.tolist() == [2, 2, 2]
    with torch.inference_mode():
        z = x * 2
    assert z.is_inference() and z.tolist() == [4, 4, 4]
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        x.add_(1)
    (x * x).sum().backward()
    assert x.grad.tolist() == [4, 4, 4]
    x.grad = None
    assert x.detach().requires_grad is False


def test_changed_values_are_noticed():
    x = torch.ones(3, device="xla", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_writes_to_views_carry_gradients():
    def run(x):
        y = x * 2
        y[:, 1:].t()[0].mul_(3)
        z = y.view(-1)
        z[::3] += x.sum()
        z.pow(2).sum().backward()
        return x.grad

    check(run, leaf(3, 4))


def test_graph_is_kept_or_freed():
    def run(x):
        y = (x**3).sum()
        y.backward(retain_graph=True)
        y.backward()
        return x.grad

    check(run, leaf(5))
    x = leaf(5).detach().to("xla").requires_grad_()
    y = (x**3).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


TWICE = {
    "tanh": lambda x, y: torch.tanh(x @ y),
    "softmax": lambda x, y: torch.softmax(x, -1) @ y,
    "layer norm": lambda x, y: F.layer_norm(x, (4,)) @ y,
    "gelu": lambda x, y: F.gelu(x) @ y,
    "silu": lambda x, y: F.silu(x @ y),
    "conv": lambda x, y: F.conv1d((x @ y)[None], x.t()[:, :, None]),
    "max pool": lambda x, y: F.max_pool1d((x @ y)[None] ** 2, 2),
    "logsumexp": lambda x, y: (x @ y).logsumexp(0),
    "norm": lambda x, y: (x @ y).norm(dim=1),
    "cumsum": lambda x, y: (x @ y).cumsum(0) ** 2,
    "cross entropy": lambda x, y: F.cross_entropy(
        x @ y, torch.zeros(3, dtype=torch.long).to(x.device)
    ),
    "index": lambda x, y: (x[[0, 2, 0]] @ y) ** 3,
    "where": lambda x, y: torch.where(x > 0, x**3, x.exp()) @ y,
}


@pytest.mark.parametrize("function", TWICE.values(), ids=TWICE.keys())
def test_second_derivative(function):
    def run(x, y):
        (first,) = torch.autograd.grad(function(x, y).pow(2).sum(), x, create_graph=True)
        return (first, *torch.autograd.grad(first.pow(2).sum(), (x, y), allow_unused=True))

    check(run, leaf(3, 4), leaf(4, 5), atol=2e-4, rtol=2e-4)


def test_transforms_of_torch_func():
    from torch.func import grad, hessian, jacrev, jvp, vjp, vmap

    def f(x):
        return (x.sin() * x).sum()

    def run(x):
        x = x.detach()
        return (
            grad(f)(x),
            vmap(grad(f))(x),
            jacrev(torch.tanh)(x),
            hessian(f)(x[0]),
            jvp(torch.tanh, (x,), (x.cos(),))[1],
            vjp(torch.tanh, x)[1](x)[0],
            vmap(lambda row: row @ x.t())(x),
        )

    check(run, leaf(3, 4), atol=1e-5, rtol=1e-5)


def test_functional_call_and_per_sample_gradients():
    from torch.func import functional_call, grad, vmap

    def run(x):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        parameters = {k: v.detach().to(x.device) for k, v in model.named_parameters()}
        model = model.to(x.device)

        def loss(parameters, row):
            return functional_call(model, parameters, (row[None],)).pow(2).sum()

        each = vmap(grad(loss), in_dims=(None, 0))(parameters, x.detach())
        return list(each.values())

    check(run, leaf(5, 4), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_repeats_the_same_dropout(reentrant):
    def run(x):
        def block(x):
            return F.dropout(x.tanh(), 0.5) * x

        y = checkpoint(block, x, use_reentrant=reentrant)
        y.sum().backward()
        # Where the output is zero by dropout the gradient is zero as well.
        return ((y == 0) == (x.grad == 0)).all()

    _, (same,) = on_both(run, leaf(64, 8))
    assert same


def test_custom_functions():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g

    def run(x):
        Cube.apply(x).sum().backward()
        return x.grad

    check(run, leaf(3))


def test_numbers_of_a_step_travel_together():
    """However many numbers a step has: one array of floats and one of integers, no new program."""
    x = torch.ones(4, device="xla")
    torch_xla.sync()

    def step(i):
        y = x
        for k in range(20):
            y = y * (1 + 0.01 * i) + k * i
        torch_xla.sync()
        return y

    step(1), step(2)
    compiled = met.counter_value("UncachedCompile")
    sent = (met.metric_data("TransferToDeviceTime") or (0,))[0]
    runs = met.metric_data("ExecuteTime")[0]
    results = [step(i) for i in range(3, 8)]
    assert met.counter_value("UncachedCompile") == compiled
    assert met.metric_data("ExecuteTime")[0] == runs + 5
    assert (met.metric_data("TransferToDeviceTime") or (0,))[
        0
    ] == sent  # nothing but the two arrays
    expected = torch.ones(4)
    for k in range(20):
        expected = expected * (1 + 0.01 * 7) + k * 7
    close(results[-1].cpu(), expected)


VIEWS = {
    "expand": lambda x: x.expand(2, 3, 4),
    "permute": lambda x: x.permute(2, 0, 1),
    "select": lambda x: x.select(1, -1),
    "slice": lambda x: x[:, 1:],
    "slice to the end": lambda x: x[:, :, ::2],
    "transpose": lambda x: x.transpose(0, -1),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "view": lambda x: x.view(-1, 2),
    "view of a view": lambda x: x.transpose(0, 1).unsqueeze(0)[:, 1:].expand(1, 2, 1, 4),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_made_without_gradient(view):
    """They join the graph when a gradient comes later, by a write into the base or into a view."""

    def written_base(weight):
        base = torch.arange(12.0).to(weight.device).view(1, 3, 4)
        earlier = view(base)
        base.mul_(weight)
        assert earlier.requires_grad and earlier.grad_fn is not None
        (earlier * earlier).sum().backward()
        return weight.grad, earlier

    def written_view(weight):
        base = torch.arange(12.0).to(weight.device).view(1, 3, 4)
        earlier = view(base)
        if earlier.stride(0) != 0:
            earlier.mul_(weight.sum())
        return *torch.autograd.grad((base * weight).sum(), weight), base

    def forward_mode(weight):
        def primal_to_out(w):
            return view(w.mul(2))

        return torch.func.jvp(primal_to_out, (weight,), (torch.ones_like(weight),))

    weight = torch.rand(1, 3, 4, generator=torch.Generator().manual_seed(1))
    check(written_base, weight.requires_grad_())
    check(written_view, weight)
    check(forward_mode, weight.detach())


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_remember_the_mode_in_which_they_were_made(view):
    x = torch.zeros(1, 3, 4, device="xla", requires_grad=True)
    with torch.no_grad():
        made = view(x)
    if made.stride(0) != 0:
        with pytest.raises(RuntimeError, match="no_grad mode"):
            made.mul_(x.sum())
    with torch.inference_mode():
        inner = view(torch.zeros(1, 3, 4, device="xla"))
        assert inner.is_inference() and not view(x).is_inference()
    assert view(x)._is_view() and view(x)._base is x


def test_views_are_replayed_with_other_numbers():
    """As tracing does: the sizes that a view keeps can be read and replaced."""
    x, other = torch.arange(12.0, device="xla"), torch.zeros(20, device="xla")
    assert x.view(3, 4)._view_func_unsafe(other, lambda n: 5 if n == 3 else n).shape == (5, 4)
    assert x[2:8]._view_func_unsafe(other, lambda n: 12 if n == 8 else n).shape == (10,)
    assert x.view(3, 4)[1]._view_func(torch.ones(12, device="xla")).cpu().tolist() == [1.0] * 4
