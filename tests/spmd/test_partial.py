"""DTensors with `Partial` on an xla mesh: values and gradients as PyTorch defines them, against
what is written out on the CPU."""

from __future__ import annotations

import pytest

from tests.spmd.test_dtensor import DTENSOR
from tests.spmd.test_manual_sharding import PARTS
from tests.spmd.test_sharding import PRELUDE, runner

HELD = """
REDUCED = {"sum": lambda t: t.sum(0), "avg": lambda t: t.mean(0), "max": lambda t: t.amax(0),
           "min": lambda t: t.amin(0), "product": lambda t: t.prod(0)}
cube = init_device_mesh("xla", (2, 2, 2), mesh_dim_names=("a", "b", "c"))

def at_of(on):
    "Of each device its index along each dimension of a mesh."
    return {int(on.mesh[at]): at for at in np.ndindex(tuple(on.shape))}

def held_by(on, placements, sizes, dtype=torch.float64):
    "A value of each device, and the whole that they make."
    at = at_of(on)
    split = [i for i, p in enumerate(placements) if isinstance(p, Shard)]
    partial = [i for i, p in enumerate(placements) if isinstance(p, Partial)]
    counts = [math.prod(on.size(i) for i in split if placements[i].dim == d)
              for d in range(len(sizes))]
    part = [s // c for s, c in zip(sizes, counts)]
    drawn = {}
    for d, where in at.items():
        key = tuple(w for i, w in enumerate(where) if i in split or i in partial)
        drawn.setdefault(key, torch.randn(part, dtype=torch.float64).mul(4).to(dtype))
    each = [drawn[tuple(w for i, w in enumerate(at[d]) if i in split or i in partial)]
           for d in range(N)]
    return each, whole_of(on, placements, each)

def whole_of(on, placements, each):
    at = at_of(on)
    def make(where, rest):
        "Along one dimension after the other, the last ones first reduced."
        if not rest:
            return each[next(d for d, w in at.items() if w == where)]
        i, p = rest[0], placements[rest[0]]
        joins = [make((*where[:i], k, *where[i + 1:]), rest[1:])
                for k in range(on.size(i) if not isinstance(p, Replicate) else 1)]
        if isinstance(p, Shard):
            return torch.cat(joins, p.dim)
        return REDUCED[p.reduce_op](torch.stack(joins)) if isinstance(p, Partial) else joins[0]
    return make((0,) * on.ndim, list(range(on.ndim)))

def of_each(on, placements, value):
    "Of each device, its part of a value."
    at = at_of(on)
    def part(d):
        t = value
        for i, p in enumerate(placements):
            if isinstance(p, Shard):
                t = t.chunk(on.size(i), p.dim)[at[d][i]]
        return t
    return [part(d) for d in range(N)]

def manual(each):
    "A manual tensor of which each device has its own."
    stacked = torch.stack(each).to(device)
    over = xs.Mesh(np.arange(N), (N,), ("all",))
    return xs.enable_manual_sharding(stacked, ("all",) + (None,) * (stacked.dim() - 1),
                                     mesh=over).global_tensor[0]

LAYOUTS = [(flat, [Partial()]), (grid, [Partial(), Replicate()]), (grid, [Replicate(), Partial()]),
           (grid, [Partial(), Partial()]), (grid, [Partial(), Shard(0)]),
           (grid, [Shard(1), Partial()]), (cube, [Shard(0), Partial(), Shard(0)]),
           (cube, [Partial(), Shard(1), Partial()])]
"""


@pytest.fixture
def run(run_python):
    """Runs code in an SPMD process of eight devices."""

    return runner(run_python, PRELUDE + "import math\n" + DTENSOR + PARTS + HELD)


