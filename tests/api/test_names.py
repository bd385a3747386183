"""Names that programs and libraries written for earlier versions call, and what they do."""

from __future__ import annotations

import copy
import importlib
import re
import sys
import threading
import types

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr
from torch_xla import _XLAC, backends


def test_the_extension_is_also_a_module_of_its_own():
    assert importlib.import_module("_XLAC") is _XLAC is sys.modules["torch_xla._XLAC"]
    with pytest.raises(AttributeError, match="no attribute '_no_such_name'"):
        _XLAC._no_such_name  # noqa: B018


def test_names_of_environment_variables():
    from torch_xla.core import xla_env_vars

    names = {n: v for n, v in vars(xla_env_vars).items() if n.isupper()}
    assert names.pop("TPU_MESH_CTLER_ADDR") == "TPU_MESH_CONTROLLER_ADDRESS"
    assert names.pop("TPU_MESH_CTLER_PORT") == "TPU_MESH_CONTROLLER_PORT"
    assert "PJRT_DEVICE" in names and all(name == value for name, value in names.items())


def test_names_of_the_package_that_its_modules_define():
    from torch_xla import stablehlo

    assert torch_xla.save_as_stablehlo is stablehlo.save_as_stablehlo
    assert torch_xla.save_torch_model_as_stablehlo is stablehlo.save_torch_model_as_stablehlo
    with pytest.raises(AttributeError, match="module 'torch_xla' has no attribute 'no_such_name'"):
        torch_xla.no_such_name  # noqa: B018


def test_torch_xla_torch_xla():
    import torch_xla.torch_xla as names

    assert all(getattr(names, name) is getattr(torch_xla, name) for name in names.__all__)


def test_launch_runs_the_function_here():
    seen = []
    torch_xla.launch(lambda *args: seen.append(args), args=("a", 2))
    torch_xla.launch(lambda *args: seen.append(args), debug_single_process=True)
    assert seen == [(0, "a", 2), (0,)]


# Precision


def test_precision_of_products(monkeypatch):
    monkeypatch.setenv("XLA_HOST_KERNELS", "none")
    before = torch.get_float32_matmul_precision()
    try:
        x = torch.ones(3, 3, device="xla")
        for name, torchs in (("default", "medium"), ("high", "high"), ("highest", "highest")):
            backends.set_mat_mul_precision(name)
            assert backends.get_mat_mul_precision() == name == _XLAC._xla_get_mat_mul_precision()
            assert torch.get_float32_matmul_precision() == torchs
            assert f"<precision {name.upper()}>" in _XLAC._get_stablehlo([x @ x])
        _XLAC._xla_set_mat_mul_precision("high")
        assert backends.get_mat_mul_precision() == "high"
        with pytest.raises(ValueError, match="Invalid precision: medium. Must be one of"):
            backends.set_mat_mul_precision("medium")
    finally:
        torch.set_float32_matmul_precision(before)


# Collectives of one replica


def test_reductions_have_gradients():
    x = torch.tensor([[1.0, 2.0]], device="xla", requires_grad=True)
    y = xf.all_reduce(xm.REDUCE_SUM, x * 3, scale=0.5)
    z = xf.all_gather(y, dim=1)
    w = xf.AllReduceSumLayer.apply(z)
    assert w.tolist() == [[1.5, 3.0]]
    (w * torch.tensor([1.0, 10.0], device="xla")).sum().backward()
    assert x.grad.tolist() == [[1.5, 15.0]]
    assert torch.autograd.gradcheck(
        lambda t: xf.all_gather(xf.all_reduce("max", t), -1) ** 2,
        torch.randn(2, 3, dtype=torch.float64, device="xla").requires_grad_(),
    )
    with pytest.raises(ValueError, match="expected groups"):
        xf.all_reduce(xm.REDUCE_SUM, x, groups=[[0, 1]])


