"""torch_xla.debug.first_fault and XLA_DEBUG_NANS: the call that gives the first NaN, Inf or wrong
number, with its line and module.

Units: executor/insight/nan_watch.
"""

import contextlib
import re

import pytest
import torch
import torch.nn.functional as F

import torch_xla
import torch_xla.debug
from torch_xla._src.insight.faults import difference
from torch_xla._src.insight.kept_runs import runs_of


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.second = torch.nn.Linear(8, 2)

    def forward(self, x):
        x = self.first(x)
        return self.second(torch.log(x))  # the fault: of negative numbers


@pytest.fixture(autouse=True)
def nothing_waits():
    """What earlier tests have recorded is not found in the steps of these."""
    torch_xla.sync()


def fault_of(step, *args, **kwargs):
    fault = torch_xla.debug.first_fault(step, *args, **kwargs)
    assert fault is not None
    return fault


def test_nan_is_found_where_it_is_made():
    torch.manual_seed(0)
    net = Net().to("xla")
    x = torch.randn(16, 4, device="xla")

    def step():
        loss = net(x).sum()
        loss.backward()

    fault = fault_of(step)
    assert fault.kind == "nan" and fault.operator == "aten::log"
    assert re.search(r"test_first_fault\.py:\d+ \(Net\.forward\)", fault.line)
    assert fault.module == "Net"
    [operand] = fault.operands
    assert operand.nans == 0 and operand.least < 0 and operand.shape == (16, 8)
    assert fault.results[0].nans > 0
    assert "aten::log at " in str(fault) and "gives NaN" in str(fault)


def test_modules_are_named_by_their_path():
    class Bad(torch.nn.Module):
        def forward(self, x):
            return x / (x - x)

    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(Bad(), torch.nn.ReLU()))
    net.to("xla")
    fault = fault_of(lambda: net(torch.ones(2, 4, device="xla")).sum())
    assert fault.operator == "aten::div.Tensor" and fault.module == "Sequential.1.0"


def test_inf_is_found_but_not_where_it_was_asked_for():
    x = torch.randn(4, 4, device="xla")

    def masked():
        scores = x.masked_fill(torch.ones_like(x).triu(1).bool(), float("-inf"))
        return scores.softmax(-1) + torch.full((4, 4), float("inf"), device="xla").isinf()

    kept = []
    assert torch_xla.debug.first_fault(lambda: kept.append(masked())) is None
    fault = fault_of(lambda: kept.append((x * 1e30) * (x.abs() + 1) * 1e30))
    assert fault.kind == "inf" and fault.operator.startswith("aten::mul")


def test_data_that_has_nan_already():
    x = torch.tensor([1.0, float("nan")]).to("xla")
    kept = []
    fault = fault_of(lambda: kept.append((x * 0).sqrt()))
    assert fault.kind == "nan" and fault.operator == "aten::mul.Tensor"
    assert "its operand 0 is data of before the step" in fault.what


def test_kinds_are_those_that_were_asked_for():
    kept = []
    x = torch.zeros(3, device="xla")
    step = lambda: kept.append((x / x, 1 / x))  # noqa: E731
    assert fault_of(step).kind == "nan"
    assert fault_of(step, kinds=("inf",)).kind == "inf"
    assert torch_xla.debug.first_fault(step, kinds=("difference",)) is None
    with pytest.raises(ValueError, match="expected kinds of .*'nans'"):
        torch_xla.debug.first_fault(step, kinds=("nans",))


def test_a_wrong_lowering_is_told_by_the_call_that_has_it():
    """The last bit of an exponential is what a wrong lowering looks like to no tolerance."""
    x = torch.randn(64, 64, device="xla")
    torch_xla.sync()
    kept = []

    def step():
        kept.append((x + 1).exp())

    assert torch_xla.debug.first_fault(step) is None
    fault = fault_of(step, tolerance=0.0)
    assert fault.kind == "difference" and fault.operator == "aten::exp"
    assert "PyTorch's CPU kernel gives another result 0" in fault.what


def test_no_fault_in_the_training_of_networks():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    net = torch.nn.Sequential(
        torch.nn.Conv1d(4, 16, 3, padding=1), torch.nn.BatchNorm1d(16), torch.nn.Flatten(2)
    ).to("xla")
    layer.to("xla")
    optimizer = torch.optim.AdamW([*net.parameters(), *layer.parameters()], lr=1e-3)
    x = torch.randn(8, 4, 16, device="xla")

    def step():
        optimizer.zero_grad()
        loss = layer(net(x)).square().mean()
        loss.backward()
        optimizer.step()

    assert torch_xla.debug.first_fault(step) is None


def attention(**options):
    heads = options.pop("heads", 4)
    dtype = options.pop("dtype", torch.float32)
    q = torch.randn(2, 4, 6, 8, dtype=dtype)
    k, v = (torch.randn(2, heads, 5, 8, dtype=dtype) for _ in range(2))
    return (q, k, v), lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


