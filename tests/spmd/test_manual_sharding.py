"""Manual sharding: each device computes on its own part. Values and gradients are those that
PyTorch computes for each part by itself, and nothing is sent within.

Units: executor/program/manual_run.
"""

from __future__ import annotations

import textwrap

import pytest

from tests.spmd.test_sharding import EIGHT, PRELUDE

PARTS = """
from torch_xla.distributed.spmd.debugging import collectives

def places(over):
    "Of each device, its index along each axis of a mesh."
    grid = over.get_logical_mesh()
    return {int(grid[at]): dict(zip(over.axis_names, at)) for at in np.ndindex(grid.shape)}

def part_of(value, partition, over, device):
    at = places(over)[device]
    for dim, axes in enumerate(partition):
        for axis in () if axes is None else axes if isinstance(axes, tuple) else (axes,):
            value = value.chunk(over.shape()[axis], dim)[at[axis]]
    return value

def parts_of(value, partition, over=mesh):
    return [part_of(value, partition, over, d) for d in range(N)]

def joined(parts, partition, over=mesh):
    "The value whose parts these are, as torch.cat makes it along one dimension after the other."
    def join(at, rest):
        if not rest:
            return parts[next(d for d, p in places(over).items()
                              if all(p[axis] == at.get(axis, 0) for axis in p))]
        axis, dim = rest[0]
        return torch.cat([join({**at, axis: i}, rest[1:]) for i in range(over.shape()[axis])], dim)
    order = [(axis, dim) for dim, axes in enumerate(partition) if axes is not None
             for axis in (axes if isinstance(axes, tuple) else (axes,))]
    return join({}, order)

def own(t):
    "What each device has of a manual tensor."
    assert spec(t) == "{manual}", spec(t)
    return [shard.data for shard in shards(t)]

def check_parts(t, expected, **tolerance):
    assert [tuple(p.shape) for p in expected] == [tuple(t.shape)] * N, (t.shape, expected[0].shape)
    for got, want in zip(own(t), expected, strict=True):
        torch.testing.assert_close(got, want, equal_nan=True, **tolerance)

line = xs.Mesh(np.arange(N), (N,), ("all",))
shuffled = xs.Mesh(np.array([3, 1, 0, 2, 7, 6, 4, 5]), (2, 4), ("a", "b"))
CASES = [
    (line, ("all", None)), (line, (None, "all")), (mesh, ("data", "model")),
    (mesh, ("model", "data")), (mesh, ("data", None)), (mesh, (None, "model")),
    (mesh, (("data", "model"), None)), (mesh, (None, ("model", "data"))), (mesh, (None, None)),
    (shuffled, ("a", "b")), (shuffled, ("b", None)), (shuffled, (("b", "a"), None)),
]
"""


@pytest.fixture
def run(run_python):
    """Runs code in an SPMD process of eight devices."""

    def run(code, env=None):
        return run_python(PRELUDE + PARTS + textwrap.dedent(code), env={**EIGHT, **(env or {})})

    return run


def test_each_device_gets_its_part_and_gives_it_back(run):
    run("""
    for over, partition in CASES:
        value = torch.randn(16, 8)
        for made in ("moved", "marked", "pending"):
            t = value.to(device)
            if made == "marked":
                xs.mark_sharding(t, over, (over.axis_names[0], None))
            if made == "pending":
                t = t * 1
            part = xs.enable_manual_sharding(t, partition, mesh=over)
            assert isinstance(part, xs.XLAShardedTensor), type(part)
            assert spec(part) == "{manual}" == part.sharding_spec
            assert part.sharding_type == xs.ShardingType.MANUAL
            whole = xs.disable_manual_sharding(part * 2, partition, value.shape, mesh=over)
            assert isinstance(whole, xs.XLAShardedTensor) and whole.shape == value.shape
            torch.testing.assert_close(whole.cpu(), value * 2, rtol=0, atol=0)
            check_parts(part, parts_of(value, partition, over), rtol=0, atol=0)
            torch.testing.assert_close(t.cpu(), value, rtol=0, atol=0)
            if partition != (None, None):
                assert spec(whole) == str(over.get_op_sharding(partition)), (partition, spec(whole))
    """)


