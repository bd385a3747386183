"""Tensors that are split among devices: shards, values, gradients and steps as unsplit ones."""

from __future__ import annotations

import textwrap

import pytest

EIGHT = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "8"}

PRELUDE = """
import collections
import numpy as np
import torch, torch.nn as nn
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr
import torch_xla.distributed.spmd as xs
from torch_xla import _XLAC

xr.use_spmd()
N = xr.global_runtime_device_count()
mesh = xs.Mesh(np.arange(N), (4, 2), ("data", "model"))
device = torch_xla.device()
torch.manual_seed(0)

def spec(t):
    return _XLAC._get_xla_sharding_spec(t)

def shards(t):
    return xs.wrap_as_sharded_tensor(t).local_shards

def check_shards(t, value):
    "Each device holds what its indices say, the replicas of a part are told apart."
    places = collections.defaultdict(list)
    covered = torch.zeros(value.shape, dtype=torch.bool)
    for shard in shards(t):
        index = shard.indices if shard.indices is ... else tuple(shard.indices)
        torch.testing.assert_close(shard.unpadded_data, value[index], rtol=0, atol=0)
        assert shard.data.shape == shards(t)[0].data.shape
        assert shard.data.count_nonzero() == shard.unpadded_data.count_nonzero()  # zeros around it
        covered[index] = True
        if shard.unpadded_data.numel() or not value.numel():
            places[str(index)].append(shard.replica_id)
    assert covered.all()
    for index, replicas in places.items():
        assert sorted(replicas) == list(range(len(replicas))), (index, replicas)
    return len(places)
"""


REFUSED = """
def refused(kind, f, *words):
    "Calls f and returns its exception, which is of this kind and has these words."
    try:
        f()
    except kind as e:
        assert all(word in str(e) for word in words), e
        return e
    raise AssertionError(f"expected {kind}")
"""


def runner(run_python, prelude, timeout=300):
    """A function that runs code after a prelude in a process of eight devices, with names given."""

    def run(code, env=None, **names):
        given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
        code = given + prelude + textwrap.dedent(code)
        return run_python(code, env=EIGHT | (env or {}), timeout=timeout)

    return run


@pytest.fixture
def run(run_python):
    """Runs code in an SPMD process of eight devices."""
    return runner(run_python, PRELUDE)


def test_each_device_holds_its_part(run):
    run("""
    for partition, text, parts in [
        (("data", "model"), "{devices=[4,2]0,1,2,3,4,5,6,7}", 8),
        ((0, 1), "{devices=[4,2]0,1,2,3,4,5,6,7}", 8),
        (("model", "data"), "{devices=[2,4]0,2,4,6,1,3,5,7}", 8),
        (("data", None), "{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}", 4),
        ((None, "model"), "{devices=[1,2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}", 2),
        ((("data", "model"), None), "{devices=[8,1]0,1,2,3,4,5,6,7}", 8),
        ((("model", "data"), None), "{devices=[8,1]0,2,4,6,1,3,5,7}", 8),
        ((None, None), "{replicated}", 1),
    ]:
        for make in ("moved", "computed", "pending"):
            value = torch.randn(16, 8)
            t = value.to(device)
            if make != "moved":
                t = t * 2
                value = value * 2
            if make == "computed":
                torch_xla.sync()
            sharded = xs.mark_sharding(t, mesh, partition)
            assert isinstance(sharded, xs.XLAShardedTensor) and sharded.global_tensor is t
            assert spec(t) == text == sharded.sharding_spec, (partition, make, spec(t))
            assert check_shards(t, value) == parts, (partition, make)
            assert spec(t) == text
            torch.testing.assert_close(t.cpu(), value, rtol=0, atol=0)
            assert sharded.shape == (16, 8) and sharded.device == device
    """)


def test_only_parts_are_sent(run):
    run("""
    def sent():
        data = met.metric_data("OutboundData")
        return 0 if data is None else data[1]

    before = sent()
    t = torch.randn(1024, 64).to(device)
    assert sent() == before
    xs.mark_sharding(t, mesh, (("data", "model"), None))
    assert sent() - before == 1024 * 64 * 4, sent() - before
    u = torch.randn(1024, 64).to(device)
    (u + 1).cpu()
    assert sent() - before == 9 * 1024 * 64 * 4
    """)


