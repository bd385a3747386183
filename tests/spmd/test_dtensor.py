"""PyTorch's DTensor, tensor parallelism and FSDP2 on an xla mesh of eight devices.

Units: _src/processes/device_mesh, _src/patches/dtensor_calls.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from .test_sharding import EIGHT, PRELUDE

DTENSOR = """
import copy, io, itertools, pickle
import pytest
import torch.nn.functional as F
import torch.distributed.tensor as dt
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy, DataParallelMeshDims, FSDPModule, MixedPrecisionPolicy, fully_shard,
    register_fsdp_forward_method)
from torch.distributed.tensor import (
    DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor)
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, PrepareModuleInputOutput, PrepareModuleOutput,
    RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module)
from torch.testing._internal.distributed._tensor.common_dtensor import (
    MLPModule, ModelArgs, Transformer)
from torch_xla.distributed.spmd.placements import ByCompiler

flat = init_device_mesh("xla", (8,))
grid = init_device_mesh("xla", (4, 2), mesh_dim_names=("dp", "tp"))
dp, tp = grid["dp"], grid["tp"]

def close(got, want, **tolerance):
    got = got.full_tensor() if isinstance(got, DTensor) else got
    torch.testing.assert_close(got.detach().cpu(), want.detach(), **tolerance)

def close_gradients(model, plain, **tolerance):
    for (name, p), q in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        close(p.grad, q[1].grad, **tolerance, msg=name)

class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, g):
        return g * 3
"""


@pytest.fixture
def run(run_python):
    """Runs code in an SPMD process of eight devices."""

    def run(code, **names):
        given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
        return run_python(given + PRELUDE + DTENSOR + textwrap.dedent(code), env=EIGHT)

    return run


def test_the_examples_of_the_documents(run):
    page = (Path(__file__).parents[2] / "docs" / "spmd.md").read_text()
    (example,) = (
        c for c in re.findall(r"```python\n(.*?)```", page, re.S) if "init_device_mesh" in c
    )
    run(
        "n = 8\n"
        + example
        + """