def masked(mask, **options):
    operands, call = attention(**options)
    return (*operands, mask), lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m)


def recurrent(kind, **options):
    layer = kind(5, 7, 2, **options).to("xla")
    return (torch.randn(4, 3, 5),), lambda x: layer(x)[0]


def linear(*shape, dtype=torch.float32, bias=True):
    weight, shift = torch.randn(6, shape[-1], dtype=dtype), torch.randn(6, dtype=dtype)
    operands = (torch.randn(*shape, dtype=dtype), weight)
    return (*operands, shift) if bias else operands, lambda *given: F.linear(*given)


NO_ROW = torch.ones(6, 5).bool().index_fill(0, torch.tensor([2]), False)

# What is recorded as an operator that PyTorch has no CPU kernel of, by that operator.
OWN = {
    "plain": ("torch_xla::attention", lambda: attention()),
    "causal": ("torch_xla::attention", lambda: attention(is_causal=True)),
    "grouped": ("torch_xla::attention", lambda: attention(heads=2, enable_gqa=True)),
    "scaled": ("torch_xla::attention", lambda: attention(scale=0.3)),
    "bfloat16": ("torch_xla::attention", lambda: attention(dtype=torch.bfloat16)),
    "double": ("torch_xla::attention", lambda: attention(dtype=torch.float64)),
    "added mask": ("torch_xla::attention", lambda: masked(torch.randn(2, 1, 6, 5))),
    "a row without": ("torch_xla::attention", lambda: masked(NO_ROW)),
    "LSTM": ("torch_xla::rnn_layer", lambda: recurrent(torch.nn.LSTM, bidirectional=True)),
    "GRU": ("torch_xla::rnn_layer", lambda: recurrent(torch.nn.GRU, bias=False)),
    "RNN": ("torch_xla::rnn_layer", lambda: recurrent(torch.nn.RNN)),
    "linear": ("aten::linear_backward", lambda: linear(4, 5)),
    "linear of a batch": ("aten::linear_backward", lambda: linear(2, 3, 5, bias=False)),
    "linear of bfloat16": ("aten::linear_backward", lambda: linear(3, 5, dtype=torch.bfloat16)),
}


# Each compiles a program for each call.
WIDE = {"double", "scaled", "LSTM", "RNN", "linear of a batch"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in WIDE else n for n in OWN]
)
def test_operators_that_pytorch_has_no_cpu_kernel_of(name):
    """They are compared with what PyTorch's operators make of the same operands, and with that of
    other operands they differ."""
    torch.manual_seed(0)
    operator, make = OWN[name]
    operands, call = make()
    wanted = [t.is_floating_point() for t in operands]
    given = [t.to("xla").requires_grad_(w) for t, w in zip(operands, wanted, strict=True)]
    torch_xla.sync()

    def step():
        call(*given).square().sum().backward()

    assert torch_xla.debug.first_fault(step) is None
    [run] = [r for r in runs_of(step) if any(c.operator == operator for c in r.calls)]
    replay = run.replay()
    replay.compute(list(range(len(run.calls))), all_results=True)
    backward = {operator, f"{operator}_backward"} - {"aten::linear_backward_backward"}
    found = [i for i, c in enumerate(run.calls) if c.operator in backward]
    assert {run.calls[i].operator for i in found} == backward
    for i in found:
        its = replay.operands(i)
        for expected, moved in ((its, False), ([_moved(t) for t in its], True)):
            pairs = zip(replay.results(i), replay.on_cpu(i, expected), strict=True)
            differ = [
                difference(a, b, None, its) for a, b in pairs if a is not None and b is not None
            ]
            assert differ and any(differ) == moved, (run.calls[i].operator, differ)
            if run.calls[i].operator == "torch_xla::rnn_layer_backward":
                assert len(differ) == {"LSTM": 7, "GRU": 4, "RNN": 6}[name]  # no cx, no biases


def _moved(t):
    return t + 0.1 if t is not None and t.is_floating_point() else t


def test_kept_runs_give_what_they_gave():
    """Steps that overwrite their parameters can be searched afterwards, and go on as before."""
    w = torch.ones(8, 8, device="xla")
    other = torch.ones(8, 8)
    torch_xla.debug.keep_runs(2)
    try:
        for i in range(4):
            for t in (w, other):
                t.mul_(1.5).sub_(0.25 if i < 3 else t.sqrt().neg_().sqrt())
            torch_xla.sync()
        fault = torch_xla.debug.first_fault()
    finally:
        torch_xla.debug.keep_runs(0)
    torch.testing.assert_close(w.cpu(), other, equal_nan=True)
    assert fault.kind == "nan" and fault.operator == "aten::sqrt"
    assert "another" not in fault.what
    with pytest.raises(ValueError, match=r"call torch_xla.debug.keep_runs\(1\) before"):
        torch_xla.debug.first_fault()