def test_what_devices_hold_is_reduced(run):
    run("""
    for on, said in LAYOUTS:
        for name in REDUCED:
            placements = [Partial(name) if isinstance(p, Partial) else p for p in said]
            each, want = held_by(on, placements, (16, 8))
            for between in (lambda: None, torch_xla.sync):
                d = DTensor.from_local(manual(each), on, placements)
                between()
                assert isinstance(d, DTensor) and d.placements == tuple(placements)
                assert d.shape == (16, 8) and d.device_mesh is on and d.dtype == torch.float64
                between()
                close(d.full_tensor(), want)
                check_parts(d.to_local(), each)
                assert spec(d.redistribute(placements=[Replicate()] * on.ndim)) in (
                    "", "{replicated}")
                for target in (Shard(0), Shard(1)):
                    to = [target if isinstance(p, Partial) else p for p in placements]
                    e = d.redistribute(placements=to)
                    assert e.placements == tuple(to) and spec(e) == spec(
                        distribute_tensor(want, on, to)), (said, to, spec(e))
                    between()
                    close(e, want)
                # Operators compute with the whole.
                made = (d * 2 + 1).sin() @ d.T
                assert type(made) is type(distribute_tensor(want, on))
                close(made, (want * 2 + 1).sin() @ want.T)
    """)


def test_a_plain_tensor_is_what_each_device_holds(run):
    run("""
    value = torch.randn(16, 8, dtype=torch.float64)
    for on, said in LAYOUTS:
        n = math.prod(on.size(i) for i, p in enumerate(said) if isinstance(p, Partial))
        for name, want in (("sum", value * n), ("avg", value), ("max", value), ("min", value)):
            placements = [Partial(name) if isinstance(p, Partial) else p for p in said]
            leaf = value.to(device).requires_grad_()
            d = DTensor.from_local(leaf, on, placements)
            assert d.placements == tuple(placements) and d.shape == (16, 8)
            close(d, want)
            # As in PyTorch, each device's gradient is that of the whole.
            weight = torch.randn(16, 8, dtype=torch.float64)
            (d.full_tensor() * weight.to(device)).sum().backward()
            assert type(leaf.grad) is torch.Tensor
            close(leaf.grad, weight)
            leaf.grad = None
            (d.redistribute(placements=[Shard(0)] * on.ndim) * weight.to(device)).sum().backward()
            close(leaf.grad, weight)
            leaf.grad = None
            ((d * weight.to(device)).sum() + d.full_tensor().sum()).backward()
            close(leaf.grad, weight + 1)
    # Of the CPU, as any local tensor.
    close(DTensor.from_local(torch.ones(4, 4), flat, [Partial()]), torch.full((4, 4), 8.0))
    # Along a sub-mesh.
    close(DTensor.from_local(torch.ones(4, 4), tp, [Partial()]), torch.full((4, 4), 2.0))
    close(DTensor.from_local(torch.ones(4, 4), dp, [Partial()]), torch.full((4, 4), 4.0))
    # Sizes that do not divide.
    odd = torch.randn(7, 3)
    d = DTensor.from_local(odd, grid, [Partial(), Shard(0)])
    assert d.placements == (Partial(), Shard(0)) and d.to_local().shape == (7, 3)
    close(d, odd * 4)
    close(d.redistribute(placements=[Shard(1), Shard(0)]), odd * 4)
    """)


def test_gradients_are_those_of_the_whole(run):
    run("""
    for on, said in LAYOUTS:
        for name in REDUCED:
            placements = [Partial(name) if isinstance(p, Partial) else p for p in said]
            each, want = held_by(on, placements, (16, 8))
            for target in (Replicate(), Shard(0), Shard(1), None):
                held = manual(each).requires_grad_()
                d = DTensor.from_local(held * 1, on, placements)
                torch_xla.sync()
                to = [target if isinstance(p, Partial) else p for p in placements]
                e = d.full_tensor() if target is None else d.redistribute(placements=to)
                weight = torch.randn(16, 8, dtype=torch.float64)
                (e * weight.to(device)).sum().backward()
                torch_xla.sync()
                copies = math.prod(on.size(i) for i, p in enumerate(placements)
                                   if isinstance(p, Replicate))
                # Of copies, each device has a share of the gradient.
                keep = [p if isinstance(p, Shard) else Replicate() for p in placements]
                parts = of_each(on, keep, weight)
                check_parts(held.grad, [p / copies for p in parts])
    """)


