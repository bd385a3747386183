"""Calls of torch_xla.compile'd functions that are recorded again without their Python.

Each case runs a function of the same text compiled and, on the CPU, plainly; both see the same
changes between calls. `replays` counts the calls whose Python did not run.
"""

from __future__ import annotations

import collections
import copy
import enum
import functools
import operator
import random
import sys
import time
from typing import ClassVar

import pytest
import torch
from numpy.random import normal
from torch import nn
from torch.nn import functional as F

import torch_xla
import torch_xla.debug.metrics as met

CALLS = 9


@pytest.fixture(autouse=True)
def with_replays(monkeypatch):
    monkeypatch.setenv("XLA_REPLAY", "1")


def replays():
    return met.counter_value("ReplayedCalls") or 0


class Net(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.a = nn.Linear(8, 16, bias=False)  # a bias would have no gradient
        self.norm = nn.BatchNorm1d(16)
        self.b = nn.Linear(16, 4)
        self.dropout = dropout
        self.scale = 1.0
        self.extra = {"sign": 1}

    def forward(self, x):
        y = F.dropout(F.relu(self.norm(self.a(x))), self.dropout, self.training)
        return self.b(y) * self.scale * self.extra["sign"]


def batches(count, rows=32):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield (
            torch.randn(rows, 8, generator=generator),
            torch.randint(4, (rows,), generator=generator),
        )


class Training:
    """A model and its optimizer on a device, with a step."""

    def __init__(self, device, make_optimizer, set_to_none=True):
        torch.manual_seed(0)
        self.model = Net().to(device)
        self.optimizer = make_optimizer(self.model.parameters())
        self.set_to_none = set_to_none
        self.python = 0

    def step(self, x, y):
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss


def compare(training, reference, loss, expected):
    torch.testing.assert_close(loss.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    for (name, a), b in zip(
        training.model.state_dict().items(), reference.model.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: n + m)
    for a, b in zip(training.model.parameters(), reference.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-2, atol=1e-4)
    assert loss.requires_grad and not loss.is_leaf


def adam_of_lists(parameters):
    parameters = list(parameters)
    on_device = parameters[0].device.type == "xla"
    return torch.optim.Adam(parameters, lr=0.01, foreach=True, fused=False, capturable=on_device)


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam-list": adam_of_lists,
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_training_step_is_replayed(optimizer, set_to_none):
    ours = Training("xla", OPTIMIZERS[optimizer], set_to_none)
    reference = Training("cpu", OPTIMIZERS[optimizer], set_to_none)
    step = torch_xla.compile(ours.step)
    before = replays()
    for x, y in batches(CALLS):
        loss, expected = step(x.to("xla"), y.to("xla")), reference.step(x, y)
        compare(ours, reference, loss, expected)
    assert step._replays.refusals == []
    assert replays() - before == CALLS - 3


def test_a_replayed_loss_has_no_way_back():
    ours = Training("xla", OPTIMIZERS["sgd"])
    step = torch_xla.compile(ours.step)
    for x, y in batches(6):
        loss = step(x.to("xla"), y.to("xla"))
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()


# What a user changes between calls: the function must see it.
def raise_rate(t):
    t.optimizer.param_groups[0]["lr"] *= 2


def to_eval(t):
    t.model.eval()


def freeze(t):
    t.model.a.weight.requires_grad_(False)
    t.model.a.weight.grad = None


def rescale(t):
    t.model.scale = 0.5


def flip_sign(t):
    t.model.extra["sign"] = -1


def new_head(t):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        head = nn.Linear(16, 4)
    t.model.b = head.to(t.model.a.weight.device)
    t.optimizer.add_param_group({"params": list(t.model.b.parameters())})


def load(t):
    state = {
        k: torch.full_like(v, 0.01) if v.is_floating_point() else v
        for k, v in t.model.state_dict().items()
    }
    t.model.load_state_dict(state)


def new_parameter(t):
    t.model.b.bias = nn.Parameter(torch.ones_like(t.model.b.bias.detach()))


def drop_grads(t):
    t.optimizer.zero_grad()


def tie(t):
    t.model.norm.bias = t.model.norm.weight


def set_data(t):
    t.model.a.weight.data = t.model.a.weight.data * 0.5


def add_hook(t):
    t.model.b.register_forward_hook(lambda module, args, output: output * 3)


def add_grad_hook(t):
    t.model.b.weight.register_hook(lambda grad: grad * 0.5)


def patch_forward(t):
    original = t.model.forward
    t.model.forward = lambda x: original(x) + 1


CHANGES = [
    *(raise_rate, to_eval, freeze, rescale, flip_sign, new_head, load, new_parameter, drop_grads),
    *(tie, set_data, add_hook, add_grad_hook, patch_forward),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_what_changes_between_calls_is_seen(change):
    ours, reference = (Training(d, OPTIMIZERS["momentum"]) for d in ("xla", "cpu"))
    step = torch_xla.compile(ours.step)
    for i, (x, y) in enumerate(batches(CALLS)):
        if i == 6:
            assert replays() > 0
            change(ours)
            change(reference)
        loss, expected = step(x.to("xla"), y.to("xla")), reference.step(x, y)
        torch.testing.assert_close(loss.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    for a, b in zip(
        ours.model.state_dict().values(), reference.model.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-4)


def test_shapes_have_replays_of_their_own():
    ours, reference = (Training(d, OPTIMIZERS["sgd"]) for d in ("xla", "cpu"))
    step = torch_xla.compile(ours.step)
    for i in range(14):
        ((x, y),) = batches(1, 16 if i % 2 else 32)
        compare(ours, reference, step(x.to("xla"), y.to("xla")), reference.step(x, y))


def test_random_numbers_go_on():
    def function(x):
        return F.dropout(x, 0.5) + torch.rand_like(x)

    step = torch_xla.compile(function)
    x = torch.ones(64, device="xla")
    torch.manual_seed(5)
    found = [step(x).cpu() for _ in range(CALLS)]
    torch.manual_seed(5)
    expected = [function(x).cpu() for _ in range(CALLS)]
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(found[-1], found[-2])
    assert step._replays.refusals == []


COUNTER = 0
TABLE = {"k": 1.0}


class Holder:
    rate = 2.0
    seen: ClassVar[list] = []

    def __init__(self):
        self.calls = 0
        self.cache = []
        self.tensor = torch.zeros(4, device="xla")


def counts(h, x):
    h.calls += 1
    return x * h.calls


def appends(h, x):
    h.cache.append(1)
    return x * len(h.cache)


def counts_globally(h, x):
    global COUNTER
    COUNTER += 1
    return x * COUNTER


def replaces(h, x):
    h.tensor = h.tensor + x
    return h.tensor * 1


def reads_clock(h, x):
    return x * (time.perf_counter() > 0) + 0 * time.time()


def draws(h, x):
    return x * random.random()


def draws_on_cpu(h, x):
    return x * torch.rand(4).to("xla")


def reads_value(h, x):
    return x * 2 if x.sum().item() > 0 else x * 3


def branches_on_value(h, x):
    return x * 2 if (x > 0).all() else x * 3


def prints(h, x):
    print(end="")
    return x * 2


def has_barrier(h, x):
    y = x * 2
    torch_xla.sync()
    return y + 1


def reads_iterator(h, x):
    return x * next(h.numbers)


def fills_a_list_of_a_class(h, x):
    h.seen.append(1)
    return x * len(h.seen)


class Outer:
    class Inner:
        count = 0


class Letter(enum.Enum):
    A = 1


Letter.A.count = 0


def counts_in_a_class_of_a_class(h, x):
    Outer.Inner.count += 1
    return x * Outer.Inner.count


def counts_in_a_member(h, x):
    Letter.A.count += 1
    return x * Letter.A.count


def counts_in_pytorch(h, x):
    torch.count_of_this_test += 1
    return x * torch.count_of_this_test


def reads_a_module_that_an_object_holds(h, x):
    return x * h.module.COUNTER


def changes_an_attribute_by_name(h, x):
    setattr(sys.modules[__name__], "COUNTER", COUNTER + 1)  # noqa: B010
    return x * COUNTER


def reads_an_attribute_by_name(h, x):
    return x * operator.attrgetter("COUNTER")(h.module)


def gives_other_memory(h, x):
    h.tensor.data = h.tensor + x
    return h.tensor * 1


def prints_from_c(h, x):
    list(map(print, ()))
    return x * 2


def reads_clock_from_c(h, x):
    return x * functools.partial(time.perf_counter)()


def draws_by_another_name(h, x):
    return x * normal()


def reads_an_address(h, x):
    return x * (id(h) % 7) + x * (id(object()) > 0)


def tags_its_result(h, x):
    y = x * 2
    y.tag = len(vars(h))
    return y


def returns_a_gradient(h, x):
    w = h.weight
    w.grad = None
    (w * x).sum().backward()
    return w.grad


def has_a_hooked_accumulator(h, x):
    h.hooked.grad = None
    (h.hooked * x).sum().backward()
    return h.hooked.grad * 1


@pytest.mark.parametrize(
    "function",
    [
        *(counts, appends, counts_globally, replaces, reads_clock, draws, draws_on_cpu),
        *(reads_value, branches_on_value, prints, has_barrier, reads_iterator),
        *(fills_a_list_of_a_class, reads_a_module_that_an_object_holds),
        *(changes_an_attribute_by_name, reads_an_attribute_by_name, gives_other_memory),
        *(prints_from_c, reads_clock_from_c, draws_by_another_name, reads_an_address),
        *(tags_its_result, returns_a_gradient, has_a_hooked_accumulator),
        *(counts_in_a_class_of_a_class, counts_in_a_member, counts_in_pytorch),
    ],
    ids=lambda f: f.__name__,
)
def test_other_effects_are_never_replayed(function, monkeypatch):
    holder = Holder()
    if function is counts_in_pytorch:
        monkeypatch.setattr(torch, "count_of_this_test", 0, raising=False)
    if function is reads_iterator:
        holder.numbers = iter(range(100))
    if function in (reads_a_module_that_an_object_holds, reads_an_attribute_by_name):
        holder.module = sys.modules[__name__]
    if function is returns_a_gradient:
        holder.weight = torch.ones(4, device="xla", requires_grad=True)
    if function is has_a_hooked_accumulator:
        holder.hooked = torch.ones(4, device="xla", requires_grad=True)
        accumulator = holder.hooked.expand_as(holder.hooked).grad_fn.next_functions[0][0]
        accumulator.register_hook(lambda *_: None)
    step = torch_xla.compile(functools.partial(function, holder))
    before = replays()
    for i in range(CALLS):
        sign = 1 if i % 2 else -1
        step(torch.full((4,), 1.0 * sign, device="xla"))
    assert replays() == before
    assert step._replays.refusals


def test_values_of_effects_are_those_of_the_function():
    holder = Holder()
    step = torch_xla.compile(functools.partial(counts, holder))
    found = [step(torch.ones(2, device="xla"))[0].item() for _ in range(CALLS)]
    assert found == list(range(1, CALLS + 1))


def reads_class(x):
    return x * Holder.rate


def reads_table(x):
    return x * TABLE["k"]


def reads_default(x, by=[3.0]):  # noqa: B006
    return x * by[0]


def test_globals_classes_and_defaults_are_read_again():
    x = torch.ones(3, device="xla")
    steps = [torch_xla.compile(f) for f in (reads_class, reads_table, reads_default)]
    for _ in range(5):
        assert [s(x)[0].item() for s in steps] == [2.0, 1.0, 3.0]
    assert all(s._replays._kept for s in steps), [s._replays.refusals for s in steps]
    Holder.rate, TABLE["k"], reads_default.__defaults__[0][0] = 5.0, 6.0, 7.0
    try:
        assert [s(x)[0].item() for s in steps] == [5.0, 6.0, 7.0]
    finally:
        Holder.rate, TABLE["k"], reads_default.__defaults__[0][0] = 2.0, 1.0, 3.0


def test_results_of_any_shape():
    state = torch.zeros(3, device="xla")

    def function(x, *, flag=True):
        state.add_(1)
        y = x * 2
        return {
            "same": x,
            "view": y[1:],
            "both": [y, y.t()],
            "again": y,
            "none": None,
            "n": (1, "a"),
            "s": state,
        }

    step = torch.no_grad()(torch_xla.compile(function))
    for i in range(CALLS):
        x = torch.full((2, 3), float(i), device="xla")
        r = step(x, flag=True)
        assert r["same"] is x and r["none"] is None and r["n"] == (1, "a") and r["s"] is state
        assert state[0].item() == i + 1
        assert r["again"] is r["both"][0]
        r["both"][0].add_(1)
        assert (r["view"] == 2 * i + 1).all() and (r["both"][1] == 2 * i + 1).all()
        assert r["both"][1].stride() == (1, 3)
    assert step.__wrapped__._replays.refusals == []


def test_tensors_that_share_memory_are_told_apart():
    base = torch.zeros(4, device="xla")

    def function(x, y):
        x.add_(1)
        return y * 2

    step = torch_xla.compile(function)
    for i in range(CALLS):
        if i % 2:
            x = base.clone()
            y = x
        else:
            x, y = base.clone(), base.clone()
        expected = 2.0 if i % 2 else 0.0
        assert (step(x, y) == expected).all(), i
        assert (x == 1).all()


def test_targets_out_of_range_raise_in_a_replay():
    ours = Training("xla", OPTIMIZERS["sgd"])
    step = torch_xla.compile(ours.step)
    for x, y in batches(6):
        step(x.to("xla"), y.to("xla"))
    assert step._replays._kept
    bad = torch.full((32,), 7)
    x = torch.randn(32, 8).to("xla")
    y = bad.to("xla")
    torch_xla.sync(wait=True)
    with pytest.raises((IndexError, RuntimeError)):
        step(x, y)


def test_autocast_and_grad_mode_are_part_of_it():
    layer = nn.Linear(4, 4).to("xla")

    def function(x):
        return layer(x)

    step = torch_xla.compile(function)
    x = torch.ones(2, 4, device="xla")
    with torch.no_grad():
        for _ in range(6):
            assert step(x).dtype == torch.float32
        with torch.autocast("xla", dtype=torch.bfloat16):
            assert step(x).dtype == torch.bfloat16
    assert step(x).requires_grad
    step(x).sum().backward()
    assert layer.weight.grad is not None


def test_a_function_frees_what_it_was_given():
    import gc
    import weakref

    layer = nn.Linear(4, 4).to("xla")
    with torch.no_grad():
        step = torch_xla.compile(lambda x: layer(x))
        for _ in range(6):
            x = torch.ones(2, 4, device="xla")
            result = step(x)
            gone = weakref.ref(x)
            del x
            gc.collect()
            assert gone() is None
        gone = weakref.ref(result)
        del result
        gc.collect()
        assert gone() is None


def test_deep_copies_of_models_do_not_mix():
    model = Net().to("xla").eval()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.a.weight.zero_()
        step = torch_xla.compile(lambda m, x: m(x))
        x = torch.ones(4, 8, device="xla")
        for i in range(CALLS):
            m = (model, twin)[i % 2]
            torch.testing.assert_close(step(m, x).cpu(), m(x).cpu())


def test_ordered_dictionaries_keep_their_order():
    table = collections.OrderedDict(a=1.0, b=2.0)
    step = torch_xla.compile(lambda x: x * next(iter(table.values())))
    x = torch.ones(1, device="xla")
    for _ in range(6):
        assert step(x).item() == 1.0
    table.move_to_end("a")
    assert step(x).item() == 2.0


def test_views_and_leaves_that_autograd_would_know_are_not_replayed():
    kept = torch.zeros(4, device="xla")

    def view_of_argument(x):
        kept.add_(1)
        return x[1:]

    def two_views(x):
        y = x * 2
        return y[:2], y[2:]

    def new_leaf(x):
        return (x * 2).requires_grad_()

    def hidden(x):
        with torch.inference_mode():
            return x * 2

    x = torch.ones(4, device="xla")
    for function in (view_of_argument, two_views, new_leaf, hidden):
        step = torch_xla.compile(function)
        before = replays()
        for _ in range(6):
            step(x)
        assert replays() == before and step._replays.refusals, function.__name__
    w = torch.ones(3, device="xla", requires_grad=True)
    step = torch_xla.compile(view_of_argument)
    for _ in range(6):
        y = torch.ones(4, device="xla")
        step(y).mul_(w)
        assert y.requires_grad


def test_an_error_inside_leaves_nothing_behind():
    layer = nn.Linear(4, 4).to("xla")

    def function(x):
        if x.shape[0] == 3:
            raise ValueError("three rows")
        return layer(x).sum()

    step = torch_xla.compile(function)
    for i in range(8):
        with torch.no_grad():
            if i in (1, 2, 5):
                with pytest.raises(ValueError, match="three rows"):
                    step(torch.ones(3, 4, device="xla"))
            found = step(torch.ones(2, 4, device="xla"))
            torch.testing.assert_close(found, layer(torch.ones(2, 4, device="xla")).sum())


def test_numbers_among_the_arguments():
    step = torch_xla.compile(lambda x, n: x * n)
    x = torch.ones(2, device="xla")
    for n in (
        1,
        1,
        1,
        1,
        2,
        2,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        9,
        10,
        1,
        2,
        1.0,
        True,
        float("nan"),
        -0.0,
        0.0,
    ):
        found = step(x, n)
        expected = torch.ones(2) * n
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found.cpu(), expected, equal_nan=True)
        assert (torch.signbit(found.cpu()) == torch.signbit(expected)).all()


@pytest.mark.parametrize("decorate", [True, False])
def test_replay_is_asked_for_by_function(monkeypatch, decorate):
    monkeypatch.setenv("XLA_REPLAY", "0")

    def function(x):
        return x * 2

    def calls(step):
        before = replays()
        for i in range(CALLS):
            assert step(torch.full((2,), float(i), device="xla")).tolist() == [2.0 * i] * 2
        return replays() - before

    if decorate:
        assert calls(torch_xla.compile(replay=True)(function))
    else:
        assert calls(torch_xla.compile(function, replay=True))
    assert not calls(torch_xla.compile(function))
    monkeypatch.setenv("XLA_REPLAY", "1")
    assert calls(torch_xla.compile(function))
    assert not calls(torch_xla.compile(function, replay=False))
