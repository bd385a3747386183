"""Gradients of what devices exchange in manual code: those of the same sums, written out for each
device's own value, on the CPU."""

from __future__ import annotations

import pytest

from tests.spmd.test_manual_sharding import PARTS
from tests.spmd.test_sharding import PRELUDE, runner

EXCHANGES = """
import itertools
import pytest

def groups_of(over, axes):
    "Devices that differ along these axes alone, in the order of the parts along them."
    at, found = places(over), collections.defaultdict(list)
    order = sorted(at, key=lambda d: tuple(at[d][a] for a in over.axis_names))
    for d in order:
        found[tuple(i for a, i in at[d].items() if a not in axes)].append(d)
    return list(found.values())

PLAIN = {"sum": lambda ts: ts.sum(0), "max": lambda ts: ts.amax(0), "min": lambda ts: ts.amin(0)}

def reduced(values, reduction, groups, scale=1.0):
    made = list(values)
    for group in groups:
        total = PLAIN[reduction](torch.stack([values[d] for d in group])) * scale
        for d in group:
            made[d] = total
    return made

def scattered(values, reduction, dim, groups, scale=1.0):
    made = reduced(values, reduction, groups, scale)
    return [made[d].chunk(len(group), dim)[group.index(d)]
            for d in range(N) for group in groups if d in group]

def gathered(values, dim, groups):
    made = list(values)
    for group in groups:
        for d in group:
            made[d] = torch.cat([values[e] for e in group], dim)
    return made

def gather(part, dim, groups):
    members = [d for group in groups for d in group]
    return torch.ops.torch_xla.all_gather(part, dim, members, len(groups[0]))

def leaves(value):
    return value.clone().requires_grad_(), value.to(device).requires_grad_()

def check(here, there, sizes, partition, out, over=mesh, between=lambda: None, value=None):
    "Of functions of each device's values, on the CPU and on xla."
    value = torch.randn(*sizes, dtype=torch.float64) if value is None else value
    plain, t = leaves(value)
    want = joined(here(parts_of(plain, partition, over)), out, over)
    weight = torch.randn_like(want)
    (want * weight).sum().backward()
    part = xs.enable_manual_sharding(t, partition, mesh=over).global_tensor
    between()
    made = there(part)
    between()
    got = xs.disable_manual_sharding(made, out, want.shape, mesh=over).global_tensor
    between()
    (got * weight.to(device)).sum().backward()
    torch.testing.assert_close(got.detach().cpu(), want.detach())
    torch.testing.assert_close(t.grad.cpu(), plain.grad)

reduce, scatter = _XLAC._xla_spmd_all_reduce, _XLAC._xla_spmd_reduce_scatter
cube = xs.Mesh(np.arange(N), (2, 2, 2), ("a", "b", "c"))
"""


@pytest.fixture
def run(run_python):
    """Runs code in an SPMD process of eight devices."""

    return runner(run_python, PRELUDE + PARTS + EXCHANGES)


def test_reductions_of_all_devices_and_along_axes(run):
    run("""
    for reduction, between in itertools.product(PLAIN, (lambda: None, torch_xla.sync)):
        for over, partition, axes in [
            (line, ("all", None), ("all",)), (mesh, ("data", "model"), ("model",)),
            (mesh, ("data", "model"), ("data",)), (mesh, ("model", "data"), ("data", "model")),
            (mesh, ("data", None), ("data",)), (shuffled, ("a", "b"), ("b",)),
            (cube, ("b", ("a", "c")), ("a", "c")),
        ]:
            groups = groups_of(over, axes)
            out = tuple(None if axis in axes or axis == ("a", "c") else axis for axis in partition)
            check(lambda ps: [p.sin() * q for p, q in zip(ps, reduced(ps, reduction, groups, 0.5))]
                  if out == partition else [q.exp() for q in reduced(
                      [p.sin() for p in ps], reduction, groups, 0.5)],
                  lambda p: p.sin() * reduce(reduction, p, 0.5, groups)
                  if out == partition else reduce(reduction, p.sin(), 0.5, groups).exp(),
                  (16, 8), partition, out, over, between)
    """)


