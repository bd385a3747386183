"""torch.optim on xla: the CPU's results, without transfers to the host and without recompiling.

Units: _src/patches/optim_defaults.
"""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch.optim import lr_scheduler

import torch_xla
from tests.ops.harness import assert_same
from torch_xla.debug import metrics

DEVICE = "xla"

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}),
    "sgd nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "sgd dampening": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    "sgd maximize": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "maximize": True}),
    "adam": (torch.optim.Adam, {"lr": 1e-2}),
    "adam decay": (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.1}),
    "adam amsgrad": (torch.optim.Adam, {"lr": 1e-2, "amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-2}),
    "adamw amsgrad maximize": (torch.optim.AdamW, {"lr": 1e-2, "amsgrad": True, "maximize": True}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 1e-2}),
    "rmsprop centered": (
        torch.optim.RMSprop,
        {"lr": 1e-2, "momentum": 0.9, "centered": True, "weight_decay": 0.1},
    ),
    "adagrad": (torch.optim.Adagrad, {"lr": 1e-2}),
    "adagrad decay": (torch.optim.Adagrad, {"lr": 1e-2, "lr_decay": 0.1, "weight_decay": 0.1}),
    "adadelta": (torch.optim.Adadelta, {"lr": 1.0, "weight_decay": 0.1}),
    "adamax": (torch.optim.Adamax, {"lr": 1e-2, "weight_decay": 0.1}),
    "nadam": (torch.optim.NAdam, {"lr": 1e-2, "weight_decay": 0.1}),
    "nadam decoupled": (
        torch.optim.NAdam,
        {"lr": 1e-2, "weight_decay": 0.1, "decoupled_weight_decay": True},
    ),
    "radam": (torch.optim.RAdam, {"lr": 1e-2, "weight_decay": 0.1}),
    "asgd": (torch.optim.ASGD, {"lr": 1e-2, "weight_decay": 0.1}),
    "rprop": (torch.optim.Rprop, {"lr": 1e-2}),
}
IMPLEMENTATIONS = [{}, {"foreach": True}, {"foreach": False}]
FUSED = {"sgd", "adam", "adagrad"}
CAPTURABLE = {"adam", "rmsprop", "adadelta", "adamax", "nadam", "radam", "asgd", "rprop"}


def make_model() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Tanh())


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(9)
    return [
        (torch.randn(16, 6, generator=generator), torch.randn(16, 3, generator=generator))
        for _ in range(count)
    ]


class Training:
    """A model, its optimizer and the data on one device."""

    def __init__(self, device: str, optimizer_class, options, scheduler=None, dtype=torch.float32):
        self.device, self.dtype = device, dtype
        self.model = make_model().to(dtype).to(device)
        self.optimizer = optimizer_class(self.model.parameters(), **options)
        self.scheduler = scheduler(self.optimizer) if scheduler else None

    def gradients(self, batch) -> torch.Tensor:
        x, y = (t.to(self.device, self.dtype) for t in batch)
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return loss

    def step(self, batch) -> None:
        self.gradients(batch)
        self.optimizer.step()
        if self.scheduler:
            self.scheduler.step()
        if self.device == DEVICE:
            torch_xla.sync()

    def parameters(self) -> list[torch.Tensor]:
        return [p.detach() for p in self.model.parameters()]


def assert_trainings_agree(optimizer_class, options, steps=20, scheduler=None, **tolerances):
    cpu = Training("cpu", optimizer_class, options, scheduler)
    xla = Training(DEVICE, optimizer_class, options, scheduler)
    for batch in batches(steps):
        cpu.step(batch)
        xla.step(batch)
    tolerances = tolerances or {"rtol": 1e-4, "atol": 1e-5}
    assert_same(xla.parameters(), cpu.parameters(), **tolerances)
    return cpu, xla