@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 5), (6, 4, 3, 2)])
def test_sync_batch_norm_is_a_batch_norm_here(shape):
    norm = xf.SyncBatchNorm(4, eps=1e-3, momentum=0.2)
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
    expected = kind(4, eps=1e-3, momentum=0.2)
    norm.load_state_dict(expected.state_dict())
    norm.to("xla")
    for _ in range(2):
        a = torch.randn(shape, requires_grad=True)
        x = a.detach().to("xla").requires_grad_()
        torch.testing.assert_close(norm(x).cpu(), expected(a))
        norm(x).square().sum().backward()
        expected(a).square().sum().backward()
        torch.testing.assert_close(x.grad.cpu(), a.grad)
    norm.eval(), expected.eval()
    torch.testing.assert_close(norm(x).cpu(), expected(a))
    assert "eps=0.001, momentum=0.2" in repr(norm)
    with pytest.raises(ValueError, match="at least 2 dimensions, got 1"):
        norm(torch.ones(4, device="xla"))


def test_exchanges_of_one_replica():
    x = torch.arange(4.0, device="xla").reshape(2, 2)
    for y in (
        xm.all_to_all(x, 0, 1, 1, groups=[[0]]),
        xm.collective_permute(x, [[0, 0]]),
        xm.all_gather(x, channel_id=1, use_global_device_ids=True),
        xm._all_gather_using_all_reduce(x, 1),
        xm.reduce_scatter(xm.REDUCE_SUM, x, 1.0, 0, 1, channel_id=3),
    ):
        y += 1  # a tensor of its own
        assert torch.equal(y.cpu(), torch.arange(1.0, 5).reshape(2, 2))
    assert x.sum().item() == 6
    assert xm.collective_permute(x, []).sum().item() == 0
    out = torch.zeros(2, 2, device="xla")
    assert xm.reduce_scatter(xm.REDUCE_MAX, x, 2.0, -1, 1, output=out) is out
    assert out.tolist() == [[0, 2], [4, 6]]
    for call, error, message in (
        (lambda: xm.all_to_all(x, 0, 0, 2), ValueError, "split_count.*1, got 2"),
        (lambda: xm.all_to_all(x, 2, 0, 1), IndexError, r"all_to_all.*\(2, 2\), got 2"),
        (lambda: xm.collective_permute(x, [[0, 1]]), ValueError, "replicas below 1"),
        (lambda: xm.collective_permute(x, [[0, 0], [0, 0]]), ValueError, "at most one"),
        (lambda: xm.reduce_scatter("sum", x, 1.0, 0, 4), ValueError, "shard_count.*1, got 4"),
        (lambda: xm.reduce_scatter("mean", x, 1.0, 0, 1), ValueError, "got 'mean'"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_buckets_hold_no_more_than_their_size():
    tensors = [torch.full((n << 18,), float(n), device="xla") for n in (1, 2, 5, 1, 1)]  # in MiB
    lists = []

    def double(inputs, outputs):
        lists.append(len(inputs))
        return [x * 2 for x in inputs]

    results = xm.CoalescingBuckets(double, tensors, bucket_cap_mb=3)()
    assert lists == [2, 1, 2]
    assert [r[0].item() for r in results] == [2, 4, 10, 2, 2]
    small = [torch.ones(2, device="xla") * i for i in range(3)]
    outs = [torch.zeros(2, device="xla") for _ in small]
    gathered = xm.all_gather_bucketized(small, output=outs, bucket_cap_mb=1)
    assert [a is b for a, b in zip(gathered, outs, strict=True)] == [True] * 3
    assert [o[0].item() for o in outs] == [0, 1, 2]
    scattered = xm.reduce_scatter_bucketized("sum", small, 0.5, 0, 1)
    assert [s[0].item() for s in scattered] == [0, 0.5, 1]
    for cap in (0, 1):
        xm.all_reduce_bucketized_gradients(small, 2.0, None, True, bucket_cap_mb=cap)
    assert [s[0].item() for s in small] == [0, 4, 8]
    with pytest.raises(ValueError, match="an output for each of 5 inputs, got 1"):
        xm.CoalescingBuckets(double, tensors, outs[:1])


def test_a_barrier_keeps_values_and_gradients():
    w = torch.arange(3.0, device="xla", requires_grad=True)
    i = torch.arange(4, device="xla").view(2, 2).t()
    torch_xla.sync()
    y = w * 2
    z = y.exp()  # keeps its result for backward
    versions = (w._version, z._version)
    xm.optimization_barrier_([w, z, i])
    assert (w._version, z._version) == versions and w.requires_grad and z.grad_fn is not None
    total = z.sum() + i.sum()
    text = _XLAC._get_stablehlo([total])
    barrier, after = text.index("optimization_barrier"), text.index("stablehlo.reduce")
    assert barrier < after and text.count("optimization_barrier") == 1
    total.backward()
    expected = torch.arange(3.0, requires_grad=True)
    (expected * 2).exp().sum().backward()
    torch.testing.assert_close(w.grad.cpu(), expected.grad)
    assert i.tolist() == [[0, 2], [1, 3]] and i.stride() == (1, 2)
    _XLAC._xla_optimization_barrier_([i[0]])  # of a view: the base has it
    assert i.tolist() == [[0, 2], [1, 3]] and total.item() == pytest.approx(
        (expected * 2).exp().sum().item() + 6
    )
    xm.optimization_barrier_([])
    with pytest.raises(RuntimeError, match="device|xla"):
        xm.optimization_barrier_([w, torch.ones(2)])


def test_replicas_and_their_devices():
    assert xm.xla_rendezvous(b"a", tag="here") == [b"a"]
    assert xm.xla_replication_devices() == xm.xla_real_devices() == ["CPU:0"]
    xm.set_replication(xm.xla_device(), ["CPU:0"])
    xm.set_replication(xm.xla_device(), None)
    with pytest.raises(NotImplementedError, match="expected one device, got 2"):
        xm.set_replication("xla:0", ["CPU:0", "CPU:1"])
    assert xm.xla_device_kind() == xm.xla_device_kind("xla:0") == "cpu"
    assert xm._xla_real_device("xla:0") == "CPU:0"


def test_random_state_is_put_back():
    xm.set_rng_state(5)
    before = xm.get_rng_state()
    with xm.fork_rng():
        first = torch.rand(3, device="xla").tolist()
    assert xm.get_rng_state() == before
    with pytest.raises(KeyError), xm.fork_rng("xla:0"):
        assert torch.rand(3, device="xla").tolist() == first
        raise KeyError
    assert xm.get_rng_state() == before
    with xm.fork_rng(enabled=False):
        torch.rand(3, device="xla")
    assert xm.get_rng_state() != before


def test_step_closures_by_hand():
    seen = []
    xm.add_step_closure(seen.append, args=(1,))
    xm._run_step_closures()
    assert seen == [1]


# The runtime


def test_attributes_of_devices():
    (device,) = xr.global_runtime_device_attributes()
    assert device["name"] == "CPU:0" and xr.runtime_device_attributes("xla:0") == device
    assert xr.is_bf16_supported()


def test_devices_by_the_extensions_names(run_python):
    run_python(
        """
        import torch, torch_xla
        from torch_xla import _XLAC
        assert not _XLAC._xla_runtime_is_initialized()
        assert not _XLAC._xla_get_spmd_config_is_locked()
        _XLAC._init_xla_lazy_backend()
        _XLAC._init_computation_client()
        assert _XLAC._xla_runtime_is_initialized()
        assert _XLAC._xla_get_spmd_config_is_locked()
        names = ["CPU:0", "CPU:1", "CPU:2"]
        assert _XLAC._xla_real_devices() == _XLAC._xla_real_devices(["xla:0", "xla:1", "xla:2"])
        assert _XLAC._xla_real_devices(["xla:2"]) == ["CPU:2"]
        assert _XLAC._xla_get_all_devices() == _XLAC._xla_get_runtime_devices() == names
        assert _XLAC._xla_get_all_runtime_devices() == names
        assert [d["name"] for d in _XLAC._xla_get_all_device_attributes()] == names
        assert _XLAC._xla_num_runtime_devices() == 3
        assert _XLAC._xla_get_default_device_ordinal() == 0
        assert _XLAC._xla_set_default_device("xla:1") == "xla:1"
        assert _XLAC._xla_get_default_device_ordinal() == 1
        assert _XLAC._xla_get_device_ordinal("xla:2") == 2
        assert _XLAC._xla_get_device_hw_type(torch.ones(1, device="xla")) == "CPU"
        assert _XLAC._xla_device_kind() == "cpu" and _XLAC._xla_get_platform_version()
        assert (_XLAC._xla_get_num_processes(), _XLAC._xla_get_process_index()) == (1, 0)
        assert _XLAC._xla_get_replication_devices() == []
        assert _XLAC._xla_get_replication_devices_count() == 0
        assert not _XLAC._xla_get_auto_sharding()
        assert not _XLAC._xla_computation_cache_is_initialized()
        (torch.ones(2, device="xla") + 1).tolist()
        assert _XLAC._xla_computation_cache_is_initialized()
        assert _XLAC._xla_get_num_cached_compilation_graph() == 1
        _XLAC._prepare_to_exit()
        """,
        env={"CPU_NUM_DEVICES": "3"},
    )


def test_spmd_by_the_extensions_name(run_python):
    run_python(
        """
        import torch_xla
        from torch_xla import _XLAC
        _XLAC._xla_force_spmd_device()
        assert torch_xla.runtime.is_spmd() and torch_xla.device_count() == 2
        assert _XLAC._xla_real_devices(["xla:0"]) == ["CPU:0", "CPU:1"]
        """,
        env={"CPU_NUM_DEVICES": "2"},
    )


# Tensors, by the extension's names


def test_barriers_by_the_extensions_names():
    x = torch.ones(3, device="xla")
    torch_xla.sync(wait=True)
    y = x + 1
    assert _XLAC._check_tensor_need_materialization([x, y]) == [False, True]
    _XLAC._xla_sync_live_tensors("xla:0", [], wait=True)
    assert _XLAC._check_tensor_need_materialization([y]) == [False]
    met.clear_all()
    z = y * 2
    _XLAC._xla_step_marker("xla:0", [], wait=True, reset_scope=True)
    assert met.counter_value("MarkStep") == 1
    assert _XLAC._check_tensor_need_materialization([z]) == [False]
    _XLAC._xla_increment_counter("test::counter", 3)
    assert met.counter_value("test::counter") == 3
    z.nonzero()
    assert "aten::nonzero" in _XLAC._get_executed_fallback_ops()


def test_identity_of_tensors_and_data():
    x = torch.ones(2, 3, device="xla")
    torch_xla.sync()
    assert _XLAC._xla_get_tensor_view_alias_id(x[0]) == _XLAC._xla_get_tensor_id(x)
    unique = _XLAC._unique_id_for_ir_and_data
    assert unique(x) == unique(x.detach()) != unique(x.clone()) and unique(x).startswith("data")
    y = x + 1
    before = unique(y)
    assert before == unique(y) and before.startswith("ir")
    torch_xla.sync()
    assert unique(y).startswith("data")


def test_what_a_tensor_is():
    told = _XLAC._get_xla_tensor_debug_info
    assert told(torch.ones(2)) == "Not a XLATensor\n"
    x = torch.ones(3, 4).to("xla")
    torch_xla.sync()

    def lines(tensor):
        text = told(tensor)
        assert text.startswith("XLATensor {\n") and text.endswith("}\n")
        found = text.splitlines()[1:-1]
        tensor_id, alias_id = (line.split(": ")[1] for line in found[:2])
        assert found[:2] == [f"TensorID: {tensor_id}", f"AliasID: {alias_id}"]
        return found[2:], tensor_id

    device = "Device: CPU:0"
    waiting, id_of_waiting = lines(x + x)
    assert waiting == [
        device,
        "XLA Shape: f32[3,4]",
        "ShardingSpec: None",
        "IR: [] aten::add, xla_shape=f32[3,4]{1,0}, dynamic_dims: ()",
        "XLAData: None",
        "Tensor on host: None",
    ]
    data, id_of_data = lines(x)
    assert data[:4] == [device, "XLA Shape: f32[3,4]", "ShardingSpec: None", "IR: None"]
    assert data[4:7] == ["XLAData: ", f"  Data {device}", "  Data Shape: f32[3,4]"]
    assert re.fullmatch(r"  Data Handle: \d+", data[7]) and data[8:] == ["Tensor on host: None"]
    assert lines(x)[1] == id_of_data != id_of_waiting
    values = lines((x * 2).max(0)[0])[0]
    assert "IR: [] aten::max, num_outputs=2, xla_shape=(f32[4]{0}, s64[4]{0})" in values[3]
    assert "XLA Shape: c64[]" in lines(torch.ones((), dtype=torch.complex64, device="xla"))[0]


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.float32, "f32"), (torch.bool, "i1"), (torch.int64, "i64")]
)
def test_types_on_the_device(dtype, name):
    assert _XLAC._get_xla_tensor_shape_type(torch.ones(2, device="xla").to(dtype)) == name


