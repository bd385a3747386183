"""Shardings in torch.compile, torch.export and torch_xla.compile: said by operators of graphs,
taken from inputs, kept by what is written."""

from __future__ import annotations

import textwrap

import pytest

from tests.spmd.test_sharding import EIGHT, PRELUDE

NETWORK = """
from torch._dynamo.utils import counters

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)

    def split(self, h, spec):
        pass

    def forward(self, x):
        h = self.first(x)
        self.split(h, ("data", "model"))  # the returned tensor is left
        h = nn.functional.gelu(h)
        h.mul_(2)
        self.split(h, (("data", "model"), None))
        return self.second(h)

class Split(Plain):
    def split(self, h, spec):
        xs.mark_sharding(h, mesh, spec)

def both(kind=Split):
    plain, split = Plain(), kind()
    split.load_state_dict(plain.state_dict())
    return plain, split.to(device)

def graphs():
    return counters["stats"]["unique_graphs"]
"""


@pytest.fixture
def run(run_python):
    """Runs code in an SPMD process of eight devices."""

    def run(code, env=None):
        return run_python(PRELUDE + NETWORK + textwrap.dedent(code), env={**EIGHT, **(env or {})})

    return run


@pytest.mark.parametrize(
    "backend", ["openxla", pytest.param("aot_eager", marks=pytest.mark.slow), "eager"]
)
def test_activations_are_split_without_a_graph_break(run, backend):
    run(f"""
    plain, split = both()
    compiled = torch.compile(split, backend={backend!r}, fullgraph=True)
    for _ in range(3):
        x = torch.randn(16, 16, requires_grad=True)
        there = x.detach().to(device).requires_grad_()
        out, expected = compiled(there), plain(x)
        out.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(out.cpu(), expected)
        torch.testing.assert_close(there.grad.cpu(), x.grad, rtol=1e-4, atol=1e-4)
        for p, q in zip(split.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-4, atol=1e-4)
        assert spec(out) == "{{devices=[8,1]0,1,2,3,4,5,6,7}}", spec(out)
    assert graphs() == 1, counters
    """)


@pytest.mark.parametrize("compiled", [False, True])
def test_each_way_to_say_it(run, compiled):
    run(f"""
    described = str(mesh)
    spec_text, both_axes = "('data', 'model')", ("data", "model")
    ways = dict(
        operator=lambda h: torch.ops.xla.dynamo_mark_sharding(
            h, list(range(8)), [4, 2], spec_text, spec_text
        ),
        custom_op=lambda h: xs.mark_sharding(h, mesh, both_axes, dynamo_custom_op=True),
        annotated=lambda h: xs.annotate_custom_sharding(h, mesh, both_axes),
        gradients=lambda h: xs.mark_sharding_with_gradients(h, mesh, both_axes),
        function=lambda h: xs.MarkShardingFunction.apply(h, mesh, both_axes),
        aot=lambda h: torch.ops.xla.aot_mark_sharding(h, described, spec_text),
    )
    for name, way in ways.items():
        def double(x):
            return way(x * 2) + 1

        if {compiled}:
            torch._dynamo.reset()
            double = torch.compile(double, backend="openxla", fullgraph=True)
        x = torch.randn(16, 8)
        there = x.to(device).requires_grad_()
        y = double(there)
        y.sum().backward()
        torch.testing.assert_close(y.detach().cpu(), x * 2 + 1)
        torch.testing.assert_close(there.grad.cpu(), torch.full_like(x, 2))
        assert spec(y) == "{{devices=[4,2]0,1,2,3,4,5,6,7}}", (name, spec(y))
    """)


def test_the_gradient_is_split_alike(run):
    run("""
    for double in (lambda f: f, lambda f: torch.compile(f, backend="openxla", fullgraph=True)):
        f = double(lambda x: xs.mark_sharding_with_gradients(x, mesh, ("model", "data")) * 3)
        x = torch.randn(16, 8).to(device).requires_grad_()
        f(x).sum().backward()
        torch_xla.sync()
        assert spec(x.grad) == "{devices=[2,4]0,2,4,6,1,3,5,7}", spec(x.grad)
        assert torch.equal(x.grad.cpu(), torch.full((16, 8), 3.0))
    """)


def test_equal_meshes_are_one_and_others_are_not(run):
    run("""
    def f(x, mesh):
        return xs.mark_sharding(x * 2, mesh, ("data", None)) + 1

    compiled = torch.compile(f, backend="openxla", fullgraph=True)
    x = torch.randn(16, 16)
    for devices, shape, count in [
        (range(8), (4, 2), 1),
        (range(8), (4, 2), 1),
        (range(7, -1, -1), (4, 2), 2),
        (range(8), (2, 4), 3),
    ]:
        other = xs.Mesh(list(devices), shape, ("data", "model"))
        y = compiled(x.to(device), other)
        torch.testing.assert_close(y.cpu(), x * 2 + 1)
        expected = f(x.to(device), other)
        torch_xla.sync()
        assert spec(y) == spec(expected) != "", (spec(y), spec(expected))
        assert graphs() == count, (graphs(), count)
    """)


def test_mistakes_name_the_users_line(run):
    run("""
    def short(x):
        return xs.mark_sharding(x * 2, mesh, ("data",))

    def unknown(x):
        return xs.mark_sharding(x * 2, mesh, ("rows", None))

    for f, message in ((short, "an entry for each of the 2 dimensions"), (unknown, "'rows'")):
        try:
            torch.compile(f, backend="openxla", fullgraph=True)(torch.ones(8, 8).to(device))
        except ValueError as error:
            assert message in str(error) and f"in {f.__name__}" in str(error), error
        else:
            raise AssertionError("nothing was raised")
    """)