@pytest.mark.parametrize("options", IMPLEMENTATIONS, ids=["default", "foreach", "loop"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_steps(name, options):
    optimizer_class, arguments = OPTIMIZERS[name]
    tolerances = {"rtol": 1e-3, "atol": 1e-4} if name == "rprop" else {}
    assert_trainings_agree(optimizer_class, {**arguments, **options}, **tolerances)


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n.split()[0] in CAPTURABLE])
@pytest.mark.parametrize("foreach", [True, False])
def test_capturable(name, foreach):
    optimizer_class, arguments = OPTIMIZERS[name]
    cpu = Training("cpu", optimizer_class, arguments)
    xla = Training(DEVICE, optimizer_class, {**arguments, "capturable": True, "foreach": foreach})
    for batch in batches(8):
        cpu.step(batch)
        xla.step(batch)
    assert_same(xla.parameters(), cpu.parameters(), rtol=1e-3, atol=1e-4)


def test_lbfgs():
    results = []
    for device in ("cpu", DEVICE):
        options = {"lr": 0.5, "line_search_fn": "strong_wolfe", "history_size": 3, "max_iter": 8}
        t = Training(device, torch.optim.LBFGS, options)
        (batch,) = batches(1)
        for _ in range(3):
            t.optimizer.step(lambda t=t, batch=batch: t.gradients(batch))
        results.append(t.gradients(batch).detach().cpu())
    torch.testing.assert_close(results[1], results[0], rtol=1e-2, atol=1e-4)


def test_lbfgs_settles():
    """It reads values all the time and never syncs: a read may compute only what is new."""
    options = {"lr": 0.01, "history_size": 2, "max_iter": 3}
    never = {"tolerance_grad": 0.0, "tolerance_change": 0.0}
    t = Training(DEVICE, torch.optim.LBFGS, {**options, **never})
    (batch,) = batches(1)
    losses, compiled = [], []
    for _ in range(5):
        losses.append(t.optimizer.step(lambda: t.gradients(batch)).item())
        compiled.append(metrics.counter_value("UncachedCompile"))
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
    assert compiled[-1] == compiled[-2] == compiled[-3]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["sgd momentum", "adam", "adamw", "adagrad", "rmsprop"])
def test_other_dtypes(name, dtype):
    optimizer_class, options = OPTIMIZERS[name]
    torch.manual_seed(0)
    shapes = [(3, 4), (5,), ()]
    start = [torch.randn(s).to(dtype) for s in shapes]
    gradients = [[torch.randn(s).to(dtype) for s in shapes] for _ in range(3)]
    results = []
    for device in ("cpu", DEVICE):
        parameters = [torch.nn.Parameter(t.clone().to(device)) for t in start]
        # On the CPU too, so that each step rounds once.
        fused = {"fused": True} if name.split()[0].rstrip("w") in FUSED else {}
        optimizer = optimizer_class(parameters, **options, **fused)
        for step in gradients:
            for p, g in zip(parameters, step, strict=True):
                p.grad = g.to(device)
            optimizer.step()
        results.append([p.detach() for p in parameters])
    assert_same(results[1], results[0])


# --- what a step costs --------------------------------------------------------------------------


def transfers() -> int:
    data = metrics.metric_data("TransferFromDeviceTime")
    return data[0] if data else 0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steady_steps_neither_compile_nor_read_back(name):
    optimizer_class, options = OPTIMIZERS[name]
    if name == "asgd":  # Otherwise PyTorch's own reads the step count, on every device.
        options = {**options, "capturable": True}
    t = Training(DEVICE, optimizer_class, options)
    data = [tuple(x.to(DEVICE) for x in batch) for batch in batches(12)]
    warm = 7  # RAdam changes its formula after five steps.
    for batch in data[:warm]:
        t.step(batch)
    compiled, read = metrics.counter_value("UncachedCompile"), transfers()
    for batch in data[warm:]:
        t.step(batch)
    assert metrics.counter_value("UncachedCompile") == compiled
    assert transfers() == read