def test_memory_of_tensors():
    a = torch.arange(4.0)
    b = torch.ones(2, requires_grad=True)
    x, y = _XLAC._xla_tensors_from_aten([a, b], ["xla:0", "xla:0"])
    assert x.tolist() == a.tolist() and y.device.type == "xla"
    assert _XLAC._xla_tensors_from_aten([a], ["xla:0"], [None])[0].device.type == "xla"
    with pytest.raises(TypeError, match="expected an XlaShardingSpec or None"):
        _XLAC._xla_tensors_from_aten([a], ["xla:0"], [object()])
    size = _XLAC._get_xla_tensor_dimension_size(x.view(2, 2), 1)
    assert size.dtype == torch.int32 and size.shape == () and size.item() == 2
    back = _XLAC._from_dlpack(_XLAC._to_dlpack(x))
    assert back.device.type == "xla" and back.tolist() == a.tolist()
    x += 1
    pointer = _XLAC._unsafe_buffer_pointer(x)
    assert pointer == torch.utils.dlpack.from_dlpack(_XLAC._to_dlpack(x)).data_ptr() != 0
    assert _XLAC._replace_xla_tensor(x, y) is x
    y += 1
    assert x.tolist() == [2, 2]


def test_ir_debug_by_the_extensions_names(monkeypatch):
    monkeypatch.delenv("XLA_IR_DEBUG", raising=False)
    monkeypatch.setenv("XLA_IR_DEBUG", "0")
    x = torch.ones(2, device="xla")

    def next_to(x):
        return x + 1

    for enable in (True, False):
        _XLAC._set_ir_debug(enable)
        assert _XLAC._get_ir_debug() is enable
        text = _XLAC._get_xla_tensors_text([next_to(x)])
        assert __file__ in text
        assert (" < " in text) is enable  # the whole stack, or the innermost frame