def test_values_and_gradients_are_those_of_one_device(run):
    run("""
    def check(fn, shapes, specs):
        host = [torch.randn(s, dtype=torch.float64) for s in shapes]
        plain = [h.clone().requires_grad_() for h in host]
        split = [h.to(device).requires_grad_() for h in host]
        for t, partition in zip(split, specs):
            if partition is not None:
                xs.mark_sharding(t, mesh, partition)
        want, got = fn(*plain), fn(*split)
        want.sin().sum().backward()
        got.sin().sum().backward()
        torch_xla.sync()
        torch.testing.assert_close(got.cpu(), want)
        for p, s, partition in zip(plain, split, specs):
            torch.testing.assert_close(s.grad.cpu(), p.grad)
            if partition is not None:
                assert spec(s) != "", partition

    two = [(16, 8), (8, 24)]
    for specs in [(("data", None), (None, "model")), ((None, "model"), ("model", None)),
                  (("data", "model"), ("model", "data")), (("data", None), None),
                  ((None, None), ("model", "data"))]:
        check(torch.mm, two, specs)
        check(lambda a, b: (a @ b).softmax(-1), two, specs)
        check(lambda a, b: (a @ b).softmax(0).sum(1), two, specs)
        check(lambda a, b: torch.cat([a, b.T[:, :8]]).cumsum(0), two, specs)
        check(lambda a, b: nn.functional.layer_norm(a, (8,), b.sum(1)).T.reshape(4, 32), two, specs)
    check(lambda x, w: nn.functional.conv2d(x, w, padding=1), [(8, 4, 6, 6), (6, 4, 3, 3)],
          (("data", None, None, None), ("model", None, None, None)))
    check(lambda q, k: nn.functional.scaled_dot_product_attention(q, k, k),
          [(4, 4, 8, 16), (4, 4, 8, 16)], (("data", "model", None, None),) * 2)
    check(lambda w: w[torch.tensor([3, 1, 1, 0, 7], device=w.device)], [(8, 6)],
          (("data", "model"),))
    """)


def test_sizes_that_do_not_divide(run):
    run("""
    for sizes in [(7, 3), (5,), (6, 2), (1, 1), (0, 4), (9, 8)]:
        partition = ("data", "model")[:len(sizes)]
        value = torch.randn(sizes)
        t = value.to(device)
        xs.mark_sharding(t, mesh, partition)
        check_shards(t, value)
        u = (t * 2).sin()
        xs.mark_sharding(u, mesh, partition)
        torch.testing.assert_close(u.cpu(), (value * 2).sin())
        torch.testing.assert_close((u.sum(0) + 1).cpu(), (value * 2).sin().sum(0) + 1)
        check_shards(u, u.cpu())
        t.add_(1)
        torch_xla.sync()
        check_shards(t, value + 1)
    """)


