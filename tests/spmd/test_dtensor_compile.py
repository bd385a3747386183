"""DTensors in functions of torch.compile: the same values, classes, shardings and gradients."""

from __future__ import annotations

import pytest

from .test_dtensor import DTENSOR, PLANS
from .test_sharding import EIGHT, PRELUDE, runner

COMPILED = """
import functools, zlib
import torch._dynamo
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves
from torch_xla.distributed.spmd import XLAShardedTensor

def seen(value):
    "What a value is compared by, of a run with that of another."
    if not isinstance(value, torch.Tensor):
        return value
    plain = value.to_local() if isinstance(value, DTensor) else value
    is_placed = isinstance(value, DTensor) and value.mesh_shape is not None
    whose = (value.device_mesh, value.placements) if is_placed else None
    kind = type(value), value.requires_grad, whose, value.dtype
    bits = zlib.crc32(value.detach().cpu().double().numpy().tobytes())
    return *kind, spec(plain) if value.device == device else None, bits

def after(call, make, backward):
    args = make() if isinstance(make(), tuple) else (make(),)
    results = tree_leaves(call(*args))
    if backward:
        sum(r.float().sum() for r in results if r.requires_grad).backward()
    torch_xla.sync()
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    same = [[r is a for a in tensors] for r in results]
    gradients = [seen(a.grad) for a in tensors if a.requires_grad]
    return [seen(r) for r in results], same, [seen(a) for a in tensors], gradients

def check(function, *makers, graphs=None, breaks=False, backward=False, backend="openxla",
          **options):
    "Compiled as not, for arguments that are made for each call."
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(function, backend=backend, fullgraph=breaks is False, **options)
    for make in makers:
        torch.manual_seed(1)
        want = after(function, make, backward)
        torch.manual_seed(1)
        got = after(compiled, make, backward)
        assert got == want, (got, want)
    found = counters["stats"].get("unique_graphs", 0)
    assert found == graphs or graphs is None, found
    assert breaks in (None, bool(counters["graph_break"])), counters["graph_break"]

S0, S1, R = Shard(0), Shard(1), Replicate()
value = torch.randn(16, 8)

def made(mesh=flat, placements=(S0,), value=value, wants=False):
    return distribute_tensor(value.clone(), mesh, placements).requires_grad_(wants)

def leaf(*args, **kwargs):
    return made(*args, **kwargs, wants=True)
"""


@pytest.fixture
def run(run_python):
    """Runs code in an SPMD process of eight devices."""
    return runner(run_python, PRELUDE + DTENSOR + COMPILED)


@pytest.mark.parametrize(
    "backend", ["openxla", pytest.param("aot_eager", marks=pytest.mark.slow), "eager"]
)
def test_arguments_and_results(run, backend):
    run(
        """
    closed, listed = made(), [made(), made(placements=[S1])]

    class Holder:
        def __init__(self):
            self.held = made()

    def nested(a):
        def inner(x, k=2):
            return {"x": x * k + a, "y": [x.shape, x.sin()]}
        return inner(inner(a)["x"], k=3)

    def both_kinds(a, b):
        return a + b, b + a, a.to_local() + b, torch.cat((b, a))

    for function, *makers in [
        (lambda a: (a * 2).sin(), made, lambda: made(grid, [S1, S0])),
        (lambda: (closed * 2).sin(), tuple),
        (lambda a: sum(x * a for x in listed), lambda: value.to(device), made),
        (lambda h: h.held * 2, Holder),
        (nested, made),
        (both_kinds, lambda: (made(), value.to(device))),
        (lambda ts, named: [t * named["k"] for t in ts], lambda: ([made(), made(grid, [R, S1])],
                                                                  {"k": made()})),
        (lambda a: (a.shape, a.dtype, a.ndim, a.numel(), a.requires_grad, len(a)), made, leaf),
        (lambda a: a * 2 if isinstance(a * 1, DTensor) else a * 3, made, lambda: value.to(device)),
        (lambda a: a * 2 if type(a) is torch.Tensor else a * 3, made),
        (lambda a, i: a.gather(1, i), lambda: (made(), torch.ones(16, 2).long().to(device))),
        (lambda a: (a.new_zeros(3), torch.zeros_like(a) + 1, a.bfloat16()), made),
        (lambda a: a + torch.arange(8, device=a.device), made),
        (lambda a: (a * 2).sin(), lambda: made(placements=[Partial()])),
    ]:
        check(function, *makers, backend=backend)
    is_parameter = lambda a: a * 2 if isinstance(a, (nn.Parameter, int)) else a * 3
    check(is_parameter, lambda: nn.Parameter(made()), leaf, graphs=2, backend=backend)
    check(is_parameter, leaf, lambda: nn.Parameter(made()), made, graphs=3, backend=backend)
    check(lambda a: isinstance(a * 2, nn.Parameter), lambda: nn.Parameter(made()), backend=backend)
    check(lambda a: (a, [a]), made, graphs=0, backend=backend)
    y = torch.compile(lambda a: (a * 2).sin(), backend=backend)(made())
    assert type(y) is XLAShardedTensor and y.device_mesh is flat
    close(y, (value * 2).sin())

    import torch.distributed._functional_collectives as fc
    from torch.distributed.tensor.experimental import local_map
    inner = torch.compile(lambda t: t * 2, backend=backend)
    total = lambda t: inner(fc.all_reduce(t, "sum", flat))
    y = local_map(total, out_placements=[R], in_placements=([S0],))(made())
    close(y, value.reshape(8, 2, 8).sum(0) * 2)
    """,
        backend=backend,
    )