def test_plugins_by_the_extensions_names():
    from torch_xla.experimental import plugins

    class Mine(_XLAC.PjRtPlugin):
        def library_path(self):
            return "/nowhere/mine.so"

    plugin = Mine()
    assert isinstance(plugin, plugins.DevicePlugin) and not plugin.requires_xla_coordinator()
    _XLAC._register_pjrt_plugin("test_mine", plugin)
    try:
        assert plugins._plugin_registry.pop("TEST_MINE") is plugin
    finally:
        plugins._plugin_registry.pop("TEST_MINE", None)
    assert set(_XLAC._get_git_revs()) == {"torch", "xla"}


def test_callbacks_when_a_tensor_is_ready():
    from torch_xla.experimental import callback

    x = torch.ones(400, 400, device="xla")
    torch_xla.sync()
    other = x + 1
    y = x
    for _ in range(10):
        y = y @ x / 400
    seen, done = [], threading.Event()
    callback.on_ready_callback(y, lambda t: (seen.append(t[0, 0].item()), done.set()))
    assert done.wait(30) and seen == [1.0]
    assert "aten::add" in _XLAC._get_xla_tensors_text([other])  # has nothing to do with it
    event = callback.on_ready_event(y * 2)
    assert event.wait(30)
    direct = threading.Event()
    _XLAC._on_ready_callback(y * 3, direct.set)
    assert direct.wait(30)