def test_a_part_of_what_does_not_divide_is_padded(run):
    run("""
    mesh = xs.Mesh(np.arange(N), (N,), ("d",))
    value = torch.arange(1.0, 12.0)  # of 8 devices each has 2, the last ones 1 and none
    t = value.to(device)
    xs.mark_sharding(t, mesh, ("d",))
    places = [slice(min(2 * i, 11), min(2 * i + 2, 11), 1) for i in range(N)]

    def check(t, value):
        torch.testing.assert_close(t.cpu(), value)
        padded = torch.cat([value, torch.zeros(5)]).view(N, 2)
        for i, shard in enumerate(shards(t)):
            assert shard.indices == [places[i]] and shard.replica_id == 0
            assert torch.equal(shard.data, padded[i])
            assert torch.equal(shard.unpadded_data, value[places[i]])

    check(t, value)
    t.mul_(2)  # the buffers stay, the padding is zero
    torch_xla.sync()
    check(t, value * 2)
    t.add_(1)
    torch_xla.sync()
    check(t, value * 2 + 1)
    u = (t + 1).cos()
    xs.mark_sharding(u, mesh, ("d",))
    check(u, (value * 2 + 2).cos())
    t[3] = 7.0
    t.view(1, 11)[0, 10] = 5.0
    expected = value * 2 + 1
    expected[3], expected[10] = 7.0, 5.0
    check(t, expected)
    for name in ("sum", "min", "prod", "argmin", "norm"):
        torch.testing.assert_close(getattr(t, name)().cpu(), getattr(expected, name)())

    s = xs.wrap_as_sharded_tensor(t)
    loaded = s.local_shards
    for shard in loaded:
        shard.unpadded_data = shard.unpadded_data + 1
        assert shard.data.shape == (2,)
    s.load_local_shards_(loaded)
    check(t, expected + 1)

    # In two dimensions, of other dtypes, with gradients, through an optimizer.
    square = xs.Mesh(np.arange(N), (4, 2), ("a", "b"))
    for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        value = torch.arange(15).view(5, 3).to(dtype)
        t = value.to(device)
        xs.mark_sharding(t, square, ("a", "b"))
        check_shards(t, value)
        torch.testing.assert_close((t == 1).cpu(), value == 1)
        assert torch.equal(t.clone().cpu(), value) and t.to("cpu").dtype == dtype
    both = nn.Linear(7, 5), nn.Linear(7, 5).to(device)
    both[1].load_state_dict(both[0].state_dict())
    xs.mark_sharding(both[1].weight, square, ("a", "b"))
    xs.mark_sharding(both[1].bias, square, (("a", "b"),))
    for model in both:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(2, 7, device=model.weight.device)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if model is both[1]:
                torch_xla.sync()
    state = optimizer.state[both[1].weight]["exp_avg"]
    for t, value in ((both[1].weight, both[0].weight), (both[1].bias, both[0].bias)):
        torch.testing.assert_close(t.cpu(), value)
    assert spec(state) == spec(both[1].weight)
    assert [tuple(s.data.shape) for s in shards(state)] == [(2, 4)] * N
    assert [tuple(s.data.shape) for s in shards(both[1].bias)] == [(1,)] * N
    """)


def test_shards_from_the_host_that_do_not_fit(run):
    run("""
    mesh = xs.Mesh(np.arange(N), (N,), ("d",))
    op = mesh.get_op_sharding(("d",))
    shards = [torch.full((2,), float(i)) for i in range(N)]
    make = _XLAC._global_tensor_from_cpu_shards

    def refused(f, *words):
        try:
            f()
        except RuntimeError as e:
            assert all(word in str(e) for word in words), e
        else:
            raise AssertionError("expected a RuntimeError")

    refused(lambda: make(shards[1:], op), "8 devices, got 7")
    refused(lambda: make([], op), "got none")
    refused(lambda: make([s[None] for s in shards], op), "of 1 dimensions")
    refused(lambda: make(shards, op, (17,)), "[3]")
    refused(lambda: make(shards, op, (8,)), "[1]")
    refused(lambda: make(shards, op, (16, 1)), "dimensions")
    refused(lambda: make([*shards[1:], torch.ones(1)], op), "padding included, got [1]")
    for count in range(9, 17):
        assert torch.equal(make(shards, op, (count,)).cpu(), torch.cat(shards)[:count])
    assert make(shards, op).shape == (16,)
    two = xs.Mesh(np.arange(N), (4, 2), ("a", "b")).get_op_sharding(("a", None))
    assert make([torch.ones(2, 3)] * N, two, (7, 3)).shape == (7, 3)
    assert make([torch.ones(2, 3)] * N, mesh.get_op_sharding((None, None))).shape == (2, 3)

    t = torch.arange(11.0).to(device)
    s = xs.mark_sharding(t, mesh, ("d",))
    good = s.local_shards
    refused(lambda: s.load_local_shards_(good[:5]), "CPU:5")
    refused(lambda: s.load_local_shards_(good + good), "got 2")
    good[5].data = good[5].unpadded_data
    refused(lambda: s.load_local_shards_(good), "padding included")
    whole = xs.wrap_as_sharded_tensor(torch.ones(3).to(device))
    refused(lambda: whole.load_local_shards_(whole.local_shards), "copy_()")
    """)