def test_each_device_uses_the_sum_in_its_own_way(run):
    run("""
    groups = groups_of(mesh, ("model",))
    # The total goes into what each device makes of its own part.
    for reduction in PLAIN:
        check(lambda ps: [p * q for p, q in zip(ps, reduced(ps, reduction, groups))],
              lambda p: p * reduce(reduction, p, 1.0, groups),
              (16, 8), ("data", "model"), ("data", "model"))
    # Several uses of one value, and a sum of sums.
    def here(ps):
        once = reduced(ps, "sum", groups)
        twice = reduced([p * q for p, q in zip(ps, once)], "sum", groups_of(mesh, ("data",)))
        return [p + q.tanh() * r for p, q, r in zip(ps, once, twice)]
    def there(p):
        once = reduce("sum", p, 1.0, groups)
        return p + once.tanh() * reduce("sum", p * once, 1.0, groups_of(mesh, ("data",)))
    check(here, there, (16, 8), ("data", "model"), ("data", "model"))
    # A softmax over a dimension that is split, as it is written for one device.
    def softmax(ps):
        top = reduced([p.amax(1, keepdim=True) for p in ps], "max", groups)
        made = [(p - m).exp() for p, m in zip(ps, top)]
        sums = reduced([m.sum(1, keepdim=True) for m in made], "sum", groups)
        return [m / s for m, s in zip(made, sums)]
    def own_softmax(p):
        made = (p - reduce("max", p.amax(1, keepdim=True), 1.0, groups)).exp()
        return made / reduce("sum", made.sum(1, keepdim=True), 1.0, groups)
    check(softmax, own_softmax, (16, 8), ("data", "model"), ("data", "model"))
    value = torch.randn(16, 8)
    part = xs.enable_manual_sharding(value.to(device), ("data", "model"), mesh=mesh)
    whole = xs.disable_manual_sharding(own_softmax(part.global_tensor), ("data", "model"), (16, 8),
                                       mesh=mesh)
    torch.testing.assert_close(whole.cpu(), value.softmax(1))
    """)


def test_scattered_and_gathered(run):
    run("""
    groups = groups_of(mesh, ("model",))
    for between in (lambda: None, torch_xla.sync):
        for reduction, dim in itertools.product(PLAIN, (0, 1)):
            out = (("data", "model"), None) if dim == 0 else ("data", "model")
            check(lambda ps: [p.exp() for p in
                              scattered([p.sin() for p in ps], reduction, dim, groups, 0.25)],
                  lambda p: scatter(reduction, p.sin(), 0.25, dim, 2, groups).exp(),
                  (16, 8), ("data", None), out, between=between)
        check(lambda ps: [p.sin() for p in gathered([p * p for p in ps], 1, groups)],
              lambda p: gather(p * p, 1, groups).sin(),
              (16, 8), ("data", "model"), ("data", None), between=between)
        # Each device goes on with what is gathered by itself.
        check(lambda ps: [g * p.sum() for p, g in zip(ps, gathered(ps, 0, groups))],
              lambda p: gather(p, 0, groups) * p.sum(),
              (16, 8), ("data", "model"), (("data", "model"), None), between=between)
    for group in (groups_of(line, ("all",)), groups_of(shuffled, ("a", "b"))):
        over = line if group[0] == list(range(N)) else shuffled
        axes = over.axis_names if len(over.axis_names) > 1 else over.axis_names[0]
        check(lambda ps: [g.cumsum(0) for g in gathered(ps, 0, group)],
              lambda p: gather(p, 0, group).cumsum(0), (16, 8), (axes, None), (None, None), over)
    """)


