"""PyTorch's `local_map` on an xla mesh: its function sees what one device has, and values and
gradients are those of the whole on the CPU."""

from __future__ import annotations

import pytest

from tests.spmd.test_dtensor import DTENSOR
from tests.spmd.test_sharding import EIGHT, PRELUDE, runner

LOCAL_MAP = """
import math
import torch.distributed._functional_collectives as funcol
from torch.distributed.tensor.experimental import local_map
row, column, whole = [Shard(0)], [Shard(1)], [Replicate()]

def leaves(*sizes):
    plain = torch.randn(*sizes, dtype=torch.float64, requires_grad=True)
    return plain, plain.detach().clone().requires_grad_()

def split(value, on, placements):
    return distribute_tensor(value, on, placements)

def close_with_gradients(got, want, *pairs):
    weight = torch.randn(want.shape, dtype=want.dtype)
    (want * weight).sum().backward()
    (got * weight.to(device)).sum().backward()
    torch_xla.sync()
    close(got, want)
    for there, plain in pairs:
        close(there.grad, plain.grad)
        there.grad = plain.grad = None
"""


@pytest.fixture
def run(run_python):
    """Runs code in an SPMD process of eight devices."""

    return runner(run_python, PRELUDE + DTENSOR + LOCAL_MAP)


def test_the_example_of_pytorchs_documents(run):
    """Its in_placements lack the mesh there, for which PyTorch, too, would raise."""
    run("""
    device_mesh = init_device_mesh("xla", (8,))

    def mm_allreduce_forward(device_mesh, W, X):
        partial_sum_tensor = torch.mm(W, X)
        reduced_tensor = funcol.all_reduce(partial_sum_tensor, "sum", device_mesh)
        return reduced_tensor

    W = torch.randn(12, 8, requires_grad=False)
    X = torch.randn(8, 16, requires_grad=False)
    Y = torch.mm(W, X)
    row_wise = [Shard(0)]  # row-wise sharding placements on 1-d mesh
    col_wise = [Shard(1)]  # col-wise sharding placements on 1-d mesh

    # local_mm_allreduce_forward is the function wrapped with DTensor/Tensor conversion
    local_mm_allreduce_forward = local_map(
        mm_allreduce_forward,
        out_placements=[Replicate()],
        in_placements=[None, col_wise, row_wise],
        device_mesh=device_mesh,
    )
    W_dt = distribute_tensor(W, device_mesh, (col_wise))
    X_dt = distribute_tensor(X, device_mesh, (row_wise))
    Y_dt = local_mm_allreduce_forward(device_mesh, W_dt, X_dt)
    assert isinstance(Y_dt, DTensor) and Y_dt.placements == (Replicate(),)
    close(Y_dt, Y)
    """)


def test_products_by_columns_and_rows(run):
    run("""
    seen = []
    def mm(w, x):
        seen.append((tuple(w.shape), tuple(x.shape)))
        assert type(w) is type(x) is torch.Tensor and spec(w) == spec(x) == "{manual}"
        return w @ x

    for on, ws, xs_, out, sizes in [
        (flat, column, row, [Partial()], ((16, 1), (1, 24))),
        (flat, row, whole, row, ((2, 8), (8, 24))),
        (flat, whole, column, column, ((16, 8), (8, 3))),
        (flat, whole, whole, whole, ((16, 8), (8, 24))),
        (grid, [Shard(0), Shard(1)], [Replicate(), Shard(0)], [Shard(0), Partial()],
         ((4, 4), (4, 24))),
        (grid, [Shard(1), Shard(0)], [Shard(0), Replicate()], [Partial(), Shard(0)],
         ((8, 2), (2, 24))),
        (grid, [Shard(1), Shard(1)], [Shard(0), Shard(0)], [Partial(), Partial()],
         ((16, 1), (1, 24))),
        (grid, [Replicate(), Shard(1)], [Replicate(), Shard(0)], [Replicate(), Partial()],
         ((16, 4), (4, 24))),
        (grid, [Shard(0), Replicate()], [Replicate(), Shard(1)], [Shard(0), Shard(1)],
         ((4, 8), (8, 12))),
    ]:
        for back in (None, "said"):
            (pw, w), (px, x) = leaves(16, 8), leaves(8, 24)
            dw, dx = split(w, on, ws), split(x, on, xs_)
            # What each device does with its copy is added up, as Partial says.
            back_w = [Partial() if isinstance(p, Replicate) else p for p in ws]
            back_x = [Partial() if isinstance(p, Replicate) else p for p in xs_]
            call = local_map(mm, out, (ws, xs_), None if back is None else (back_w, back_x))
            got = call(dw, dx)
            assert seen[-1] == sizes, (seen[-1], sizes)
            assert got.placements == tuple(out) and got.shape == (16, 24)
            close_with_gradients(got, pw @ px, (dw, pw), (dx, px))
            for to in ([Replicate()] * on.ndim, [Shard(0)] + [Replicate()] * (on.ndim - 1)):
                close_with_gradients(call(dw, dx).redistribute(placements=to), pw @ px,
                                     (dw, pw), (dx, px))
    """)


