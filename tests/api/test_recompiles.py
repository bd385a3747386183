"""Each recompile is explained: which line, what differs from the nearest program, what to do.

Units: executor/compile/difference, _src/insight/explain.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
import torch_xla.runtime as xr
from torch_xla.debug import Recompile, recompiles

FILE = __file__


def line_of(function: Callable, text: str) -> str:
    """The line of this file, within a function, that holds a text: "file:12"."""
    first = function.__code__.co_firstlineno
    lines = open(FILE).read().splitlines()
    return f"{FILE}:{next(i for i in range(first, len(lines)) if text in lines[i]) + 1}"


@pytest.fixture(autouse=True)
def fresh():
    torch_xla.sync()  # what earlier tests left
    xr.clear_computation_cache()
    recompiles(clear=True)


def only() -> Recompile:
    """The one recompile since the test began or this was called last."""
    found = recompiles(clear=True)
    assert len(found) == 1, "\n".join(map(str, found))
    return found[0]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.first(x))))


class Training:
    """A training loop's state and step."""

    def __init__(self, optimizer=torch.optim.SGD, **options):
        self.model = Net().to("xla")
        self.optimizer = optimizer(self.model.parameters(), lr=0.1, **options)

    def step(self, rows=6, dtype=torch.float32, read=False, update=True):
        x = torch.randn(rows, 4, dtype=dtype).to("xla")
        y = torch.randint(2, (rows,)).to("xla")
        with torch.autocast("xla", enabled=dtype is torch.bfloat16):
            loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        if read:
            print(loss)
        if update:
            self.optimizer.step()
            self.optimizer.zero_grad()
        torch_xla.sync()


def test_steady_training_has_none():
    for optimizer in (torch.optim.SGD, torch.optim.AdamW):
        training = Training(optimizer)
        for _ in range(4):
            training.step()
        xr.clear_computation_cache()  # the two share lines
        assert recompiles(clear=True) == []


def test_the_last_small_batch(capfd):
    training = Training()
    for rows in (6, 6, 3):
        training.step(rows)
    r = only()
    assert (r.kind, r.number, r.name) == ("shape", 2, "sync")
    assert r.what == "`input` of aten::linear is Float[3,4], was Float[6,4]"
    assert line_of(Training.step, "torch_xla.sync()") in r.place
    assert line_of(Training.step, "self.model(x)") not in r.line  # but the module's line
    assert r.line == r.earlier_line and line_of(Net.forward, "self.first(x)") in r.line
    assert "drop_last=True" in r.advice and "pad" in r.advice
    assert 0 < r.seconds < 600 and r.key != r.earlier_key
    assert str(r) in capfd.readouterr().err


def test_a_growing_list():
    values = []
    for i in range(3):
        values.append(torch.full((2,), float(i), device="xla"))
        total = torch.stack(values).sum()
        torch_xla.sync()
    assert total.item() == 6
    [first, second] = recompiles(clear=True)
    assert first.kind == second.kind == "attribute"
    assert "is 2 tensors, was 1 tensor" in first.what and "is 3 tensors, was 2" in second.what
    assert "Each length of a list" in second.advice


def test_a_growing_sequence():
    embedding = nn.Embedding(7, 4).to("xla")
    tokens = torch.zeros(1, 1, dtype=torch.long)
    for _ in range(3):
        logits = embedding(tokens.to("xla")).sum(-1)
        torch_xla.sync()
        tokens = F.pad(tokens, (0, 1))
        del logits
    first, second = recompiles()
    assert first.kind == second.kind == "shape" and (first.number, second.number) == (2, 3)
    assert "`indices` of aten::embedding is Long[1,3], was Long[1,2]" == second.what
    assert "Pad to a few sizes" in second.advice and "mark_dynamic" in second.advice


def test_a_branch_on_a_value():
    x = torch.ones(3).to("xla")

    def loop(value):
        y = x * 2
        if value > 0:
            y = torch.tanh(y)
        y = y + 1
        torch_xla.sync()
        return y

    loop(1)
    loop(-1)
    r = only()
    assert r.kind == "calls" and r.what == "aten::tanh went away"
    assert r.line == "" and line_of(loop, "torch.tanh") in r.earlier_line
    assert "torch.where" in r.advice
    loop(1)
    assert recompiles() == []  # both are kept


def test_a_first_step_that_makes_what_later_ones_find():
    def loop():
        total = torch.zeros(3, device="xla")
        for i in range(3):
            total += i
            torch_xla.sync()

    loop()
    r = only()
    assert "aten::zeros" in r.what and "torch_xla.sync() before the loop" in r.advice