torch_xla.sync()
assert model[0].weight.grad.shape == (256, 64)
assert {s.data.numel() for s in shards(model[0].weight.detach())} == {64 * 256 // 8}
assert spec(x.to_local()) == "{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"
"""
    )


def test_meshes_and_their_slices(run):
    run("""
    assert not torch.distributed.is_initialized()
    assert dp.mesh.tolist() == [0, 2, 4, 6] and tp.mesh.tolist() == [0, 1]
    assert dp.size() == 4 and dp.mesh_dim_names == ("dp",) and grid["dp", "tp"] is grid
    cube = init_device_mesh("xla", (2, 2, 2), mesh_dim_names=("a", "b", "c"))
    both = cube["a", "c"]
    assert both.mesh.tolist() == [[0, 1], [4, 5]] and both["c"].mesh.tolist() == [0, 1]
    joined = cube["a", "b"]._flatten("ab")
    assert joined.mesh.tolist() == [0, 2, 4, 6]
    value = torch.randn(16, 8)
    for mesh, placements, partition in [
        (both, [Shard(0), Shard(1)], ("a", "c")),
        (cube["b"], [Shard(0)], ("b", None)),
        (joined, [Shard(0)], (("a", "b"), None)),
        (cube["c"], [Replicate()], (None, None)),
        (cube["b", "c"], [Shard(1), Shard(1)], (None, ("b", "c"))),
    ]:
        d = distribute_tensor(value, mesh, placements)
        named = xs.Mesh(np.arange(8), (2, 2, 2), ("a", "b", "c"))
        assert spec(d) == str(named.get_op_sharding(partition)), (mesh, placements)
        assert d.placements == tuple(placements) and d.device_mesh is mesh
        d.invalidate_spec_cache()  # as the value tells
        assert d.placements == tuple(placements), (mesh, d.placements)
        close(d, value)
    turned = DeviceMesh("xla", torch.arange(8).flip(0).reshape(2, 4), mesh_dim_names=("x", "y"))
    d = distribute_tensor(value, turned, [Shard(1), Shard(0)])
    check_shards(d.to_local(), value)
    d.invalidate_spec_cache()
    assert d.placements == (Shard(1), Shard(0))
    # Along the axes that a sub-mesh lacks what was said before stays.
    d = distribute_tensor(distribute_tensor(value, tp, [Shard(1)]), dp, [Shard(0)])
    assert spec(d) == "{devices=[4,2]0,1,2,3,4,5,6,7}" and d.placements == (Shard(0),)
    with pytest.raises(RuntimeError, match="expected a mesh of processes"):
        dp.get_group()
    with pytest.raises(ValueError, match="number of devices \\(8\\)"):
        distribute_tensor(value, DeviceMesh("xla", [0, 1, 2, 3]), [Shard(0)])
    again = pickle.loads(pickle.dumps(grid))
    assert again == grid and again["tp"].mesh.tolist() == [0, 1]
    """)


def test_placements_and_redistribution(run):
    run("""
    value = torch.randn(16, 8)
    choices = [Shard(0), Shard(1), Replicate()]
    for mesh, n in ((flat, 1), (grid, 2)):
        said = list(itertools.product(choices, repeat=n))
        for i, source in enumerate(said):
            for target in said[i % 2 :: n]:
                d = distribute_tensor(value.clone().requires_grad_(), mesh, source)
                e = d.redistribute(mesh, target)
                assert e.placements == target and d.placements == source
                assert spec(e) == spec(distribute_tensor(value, mesh, target))
                (e * e).sum().backward()
                close(d.grad, 2 * value)
                close(e, value)
    d = distribute_tensor(value, grid, [Shard(-1), Shard(-2)])
    assert d.placements == (Shard(1), Shard(0))
    assert d.redistribute(placements=[Replicate(), Shard(-1)]).placements == (Replicate(), Shard(1))
    e = d.redistribute(grid, [Shard(0), Replicate()], forward_dtype=torch.bfloat16)
    assert e.dtype == torch.bfloat16 and e.placements == (Shard(0), Replicate())
    p = distribute_tensor(value.clone().requires_grad_(), grid, [Shard(0), Replicate()])
    e = p.redistribute(placements=[Replicate()] * 2, backward_dtype=torch.bfloat16)
    e.sin().sum().backward()
    assert p.grad.dtype == torch.float32
    close(p.grad, value.cos().bfloat16().float())
    # On a sub-mesh: what is known stays, what is not is the compiler's.
    e = distribute_tensor(value, grid, [Shard(0), Shard(1)]).redistribute(tp, [Replicate()])
    assert spec(e) == spec(distribute_tensor(value, grid, [Shard(0), Replicate()]))
    pending = DTensor.from_local(value.to(device) * 2, tp, [Shard(1)])
    assert pending.placements == (ByCompiler(),) and "ByCompiler()" in repr(pending)
    close(pending.redistribute(placements=[Replicate()]), value * 2)
    # Parts of sizes that do not divide are padded.
    odd = distribute_tensor(torch.randn(7, 3), grid, [Shard(0), Shard(1)])
    assert odd.placements == (Shard(0), Shard(1))
    assert [tuple(s.data.shape) for s in odd.local_shards] == [(2, 2)] * N
    assert len({str(s.indices) for s in odd.local_shards}) == N
    six = torch.randn(6, 6)
    e = distribute_tensor(six, grid, [Replicate()] * 2).redistribute(placements=[Shard(1)] * 2)
    assert e.placements == (Shard(1), Shard(1))
    close(e, six)
    for bad, error, text in [
        ([Shard(0)], ValueError, "a placement for each of the 2 mesh dimensions"),
        ([Shard(2), Replicate()], ValueError, "dimensions of a tensor of 2"),
    ]:
        for call in (d.redistribute, lambda m, p: distribute_tensor(value, m, p),
                     lambda m, p: DTensor.from_local(value, m, p)):
            with pytest.raises(error, match=text):
                call(grid, bad)
    with pytest.raises(RuntimeError, match="expected placements, got none"):
        d.redistribute()
    """)


def test_whole_and_local(run):
    run("""
    value = torch.randn(16, 8)
    p = distribute_tensor(nn.Parameter(value.clone()), flat, [Shard(0)])
    assert type(p) is not torch.Tensor and isinstance(p, (DTensor, xs.XLAShardedTensor))
    assert p.is_leaf and p.requires_grad and p.shape == (16, 8) and p.device == device
    turned = value.to(device).t()
    d = distribute_tensor(turned, flat, [Shard(1)])
    assert d.placements == (Shard(1),) and check_shards(d.to_local(), value.t()) == 8
    assert spec(turned) == ""
    for whole in (p.full_tensor(), p.to_local(), p.to_local(grad_placements=[Shard(1)])):
        assert type(whole) is torch.Tensor and whole.device == device
        p.grad = None
        (whole * whole).sum().backward()
        close(p.grad, 2 * value)
        assert isinstance(p.grad, DTensor)
    w = nn.Parameter(p)
    assert isinstance(w, nn.Parameter) and isinstance(w, DTensor) and w.placements == (Shard(0),)
    optimizer = torch.optim.AdamW([w], lr=0.1)
    plain = nn.Parameter(value.clone())
    other = torch.optim.AdamW([plain], lr=0.1)
    for _ in range(3):
        for t, o in ((w, optimizer), (plain, other)):
            o.zero_grad()
            t.square().sum().backward()
            o.step()
    close(w, plain)
    assert w.placements == (Shard(0),)
    for made in (copy.deepcopy(w), pickle.loads(pickle.dumps(w))):
        assert isinstance(made, nn.Parameter) and made.requires_grad and made.is_leaf
        assert made.placements == (Shard(0),) and spec(made) == spec(w)
        close(made, plain)
    file = io.BytesIO()
    torch.save({"w": w.detach(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded["w"].placements == (Shard(0),)
    assert loaded["optimizer"]["state"][0]["exp_avg"].placements == (Shard(0),)
    local = DTensor.from_local(value, grid, [Shard(0), Replicate()])
    assert local.placements == (Shard(0), Replicate()) and local.shape == (16, 8)
    leaf = value.to(device).requires_grad_()
    DTensor.from_local(leaf, grid).mul(3).sum().backward()
    assert type(leaf.grad) is torch.Tensor
    close(leaf.grad, torch.full((16, 8), 3.0))
    with grid:
        assert DTensor.from_local(value).placements == (Replicate(), Replicate())
    with pytest.raises(ValueError, match="the shape .16, 8. of the whole"):
        DTensor.from_local(value, flat, [Shard(0)], shape=torch.Size([128, 8]))
    with pytest.raises(RuntimeError, match="expected a plain tensor"):
        DTensor.from_local(local, grid)
    for make, want in [(dt.zeros, torch.zeros(8, 4)), (dt.ones, torch.ones(8, 4)),
                       (lambda *a, **k: dt.full(a, 2.5, **k), torch.full((8, 4), 2.5))]:
        made = make(8, 4, device_mesh=grid, placements=[Shard(0), Shard(1)])
        assert made.placements == (Shard(0), Shard(1))
        close(made, want)
    torch.manual_seed(3)
    drawn = dt.randn(8, 4, device_mesh=grid, placements=[Shard(0), Replicate()])
    torch.manual_seed(3)
    close(drawn, torch.randn(8, 4, device=device).cpu())
    """)


def test_gradients_reach_the_leaf_past_python(run):
    run("""
    leaf = torch.randn(16, 8).to(device).requires_grad_()
    marked = xs.mark_sharding(leaf, mesh, ("data", None))
    assert marked.placements == (Shard(0), Replicate()) and marked.device_mesh.shape == (4, 2)
    assert marked.is_leaf and marked.global_tensor is leaf
    d = distribute_tensor(torch.randn(16, 8, requires_grad=True), grid, [Shard(0), Shard(1)])
    for given, where in ((marked, leaf), (d, d)):
        for call in (
            lambda: Triple.apply(given).sum().backward(),
            lambda: torch.autograd.backward([(given * 3).sum()]),
            lambda: torch.utils.checkpoint.checkpoint(
                lambda x: x * 3, given, use_reentrant=True).sum().backward(),
            lambda: setattr(where, "grad", torch.autograd.grad((given * 3).sum(), given)[0]),
        ):
            where.grad = None
            call()
            close(where.grad, torch.full((16, 8), 3.0))
    unknown = xs.wrap_as_sharded_tensor(leaf)
    with pytest.raises(ValueError, match="Placements not available: mesh_shape must be specified"):
        unknown.placements
    """)


OPERATORS = """
CASES = {
    "mm": (lambda a, b: a @ b, [(16, 8), (8, 24)]),
    "bmm": (torch.bmm, [(8, 16, 8), (8, 8, 16)]),
    "addmm": (torch.addmm, [(24,), (16, 8), (8, 24)]),
    "linear": (F.linear, [(4, 16, 8), (24, 8), (24,)]),
    "einsum": (lambda a, b: torch.einsum("abc,dc->bad", a, b), [(8, 16, 8), (24, 8)]),
    "pointwise": (lambda a, b: torch.sigmoid(a) * b.exp() - a.relu() / (b * b + 1), [(16, 8)] * 2),
    "broadcast": (lambda a, b: a * b + a.where(a > 0, b), [(16, 8), (8,)]),
    "mean": (lambda a: a.mean((0, 2)), [(8, 16, 8)]),
    "var": (lambda a: a.var(1), [(8, 16)]),
    "max": (lambda a: a.max(0).values + a.amin(0), [(16, 8)]),
    "logsumexp": (lambda a: a.logsumexp(1), [(16, 8)]),
    "norm": (lambda a: torch.linalg.vector_norm(a), [(16, 8)]),
    "cumsum": (lambda a: a.cumsum(0), [(16, 8)]),
    "views": (lambda a: a.reshape(8, 2, 8).transpose(0, 2).flatten(1).T[2:12:2], [(16, 8)]),
    "unbind": (lambda a: sum(x * i for i, x in enumerate(a.unbind(1))), [(16, 8)]),
    "split": (lambda a: torch.cat(a.split(4, 0)[::-1], 1), [(16, 8)]),
    "stack": (lambda a, b: torch.stack([a, b], 1).squeeze(), [(16, 8), (16, 8)]),
    "softmax": (lambda a: a.softmax(-1) + a.log_softmax(0), [(16, 8)]),
    "layer_norm": (lambda a, w, b: F.layer_norm(a, (8,), w, b), [(4, 16, 8), (8,), (8,)]),
    "embedding": (lambda w: F.embedding(index(4, 8), w), [(16, 8)]),
    "gather": (lambda a: a.gather(1, index(16, 4) % 8), [(16, 8)]),
    "cross_entropy": (lambda a: F.cross_entropy(a, index(16) % 8), [(16, 8)]),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), [(8, 4, 6, 6), (8, 4, 3, 3), (8,)]),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                  [(8, 2, 8, 4)] * 3),
    "dropout": (lambda a: F.dropout(a, 0.5, training=False), [(16, 8)]),
    "in place": (lambda a: a.clone().mul_(2).add_(a).clamp_(-1, 1), [(16, 8)]),
    "indexing": (lambda a: a[index(5), 1:5] + a[3, 2:6] + a[1:9].sum(), [(16, 8)]),
}
where = "cpu"

def index(*sizes):
    g = torch.Generator().manual_seed(7)
    return torch.randint(16, sizes, generator=g).to(where)

def placements_for(sizes, n):
    "All for the first tensor; for others every second one is enough to mix them."
    dims = [Replicate(), *(Shard(d) for d in range(min(len(sizes), 2)))]
    return list(itertools.product(dims, repeat=n))

def check(name, mesh):
    global where
    fn, sizes = CASES[name]
    torch.manual_seed(1)
    host = [torch.randn(s, dtype=torch.float64) for s in sizes]
    where = "cpu"
    plain = [h.clone().requires_grad_() for h in host]
    want = fn(*plain)
    weights = torch.randn(want.shape, dtype=want.dtype)
    (want * weights).sum().backward()
    choices = [placements_for(s, mesh.ndim) for s in sizes]
    count = max(len(c) for c in choices)
    where = device
    for i in range(count):
        said = [c[(i * (j + 1) + j) % len(c)] for j, c in enumerate(choices)]
        split = [distribute_tensor(h.clone().requires_grad_(), mesh, p)
                 for h, p in zip(host, said)]
        got = fn(*split)
        assert isinstance(got, DTensor) and got.device_mesh is mesh, name
        (got * weights.to(device)).sum().backward()
        torch_xla.sync()
        close(got, want, msg=lambda m: f"{name} {said}: {m}")
        for s, p in zip(split, plain):
            close(s.grad, p.grad, msg=lambda m: f"{name} {said}, gradient: {m}")
            assert s.grad.device_mesh is mesh and len(s.grad.placements) == mesh.ndim
        assert all(isinstance(p, (Shard, Replicate, ByCompiler)) for p in got.placements)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dimensions, part", [(1, 0), (1, 1), *((2, part) for part in range(6))])
def test_operators(run, dimensions, part):
    run(
        OPERATORS
        + textwrap.dedent("""
    for name in list(CASES)[part :: 2 if dimensions == 1 else 6]:
        check(name, flat if dimensions == 1 else grid)
    """),
        dimensions=dimensions,
        part=part,
    )


def test_some_operators(run):
    run(
        OPERATORS
        + textwrap.dedent("""
    for name in ("linear", "softmax", "embedding", "views"):
        check(name, flat)
    """)
    )


PLANS = """
def build(kind):
    torch.manual_seed(2)
    if kind == "mlp":
        return MLPModule("cpu")
    args = ModelArgs(n_layers=1, dim=32, n_heads=8, vocab_size=16, max_seq_len=16, dropout_p=0.0,
                     weight_tying=kind == "tied", checkpoint_activations=kind == "checkpointed")
    return Transformer(args)

def train(plain, model, put, steps=2, **tolerance):
    "Both learn alike, step by step."
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (plain, model)]
    for step in range(steps):
        tokens = torch.randint(16, (8, 8))
        losses = []
        for m, t, optimizer in zip((plain, model), (tokens, put(tokens)), optimizers):
            optimizer.zero_grad()
            loss = F.cross_entropy(m(t).flatten(0, 1), t.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            optimizer.step()
            losses.append(loss)
        torch_xla.sync()
        close(losses[1], losses[0], **tolerance)
    return optimizers[1]
"""


@pytest.mark.parametrize("kind", ["flat", "sub-mesh", "outputs"])
def test_columns_and_rows(run, kind):
    run(
        PLANS
        + """
mesh_of = flat if kind == "flat" else tp
plain = build("mlp")
model = copy.deepcopy(plain)
weights = [model.net1.weight, model.net2.weight]
columns = ColwiseParallel(use_local_output=kind != "outputs")
rows = RowwiseParallel(output_layouts=Shard(0)) if kind == "outputs" else RowwiseParallel()
assert parallelize_module(model, mesh_of, {"net1": columns, "net2": rows}) is model
n = mesh_of.size()
for weight, dim in ((model.net1.weight, 0), (model.net2.weight, 1)):
    assert type(weight) is nn.Parameter and weight.device == device
    sizes = list(weight.shape)
    sizes[dim] //= n
    assert {tuple(s.data.shape) for s in shards(weight.detach())} == {tuple(sizes)}
assert {tuple(s.data.shape) for s in shards(model.net1.bias.detach())} == {(16 // n,)}
x = torch.randn(16, 10)
want, got = plain(x), model(x)
assert type(got) is torch.Tensor
want.square().sum().backward()
got.square().sum().backward()
torch_xla.sync()
close(got, want, rtol=1e-4, atol=1e-5)
close_gradients(model, plain, rtol=1e-4, atol=1e-4)
with pytest.raises(RuntimeError, match="only be called once"):
    parallelize_module(model, mesh_of, {"net1": columns})
""",
        kind=kind,
    )


@pytest.mark.parametrize("kind", ["plain", "tied", "checkpointed"])
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.slow
def test_a_transformer_of_pytorchs_tests(run, kind, sequence):
    run(
        PLANS
        + """
for mesh_of in (flat, tp):
    plain = build(kind)
    model = Transformer.parallelize(copy.deepcopy(plain).to(device), mesh_of, sequence)
    train(plain, model, lambda t: t.to(device), rtol=1e-4, atol=1e-4)
    assert (model.output.weight is model.tok_embeddings.weight) == (kind == "tied")
    assert spec(model.layers[0].attention.wq.weight) == str(
        xs.Mesh(np.arange(8), (8 // mesh_of.size(), mesh_of.size())).get_op_sharding((1, None)))
""",
        kind=kind,
        sequence=sequence,
    )


def test_other_styles(run):
    run("""
    x = torch.randn(8, 16, 4)
    norm = nn.LayerNorm(4)
    split = parallelize_module(copy.deepcopy(norm), flat, SequenceParallel())
    y = split(x)
    assert isinstance(y, DTensor)
    close(y, norm(x), rtol=1e-5, atol=1e-5)
    assert type(split.weight) is nn.Parameter and split.weight.requires_grad

    seen = []
    class Block(nn.Module):
        def forward(self, x, scale=None):
            seen.append((x, scale))
            return x * 2 if scale is None else x * scale

    for style, kind in [
        (PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate()), DTensor),
        (PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),),
                            use_local_output=True), torch.Tensor),
        (PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0)),
         torch.Tensor),
        (PrepareModuleInputOutput(
            input_layouts=Shard(0), desired_input_layouts=Shard(1), output_layouts=Shard(1),
            desired_output_layouts=Replicate(), use_local_output=False), DTensor),
    ]:
        out = parallelize_module(Block(), flat, style)(x.to(device))
        assert isinstance(seen[-1][0], kind)
        close(out, x * 2)
    assert isinstance(out, DTensor) and out.placements == (Replicate(),)
    style = PrepareModuleInput(input_kwarg_layouts={"scale": Replicate()},
                               desired_input_kwarg_layouts={"scale": Shard(0)})
    out = parallelize_module(Block(), flat, style)(x.to(device), scale=x.to(device))
    assert seen[-1][1].placements == (Shard(0),)
    close(out, x * x)
    embedding = nn.Embedding(16, 8)
    tokens = torch.randint(16, (4, 8))
    for style in (ColwiseParallel(output_layouts=Replicate()),
                  RowwiseParallel(input_layouts=Replicate())):
        close(parallelize_module(copy.deepcopy(embedding), flat, style)(tokens), embedding(tokens))
    logits, target = torch.randn(8, 16), torch.randint(16, (8,))
    pred = distribute_tensor(logits.clone().requires_grad_(), tp, [Shard(1)])
    with loss_parallel():
        loss = F.cross_entropy(pred, target.to(device))
        loss.backward()
    want = logits.clone().requires_grad_()
    F.cross_entropy(want, target).backward()
    close(pred.grad, want.grad)
    """)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["flat", "replicated", "tensor parallel", "named"])