def test_ties_share_and_shared_gradients(run):
    run("""
    groups = groups_of(mesh, ("data",))
    value = torch.tensor([1.0, 3.0, 3.0, 2.0] * 2, dtype=torch.float64).reshape(4, 2)
    for reduction in ("max", "min"):
        check(lambda ps: reduced(ps, reduction, groups), lambda p: reduce(reduction, p, 2.0, groups)
              * 0.5, (4, 2), ("data", None), (None, None), value=value)
    # The first gradient is one that all devices share.
    for make in (lambda p: reduce("sum", p, 2.0, groups), lambda p: gather(p, 0, groups) * 2,
                 lambda p: scatter("sum", p, 2.0, 0, 4, groups) * 4):
        t = torch.randn(16, 8).to(device).requires_grad_()
        part = xs.enable_manual_sharding(t, ("data", "model"), mesh=mesh).global_tensor
        make(part).sum().backward()
        torch.testing.assert_close(t.grad.cpu(), torch.full((16, 8), 8.0))
    """)


def test_second_derivatives(run):
    run("""
    groups = groups_of(mesh, ("model",))
    for reduction in PLAIN:
        for here, there, out in [
            (lambda ps: [(q * p).sin() for p, q in zip(ps, reduced([p ** 3 for p in ps], reduction,
                                                                   groups))],
             lambda p: (reduce(reduction, p ** 3, 1.0, groups) * p).sin(), ("data", "model")),
            (lambda ps: [p ** 2 for p in scattered([p ** 3 for p in ps], reduction, 1, groups)],
             lambda p: scatter(reduction, p ** 3, 1.0, 1, 2, groups) ** 2,
             ("data", ("model",))),
            (lambda ps: [p ** 2 for p in gathered([p ** 3 for p in ps], 0, groups)],
             lambda p: gather(p ** 3, 0, groups) ** 2, ("data", None)),
        ]:
            value = torch.randn(8, 8, dtype=torch.float64)
            plain, t = leaves(value)
            partition = ("data", None) if out == ("data", ("model",)) else ("data", "model")
            want = joined(here(parts_of(plain, partition)), out)
            part = xs.enable_manual_sharding(t, partition, mesh=mesh).global_tensor
            got = xs.disable_manual_sharding(there(part), out, want.shape, mesh=mesh)
            got = got.global_tensor
            for y, x in ((want, plain), (got, t)):
                (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
                (g * g).sum().backward()
            torch.testing.assert_close(t.grad.cpu(), plain.grad)
    """)


def test_what_has_no_gradient_is_told(run):
    run("""
    t = torch.randn(16, 8).to(device).requires_grad_()
    part = xs.enable_manual_sharding(t, ("data", "model"), mesh=mesh).global_tensor
    groups = groups_of(mesh, ("model",))
    for made in (reduce("mul", part, 1.0, groups), scatter("mul", part, 1.0, 0, 2, groups)):
        with pytest.raises(NotImplementedError, match="a sum, a maximum or a minimum"):
            made.sum().backward()
    whole = torch.arange(16).to(device)
    part = xs.enable_manual_sharding(whole, ("data",), mesh=mesh).global_tensor
    check_parts(gather(part, 0, groups_of(mesh, ("data",))), [torch.arange(16)] * N)
    assert not reduce("sum", part, 1.0, groups).requires_grad
    """)


@pytest.mark.parametrize("backend", ["openxla", "aot_eager"])
def test_in_compiled_functions(run, backend):
    run(f"""
    groups = groups_of(mesh, ("model",))
    members = [d for group in groups for d in group]

    def normed(x):
        part = xs.enable_manual_sharding(x, ("data", "model"), mesh=mesh)
        total = torch.ops.torch_xla.all_reduce(
            (part * part).sum(1, keepdim=True), "add", 1.0, members, 2)
        return xs.disable_manual_sharding(part / total.sqrt(), ("data", "model"), x.shape,
                                          mesh=mesh)

    compiled = torch.compile(normed, backend={backend!r}, fullgraph=True)
    for _ in range(2):
        plain, t = leaves(torch.randn(16, 8, dtype=torch.float64))
        weight = torch.randn(16, 8, dtype=torch.float64)
        want = plain / plain.square().sum(1, keepdim=True).sqrt()
        (want * weight).sum().backward()
        got = compiled(t)
        (got * weight.to(device)).sum().backward()
        torch.testing.assert_close(got.detach().cpu(), want.detach())
        torch.testing.assert_close(t.grad.cpu(), plain.grad)
    """)
