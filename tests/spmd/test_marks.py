"""What marks say and refuse, and what is counted of them."""

from __future__ import annotations

import pytest

from tests.spmd.test_sharding import PRELUDE, REFUSED, runner

MORE = (
    PRELUDE
    + REFUSED
    + """
import copy
import os
import pytest

line = xs.Mesh(np.arange(N), (N,), ("d",))
value = torch.arange(64.0).view(8, 8)
"""
)


@pytest.fixture
def run(run_python):
    return runner(run_python, MORE)


def test_results_and_copies_have_a_sharding(run):
    run("""
    t = value.to(device)
    assert spec(t) == "" and _XLAC._get_xla_sharding_type(t) is None
    y = t + 1
    assert spec(y) == ""
    torch_xla.sync()
    assert spec(y) == spec(t) == "{replicated}" and _XLAC._get_xla_sharding_type(y) == 0
    assert xs.wrap_if_sharded(y) is y

    w = value.to(device)
    xs.mark_sharding(w, mesh, ("data", "model"))
    for copied in (w.clone(), copy.deepcopy(w), copy.deepcopy(nn.Parameter(w)).detach()):
        assert spec(copied) == spec(w)
        copied.mul_(2)
        torch_xla.sync()
        assert check_shards(copied, value * 2) == N and torch.equal(w.cpu(), value)
    """)


def test_data_is_marked_otherwise_after_it_is_cleared(run):
    run("""
    t = value.to(device)
    xs.mark_sharding(t, mesh, ("data", None))
    xs.mark_sharding(t, mesh, (0, None))
    other = xs.Mesh(np.arange(N), (4, 2), ("a", "b"))
    xs.mark_sharding(t, other, ("a", None))
    for partition in ((None, "data"), ("model", None), (None, None)):
        refused(RuntimeError, lambda: xs.mark_sharding(t, mesh, partition),
                "Existing annotation must be cleared first", "clear_sharding")
    refused(RuntimeError, lambda: _XLAC._xla_mark_sharding(t, line.get_op_sharding((None, "d"))),
            "Existing annotation must be cleared first")
    assert check_shards(t, value) == 4
    xs.clear_sharding(t)
    xs.mark_sharding(t, mesh, (None, "data"))
    assert check_shards(t, value) == 4 and spec(t).startswith("{devices=[1,4,2]")
    pending = t + 1
    xs.mark_sharding(pending, mesh, ("data", None))
    xs.mark_sharding(pending, mesh, (None, "model"))
    assert check_shards(pending, value + 1) == 2
    """)


def test_meshes_that_no_grid_can_say_are_both_named(run):
    run("""
    turned = xs.Mesh(np.arange(N)[::-1].copy(), (N,), ("e",))
    a, b = value.to(device), value.to(device)
    xs.mark_sharding(a, line, ("d", None))
    xs.mark_sharding(b, turned, ("e", None))
    refused(RuntimeError, lambda: (a + b).cpu(), '"d"=8', '"e"=8', "clear_sharding()")
    xs.clear_sharding(b)
    xs.mark_sharding(b, line, ("d", None))
    torch.testing.assert_close((a + b).cpu(), value * 2)
    """)


def test_marks_are_counted(run):
    run("""
    def counted(f):
        names = ("XlaMarkSharding", "XlaAnnotateCustomSharding", "CreateOpSharding",
                 "SetShardingSpec", "VirtualDeviceUsage", "ReplicateShardedData",
                 "ExecuteReplicated", "ExecuteReplicatedTime")
        def now():
            time = met.metric_data("ExecuteReplicatedTime")
            return {n: (met.counter_value(n) or 0) for n in names} | {
                "ExecuteReplicatedTime": time[0] if time else 0}
        before = now()
        made = f()
        after = now()
        return made, {n: after[n] - before[n] for n in names if after[n] != before[n]}

    t = value.to(device)
    _, n = counted(lambda: xs.mark_sharding(t, mesh, ("data", None)))
    assert n == {"XlaMarkSharding": 1, "CreateOpSharding": 1, "SetShardingSpec": 1,
                 "VirtualDeviceUsage": 1}, n
    _, n = counted(lambda: xs.mark_sharding(t, mesh, ("data", None)))
    assert n == {"XlaMarkSharding": 1}, n
    y = t + 1
    _, n = counted(lambda: torch_xla.sync(wait=True))
    assert n == {"ExecuteReplicated": 1, "ExecuteReplicatedTime": 1, "SetShardingSpec": 1}, n
    _, n = counted(lambda: y.cpu())
    assert n == {"ReplicateShardedData": 1}, n
    z = t + 2
    _, n = counted(lambda: xs.mark_sharding(z, mesh, (None, "data")))
    assert n["XlaMarkSharding"] == n["XlaAnnotateCustomSharding"] == 1, n
    _, n = counted(lambda: xs.annotate_custom_sharding(y, mesh, ("model", "data")))
    assert n["XlaAnnotateCustomSharding"] == 1 and n["CreateOpSharding"] == 1, n
    """)