def test_values_and_gradients_are_those_of_the_parts(run):
    run("""
    def check(fn, sizes, partition, over, out=None):
        "fn of a part and of what all devices share; the loss adds up what all devices make."
        out = partition if out is None else out
        value = torch.randn(*sizes, dtype=torch.float64)
        shared = torch.randn(4, dtype=torch.float64)
        plain, common = value.clone().requires_grad_(), shared.clone().requires_grad_()
        t, w = value.to(device).requires_grad_(), shared.to(device).requires_grad_()

        made = [fn(p, common) for p in parts_of(plain, partition, over)]
        want = joined(made, out, over)
        weight = torch.randn_like(want)
        (want * weight).sum().backward()

        part = xs.enable_manual_sharding(t, partition, mesh=over)
        own_w = xs.enable_manual_sharding(w, (None,), mesh=over)
        got = xs.disable_manual_sharding(fn(part, own_w), out, want.shape, mesh=over)
        (got * weight.to(device)).sum().backward()
        torch_xla.sync()
        torch.testing.assert_close(got.cpu(), want.detach())
        torch.testing.assert_close(t.grad.cpu(), plain.grad)
        torch.testing.assert_close(w.grad.cpu(), common.grad)

    for over, partition in CASES:
        check(lambda p, w: p.sin() * w.sum(), (16, 8), partition, over)
        check(lambda p, w: (p @ p.T).softmax(-1) @ p + w.mean(), (16, 8), partition, over)
        check(lambda p, w: p.cumsum(0).flip(1) + w[1], (16, 8), partition, over)
    check(lambda p, w: nn.functional.layer_norm(p, (4,), w), (16, 4), (("data", "model"), None),
          mesh)
    check(lambda p, w: nn.functional.conv2d(p, w.view(2, 2, 1, 1)), (8, 2, 6, 6),
          ("data", None, None, None), mesh)
    """)


def test_nothing_is_sent_within(run):
    run("""
    def sent():
        torch_xla.sync()
        return [kind for kind, _ in collectives()]

    t = torch.randn(16, 8).to(device).requires_grad_()
    xs.mark_sharding(t, mesh, ("data", "model"))
    torch_xla.sync()
    part = xs.enable_manual_sharding(t, ("data", "model"), mesh=mesh)
    part = (part @ part.T).softmax(-1).cumsum(0) + part.sum()
    part = part.sort(0).values.flip(0)[part.argmax(0)] @ part
    whole = xs.disable_manual_sharding(part, ("data", "model"), (16, 8), mesh=mesh)
    whole.backward(torch.ones(16, 8, device=device))
    assert sent() == [], sent()
    assert torch.isfinite(t.grad.cpu()).all()

    # The same without manual code sends; what is copied along an axis is summed once, backwards.
    u = (t.detach() @ t.detach().T).softmax(-1)
    assert sent() != []
    copied = torch.randn(16, 8).to(device).requires_grad_()
    xs.mark_sharding(copied, mesh, ("data", None))
    torch_xla.sync()
    part = xs.enable_manual_sharding(copied, ("data", None), mesh=mesh)
    xs.disable_manual_sharding(part.sin(), ("data", None), (16, 8), mesh=mesh).sum().backward()
    torch_xla.sync()
    assert [kind for kind in sent() if kind != "all-reduce"] == [], sent()
    torch.testing.assert_close(copied.grad.cpu(), copied.detach().cpu().cos())
    """)


def test_values_that_cross_a_sync(run):
    run("""
    value = torch.randn(16, 8, dtype=torch.float64)
    partition = ("data", "model")
    plain = value.clone().requires_grad_()
    t = value.to(device).requires_grad_()
    part = xs.enable_manual_sharding(t, partition, mesh=mesh)
    torch_xla.sync()
    check_parts(part, parts_of(value, partition))
    part = part.exp() + 1
    torch_xla.sync()
    mean = part.mean()
    torch_xla.sync()
    part = part / mean
    assert spec(mean) == spec(part) == "{manual}"
    torch_xla.sync()
    got = xs.disable_manual_sharding(part, partition, value.shape, mesh=mesh)
    torch_xla.sync()
    got.square().sum().backward()
    made = [(p.exp() + 1) / (p.exp() + 1).mean() for p in parts_of(plain, partition)]
    want = joined(made, partition)
    want.square().sum().backward()
    torch.testing.assert_close(got.cpu(), want.detach())
    torch.testing.assert_close(t.grad.cpu(), plain.grad)
    check_parts(mean, [(p.exp() + 1).mean() for p in parts_of(value, partition)])

    # Steps that write a manual tensor reuse its memory, and one program.
    state = xs.enable_manual_sharding(value.to(device), partition, mesh=mesh).global_tensor
    torch_xla.sync()
    for step in range(4):
        before = met.counter_value("UncachedCompile")
        state.mul_(2).add_(state.sum())
        torch_xla.sync()
    assert met.counter_value("UncachedCompile") == before
    expected = [p.clone() for p in parts_of(value, partition)]
    for p in expected:
        for step in range(4):
            p.mul_(2).add_(p.sum())
    check_parts(state, expected)
    """)


