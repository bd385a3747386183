"""FSDPv2, PyTorch's DTensor functions and tensor drawings on a mesh of eight devices."""

from __future__ import annotations

import pytest

from .test_sharding import PRELUDE, runner

MODELS = """
import functools
from torch.distributed.tensor import distribute_module, distribute_tensor, Replicate, Shard
from torch.distributed.device_mesh import DeviceMesh
from torch_xla.distributed.fsdp import checkpoint_module
from torch_xla.distributed.fsdp.wrap import (
    size_based_auto_wrap_policy, transformer_auto_wrap_policy)
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2)

class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)

class Transformer(nn.Module):
    def __init__(self, width=32, layers=2, words=64):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

def make():
    torch.manual_seed(5)
    return Transformer()

def train(model, device, split=None, steps=4):
    # The keys' bias has rounding for a gradient, which a small eps makes as large as any.
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-6)
    g = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        tokens = torch.randint(64, (8, 16), generator=g).to(device)
        if split is not None:
            tokens = split(tokens)
        optimizer.zero_grad()
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.reshape(-1, 64), tokens.reshape(-1))
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.detach())
    return torch.stack(losses).cpu(), optimizer

def check_parameters(model, plain, **tolerance):
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach(), **tolerance, msg=name)
"""


@pytest.fixture
def run(run_python):
    """Runs code in an SPMD process of eight devices, with a small transformer."""
    return runner(run_python, PRELUDE + MODELS)


@pytest.mark.parametrize(
    "form",
    [
        "wrapped",
        "checkpointed",
        pytest.param("whole", marks=pytest.mark.slow),
        pytest.param("global", marks=pytest.mark.slow),
    ],
)
def test_fsdpv2_trains_as_the_plain_module(run, form):
    run(
        """
    mesh = xs.Mesh(np.arange(8), (8, 1), ("fsdp", "model"))
    plain, model = make(), make()
    if form == "whole":
        model = FSDPv2(model, mesh)
    elif form == "wrapped":
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Layer})
        model = FSDPv2(model, mesh=mesh, auto_wrap_policy=policy)
        assert all(isinstance(layer, FSDPv2) for layer in model.module.layers)
    elif form == "checkpointed":
        model = FSDPv2(checkpoint_module(model), mesh)
    else:
        xs.set_global_mesh(mesh)
        policy = functools.partial(size_based_auto_wrap_policy, min_num_params=5000)
        model = FSDPv2(model, auto_wrap_policy=policy,
                       shard_output=lambda out, m: xs.mark_sharding(out, m, ("fsdp", None, None)))
    want, _ = train(plain, "cpu")
    split = lambda tokens: xs.mark_sharding(tokens, mesh, ("fsdp", None))
    got, optimizer = train(model, device, split)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    check_parameters(model, plain, rtol=1e-3, atol=2e-4)
    for name, p in model.named_parameters():
        assert "devices=" in spec(p), name
        held = shards(p.detach())
        assert all(s.data.numel() == p.numel() // 8 for s in held), name
        for key in ("exp_avg", "exp_avg_sq"):
            assert spec(optimizer.state[p][key]) == spec(p), (name, key)
    assert model.head.weight is model.module.head.weight
    """,
        form=form,
    )


@pytest.mark.slow
@pytest.mark.parametrize("module", ["torch.utils.checkpoint", "torch_xla.utils.checkpoint"])
def test_gradients_of_checkpointed_layers(run, module):
    """Split parameters get the same gradients whether activations are kept or computed again."""
    run(
        """
    import importlib
    checkpoint = importlib.import_module(module).checkpoint

    class Checkpointed(nn.Module):
        def __init__(self, layer, reentrant):
            super().__init__()
            self.layer, self.reentrant = layer, reentrant

        def forward(self, x):
            return checkpoint(self.layer, x, use_reentrant=self.reentrant)

    def gradients(model, device, dropout=0.0):
        if device == "xla":
            model.to("xla")
            for p in model.parameters():
                xs.mark_sharding(p, mesh, ("model", "data")[: p.dim()])
            torch.manual_seed(3)
        tokens = torch.randint(64, (8, 16), generator=torch.Generator().manual_seed(1)).to(device)
        if device == "xla":
            xs.mark_sharding(tokens, mesh, ("data", None))
        x = nn.functional.dropout(model.embed(tokens), dropout)
        for layer in model.layers:
            x = layer(x)
        model.head(x).logsumexp(-1).mean().backward()
        return [p.grad for p in model.parameters()]

    def noisy():
        model = make()
        for layer in model.layers:
            layer.mlp.append(nn.Dropout(0.5))
        return model

    for maker, dropout, tolerance in ((make, 0.0, 1e-5), (noisy, 0.3, 1e-6)):
        kept = gradients(maker(), "xla", dropout)
        for reentrant in (True, False):
            model = maker()
            model.layers = nn.ModuleList(Checkpointed(layer, reentrant) for layer in model.layers)
            found = gradients(model, "xla", dropout)
            for p, f, k in zip(model.parameters(), found, kept, strict=True):
                torch.testing.assert_close(f.cpu(), k.cpu(), rtol=1e-4, atol=tolerance)
                assert len({str(shard.indices) for shard in shards(p.detach())}) > 1
        if not dropout:
            for f, want in zip(kept, gradients(maker(), "cpu"), strict=True):
                torch.testing.assert_close(f.cpu(), want, rtol=1e-3, atol=1e-5)
    """,
        module=module,
    )


