"""Loops and branches of programs: PyTorch's control flow operators on `xla`.

Units: dispatch/functions/recorded_function.
"""

import logging

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop, while_loop_op

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla import _XLAC

WAYS = ["lazy", "openxla"]


@pytest.fixture(autouse=True)
def fresh(request, caplog):
    torch._dynamo.reset()
    torch.manual_seed(0)
    met.clear_all()
    caplog.set_level(logging.INFO, "torch_xla")
    yield
    by_python = [
        r.getMessage() for r in caplog.get_records("call") if r.name.startswith("torch_xla")
    ]
    assert bool(by_python) == ("by_python" in request.fixturenames), by_python


@pytest.fixture
def by_python():
    """For the tests in which Python, and not the program, runs a body."""


def way(name, function):
    if name == "openxla":
        return torch.compile(function, backend="openxla", fullgraph=True)
    return function


def on(device, values):
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), values)


def check(name, function, *arguments, **tolerance):
    """Equal results on the CPU and on `xla`, of two calls."""
    expected = function(*arguments)
    run = way(name, function)
    for _ in range(2):
        found = run(*on("xla", arguments))
        torch.testing.assert_close(on("cpu", found), expected, **tolerance)
    return found


def text(*tensors):
    return _XLAC._get_stablehlo(list(tensors), "cpu")


# --- while_loop ----------------------------------------------------------------------------


def collatz(n):
    def go_on(n, steps):
        return n != 1

    def body(n, steps):
        return torch.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    return while_loop(go_on, body, (n, torch.zeros_like(n)))


@pytest.mark.parametrize("name", WAYS)
def test_while_loop(name):
    check(name, collatz, torch.tensor(27))


@pytest.mark.parametrize("name", WAYS)
def test_a_loop_that_does_not_run(name):
    check(name, collatz, torch.tensor(1))


def test_one_operation_however_many_iterations():
    def run(count, x):
        return while_loop(
            lambda i, x: i < count, lambda i, x: (i + 1, x * 2 - 1), (torch.zeros_like(count), x)
        )

    texts = []
    for count in (3, 3000):
        texts.append(text(run(torch.tensor(count, device="xla"), torch.ones(2, device="xla"))[1]))
    assert texts[0] == texts[1]
    assert texts[0].count("stablehlo.while") == 1
    assert texts[0].count("stablehlo.multiply") == 1


@pytest.mark.parametrize("name", WAYS)
def test_what_the_body_closes_over(name):
    weight = torch.randn(4, 4) / 2
    limit = torch.tensor(5)
    step = torch.tensor(2)

    def run(x, weight, limit, step):
        return while_loop(
            lambda i, x: i < limit,
            lambda i, x: (i + step, torch.tanh(x @ weight)),
            (torch.zeros((), dtype=torch.int64, device=x.device), x),
        )

    check(name, run, torch.randn(3, 4), weight, limit, step)


@pytest.mark.parametrize("name", WAYS)
def test_a_module_as_body(name):
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).eval()
    x = torch.randn(2, 5, 16)

    def run_on(layer):
        def run(x):
            count = torch.tensor(3, device=x.device)
            with torch.no_grad():
                return while_loop(
                    lambda i, x: i < count,
                    lambda i, x: (i + 1, layer(x)),
                    (torch.zeros((), dtype=torch.int64, device=x.device), x),
                )[1]

        return run

    expected = run_on(layer)(x)
    torch._dynamo.reset()
    found = way(name, run_on(layer.to("xla")))(x.to("xla"))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


def count_and_add(x):
    return while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, x + i), (0, x))


def test_numbers_as_carried_values():
    check("lazy", count_and_add, torch.randn(3))


def test_numbers_that_come_out_of_a_compiled_loop_are_read(by_python):
    check("openxla", count_and_add, torch.randn(3))


def test_buffers_that_the_body_writes():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(2))

        def forward(self, i, x):
            self.calls.add_(i)
            return i + 1, x + self.calls.sum()

    def run(module, x):
        with torch.no_grad():
            return while_loop(
                lambda i, x: i < 4, lambda i, x: module(i, x), (torch.zeros_like(x[0]), x)
            )[1]

    here, there = Counter(), Counter().to("xla")
    expected = run(here, torch.ones(2))
    torch._dynamo.reset()
    found = run(there, torch.ones(2, device="xla"))
    torch.testing.assert_close(found.cpu(), expected)
    torch.testing.assert_close(there.calls.cpu(), here.calls)