def test_fully_shard(run, form):
    run(
        PLANS
        + """
plain = build("plain")
model = copy.deepcopy(plain)
options = {"mesh": {"flat": flat, "replicated": grid}.get(form, dp)}
if form == "tensor parallel":
    model = Transformer.parallelize(model, tp, True)
if form == "named":
    options = {"mesh": grid, "dp_mesh_dims": DataParallelMeshDims(shard=("dp", "tp"))}
kept = model.norm.weight
for layer in model.layers:
    fully_shard(layer, **options)
assert fully_shard(model, ignored_params={kept}, **options) is model
assert isinstance(model, FSDPModule) and type(model).__name__ == "FSDPTransformer"
put = lambda t: distribute_tensor(t, options["mesh"], [Shard(0)] * options["mesh"].ndim).to_local()
assert kept.device.type == ("xla" if form == "tensor parallel" else "cpu")
model.norm.to(device)
optimizer = train(plain, model, put, rtol=1e-4, atol=1e-4)
text = "[2,1,4]" if form == "replicated" else "[8,1]"
for name in ("attention.wq", "feed_forward.w1"):
    weight = model.layers[0].get_submodule(name).weight
    assert spec(weight).startswith("{devices=" + text), spec(weight)
    assert spec(optimizer.state[weight]["exp_avg"]) == spec(weight)
    parts = int(text[1])
    assert {s.data.numel() for s in shards(weight.detach())} == {weight.numel() // parts}
before = spec(weight)
model.load_state_dict({name: t.cpu() for name, t in plain.state_dict().items()})
assert spec(weight) == before
close(model(put(torch.zeros(8, 8, dtype=torch.int64))),
      plain(torch.zeros(8, 8, dtype=torch.int64)), rtol=1e-4, atol=1e-4)
# What steers when parameters are gathered changes nothing; what would change values is refused.
model.unshard(async_op=True).wait()
model.reshard()
model.set_requires_gradient_sync(False)
model.set_modules_to_forward_prefetch([model.layers[0]])
model.set_reshard_after_backward(False)
model.set_is_last_backward(True)
with pytest.raises(NotImplementedError, match="gradients of the whole batch"):
    model.set_gradient_divide_factor(2.0)
with pytest.raises(RuntimeError, match="not split yet"):
    fully_shard(model, **options)
""",
        form=form,
    )


