"""Training that is split among eight devices gives PyTorch's losses, gradients and parameters.

All in float64, so that what differs is wrong: 1e-9 of the largest value of each tensor.

Units: _src/patches/loaded_state, _src/patches/clip_grad.
"""

from __future__ import annotations

import pytest

from .test_sharding import runner
from .training import MESHES

PRELUDE = """
import torch_xla.runtime as xr
xr.use_spmd()
import copy, functools, io
import torch.utils.checkpoint
import torch_xla.utils.checkpoint
from tests.spmd.training import *
from torch_xla.distributed.fsdp import checkpoint_module
from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2)

torch.set_default_dtype(torch.float64)
spec = torch_xla._XLAC._get_xla_sharding_spec

def fully_sharded(model, mesh):
    "FSDPv2 over what is split along the axis 'model', if the mesh has one."
    model.to("xla")
    for name, p in model.named_parameters():
        for part, axes in model.specs.items():
            if part in name and p.dim() == 2 and "model" in mesh.axis_names:
                xs.mark_sharding(p, mesh, tuple(axis or "fsdp" for axis in axes))
    extra = "data" if "data" in mesh.axis_names else None
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return FSDPv2(model, mesh, auto_wrap_policy=policy, extra_data_axis=extra)

def two(kind, mesh, **options):
    "A model on the CPU, and split; and the mesh."
    plain, mesh = build(kind, **options), mesh_of(mesh)
    return plain, split_parameters(copy.deepcopy(plain), mesh), mesh
"""


@pytest.fixture
def run(run_python):
    """Runs code in an SPMD process of eight devices, with the models of training.py."""
    return runner(run_python, PRELUDE, timeout=800)


def meshes(*parts: str) -> list[str]:
    return [mesh for mesh in MESHES if any(part in mesh.split() for part in parts)]


def test_a_wrong_value_is_seen(run):
    run("""
    import pytest
    plain, model, mesh = two("experts", "data model")
    with torch.no_grad():
        model.up.view(-1)[7] *= 1 + 1e-6
    with pytest.raises(AssertionError, match="loss 0.0|gradient 0 up"):
        compare(train(model, "sgd", mesh), train(plain, "sgd"))
    """)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cnn", "transformer", "lstm", "experts"])
@pytest.mark.parametrize("optimizer, batch", [("sgd", 8), ("sgd", 6), ("adamw", 8)])
def test_models_on_meshes(run, kind, optimizer, batch):
    axes = ("data", "model", "expert") if kind == "experts" else ("data", "model")
    run(
        """
    for mesh in meshes:
        if kind == "experts" or "expert" not in mesh:
            check(kind, mesh, optimizer, batch=batch)
    """,
        kind=kind,
        meshes=meshes(*axes),
        optimizer=optimizer,
        batch=batch,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cnn", "transformer", "lstm", "experts"])
def test_fsdpv2_of_models(run, kind):
    run(
        """
    model = check(kind, "fsdp", "adamw", wrap=fully_sharded)
    assert all("devices=" in spec(p) for p in model.parameters() if max(p.shape) >= 16)
    check(kind, "fsdp", "sgd", wrap=fully_sharded, batch=6)
    """,
        kind=kind,
    )


@pytest.mark.slow
@pytest.mark.parametrize("batch", [8, 6, 16])
def test_fsdpv2_with_tensor_and_data_parallelism(run, batch):
    run(
        """
    model = check("transformer", "fsdp data model", "adamw", wrap=fully_sharded, batch=batch)
    assert spec(model.layers[0].qkv.weight).startswith("{devices=[2,2,2]")
    """,
        batch=batch,
    )


@pytest.mark.slow
def test_gradients_are_accumulated(run):
    run("""
    for kind in ("transformer", "cnn"):
        check(kind, "data model", "sgd", accumulated=3)
    """)


@pytest.mark.slow
def test_gradients_are_clipped(run):
    run("""
    def clip(**how):
        return lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, **how)
    check("transformer", "data model", "sgd", after_backward=clip())
    check("cnn", "model data", "adamw", after_backward=clip(foreach=False))
    check("experts", "data expert", "sgd", after_backward=clip(norm_type=float("inf")))
    value = lambda model: torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
    check("transformer", "fsdp data model", "sgd", wrap=fully_sharded, after_backward=value)
    """)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["torch", "torch_xla"])
def test_activations_are_computed_again(run, module):
    run(
        """
    checkpoint = globals()[module].utils.checkpoint.checkpoint
    for reentrant in (False, True):
        again = lambda layer, x: checkpoint(layer, x, use_reentrant=reentrant)
        plain, model, mesh = two("transformer", "data model")
        model.run = again
        compare(train(model, "sgd", mesh), train(plain, "sgd"))
    """,
        module=module,
    )


