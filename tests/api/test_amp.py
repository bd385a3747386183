"""Mixed precision as programs use it: autocast regions, loss scaling, sync-free optimizers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl
from torch_xla import amp
from torch_xla.amp import GradScaler, autocast, syncfree

DEVICE = torch.device("xla")


def randn(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes).to(DEVICE)


def mlp() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(4)
    truth = torch.randn(6, 3, generator=generator)
    xs = [torch.randn(32, 6, generator=generator) for _ in range(count)]
    return [(x, torch.tanh(x @ truth)) for x in xs]


# --- autocast -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "region",
    [
        lambda: torch.autocast("xla"),
        lambda: torch.amp.autocast("xla", dtype=torch.bfloat16),
        lambda: torch.autocast(device_type=DEVICE.type),
        lambda: autocast(torch_xla.device()),
        lambda: autocast("xla"),
        lambda: autocast("xla:0", True, torch.bfloat16, True),
        lambda: autocast(DEVICE, enabled=True, dtype=torch.bfloat16, cache_enabled=False),
    ],
)
def test_forms(region):
    assert not torch.is_autocast_enabled("xla")
    with region():
        assert torch.is_autocast_enabled("xla")
        assert torch.get_autocast_dtype("xla") == torch.bfloat16
        assert (randn(2, 2) @ randn(2, 2)).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("xla")


def test_other_devices_are_refused():
    with pytest.raises(ValueError, match="expected an xla device, got 'cuda'"):
        autocast("cuda")


def test_unsupported_dtype_disables():
    with pytest.warns(UserWarning, match="Disabling"), autocast("xla", dtype=torch.float64):
        assert not torch.is_autocast_enabled("xla")


def test_cpu_tensors_are_left_alone():
    with autocast("xla"):
        assert (torch.randn(2, 2) @ torch.randn(2, 2)).dtype == torch.float32
    with torch.autocast("cpu"):
        assert (randn(2, 2) @ randn(2, 2)).dtype == torch.float32


def test_nested_and_disabled_regions():
    x = randn(2, 2)
    with autocast("xla"):
        assert (x @ x).dtype == torch.bfloat16
        with autocast("xla", enabled=False):
            assert (x @ x).dtype == torch.float32
            with autocast("xla", dtype=torch.float16):
                assert (x @ x).dtype == torch.float16
            assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.bfloat16
    assert (x @ x).dtype == torch.float32


def test_default_dtype_can_be_set():
    before = torch.get_autocast_dtype("xla")
    torch.set_autocast_dtype("xla", torch.float16)
    try:
        with autocast("xla"):
            assert (randn(2, 2) @ randn(2, 2)).dtype == torch.float16
    finally:
        torch.set_autocast_dtype("xla", before)


def test_decorator():
    @autocast("xla")
    def product(x):
        return x @ x

    assert product(randn(2, 2)).dtype == torch.bfloat16


def recorded(name: str) -> int:
    return met.counter_value(f"xla::{name}") or 0


def test_a_parameter_is_cast_once():
    layer = nn.Linear(4, 4, bias=False).to(DEVICE)
    x = randn(2, 4).bfloat16()

    def casts(**options) -> int:
        before = recorded("_to_copy")
        with autocast("xla", **options):
            for _ in range(3):
                layer(x)
        return recorded("_to_copy") - before

    uncached = casts(cache_enabled=False)
    assert uncached % 3 == 0
    assert 3 * casts() == uncached
    assert 3 * casts() == uncached  # the cache ends with the region


def test_gradients_under_the_cache_and_checkpointing():
    model = mlp()
    xla = copy.deepcopy(model).to(DEVICE)
    (x, y), *_ = batches(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        F.mse_loss(model(x), y).backward()
    with autocast("xla"):
        F.mse_loss(xla(x.to(DEVICE)), y.to(DEVICE)).backward()
    for a, e in zip(xla.parameters(), model.parameters(), strict=True):
        assert a.grad.dtype == torch.float32
        torch.testing.assert_close(a.grad.cpu(), e.grad, rtol=0.05, atol=0.01)
    with autocast("xla"):
        again = torch.utils.checkpoint.checkpoint(xla, x.to(DEVICE), use_reentrant=False)
    first = [p.grad.clone() for p in xla.parameters()]
    xla.zero_grad()
    F.mse_loss(again.float(), y.to(DEVICE)).backward()
    for a, e in zip(xla.parameters(), first, strict=True):
        torch.testing.assert_close(a.grad.cpu(), e.cpu(), rtol=0.05, atol=0.01)


def test_custom_functions():
    seen = []

    class Product(torch.autograd.Function):
        @staticmethod
        @amp.custom_fwd
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @amp.custom_bwd
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            seen.append((torch.is_autocast_enabled("xla"), (grad @ b.mT).dtype))
            return grad @ b.mT, a.mT @ grad

    class Wide(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="xla", cast_inputs=torch.float32)
        def forward(ctx, a):
            seen.append((torch.is_autocast_enabled("xla"), a.dtype))
            return a @ a

        @staticmethod
        @torch.amp.custom_bwd(device_type="xla")
        def backward(ctx, grad):
            return grad

    a, b = randn(2, 2).requires_grad_(), randn(2, 2).requires_grad_()
    with autocast("xla"):
        out = Product.apply(a, b)
        assert out.dtype == torch.bfloat16
        Wide.apply(out)
    out.float().sum().backward()
    assert seen == [(False, torch.float32), (True, torch.bfloat16)]
    assert a.grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_model_infers(dtype):
    """Every part of a diffusion model's denoiser: convolutions, norms, attention, embeddings."""

    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8))
            self.inlet = nn.Conv2d(4, 8, 3, padding=1)
            self.norm = nn.GroupNorm(4, 8)
            self.attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)
            self.down = nn.Conv2d(8, 8, 3, stride=2, padding=1)
            self.up = nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1)
            self.outlet = nn.Conv2d(16, 4, 3, padding=1)

        def forward(self, x, time, text):
            h = self.inlet(x) + self.time(time)[:, :, None, None]
            h = F.silu(self.norm(h))
            tokens = h.flatten(2).mT
            h = (tokens + self.attention(tokens, text, text)[0]).mT.reshape(h.shape)
            low = F.interpolate(self.up(self.down(h)), scale_factor=1.0)
            return self.outlet(torch.cat([h, low], 1))

    torch.manual_seed(0)
    model = Denoiser().eval()
    inputs = [torch.randn(2, 4, 8, 8), torch.randn(2, 8), torch.randn(2, 5, 6)]
    with torch.inference_mode():
        expected = model(*inputs)
        xla = copy.deepcopy(model).to(DEVICE, dtype)
        actual = xla(*(t.to(DEVICE, dtype) for t in inputs))
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.cpu().float(), expected, rtol=0.05, atol=0.05)