def test_devices_exchange_what_they_have(run):
    run("""
    def reduced(mesh, w, x):
        return funcol.all_reduce(w @ x, "sum", mesh).wait()

    def gathered(mesh, w, x):
        return funcol.all_gather_tensor(w @ x, 0, mesh).wait()

    def scattered(mesh, w, x):
        return funcol.reduce_scatter_tensor(w @ x, "sum", 1, mesh).wait()

    for function, ws, xs_, out in [
        (reduced, column, row, whole), (gathered, row, whole, whole),
        (scattered, column, row, column),
    ]:
        (pw, w), (px, x) = leaves(16, 8), leaves(8, 24)
        dw, dx = split(w, flat, ws), split(x, flat, xs_)
        got = local_map(function, out, (None, ws, xs_))(flat, dw, dx)
        assert got.placements == tuple(out)
        close_with_gradients(got, pw @ px, (dw, pw), (dx, px))
    import gc, weakref
    def kept(mesh, x):
        made = funcol.all_reduce(x * 2, "sum", mesh)
        assert type(made + 1) is type(made.wait()) is torch.Tensor
        refs.append(weakref.ref(made))
        return made
    refs = []
    gc.disable()
    got = local_map(kept, whole, (None, row))(flat, split(torch.ones(8, 3), flat, row))
    assert refs[0]() is None  # nothing holds what nobody uses
    close(got, torch.full((1, 3), 16.0))
    gc.enable()
    # Along one dimension of two; averages, and what is the same on all devices.
    def normed(x):
        count = funcol.all_reduce(torch.ones((), device=x.device), "sum", (grid, "no")[:1] + (1,))
        mean = funcol.all_reduce(x.mean(1, keepdim=True), "avg", grid["tp"])
        top = funcol.all_reduce((x - mean).amax(1, keepdim=True), "max", (grid, 1))
        return (x - mean) / top * count

    px, x = leaves(16, 8)
    dx = split(x, grid, [Shard(0), Shard(1)])
    got = local_map(normed, [Shard(0), Shard(1)], ([Shard(0), Shard(1)],))(dx)
    centered = px - px.mean(1, keepdim=True)
    close_with_gradients(got, centered / centered.amax(1, keepdim=True) * 2, (dx, px))
    with pytest.raises(ValueError, match="a mesh of one dimension"):
        local_map(lambda x: funcol.all_reduce(x, "sum", grid), [Shard(0), Shard(1)])(dx)
    """)


def test_placements_and_redistribution(run):
    run("""
    px, x = leaves(16, 8)
    d = split(x, grid, [Shard(0), Replicate()])
    double = lambda t: t * 2
    with pytest.raises(ValueError, match="redistribute_inputs=True"):
        local_map(double, [Shard(0), Shard(1)], ([Shard(0), Shard(1)],))(d)
    shapes = []
    def shown(t):
        shapes.append(tuple(t.shape))
        return t.sin()
    call = local_map(shown, [Shard(1), Shard(0)], ([Shard(1), Shard(-2)],),
                     redistribute_inputs=True)
    close_with_gradients(call(d), px.sin(), (d, px))
    assert shapes == [(8, 2)]
    # Without in_placements as the argument is split; a decorator; another mesh dimension.
    @local_map(out_placements=[Shard(0), Replicate()])
    def decorated(t):
        shapes.append(tuple(t.shape))
        return t.sin()
    close_with_gradients(decorated(d), px.sin(), (d, px))
    assert shapes[-1] == (4, 8)
    # Nothing has said how a result is split: it is redistributed.
    close_with_gradients(local_map(shown, [Shard(0), Shard(1)], ([Shard(0), Shard(1)],))(d * 3),
                         (px * 3).sin(), (d, px))
    assert shapes[-1] == (4, 4)
    with pytest.raises(ValueError, match="Pass in_placements"):
        local_map(shown, [Shard(0), Shard(1)])(d * 3)
    # Partial among the arguments: what each device holds.
    p = DTensor.from_local(x, grid, [Shard(0), Partial()])
    q = local_map(lambda t: t * 2, [Shard(0), Partial()], ([Shard(0), Partial()],))(p)
    close(q, px * 4)
    q = local_map(lambda t: t * 2, [Shard(0), Replicate()], ([Shard(0), Replicate()],),
                  redistribute_inputs=True)(p)
    close(q, px * 4)
    # A sub-mesh: devices along the other axis have copies.
    t = split(x.detach(), tp, [Shard(0)])
    got = local_map(shown, [Partial()], ([Shard(0)],))(t)
    close(got, px.sin()[:8] + px.sin()[8:])
    assert shapes[-1] == (8, 8)
    odd = split(torch.randn(7, 3), flat, [Shard(0)])
    with pytest.raises(ValueError, match="Pad the tensor"):
        local_map(shown, [Shard(0)])(odd)
    """)


