"""Parts of scan, scan_layers, gradient_accumulation, assume_pure and gru that programs build on."""

from __future__ import annotations

import copy
import io
import logging
import os

import pytest
import torch
from torch import nn

import torch_xla.core.xla_builder as xb
import torch_xla.core.xla_op_registry as xor
from torch_xla import _XLAC
from torch_xla._src.old_names import gru as old_gru
from torch_xla.experimental import assume_pure, gradient_accumulation, gru, scan, scan_layers
from torch_xla.experimental.gru import GRU
from torch_xla.utils import checkpoint, serialization


def close(found, expected):
    assert found.device.type == "xla"
    torch.testing.assert_close(found.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [scan.Builder, gradient_accumulation.XlaBuildHelper])
def test_parameters_of_tensors(make):
    builder, tensors = make("b"), [torch.ones(2, 3), torch.ones((), dtype=torch.int64)]
    assert [builder.add_param(t) for t in tensors] == [0, 1]
    params, given, count = (
        value() if callable(value) else value
        for value in (builder.params, builder.param_tensors, builder.num_params)
    )
    assert count == 2 and given[1] is tensors[1] and params[0].shape().sizes == (2, 3)
    root = params[0] + params[1].cast("f32")
    total = xb.xla_computation_as_func(root.build("total"))
    close(total(*(t.to("xla") for t in tensors)), torch.full((2, 3), 2.0))


def test_rows():
    xs, row = torch.arange(12.0).view(3, 4), torch.full((4,), -1.0)
    take = xor.register("take", scan.dynamic_slice)
    put = xor.register("put", scan.dynamic_update_slice)
    for i in range(3):
        index = torch.tensor(i).to("xla")
        close(take(xs.to("xla"), index), xs[i])
        expected = xs.clone()
        expected[i] = row
        close(put(xs.to("xla"), row.to("xla"), index), expected)


def test_trees_are_saved_for_backward():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            scan._save_for_backward(ctx, {"x": x, "scale": scale, "none": None})
            return x * x * scale

        @staticmethod
        def backward(ctx, gradient):
            saved = scan._load_from_context(ctx)
            assert saved["none"] is None
            return 2 * saved["x"] * saved["scale"] * gradient, None

    x = torch.tensor([1.0, 2.0], device="xla", requires_grad=True)
    Scaled.apply(x, 3).sum().backward()
    close(x.grad, torch.tensor([6.0, 12.0]))


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_without_gradients(reverse):
    init, xs = torch.zeros(2), torch.arange(6.0).view(3, 2)

    def step(carry, x):
        carry = {"sum": carry["sum"] * 0.5 + x["x"]}
        return carry, (None, carry["sum"] * 2)

    expected, ys = {"sum": init}, [None] * 3
    for i in reversed(range(3)) if reverse else range(3):
        expected, (_, ys[i]) = step(expected, {"x": xs[i]})
    carry, (nothing, found) = scan._scan_impl_pytree(
        step, {"sum": init.to("xla")}, {"x": xs.to("xla")}, reverse
    )
    close(carry["sum"], expected["sum"])
    close(found, torch.stack(ys))
    assert nothing is None
    (flat,), (rows,) = scan._scan_impl_flat(
        lambda c, x: ([c[0] * 0.5 + x[0]], [c[0]]), [init.to("xla")], [xs.to("xla")], reverse
    )
    close(flat, expected["sum"])
    assert rows.shape == (3, 2)


def test_layers():
    layers = [nn.BatchNorm1d(3).to("xla") for _ in range(2)]
    weights, buffers = scan_layers._extract_weights_and_buffers(layers[0])
    assert list(weights) == ["weight", "bias"] and "running_mean" in buffers
    scan_layers._ensure_same_structure([weights, dict(layers[1].named_parameters())])
    with pytest.raises(ValueError, match="layer 1, which differs in bias, running_mean"):
        one = {"weight": weights["weight"]}
        scan_layers._ensure_same_structure([one, {**one, "bias": 0, "running_mean": 0}])
    layer = nn.Linear(3, 3).to("xla")
    make = scan_layers._create_or_get_cached_one_layer_fn
    one = make(layer, scan.default_partition, True)
    assert make(layer, scan.default_partition, True) is one
    assert (id(scan.default_partition), id(layer)) in scan_layers._ONE_LAYER_CACHE
    x = torch.randn(2, 3).to("xla")
    tensors = [torch.zeros(3, 3).to("xla"), torch.ones(3).to("xla")]
    close(one(x, tensors)[0], torch.ones(2, 3))


def test_accumulation_in_parts():
    module = gradient_accumulation
    layer = nn.Linear(3, 1)
    on_xla = nn.Linear(3, 1).to("xla")
    on_xla.load_state_dict(layer.state_dict())
    batches = torch.randn(4, 2, 3)
    assert torch.equal(module._make_init_grad(layer.weight), torch.zeros(1, 3))
    loss = module._gradient_accumulation(
        4, lambda x: on_xla(x).square().mean(), (batches.to("xla"),), on_xla, ()
    )
    expected = torch.stack([layer(x).square().mean() for x in batches]).mean()
    expected.backward()
    close(loss, expected)
    close(on_xla.weight.grad, layer.weight.grad)
    assert module._make_init_grad(layer.weight) is layer.weight.grad
    context = module.GradientAccumulationContext(4, 1, 1)
    total, (last,) = module._gradient_accumulation_impl(
        context,
        lambda rows, carried: (on_xla(rows[0]).sum() * 0, [carried[0] + 1]),
        [batches.to("xla")],
        list(on_xla.parameters()),
        [torch.zeros(()).to("xla")],
    )
    assert last.item() == 4 and total.item() == 0