def test_a_condition_that_writes_a_buffer_is_run_by_python(by_python):
    def run(device):
        calls = torch.zeros(1, device=device)

        def go_on(i, x, calls):
            calls.add_(1)
            return i < 3

        def body(i, x, calls):
            calls.add_(10)
            return i + 1, x + calls

        start = torch.zeros((), dtype=torch.int64, device=device)
        values = while_loop_op(
            go_on, body, (start, torch.ones(1, device=device)), (calls,), mutated_arg_indices="2"
        )
        return values[1].cpu(), calls.cpu()

    with torch.no_grad():
        torch.testing.assert_close(run("xla"), run("cpu"))


@pytest.mark.parametrize("name", WAYS)
def test_random_numbers_differ_in_each_iteration(name):
    def run(rows):
        def body(i, rows):
            return i + 1, torch.cat([rows[1:], torch.rand_like(rows[:1])])

        start = torch.zeros((), dtype=torch.int64, device=rows.device)
        return while_loop(lambda i, rows: i < 4, body, (start, rows))[1]

    run = way(name, run)
    torch.manual_seed(1)
    first = run(torch.zeros(4, 64, device="xla")).cpu()
    second = run(torch.zeros(4, 64, device="xla")).cpu()
    torch.manual_seed(1)
    again = run(torch.zeros(4, 64, device="xla")).cpu()
    rows = torch.cat([first, second])
    assert len({tuple(row.tolist()) for row in rows}) == 8
    assert rows.min() >= 0 and rows.max() < 1 and 0.4 < rows.mean() < 0.6
    assert torch.equal(first, again)


def test_loops_inside_loops():
    def run(x):
        def inner(i, x):
            return while_loop(
                lambda j, x: j < 3, lambda j, x: (j + 1, x * 1.5 + i), (torch.zeros_like(i), x)
            )[1]

        return while_loop(
            lambda i, x: i < 2,
            lambda i, x: (i + 1, inner(i, x)),
            (torch.zeros((), dtype=torch.int64, device=x.device), x),
        )[1]

    expected = run(torch.ones(3))
    torch._dynamo.reset()
    found = run(torch.ones(3, device="xla"))
    assert text(found).count("stablehlo.while") == 2
    torch.testing.assert_close(found.cpu(), expected)


def test_a_loop_reads_what_waits():
    x = torch.arange(4.0, device="xla").sin()  # not computed
    view = x[1:3]
    runs = (met.metric_data("ExecuteTime") or (0,))[0]
    result = while_loop(
        lambda i, a: i < 3,
        lambda i, a: (i + 1, a + view),
        (torch.zeros((), dtype=torch.int64, device="xla"), torch.zeros(2, device="xla")),
    )[1]
    assert (met.metric_data("ExecuteTime") or (0,))[0] == runs
    x.add_(1)  # the loop has read what was there
    torch.testing.assert_close(result.cpu(), torch.arange(4.0).sin()[1:3] * 3)
    torch.testing.assert_close(view.cpu(), torch.arange(4.0).sin()[1:3] + 1)


def test_a_body_that_no_program_can_hold(by_python):
    def run(x):
        def body(i, x):
            return i + 1, x + torch.nonzero(x > 0).sum()

        start = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop_op(lambda i, x: i < 3, body, (start, x), ())[1]

    torch.testing.assert_close(run(torch.ones(3, device="xla")).cpu(), run(torch.ones(3)))


def test_while_loop_says_what_is_wrong():
    x = torch.ones(3, device="xla")
    for condition, body, words in (
        (lambda x: [x.sum() < 3], lambda x: [x, x], "expected 1 results of the body, got 2"),
        (lambda x: [x.sum() < 3], lambda x: [x[:2]], "keep dtypes and sizes, got Float\\[2\\]"),
        (lambda x: [x.sum() < 3], lambda x: [x.long()], "got Long\\[3\\] for carried value 0"),
        (lambda x: [x.sum()], lambda x: [x], "0-dim bool, got Float"),
        (lambda x: [x < 1], lambda x: [x], "0-dim bool, got Bool\\[3\\]"),
        (lambda x: [x.sum() < 3], lambda x: [x.add_(1)], "does not write its arguments"),
        (
            lambda x: [x.sum() < 3],
            lambda x: [torch.ones(3)],
            "expected xla tensors, got one on cpu",
        ),
    ):
        with pytest.raises(RuntimeError, match=words):
            _XLAC._while_loop(condition, body, [x])
    with pytest.raises(RuntimeError, match="at least one carried"):
        _XLAC._while_loop(lambda: [], lambda: [], [])
    torch.testing.assert_close(x.cpu(), torch.ones(3))