def test_methods_and_operators(run):
    run("""
    positive = lambda: made(value=value + 9)
    for function in [
        # what torch._dynamo would capture the body of
        lambda a: (2**a, a**2, a**a, 1 - a, 1 / a, a // 2, 2 // a, a // a, 2 % a, a @ a.T, -a),
        lambda a: (a.split(4), a.split((4, 12)), a.norm(), a.norm(p=1, dim=0)),
        lambda a: (a.unflatten(1, (2, 4)), F.pad(a, (1, 1)), F.rms_norm(a, (8,)), torch.norm(a)),
        # what it would not ask the class for
        lambda a: (abs(a), [row * 2 for row in a], torch.vstack((a, a)), a.unbind(1)),
        lambda a: (a.T, a.mT, a.data * 2, a.detach() * 2, a.real * 1),
        lambda a: (a.max(dim=1), a.topk(2), a[0], a[:, 1], a[a[:, 0].argsort()], a.chunk(2)),
        lambda a: torch.vmap(lambda row: row * 2)(a),
    ]:
        check(function, positive)

    def pair(a):
        x, y = a
        return x * y

    check(pair, lambda: made(value=value[:2]))
    """)


def test_gradients(run):
    run("""
    def partly(a):
        with torch.no_grad():
            b = a * 2
        return b, a * b, a.detach() * 3

    def mixed(a, w):
        with torch.autocast("xla", dtype=torch.bfloat16):
            return F.linear(a, w)

    again = functools.partial(torch.utils.checkpoint.checkpoint, lambda x: (x * x).sin())
    index = torch.arange(16) % 8
    for function, make in [
        (lambda a: (a * a).sin(), leaf),
        (lambda a: (a * a).sin(), lambda: made(grid, [S1, R]).requires_grad_()),
        (lambda a, w: F.linear(a, w).relu(), lambda: (made(), leaf(placements=[S1]))),
        (lambda a: Triple.apply(a) * 2, leaf),
        (partly, leaf),
        (mixed, lambda: (made(), leaf())),
        (lambda a: again(a, use_reentrant=False), leaf),
        (lambda w, i: F.embedding(i, w), lambda: (leaf(), index.to(device))),
        (lambda a, i: F.cross_entropy(a, i), lambda: (leaf(), index.to(device))),
        (lambda a: F.layer_norm(a, (8,)), leaf),
    ]:
        check(function, make, backward=True)
    # What a graph does not hold breaks it; a hook on an argument is none of its values.
    check(lambda a: a.register_hook(lambda g: g * 2) and a * 3, leaf, backward=True, breaks=None)
    check(lambda a: (a * 2).requires_grad_(), made, breaks=None)

    p = leaf()
    y = torch.compile(lambda a: (a * a).sin(), backend="openxla")(p)
    y.sum().backward()
    assert type(p.grad) is XLAShardedTensor and p.grad.device_mesh is flat and p.grad is p.grad
    plain = value.clone().requires_grad_()
    (plain * plain).sin().sum().backward()
    close(p.grad, plain.grad)
    """)


