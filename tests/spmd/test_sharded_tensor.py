"""`XLAShardedTensor`: a DTensor that stands for a marked tensor, or has a history of its own."""

from __future__ import annotations

import pytest

from tests.spmd.test_sharding import PRELUDE, REFUSED, runner

MORE = (
    PRELUDE
    + REFUSED
    + """
import copy
import io
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor, Partial, Replicate, Shard, distribute_tensor, zeros as dtensor_zeros,
)
from torch.distributed.tensor._dtensor_spec import DTensorSpec

S = xs.XLAShardedTensor
value = torch.arange(64.0).view(8, 8)
"""
)


@pytest.fixture
def run(run_python):
    return runner(run_python, MORE)


def test_what_is_marked_and_what_is_computed_from_it_are_dtensors(run):
    run("""
    assert issubclass(S, DTensor)
    t = value.to(device)
    x = xs.mark_sharding(t, mesh, ("data", None))
    assert type(x) is S and x.global_tensor is t and type(t) is torch.Tensor
    assert (x.mesh_shape, x.partition_spec) == ((4, 2), ("data", None))
    assert x.sharding_type is xs.ShardingType.PARTIAL and x.sharding_spec == spec(t)
    assert repr(x) == f"XLAShardedTensor({t!r})"
    assert x.placements == (Shard(0), Replicate()) and len(x.local_shards) == N

    layer = nn.Linear(8, 4).to(device)
    for y in (x + 1, 1 - x, x @ x, x.t(), x[0], x.sum(), torch.stack([x, x]), x.chunk(2)[1],
              torch.max(x, 0).values, layer(x), x.detach(), x.clone(), torch.where(x > 3, x, 0)):
        assert type(y) is S and type(y.global_tensor) is torch.Tensor, type(y)
    torch.testing.assert_close((x @ x + layer(x).sum()).cpu(),
                               value @ value + layer(t).sum().cpu())
    assert type(x.cpu()) is torch.Tensor and x.sum().item() == value.sum()
    assert type(x.global_tensor + 1) is torch.Tensor and x.shape == value.shape

    assert f"{x.sum():.1f}" == f"{value.sum():.1f}"
    out = torch.empty(8, 8, device=device)
    assert torch.add(x, 1, out=out) is out and torch.add(t, 0, out=x) is x
    assert torch.add(x + 0, 1, out=out) is out and torch.equal(out.cpu(), value + 1)

    # In place: the same object, the same tensor.
    y = x
    y += 1
    assert y is x and x.add_(1) is x and torch.equal(t.cpu(), value + 2)
    x[0] = 0
    assert t[0].sum().item() == 0

    d = distribute_tensor(value, DeviceMesh("xla", list(range(N))), [Shard(0)])
    assert type(d) is S and type(d + 1) is S
    assert (d.mesh_shape, d.partition_spec) == ((8,), (0, None))
    assert type(d + x) is S and (d + x).device_mesh == d.device_mesh == (x + d).device_mesh
    assert type(dtensor_zeros(8, 8, device_mesh=d.device_mesh, placements=[Shard(1)])) is S
    """)


def test_gradients_and_parameters_of_what_is_marked(run):
    run("""
    w = value.clone().to(device).requires_grad_()
    x = xs.mark_sharding(w, mesh, ("data", "model"))
    assert x.requires_grad and x.is_leaf and x.global_tensor is w
    y = (x * x).sum()
    assert type(y) is S and y.grad_fn is not None
    y.backward()
    torch.testing.assert_close(w.grad.cpu(), 2 * value)
    assert type(x.grad) is S and x.grad is x.grad
    assert x.grad.untyped_storage()._cdata == w.grad.untyped_storage()._cdata
    x.grad = None
    assert w.grad is None

    late = xs.mark_sharding(value.to(device), mesh, ("data", None))
    assert late.requires_grad_() is late
    late.pow(3).sum().backward()
    torch.testing.assert_close(late.grad.cpu(), 3 * value**2)
    seen = []
    handle = late.register_hook(lambda g: seen.append(g))
    (late * 2).sum().backward()
    assert len(seen) == 1

    p = nn.Parameter(x)
    assert isinstance(p, nn.Parameter) and isinstance(p, S) and p.placements == x.placements
    optimizer = torch.optim.SGD([p], lr=0.5)
    (p * 2).sum().backward()
    optimizer.step()
    torch.testing.assert_close(w.detach().cpu(), value - 1)  # one memory
    assert spec(p.global_tensor) == spec(w)

    again = copy.deepcopy(x.detach())
    assert type(again) is S and again.placements == x.placements and again.sharding_spec == spec(w)
    again.zero_()
    assert w.sum().item() != 0
    file = io.BytesIO()
    torch.save({"x": x.detach(), "p": p}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert type(loaded["p"]) is nn.Parameter and torch.equal(loaded["x"].cpu(), w.detach().cpu())
    """)