@pytest.mark.slow
def test_dropout_is_that_of_one_device(run):
    run("""
    plainly = lambda layer, x: layer(x)
    again = lambda layer, x: torch_xla.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    found = []
    for how in (plainly, again):
        plain, model, mesh = two("transformer", "data model", dropout=0.3, run=how)
        for each, over in ((plain.to("xla"), None), (model, mesh)):
            torch_xla.manual_seed(7)
            found.append(train(each, "sgd", over))
    for other in found[1:]:
        compare(other, found[0])
    torch_xla.manual_seed(8)
    different = train(build("transformer", dropout=0.3).to("xla"), "sgd")
    assert different["loss 0.0"] != found[0]["loss 0.0"]
    """)


@pytest.mark.slow
def test_autocast(run):
    run("""
    torch.set_default_dtype(torch.float32)
    def loss(model, batch, step, device, split):
        with torch.autocast(device, dtype=torch.bfloat16):
            return model.loss(batch, step, device, split)
    plain, model, mesh = two("transformer", "data model")
    got, want = train(model, "sgd", mesh, loss_of=loss), train(plain, "sgd", loss_of=loss)
    compare(got, want, rtol=0.05, atol=1e-3)  # bfloat16 has 8 bits
    """)


@pytest.mark.slow
def test_gradients_are_read_between(run):
    run("""
    def read(model):
        for p in model.parameters():
            assert str(p.grad).startswith("tensor(")
            p.grad.norm().item()
    check("transformer", "data model", "sgd", after_backward=read)
    check("cnn", "data model", "sgd", after_backward=lambda m: (torch_xla.sync(), read(m)))
    check("experts", "data model expert", "sgd", after_backward=read)
    """)


@pytest.mark.slow
def test_averaged_models(run):
    run("""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
    def averaged(model, mesh=None):
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)
        found = train(model, "sgd", mesh, after_backward=average.update_parameters)
        if mesh is not None:
            for (name, p), q in zip(model.named_parameters(), average.module.parameters()):
                assert "devices=" in spec(p) or spec(p) in ("", "{replicated}")
                assert spec(q) == spec(p), name
        state = average.state_dict().items()
        return {**found, **{f"average {name}": value.detach().cpu() for name, value in state}}
    for kind in ("transformer", "cnn"):
        plain, model, mesh = two(kind, "data model")
        compare(averaged(model, mesh), averaged(plain))
    """)


@pytest.mark.slow
def test_evaluation_after_training(run):
    run("""
    for kind in ("cnn", "transformer"):
        plain, model, mesh = two(kind, "data model")
        for _ in range(2):
            compare(train(model.train(), "sgd", mesh), train(plain.train(), "sgd"))
            with torch.no_grad():
                for batch in (8, 3):
                    got = model.eval().loss(batch, 99, "xla", batch_splitter(mesh)).cpu()
                    want = plain.eval().loss(batch, 99, "cpu", lambda t: t)
                    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)
    """)


@pytest.mark.slow
def test_state_is_loaded_into_another_sharding(run):
    run("""
    def steps(model, optimizer, mesh, seeds):
        device = next(model.parameters()).device.type
        for seed in seeds:
            optimizer.zero_grad()
            model.loss(8, seed, device, batch_splitter(mesh)).backward()
            optimizer.step()
            torch_xla.sync()

    for kind in ("transformer", "cnn"):
        plain, model, mesh = two(kind, "data model")
        ours, theirs = (OPTIMIZERS["adamw"](m.parameters()) for m in (model, plain))
        steps(model, ours, mesh, range(2))
        steps(plain, theirs, None, range(2))
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": ours.state_dict()}, file)
        steps(plain, theirs, None, range(2, 4))
        for where in ("cpu", None):  # tensors are saved with their device
            file.seek(0)
            saved = torch.load(file, map_location=where)
            other = mesh_of("model data")
            loaded = split_parameters(build(kind), other)
            specs = [spec(p) for p in loaded.parameters()]
            loaded.load_state_dict(saved["model"])
            optimizer = OPTIMIZERS["adamw"](loaded.parameters())
            optimizer.load_state_dict(saved["optimizer"])
            for seeds in ((), range(2, 4)):
                steps(loaded, optimizer, other, seeds)
                for p, text in zip(loaded.parameters(), specs, strict=True):
                    if text != "":
                        assert spec(p) == text
                        state = optimizer.state[p]
                        assert spec(state["exp_avg"]) == spec(state["exp_avg_sq"]) == text
            values = {name: value.cpu() for name, value in loaded.state_dict().items()}
            compare(values, plain.state_dict())
    """)