def train(
    device: str | torch.device,
    data: list[tuple[torch.Tensor, torch.Tensor]],
    optimizer_class: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    after_step: Callable[[int], None] = lambda _: None,
    dtype: torch.dtype = torch.bfloat16,
    scaler: torch.amp.GradScaler | None = None,
) -> list[float]:
    """The losses of a training under autocast."""
    model = mlp().to(device)
    optimizer = optimizer_class(model.parameters(), lr=0.02)
    kind = torch.device(device).type
    loader = pl.MpDeviceLoader(data, device) if kind == "xla" else data
    losses = []
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=dtype):
            loss = F.mse_loss(model(x), y)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.detach())
        after_step(i)
    return [loss.item() for loss in losses]


def test_training_converges_like_the_cpu():
    data = batches(60)
    compiled = []
    expected = train("cpu", data)
    actual = train(
        DEVICE, data, after_step=lambda _: compiled.append(met.counter_value("UncachedCompile"))
    )
    assert compiled[3] == compiled[-1]  # a step's program is compiled when the next one begins
    assert actual[-1] < actual[0] / 4
    torch.testing.assert_close(
        torch.tensor(actual[-10:]).mean(), torch.tensor(expected[-10:]).mean(), rtol=0.1, atol=0.01
    )


# --- loss scaling -------------------------------------------------------------------------------


def parameters(*values: float) -> list[nn.Parameter]:
    return [nn.Parameter(torch.full((2, 2), v).to(DEVICE)) for v in values]