# Deprecation


def test_deprecated_names_warn_once(caplog):
    from torch_xla.experimental import deprecation

    old = types.ModuleType("old")

    def new(a, b=2):
        """What it does."""
        return a + b

    deprecation.register_deprecated(old, new)
    renamed = deprecation.deprecated(old, new, old_name="former", extra_msg="It adds.")
    assert renamed.__doc__ == "What it does."

    @deprecation.mark_deprecated(new, extra_msg="It goes.")
    def marked(a):
        raise AssertionError("the old function is called")

    for _ in range(2):
        assert (old.new(1, b=3), renamed(1), marked(5)) == (4, 3, 7)
    assert caplog.messages == [
        f"old.new is deprecated. Use {__name__}.new instead.",
        f"old.former is deprecated. Use {__name__}.new instead. It adds.",
        f"{__name__}.marked is deprecated. Use {__name__}.new instead. It goes.",
    ]


def test_names_of_devices_are_parsed():
    from torch_xla._internal.utils import parse_xla_device

    assert parse_xla_device("TPU:13") == ("TPU", 13)
    for bad in ("TPU", "TPU:", ":1", "TPU:x"):
        with pytest.raises(ValueError, match="expected a name such as 'TPU:3'"):
            parse_xla_device(bad)


# Optimizer steps as functions


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("use_adamw", [False, True])
def test_adam_steps(use_adamw, amsgrad, maximize):
    from torch_xla.amp.syncfree import _functional

    kind = torch.optim.AdamW if use_adamw else torch.optim.Adam
    a = [torch.randn(3), torch.randn(2, 2)]
    p = [t.to("xla") for t in a]
    reference = [nn.Parameter(t.clone()) for t in a]
    options = {"weight_decay": 0.1, "eps": 1e-6, "amsgrad": amsgrad, "maximize": maximize}
    optimizer = kind(reference, lr=0.01, betas=(0.8, 0.9), **options)
    steps = [torch.zeros((), device="xla") for _ in p]
    states = [[torch.zeros_like(t) for t in p] for _ in range(3)]
    for skip in (0.0, 1.0, 0.0, 0.0):
        gradients = [torch.randn(t.shape) for t in a]
        _functional.adam_step(
            torch.tensor([skip], device="xla"),
            steps,
            p,
            [g.to("xla") for g in gradients],
            *states,
            beta1=0.8,
            beta2=0.9,
            lr=0.01,
            use_adamw=use_adamw,
            **options,
        )
        if not skip:
            for r, g in zip(reference, gradients, strict=True):
                r.grad = g
            optimizer.step()
    assert [s.item() for s in steps] == [3, 3]
    for t, r in zip(p, reference, strict=True):
        torch.testing.assert_close(t.cpu(), r.detach())


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.0, "dampening": 0.0, "nesterov": False},
        {"momentum": 0.9, "dampening": 0.0, "nesterov": True},
        {"momentum": 0.9, "dampening": 0.5, "nesterov": False},
    ],
)
def test_sgd_steps(options, maximize):
    from torch_xla.amp.syncfree import _functional

    a = [torch.randn(3), torch.randn(2, 2)]
    p = [t.to("xla") for t in a]
    reference = [nn.Parameter(t.clone()) for t in a]
    options = {**options, "weight_decay": 0.1, "maximize": maximize, "lr": 0.05}
    optimizer = torch.optim.SGD(reference, **options)
    steps = [torch.zeros((), device="xla") for _ in p]
    buffers = [None, None]
    for skip in (1.0, 0.0, 1.0, 0.0, 0.0):
        gradients = [torch.randn(t.shape) for t in a]
        _functional.sgd_step(
            torch.tensor(skip, device="xla"),
            steps,
            p,
            [g.to("xla") for g in gradients],
            buffers,
            **options,
        )
        if not skip:
            for r, g in zip(reference, gradients, strict=True):
                r.grad = g
            optimizer.step()
    for t, r in zip(p, reference, strict=True):
        torch.testing.assert_close(t.cpu(), r.detach())