def test_loaded_state_is_sent_in_parts(run):
    run("""
    import torch_xla.debug.metrics as met
    def sent():
        data = met.metric_data("OutboundData")
        return 0 if data is None else data[1]
    mesh = mesh_of("data")
    value = torch.randn(512, 64)
    p = torch.nn.Parameter(value.to("xla"))
    xs.mark_sharding(p, mesh, ("data", None))
    host = torch.optim.Adam([torch.nn.Parameter(value.clone())])
    host.param_groups[0]["params"][0].grad = value
    host.step()
    state = host.state_dict()
    before = sent()
    optimizer = torch.optim.Adam([p])
    optimizer.load_state_dict(state)
    p.grad = torch.ones_like(p)
    optimizer.step()
    torch_xla.sync(wait=True)
    assert 0 <= sent() - before - 2 * value.nbytes < 1000, sent() - before
    moments = optimizer.state[p]
    assert spec(moments["exp_avg"]) == spec(p) == spec(moments["exp_avg_sq"])
    # State of another optimizer, split otherwise, stays as it is there.
    other = torch.nn.Parameter(value.to("xla"))
    xs.mark_sharding(other, mesh, (None, "data"))
    again = torch.optim.Adam([other])
    again.load_state_dict(optimizer.state_dict())
    assert spec(again.state[other]["exp_avg"]) == spec(other) != spec(p) == spec(moments["exp_avg"])
    torch.testing.assert_close(again.state[other]["exp_avg"].cpu(), moments["exp_avg"].cpu())
    """)


@pytest.mark.slow
def test_caches_of_keys_and_values(run):
    run("""
    mesh = mesh_of("data model")
    weight, start = torch.randn(16, 48), torch.randn(4, 16)

    def decode(device, axes=None):
        keys, values = (torch.zeros(4, 4, 10, 4).to(device) for _ in range(2))
        w, x = weight.to(device), start.to(device)
        if axes is not None:
            for cache in (keys, values):
                xs.mark_sharding(cache, mesh, axes)
            xs.mark_sharding(w, mesh, (None, "model"))
        outputs = []
        for i in range(6):
            q, k, v = (x @ w).view(4, 3, 4, 4).unbind(1)
            place = torch.tensor([i], device=device)
            if i % 2:
                keys.index_copy_(2, place, k[:, :, None])
                values.index_copy_(2, place, v[:, :, None])
            else:
                keys[:, :, place] = k[:, :, None]
                values[:, :, i] = v
            seen = torch.arange(10, device=device) <= place
            y = F.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=seen[None])
            x = y.reshape(4, 16).tanh()
            outputs.append(x)
            if axes is not None:
                torch_xla.sync()
                assert "devices=" in spec(keys) and spec(keys) == spec(values)
        return [t.cpu() for t in (*outputs, keys, values)]

    want = decode("cpu")
    for axes in [("data", "model", None, None), ("data", None, "model", None),
                 (None, "data", None, "model"), (None, None, ("data", "model"), None)]:
        torch.testing.assert_close(decode("xla", axes), want, rtol=1e-9, atol=1e-11)
    """)


@pytest.mark.slow
def test_writes_to_views(run):
    run("""
    mesh = mesh_of("data model")

    def write(t):
        at = lambda *values: torch.tensor(values, device=t.device)
        t[1:5].add_(1)
        t.t()[2].mul_(3)
        t.view(-1)[10:50:3].zero_()
        t.narrow(1, 1, 3).copy_(t.narrow(1, 3, 3).clone())
        t.diagonal().fill_(7)
        t.unfold(0, 2, 3).mul_(2)
        t[t > 5] = -1
        t.select(0, 3).index_add_(0, at(1, 1, 2), torch.ones(3, device=t.device))
        t.flip(0)[0] = 9
        t.chunk(3, 1)[1].sub_(2)
        t.masked_fill_(t < -2, 5)
        t[..., None].squeeze(-1)[:, ::2] *= 2
        t[[0, 3, 3], [1, 2, 2]] = 4.0
        t.scatter_(1, torch.zeros(len(t), 1, dtype=torch.long, device=t.device), 8.0)
        torch.as_strided(t, (3, 3), (9, 2), 1).add_(1)

    for shape in [(8, 8), (12, 10), (7, 9), (16, 6)]:
        value = torch.randn(shape)
        want = value.clone()
        write(want)
        for axes in [("data", "model"), ("model", "data"), (("data", "model"), None),
                     (None, "data")]:
            for computed in (False, True):
                t = value.to("xla")
                xs.mark_sharding(t, mesh, axes)
                text = spec(t)
                if computed:
                    t.add_(0)
                    torch_xla.sync()
                write(t)
                torch_xla.sync()
                assert spec(t) == text
                torch.testing.assert_close(t.cpu(), want, msg=f"{shape}, {axes}")
    """)