def test_views_and_writes(run):
    run("""
    value = torch.randn(16, 8)
    partition = ("data", "model")

    def writes(p):
        p[0] = 7
        p[:, 1].mul_(3)
        p.T[2:, :2] += p.sum()
        p.view(-1)[3:5] = p.view(-1)[:2].clone()
        p.masked_fill_(p > 3, -1.0)
        p[torch.tensor([1, 3], device=p.device)] = p[2] * 2
        p.index_add_(0, torch.tensor([0, 0], device=p.device), p[:2].clone())
        return p

    part = writes(xs.enable_manual_sharding(value.to(device), partition, mesh=mesh).clone())
    expected = [writes(p.clone()) for p in parts_of(value, partition)]
    check_parts(part, expected)

    # What was the value of all devices becomes manual where something manual is written into it.
    into = torch.zeros(4, 4, device=device)
    into[1:3] = part[1:3]
    check_parts(into, [torch.cat([torch.zeros(1, 4), p[1:3], torch.zeros(1, 4)]) for p in expected])
    view = into[2]
    into.copy_(torch.arange(16.0).view(4, 4))
    assert spec(into) != "{manual}"
    torch.testing.assert_close(view.cpu(), torch.arange(8.0, 12.0))
    """)


def test_all_kinds_of_calls(run):
    run("""
    value = torch.randn(16, 16)
    partition = ("data", "model")
    shared = torch.randn(4, 8).to(device)
    torch_xla.sync()

    def several(p, w):
        values, indices = p.topk(2, 1)
        scaled = p * 2 + 0.5 - p.new_ones(8)
        q, r = torch.linalg.qr(p)
        looked = nn.functional.embedding(indices, w.T.contiguous()[:8])
        return [
            values, indices, scaled, q @ r, looked, p.max(), p.sum().sqrt().abs(), p.bool().any(),
            torch.stack([p[0], w[0]]), torch.where(p > 0, p, w), p.bfloat16() @ w.T.bfloat16(),
            torch.einsum("ab,cb->ac", p, w), nn.functional.pad(p, (1, 2)), p.new_tensor(3.0) + p,
            torch.full_like(p, 3) * p[0, 0], p.std(0), torch.fft.fft(p).abs(), p.median(), p[:, :0],
            torch.addmm(w[:, :4], p, w.T, beta=2.5, alpha=0.25), torch.complex(p, w).angle(),
        ]

    part = xs.enable_manual_sharding(value.to(device), partition, mesh=mesh)
    got = several(part.global_tensor, shared)
    torch_xla.sync()
    per_device = [several(p, shared.cpu()) for p in parts_of(value, partition)]
    for i, g in enumerate(got):
        loose = {"rtol": 2e-2, "atol": 2e-1} if g.dtype == torch.bfloat16 else {}
        check_parts(g, [made[i] for made in per_device], **(loose or {"rtol": 1e-4, "atol": 1e-4}))
    """)


def test_each_device_draws_the_same_numbers(run):
    run("""
    part = xs.enable_manual_sharding(torch.ones(64, 8).to(device), ("data", None), mesh=mesh)
    outside = torch.rand(16, 8, device=device)
    drawn = (nn.functional.dropout(part, 0.5), part + part.new_empty(16, 8).uniform_() - 1,
             torch.rand(16, 8, device=device))
    first = [own(t)[0] for t in drawn[:2]]
    for t, one in zip(drawn, first):
        check_parts(t, [one] * N, rtol=0, atol=0)
    assert set(first[0].unique().tolist()) == {0.0, 2.0}
    assert first[1].std() > 0.2 and not torch.equal(first[1], outside.cpu())
    assert not torch.equal(drawn[2].cpu(), outside.cpu())

    # The state goes on as outside of manual code.
    torch.manual_seed(3)
    torch.rand_like(part)
    here = torch.rand(5, device=device).cpu()
    torch.manual_seed(3)
    torch.rand(16, 8, device=device)
    torch.testing.assert_close(here, torch.rand(5, device=device).cpu(), rtol=0, atol=0)
    """)