def test_the_nearest_is_compared():
    x = torch.ones(3).to("xla")

    def loop(calls):
        y = x
        for call in calls:
            y = call(y)
        torch_xla.sync()
        return y

    loop([torch.exp, torch.tanh, torch.sin, torch.cos])
    loop([torch.sqrt, torch.abs])
    recompiles(clear=True)
    loop([torch.exp, torch.tanh, torch.sin])
    r = only()
    assert r.number == 3 and r.what == "aten::cos went away"


def test_a_changing_constant():
    x = torch.rand(5, 5).to("xla")

    def loop(i):
        y = x[i] * 2
        torch_xla.sync()
        return y

    loop(1)
    loop(2)
    r = only()
    assert r.kind == "attribute" and r.what == "`index` of aten::select.int is 2, was 1"
    assert line_of(loop, "x[i]") in r.line
    assert "make an index a tensor" in r.advice


def test_a_print_in_some_steps(capfd):
    training = Training()
    training.step()
    training.step(read=True)
    r = only()
    assert r.kind == "calls" and "aten::linear and" in r.what and "went away" in r.what
    assert line_of(Training.step, "print(loss)") in r.advice
    assert "after the barrier" in r.advice


def test_a_print_in_some_steps_and_then_not():
    training = Training()
    training.step(read=True)
    training.step()
    r = only()
    assert r.kind == "calls" and "came in" in r.what
    assert line_of(Training.step, "print(loss)") in r.advice


def test_item_in_the_loop():
    x = torch.arange(12.0).reshape(3, 4).to("xla")

    def loop(weights):
        best = int(weights.to("xla").argmax().item())
        y = x[:, best].exp()
        torch_xla.sync()
        return y

    loop(torch.tensor([0.0, 1.0, 0.0, 0.0]))
    loop(torch.tensor([0.0, 0.0, 0.0, 1.0]))
    r = only()
    assert r.kind == "attribute" and r.what == "`index` of aten::select.int is 3, was 1"
    assert ".item()" in r.advice


def test_new_optimizer_state():
    parameters = [nn.Parameter(torch.rand(3).to("xla")) for _ in range(2)]
    optimizer = torch.optim.Adam([{"params": parameters[:1]}, {"params": parameters[1:]}])

    def step(some):
        sum((p * p).sum() for p in some).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()

    step(parameters[:1])
    step(parameters[:1])
    assert recompiles() == []
    step(parameters)
    r = only()
    assert r.kind == "calls" and "came in" in r.what and r.line


def test_train_and_eval():
    training = Training()
    training.step()
    training.model.eval()
    training.step()
    r = only()
    assert r.kind == "calls" and r.what == "aten::native_dropout went away"
    assert "model.train() and model.eval()" in r.advice


def test_eval_of_batch_norm():
    model = nn.BatchNorm1d(3).to("xla")

    def step():
        y = model(torch.randn(4, 3).to("xla"))
        torch_xla.sync()
        return y

    step()
    model.eval()
    step()
    assert "model.train() and model.eval()" in only().advice


def test_another_dtype():
    def loop(x):
        y = x.to("xla").exp().sum()
        torch_xla.sync()
        return y

    loop(torch.ones(3))
    loop(torch.ones(3, dtype=torch.float64))
    r = only()
    assert r.kind == "dtype" and r.what == "`self` of aten::exp is Double[3], was Float[3]"
    assert "one dtype" in r.advice


def test_a_mask():
    x = torch.arange(6.0).to("xla")

    def loop(limit):
        y = x[x > limit] * 2
        torch_xla.sync()
        return y

    loop(3)
    loop(1)
    r = only()
    assert line_of(loop, "x[x > limit]") in r.line
    assert "torch.where(mask, x, 0)" in r.advice


def test_gradient_accumulation():
    training = Training()
    training.step(update=False)
    training.step(update=True)
    r = only()
    assert "gradient accumulation" in r.advice and "came in" in r.what
    # The first of the calls adds a gradient, which is of its forward call.
    assert r.what.startswith("aten::add") and line_of(Net.forward, "self.last(") in r.line
    training.step(update=False)
    training.step(update=True)
    assert recompiles() == []


def test_a_parameter_frozen_halfway():
    training = Training()
    training.step()
    training.model.first.weight.requires_grad_(False)
    training.model.first.bias.requires_grad_(False)
    training.step()
    r = only()
    assert "gradient" in r.advice, str(r)


def test_a_tensor_that_is_kept():
    x = torch.ones(4).to("xla")
    kept = []

    def loop(keep):
        y = x * 2
        z = y + 1
        if keep:
            kept.append(y)
        del y
        torch_xla.sync()
        return z

    loop(False)
    loop(True)
    r = only()
    assert r.kind == "results" and r.what.startswith("the result of aten::mul.Tensor is kept")