def test_gradient_of_a_loop():
    def run(w):
        start = torch.zeros((), dtype=torch.int64, device=w.device)
        result = while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.sin() * 2), (start, w))[1]
        return torch.autograd.grad(result.sum(), w)[0]

    w = torch.randn(4)
    expected = run(w.clone().requires_grad_())
    torch._dynamo.reset()
    torch.testing.assert_close(run(w.to("xla").requires_grad_()).cpu(), expected)


# --- cond ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cond(name, sign):
    def run(x, y):
        return torch.cond(
            x.sum() > 0,
            lambda x, y: (x.sin() + y, x @ y),
            lambda x, y: (x * y, x.sum(0, True) + y),
            (x, y),
        )

    check(name, run, sign * torch.rand(3, 3), torch.rand(3, 3))


def test_cond_is_one_operation():
    x = torch.rand(3, device="xla")
    result = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
    program = text(result)
    assert "stablehlo.if" in program and "stablehlo.sine" in program
    assert "stablehlo.cosine" in program


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gradient_of_cond(name, sign):
    def run(w):
        def loss(w):
            return torch.cond(w.sum() > 0, lambda w: w.sin() * w, lambda w: w.exp(), (w,)).sum()

        return torch.autograd.grad(way(name if w.is_xla else "lazy", loss)(w), w)[0]

    w = sign * torch.rand(4)
    expected = run(w.clone().requires_grad_())
    torch._dynamo.reset()
    torch.testing.assert_close(run(w.to("xla").requires_grad_()).cpu(), expected)


def test_cond_inside_a_loop_with_random_numbers():
    torch.manual_seed(2)
    start = torch.zeros((), dtype=torch.int64, device="xla")
    noise = while_loop(
        lambda i, x: i < 8,
        lambda i, x: (
            i + 1,
            torch.cond(
                i % 2 == 0,
                lambda x: torch.cat([x[1:], torch.rand_like(x[:1])]),
                lambda x: torch.cat([x[1:], torch.rand_like(x[:1]) - 1]),
                (x,),
            ),
        ),
        (start, torch.zeros(8, device="xla")),
    )[1].cpu()
    assert len(set(noise.tolist())) == 8
    assert (noise[0::2] >= 0).all() and (noise[1::2] < 0).all()


# --- scan, map, associative_scan ------------------------------------------------------------


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("reverse", [False, True])
def test_scan(name, reverse):
    def run(init, xs, ys):
        def combine(carry, rows):
            x, y = rows
            following = torch.tanh(carry["a"] + x)
            return {"a": following}, (following * y, x.sum())

        return scan(combine, {"a": init}, (xs, ys), dim=0, reverse=reverse)

    check(name, run, torch.randn(4), torch.randn(7, 4), torch.randn(7, 4))


def test_scan_is_one_loop():
    texts = []
    for length in (4, 4000):
        xs = torch.rand(length, 3, device="xla")
        result = scan(lambda c, x: (c + x, c * x), torch.zeros(3, device="xla"), xs)
        texts.append(text(result[1]))
    assert texts[0].count("stablehlo.while") == 1
    assert texts[0].count("\n") == texts[1].count("\n")