@pytest.mark.parametrize("name", ["sgd momentum", "adam", "adamw", "adagrad"])
def test_default_is_one_fused_operator(name):
    optimizer_class, options = OPTIMIZERS[name]
    t = Training(DEVICE, optimizer_class, options)
    t.step(batches(1)[0])
    t.gradients(batches(1)[0])
    metrics.clear_counters()
    t.optimizer.step()
    recorded = {n: metrics.counter_value(n) for n in metrics.counter_names() if "xla::" in n}
    fused = f"xla::_fused_{name.split()[0]}_"
    assert recorded.pop(fused) == 1
    assert set(recorded) <= {"xla::_foreach_add_"}, recorded


def test_user_choice_is_kept():
    t = Training(DEVICE, torch.optim.AdamW, {"foreach": True})
    t.step(batches(1)[0])
    assert not t.optimizer.param_groups[0]["fused"]
    t = Training(DEVICE, torch.optim.AdamW, {"fused": False})
    t.step(batches(1)[0])
    assert t.optimizer.param_groups[0]["fused"] is False
    t = Training("cpu", torch.optim.AdamW, {})
    t.step(batches(1)[0])
    assert t.optimizer.param_groups[0]["fused"] is None
    state = next(iter(t.optimizer.state.values()))
    assert state["step"].device.type == "cpu"


SCHEDULERS = {
    "step": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40),  # betas, momentum too
    "linear": lambda o: lr_scheduler.LinearLR(o, 0.1),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda e: 0.95**e),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", ["sgd momentum", "adamw", "rmsprop"])