def test_pure_parts():
    layer = nn.BatchNorm1d(3).eval()
    params = {name: p * 2 for name, p in layer.named_parameters()}
    buffers = {name: b + 1 for name, b in layer.named_buffers()}
    x = torch.randn(4, 3)
    expected = torch.func.functional_call(layer, {**params, **buffers}, (x,))
    assert torch.equal(assume_pure._pure_forward(layer, params, buffers, (x,), {}), expected)
    fake = assume_pure.make_fake_inputs(torch.ones(2, 3, requires_grad=True))
    assert _XLAC._is_placecholder(fake) and fake.shape == (2, 3) and fake.requires_grad
    assert assume_pure.make_fake_inputs("text") == "text"


def test_gradients_by_jax():
    jax = pytest.importorskip("jax")

    def function(x, weights, scale=1.0):
        return {"y": jax.numpy.tanh(x @ weights["w"]) * scale, "n": x.shape[0] * weights["i"]}

    x, w, i = torch.randn(2, 3), torch.randn(3, 4), torch.tensor(3)
    ours = assume_pure.j2t_autograd(function)
    for scale in (2.0, 3.0):
        leaves = [t.to("xla").requires_grad_() for t in (x, w)]
        found = ours(leaves[0], {"w": leaves[1], "i": i.to("xla")}, scale=scale)
        theirs = [t.clone().requires_grad_() for t in (x, w)]
        expected = (theirs[0] @ theirs[1]).tanh() * scale
        close(found["y"], expected)
        assert found["n"].item() == 6
        found["y"].square().sum().backward()
        expected.square().sum().backward()
        for a, b in zip(leaves, theirs, strict=True):
            close(a.grad, b.grad)


def test_a_step_of_a_gru():
    cell = nn.GRUCell(3, 4)
    x, h = torch.randn(2, 3), torch.randn(2, 4)
    carry = (h, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    following, state = gru._gru_step_fn(tuple(t.to("xla") for t in carry), x.to("xla"))
    close(state, cell(x, h))
    assert following[0] is state


def test_a_checkpoint_says_when_it_computes_again():
    seen = []

    def function(x):
        seen.append(checkpoint.chkpt_status.in_chkpt_bwd)
        return x.sin()

    x = torch.ones(2, device="xla", requires_grad=True)
    checkpoint.checkpoint(function, x).sum().backward()
    assert seen == [False, True] and not checkpoint.chkpt_status.in_chkpt_bwd
    assert not checkpoint.CheckpointStatus().in_chkpt_bwd


def test_saves_of_earlier_versions(tmp_path):
    path = tmp_path / "saved"
    data = {"a": torch.arange(3, device="xla"), "b": [torch.ones(2), "text"]}
    structure = serialization._rewrite_data(path, data, True)
    torch.save(structure, path)
    assert os.path.exists(serialization._get_tensor_file(path, 1))
    assert serialization._get_tensors_folder(path) == f"{path}.tensors"
    loaded = serialization.load(path)
    assert loaded["a"].tolist() == [0, 1, 2] and loaded["b"][1] == "text"


def test_the_original_is_kept():
    assert nn.GRU is GRU and issubclass(GRU, nn.GRU._orig)
    assert nn.GRU._orig.__module__ == "torch.nn.modules.rnn"
    made = nn.GRU(3, 4)
    assert type(made) is GRU and isinstance(made, nn.RNNBase) and repr(made) == "GRU(3, 4)"


def test_it_is_put_there_once():
    original = nn.GRU._orig
    old_gru.install()
    assert nn.GRU is GRU and nn.GRU._orig is original


def test_two_directions_are_the_originals(caplog):
    with caplog.at_level(logging.WARNING):
        made = nn.GRU(3, 4, bidirectional=True)
    assert type(made) is nn.GRU._orig and made.bidirectional
    assert "bidirectional" in caplog.text
    caplog.clear()
    assert type(nn.GRU(3, 4, bidirectional=False)) is GRU and not caplog.text


def test_values_copies_and_files():
    torch.manual_seed(0)
    x = torch.randn(5, 2, 3)
    gru = nn.GRU(3, 4, num_layers=2, batch_first=True)
    original = nn.GRU._orig(3, 4, num_layers=2, batch_first=True)
    original.load_state_dict(gru.state_dict())
    wanted = original(x)
    file = io.BytesIO()
    torch.save(gru, file)
    file.seek(0)
    for module in (gru, copy.deepcopy(gru), torch.load(file, weights_only=False)):
        found = module.to("xla")(x.to("xla"))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-6)