@pytest.mark.slow
def test_fsdpv2_with_another_data_axis(run):
    run("""
    mesh = xs.Mesh(np.arange(8), (2, 4), ("data", "fsdp"))
    plain = make()
    model = FSDPv2(make(), mesh, extra_data_axis="data")
    want, _ = train(plain, "cpu")
    got, _ = train(model, device,
                   lambda t: xs.mark_sharding(t, mesh, (("data", "fsdp"), None)))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    weight = model.module.head.weight
    assert len({str(s.indices) for s in shards(weight.detach())}) == 4
    """)


def test_fsdpv2_says_what_is_wrong(run):
    run("""
    import pytest
    with pytest.raises(ValueError, match="No mesh is provided and no global mesh is set."):
        FSDPv2(make())
    with pytest.raises(ValueError, match="The mesh must have an axis named 'fsdp'"):
        FSDPv2(make(), mesh)
    mesh = xs.Mesh(np.arange(8), (8,), ("fsdp",))
    with pytest.raises(ValueError, match="^The provided ddp axis is not in the mesh.$"):
        FSDPv2(make(), mesh, extra_data_axis="ddp")
    class Odd(nn.Linear):
        def forward(self, x):
            return {"out": super().forward(x)}
    odd = FSDPv2(Odd(8, 8), mesh)
    with pytest.raises(RuntimeError, match="Pass shard_output"):
        odd(torch.randn(8, 8).to(device))
    with pytest.raises(RuntimeError, match="not wrapped yet"):
        FSDPv2(odd, mesh)
    """)


def test_fsdpv2_keeps_ties_across_modules_that_are_wrapped(run):
    run("""
    import functools
    from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy

    policy = functools.partial(transformer_auto_wrap_policy,
                               transformer_layer_cls={nn.Linear, nn.Embedding})
    mesh = xs.Mesh(np.arange(8), (8,), ("fsdp",))
    torch.manual_seed(1)
    nets = []
    for _ in range(2):
        nets.append(nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)))
        nets[-1][1].weight = nets[-1][0].weight
    nets[1].load_state_dict(nets[0].state_dict())
    nets[1] = FSDPv2(nets[1], mesh, auto_wrap_policy=policy)
    assert isinstance(nets[1][0], FSDPv2) and isinstance(nets[1][1], FSDPv2)
    assert len(list(nets[1].parameters())) == 1
    losses = []
    for net, where in zip(nets, ("cpu", device)):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            x = torch.arange(16, device=where)
            loss = nn.functional.cross_entropy(net(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    torch.testing.assert_close(losses[3:], losses[:3], rtol=1e-4, atol=1e-4)
    assert spec(next(nets[1].parameters())) == "{devices=[8,1]0,1,2,3,4,5,6,7}"
    """)


def test_distribute_tensor(run):
    run("""
    mesh = DeviceMesh("xla", list(range(8)))
    big = torch.randn(64, 8)
    t = distribute_tensor(big, mesh, [Shard(0)])
    assert isinstance(t, xs.XLAShardedTensor)
    assert check_shards(t, big) == 8
    torch.testing.assert_close((t @ t.T).cpu(), big @ big.T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(t.sum().cpu(), big.sum(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.softmax(t, 0).cpu(), big.softmax(0))
    whole = distribute_tensor(big, mesh, [Replicate()])
    assert check_shards(whole, big) == 1
    two = DeviceMesh("xla", torch.arange(8).reshape(4, 2), mesh_dim_names=("dp", "tp"))
    t = distribute_tensor(big, two, [Shard(1), Shard(0)])
    assert check_shards(t, big) == 8 and spec(t.global_tensor).startswith("{devices=[2,4]")
    t = distribute_tensor(big, two, [Shard(-2), Shard(0)])
    assert spec(t.global_tensor).startswith("{devices=[8,1]")
    """)