def test_attention_of_the_heads_of_one_device(run):
    run("""
    class Attention(torch.autograd.Function):
        "As the wrapper of a kernel is written that takes the tensors of one device."
        spec = ("data", "model", None, None)

        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_backward(q, k, v)
            ctx.full = q.shape
            q, k, v = (xs.enable_manual_sharding(t, Attention.spec, mesh=mesh).global_tensor
                       for t in (q, k, v))
            assert q.shape == (2, 2, 8, 4), q.shape
            out = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
            out = xs.disable_manual_sharding(out, Attention.spec, ctx.full, mesh=mesh)
            return out.global_tensor

        @staticmethod
        def backward(ctx, grad):
            q, k, v, g = (xs.enable_manual_sharding(t, Attention.spec, mesh=mesh).global_tensor
                          for t in (*ctx.saved_tensors, grad))
            p = (q @ k.transpose(-1, -2) / 2).softmax(-1)
            dv = p.transpose(-1, -2) @ g
            dp = g @ v.transpose(-1, -2)
            ds = p * (dp - (dp * p).sum(-1, keepdim=True)) / 2
            made = (ds @ k, ds.transpose(-1, -2) @ q, dv)
            return tuple(xs.disable_manual_sharding(t, Attention.spec, ctx.full, mesh=mesh)
                         .global_tensor for t in made)

    values = [torch.randn(8, 4, 8, 4, dtype=torch.float64) for _ in range(3)]
    plain = [v.clone().requires_grad_() for v in values]
    split = [v.to(device).requires_grad_() for v in values]
    for t in split:
        xs.mark_sharding(t, mesh, Attention.spec)
    torch_xla.sync()
    weight = torch.randn(8, 4, 8, 4, dtype=torch.float64)
    want = nn.functional.scaled_dot_product_attention(*plain)
    (want * weight).sum().backward()
    out = Attention.apply(*split)
    there = weight.to(device)
    xs.mark_sharding(there, mesh, Attention.spec)
    out.backward(there)
    torch_xla.sync()
    assert collectives() == [], collectives()
    torch.testing.assert_close(out.cpu(), want.detach())
    for s, p in zip(split, plain):
        torch.testing.assert_close(s.grad.cpu(), p.grad)
    """)


def test_a_step_with_an_optimizer(run):
    run("""
    def build():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()

    xs.set_global_mesh(mesh)
    plain, there = build(), build().to(device)
    for p in there.parameters():
        xs.mark_sharding(p, mesh, (None,) * p.dim())
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1) for m in (plain, there)]
    for step in range(3):
        x = torch.randn(16, 8, dtype=torch.float64)
        plain(x).square().mean().backward()
        # Each device has rows of the batch and the whole parameters: data parallelism by hand.
        parts = {n: xs.enable_manual_sharding(p, (None,) * p.dim()).global_tensor
                 for n, p in there.named_parameters()}
        rows = xs.enable_manual_sharding(x.to(device), (("data", "model"), None))
        made = torch.func.functional_call(there, parts, (rows.global_tensor,))
        out = xs.disable_manual_sharding(made, (("data", "model"), None), (16, 4))
        out.square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        torch_xla.sync()
    for p, t in zip(plain.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(t.detach().cpu(), p.detach())
    """)


def test_the_functions_of_the_extension(run):
    run("""
    value = torch.randn(16, 8)
    t = value.to(device)
    op = mesh.get_op_sharding(("data", None))
    _XLAC._xla_mark_sharding(t, op)
    part = _XLAC._spmd_full_to_shard_shape(t)
    assert part.shape == (4, 8)
    check_parts(part, parts_of(value, ("data", None)))
    whole = _XLAC._spmd_shard_to_full_shape(part, op, (16, 8), torch.float32)
    torch.testing.assert_close(whole.cpu(), value)
    assert spec(whole) == str(op)

    import pytest
    with pytest.raises(RuntimeError, match="Marking any data tensors as manual is not supported"):
        xs._mark_manual_sharding(torch.arange(4.0).to(device))
    with pytest.raises(RuntimeError, match="expected a tensor that mark_sharding has split"):
        _XLAC._spmd_full_to_shard_shape(torch.arange(4.0).to(device))
    with pytest.raises(RuntimeError, match="expected a manual tensor"):
        _XLAC._spmd_shard_to_full_shape(torch.ones(4, device=device), op, (16,), torch.float32)
    own_copy = torch.arange(4.0).to(device) * 1
    assert xs._mark_manual_sharding(own_copy).global_tensor is own_copy
    assert spec(own_copy) == "{manual}"
    again = xs._mark_manual_sharding(own_copy)
    check_parts(again, [torch.arange(4.0)] * N)
    both = xs.disable_manual_sharding(own_copy, ("data",), (16,), mesh=mesh)
    torch.testing.assert_close(both.cpu(), torch.arange(4.0).repeat(4))
    # What is not manual is a part that all devices share.
    same = xs.disable_manual_sharding(torch.ones(4, device=device), ("data",), [16], mesh=mesh)
    torch.testing.assert_close(same.cpu(), torch.ones(16))
    assert str(_XLAC.OpSharding([], [], [], 4)) == "{manual}"
    assert str(_XLAC._get_xla_op_sharding(own_copy)) == "{manual}"
    shard = xs.wrap_as_sharded_tensor(part).local_shards[3]
    assert (shard.indices, shard.replica_id, shard.shard_device) == (..., 0, "CPU:3")
    assert "manual" in repr(xs.wrap_as_sharded_tensor(part))
    """)