def test_what_DTensors_are_asked_inside(run):  # noqa: N802
    run("""
    for backward in (False, True):
        make = leaf if backward else made
        placed = [lambda: make(), lambda: make(grid, [S0, S1]), lambda: make(placements=[S1])]
        for function in [
            lambda a: a.to_local() * 2,
            lambda a: a.to_local(grad_placements=[S1] * a.device_mesh.ndim) * 2,
            lambda a: a.full_tensor() * 2,
            lambda a: a.redistribute(placements=[S1] + [R] * (a.device_mesh.ndim - 1)).sin(),
            lambda a: a.redistribute(grid, [S1, S0]) * a.to_local(),
            lambda a: a.redistribute(placements=a.placements, backward_dtype=torch.bfloat16).sin(),
            lambda a: DTensor.from_local(a.to_local() * 2, a.device_mesh, a.placements).sin(),
        ]:
            check(function, *placed, backward=backward)
        check(lambda a: a.redistribute(tp, [S1]) * 2, lambda: make(dp, [S0]),
              lambda: make(grid, [S0, S1]), graphs=2, backward=backward)
    # How a plain tensor is split is not known within a graph: the compiler splits it on a sub-mesh.
    within = lambda a: DTensor.from_local(a, grid["tp"], [S1]) * 2
    y = torch.compile(within, backend="openxla", fullgraph=True)(made(grid, [R, R]).to_local())
    assert type(y) is XLAShardedTensor and y.device_mesh == tp
    close(y, value * 2)
    check(lambda a: a.to_local(), made)
    check(lambda a: (a * 2, a.device_mesh, a.placements, a.sharding_spec), made,
          lambda: made(placements=[S1]), lambda: made(grid, [S0, S1]), graphs=3)
    check(lambda a: (a * 2).device_mesh, made)
    check(lambda a: a * a.device_mesh.size() * a.device_mesh.ndim, made,
          lambda: made(grid, [S0, R]), graphs=2)
    check(lambda a: a * 2 if a.placements[0].is_shard(0) else a * 3, made,
          lambda: made(placements=[S1]), lambda: made(placements=[R]), graphs=3)
    inside = []
    def placements(a):
        inside.append((a * 2).placements)
        return (a * 2).redistribute(placements=[S1]).placements
    check(placements, made)
    assert inside == [(ByCompiler(),)] * 2
    check(lambda a, mesh, said: DTensor.from_local(a, mesh, said) * 2,
          lambda: (value.to(device), flat, [S0]), lambda: (value.to(device), grid, (S0, S1)),
          lambda: (value.to(device), flat, [S1]), graphs=3)
    check(lambda a: xs.mark_sharding_with_gradients(a * 2, mesh, ("data", "model")) * 1, leaf,
          backward=True)
    """)


def test_what_a_graph_does_not_hold(run):
    run(r"""
    check(lambda a: distribute_tensor(a.to_local() * 2, flat, [S1]) * 3, made, breaks=True)
    check(lambda a: distribute_tensor(a, flat, [S1]) * 3, lambda: value.to(device).requires_grad_(),
          breaks=True, backward=True)
    check(lambda a: dt.zeros(16, 8, device_mesh=flat, placements=[S0]) + a, made, breaks=True)
    check(lambda a: a.tolist(), made, breaks=True)
    check(lambda a: a * a.sum().item(), made, breaks=True)
    def whole(function):
        return torch.compile(function, backend="openxla", fullgraph=True)
    broken = functools.partial(torch.compile, backend="openxla")
    with pytest.raises(Exception, match="in a graph, use DTensor.from_local"):
        whole(lambda a: distribute_tensor(a.to_local(), flat, [S1]))(made())
    for full, refused, misfit in ((whole, Exception, Exception),
                                  (broken, NotImplementedError, ValueError)):
        with pytest.raises(refused, match=r"expected Shard or Replicate .*got Partial\(sum\)"):
            full(lambda a: a.redistribute(placements=[Partial()]))(made())
        with pytest.raises(misfit, match="a placement for each of the 1 mesh dimensions"):
            full(lambda a: DTensor.from_local(a.to_local(), flat, [S0, S1]))(made())
    def caught(a):
        try:
            return a.redistribute(placements=[Shard(5)])
        except ValueError:
            return a * 2
    check(caught, made, breaks=None)
    """)


