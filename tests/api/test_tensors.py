"""Tensors on xla behave as tensors do: interface, dtypes, moves, copies, and errors.

Units: executor/run/transfer.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

DTYPES = [
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
]


@pytest.fixture(autouse=True)
def clean():
    torch_xla.sync(wait=True)
    met.clear_all()


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device.type == "xla"
    torch.testing.assert_close(actual.cpu(), expected)


def test_sums_and_products():
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    x, y = a.to("xla"), b.to("xla")
    same(x + y, a + b)
    same(x.mm(y.t()), a.mm(b.t()))
    same(x @ y[0], a @ b[0])
    assert (x + y).device == torch.device("xla:0")


def test_modules_and_gradients():
    torch.manual_seed(0)
    layer = nn.Linear(10, 20)
    moved = copy.deepcopy(layer).to("xla")
    a = torch.randn(5, 10, requires_grad=True)
    x = a.detach().to("xla").requires_grad_()
    layer(a).sin().sum().backward()
    moved(x).sin().sum().backward()
    same(x.grad, a.grad)
    same(moved.weight.grad, layer.weight.grad)
    same(moved.bias.grad, layer.bias.grad)


def test_modules_and_inputs_of_different_devices_are_refused():
    layer = nn.Linear(10, 20)
    with pytest.raises(RuntimeError, match="cpu"):
        layer(torch.randn(5, 10, device="xla"))
    with pytest.raises(RuntimeError, match="cpu"):
        layer.to("xla")(torch.randn(5, 10))
    with pytest.raises(RuntimeError, match="xla:0"):
        torch.randn(3, device="xla") + torch.randn(3)


def test_the_interface_of_other_devices():
    def use(t):
        values, order = t.sort(dim=1, descending=True)
        return [
            *(t.abs(), t.sum(0), t.mean(), t.max(dim=1).values, t.view(6, 2), t.permute(1, 0)),
            *(t[1:, ::2], t[t > 0], t.ge(0.1), values, order, torch.cat([t, t]), t.flip(0)),
            *(t.cumsum(1), t.topk(2).values, torch.stack([t, t]), t.chunk(2, 1)[1], t.norm()),
            *(t.unsqueeze(0).squeeze(0), t.argmin(), torch.einsum("ij,kj->ik", t, t), -t, t**2),
        ]

    t = torch.randn(3, 4)
    for actual, expected in zip(use(t.to("xla")), use(t), strict=True):
        same(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_dtypes_survive_the_way_there_and_back(dtype):
    a = (torch.randn(5, 3) * 50).to(dtype)
    x = a.to("xla")
    assert x.dtype == dtype and x.shape == a.shape
    back = x.cpu()
    assert back.dtype == dtype and torch.equal(back, a)
    y = x.clone() if dtype == torch.bool else x + x
    assert y.dtype == dtype and y.cpu().dtype == dtype
    for source in (a.t(), a[::2, 1:], a[0, 0], a[:0]):
        assert torch.equal(source.to("xla").cpu(), source)
    before = met.metric_data("TransferFromDeviceTime")[0]
    y.cpu()
    assert met.metric_data("TransferFromDeviceTime")[0] == before + 1


def test_double_precision_is_kept():
    a = torch.tensor([1.0 + 2.0**-40], dtype=torch.float64)
    x = a.to("xla") * 3
    assert x.dtype == torch.float64
    assert torch.equal(x.cpu(), a * 3)


def test_integers_booleans_and_comparisons():
    a, b = torch.tensor([7, -3, 0, 2]), torch.tensor([2, 2, 0, -1])
    x, y = a.to("xla"), b.to("xla")
    for op in ("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge", "bitwise_xor", "maximum"):
        same(getattr(torch, op)(x, y), getattr(torch, op)(a, b))
    same((x > 0) & ~(y > 1), (a > 0) & ~(b > 1))
    same(torch.where(x > y, x, y * 10), torch.where(a > b, a, b * 10))
    assert bool((x == x).all()) and not (x > y).all()
    assert x.sum().item() == 6 and type(x.sum().item()) is int
    assert torch.tensor(2.5, device="xla").item() == 2.5
    assert torch.tensor(True, device="xla").item() is True


def test_numpy():
    x = torch.arange(6.0, device="xla").view(2, 3) * 2
    array = x.cpu().numpy()
    assert array.tolist() == [[0, 2, 4], [6, 8, 10]]
    same(torch.from_numpy(array.astype(np.float32)).to("xla"), x.cpu())
    with pytest.raises(TypeError, match="cpu"):
        x.numpy()


def test_strides_and_storage():
    x = torch.zeros(2, 3, device="xla")
    assert x.is_contiguous() and (x + 1).stride() == (3, 1)
    assert x.to(memory_format=torch.contiguous_format).is_contiguous()
    assert x.data_ptr() == x.untyped_storage().data_ptr() != 0  # see test_storages.py


def test_a_view_that_moves_is_a_copy():
    base = torch.zeros(4, device="xla")
    view = base[1:3]
    there = view.cpu()
    there += 5
    assert base.tolist() == [0, 0, 0, 0]
    view += 1
    assert base.tolist() == [0, 1, 1, 0] and there.tolist() == [5, 5]


def test_copies():
    x = torch.ones(3, device="xla")
    deep, copied = copy.deepcopy(x), copy.copy(x)
    x += 1
    assert deep.tolist() == copied.tolist() == [1, 1, 1]  # both have values of their own
    view = x[1:]
    view += 1
    assert x.tolist() == [2, 3, 3]


def test_weights_tied_before_the_move_stay_tied():
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    model["b"].weight = model["a"].weight
    model.to("xla")
    assert model["a"].weight is model["b"].weight


def test_operators_without_a_lowering_are_calls_of_the_program():
    a = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
    x = a.to("xla")
    values = torch.linalg.eigvalsh(x * 2) + 1
    assert "aten::_linalg_eigh" in torch_xla._XLAC._get_xla_tensors_text([values])
    same(values, torch.linalg.eigvalsh(a * 2) + 1)
    assert met.counter_value("aten::_linalg_eigh") is None


def test_losses_of_the_documentation():
    torch.manual_seed(0)
    scores, target = torch.randn(6, 4), torch.randint(4, (6,))
    for loss, wanted in (
        (nn.CrossEntropyLoss(), target),
        (nn.NLLLoss(), target),
        (nn.MSELoss(), torch.randn(6, 4)),
    ):
        a = scores.clone().requires_grad_()
        x = scores.to("xla").requires_grad_()
        loss(a, wanted).backward()
        value = loss(x, wanted.to("xla"))
        value.backward()
        same(value.detach(), loss(scores, wanted))
        same(x.grad, a.grad)


def test_rng_state_round_trip():
    xm.set_rng_state(1234)
    first = torch.rand(4, device="xla").tolist()
    state = xm.get_rng_state()
    second = torch.rand(4, device="xla").tolist()
    assert isinstance(state, int) and first != second
    xm.set_rng_state(state)
    assert torch.rand(4, device="xla").tolist() == second
    xm.set_rng_state(1234)
    assert torch.rand(4, device="xla").tolist() == first


# Metrics of what these do


def test_metrics_of_a_step():
    x = torch.ones(37).to("xla")
    torch_xla.sync()
    met.clear_all()
    for i in range(3):
        y = x * 2 - float(i)
        torch_xla.sync()
    assert met.counter_value("MarkStep") == 3
    assert met.counter_value("UncachedCompile") == 1 == met.metric_data("CompileTime")[0]
    assert met.counter_value("CachedCompile") == 2
    assert met.metric_data("ExecuteTime")[0] == 3
    assert met.counter_value("CreateDataHandles") >= 3
    assert met.counter_value("DestroyDataHandles") >= 2
    assert "Counter: CreateDataHandles" in met.metrics_report()
    y.tolist()
    torch.ones(5).to("xla")
    assert met.metric_data("TransferFromDeviceTime")[0] == 1
    assert met.metric_data("TransferToDeviceTime")[0] >= 1
    for name in ("CompileTime", "ExecuteTime", "TransferToDeviceTime", "TransferFromDeviceTime"):
        assert f"Metric: {name}" in met.short_metrics_report()


def test_values_that_are_read_are_counted():
    x = torch.tensor([0.0, 1.0, 2.0]).to("xla")
    met.clear_all()
    assert x.nonzero().tolist() == [[1], [2]]
    assert x[x > 1].tolist() == [2]  # positions of a mask
    assert met.counter_value("aten::nonzero") == 2
    assert met.executed_fallback_ops() == ["aten::nonzero"]  # a number of positions is no item()
    assert x.sum().item() == 3
    assert met.counter_value("aten::_local_scalar_dense") == 1
    assert met.executed_fallback_ops() == ["aten::_local_scalar_dense", "aten::nonzero"]
    assert "Counter: aten::nonzero\n  Value: 2\n" in met.short_metrics_report()


@pytest.mark.parametrize(
    ("name", "call"),
    {
        "aten::_unique2": torch.unique,
        "aten::unique_consecutive": torch.unique_consecutive,
        "aten::unique_dim": lambda x: torch.unique(x, dim=0),
        "aten::unique_dim_consecutive": lambda x: torch.unique_consecutive(x, dim=0),
        "aten::masked_select": lambda x: x.masked_select(x > 0),
        "aten::nonzero": lambda x: x.sum().nonzero(),
    }.items(),
)
def test_a_size_that_is_read_counts_as_its_call(name, call):
    x = torch.tensor([[0.0, 1.0], [2.0, 2.0]])
    there = x.to("xla")
    met.clear_all()
    assert torch.equal(call(there).cpu(), call(x))
    assert met.executed_fallback_ops() == [name] and met.counter_value(name) == 1


@pytest.mark.parametrize("flag", [None, "1"])
def test_zero_and_one_need_no_programs_of_their_own(monkeypatch, flag):
    """With XLA_NO_SPECIAL_SCALARS or without it."""
    if flag:
        monkeypatch.setenv("XLA_NO_SPECIAL_SCALARS", flag)
    x = torch.ones(41, device="xla")
    torch_xla.sync()
    met.clear_all()
    for number in (0, 1, 2, 0.0, 1.0, 7.5):
        y = x * float(number)
        torch_xla.sync()
        assert y[0].item() == number
        if number == 0:
            met.clear_counters()
    assert met.counter_value("UncachedCompile") is None


def test_a_long_loop_with_barriers_is_one_program():
    """As a diffusion pipeline writes it: the schedule's numbers change, the program does not."""
    latents = torch.ones(2, 4, 8, 8, device="xla")
    weight = torch.full((4, 4), 0.1, device="xla")
    for i in range(50):
        noise = torch.einsum("ij,bjhw->bihw", weight, latents)
        latents = latents - noise * (0.5 / (i + 1))
        xm.mark_step()
        if i == 2:
            met.clear_counters()
    assert met.counter_value("UncachedCompile") is None
    expected = torch.ones(2, 4, 8, 8)
    for i in range(50):
        expected = expected - torch.einsum("ij,bjhw->bihw", weight.cpu(), expected) * (
            0.5 / (i + 1)
        )
    same(latents, expected)