def test_some_dimensions_stay_partial(run):
    run("""
    for name in REDUCED:
        P = Partial(name)
        for on, before, after in [
            (grid, [P, P], [P, Replicate()]), (grid, [P, P], [Shard(0), P]),
            (grid, [P, Shard(0)], [P, Replicate()]), (grid, [P, Shard(0)], [P, Shard(1)]),
            (grid, [P, P], [P, P]), (cube, [P, Shard(0), P], [P, Shard(1), Shard(0)]),
            (cube, [Shard(0), P, Replicate()], [Replicate(), P, Shard(0)]),
        ]:
            each, want = held_by(on, before, (16, 8))
            held = manual(each).requires_grad_()
            d = DTensor.from_local(held, on, before).redistribute(placements=after)
            assert d.placements == tuple(after) and spec(d.to_local()) == "{manual}"
            close(d, want)
            close(DTensor.from_local(d.to_local(), on, after), want)
            weight = torch.randn(16, 8, dtype=torch.float64)
            (d.full_tensor() * weight.to(device)).sum().backward()
            copies = math.prod(on.size(i) for i, p in enumerate(before) if p == Replicate())
            keep = [p if isinstance(p, Shard) else Replicate() for p in before]
            check_parts(held.grad, [p / copies for p in of_each(on, keep, weight)])
    """)


def test_distributed_and_leaves(run):
    run("""
    value = torch.randn(16, 8, dtype=torch.float64)
    for on, said in LAYOUTS:
        for name in ("sum", "avg", "max", "min"):
            placements = [Partial(name) if isinstance(p, Partial) else p for p in said]
            d = distribute_tensor(value.clone().requires_grad_(), on, placements)
            assert d.is_leaf and d.requires_grad and d.placements == tuple(placements)
            n = math.prod(on.size(i) for i, p in enumerate(said) if isinstance(p, Partial))
            each = d.detach().to_local()
            part = of_each(on, [p if isinstance(p, Shard) else Replicate() for p in said], value)
            check_parts(each, [p / n if name == "sum" else p for p in part])
            close(d, value)
            close(DTensor.from_local(each, on, placements), value)
            for use in (lambda d: d.full_tensor().sin().sum(), lambda d: d.sin().sum(),
                        lambda d: d.redistribute(placements=[Shard(0)] * on.ndim).sin().sum(),
                        lambda d: DTensor.from_local(d.to_local(), on, placements).sin().sum(),
                        lambda d: d.redistribute(placements=placements).sin().sum()):
                d.grad = None
                use(d).backward()
                assert isinstance(d.grad, DTensor) and not any(
                    isinstance(p, Partial) for p in d.grad.placements)
                close(d.grad, value.cos())
    p = nn.Parameter(distribute_tensor(value, flat, [Partial()]))
    assert p.placements == (Partial(),) and isinstance(p, nn.Parameter)
    optimizer = torch.optim.SGD([p], lr=0.5)
    p.full_tensor().square().sum().backward()
    optimizer.step()
    close(p, torch.zeros_like(value))
    assert p.placements != (Partial(),)  # the whole was written
    for made in (copy.deepcopy(distribute_tensor(value, flat, [Partial()])),
                 pickle.loads(pickle.dumps(distribute_tensor(value, flat, [Partial()])))):
        assert made.placements == (Replicate(),)
        close(made, value)
    """)


def test_gradients_of_what_is_local(run):
    run("""
    each, want = held_by(grid, [Partial(), Shard(0)], (16, 8))
    for back, summed in ((None, False), ([Replicate(), Shard(0)], False),
                         ([Partial(), Shard(0)], True)):
        held = manual(each).requires_grad_()
        d = DTensor.from_local(held, grid, [Partial(), Shard(0)])
        local = d.to_local(grad_placements=back)
        assert type(local) is torch.Tensor and local.shape == (8, 8)
        plain = [p.clone().requires_grad_() for p in each]
        (local.sin() * local.sum()).sum().backward()
        for p in plain:
            (p.sin() * p.sum()).sum().backward()
        grads = [p.grad for p in plain]
        if summed:
            at = at_of(grid)
            grads = [sum(g for e, g in enumerate(grads) if at[e][1] == at[d][1]) for d in range(N)]
        check_parts(held.grad, grads)
    # Writing the copy leaves the DTensor as it is.
    local = d.detach().to_local().zero_()
    close(d, want)
    # Second derivatives.
    leaf = torch.randn(16, 8, dtype=torch.float64)
    plain, x = leaf.clone().requires_grad_(), leaf.to(device).requires_grad_()
    for target in ([Replicate()] * 2, [Shard(1), Shard(0)], [Shard(0), Shard(0)]):
        x.grad = plain.grad = None
        y = DTensor.from_local(x ** 3, grid, [Partial("avg"), Shard(0)])
        y = y.redistribute(placements=target)
        for out, t in ((y, x), (plain ** 3, plain)):
            (g,) = torch.autograd.grad(out.sin().sum(), t, create_graph=True)
            (g * g).sum().backward()
        close(x.grad, plain.grad)
    """)