def test_optimizer_steps_by_the_extensions_names():
    no = torch.zeros((), device="xla")
    sgd, adam = torch.ones(2), torch.ones(2)
    p, q = sgd.to("xla"), adam.to("xla")
    g, step, zeros = torch.ones(2, device="xla"), no.clone(), torch.zeros_like(p)
    _XLAC._xla_sgd_optimizer_step_(no, step, p, zeros, g, 0.0, 0.9, 0.5, 0.0, False, False)
    assert p.tolist() == [0.5, 0.5] and zeros.tolist() == [1, 1] and step.item() == 1
    states = [torch.zeros_like(q) for _ in range(3)]
    step = no.clone()
    _XLAC._xla_adam_optimizer_step_(
        *(no, step, q, g, *states, 0.9, 0.999, 0.1, 0.0, 1e-8, False, False, False)
    )
    torch.testing.assert_close(q.cpu(), torch.full((2,), 0.9))
    before = copy.deepcopy(q)
    _XLAC._xla_adam_optimizer_step_(
        *(no + 1, step, q, g, *states, 0.9, 0.999, 0.1, 0.0, 1e-8, False, False, True)
    )
    assert torch.equal(before.cpu(), q.cpu()) and step.item() == 1


def test_modules_of_mixed_precision():
    import torch_xla.amp.autocast_mode
    import torch_xla.amp.syncfree.adam
    import torch_xla.amp.syncfree.adamw
    import torch_xla.amp.syncfree.sgd

    assert torch_xla.amp.autocast_mode.autocast is torch_xla.amp.autocast
    for name in ("adam.Adam", "adamw.AdamW", "sgd.SGD"):
        module, _, kind = name.partition(".")
        found = getattr(getattr(torch_xla.amp.syncfree, module), kind)
        assert found is getattr(torch_xla.amp.syncfree, kind)