def test_keep_runs_needs_a_number():
    with pytest.raises(ValueError, match="keep_runs: expected a number of runs"):
        torch_xla.debug.keep_runs(-1)
    with pytest.raises(ValueError, match=r"keep_runs: expected a number of runs, .* got 2\.5"):
        torch_xla.debug.keep_runs(2.5)


def test_steps_of_torch_compile_are_open():
    @torch.compile(backend="openxla")
    def step(x):
        return torch.log(x - 2).sum()

    fault = fault_of(lambda: step(torch.ones(4, device="xla")))
    assert fault.kind == "nan" and fault.operator == "aten::log"


NANS = """
    import torch, torch_xla
    x = torch.ones(4, device="xla")
    def train(i):
        global x
        y = x - 1 if i == 2 else x
        x = y / y
        torch_xla.sync()
    for i in range(5):
        train(i)
        torch_xla.sync(wait=True)
    """


def test_debug_nans_raises_with_the_line(run_python):
    done = run_python(NANS, env={"XLA_DEBUG_NANS": "1"}, check=False)
    assert done.returncode == 1
    error = done.stderr[done.stderr.rindex("FloatingPointError") :]
    assert error.startswith("FloatingPointError: NaN: aten::div.Tensor at ")
    assert "(train)" in error and "gives NaN, its operands have none" in error
    assert "operand 0: float32[4] from 0 to 0" in error
    assert run_python(NANS, env={"XLA_EXPLAIN": "0"}).stderr == ""


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)"])
def test_a_nan_of_the_last_step_is_a_failure_of_the_program(run_python, end):
    code = f"""
        import atexit, torch, torch_xla
        atexit.register(print, "others run")
        x = torch.zeros(4, device="xla")
        x = x / x
        torch_xla.sync()
        print("last line")
        {end}
    """
    done = run_python(code, env={"XLA_DEBUG_NANS": "1"}, check=False, fresh=True)
    assert done.returncode == 1 and "FloatingPointError: NaN: aten::div" in done.stderr
    assert done.stdout.split("\n")[:2] == ["last line", "others run"]
    done = run_python(code, env={"XLA_EXPLAIN": "0"}, check=False, fresh=True)
    assert done.returncode == 0 and done.stderr == ""


def test_debug_nans_changes_no_number(run_python):
    code = """
        import torch, torch_xla
        import torch_xla.debug.metrics as met
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1)).to("xla")
        optimizer = torch.optim.Adam(net.parameters())
        x = torch.randn(4, 8).to("xla")
        for _ in range(5):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            torch_xla.sync()
        print([p.sum().item() for p in net.parameters()], met.metric_data("CompileTime")[0])
    """
    plain = run_python(code, env={"XLA_EXPLAIN": "0"}).stdout.split("]")
    watched = run_python(code, env={"XLA_DEBUG_NANS": "1", "XLA_EXPLAIN": "0"}).stdout.split("]")
    assert plain[0] == watched[0]
    assert int(watched[1]) <= 2 * int(plain[1])  # those that look for NaN


def test_debug_nans_tells_of_inputs(run_python):
    code = """
        import torch, torch_xla
        x = torch.tensor([1.0, float("nan")]).to("xla")
        y = x + 1
        torch_xla.sync(wait=True)
        torch_xla.sync(wait=True)
    """
    done = run_python(code, env={"XLA_DEBUG_NANS": "1"}, check=False)
    assert "aten::add.Tensor at " in done.stderr, done.stderr
    assert "is given NaN: its operand 0 is data of before the step" in done.stderr


def test_debug_nans_tells_of_the_nan_that_is_given(run_python):
    done = run_python(
        """
        import torch, torch_xla
        x = torch.tensor([-1.0, 1.0]).to("xla")
        legal = torch.nan_to_num(x.log())
        y = legal + (x - 5).sqrt()
        torch_xla.sync()
        try:
            torch_xla.sync(wait=True)
        except FloatingPointError as error:
            print(error)
        y = torch.full((2,), float("nan"), device="xla")
        torch_xla.sync()
        try:
            torch_xla.sync(wait=True)
        except FloatingPointError as error:
            print(error)
        """,
        env={"XLA_DEBUG_NANS": "1"},
    )
    assert "NaN: aten::sqrt at " in done.stdout, done.stderr
    assert "aten::log" not in done.stdout
    assert "gives NaN, which is a number among its arguments" in done.stdout


def test_equal_elements_may_be_found_anywhere():
    x = torch.ones(2, 6).to("xla")
    kept = []

    def step():
        kept.extend(x.topk(2))
        kept.extend(x.sort(dim=0))
        kept.extend(x.kthvalue(2))
        kept.extend(x.mode(dim=0))

    assert torch_xla.debug.first_fault(step) is None