def test_guards(run):
    run("""
    twice = lambda a: (a * 2).sin()
    other = init_device_mesh("xla", (2, 4), mesh_dim_names=("dp", "tp"))
    # One graph for a mesh, whatever the placements, and a program for each of them.
    check(twice, made, lambda: made(placements=[S1]), lambda: made(placements=[R]), made, graphs=1)
    check(twice, made, lambda: made(init_device_mesh("xla", (8,))), graphs=1)
    for make in [
        lambda: made(grid, [S0, S1]),
        lambda: value.to(device),
        lambda: made(value=torch.randn(16, 8).bfloat16()),
        lambda: made(value=torch.randn(16, 8, 2)),
        leaf,
    ]:
        check(twice, made, make, made, make, graphs=2)
    check(twice, lambda: made(grid["dp"]), lambda: made(other["dp"]), graphs=2)
    cube = init_device_mesh("xla", (2, 2, 2), mesh_dim_names=("a", "b", "tp"))
    assert cube["tp"] == tp  # but they are slices of other meshes
    check(lambda a, m: a.redistribute(m, [S1]) * 2, lambda: (made(grid, [S0, R]), tp),
          lambda: (made(cube, [S0, R, R]), cube["tp"]), graphs=2)
    sizes = [lambda n=n: made(value=torch.randn(n, 8)) for n in (16, 24, 40, 64)]
    check(lambda a: a * a.shape[0], *sizes, dynamic=True, graphs=1)
    check(lambda a: a * a.shape[0], *sizes, graphs=2)
    check(lambda a, b: a + b, lambda: (made(), made(grid, [S0, R])),
          lambda: (made(grid, [S0, R]), made()), graphs=2)
    """)


def test_writes_views_and_aliases(run):
    run("""
    def write(a):
        a.mul_(2)
        a[0] = 1
        return a + 1

    def views(a):
        b = a[2:4]
        b.add_(5)
        c = a.view(8, 16)
        c[0].zero_()
        return b, c, a.t(), a

    def step(p, g):
        with torch.no_grad():
            p.add_(g, alpha=-1)
            p.data.mul_(2)
        return isinstance(p, DTensor)

    def first(a, b):
        a.add_(1)
        return b * 2

    for function, make in [
        (write, made),
        (lambda a: a.mul_(2), made),
        (lambda a: (a * 1).mul_(2).add_(1), made),
        (views, made),
        (lambda a: (a.to_local().mul_(2), a * 1), made),
        (lambda a: (a.detach().mul_(2), a * 1), made),
        (lambda a, b: (a.copy_(b), a * 1), lambda: (made(), made(placements=[S1]))),
        (lambda a, b: (b.copy_(a), a * 1), lambda: (made(), value.to(device))),
        (step, lambda: (leaf(), made(placements=[S1]))),
        (first, lambda: (lambda a: (a, a))(made())),
        (first, lambda: (lambda a: (a, a[2:4]))(made())),
        (first, lambda: (lambda a: (a, a.to_local()))(made())),
        (first, lambda: (lambda a: (a.to_local(), a))(made())),
    ]:
        check(function, make)
    """)


def test_tensors_of_mark_sharding(run):
    run("""
    def marked(wants=False):
        return xs.mark_sharding(value.to(device).requires_grad_(wants), mesh, ("data", None))

    for function in (lambda a: (a * 2).sin(), lambda a: a.add_(1) * 2, lambda a: a.to_local() * 2):
        check(function, marked)
    where = marked(wants=True)
    torch.compile(lambda a: a * a, backend="openxla", fullgraph=True)(where).sum().backward()
    close(where.global_tensor.grad, 2 * value)
    """)