def test_nests_and_other_values(run):
    run("""
    (px, x), (py, y) = leaves(16, 8), leaves(16, 8)
    dx, dy = split(x, flat, row), split(y, flat, row)
    plain = torch.arange(8.0, dtype=torch.float64).to(device)
    def function(pair, scale, plain, *, shift):
        assert pair["x"].shape == (2, 8) and plain.shape == (8,)
        return {"sum": (pair["x"] * scale + pair["y"][0] + shift).sum(0), "n": 3,
                "rows": pair["x"] * plain, "all": torch.ones(3)}
    call = local_map(function, ([Partial()], None, row, None), (row, row, None, whole))
    made = call({"x": dx, "y": (dy,)}, 2, plain, shift=1)
    assert made["n"] == 3 and made["sum"].placements == (Partial(),)
    assert made["rows"].placements == (Shard(0),)
    close(made["all"], torch.ones(3))
    want = (px * 2 + py + 1).sum(0)
    close_with_gradients(made["sum"], want, (dx, px), (dy, py))
    close(made["rows"], px * plain.cpu())
    # Without a DTensor the function is called as it is.
    assert local_map(lambda t: t + 1, row)(torch.ones(2)).tolist() == [2, 2]
    assert type(local_map(lambda t: t + 1, row)(plain)) is torch.Tensor
    for bad, text in [
        (lambda: local_map(function, row, (row,))(dx, 2), "in_placements for each of the 2"),
        (lambda: local_map(function, row, (row, row))(dx, 2), "None as placements of 2"),
        (lambda: local_map(lambda t: t, row, (None,))(dx), "in_placements of the DTensor at 0"),
        (lambda: local_map(lambda t: t, row, (row,), (None,))(dx), "in_grad_placements of the"),
        (lambda: local_map(lambda t: (t, t), row)(dx), "for each of the 2 results, got 1"),
        (lambda: local_map(lambda t: 3, row)(dx), "None as placements of the result 3"),
        (lambda: local_map(lambda t: dx, row)(dx), "got a DTensor"),
    ]:
        with pytest.raises(AssertionError, match=text):
            bad()
    """)


def test_steps_and_second_derivatives(run):
    run("""
    (pw, w), (px, x) = leaves(8, 8), leaves(16, 8)
    dw, dx = split(w, grid, [Replicate()] * 2), split(x, grid, [Shard(0), Replicate()])
    # Data parallelism by hand: the loss of each device's rows; several uses of one value.
    def loss(w, x):
        h = (x @ w).tanh()
        return ((h @ w) * h).sum()
    call = local_map(loss, [Partial(), Replicate()], ([Replicate()] * 2, [Shard(0), Replicate()]))
    optimizers = [torch.optim.SGD([t], lr=0.01) for t in (pw, dw)]
    for step in range(3):
        for o in optimizers:
            o.zero_grad()
        got = call(dw, dx)
        torch_xla.sync()
        got.full_tensor().backward()
        torch_xla.sync()
        want = loss(pw, px)
        want.backward()
        close(got, want)
        close(dw.grad, pw.grad)
        for o in optimizers:
            o.step()
    close(dw, pw)
    def cubes(mesh, x):
        return funcol.all_reduce(x ** 3, "sum", (mesh, 0)) * x
    call = local_map(cubes, [Shard(0), Replicate()], (None, [Shard(0), Replicate()]))
    for t, y in ((px, px.reshape(4, 4, 8).pow(3).sum(0).repeat(4, 1) * px), (dx, call(grid, dx))):
        t.grad = None
        (g,) = torch.autograd.grad(y.sum(), t, create_graph=True)
        (g * g).sum().backward()
    close(dx.grad, px.grad)
    # Writes in place, and parts that cross a step.
    def writes(t):
        t = t.clone()
        t[0] = 7
        t.mul_(2)[1:] += 1
        torch_xla.sync()
        return t
    got = local_map(writes, row, (row,))(split(torch.ones(16, 4), flat, row))
    close(got, torch.tensor([[14.0], [3.0]]).repeat(8, 4))
    """)