def test_one_graph_takes_inputs_however_they_are_split(run):
    run("""
    plain, split = both(Plain)
    xs.mark_sharding(split.first.weight, mesh, ("model", None))
    xs.mark_sharding(split.second.weight, mesh, (None, "model"))
    compiled = torch.compile(split, backend="openxla", fullgraph=True)
    x = torch.randn(16, 16)
    seen = set()
    for partition in [("data", None), (None, "model"), (None, None), ("data", "model")] * 2:
        there = x.to(device)
        wrapped = xs.mark_sharding(there, mesh, partition)
        for given in (there, wrapped):
            with torch.no_grad():
                out = compiled(given)
            # A model that is called with one gives one.
            assert type(out) is (torch.Tensor if given is there else xs.XLAShardedTensor)
            torch.testing.assert_close(out.cpu(), plain(x))
        seen.add(spec(out))
    assert graphs() <= 3, counters  # a plain tensor, a wrapped one
    assert "{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}" in seen, seen
    met.clear_all()
    for partition in [("data", None), (None, "model")]:
        there = x.to(device)
        xs.mark_sharding(there, mesh, partition)
        with torch.no_grad():
            compiled(there).cpu()
    assert met.metric_data("CompileTime") is None, met.metrics_report()
    """)


def test_buffers_that_a_graph_writes_stay_split(run):
    run("""
    def decode(cache, row, place):
        cache.index_copy_(0, place, row)
        return cache.sum(0)

    expected = torch.zeros(16, 32)
    cache = torch.zeros(16, 32).to(device)
    xs.mark_sharding(cache, mesh, (None, "model"))
    split = spec(cache)
    compiled = torch.compile(decode, backend="openxla", fullgraph=True)
    for i in range(4):
        row, place = torch.randn(1, 32), torch.tensor([3 * i])
        out = compiled(cache, row.to(device), place.to(device))
        torch.testing.assert_close(out.cpu(), decode(expected, row, place))
        assert spec(cache) == split
    torch.testing.assert_close(cache.cpu(), expected)
    assert len(check_places := {str(s.indices) for s in shards(cache)}) == 2, check_places
    """)


def test_exported_programs_hold_it(run):
    run("""
    plain, split = both()
    x = torch.randn(16, 16)
    program = torch.export.export(split.cpu(), (x,))
    assert str(program.graph).count("mark_sharding_.default") == 2, program.graph
    module = program.run_decompositions().module().to(device)
    out = module(x.to(device))
    torch.testing.assert_close(out.cpu(), plain(x))
    assert spec(out) == "{devices=[8,1]0,1,2,3,4,5,6,7}", spec(out)
    """)


def test_steps_of_torch_xla_compile(run):
    run("""
    plain, split = both()
    xs.mark_sharding(split.first.weight, mesh, ("model", None))
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (plain, split)]

    def train(model, optimizer, x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step = torch_xla.compile(train, full_graph=True)
    for i in range(4):
        x = torch.randn(16, 16)
        there = x.to(device)
        xs.mark_sharding(there, mesh, ("data", None))
        loss = step(split, optimizers[1], there)
        torch.testing.assert_close(loss.cpu(), train(plain, optimizers[0], x))
    for p, q in zip(split.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.cpu(), q, rtol=1e-4, atol=1e-5)
    split_rows = "{devices=[2,1,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}"
    assert spec(split.first.weight) == split_rows
    assert spec(optimizers[1].state[split.first.weight]["exp_avg"]) == split_rows
    assert spec(split.first.bias) == "{replicated}"
    """)


def test_what_takes_the_place_of_data_is_split_as_it_was_and_else_as_the_compiler_chooses(run):
    run("""
    x = torch.randn(16, 16)
    for in_place in (False, True):
        there = x.to(device)
        torch_xla.sync()
        there_too = there if in_place else None  # the value itself is what is written
        y = xs.mark_sharding(there * 2, mesh, ("data", "model")).global_tensor + 1
        if in_place:
            there.copy_(y)
            y = there
        torch_xla.sync()
        torch.testing.assert_close(y.cpu(), x * 2 + 1)
        split = "{replicated}" if in_place else "{devices=[4,2]0,1,2,3,4,5,6,7}"
        assert spec(y) == split, spec(y)
    # Hundreds of writes between two steps.
    there = x.to(device)
    whole = torch.zeros(16, 16, device=device)
    torch_xla.sync()
    for i in range(600):
        whole.mul_(0)
    whole.add_(xs.mark_sharding(there * 2, mesh, ("data", None)).global_tensor)
    torch_xla.sync()
    torch.testing.assert_close(whole.cpu(), x * 2)
    assert spec(whole) == "{replicated}", spec(whole)
    """)


def test_what_has_no_value_yet(run):
    run("""
    module = nn.Linear(16, 32, device="meta").to_empty(device="xla")
    for t in (module.weight, torch.empty(32, 16, device="xla")):
        xs.mark_sharding(t, mesh, ("data", "model"))
        with torch.no_grad():
            t.fill_(2)
        torch_xla.sync()
        assert spec(t) == "{devices=[4,2]0,1,2,3,4,5,6,7}", spec(t)
        assert check_shards(t, torch.full((32, 16), 2.0)) == 8
    """)
