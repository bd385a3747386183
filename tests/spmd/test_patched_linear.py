"""Linear layers that keep batch and sequence apart, backward barriers, and `shard_as`."""

from __future__ import annotations

import textwrap

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.distributed.spmd as xs
from torch_xla.distributed.fsdp import utils
from torch_xla.distributed.spmd import xla_sharding

from .test_sharding import EIGHT, PRELUDE


@pytest.fixture
def run(run_python):
    """Runs code in an SPMD process of eight devices."""
    return lambda code: run_python(PRELUDE + textwrap.dedent(code), env=EIGHT)


def gradients(layer: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    y = layer(x)
    given = [x, *layer.parameters()]
    first = torch.autograd.grad((y * y.conj()).real.sum(), given, create_graph=True)
    second = torch.autograd.grad(sum((g * g.conj()).real.sum() for g in first), given)
    return [y, *first, *second]


PATCHES = [xs.apply_xla_patch_to_nn_linear, utils.apply_xla_patch_to_nn_linear]


@pytest.mark.parametrize("patch", PATCHES)
@pytest.mark.parametrize("device", ["cpu", "xla"])
@pytest.mark.parametrize("sizes", [(6,), (5, 6), (2, 3, 6), (2, 3, 4, 6), (0, 6), (2, 0, 6)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_values_and_two_gradients(patch, device, sizes, dtype):
    for bias in (True, False):
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(6, 8, bias=bias, dtype=dtype))
        patched = nn.Sequential(nn.Linear(6, 8, bias=bias, dtype=dtype))
        patched.load_state_dict(plain.state_dict())
        names = [name for name, _ in patched.named_parameters()]
        assert patch(patched) is patched
        assert [name for name, _ in patched.named_parameters()] == names
        x = torch.randn(sizes, dtype=dtype)
        got = gradients(patched.to(device), x.to(device))
        for mine, want in zip(got, gradients(plain, x), strict=True):
            torch.testing.assert_close(mine.cpu(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, False)])
def test_its_gradients_by_hand(wanted):
    x, w, b, g = (torch.randn(s) for s in ((2, 3, 6), (8, 6), (8,), (2, 3, 8)))
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    y = nn.functional.linear(*leaves)
    expected = torch.autograd.grad(y, leaves, g)
    given = [t.to("xla") for t in (g, x, w, b)]
    made = xla_sharding._einsum_linear_backward_operation(*given, *wanted)
    fake = xla_sharding._einsum_linear_backward_fake(*(t.to("meta") for t in given), *wanted)
    for mine, shape, want, is_wanted in zip(made, fake, expected, wanted, strict=True):
        if is_wanted:
            torch.testing.assert_close(mine.cpu(), want, rtol=1e-4, atol=1e-4)
            assert shape.device.type == "meta" and shape.shape == want.shape
        else:
            assert mine is None and shape is None
    meta = xla_sharding._einsum_linear_forward_fake(*(t.to("meta") for t in (x, w, b)))
    assert meta.shape == y.shape


def test_batch_and_sequence_stay_apart():
    def text(layer):
        x = torch.randn(4, 8, 6, device="xla").requires_grad_()
        grads = torch.autograd.grad(layer(x).sin().sum(), [x, *layer.parameters()])
        return torch_xla._XLAC._get_stablehlo(list(grads))

    layer = xs.apply_xla_patch_to_nn_linear(nn.Linear(6, 16)).to("xla")
    assert "tensor<4x8x16x" in text(layer) and "tensor<32x" not in text(layer)


def test_what_is_patched():
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    model = nn.ModuleDict({"own": Own(4, 4), "plain": nn.Linear(4, 4)})
    weight = model["plain"].weight
    xs.apply_xla_patch_to_nn_linear(model)
    assert type(model["own"]) is Own and type(model["plain"]) is xla_sharding.EinsumLinear
    assert model["plain"].weight is weight
    assert type(xs.apply_xla_patch_to_nn_linear(nn.Linear(2, 2))) is xla_sharding.EinsumLinear

    def twice(layer, x):
        return 2 * nn.functional.linear(x, layer.weight, layer.bias)

    x, layer = torch.randn(3, 4), nn.Linear(4, 4)
    want = 2 * layer(x)
    torch.testing.assert_close(utils.apply_xla_patch_to_nn_linear(layer, twice)(x), want)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_under_autocast(device):
    plain, patched = nn.Linear(6, 8), nn.Linear(6, 8)
    patched.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 6)
    results = []
    for layer, on in ((plain, "cpu"), (xs.apply_xla_patch_to_nn_linear(patched), device)):
        layer.to(on)
        with torch.autocast(on, torch.bfloat16):
            y = layer(x.to(on))
        assert y.dtype == torch.bfloat16
        y.float().square().sum().backward()
        results.append([y, layer.weight.grad, layer.bias.grad])
    for want, got in zip(*results, strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got.cpu(), want, rtol=3e-2, atol=3e-2)