def test_a_training_step_keeps_its_shardings_and_is_one_program(run):
    run("""
    from torch_xla import _XLAC

    def make():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))

    def train(model, device, mark, steps=8):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        g = torch.Generator().manual_seed(1)
        losses, compiles = [], []
        for _ in range(steps):
            x, y = torch.randn(8, 16, generator=g), torch.randint(8, (8,), generator=g)
            x, y = x.to(device), y.to(device)
            if mark:
                xs.mark_sharding(x, mesh, ("data", None))
                xs.mark_sharding(y, mesh, ("data",))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if mark:
                torch_xla.sync()
                compiles.append(met.counter_value("UncachedCompile"))
            losses.append(loss.detach())
        return torch.stack(losses).cpu(), optimizer, compiles

    plain, split = make(), make().to(device)
    for module in split:
        if isinstance(module, nn.Linear):
            xs.mark_sharding(module.weight, mesh, ("model", "data"))
            xs.mark_sharding(module.bias, mesh, ("model",))
    want, _, _ = train(plain, "cpu", False)
    got, optimizer, compiles = train(split, device, True)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    weights = "{devices=[2,4]0,2,4,6,1,3,5,7}"
    for p, q in zip(split.parameters(), plain.parameters()):
        torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-4, atol=1e-5)
    for module in split:
        if isinstance(module, nn.Linear):
            assert spec(module.weight) == weights
            assert len(set(map(str, (s.indices for s in shards(module.weight.detach()))))) == 8
            state = optimizer.state[module.weight]
            for name in ("exp_avg", "exp_avg_sq"):
                assert spec(state[name]) == weights, (name, spec(state[name]))
    # State that begins and state that goes on; nothing is compiled after that.
    assert compiles[2:] == [compiles[2]] * (len(compiles) - 2), compiles
    """)


def test_writes_keep_the_sharding(run):
    run("""
    value = torch.randn(8, 8)
    t = value.to(device)
    xs.mark_sharding(t, mesh, ("data", "model"))
    text = spec(t)
    t.copy_(value + 1)
    assert spec(t) == text and check_shards(t, value + 1) == 8
    t.mul_(2)
    assert spec(t) == text
    torch_xla.sync()
    assert spec(t) == text and check_shards(t, (value + 1) * 2) == 8
    t.zero_()
    torch_xla.sync()
    assert check_shards(t, torch.zeros(8, 8)) == 8
    t[2:5, 1] = 7.0
    want = torch.zeros(8, 8)
    want[2:5, 1] = 7
    assert check_shards(t, want) == 8
    view = t.T
    xs.mark_sharding(view, mesh, ("model", None))
    torch.testing.assert_close(view.cpu(), want.T)
    view.add_(1)
    torch.testing.assert_close(t.cpu(), want + 1)
    assert check_shards(t, want + 1) == 8
    plain = xs.clear_sharding(t)
    assert plain is t and spec(t) == ""
    assert check_shards(t, want + 1) == 1
    t.add_(1)
    torch_xla.sync()
    assert check_shards(t, want + 2) == 1
    """)


def test_writes_into_every_second_element_of_what_is_split(run):
    """Strides of views do not fit the parts that devices hold."""
    run(
        """
        def scaled(x, part):
            x[part].mul_(10)
            return x * 1

        def put(x, part):
            where = torch.tensor([0, 1], device=x.device)
            x[part].put_(where, torch.tensor([10.0, 20.0]).to(x.device))
            return x * 1

        parts = (slice(2, 5, 2), slice(1, 6, 2), slice(0, 4), slice(1, None, 3), slice(0, None, 2))
        for n in (6, 10, 12, 14, 20):
            for part in parts:
                for f in (scaled, put):
                    plain = torch.arange(n, dtype=torch.float32)
                    x = xs.mark_sharding(plain.to(device), mesh, ("model",))
                    got, expected = f(x, part).cpu(), f(plain, part)
                    assert torch.equal(got, expected), (n, part, f.__name__, got, expected)
                rows = torch.arange(2.0 * n).view(2, n)
                x = xs.mark_sharding(rows.to(device), mesh, ("model", "data"))
                x[:, part].add_(1)
                rows[:, part].add_(1)
                assert torch.equal(x.cpu(), rows), (n, part)
        """
    )


def test_a_resized_tensor_is_marked_no_more(run):
    run("""
    t = torch.zeros(8, 4).to(device)
    xs.mark_sharding(t, mesh, ("data", "model"))
    t.resize_(32)
    t.add_(1)
    torch_xla.sync()
    check_shards(t, torch.ones(32))
    xs.mark_sharding(t, mesh, ("data",))
    t.resize_(2, 2, 2, 4)
    assert spec(t + 0) == ""
    t.add_(1)
    torch_xla.sync()
    check_shards(t, torch.full((2, 2, 2, 4), 2.0))
    t.set_(torch.ones(3, device=device))
    t.mul_(2)
    assert spec(t) == ""
    assert check_shards(t, torch.full((3,), 2.0)) == 1
    """)


