"""The extension by the names of earlier versions: devices, tensors, settings, plugins."""

from __future__ import annotations

import logging
import os
import re
import threading

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.utils.utils as xu
from torch_xla import _XLAC, backends
from torch_xla._internal import neuron
from torch_xla._src.device import plugins


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
    unique = _XLAC._unique_id_for_ir_and_data
    assert unique(x) == unique(x.detach()) != unique(x.clone()) and unique(x).startswith("data")
    y = x + 1
    before = unique(y)
    assert before == unique(y) and before.startswith("ir")
    torch_xla.sync()
    assert unique(y).startswith("data")


def test_what_a_tensor_is():
    told = _XLAC._get_xla_tensor_debug_info
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


def test_memory_of_tensors():
    a = torch.arange(4.0)
    b = torch.ones(2, requires_grad=True)
    x, y = _XLAC._xla_tensors_from_aten([a, b], ["xla:0", "xla:0"])
    assert x.tolist() == a.tolist() and y.device.type == "xla"
    assert _XLAC._xla_tensors_from_aten([a], ["xla:0"], [None])[0].device.type == "xla"
    with pytest.raises(TypeError, match="expected an XlaShardingSpec or None"):
        _XLAC._xla_tensors_from_aten([a], ["xla:0"], [object()])
    assert _XLAC._get_xla_tensor_dimension_size(x, 0).dtype == torch.int32
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


def found(value, kind=int):
    values = []
    xu.for_each_instance(value, lambda v: isinstance(v, kind), values.append)
    return values


class Holder:
    def __init__(self, **values):
        self.__dict__.update(values)


def test_each_setting_of_the_precision_is_told(caplog):
    before = torch.get_float32_matmul_precision()
    try:
        with caplog.at_level(logging.WARNING, logger="torch_xla.backends"):
            backends.set_mat_mul_precision("high")
            backends.set_mat_mul_precision("high")
            with pytest.raises(
                ValueError, match="Invalid precision: foo. Must be one of default, high, highest"
            ):
                backends.set_mat_mul_precision("foo")
            _XLAC._xla_set_mat_mul_precision("highest")
    finally:
        torch.set_float32_matmul_precision(before)
    told = [(record.name, record.getMessage()) for record in caplog.records]
    assert told == [("torch_xla.backends", backends._WARNING_MESSAGE)] * 2
    assert backends.logger is logging.getLogger("torch_xla.backends")


def test_the_package_leaves_the_environment(monkeypatch):
    before = dict(os.environ)
    for name in ("_setup_xla_flags", "_setup_libtpu_flags", "_setup_default_env"):
        getattr(torch_xla, name)()
    assert dict(os.environ) == before
    monkeypatch.setenv("XLA_USE_FP16", "1")
    with pytest.warns(UserWarning, match="XLA_USE_FP16 is deprecated"):
        torch_xla._check_deprecated_env_var()


def test_the_environment_of_a_neuron_process(monkeypatch):
    for name in ("MASTER_ADDR", "NEURON_RT_ROOT_COMM_ID", "NEURON_RT_VISIBLE_CORES", "RANK"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    names = ("NEURON_PJRT_PROCESS_INDEX", "NEURON_PJRT_PROCESSES_NUM_DEVICES", "PJRT_DEVICE")
    for name in (*names, "NEURON_LIBRARY_PATH", "ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("MASTER_ADDR", "fe80::1")
    monkeypatch.setenv("NEURONCORE_NUM_DEVICES", "3")
    plugin = neuron.NeuronPlugin()
    assert plugin.physical_chip_count() == 3
    assert os.environ["NEURON_RT_ROOT_COMM_ID"] == "[fe80::1]:62182"
    assert os.environ["NEURON_PJRT_PROCESSES_NUM_DEVICES"] == "1,1,1"
    plugin.configure_multiprocess(2, 3)
    assert os.environ["NEURON_PJRT_PROCESS_INDEX"] == os.environ["NEURON_RT_VISIBLE_CORES"] == "2"
    plugin.prepare()
    assert os.environ["ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB"] == "50"
    with pytest.raises(RuntimeError, match="expected the package libneuronxla"):
        plugins.find("NEURON")


def test_the_library_of_an_xpu(monkeypatch, tmp_path):
    library = tmp_path / "libxpu.so"
    with pytest.raises(RuntimeError, match="expected the plugin's library at 'libxpu.so'"):
        plugins.find("XPU")
    library.write_bytes(b"")
    monkeypatch.setenv("XPU_LIBRARY_PATH", str(library))
    found = plugins.find("XPU")
    assert found.library_path == str(library) and type(found.plugin).__name__ == "XpuPlugin"