def test_misuse_is_told(run):
    run("""
    def error(kind, *texts):
        class Expect:
            def __enter__(self):
                return self
            def __exit__(self, got, value, _):
                assert got is not None and issubclass(got, kind), (got, value)
                for text in texts:
                    assert text in str(value), (text, str(value))
                return True
        return Expect()

    t = torch.randn(16, 6).to(device)
    Sharding = xs.xla_sharding.ShardingError
    with error(Sharding, "expected a mesh, got none", "set_global_mesh"):
        xs.enable_manual_sharding(t, ("data", None))
    with error(Sharding, "[1, 4]", "[16, 6]"):
        xs.enable_manual_sharding(t, (None, "data"), mesh=mesh)
    with error(Sharding, "2 dimensions"):
        xs.enable_manual_sharding(t, ("data",), mesh=mesh)
    with error(Sharding, "'rows'"):
        xs.enable_manual_sharding(t, ("rows", None), mesh=mesh)
    with error(ValueError, "[1, 4]", "[16, 6]"):
        torch.ops.torch_xla.full_to_shard(t, mesh.get_op_sharding((None, "data")).constraint(2))
    part = xs.enable_manual_sharding(t, ("data", None), mesh=mesh)
    for pending in (True, False):
        with error(Sharding, "full shape", "[4, 6]"):
            xs.enable_manual_sharding(part, ("data", None), mesh=mesh)
        with error(ValueError, "mark_sharding", "disable_manual_sharding"):
            xs.mark_sharding(part, mesh, ("data", None))
        with error(ValueError, "annotate_custom_sharding", "disable_manual_sharding"):
            xs.annotate_custom_sharding(part * 2, mesh, ("data", None))
        with error(ValueError, "clear_sharding", "disable_manual_sharding"):
            xs.clear_sharding(part)
        with error(Sharding, "[16, 6]", "[8, 6]"):
            xs.disable_manual_sharding(part, ("data", None), (8, 6), mesh=mesh)
        torch_xla.sync()
    for read in (lambda: part.cpu(), lambda: part.sum().item(), lambda: print(part.global_tensor),
                 lambda: part.global_tensor.tolist(), lambda: bool(part.any()),
                 lambda: part.global_tensor[part.global_tensor > 0].cpu()):
        with error(ValueError, "disable_manual_sharding", "local_shards"):
            read()
    with error(TypeError, "enable_manual_sharding", "on cpu"):
        xs.enable_manual_sharding(torch.zeros(16, 6), ("data", None), mesh=mesh)
    with error(TypeError, "disable_manual_sharding", "on cpu"):
        xs.disable_manual_sharding(torch.zeros(4, 6), ("data", None), (16, 6), mesh=mesh)
    for collective in (lambda t: xm.all_reduce("sum", t), lambda t: xm.all_reduce("sum", [t]),
                       xm.all_gather, lambda t: xm.collective_permute(t, [(0, 0)])):
        with error(NotImplementedError, "manual", "disable_manual_sharding"):
            collective(part.global_tensor)
    with error(NotImplementedError, "full_to_shard", "single device"):
        xm.get_stablehlo([xs.enable_manual_sharding(t, ("data", None), mesh=mesh).global_tensor])
    with error(NotImplementedError, "manual"):
        part.load_local_shards_(part.local_shards)
    marked = torch.zeros(4, 6).to(device)
    xs.mark_sharding(marked, mesh, ("data", None))
    with error(ValueError, "mark_sharding"):
        xs._mark_manual_sharding(marked)
    torch_xla.sync()
    marked.copy_(part * 1)
    with error(ValueError, "mark_sharding", "disable_manual_sharding"):
        torch_xla.sync()
    marked.copy_(part)
    assert spec(marked) == "{manual}"
    marked.copy_(torch.ones(4, 6))
    torch.testing.assert_close(marked.cpu(), torch.ones(4, 6))
    constrained = xs.mark_sharding_with_gradients(part, mesh, ("data", None))
    with error(ValueError, "mark_sharding", "disable_manual_sharding"):
        torch_xla.sync()
    del constrained
    text = mesh.get_op_sharding(("data", None)).constraint(2)
    twice = torch.ops.torch_xla.full_to_shard(part.global_tensor, text)
    with error(ValueError, "enable_manual_sharding", "full shape"):
        torch_xla.sync()
    del twice
    tiled, manual = mesh.get_op_sharding(("data", None)), _XLAC.OpSharding([], [], [], 4)
    with error(ValueError, "_spmd_shard_to_full_shape", "[16, 6]", "[8, 6]"):
        _XLAC._spmd_shard_to_full_shape(part.global_tensor, tiled, (8, 6), torch.float32)
    with error(RuntimeError, "_spmd_full_to_shard_shape", "mark_sharding"):
        _XLAC._spmd_full_to_shard_shape(torch.ones(16, 6, device=device))
    with error(ValueError, "_mark_manual_sharding", "MANUAL"):
        _XLAC._mark_manual_sharding(torch.ones(16, 6, device=device), tiled)
    with error(ValueError, "mark_sharding", "{manual}"):
        _XLAC._xla_mark_sharding(torch.ones(16, 6, device=device), manual)
    with error(ValueError, "_global_tensor_from_cpu_shards", "{manual}"):
        _XLAC._global_tensor_from_cpu_shards([torch.ones(16, 6)] * N, manual)
    """)