# Training scripts


def test_summaries(tmp_path):
    from torch_xla.test import test_utils

    calls = []
    writer = types.SimpleNamespace(
        add_scalar=lambda *args: calls.append(args),
        flush=lambda: calls.append("flush"),
        close=lambda: calls.append("close"),
    )
    met.clear_all()
    (torch.ones(2, device="xla") + 1).tolist()
    test_utils.write_to_summary(writer, 3, {"loss": 0.5})
    assert calls == [("loss", 0.5, 3)]
    test_utils.write_to_summary(writer, 4, write_xla_metrics=True)
    shown = {name: value for name, value, _ in calls[1:]}
    assert shown["ExecuteTime"] == met.metric_data("ExecuteTime")[1] > 0
    assert all(shown[name] == met.counter_value(name) for name in met.counter_names())
    test_utils.close_summary_writer(writer)
    assert calls[-2:] == ["flush", "close"]
    assert test_utils.get_summary_writer(None) is None
    test_utils.write_to_summary(None, 0, {"loss": 1.0}, write_xla_metrics=True)
    test_utils.close_summary_writer(None)
    assert test_utils._get_device_spec(xm.xla_device()) == "xla:0/0"


def test_patched_functions():
    from torch_xla import _patched_functions

    assert _patched_functions.clip_grad_norm_ is nn.utils.clip_grad_norm_
    _patched_functions._apply_patches()  # once more changes nothing
    assert _patched_functions.clip_grad_norm_ is nn.utils.clip_grad_norm_