def test_gradients_through_reductions(run):
    run("""
    stacked = {"sum": lambda t: t.sum(0), "avg": lambda t: t.mean(0), "max": lambda t: t.amax(0),
               "min": lambda t: t.amin(0)}
    def loss(x, w):
        return (x @ w).sin().mean(0)
    for name, plain in stacked.items():
        P = Partial(name)
        for on, ins, out, to in [
            (flat, row, [P], whole), (flat, row, [P], row),
            (grid, [Shard(0), Replicate()], [P, Replicate()], [Replicate()] * 2),
            (grid, [Shard(0), Shard(0)], [P, P], [Replicate(), Shard(0)]),
            (grid, [Shard(0), Shard(0)], [P, P], [P, Replicate()]),
        ]:
            (px, x), (pw, w) = leaves(16, 8), leaves(8, 8)
            n = math.prod(on.size(i) for i, p in enumerate(ins) if p == Shard(0))
            want = plain(torch.stack([loss(rows, pw) for rows in px.chunk(n)]))
            copies = [Replicate()] * on.ndim
            for back in (None, Partial(), Partial("avg"), Replicate()):
                dx, dw = split(x.detach().clone().requires_grad_(), on, ins), split(w, on, copies)
                grads = None if back is None else (ins, [back] * on.ndim)
                got = local_map(loss, out, (ins, copies), grads)(dx, dw)
                assert got.placements == tuple(out)
                got = got.redistribute(placements=to)
                px.grad = pw.grad = None
                weight = torch.randn(8, dtype=torch.float64)
                (want * weight).sum().backward(retain_graph=True)
                (got * weight.to(device)).sum().backward()
                close(got, want)
                close(dx.grad, px.grad)
                close(dw.grad, pw.grad)
    d = split(torch.randn(8, 8).requires_grad_(), flat, row)
    product = local_map(lambda t: t, [Partial("product")], (row,))(d)
    with pytest.raises(NotImplementedError, match="of which there is a gradient"):
        product.full_tensor().sum().backward()
    """)


def test_writes_into_arguments(run):
    run("""
    value = torch.randn(16, 8)
    def fills(cache, x, at):
        cache[at:at + 1] = x
        return cache.sum(0)
    for on, said, out in [(flat, row, [Partial()]), (grid, [Replicate(), Shard(1)],
                                                    [Replicate(), Shard(0)])]:
        rows = 8 if on is flat else 1
        cache = split(torch.zeros(16, 8), on, said)
        x = split(value[:rows], on, said)
        call = local_map(fills, out, (said, said, None))
        for at in range(2):
            total = call(cache, x, at)
            torch_xla.sync()
        want = torch.zeros(16, 8)
        if on is flat:
            want[:] = value[:8].repeat_interleave(2, 0)
        else:
            want[:2] = value[:1]
        close(cache, want)
        close(total, want.sum(0))
        assert cache.placements == tuple(said) and spec(cache) == spec(split(want, on, said))
    p = split(value.clone().requires_grad_(), flat, row)
    double = local_map(lambda t: t.mul_(2), row, (row,))
    with pytest.raises(RuntimeError, match="which need a gradient"):
        double(p)
    with torch.no_grad():
        close(double(p), value * 2)
    close(p, value * 2)
    # What was redistributed is another tensor.
    d = split(value, flat, row)
    local_map(lambda t: t.mul_(2), column, (column,), redistribute_inputs=True)(d)
    close(d, value)
    held = DTensor.from_local(value, flat, [Partial()])
    with pytest.raises(NotImplementedError, match="what each device holds"):
        local_map(lambda t: t.mul_(2), [Partial()], ([Partial()],))(held)
    """)