def test_operations_of_a_graph_are_one_execution():
    x = torch.ones(64, device="xla")
    torch_xla.sync()
    met.clear_all()
    y = x
    for _ in range(100):
        y = (y * 1.01).sin() + 0.5
    torch_xla.sync()
    assert met.metric_data("ExecuteTime")[0] == 1
    assert torch.isfinite(y.cpu()).all()


# Environment variables


def test_sync_wait_waits(monkeypatch, share_of_the_launch):
    monkeypatch.setenv("XLA_SYNC_WAIT", "1")
    # Were it not to wait, the launch would be a small part of it each time.
    assert any(share_of_the_launch() > 0.8 for _ in range(5))


def test_eager_debug_mode_runs_each_operation(run_python):
    run_python(
        """
        import torch, torch_xla
        import torch_xla.debug.metrics as met
        x = torch.ones(3, device="xla")
        before = met.metric_data("EagerOpExecuteTime")[0]
        y = x + 1
        assert met.metric_data("EagerOpExecuteTime")[0] == before + 1
        z = y * 2
        assert met.metric_data("EagerOpExecuteTime")[0] == before + 2
        assert "aten::" not in torch_xla._XLAC._get_xla_tensors_text([z])
        assert z.tolist() == [4, 4, 4]
        """,
        env={"XLA_USE_EAGER_DEBUG_MODE": "1"},
    )


def test_the_device_is_driven_by_this_process_alone(run_python):
    run_python(
        """
        import glob, torch, torch_xla
        assert (torch.ones(2, device="xla") + 1).tolist() == [2, 2]
        children = [open(path).read() for path in glob.glob("/proc/self/task/*/children")]
        assert not "".join(children).strip(), children
        """
    )


def test_fractions_do_not_fit_into_integers():
    whole = torch.ones(3, dtype=torch.int32, device="xla")
    for write in (
        lambda: whole.logit_(),
        lambda: torch.logit(torch.full((3,), 0.5, device="xla"), out=whole),
    ):
        with pytest.raises(RuntimeError, match="result type Float can't be cast to .* Int"):
            write()
    same(whole, torch.ones(3, dtype=torch.int32))