def test_schedulers_do_not_recompile(name, scheduler):
    optimizer_class, options = OPTIMIZERS[name]
    cpu = Training("cpu", optimizer_class, options, SCHEDULERS[scheduler])
    xla = Training(DEVICE, optimizer_class, options, SCHEDULERS[scheduler])
    for step, batch in enumerate(batches(8)):
        if step == 3:
            compiled = metrics.counter_value("UncachedCompile")
        cpu.step(batch)
        xla.step(batch)
    assert metrics.counter_value("UncachedCompile") == compiled
    assert_same(xla.parameters(), cpu.parameters(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device_of_lr", ["cpu", DEVICE])
@pytest.mark.parametrize("name", ["sgd momentum", "adam", "adagrad"])
def test_tensor_learning_rate(name, device_of_lr):
    optimizer_class, options = OPTIMIZERS[name]
    cpu = Training("cpu", optimizer_class, options)
    lr = torch.tensor(options["lr"], device=device_of_lr)
    fused = {"fused": True} if name == "adagrad" else {}
    xla = Training(DEVICE, optimizer_class, {**options, "lr": lr, **fused})
    for step, batch in enumerate(batches(6)):
        if step == 3:
            cpu.optimizer.param_groups[0]["lr"] *= 0.5
            xla.optimizer.param_groups[0]["lr"].mul_(0.5)
        cpu.step(batch)
        xla.step(batch)
    assert_same(xla.parameters(), cpu.parameters(), rtol=1e-4, atol=1e-5)


# --- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(set_to_none):
    t = Training(DEVICE, torch.optim.SGD, {"lr": 0.1})
    t.step(batches(1)[0])
    t.optimizer.zero_grad(set_to_none=set_to_none)
    for p in t.model.parameters():
        assert (p.grad is None) if set_to_none else (p.grad.cpu().abs().sum() == 0)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf"), 3.0])
@pytest.mark.parametrize("max_norm", [0.05, 100.0])
def test_clip_grad_norm(norm_type, max_norm):
    cpu = Training("cpu", torch.optim.SGD, {"lr": 0.1})
    xla = Training(DEVICE, torch.optim.SGD, {"lr": 0.1})
    (batch,) = batches(1)
    cpu.gradients(batch)
    xla.gradients(batch)
    torch_xla.sync()
    read = transfers()
    norms = [
        torch.nn.utils.clip_grad_norm_(t.model.parameters(), max_norm, norm_type)
        for t in (xla, cpu)
    ]
    torch_xla.sync()
    assert transfers() == read
    assert_same(norms[0], norms[1])
    assert_same([p.grad for p in xla.model.parameters()], [p.grad for p in cpu.model.parameters()])


def test_clip_grad_norm_records_few_nodes():
    parameters = [torch.nn.Parameter(torch.ones(3, 3, device=DEVICE)) for _ in range(50)]
    for p in parameters:
        p.grad = torch.ones(3, 3, device=DEVICE)
    metrics.clear_counters()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    nodes = sum(metrics.counter_value(n) for n in metrics.counter_names() if "xla::" in n)
    assert nodes < 15


def test_clip_grad_value():
    cpu = Training("cpu", torch.optim.SGD, {"lr": 0.1})
    xla = Training(DEVICE, torch.optim.SGD, {"lr": 0.1})
    (batch,) = batches(1)
    for t in (cpu, xla):
        t.gradients(batch)
        torch.nn.utils.clip_grad_value_(t.model.parameters(), 0.01)
    assert_same([p.grad for p in xla.model.parameters()], [p.grad for p in cpu.model.parameters()])


# --- state --------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", DEVICE])
@pytest.mark.parametrize("source", ["cpu", DEVICE])
@pytest.mark.parametrize("name", ["sgd momentum", "adamw", "adagrad", "rmsprop", "nadam"])
def test_state_dict_between_devices(name, source, target):
    optimizer_class, options = OPTIMIZERS[name]
    reference = Training("cpu", optimizer_class, options)
    first = Training(source, optimizer_class, options)
    data = batches(8)
    for batch in data[:4]:
        reference.step(batch)
        first.step(batch)
    file = io.BytesIO()
    torch.save([first.model.state_dict(), first.optimizer.state_dict()], file)
    file.seek(0)
    model_state, optimizer_state = torch.load(file, map_location="cpu")
    assert optimizer_state["param_groups"][0].get("fused") is None
    second = Training(target, optimizer_class, options)
    second.model.load_state_dict(model_state)
    second.optimizer.load_state_dict(optimizer_state)
    for batch in data[4:]:
        reference.step(batch)
        second.step(batch)
    assert_same(
        [p.to(DEVICE) for p in second.parameters()],
        reference.parameters(),
        rtol=1e-4,
        atol=1e-5,
    )


def test_deepcopy_of_an_optimizer_and_model():
    t = Training(DEVICE, torch.optim.AdamW, {"lr": 1e-2})
    data = batches(4)
    for batch in data[:2]:
        t.step(batch)
    clone = copy.deepcopy(t)
    for batch in data[2:]:
        t.step(batch)
        clone.step(batch)
    for a, b in zip(clone.parameters(), t.parameters(), strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu())


def test_parameter_without_gradient_in_some_steps():
    results = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(1)
        a, b = (torch.nn.Parameter(torch.randn(3).to(device)) for _ in range(2))
        optimizers = [
            torch.optim.SGD([a, b], lr=0.1, momentum=0.9),
            torch.optim.AdamW([a, b], lr=0.1),
        ]
        for step in range(6):
            for p in (a, b):
                p.grad = None
            (a.square().sum() if step < 3 else (a * b).sum()).backward()
            for optimizer in optimizers:
                optimizer.step()
        results.append([a.detach(), b.detach()])
    assert_same(results[1], results[0], rtol=1e-5, atol=1e-6)


def test_groups_with_options_of_their_own():
    results = []
    for device in ("cpu", DEVICE):
        model = make_model().to(device)
        optimizer = torch.optim.AdamW(
            [
                {"params": [model[0].weight], "lr": 0.05},
                {"params": [model[0].bias], "weight_decay": 0.5},
            ],
            lr=0.01,
        )
        for x, y in batches(5):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
        results.append([p.detach() for p in model.parameters()])
    assert_same(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_swa_average():
    results = []
    for device in ("cpu", DEVICE):
        t = Training(device, torch.optim.SGD, {"lr": 0.1})
        averages = [
            torch.optim.swa_utils.AveragedModel(t.model),
            torch.optim.swa_utils.AveragedModel(
                t.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
            ),
        ]
        for batch in batches(4):
            t.step(batch)
            for average in averages:
                average.update_parameters(t.model)
        results.append([p.detach() for average in averages for p in average.parameters()])
    assert_same(results[1], results[0], rtol=1e-4, atol=1e-5)


# --- loss scaling -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [None, float("inf"), float("-inf"), float("nan")])
def test_non_finite_check_and_unscale(bad, dtype):
    gradients = [torch.randn(2, 3), torch.randn(()), torch.randn(0), torch.randn(4, 1)]
    if bad is not None:
        gradients[3][2] = bad
    results = []
    for device in ("cpu", DEVICE):
        grads = [g.clone().to(device, dtype) for g in gradients]
        found, inverse = torch.zeros((), device=device), torch.full((), 0.25, device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
        results.append([*grads, found])
    assert_same(results[1], results[0])
    assert results[0][-1].item() == (bad is not None)


def test_a_found_infinity_stays_found():
    found = torch.ones((), device=DEVICE)
    grads = [torch.ones(2, device=DEVICE)]
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.ones((), device=DEVICE))
    assert found.item() == 1


@pytest.mark.parametrize("scale", [8.0, 3e38])  # a scale never grows to infinity
@pytest.mark.parametrize("found", [0.0, 1.0, 2.0])
def test_update_scale(scale, found):
    results = []
    for device in ("cpu", DEVICE):
        s = torch.full((), scale, device=device)
        tracker = torch.zeros((), dtype=torch.int32, device=device)
        history = []
        for _ in range(3):
            torch._amp_update_scale_(s, tracker, torch.full((), found, device=device), 2.0, 0.5, 2)
            history += [s.clone(), tracker.clone()]
        results.append(history)
    assert_same(results[1], results[0])


@pytest.mark.parametrize("name", ["sgd momentum", "sgd nesterov"])
def test_momentum_begins_in_different_steps(name):
    optimizer_class, options = OPTIMIZERS[name]
    results = []
    for device in ("cpu", DEVICE):
        a, b = (torch.nn.Parameter(torch.ones(2, device=device)) for _ in range(2))
        fused = {"fused": True} if device == DEVICE else {}
        optimizer = optimizer_class([a, b], **options, **fused)
        for step in range(4):
            a.grad = torch.ones_like(a)
            b.grad = torch.ones_like(b) if step > 1 else None
            optimizer.step()
        results.append([a.detach(), b.detach()])
    assert_same(results[1], results[0])


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_fused_parameters_that_share_memory(name):
    def trained(device):
        whole = torch.arange(6.0).to(device)
        parameters = [torch.nn.Parameter(whole[:4]), torch.nn.Parameter(whole[2:])]
        optimizer = getattr(torch.optim, name)(parameters, lr=0.1, weight_decay=0.5, fused=True)
        for step in range(3):
            for p in parameters:
                p.grad = torch.full_like(p, 1.0 + step)
            optimizer.step()
        return [whole, *(p.detach() for p in parameters)]

    assert_same(trained(DEVICE), trained("cpu"))


@pytest.mark.parametrize("momentum", [{}, {"momentum": 0.9, "nesterov": True}])
def test_a_step_that_is_differentiated_takes_no_lists(momentum):
    """Gradients of lists keep parameters, which the step then writes."""
    given, slope = torch.linspace(-1, 1, 12), torch.linspace(2, 1, 12)
    found = []
    for device in ("cpu", "xla"):
        inputs = [t.to(device).requires_grad_() for t in (given, slope)]
        p = inputs[0].clone()
        p.grad = inputs[1].clone()
        options = {"lr": 0.1, "weight_decay": 0.5, "differentiable": True, **momentum}
        torch.optim.SGD([p], **options).step()
        found.append([t.cpu() for t in (p, *torch.autograd.grad(p.square().sum(), inputs))])
    torch.testing.assert_close(found[1], found[0])