TRAINING = """
class Net(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.a, self.b, self.n = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)
        self.register_buffer("scale", torch.full((8,), 2.0))
        self.tied = tied

    def forward(self, x):
        h = F.relu(self.a(x))
        return self.n(F.linear(h, self.a.weight.t()) if self.tied else self.b(h)) * self.scale

def distributed(tied=False):
    "A module whose parameters and buffers are DTensors."
    net = Net(tied).to(device)
    places = [(net.a, "weight", S0), (net.a, "bias", S0), (net.b, "weight", S1)]
    for module, name, placement in places:
        split = distribute_tensor(getattr(module, name), flat, [placement])
        setattr(module, name, nn.Parameter(split))
    net.scale = distribute_tensor(net.scale, flat, [R])
    return net

def parallel(mesh, columns=(), rows=(), **more):
    plan = {"a": ColwiseParallel(**dict(columns)), "b": RowwiseParallel(**dict(rows)), **more}
    return parallelize_module(Net().to(device), mesh, plan)

policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
plain = lambda: torch.randn(16, 8).to(device)
split = lambda: made(dp, [S0], torch.randn(16, 8))
local = {"use_local_output": False}
make, data = {
    "DTensors": (distributed, plain),
    "tied": (lambda: distributed(True), lambda: made(value=torch.randn(16, 8))),
    "columns": (lambda: parallel(flat), plain),
    "outputs": (lambda: parallel(flat, local, local), plain),
    "sequence": (lambda: parallel(tp, rows={"output_layouts": S0}, n=SequenceParallel(
        sequence_dim=0)), plain),
    "fully_shard": (lambda: fully_shard(Net().to(device), mesh=flat), plain),
    "both": (lambda: fully_shard(parallel(tp), mesh=dp), split),
    "dtypes": (lambda: fully_shard(Net(), mesh=flat, mp_policy=policy), plain),
}[kind]

def train(compiled, optimizer_of, steps, compiled_step=False):
    torch.manual_seed(1)
    model = make()
    optimizer = optimizer_of(model.parameters())
    call = torch.compile(model, backend="openxla", fullgraph=True) if compiled else model
    step = torch.compile(optimizer.step, backend="openxla") if compiled_step else optimizer.step
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        y = call(data())
        loss = y.square().mean()
        loss.backward()
        step()
        torch_xla.sync()
        losses.append((type(y), loss.item()))
    state = [t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)]
    return losses, model, state, call

def seen_of(model):
    return [(name, seen(p), seen(p.grad)) for name, p in model.named_parameters()]
"""


LONG = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("tied", "outputs", "dtypes")]


@pytest.mark.parametrize("kind", ["DTensors", "columns", "sequence", "fully_shard", "both", *LONG])
def test_modules_learn_as_without_compilation(run, kind):
    run(
        TRAINING
        + """
adam = lambda parameters: torch.optim.AdamW(parameters, lr=0.01)
steps = 20 if kind in ("DTensors", "both") else 4
want, reference, state, _ = train(False, adam, steps)
counters.clear()
got, model, compiled_state, call = train(True, adam, steps)
assert got == want and got[-1][1] < got[0][1]
assert seen_of(model) == seen_of(reference)
assert [seen(s) for s in compiled_state] == [seen(s) for s in state]
# The second graph is that of parameters with a gradient of another dtype: those of the policy.
assert sum(counters["graph_break"].values()) == 0
saved = {name.removeprefix("_orig_mod."): t for name, t in call.state_dict().items()}
assert saved.keys() == reference.state_dict().keys()
for name, t in reference.state_dict().items():
    assert seen(saved[name]) == seen(t)
call.load_state_dict({f"_orig_mod.{name}": torch.zeros_like(t) for name, t in saved.items()})
def splits(model):  # what waits has no split yet
    return [spec(p).replace("{replicated}", "") for p in model.parameters()]

assert splits(model) == splits(reference)
assert not any(p.any() for p in model.parameters())
""",
        kind=kind,
    )