def test_graphs_of_torch_compile_count_how_their_results_are_split(run):
    run("""
    def counted(call):
        met.clear_all()
        call()
        return met.counter_value("UncachedOutputSharding")

    t = value.to(device)
    xs.mark_sharding(t, mesh, ("data", None))
    torch_xla.sync()
    call = torch.compile(lambda t: (t + 1, t.sum()), backend="openxla")
    assert counted(lambda: call(t)) == 1
    assert counted(lambda: call(t)) is None
    assert counted(lambda: (t * 2).cpu()) is None
    """)


def test_files_of_graphs_tell_how_results_are_split(run, tmp_path):
    run(f"""
    t = value.to(device)
    xs.mark_sharding(t, mesh, ("data", None))
    torch_xla.sync()
    os.environ["XLA_SAVE_TENSORS_FILE"] = {str(tmp_path / "graphs")!r}
    os.environ["XLA_SAVE_TENSORS_FMT"] = "hlo|text"
    kept = t + 1, t.sum()
    torch_xla.sync()
    text = open({str(tmp_path / "graphs.0")!r}).read()
    told = ("## END_GRAPH\\n\\n\\n#OUTPUT_SHARDING_BEGIN\\n\\n"
            f"f32[8,8] {{spec(kept[0])}}\\nf32[] {{{{replicated}}}}\\n\\n"
            "#OUTPUT_SHARDING_END\\n\\n")
    assert told in text and text.count("#OUTPUT_SHARDING_BEGIN") == 1, text
    assert spec(kept[0]).startswith("{{devices=[")
    """)


def test_a_pure_function_marks_what_it_gives(run):
    run("""
    from torch_xla.experimental.assume_pure import assume_pure

    t = value.to(device)
    y = assume_pure(xs.mark_sharding)(t, mesh, ("data", None))
    torch_xla.sync()
    assert check_shards(y, value) == 4 and spec(t) in ("", "{replicated}")

    @assume_pure
    def f(x):
        xs.mark_sharding(x, mesh, ("data", None))
        return x * 2

    w = value.to(device).requires_grad_()
    f(w).sum().backward()
    torch.testing.assert_close(w.grad.cpu(), torch.full((8, 8), 2.0))
    torch.testing.assert_close(f(t).cpu(), value * 2)

    @assume_pure
    def writes(x):
        xs.mark_sharding(x, mesh, ("data", None))
        return x.add_(1)

    refused(RuntimeError, lambda: writes(t), "argument 0")
    """)


def test_a_chosen_split_is_a_part_of_the_hash(run):
    run("""
    y = value.to(device) + 1
    hashes = []

    def look():
        hashes.append(_XLAC._get_graph_hash([y]))
        assert hashes[-1] == _XLAC._get_graph_hash([y])

    look()
    os.environ["XLA_AUTO_SPMD_MESH"] = "4,2"
    look()
    xr.use_spmd(auto=True)
    look()
    os.environ["XLA_AUTO_SPMD_MESH"] = "8"
    look()
    del os.environ["XLA_AUTO_SPMD_MESH"]
    look()
    assert len(set(hashes)) == 5
    """)


def test_meshes_of_other_orders_in_one_step(run):
    """The error names both; what it advises helps."""
    run("""
    turned = xs.Mesh(np.arange(N)[::-1].copy(), (N,), ("d",))
    x, y = value.to(device), value.to(device)
    xs.mark_sharding(x, line, ("d", None))
    xs.mark_sharding(y, turned, ("d", None))
    with pytest.raises(RuntimeError, match="in the same order in one step") as raised:
        (x + y).cpu()
    text = str(raised.value)
    assert text.count('["d"=8') == 2 and "device_ids=[7,6,5,4,3,2,1,0]" in text, text
    assert "call clear_sharding()" in text, text
    xs.clear_sharding(y)
    xs.mark_sharding(y, line, ("d", None))
    assert torch.equal((x + y).cpu(), value * 2)
    """)


def test_a_mark_before_a_write_in_a_graph(run):
    """Lazily the mark stays; in a graph the compiler chooses how what is written is split."""
    run("""
    def step(x):
        xs.mark_sharding(x, line, ("d", None))
        x[0] = 5
        return x + 1

    expected = value.clone()
    expected[0] = 5
    for function in (step, torch.compile(step, backend="openxla")):
        x = value.to(device)
        torch.testing.assert_close(function(x).cpu(), expected + 1)
        torch.testing.assert_close(x.cpu(), expected)
    """)