def test_fully_shard_computes_in_other_dtypes(run):
    run("""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

        def forward(self, x, fail=False):
            assert x.dtype == torch.bfloat16 and self.first.weight.dtype == torch.bfloat16
            if fail:
                raise ZeroDivisionError
            return self.second(self.first(x).relu()), self.steps

        def other(self, x):
            return self.second.weight.dtype, self.first(x)

    torch.manual_seed(4)
    plain = Net()
    model = copy.deepcopy(plain)
    inner = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    fully_shard(model.second, mesh=flat, mp_policy=inner)
    fully_shard(model, mesh=flat, mp_policy=policy)
    x = torch.randn(16, 8)
    y, steps = model(distribute_tensor(x, flat, [Shard(0)]).to_local())
    assert y.dtype == torch.float32 and steps.dtype == torch.int64
    y.square().sum().backward()
    want, _ = plain.bfloat16()(x.bfloat16())
    want.float().square().sum().backward()
    close(y, want.float(), rtol=2e-2, atol=2e-2)
    for p, q in zip(model.parameters(), plain.parameters()):
        assert type(p) is nn.Parameter and p.dtype == p.grad.dtype == torch.float32
        close(p.grad, q.grad.float(), rtol=5e-2, atol=5e-2)
    with pytest.raises(ZeroDivisionError):
        model(x.to(device), fail=True)
    assert all(type(p) is nn.Parameter for p in model.parameters())
    register_fsdp_forward_method(model, "other")
    dtype, out = model.other(x.to(device))
    assert dtype == torch.float32 and out.dtype == torch.float32  # `second` has its own call
    assert all(type(p) is nn.Parameter for p in model.parameters())
    """)