@pytest.mark.parametrize("kind", ["DTensors", "both"])
def test_compiled_optimizers(run, kind):
    run(
        TRAINING
        + """
for make_optimizer in (
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=False),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
):
    torch._dynamo.reset()
    want, reference, state, _ = train(False, make_optimizer, 6)
    got, model, compiled_state, _ = train(True, make_optimizer, 6, compiled_step=True)
    torch.testing.assert_close([x for _, x in got], [x for _, x in want], rtol=1e-3, atol=1e-3)
    for p, q in zip(model.parameters(), reference.parameters()):
        assert type(p) is type(q) and spec(p) == spec(q) and spec(p.grad) == spec(q.grad)
        close(p, q.full_tensor().cpu() if isinstance(q, DTensor) else q.cpu(), rtol=1e-3, atol=1e-3)
        torch._dynamo.reset()  # the step has marked its parameters
        assert type(torch.compile(lambda x: x * 2, backend="openxla")(p)) is type(q * 2)
    for s, t in zip(compiled_state, state):
        assert device not in (s.device, t.device) or s.dim() == 0 or spec(s) == spec(t)
""",
        kind=kind,
    )


def test_copies_and_resets(run):
    run(
        TRAINING
        + """
torch.manual_seed(1)
model = make()
call = torch.compile(model, backend="openxla", fullgraph=True)
x = data()
before = call(x).full_tensor()
want = seen(call(x))
other = copy.deepcopy(call)
assert type(other.a.weight) is XLAShardedTensor and seen(other(x)) == want
with torch.no_grad():
    other.a.weight.zero_()
assert seen(call(x)) == want != seen(other(x))
torch._dynamo.reset()
assert seen(call(x)) == want
moved = made(grid, [S0, S1], model.a.weight.detach().cpu())
model.a.weight = nn.Parameter(moved)  # on another mesh now
y = call(x)
close(y, before.cpu(), rtol=1e-5, atol=1e-5)
y.sum().backward()
assert model.a.weight.grad.device_mesh == grid
""",
        kind="DTensors",
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "tied", "checkpointed"])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_transformer_of_pytorchs_tests(run, kind, sharded):
    run(
        PLANS
        + """
plain = build(kind)
model = Transformer.parallelize(copy.deepcopy(plain).to(device), tp, True)
if sharded:
    fully_shard(model, mesh=dp)
    model.to(device)
compiled = torch.compile(model, backend="openxla", fullgraph=True)
train(plain, compiled, lambda t: t.to(device), rtol=1e-4, atol=1e-4)
""",
        kind=kind,
        sharded=sharded,
    )


def test_dtensors_of_other_devices_are_pytorchs(run_python):
    run_python("""
        import torch, torch.distributed as dist
        import torch_xla
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (1,))

        def function(t):
            d = DTensor.from_local(t * 2, mesh, [Shard(0)])
            return d.redistribute(placements=[Shard(1)]).to_local().sin(), d * 2

        t = torch.randn(4, 4)
        local, d = torch.compile(function, backend="aot_eager", fullgraph=True)(t)
        assert type(d) is DTensor and type(local) is torch.Tensor
        torch.testing.assert_close(local, (t * 2).sin())
        dist.destroy_process_group()
        """)


def test_whoever_is_imported_first(run_python):
    run_python(
        """
        import torch, torch._dynamo
        torch.compile(lambda t: t * 2, backend="eager")(torch.ones(2))
        from torch.distributed.tensor import DTensor, Shard
        import torch_xla
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("xla", (8,))
        def function(t):
            return DTensor.from_local(t, mesh, [Shard(0)]) * 2
        x = torch.randn(8, 8)
        for _ in range(2):
            y = torch.compile(function, backend="openxla", fullgraph=True)(x.to("xla"))
            torch_xla.sync()
            assert y.placements == (Shard(0),), y.sharding_spec
            z = torch.compile(lambda d: d + 1, backend="openxla", fullgraph=True)(y)
            torch.testing.assert_close(z.full_tensor().cpu(), x * 2 + 1)
            torch._dynamo.reset()
        """,
        env=EIGHT,
    )