@pytest.mark.parametrize("name", WAYS)
def test_gradient_of_scan(name):
    weight = torch.randn(4, 4) / 2

    def run(init, xs, weight):
        def loss(init, xs, weight):
            def combine(carry, x):
                following = torch.tanh(carry @ weight + x)
                return following, following * 2

            carry, ys = scan(combine, init, xs)
            return (ys * ys).sum() + carry.sum()

        total = way(name if init.is_xla else "lazy", loss)(init, xs, weight)
        return torch.autograd.grad(total, (init, xs, weight))

    arguments = (torch.randn(4), torch.randn(5, 4), weight)
    expected = run(*(a.clone().requires_grad_() for a in arguments))
    torch._dynamo.reset()
    found = run(*(a.to("xla").requires_grad_() for a in arguments))
    torch.testing.assert_close(on("cpu", found), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", WAYS)
def test_map(name):
    def run(xs, y):
        return map_rows(lambda x, y: (x @ y, (x * 2).sum()), xs, y)

    found = check(name, run, torch.randn(5, 3, 4), torch.randn(4, 2))
    if name == "lazy":
        result = run(torch.randn(5, 3, 4, device="xla"), torch.randn(4, 2, device="xla"))
        assert text(result[0]).count("stablehlo.while") == 1
    assert found[0].shape == (5, 3, 2)


def test_gradient_of_map():
    def run(xs, y):
        return torch.autograd.grad(map_rows(lambda x, y: (x @ y).sin(), xs, y).sum(), (xs, y))

    arguments = (torch.randn(5, 3, 4), torch.randn(4, 2))
    expected = run(*(a.clone().requires_grad_() for a in arguments))
    torch._dynamo.reset()
    found = run(*(a.to("xla").requires_grad_() for a in arguments))
    torch.testing.assert_close(on("cpu", found), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan(name, reverse):
    def run(xs):
        return associative_scan(lambda a, b: a * b, xs, 0, reverse=reverse, combine_mode="generic")

    check(name, run, torch.rand(9, 3) + 0.5)


@pytest.mark.parametrize("length", [0, 1, 2])
def test_scan_of_few_rows(length):
    def combine(carry, x):
        return [carry + x.sum(), x * 2 + carry]

    found = _XLAC._scan(
        combine, [torch.ones((), device="xla")], [torch.full((length, 3), 2.0, device="xla")]
    )
    carry, rows = torch.ones(()), []
    for _ in range(length):
        x = torch.full((3,), 2.0)
        carry, row = combine(carry, x)
        rows.append(row)
    torch.testing.assert_close(found[0].cpu(), carry)
    torch.testing.assert_close(found[1].cpu(), torch.stack(rows) if rows else torch.zeros(0, 3))


def test_control_flow_in_one_program_of_a_region():
    @torch_xla.compile(full_graph=True)
    def step(x):
        y = scan(lambda c, x: (c + x, c * x), x[0] * 0, x)[1]
        return torch.cond(y.sum() > 0, lambda y: y + 1, lambda y: y - 1, (y,))

    def expected(x):
        carries = torch.cat([torch.zeros(1, 3), x.cumsum(0)[:-1]])
        y = carries * x
        return y + 1 if y.sum() > 0 else y - 1

    for x in (torch.rand(4, 3), -torch.rand(4, 3), torch.randn(4, 3)):
        torch.testing.assert_close(step(x.to("xla")).cpu(), expected(x))


def test_eager_mode_runs_loops_at_once():
    with torch_xla.experimental.eager_mode_context(True):
        result = collatz(torch.tensor(27, device="xla"))
        assert "while_loop" not in _XLAC._get_xla_tensors_text(list(result))
    assert [t.item() for t in result] == [1, 111]


@pytest.mark.parametrize("name", WAYS)
def test_control_flow_under_autocast(name):
    def run(x, w):
        y = torch.cond(x.sum() > 0, lambda x: x @ w, lambda x: (x - 1) @ w, (x,))
        _, z = scan(lambda c, r: (c + r, r @ w), x[0], x)
        return y, z

    x, w = torch.rand(2, 3, device="xla"), torch.rand(3, 3, device="xla")
    with torch.autocast("xla", torch.bfloat16):
        found = way(name, run)(x, w)
    expected = (x.cpu().bfloat16() @ w.cpu().bfloat16(),) * 2
    torch.testing.assert_close(on("cpu", found), expected, rtol=2e-2, atol=2e-2)


def test_channels_last_stays_what_it_is():
    def run(x):
        start = torch.zeros((), dtype=torch.int64, device=x.device)
        y = while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x * 2), (start, x))[1]
        return y, y.permute(0, 2, 3, 1).view(-1)

    x = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    found = check("lazy", run, x)
    assert found[0].stride() == x.stride()


def test_strides_of_results_and_many_dtypes():
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.complex64):
        x = torch.ones(2, 3, device="xla").to(dtype)
        result = _XLAC._cond(
            torch.tensor(True, device="xla"), lambda x=x: [x.t()], lambda x=x: [x.t()]
        )
        assert result[0].dtype == dtype and result[0].stride() == (1, 3)
        torch.testing.assert_close(result[0].cpu(), torch.ones(3, 2).to(dtype))
        xm.mark_step()