def set_gradients(params: list[nn.Parameter], *values: float) -> None:
    for p, value in zip(params, values, strict=True):
        p.grad = torch.full_like(p, value)


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "sgd dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adam by lists": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
    "free adam": lambda p: syncfree.Adam(p, lr=0.1),
    "free adamw": lambda p: syncfree.AdamW(p, lr=0.1),
    "free sgd": lambda p: syncfree.SGD(p, lr=0.1),
    "free sgd momentum": lambda p: syncfree.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "free sgd dampening": lambda p: syncfree.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
}
# Those that read the check for infinities, once a step.
READING = {"sgd dampening", "adam by lists", "rmsprop", "free sgd dampening"}


def plain(name: str) -> Callable[..., torch.optim.Optimizer]:
    """The same optimizer of torch.optim, for the CPU."""
    return OPTIMIZERS[name.removeprefix("free ")]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_scaled_steps(name):
    """Steps with gradients that overflow at times, the first one too, against unscaled steps."""
    ours = parameters(1.0, 2.0)
    expected = [nn.Parameter(p.detach().cpu()) for p in ours]
    optimizer, reference = OPTIMIZERS[name](ours), plain(name)(expected)
    scaler = GradScaler(init_scale=8.0, growth_interval=2)
    scale, good = 8.0, 0
    for step, gradient in enumerate([float("inf"), 0.5, 1.0, float("nan"), -0.7, 0.3, 0.2]):
        scaled = scaler.scale(torch.ones((), device=DEVICE))
        # With the inverse of the scale in it, as a backward would give.
        for p, value in zip(ours, (gradient, 1.0), strict=True):
            p.grad = torch.full_like(p, value) * scaled
        scaler.step(optimizer)
        scaler.update()
        torch_xla.sync()
        if gradient == gradient and abs(gradient) != float("inf"):
            for p, value in zip(expected, (gradient, 1.0), strict=True):
                p.grad = torch.full_like(p, value)
            reference.step()
            good += 1
            if good == 2:
                scale, good = scale * 2, 0
        else:
            scale, good = scale / 2, 0
        assert scaler.get_scale() == scale, f"after step {step}"
        for a, e in zip(ours, expected, strict=True):
            torch.testing.assert_close(a.detach().cpu(), e.detach(), rtol=1e-5, atol=1e-6)


def reads() -> tuple[int, int]:
    data = met.metric_data("TransferFromDeviceTime")
    return (data[0] if data else 0, met.counter_value("aten::_local_scalar_dense") or 0)


def runs() -> int:
    data = met.metric_data("ExecuteTime")
    return data[0] if data else 0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_a_steady_step_costs(name):
    params = parameters(1.0, 2.0)
    optimizer = OPTIMIZERS[name](params)
    scaler = GradScaler(init_scale=8.0, growth_interval=3)
    for step in range(8):
        if step == 2:
            compiled, read, ran = met.counter_value("UncachedCompile"), reads(), runs()
        scaler.scale((params[0] * params[1]).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        torch_xla.sync()
    torch_xla.sync(wait=True)
    assert met.counter_value("UncachedCompile") == compiled
    transfers, items = (now - before for now, before in zip(reads(), read, strict=True))
    if name in READING:
        assert items == 6
    else:
        assert (transfers, items) == (0, 0)
        assert runs() - ran == 6


def test_gradients_can_be_clipped_between():
    results = []
    for device in ("cpu", DEVICE):
        model = mlp().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        scaler = GradScaler() if device == DEVICE else torch.amp.GradScaler("cpu")
        for x, y in batches(5):
            optimizer.zero_grad()
            scaler.scale(F.mse_loss(model(x.to(device)), y.to(device))).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            torch_xla.sync()
        results.append([p.detach().cpu() for p in model.parameters()])
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-4)


def test_zero_gradients_instead_of_skipping():
    """`use_zero_grad` reads nothing: the optimizer steps, with gradients of zero."""
    (p,) = params = parameters(1.0)
    optimizer = torch.optim.RMSprop(params, lr=0.1)
    scaler = GradScaler(init_scale=8.0, use_zero_grad=True)
    scaler.scale(torch.ones((), device=DEVICE))
    set_gradients(params, float("inf"))
    torch_xla.sync(wait=True)
    before = reads()
    scaler.step(optimizer)
    scaler.update()
    torch_xla.sync(wait=True)
    assert reads() == before
    assert scaler.get_scale() == 4.0
    torch.testing.assert_close(p.detach().cpu(), torch.ones(2, 2))