def test_fully_shard_chooses_and_refuses(run):
    run("""
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.wide = nn.Parameter(torch.randn(3, 16))
            self.odd = nn.Parameter(torch.randn(3, 5))
            self.tied = self.wide
            self.register_buffer("table", torch.ones(2))

        def forward(self, x):
            return x @ self.wide + self.odd.sum() * self.scale + self.tied.sum() * self.table.sum()

    plain = Odd()
    model = fully_shard(copy.deepcopy(plain), mesh=flat)
    assert model.tied is model.wide and model.table.device == device
    assert {tuple(s.data.shape) for s in shards(model.wide.detach())} == {(3, 2)}
    assert {tuple(s.data.shape) for s in shards(model.odd.detach())} == {(3, 5)}
    x = torch.randn(4, 3)
    close(model(x.to(device)), plain(x), rtol=1e-4, atol=1e-4)
    chosen = fully_shard(nn.Linear(16, 16), mesh=flat,
                         shard_placement_fn=lambda p: Shard(1) if p.dim() == 2 else None)
    assert spec(chosen.weight).startswith("{devices=[1,8]")
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    fully_shard([first, second], mesh=flat)
    assert isinstance(first, FSDPModule) and isinstance(second, FSDPModule)
    stack = fully_shard(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), mesh=flat)
    assert type(stack[:1]) is nn.Sequential and stack[:1][0] is stack[0]
    with pytest.raises(RuntimeError, match="before fully_shard"):
        copy.deepcopy(stack)
    for options, error, text in [
        ({"mesh": init_device_mesh("xla", (2, 2, 2))}, ValueError, "one or two dimensions"),
        ({"mesh": flat, "offload_policy": CPUOffloadPolicy()}, NotImplementedError, "offloading"),
        ({"mesh": grid, "dp_mesh_dims": DataParallelMeshDims(shard="x")}, ValueError, "names of"),
    ]:
        with pytest.raises(error, match=text):
            fully_shard(nn.Linear(8, 8), **options)
    with pytest.raises(NotImplementedError, match="to_empty"):
        fully_shard(nn.Linear(8, 8, device="meta"), mesh=flat)
    late = nn.Linear(8, 8, device="meta").to_empty(device=device)
    late.weight.detach().copy_(torch.eye(8))
    assert spec(fully_shard(late, mesh=flat).weight).startswith("{devices=[8,1]")
    assert check_shards(late.weight.detach(), torch.eye(8)) == 8
    """)