def test_checkpoints_meshes_and_other_collectives(run):
    run("""
    from torch.utils.checkpoint import checkpoint
    (pw, w), (px, x) = leaves(8, 8), leaves(16, 8)
    dw, dx = split(w, flat, whole), split(x, flat, row)
    def summed(mesh, w, x):
        assert x.shape == (2, 8)
        return funcol.all_reduce((x @ w).tanh().sum(0), "sum", mesh)
    for placements in ((None, whole, row), None):
        call = local_map(summed, whole, placements)
        for reentrant in (True, False):
            got = checkpoint(call, flat, dw, dx, use_reentrant=reentrant)
            close_with_gradients(got, (px @ pw).tanh().sum(0), (dw, pw), (dx, px))
    # Groups in the order of the parts.
    turned = DeviceMesh("xla", torch.tensor([3, 1, 0, 2, 7, 6, 4, 5]).reshape(4, 2),
                        mesh_dim_names=("x", "y"))
    for on in (turned["x"], turned["y"]):
        for function, ws, xs_, out in [
            (lambda m, a, b: funcol.all_reduce(a @ b, "sum", m), column, row, whole),
            (lambda m, a, b: funcol.all_gather_single(a @ b, 1, m), whole, column, whole),
            (lambda m, a, b: funcol.reduce_scatter_single(a @ b, "sum", 0, m), column, row, row),
            (lambda m, a, b: a @ b * funcol.all_reduce(a.new_ones(()), "avg", m),
             row, whole, row),
        ]:
            dw, dx = split(w, on, ws), split(x.T, on, xs_)
            got = local_map(function, out, (None, ws, xs_))(on, dw, dx)
            close_with_gradients(got, pw @ px.T, (dw, pw))
            px.grad = None
    d = split(torch.ones(8, 8), flat, row)
    for call in (lambda t: funcol.broadcast(t, 0, flat),
                 lambda t: funcol.all_to_all_single(t, None, None, (grid, 1))):
        with pytest.raises(NotImplementedError, match="got another collective"):
            local_map(call, row)(d)
    with pytest.raises(TypeError, match="expected a tensor on xla, got one on cpu"):
        local_map(lambda t: funcol.all_reduce(torch.ones(2), "sum", flat), whole)(d)
    with pytest.raises(ValueError, match="divide"):
        local_map(lambda t: funcol.reduce_scatter_single(t, "sum", 0, flat), row)(d)
    """)


def test_whoever_is_imported_first(run_python):
    run_python(
        """
        import torch
        from torch.distributed.tensor.experimental import local_map
        import torch.distributed._functional_collectives as funcol
        import torch_xla
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Partial, Shard, distribute_tensor
        mesh = init_device_mesh("xla", (8,))
        d = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
        out = local_map(lambda t: funcol.all_reduce(t, "sum", mesh), [Shard(0)])(d)
        assert out.full_tensor().cpu().tolist() == [[8.0] * 8] * 8
        """,
        env=EIGHT,
    )


def test_partial_and_local_map_in_compiled_functions(run):
    """They run outside of the graph, with the same values."""
    run(
        """
        def multiplied(a, b):
            return a @ b

        in_placements = ([Shard(1)], [Shard(0)])
        product = local_map(multiplied, [Partial()], in_placements, device_mesh=flat)
        a, b = (distribute_tensor(torch.randn(8, 8), flat, p) for p in in_placements)
        held = DTensor.from_local(torch.randn(8), flat, [Partial()])
        functions = [
            lambda: product(a.sin(), b).full_tensor() * 2,
            lambda: held.redistribute(flat, [Replicate()]) * 2,
            lambda: held * 2 + 1,
            lambda: DTensor.from_local(a.to_local(), flat, [Partial()]).redistribute(
                flat, [Shard(0)]) + 1,
        ]
        for function in functions:
            torch._dynamo.reset()
            compiled = torch.compile(function, backend="openxla")()
            expected = function()
            assert type(compiled) is type(expected)
            close(compiled, expected.cpu())
        torch._dynamo.reset()
        try:
            torch.compile(functions[0], backend="openxla", fullgraph=True)()
        except torch._dynamo.exc.Unsupported as error:
            assert "local_map on an xla mesh runs outside of torch.compile" in str(error)
        else:
            raise AssertionError
        """
    )