def test_split_layers_send_no_activations(run):
    run("""
    from torch_xla.distributed.spmd.debugging import collectives
    torch.manual_seed(1)
    host = torch.randn(8, 16, 24)

    plain, layer = nn.Linear(24, 40), nn.Linear(24, 40)
    layer.load_state_dict(plain.state_dict())
    xs.apply_xla_patch_to_nn_linear(layer.to(device))
    x = host.to(device).requires_grad_()
    xs.mark_sharding(x, mesh, ("data", "model", None))
    y = layer(x)
    xs.mark_sharding(y, mesh, ("data", "model", None))
    y.sin().sum().backward()
    torch_xla.sync()
    # Without the patch 5120 and 3072 bytes are gathered for the product of the gradient and input.
    assert {kind for kind, _ in collectives()} == {"all-reduce"}, collectives()
    want = host.clone().requires_grad_()
    plain(want).sin().sum().backward()
    torch.testing.assert_close(x.grad.cpu(), want.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.weight.grad.cpu(), plain.weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.bias.grad.cpu(), plain.bias.grad, rtol=1e-4, atol=1e-4)
    """)


def test_a_barrier_behind_backward():
    def build():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh())

    plain, model = build(), build()
    for layer in model:
        xs.apply_backward_optimization_barrier(layer)
    x = torch.randn(5, 4)
    for _ in range(2):  # gradients are there before the second backward pass
        plain(x).sum().backward()
        model(x).sum().backward()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    model.to("xla")
    model.zero_grad()
    plain.zero_grad()
    on_xla = x.to("xla").requires_grad_()
    for _ in range(2):
        plain(x).sum().backward()
        model(on_xla).sum().backward()
    text = torch_xla._XLAC._get_stablehlo([p.grad for p in model.parameters()])
    assert text.count("optimization_barrier") == 8
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad)


def test_shard_as(run):
    run("""
    import pytest
    a, b = torch.randn(8, 16), torch.randn(8, 16)

    def pair(first, second):
        x, y = a.to(device).requires_grad_(), b.to(device).requires_grad_()
        for t, partition in ((x, first), (y, second)):
            if partition is not None:
                xs.mark_sharding(t, mesh, partition)
        return x, y

    rows, columns = ("data", None), (None, "model")
    for first, second, text in [
        (rows, None, "{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"),
        (None, columns, "{devices=[1,2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}"),
        (rows, columns, "{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"),
        (rows, rows, "{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"),
    ]:
        x, y = pair(first, second)
        u, v = xs.shard_as(x, y)
        assert spec(u) == spec(v) == text, (first, second)
        (u * v).sum().backward()
        torch.testing.assert_close(x.grad.cpu(), b)
        torch.testing.assert_close(y.grad.cpu(), a)
        assert spec(x.grad) == spec(y.grad) == text or first != second
    x, y = pair(None, None)
    u, v = xs.shard_as(x, y)
    assert u is x and v is y
    x, y = pair(rows, None)
    left, right = xs.shard_as({"t": [x, 3]}, {"t": [xs.wrap_as_sharded_tensor(y), None]})
    assert left == {"t": [x, 3]} and right["t"][1] is None
    assert spec(right["t"][0]) == spec(x)
    assert xs.shard_as([], []) == ([], [])
    with pytest.raises(ValueError, match="equal nests"):
        xs.shard_as([x], (y,))
    with pytest.raises(ValueError, match="the same sizes"):
        xs.shard_as(x, y[:4])
    """)


def test_dummy_collectives():
    t = torch.arange(6.0).reshape(2, 3)
    torch.testing.assert_close(utils.dummy_all_gather(t), t)
    torch.testing.assert_close(utils.dummy_all_gather(t, 1, [[0, 1]]), torch.cat([t, t], 1))
    torch.testing.assert_close(utils.dummy_all_reduce("sum", t, 0.5), t / 2)
    u = t.clone()
    assert utils.dummy_all_reduce("sum", [u], 2.0) is None
    torch.testing.assert_close(u, 2 * t)
    parts: list[torch.Tensor] = []
    scatter = utils.DummyReduceScatter(2)
    scatter(t, parts.append)
    scatter.flush()
    torch.testing.assert_close(parts, [t[:1]])
    with pytest.raises(ValueError, match="divides by 2"):
        scatter(torch.zeros(3), parts.append)