@pytest.mark.slow
def test_parameters_of_another_dtype_are_split_alike(run):
    run("""
    marked = nn.Linear(8, 8).to(device)
    xs.mark_sharding(marked.weight, mesh, ("data", "model"))
    shard = fully_shard(nn.Linear(8, 8), mesh=flat)
    own = nn.Linear(8, 8)
    own.weight = nn.Parameter(distribute_tensor(own.weight, flat, [Shard(1)]))
    own.bias = None
    for model in (marked, shard, own):
        text, value = spec(model.weight), model.weight.detach().cpu()
        assert text.startswith("{devices=")
        for convert in (model.bfloat16, model.float):
            convert()
            assert spec(model.weight) == text, (model, convert)
        torch_xla.sync()
        assert check_shards(model.weight.detach(), value.bfloat16().float()) == 8
    assert own.weight.placements == (Shard(1),)
    """)


def test_whoever_is_imported_first(run_python):
    run_python(
        """
        import torch, torch.nn as nn
        from torch.distributed.tensor import DTensor, Shard
        import torch.distributed.fsdp as fsdp
        import torch_xla
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("xla", (8,))
        d = DTensor.from_local(torch.randn(8, 8), mesh, [Shard(0)])
        assert d.placements == (Shard(0),)
        model = fsdp.fully_shard(nn.Linear(8, 8), mesh=mesh)
        torch.testing.assert_close(model(d).full_tensor().cpu(),
                                   nn.functional.linear(d.cpu(), model.weight.cpu(),
                                                        model.bias.cpu()))
        """,
        env=EIGHT,
    )


def test_meshes_of_other_devices_are_pytorchs(run_python):
    run_python("""
        import torch, torch.nn as nn, torch.distributed as dist
        import torch_xla
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor, Shard, distribute_tensor, zeros
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b"))
        assert mesh["a"].get_group() is not None and mesh["b"].mesh.tolist() == [0]
        d = DTensor.from_local(torch.ones(4), mesh["a"], [Shard(0)])
        assert type(d) is DTensor and d.to_local().device.type == "cpu"
        assert type(zeros(4, device_mesh=mesh)) is DTensor
        model = fully_shard(nn.Linear(4, 4), mesh=mesh["a"])
        assert type(model.weight) is not nn.Parameter and isinstance(model.weight, DTensor)
        model(torch.ones(2, 4)).sum().backward()
        dist.destroy_process_group()
        """)