def test_the_constructor(run):
    run("""
    for where in ("cpu", device):
        elem = value.to(where)
        k = S(elem, (4, 2), (0, 1))
        assert k.global_tensor is elem and k.placements == (Shard(0), Shard(1))
        assert type(k + k) is S and torch.equal((k + k).global_tensor.cpu(), value * 2)
        assert S(k).mesh_shape == (4, 2) and S(k).global_tensor is elem
        leaf = S(elem, requires_grad=True)
        assert leaf.requires_grad and leaf.is_leaf and not elem.requires_grad
        leaf.pow(2).sum().backward()
        torch.testing.assert_close(leaf.grad.global_tensor.cpu(), 2 * value)

        unsaid = S(elem)
        refused(ValueError, lambda: unsaid._spec, "mesh_shape must be specified to create")
        refused(ValueError, lambda: unsaid.placements, "Placements not available")
        refused(ValueError, lambda: S(elem, (4, 2))._spec, "partition_spec must be specified")
        refused(ValueError, lambda: (k + 1)._spec, "mesh_shape must be specified")
        assert xs.wrap_as_sharded_tensor(unsaid, (4, 2), (None, 0)) is unsaid
        assert unsaid.placements == (Shard(1), Replicate())
    """)


def test_the_spec(run):
    run("""
    plain = DeviceMesh("xla", torch.arange(N).view(4, 2))
    for partition, placements in [
        ((0, 1), (Shard(0), Shard(1))),
        ((None, "data"), (Shard(1), Replicate())),
        ((("data", "model"), None), (Shard(0), Shard(0))),
        ((None, None), (Replicate(), Replicate())),
    ]:
        x = xs.mark_sharding(value.to(device), mesh, partition)
        made = x._spec
        assert type(made) is DTensorSpec and made.mesh == plain and made.placements == placements
        assert tuple(made.tensor_meta) == (value.shape, value.stride(), value.dtype)
        assert x._spec is made and x._cached_spec is made and x.placements == placements
        x.invalidate_spec_cache()
        assert x._cached_spec is None and x._spec == made
    x = xs.mark_sharding(value.to(device), mesh, (0, None))
    assert x._spec is not None
    x.load_local_shards_(x.local_shards)
    assert x._cached_spec is None and torch.equal(x.cpu(), value)

    d = distribute_tensor(value, plain, [Shard(1), Replicate()])
    assert d._spec.placements == (Shard(1), Replicate()) and d._spec is d._spec
    assert d._spec.mesh is d.device_mesh
    refused(ValueError, lambda: (d @ d)._spec, "partition_spec must be specified")
    """)


def test_redistribute_along_a_mesh(run):
    run("""
    x = xs.mark_sharding(value.to(device), mesh, ("data", None))
    for async_op in (False, True):
        y = x.redistribute(mesh, [Replicate(), Shard(1)], async_op=async_op)
        assert type(y) is S and torch.equal(y.cpu(), value)
        assert y.placements == (Replicate(), Shard(1))
        assert (y.mesh_shape, y.partition_spec) == ((4, 2), (None, 1))
        assert y.sharding_spec == str(mesh.get_op_sharding((None, "model")))
    assert torch.equal((x + 1).full_tensor().cpu(), value + 1)
    assert torch.equal(x.full_tensor().cpu(), value) and x.to_local() is x.global_tensor
    refused(ValueError, lambda: x.redistribute(mesh, [Shard(0)]), "2 mesh dimensions")
    refused(NotImplementedError, lambda: x.redistribute(mesh, [Shard(0), Partial()]), "Partial")
    for dim in (2, -3):
        refused(IndexError, lambda: x.redistribute(mesh, [Shard(dim), Replicate()]))
        refused(ValueError, lambda: x.redistribute(mesh, [Shard(dim), Replicate()]))
    """)


def test_a_compiled_function_takes_what_is_marked(run):
    run("""
    x = xs.mark_sharding(value.to(device), mesh, ("data", None))
    w = torch.randn(8, 8, requires_grad=True)
    there = w.detach().to(device).requires_grad_()

    def f(x, w):
        return (x @ w).relu() + x

    compiled = torch.compile(f, backend="openxla", fullgraph=True)
    y = compiled(x, there)
    torch.testing.assert_close(y.detach().cpu(), f(value, w).detach(), rtol=1e-4, atol=1e-4)
    y.sum().backward()
    f(value, w).sum().backward()
    torch.testing.assert_close(there.grad.cpu(), w.grad, rtol=1e-4, atol=1e-4)
    """)