def test_several_meshes_over_the_same_devices(run):
    run("""
    other = xs.Mesh(np.arange(N), (2, 2, 2), ("x", "y", "z"))
    flat = xs.get_1d_mesh("all")
    a, b, c = (torch.randn(16, 16) for _ in range(3))
    da, db, dc = a.to(device), b.to(device), c.to(device)
    xs.mark_sharding(da, mesh, ("data", "model"))
    xs.mark_sharding(db, other, ("z", ("y", "x")))
    xs.mark_sharding(dc, flat, (None, "all"))
    got = da @ db + dc
    torch.testing.assert_close(got.cpu(), a @ b + c, rtol=1e-4, atol=1e-5)
    turned = xs.Mesh(np.arange(N)[::-1].copy(), (4, 2), ("data", "model"))
    d = torch.randn(16, 16)
    dd = d.to(device)
    xs.mark_sharding(dd, turned, ("data", None))
    assert check_shards(dd, d) == 4
    torch.testing.assert_close((dd * 2).cpu(), d * 2)
    """)


def test_gradients_are_split_alike(run):
    run("""
    x = torch.randn(8, 4)
    t = x.to(device).requires_grad_()
    h = t * 3
    y = xs.mark_sharding_with_gradients(h, mesh, ("data", None))
    assert y is not h
    (y * y).sum().backward()
    torch.testing.assert_close(t.grad.cpu(), 18 * x)
    p = x.clone().requires_grad_()
    q = p.to(device)
    sharded = xs.mark_sharding(q, mesh, ("data", None))
    (sharded * 2).sum().backward()
    torch.testing.assert_close(p.grad, torch.full((8, 4), 2.0))
    """)


def test_a_marked_leaf_has_its_gradient_from_functions_of_autograd(run):
    """Their C++ sees an alias of the tensor, which wants a gradient when the tensor does."""
    run("""
    from torch.utils.checkpoint import checkpoint

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    marked = lambda: xs.mark_sharding(torch.ones(8, 4).to("xla"), mesh, ("data", None))
    for function in (Double.apply, lambda x: checkpoint(lambda y: y * 2, x, use_reentrant=True)):
        for wants in (lambda x: x.requires_grad_(), lambda x: setattr(x, "requires_grad", True)):
            x = marked()
            wants(x)
            wants(x)
            for count in (1, 2):
                (function(x) + x * 3).sum().backward()
                assert torch.equal(x.grad.cpu(), torch.full((8, 4), 5.0 * count)), x.grad
            x.requires_grad_(False)
            assert not Double.apply(x).requires_grad
    """)


def test_what_does_not_fit_is_refused(run):
    run("""
    import pytest
    t = torch.randn(8, 4).to(device)
    for partition, text in [
        (("data",), "an entry for each of the 2 dimensions"),
        (("data", "data"), "each mesh axis at most once"),
        (("data", "nothing"), "axes of the mesh"),
        ((0, 5), "axes of the mesh"),
    ]:
        for exception in (ValueError, AssertionError):
            with pytest.raises(exception, match=text):
                xs.mark_sharding(t, mesh, partition)
    for shape, names, text in [
        ((4, 3), None, r"Number of device IDs \\(8\\) must match mesh size \\(12\\)"),
        ((4, 2), ("a",), r"Number of axis names \\(1\\) must match mesh dimensions \\(2\\)"),
        ((4, 2), ("a", "a"), r"Axis names must be unique, got: \\('a', 'a'\\)"),
    ]:
        for exception in (ValueError, AssertionError):
            with pytest.raises(exception, match=text):
                xs.Mesh(np.arange(8), shape, names)
    for ids, text in [
        ([0, 1, 2, 3, 4, 5, 6, 6], "Device IDs must be unique, got: "),
        ([0, 1, 2, 3, 4, 5, 6, 8], r"Device IDs must be less than mesh size \\(8\\), got: "),
        ([0, 1, 2, 3, 4, 5, 6, -1], "Device IDs must be less than"),
        (range(4), r"Number of device IDs \\(4\\) must match the global number of devices \\(8"),
    ]:
        with pytest.raises(AssertionError, match=text):
            xs.Mesh(list(ids), (len(ids) // 2, 2))
    with pytest.raises(TypeError, match="expected an xla tensor"):
        xs.mark_sharding(torch.randn(8, 4), mesh, (0, None))
    assert spec(t) == ""
    """)