def test_distribute_module(run):
    run("""
    mesh = DeviceMesh("xla", list(range(8)))
    plain, model = make(), make()

    def partition(name, module, mesh):
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(distribute_tensor(module.weight, mesh, [Shard(0)]))

    model = distribute_module(model, mesh, partition)
    want, _ = train(plain, "cpu")
    got, _ = train(model, device)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    check_parameters(model, plain, rtol=1e-3, atol=2e-4)
    assert type(model.head.weight) is nn.Parameter
    assert spec(model.head.weight).startswith("{devices=[8,1]")
    """)


def test_drawings(run):
    out = run("""
    from torch_xla.distributed.spmd.debugging import visualize_sharding, visualize_tensor_sharding
    import pytest
    t = torch.randn(8, 8).to(device)
    xs.mark_sharding(t, mesh, ("data", "model"))
    table = visualize_tensor_sharding(t, use_color=False)
    assert table.row_count == 4 and len(table.columns) == 2
    visualize_sharding("{devices=[1,2,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}", use_color=False)
    # Cells as small as what is in them, with a blank and an empty line around it.
    import rich.align, rich.box, rich.console, rich.padding, rich.table
    table = visualize_sharding("{devices=[1,2]0,1}", use_color=False)
    same = rich.table.Table(show_header=False, show_lines=True, padding=0, highlight=True,
                            pad_edge=False, box=rich.box.SQUARE)
    same.add_row(*(rich.padding.Padding(rich.align.Align(text, "center", vertical="middle"), 1)
                   for text in ("CPU 0", "CPU 1")))
    console = rich.console.Console()
    drawn = []
    for each in (table, same):
        with console.capture() as capture:
            console.print(each)
        drawn.append(capture.get())
    assert drawn[0] == drawn[1] and "CPU 0" in drawn[0]
    visualize_sharding("{replicated}")
    with pytest.raises(ValueError, match="expected a sharding such as"):
        visualize_sharding("nothing")
    """).stdout
    for text in (
        "Visualizing {replicated} (showing up to the first two dimensions)",
        "CPU 0",
        "CPU [0, 1, 2, 3, 4, 5, 6, 7]",
        "CPU 7",
        "CPU [0, 1, 2, 3]",
        "CPU [4, 5, 6, 7]",
    ):
        assert text in out, out


def test_fsdpv2_state_dicts_are_those_of_the_module(run):
    run("""
    import pytest
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
            self.layers = nn.ModuleList(Layer(16) for _ in range(2))
        def forward(self, x):
            x = self.norm(self.first(x))
            for layer in self.layers:
                x = layer(x[None])[0]
            return x

    torch.manual_seed(1)
    plain = Net()
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Layer})
    eight = xs.Mesh(np.arange(8), (8, 1), ("fsdp", "model"))
    two = xs.Mesh(np.arange(8), (4, 2), ("data", "fsdp"))
    torch.manual_seed(2)
    nested = FSDPv2(Net(), eight, auto_wrap_policy=policy)
    whole = FSDPv2(Net(), two, extra_data_axis="data")
    state = plain.state_dict()
    for model in (nested, whole):
        names = list(model.state_dict())
        assert names == list(state), names
        assert set(model.state_dict()._metadata) == set(state._metadata)
        wide = nn.Sequential(nn.Identity(), model).state_dict(prefix="m.")
        assert list(wide) == ["m.1." + name for name in state]
        assert model.load_state_dict(state, strict=True).missing_keys == []
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value.cpu(), state[name], rtol=0, atol=0, msg=name)
    for name, p in whole.named_parameters():
        assert "devices=" in spec(p), name
    # From one split into another, from keys with the wrapper's name, and refused when they differ.
    with torch.no_grad():
        for p in nested.parameters():
            p.mul_(2)
    whole.load_state_dict(nested.state_dict())
    for p, q in zip(whole.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), 2 * q.detach())
    plain.load_state_dict(whole.state_dict())
    old = {"_orig_module." + name: torch.ones_like(value) for name, value in state.items()}
    whole.load_state_dict(old)
    assert whole.first.weight.detach().cpu().eq(1).all()
    del state["first.bias"]
    with pytest.raises(RuntimeError, match="Missing key.*first.bias"):
        whole.load_state_dict(state)
    with pytest.raises(RuntimeError, match="Unexpected key.*other"):
        whole.load_state_dict({**plain.state_dict(), "other": torch.ones(2)})
    with pytest.raises(NotImplementedError, match="SpmdFullyShardedDataParallel"):
        XlaFullyShardedDataParallel(plain)
    """)