def test_spmd_mode_is_needed(run_python):
    run_python(
        """
    import numpy as np, torch, torch_xla.distributed.spmd as xs
    mesh = xs.Mesh(np.arange(8), (8,), ("all",))
    leave = lambda t: xs.disable_manual_sharding(t, ("all",), (64,), mesh=mesh)
    for name, call in [
        ("enable_manual_sharding", lambda t: xs.enable_manual_sharding(t, ("all",), mesh=mesh)),
        ("disable_manual_sharding", leave),
        ("_mark_manual_sharding", xs._mark_manual_sharding),
    ]:
        try:
            call(torch.zeros(8).to("xla"))
            assert False, name
        except RuntimeError as e:
            assert name in str(e) and "use_spmd" in str(e), e
    """,
        env=EIGHT,
    )


def test_two_meshes_in_a_step(run):
    run("""
    value = torch.randn(16, 8)
    other = xs.Mesh(np.arange(N), (2, 4), ("x", "y"))
    ways = [(line, ("all", None)), (mesh, ("data", "model")), (other, ("x", "y"))]
    total = 0
    for over, partition in ways:
        part = xs.enable_manual_sharding(value.to(device), partition, mesh=over) + 1
        total = total + xs.disable_manual_sharding(part, partition, (16, 8), mesh=over)
    torch.testing.assert_close(total.cpu(), 3 * (value + 1))
    """)


def test_loops_checkpoints_and_own_operators(run):
    run("""
    from torch.utils.checkpoint import checkpoint
    from torch_xla.experimental.scan import scan

    partition = ("data", "model")
    value = torch.randn(3, 16, 8, dtype=torch.float64)

    def scaled(t):
        p = xs.enable_manual_sharding(t, partition, mesh=mesh)
        return xs.disable_manual_sharding(p.sin() * p.sum(), partition, (16, 8), mesh=mesh) * 1

    def expected(t):
        return joined([p.sin() * p.sum() for p in parts_of(t, partition)], partition)

    total, _ = scan(lambda c, t: (c + scaled(t), t), value[0].to(device), value.to(device))
    torch.testing.assert_close(total.cpu(), value[0] + sum(expected(t) for t in value))
    part = xs.enable_manual_sharding(value[0].to(device), partition, mesh=mesh).global_tensor
    total, _ = scan(lambda c, row: (c + row, c * row), part[0], part)
    check_parts(total, [p[0] + p.sum(0) for p in parts_of(value[0], partition)])

    plain, there = value[0].clone().requires_grad_(), value[0].to(device).requires_grad_()
    checkpoint(scaled, there, use_reentrant=False).square().sum().backward()
    expected(plain).square().sum().backward()
    torch.testing.assert_close(there.grad.cpu(), plain.grad)

    library = torch.library.Library("manual_test", "FRAGMENT")
    library.define("whole(Tensor x) -> Tensor")
    library.define("part(Tensor x) -> Tensor")
    library.impl("whole", scaled, "CompositeExplicitAutograd")
    library.impl("part", lambda x: 2 * xs.enable_manual_sharding(x, partition, mesh=mesh),
                 "CompositeExplicitAutograd")
    whole = torch.ops.manual_test.whole(value[0].to(device))
    torch.testing.assert_close(whole.cpu(), expected(value[0]))
    part = torch.ops.manual_test.part(value[0].to(device))
    check_parts(part + 1, [2 * p + 1 for p in parts_of(value[0], partition)])
    """)