def test_needs_spmd_mode(run_python):
    run_python(
        """
        import numpy as np, pytest, torch, torch_xla
        import torch_xla.distributed.spmd as xs
        mesh = xs.Mesh(np.arange(8), (8,), ("data",))
        t = torch.randn(8, 4).to("xla")
        with pytest.raises(RuntimeError, match="expected SPMD mode"):
            xs.mark_sharding(t, mesh, ("data", None))
        """,
        env=EIGHT,
    )


def test_the_sharding_of_a_tensor(run):
    run("""
    t = torch.randn(16, 8).to("xla")
    assert xs.sharding_of(t) == ""
    split = xs.mark_sharding(t, mesh, ("data", None))
    text = "{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"
    assert xs.sharding_of(t) == xs.sharding_of(split) == split.sharding_spec == text
    assert xs.sharding_of(t) == _XLAC._get_xla_sharding_spec(t)
    assert xs.sharding_of(torch.ones(2)) == ""
    assert xs.sharding_of(xs.clear_sharding(t)) in ("", "{replicated}")
    """)


def test_meshes(run):
    run("""
    assert mesh.shape() == collections.OrderedDict([("data", 4), ("model", 2)])
    assert mesh.size() == 8 and mesh.get_axis_name_idx("model") == 1
    assert mesh.get_axis_name_idx("other") is None
    assert mesh.get_logical_mesh().tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert xs.Mesh.from_str(str(mesh)) == mesh and xs.Mesh.from_str("nothing") is None
    hybrid = xs.HybridMesh(ici_mesh_shape=(1, 4, 1), dcn_mesh_shape=(2, 1, 1),
                           axis_names=("data", "fsdp", "tensor"))
    assert hybrid.shape() == collections.OrderedDict([("data", 2), ("fsdp", 4), ("tensor", 1)])
    assert hybrid.get_logical_mesh().tolist() == [[[0], [1], [2], [3]], [[4], [5], [6], [7]]]
    hybrid = xs.HybridMesh(ici_mesh_shape=(2, 2), dcn_mesh_shape=(1, 2))
    assert hybrid.get_logical_mesh().tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert hybrid.axis_names is None
    assert hybrid.shape() == collections.OrderedDict([(0, 2), (1, 4)])
    assert str(hybrid.get_op_sharding((0, 1))) == "{devices=[2,4]0,1,4,5,2,3,6,7}"
    assert hybrid.get_op_sharding((0, 1)) is hybrid.get_op_sharding([0, 1])
    assert hybrid.get_axis_name_idx("0") is None and xs.Mesh.from_str(str(hybrid)) == hybrid
    assert xs.get_global_mesh() is None
    xs.set_global_mesh(mesh)
    assert xs.get_global_mesh() is mesh
    from torch_xla.distributed.spmd import xla_sharding
    assert xla_sharding._GLOBAL_MESH is mesh
    """)


def test_cached_programs_know_their_shardings(run, tmp_path):
    code = """
    t = torch.randn(16, 8).to(device)
    xs.mark_sharding(t, mesh, ("data", "model"))
    u = t @ t.T
    torch_xla.sync()
    assert spec(u) != "", "the compiler has not split it"
    check_shards(u, u.cpu())
    torch.testing.assert_close(u.cpu(), t.cpu() @ t.cpu().T, rtol=1e-4, atol=1e-5)
    print("compiled", met.counter_value("UncachedCompile") or 0)
    """
    env = {"XLA_PERSISTENT_CACHE_PATH": str(tmp_path / "cache")}
    assert "compiled 1" in run(code, env).stdout
    assert "compiled 0" in run(code, env).stdout


def test_poisoned_donations(run):
    run("""
    _XLAC._xla_set_check_donation(True, poison=True)
    value = torch.randn(16, 8)
    want, whole = value.clone(), value.clone()
    t, r = value.to(device), value.to(device)
    xs.mark_sharding(t, mesh, ("data", "model"))
    for _ in range(4):
        for a, b in ((want, whole), (t, r)):
            a.mul_(1.5).add_(b)
            b.add_(1)
        torch_xla.sync()
    torch.testing.assert_close(t.cpu(), want)
    torch.testing.assert_close(r.cpu(), whole)
    assert check_shards(t, t.cpu()) == 8 and check_shards(r, r.cpu()) == 1
    """)