def test_disabled_scaler():
    params = parameters(1.0)
    optimizer = torch.optim.SGD(params, lr=0.5)
    scaler = GradScaler(enabled=False)
    set_gradients(params, 1.0)
    loss = torch.ones((), device=DEVICE)
    assert scaler.scale(loss) is loss
    scaler.step(optimizer)
    scaler.update()
    assert params[0][0, 0].item() == 0.5
    assert scaler.get_scale() == 1.0
    assert scaler.state_dict() == {}


def test_scaler_state():
    scaler = GradScaler(init_scale=4.0, growth_interval=2)
    params = parameters(1.0)
    optimizer = syncfree.SGD(params, lr=0.1)
    for _ in range(3):
        scaler.scale(params[0].sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    state = scaler.state_dict()
    assert state["scale"] == 8.0
    assert state["_growth_tracker"] == 1
    other = GradScaler()
    other.load_state_dict(state)
    assert other.get_scale() == 8.0
    assert pickle.loads(pickle.dumps(scaler)).get_scale() == 8.0
    scaler.update(2.0)
    assert scaler.get_scale() == 2.0


def test_an_optimizer_of_ones_own_is_asked_by_value():
    """A class that only derives from Adam may have a step that ignores the check."""

    class Mine(torch.optim.Adam):
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.data.add_(1)

    params = parameters(1.0)
    optimizer = Mine(params, lr=0.1)
    scaler = GradScaler(init_scale=2.0)
    scaler.scale(torch.ones((), device=DEVICE))
    set_gradients(params, float("inf"))
    scaler.step(optimizer)
    scaler.update()
    assert params[0][0, 0].item() == 1.0


@pytest.mark.parametrize("scaler_class", [GradScaler, lambda: torch.amp.GradScaler("xla")])
def test_training_in_float16_converges(scaler_class):
    losses = train(DEVICE, batches(40), syncfree.AdamW, dtype=torch.float16, scaler=scaler_class())
    assert losses[-1] < losses[0] / 3


# --- sync-free optimizers -----------------------------------------------------------------------

PAIRS = {
    "adam": (syncfree.Adam, torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.1, "amsgrad": True}),
    "adamw": (syncfree.AdamW, torch.optim.AdamW, {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6}),
    "sgd": (syncfree.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "sgd dampening": (syncfree.SGD, torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
}


@pytest.mark.parametrize("foreach", [None, True])
@pytest.mark.parametrize("name", PAIRS)
def test_syncfree_steps(name, foreach):
    """With `found_inf` of either value, and without."""
    free, reference, options = PAIRS[name]
    ours = parameters(1.0, 2.0)
    expected = [nn.Parameter(p.detach().cpu()) for p in ours]
    a, b = free(ours, foreach=foreach, **options), reference(expected, **options)
    for step, found in enumerate([1.0, 0.0, None, 1.0, 0.0]):
        set_gradients(ours, 0.1 * step, -1.0)
        set_gradients(expected, 0.1 * step, -1.0)
        a.step(found_inf=None if found is None else torch.full((1,), found, device=DEVICE))
        if not found:
            b.step()
        torch_xla.sync()
    for x, y in zip(ours, expected, strict=True):
        torch.testing.assert_close(x.detach().cpu(), y.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", PAIRS)
def test_syncfree_state_comes_from_and_goes_to_torch_optim(name):
    free, reference, options = PAIRS[name]
    results = []
    for first, second in [(reference, free), (free, reference), (free, free)]:
        params = parameters(1.0)
        optimizer = first(params, **options)
        set_gradients(params, 0.5)
        optimizer.step()
        state = optimizer.state_dict()
        optimizer = second(params, **options)
        optimizer.load_state_dict(state)
        for _ in range(2):
            optimizer.step()
        results.append(params[0].detach().cpu())
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


def test_syncfree_closure():
    (p,) = params = parameters(1.0)
    optimizer = syncfree.SGD(params, lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    torch.testing.assert_close(p.detach().cpu(), torch.full((2, 2), 0.8))


def test_syncfree_names():
    assert torch_xla.amp.syncfree.AdamW is syncfree.AdamW
    assert issubclass(syncfree.Adam, torch.optim.Adam)