def test_writes_and_views(run):
    run("""
    each, want = held_by(flat, [Partial()], (16, 8))
    for write in (lambda t: t.add_(1), lambda t: t[0].mul_(3), lambda t: t.zero_(),
                  lambda t: t.copy_(t.flip(0)), lambda t: t.masked_fill_(t > 0, 2.0)):
        d = DTensor.from_local(manual(each), flat, [Partial()])
        mine = want.clone()
        for t in (d, mine):
            write(t)
        assert not any(isinstance(p, Partial) for p in d.placements)
        close(d, mine)
        close(d.redistribute(placements=[Shard(0)]), mine)
        close(d.to_local(), mine)
        assert "Partial" not in repr(d)
    # What it was made of may be written.
    held = manual(each)
    d = DTensor.from_local(held, flat, [Partial()])
    held.zero_()
    close(d, want)
    check_parts(d.to_local(), each)
    with torch.inference_mode():
        d = DTensor.from_local(torch.ones(16, 8), flat, [Partial()])
        close(d.redistribute(placements=[Shard(0)]), torch.full((16, 8), 8.0))
        d[0].add_(1)
        close(d.redistribute(placements=[Shard(0)])[:1], torch.full((1, 8), 9.0))
    text = repr(DTensor.from_local(torch.ones(2), flat, [Partial("max")]))
    assert "Partial(max)" in text and "1., 1." in text, text
    """)


def test_several_uses_and_hooks(run):
    run("""
    each, want = held_by(flat, [Partial()], (16, 8))
    plain = [p.clone().requires_grad_() for p in each]
    held = manual(each).requires_grad_()
    d = DTensor.from_local(held, flat, [Partial()])
    total = sum(plain)
    for t, uses in ((total, [total, total]), (d, [
            d.redistribute(placements=[Shard(0)]), d.redistribute(placements=[Partial()])])):
        (uses[0].sin().sum() + (t * t).sum() + uses[1].tanh().sum()).backward()
    check_parts(held.grad, [p.grad for p in plain])
    value = torch.randn(16, 8, dtype=torch.float64)
    for use in (lambda d: d.redistribute(placements=[Shard(0)]), lambda d: d.full_tensor(),
                lambda d: d * 1):
        x, seen = value.to(device).requires_grad_(), []
        d = DTensor.from_local(x, flat, [Partial()])
        d.retain_grad()
        d.register_hook(seen.append)
        use(d).sin().sum().backward()
        close(d.grad, (value * 8).cos())
        close(x.grad, (value * 8).cos())
        assert len(seen) == 1
    # Meshes in another order of the devices, and dimensions that are joined.
    turned = DeviceMesh("xla", torch.tensor([3, 1, 0, 2, 7, 6, 4, 5]).reshape(4, 2),
                        mesh_dim_names=("x", "y"))
    for said in ([Partial(), Partial()], [Partial(), Shard(0)], [Shard(1), Partial("avg")]):
        each, want = held_by(turned, said, (16, 8))
        held = manual(each)
        torch_xla.sync()
        d = DTensor.from_local(held, turned, said)
        close(d, want)
        for target in (Shard(0), Shard(1)):
            to = [target if isinstance(p, Partial) else p for p in said]
            e = d.redistribute(placements=to)
            assert e.placements == tuple(to)
            close(e, want)
    flattened = cube["a", "b"]._flatten("ab")
    d = DTensor.from_local(value, flattened, [Partial()])
    close(d.redistribute(placements=[Shard(0)]), value * 4)
    """)


