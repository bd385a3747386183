"""torch_xla.debug.memory_snapshot, and what errors tell of memory.

Units: executor/run/live_data.
"""

import gc

import torch

import torch_xla
import torch_xla.debug


def test_kinds_names_and_lines():
    gc.collect()
    torch.manual_seed(0)
    net = torch.nn.Linear(64, 32).to("xla")
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.randn(16, 64).to("xla")
    net(x).sum().backward()
    optimizer.step()
    kept = net(x)
    torch_xla.sync()
    snapshot = torch_xla.debug.memory_snapshot()
    weight = 64 * 32 * 4

    def of(kind, size):
        return [t for t in snapshot.tensors if t.kind == kind and t.bytes == size]

    assert [t.name for t in of("parameter", weight)] == ["Linear.weight"]
    assert [t.name for t in of("gradient", weight)] == ["Linear.weight"]
    assert len(of("optimizer state", weight)) == 2
    assert of("parameter", weight)[0].type == "Float[32,64]"
    [activation] = [t for t in of("other", kept.numel() * 4) if "kept" not in t.name]
    assert "test_memory_snapshot.py" in activation.line
    lines = snapshot.by_line()
    assert any("test_kinds_names_and_lines" in line for line in lines)
    assert sum(lines.values()) == snapshot.bytes == sum(snapshot.by_kind().values())
    assert snapshot.by_module()["Linear"] >= 2 * (weight + 32 * 4)
    text = str(snapshot)
    assert "optimizer state" in text and "Linear.weight" in text and "largest tensors" in text


def test_what_is_gone_is_not_listed():
    def size():
        return torch_xla.debug.memory_snapshot().bytes

    x = torch.ones(1000, 1000, device="xla")
    torch_xla.sync()
    before = size()
    y = x + 1
    torch_xla.sync(wait=True)
    assert size() - before == 4_000_000
    for _ in range(2):  # the second run of the program takes the memory over
        y.add_(1)
        torch_xla.sync(wait=True)
        assert size() - before == 4_000_000
    del y
    assert size() == before


def test_out_of_memory_tells_what_takes_it(run_python):
    done = run_python(
        """
        import torch, torch_xla
        def keep():
            return torch.ones(1000, 1000, device="xla") * 2
        kept = [keep() for _ in range(3)]
        torch_xla.sync()
        huge = torch.ones(1 << 22, 1 << 22, device="xla") + kept[0][0, 0]
        try:
            torch_xla.sync(wait=True)
        except torch.OutOfMemoryError as error:
            print(error)
        """,
        env={"XLA_EXPLAIN": "0"},
    )
    assert "RESOURCE_EXHAUSTED" in done.stdout, done.stdout
    assert "Alive are " in done.stdout and "by the lines that made them" in done.stdout
    assert "12.0 MB  3 tensors  " in done.stdout and "(keep)" in done.stdout
    assert "torch_xla.debug.memory_snapshot() tells what they are." in done.stdout


def test_modules_and_optimizers_that_are_half_made():
    class Broken(torch.nn.Module):
        def __init__(self):
            pass

    class BrokenOptimizer(torch.optim.Optimizer):
        def __init__(self):
            pass

    class Parameter(torch.nn.Parameter):
        pass

    broken = [Broken(), BrokenOptimizer()]
    net = torch.nn.Linear(31, 37).to("xla")
    special = torch.nn.Module()
    special.weight = Parameter(torch.ones(41, device="xla"))
    torch_xla.sync()
    kinds = {t.type: t.kind for t in torch_xla.debug.memory_snapshot().tensors}
    assert kinds["Float[37,31]"] == kinds["Float[41]"] == "parameter"
    del broken, net


def test_state_in_lists():
    net = torch.nn.Linear(43, 1, bias=False).to("xla")
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(2, 43, device="xla")).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    torch_xla.sync()
    kinds = [t.kind for t in torch_xla.debug.memory_snapshot().tensors if t.type == "Float[43]"]
    state = torch.utils._pytree.tree_leaves(list(optimizer.state.values()))
    vectors = [t for t in state if isinstance(t, torch.Tensor) and t.shape == (43,)]
    assert any(isinstance(v, list) for s in optimizer.state.values() for v in s.values())
    assert kinds.count("optimizer state") == len({t.data_ptr() or id(t) for t in vectors})