@pytest.mark.parametrize("keeps", [(False, True), (True, False)])
def test_a_loss_that_is_kept_in_some_steps(keeps):
    """The walk over the graph begins at what is kept, so the same calls come in another order."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 4)).to("xla")
    x, y = torch.randint(10, (6,)).to("xla"), torch.randint(4, (6,)).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    torch_xla.sync()

    def loop(keep):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if keep:
            kept.append(loss.detach())
        del loss
        torch_xla.sync()

    loop(keeps[0])  # makes the gradients
    loop(keeps[0])
    recompiles(clear=True)
    loop(keeps[1])
    r = only()
    assert r.kind == "results", r
    kept_now = "is kept" if keeps[1] else "is not kept"
    assert r.what.startswith(f"the result of aten::nll_loss_forward {kept_now}")


def test_memory_that_something_else_refers_to():
    w = torch.ones(4).to("xla")
    copy = torch.zeros(4).to("xla")

    def loop(keep):
        if keep:
            copy.copy_(w)  # until either is written, both are one
            torch_xla.sync()
        w.mul_(2)
        torch_xla.sync()

    loop(False)
    loop(True)
    r = only()
    assert r.kind == "memory" and "which aten::mul.Tensor at" in r.what
    assert r.what.startswith("the memory of input 0 (Float[4], ")
    assert r.what.endswith("is not reused for a result, was")
    assert "Let go of it" in r.advice
    torch.testing.assert_close(w.cpu(), torch.full((4,), 4.0))


def test_a_flag():
    x = torch.ones(4).to("xla")

    def loop():
        y = x * 2
        torch_xla.sync()
        return y

    loop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_NO_DONATION", "1")
        loop()
    r = only()
    assert r.kind == "settings" and "XLA_NO_DONATION=1" in r.what


def test_compiled_functions():
    @torch_xla.compile
    def rows(x):
        return x.sqrt().sum(0)

    @torch.compile(backend="openxla", dynamic=False)
    def columns(x):
        return x.exp().sum(1)

    def call(function, size):
        return function(torch.ones(size, 2).to("xla"))

    for function in (rows, columns):
        for size in (3, 3, 5):
            call(function, size)
        r = only()
        assert r.kind == "shape" and "is Float[5,2], was Float[3,2]" in r.what
        if function is rows:
            assert r.name.endswith("rows") and line_of(call, "return function") in r.place
        else:  # the frame that dynamo runs is the function's
            assert r.name == "torch.compile" and "columns)" in r.place


def test_eager_mode_has_none():
    with torch_xla.experimental.eager_mode_context(True):
        for size in (2, 3):
            torch.ones(size, device="xla").exp()
    assert recompiles() == []


@pytest.mark.parametrize("explain", ["1", "0"])
def test_messages_are_few(capfd, monkeypatch, explain):
    monkeypatch.setenv("XLA_EXPLAIN", explain)

    def loop(x):
        y = x.to("xla") * 2
        torch_xla.sync()
        return y

    for size in range(1, 11):
        loop(torch.ones(size))
    assert len(recompiles()) == 9
    told = capfd.readouterr().err.count("Recompiled ")
    assert told == (4 if explain == "1" else 0)  # the 1st, 2nd, 4th and 8th


def test_another_sharding(run_python):
    done = run_python(
        """
        import numpy as np, torch, torch_xla
        import torch_xla.runtime as xr, torch_xla.distributed.spmd as xs
        from torch_xla.debug import recompiles
        xr.use_spmd()
        mesh = xs.Mesh(np.arange(2), (2,), ("x",))
        def step(spec):
            t = torch.ones(4, 4).to("xla")
            xs.mark_sharding(t, mesh, spec)
            y = t * 2
            torch_xla.sync()
            return y
        for spec in [("x", None), ("x", None), (None, "x")]:
            step(spec)
        (r,) = recompiles()
        print(r.kind, r.what, sep="|")
        """,
        env={"CPU_NUM_DEVICES": "2"},
    )
    kind, what = done.stdout.strip().splitlines()[-1].split("|")
    assert kind == "sharding"
    assert "is split as {devices=[1,2]0,1}, was as {devices=[2,1]0,1}" in what


def test_the_same_operator_on_another_line():
    def add(x):
        if x.shape[0] == 4:
            return x.exp() + 1
        return x.exp() + 1

    for rows in (4, 3):
        y = add(torch.ones(rows).to("xla"))
        torch_xla.sync()
        del y
    r = only()
    assert " stands where " not in r.what and "was Float[4]" in r.what and r.kind == "shape"