def test_loader_splits_its_batches(run):
    run("""
    import torch_xla.distributed.parallel_loader as pl
    import pytest
    batches = [{"x": torch.randn(8, 4), "y": torch.randint(5, (8,)), "n": torch.tensor(3.0)}
               for _ in range(3)]
    split = xs.ShardingSpec(mesh, ("data", None))
    loader = pl.MpDeviceLoader(batches, device, input_sharding=split)
    for batch, host in zip(loader, batches, strict=True):
        assert check_shards(batch["x"], host["x"]) == 4
        assert spec(batch["y"]) == "{replicated}" and check_shards(batch["y"], host["y"]) == 1
        torch.testing.assert_close(batch["n"].cpu(), host["n"])
    by_name = {"x": split, "y": xs.ShardingSpec(mesh, (("data", "model"),)), "n": None}
    loader = pl.MpDeviceLoader(batches, device)
    loader._parallel_loader_kwargs["input_sharding"] = by_name
    for batch, host in zip(loader, batches, strict=True):
        assert check_shards(batch["x"], host["x"]) == 4
        assert check_shards(batch["y"], host["y"]) == 8
    (x,) = xm.send_cpu_data_to_device(batches[0]["x"], device, split)
    assert check_shards(x, batches[0]["x"]) == 4
    with pytest.raises(KeyError, match="none for .'x', 'n'"):
        xm.send_cpu_data_to_device(batches[0], device, {"y": split})
    with pytest.raises(KeyError, match="'y'"):
        next(iter(pl.MpDeviceLoader(batches, device, input_sharding={"x": split, "n": None})))
    with pytest.raises(ValueError, match="a batch that is a dict"):
        next(iter(pl.MpDeviceLoader([torch.ones(8)], device, input_sharding=by_name)))
    few = xs.ShardingSpec(mesh, ("data", None), minibatch=True)
    with pytest.raises(RuntimeError, match="must be divisible by local runtime device count. Per "
                                           "host input data shape = torch.Size..7, 2.."):
        next(iter(pl.MpDeviceLoader([torch.ones(7, 2)], device, input_sharding=few)))
    assert next(iter(pl.MpDeviceLoader([torch.ones(8, 2)], device, input_sharding=few))).dim() == 2
    """)


def test_programs_send_what_they_must(run):
    run("""
    from torch_xla.distributed.spmd.debugging import collectives

    def kinds():
        return sorted(kind for kind, _ in collectives())

    def put(value, partition):
        t = value.to(device)
        xs.mark_sharding(t, mesh, partition)
        return t

    x, w, v = torch.randn(64, 32), torch.randn(32, 48), torch.randn(48, 32)
    # Data parallel: the gradients of the weights are all that is sent.
    dx, dw = put(x, (("data", "model"), None)), put(w, (None, None)).requires_grad_()
    (dx @ dw).square().sum().backward()
    torch_xla.sync()
    assert kinds() == ["all-reduce"], collectives()
    assert collectives() == [("all-reduce", 32 * 48 * 4)]
    # Tensor parallel: columns, then rows; one sum of the results.
    dx, dw, dv = put(x, ("data", None)), put(w, (None, "model")), put(v, ("model", None))
    y = (dx @ dw).relu() @ dv
    torch_xla.sync()
    assert collectives() == [("all-reduce", 64 // 4 * 32 * 4)], collectives()
    torch.testing.assert_close(y.cpu(), (x @ w).relu() @ v, rtol=1e-4, atol=1e-4)
    # Fully sharded: parameters are gathered where they are needed, and sums scattered or reduced.
    dx, dw = put(x, (("data", "model"), None)), put(w, (("data", "model"), None)).requires_grad_()
    (dx @ dw).square().sum().backward()
    torch_xla.sync()
    assert kinds()[0] == "all-gather", collectives()
    assert max(size for kind, size in collectives()) == 32 * 48 * 4, collectives()
    # Nothing is sent for what is split alike.
    dx, dw = put(x, ("data", "model")), put(x, ("data", "model"))
    y = (dx * dw).exp() + 1
    torch_xla.sync()
    assert collectives() == []
    try:
        collectives(10 ** 6)
        raise AssertionError
    except IndexError as e:
        assert "expected one of" in str(e)
    """)