def test_steps_for_other_chips(run):
    run("""
    from torch_xla._src.aot import programs as aot_programs

    partition = ("data", None)
    weight = torch.randn(8, 8).to(device)

    def step(x):
        part = xs.enable_manual_sharding(x, partition, mesh=mesh)
        made = part @ xs.enable_manual_sharding(weight, (None, None), mesh=mesh)
        return xs.disable_manual_sharding(made * 2, partition, (16, 8), mesh=mesh)

    x = torch.empty(16, 8, device="meta")
    made = aot_programs.of_call(step, (x,), {}, "TPU")
    assert made.text.count("sdy.manual_computation") >= 3, made.text
    assert "tensor<4x8xf32>" in made.text

    def gives(x):
        return xs.enable_manual_sharding(x, partition, mesh=mesh)

    def takes(x):
        return x + part

    part = xs.enable_manual_sharding(torch.ones(16, 8).to(device), partition, mesh=mesh)
    torch_xla.sync()
    for refused, given in [(gives, x), (takes, torch.empty(4, 8, device="meta"))]:
        try:
            aot_programs.of_call(refused, (given,), {}, "TPU")
            raise SystemExit(f"{refused} was not refused")
        except RuntimeError as e:
            assert "manual" in str(e), e
    """)


@pytest.mark.parametrize("backend", ["openxla", "aot_eager"])
def test_in_compiled_functions(run, backend):
    run(f"""
    def attend(x):
        part = xs.enable_manual_sharding(x, ("data", "model"), mesh=mesh)
        part = (part @ part.T).softmax(-1) @ part
        return xs.disable_manual_sharding(part, ("data", "model"), x.shape, mesh=mesh)

    compiled = torch.compile(attend, backend={backend!r}, fullgraph=True)
    for _ in range(2):
        x = torch.randn(16, 8, dtype=torch.float64, requires_grad=True)
        there = x.detach().to(device).requires_grad_()
        out = compiled(there)
        made = [(p @ p.T).softmax(-1) @ p for p in parts_of(x, ("data", "model"))]
        want = joined(made, ("data", "model"))
        out.square().sum().backward()
        want.square().sum().backward()
        torch.testing.assert_close(out.detach().cpu(), want.detach())
        torch.testing.assert_close(there.grad.cpu(), x.grad)

    # Manual tensors as arguments and results.
    scaled = torch.compile(lambda p, w: (p * w + p.sum(), p.max()), backend={backend!r},
                           fullgraph=True)
    value = torch.randn(16, 8)
    for _ in range(2):
        part = xs.enable_manual_sharding(value.to(device), ("data", "model"), mesh=mesh)
        part = part.global_tensor
        got = scaled(part, torch.full((4,), 2.0).to(device))
        torch_xla.sync()
        check_parts(got[0], [p * 2 + p.sum() for p in parts_of(value, ("data", "model"))])
        check_parts(got[1], [p.max() for p in parts_of(value, ("data", "model"))])
    plain = torch.randn(4, 4)
    doubled = torch.compile(lambda p: p * 2 + p.sum(), backend={backend!r}, fullgraph=True)
    for _ in range(2):  # of either kind, by one graph
        want = plain * 2 + plain.sum()
        torch.testing.assert_close(doubled(plain.to(device)).cpu(), want)
        check_parts(doubled(part), [p * 2 + p.sum() for p in parts_of(value, ("data", "model"))])
    both = torch.compile(lambda p, y: (p * 3, y * 3, p.add_(1).sum()), backend={backend!r},
                         fullgraph=True)
    part = (part * 1).clone()
    got = both(part, plain.to(device))
    torch.testing.assert_close(got[1].cpu(), plain * 3)
    check_parts(got[0], [p * 3 for p in parts_of(value, ("data", "model"))])
    check_parts(got[2], [(p + 1).sum() for p in parts_of(value, ("data", "model"))])
    check_parts(part, [p + 1 for p in parts_of(value, ("data", "model"))])

    def marks(p):
        h = p * 2
        xs.mark_sharding(h, mesh, ("data", "model"))
        return h + 1

    marks = torch.compile(marks, backend={backend!r}, fullgraph=True)
    try:
        kept = marks(part)
        torch_xla.sync()
        raise SystemExit("a mark of a manual tensor was not refused")
    except ValueError as e:
        assert "mark_sharding" in str(e) and "disable_manual_sharding" in str(e), e
    """)


def test_memory_that_is_taken_over_is_read_by_nobody(run):
    run(
        """
    _XLAC._xla_set_check_donation(True, poison=True)
    value = torch.randn(16, 8)
    state = xs.enable_manual_sharding(value.to(device), ("data", "model"), mesh=mesh).global_tensor
    torch_xla.sync()
    for _ in range(3):
        state.add_(state.mean())
        torch_xla.sync()
    expected = [p.clone() for p in parts_of(value, ("data", "model"))]
    for p in expected:
        for _ in range(3):
            p.add_(p.mean())
    check_parts(state, expected)
    """,
        env={"XLA_CHECK_GRAPH_KEY": "1"},
    )