def test_dtypes(run):
    run("""
    for dtype in (torch.int32, torch.int64, torch.uint8, torch.bool):
        value = torch.randint(0, 2 if dtype == torch.bool else 9, (8, 4)).to(dtype)
        d = DTensor.from_local(value, grid, [Partial("max"), Shard(0)])
        assert d.dtype == dtype
        close(d, value)
        if dtype != torch.bool:
            close(DTensor.from_local(value, grid, [Partial(), Shard(0)]), value * 4)
            close(DTensor.from_local(value, grid, [Partial("avg"), Shard(0)]), value)
        for name in ("band", "bor"):
            close(DTensor.from_local(value, flat, [Partial(name)]), value)
        close(DTensor.from_local(value, flat, [Partial("bxor")]), value ^ value)
    each, want = held_by(flat, [Partial("avg")], (16, 8))
    ints = [p.round().long() for p in each]
    d = DTensor.from_local(manual(ints), flat, [Partial("avg")])
    close(d, torch.stack(ints).sum(0).div(8, rounding_mode="trunc"))
    close(d.redistribute(placements=[Shard(0)]), d.full_tensor().cpu())
    each, want = held_by(flat, [Partial()], (16, 8))
    held = manual(each).float().requires_grad_()
    d = DTensor.from_local(held, flat, [Partial()])
    for to in ([Replicate()], [Shard(0)]):
        held.grad = None
        e = d.redistribute(placements=to, forward_dtype=torch.float64,
                           backward_dtype=torch.bfloat16)
        assert e.dtype == torch.float64 and e.placements == tuple(to)
        close(e, want, rtol=1e-5, atol=1e-5)
        weight = torch.randn(16, 8)
        (e.sin() * 0 + e * weight.to(device)).sum().backward()
        assert held.grad.dtype == torch.float32
        check_parts(held.grad, [weight.bfloat16().float()] * N)
    """)


def test_scattering_sends_parts(run):
    run("""
    from torch_xla.distributed.spmd.debugging import collectives
    each, want = held_by(flat, [Partial()], (16, 8), torch.float32)
    held = manual(each)
    torch_xla.sync()
    e = DTensor.from_local(held, flat, [Partial()]).redistribute(placements=[Shard(0)])
    torch_xla.sync()
    assert [kind for kind, _ in collectives()] == ["reduce-scatter"], collectives()
    e = DTensor.from_local(held, flat, [Partial()]).redistribute(placements=[Replicate()])
    torch_xla.sync()
    assert [kind for kind, _ in collectives()] == ["all-reduce"], collectives()
    # The gradient of a sum is sent nowhere.
    leaf = torch.randn(16, 8).to(device).requires_grad_()
    held.requires_grad_()
    whole, plain = (DTensor.from_local(t, flat, [Partial()]).full_tensor() for t in (held, leaf))
    torch_xla.sync()
    (whole.sin() + plain.sin()).sum().backward()
    torch_xla.sync()
    assert collectives() == [], collectives()
    close(leaf.grad, plain.cos().cpu())
    """)


def test_what_is_refused(run):
    run("""
    value = torch.randn(16, 8)
    whole = distribute_tensor(value, grid, [Replicate(), Shard(0)])
    with pytest.raises(RuntimeError, match="redistribute: expected Shard or Replicate.*make it"):
        whole.redistribute(placements=[Partial(), Shard(0)])
    d = DTensor.from_local(value, grid, [Partial(), Shard(0)])
    for bad in ([Partial("max"), Shard(0)], [Replicate(), Partial()]):
        with pytest.raises(RuntimeError, match="expected Shard or Replicate where the tensor has"):
            d.redistribute(placements=bad)
    with pytest.raises(RuntimeError, match="expected placements, got none"):
        d.redistribute()
    for make in (DTensor.from_local, distribute_tensor):
        with pytest.raises(ValueError, match="one reduction in all Partial placements"):
            make(value, grid, [Partial(), Partial("max")])
        make(value, grid, [Partial(), Partial("avg")])
        with pytest.raises(ValueError, match="a placement for each of the 2"):
            make(value, grid, [Partial()])
    for name in ("product", "bor"):
        with pytest.raises(ValueError, match="expected a sum, avg, min or max in Partial"):
            distribute_tensor(value, flat, [Partial(name)])
    with pytest.raises(TypeError, match="floating-point tensor for Partial"):
        distribute_tensor(torch.arange(8), flat, [Partial()])
    with pytest.raises(TypeError, match="integers or booleans for 'band'"):
        DTensor.from_local(value, flat, [Partial("band")])
    with pytest.raises(ValueError, match="expected one of"):
        DTensor.from_local(value, flat, [Partial("median")])
    with pytest.raises(ValueError, match="the shape"):
        DTensor.from_local(value, grid, [Partial(), Shard(0)], shape=torch.Size([32, 8]),
                           stride=(8, 1))
    """)