def test_numbers_of_eight_bits():
    x = torch.ones(4).to(torch.float8_e4m3fn).to("xla")
    kept = []
    step = lambda: kept.append((x.float() * 2).to(torch.float8_e5m2))  # noqa: E731
    assert torch_xla.debug.first_fault(step) is None
    bad = torch.full((4,), float("nan")).to("xla")
    fault = fault_of(lambda: kept.append(bad.to(torch.float8_e5m2)))
    assert fault.results[0].nans == 4


def test_a_search_within_a_module_leaves_its_name():
    class Outer(torch.nn.Module):
        def forward(self, x):
            torch_xla.debug.first_fault(lambda: x + 1)
            return torch.log(x)

    net = Outer()
    x = torch.tensor([-1.0]).to("xla")
    assert fault_of(lambda: net(x)).module == "Outer"


def test_an_optimizer_that_raises_has_a_scope_until_its_next_step():
    weight = torch.nn.Parameter(torch.ones(1, device="xla"))
    optimizer = torch.optim.SGD([weight])
    x = torch.tensor([-1.0]).to("xla")

    class Net(torch.nn.Module):
        def forward(self, x):
            with contextlib.suppress(ZeroDivisionError):
                optimizer.step(lambda: 1 / 0)
            return x + 1

    net = Net()

    def within():
        net(x)
        return torch.log(x)

    def after():
        with contextlib.suppress(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
        optimizer.step()
        return torch.log(x)

    assert fault_of(within).module == ""
    assert fault_of(after).module == ""


def test_steps_on_another_device(run_python):
    done = run_python(
        """
        import torch, torch_xla, torch_xla.debug
        x = torch.tensor([-1.0]).to("xla:1")
        print(torch_xla.debug.first_fault(lambda: x.log()))
        """,
        env={"CPU_NUM_DEVICES": "2"},
    )
    assert "aten::log" in done.stdout, done.stderr


def test_modules_that_are_added_have_names():
    net = torch.nn.Sequential(torch.nn.Identity()).to("xla")
    x = torch.tensor([-1.0]).to("xla")
    torch_xla.debug.first_fault(lambda: net(x) + 1)

    class Log(torch.nn.Module):
        def forward(self, x):
            return torch.log(x)

    net.add_module("log", Log())
    assert fault_of(lambda: net(x)).module == "Sequential.log"


def test_gradients_that_cancel_are_no_difference():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8).to("xla").requires_grad_()
    torch_xla.sync()

    def step():  # the square of what is normalized is a constant
        torch.nn.functional.group_norm(x, 3).square().sum().backward()

    assert torch_xla.debug.first_fault(step) is None


def test_debug_nans_goes_on_after_it_was_caught(run_python):
    """On any thread; answers that nobody waits for are copied into memory that is there."""
    code = """
        import threading, time, torch, torch_xla
        caught = []
        def loop():
            x = -torch.ones(64, device="xla")
            end = time.monotonic() + 2
            while time.monotonic() < end:
                try:
                    y = x.log()
                    torch_xla.sync()
                except FloatingPointError:
                    caught.append(1)
        for _ in range(2):
            thread = threading.Thread(target=loop)
            thread.start()
            thread.join()
        assert len(caught) > 5, len(caught)
        while True:  # what the last ones gave would be told at exit
            try:
                torch_xla.sync(wait=True)
                break
            except FloatingPointError:
                pass
    """
    run_python(code, env={"XLA_DEBUG_NANS": "1", "XLA_EXPLAIN": "0"})


def test_nothing_is_kept_once_nobody_watches(run_python):
    code = """
        import os, torch, torch_xla
        from torch_xla import _XLAC
        x = torch.ones(4, device="xla")
        for i in range(6):
            if i == 3:
                assert len(_XLAC._xla_kept_runs()) == 3
                os.environ["XLA_DEBUG_NANS"] = "0"
            x = x + 1
            torch_xla.sync()
        assert _XLAC._xla_kept_runs() == []
    """
    run_python(code, env={"XLA_DEBUG_NANS": "1", "XLA_EXPLAIN": "0"})


def test_tools_while_nan_is_watched_for(run_python):
    code = """
        import torch, torch_xla, torch_xla.debug
        x = -torch.ones(4, device="xla")
        torch_xla.sync()
        fault = torch_xla.debug.first_fault(lambda: x.log())
        assert fault.operator == "aten::log", fault
        print(torch_xla.debug.cost(lambda: x.log()).operators[0].name)
    """
    done = run_python(code, env={"XLA_DEBUG_NANS": "1", "XLA_EXPLAIN": "0"})
    assert done.stdout == "aten::log\n"