def test_one_device_has_all(run_python):
    run_python(
        PRELUDE.replace("(4, 2)", "(1, 1)")
        + textwrap.dedent("""
    value = torch.randn(4, 4)
    t = value.to(device).requires_grad_()
    part = xs.enable_manual_sharding(t, ("data", "model"), mesh=mesh)
    torch_xla.sync()
    whole = xs.disable_manual_sharding(part * part, ("data", "model"), (4, 4), mesh=mesh)
    whole.sum().backward()
    torch.testing.assert_close(whole.detach().cpu(), value * value)
    torch.testing.assert_close(t.grad.cpu(), value * 2)
    """),
        env={"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1"},
    )


def test_devices_exchange_what_they_have(run):
    run("""
    reductions = {"sum": torch.sum, "mul": torch.prod, "min": torch.amin, "max": torch.amax}
    value = torch.randn(16, 8)
    whole = [parts_of(value, ("data", "model"))]
    names = places(mesh)
    along = {}  # the groups along an axis: devices that differ in its index alone
    for axis in ("data", "model"):
        other = "model" if axis == "data" else "data"
        groups = collections.defaultdict(list)
        for d in range(N):
            groups[names[d][other]].append(d)
        along[axis] = list(groups.values())
    parts = parts_of(value, ("data", "model"))
    for reduction, plain in reductions.items():
        for groups in ([], along["data"], along["model"], [[d] for d in range(N)]):
            part = xs.enable_manual_sharding(value.to(device), ("data", "model"), mesh=mesh)
            made = xs.all_reduce(reduction, part + 1, 0.5, groups)
            expected = [None] * N
            for group in groups or [list(range(N))]:
                for d in group:
                    expected[d] = plain(torch.stack([parts[e] + 1 for e in group]), 0) * 0.5
            check_parts(made, expected)
            assert xs.sharding_of(made) == "{manual}"
            for dim in (0, -1):
                count = len(groups[0]) if groups else N
                if part.shape[dim] % count:
                    continue
                made = xs.reduce_scatter(reduction, part + 1, 0.5, dim, groups) * 2
                of_part = [None] * N
                for group in groups or [list(range(N))]:
                    for place, d in enumerate(group):
                        of_part[d] = expected[d].chunk(count, dim)[place] * 2
                check_parts(made, of_part)
    flags = (value > 0).to(device)
    part = xs.enable_manual_sharding(flags, ("data", "model"), mesh=mesh)
    stacked = torch.stack(parts_of(value > 0, ("data", "model")))
    check_parts(_XLAC._xla_spmd_all_reduce("and", part, 1.0, []), [stacked.all(0)] * N)
    check_parts(xs.all_reduce("or", part), [stacked.any(0)] * N)
    """)


def test_what_cannot_be_exchanged(run):
    run("""
    import pytest
    value = torch.randn(16, 8).to(device)
    xs.mark_sharding(value, mesh, ("data", "model"))
    part = xs.enable_manual_sharding(value, ("data", "model"), mesh=mesh)
    reduce, scatter = _XLAC._xla_spmd_all_reduce, _XLAC._xla_spmd_reduce_scatter
    with pytest.raises(ValueError, match="expected a manual tensor, of which each device has its"):
        reduce("sum", value + 1, 1.0, [])
    with pytest.raises(ValueError, match="expected groups of the devices .*, each once"):
        reduce("sum", part, 1.0, [[0, 1], [2, 2]]).cpu()
    with pytest.raises(ValueError, match="expected groups of one size"):
        reduce("sum", part, 1.0, [[0, 1], [2]])
    with pytest.raises(ValueError, match="expected one of .*'sum'.* got 'avg'"):
        reduce("avg", part, 1.0, [])
    with pytest.raises(TypeError, match="expected integers or booleans for 'or'"):
        reduce("or", part, 1.0, [])
    with pytest.raises(ValueError, match="expected 2 parts, as many as a group has devices"):
        scatter("sum", part, 1.0, 0, 4, [[0, 1], [2, 3], [4, 5], [6, 7]])
    with pytest.raises(ValueError, match="a dimension that the 8 devices of a group divide"):
        scatter("sum", part, 1.0, 0, 8, [])
    for dim in (2, 7, -3):
        with pytest.raises(IndexError, match=f"expected a dimension of .* got {dim}"):
            scatter("sum", part, 1.0, dim, 2, [[0, 1], [2, 3], [4, 5], [6, 7]])
    torch.testing.assert_close(  # and nothing is lost
        xs.disable_manual_sharding(part, ("data", "model"), (16, 8), mesh=mesh).cpu(), value.cpu())
    """)
