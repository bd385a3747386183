"""torch_xla.debug.cost: what lines, modules and operators take, and their limits.

Units: executor/insight/kept_runs, _src/insight/kept_runs, _src/insight/scopes.
"""

import pytest
import torch

import torch_xla
import torch_xla.debug


def test_the_line_that_takes_the_time_comes_first():
    a = torch.randn(512, 512, device="xla")
    b = torch.randn(64, device="xla")
    kept = []

    def step():
        small = b + 1
        large = a @ a  # this one
        kept.append((small, large))

    cost = torch_xla.debug.cost(step)
    line = step.__code__.co_firstlineno + 2
    assert f"test_cost.py:{line} " in cost.lines[0].name
    assert cost.operators[0].name in ("aten::mm", "aten::matmul")
    assert cost.operators[0].flops == 2 * 512**3
    assert cost.operators[0].bytes == 2 * 512 * 512 * 4  # `a` is read once
    assert cost.operators[0].limit > 0
    assert cost.programs == 1 and cost.seconds > 0
    assert sum(r.seconds for r in cost.lines) == pytest.approx(cost.seconds_of_parts)
    assert sum(r.seconds for r in cost.operators) == pytest.approx(cost.seconds_of_parts)
    assert sum(r.calls for r in cost.modules) == 2


def test_modules_have_their_forward_and_backward_pass():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    net.to("xla")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(16, 32, device="xla")

    def step():
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    before = [p.detach().clone() for p in net.parameters()]
    cost = torch_xla.debug.cost(step)
    rows = {r.name: r for r in cost.modules}
    forward, weight, inner = (2 * 16 * 32 * 64,) * 2 + (2 * 16 * 64 * 8,)
    # Forward, the weight's gradient, and, of the second, the input's.
    assert rows["Sequential.0"].flops == pytest.approx(forward + weight, rel=0.2)
    assert rows["Sequential.2"].flops == pytest.approx(3 * inner, rel=0.2)
    assert rows["Sequential.1"].calls >= 2
    assert "SGD.step" in rows
    assert any((p != q).any().item() for p, q in zip(net.parameters(), before, strict=True))


def test_text_has_the_tables():
    x = torch.ones(8, device="xla")
    kept = []
    text = str(torch_xla.debug.cost(lambda: kept.append((x + 1) * 2)))
    assert text.startswith("The step takes ") and "in 1 program" in text
    for kind in ("line", "module", "operator"):
        assert f"x limit  calls  {kind}" in text
    assert "aten::mul" in text and "test_cost.py" in text


def test_kept_runs_are_measured():
    x = torch.ones(8, 8, device="xla")
    torch_xla.sync()
    torch_xla.debug.keep_runs(1)
    try:
        y = x @ x
        torch_xla.sync()
        cost = torch_xla.debug.cost()
    finally:
        torch_xla.debug.keep_runs(0)
    del y
    assert [r.calls for r in cost.operators] == [1]
    with pytest.raises(ValueError, match=r"call torch_xla.debug.keep_runs\(1\) before"):
        torch_xla.debug.cost()


def test_a_step_that_runs_nothing():
    with pytest.raises(ValueError, match="expected a step that runs a program, got none"):
        torch_xla.debug.cost(lambda: None)


def test_no_recompile_is_told_of_parts():
    x = torch.ones(8, 8, device="xla")
    torch_xla.debug.recompiles(clear=True)
    kept = []
    torch_xla.debug.cost(lambda: kept.append((x @ x).relu().sum()))
    assert torch_xla.debug.recompiles() == []


def test_operations_of_attention_and_of_recurrent_layers():
    q = torch.randn(2, 4, 16, 8, device="xla", requires_grad=True)
    torch_xla.sync()

    def attend():
        torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()

    flops = {r.name: r.flops for r in torch_xla.debug.cost(attend).operators}
    forward = 2 * (2 * 2 * 4 * 16 * 16 * 8)  # queries with keys, and with values
    assert flops["torch_xla::attention"] == forward
    assert flops["torch_xla::attention_backward"] == 2.5 * forward
    layer = torch.nn.LSTM(4, 5).to("xla")
    x = torch.randn(3, 2, 4).to("xla")
    kept = []
    flops = {r.name: r.flops for r in torch_xla.debug.cost(lambda: kept.append(layer(x))).operators}
    assert flops["torch_xla::rnn_layer"] == 2 * 3 * 2 * (4 * 20 + 5 * 20)


def test_a_gather_reads_what_it_gives():
    table = torch.nn.Embedding(1000, 64).to("xla")
    index = torch.tensor([1, 2, 3, 4, 5]).to("xla")
    kept = []
    [row] = torch_xla.debug.cost(lambda: kept.append(table(index))).operators
    assert row.flops == 5 * 64
    assert row.bytes == 2 * (5 * 64 * 4) + 5 * 8


def test_complex_numbers_are_counted():
    x = torch.randn(8, dtype=torch.complex64).to("xla")
    kept = []
    [row] = torch_xla.debug.cost(lambda: kept.append(x * x)).operators
    assert row.flops == 8


def test_a_compiled_function_is_whole(run_python):
    done = run_python(
        """
        import torch, torch_xla, torch_xla.debug
        net = torch.nn.Linear(8, 8).to("xla")
        step = torch.compile(lambda x: net(x).relu(), backend="openxla", fullgraph=True)
        x = torch.randn(4, 8).to("xla")
        for _ in range(10):  # more often than torch.compile would compile it anew
            print(torch_xla.debug.first_fault(step, x))
        print([r.name for r in torch_xla.debug.cost(step, x).operators])
        """
    )
    assert "None" in done.stdout and "aten::relu" in done.stdout, done.stderr
