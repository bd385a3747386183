"""Names and habits of torch_xla 2.9 that programs rely on."""

from __future__ import annotations

import collections
import logging
import os
import sys
import unittest

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
import torch_xla.utils.utils as xu
from torch_xla import _XLAC, _patched_functions, backends
from torch_xla._internal import neuron, neuron_utils
from torch_xla._src.device import plugins
from torch_xla.distributed.parallel_loader import ParallelLoader
from torch_xla.test.test_utils import mp_test


def test_the_package_has_xm():
    assert torch_xla.xm is xm


# torch_xla.test


@pytest.mark.forks
def test_a_test_in_a_process_of_its_own(tmp_path):
    class Case(unittest.TestCase):
        @mp_test
        def test_passes(self):
            (tmp_path / "process").write_text(str(os.getpid()))

        @mp_test
        def test_fails(self):
            sys.stderr = open(os.devnull, "w")
            self.assertEqual(1, 2)

        @mp_test
        def test_exits(self):
            os._exit(7)

    assert Case.test_passes.__name__ == "test_passes"
    results = {}
    for name in ("test_passes", "test_fails", "test_exits"):
        result = unittest.TestResult()
        Case(name).run(result)
        results[name] = (result.testsRun, len(result.failures), len(result.errors))
    assert results == {"test_passes": (1, 0, 0), "test_fails": (1, 1, 0), "test_exits": (1, 1, 0)}
    assert int((tmp_path / "process").read_text()) != os.getpid()
    assert mp_test(lambda status: os._exit(status))(3) == 3


# torch_xla.utils


def found(value, kind=int):
    values = []
    xu.for_each_instance(value, lambda v: isinstance(v, kind), values.append)
    return values


class Holder:
    def __init__(self, **values):
        self.__dict__.update(values)


def test_what_is_inside_is_visited_in_order_and_once():
    holder = Holder(a=3, b=[4, {7: 8}])
    assert found({1: 2, 30: [40, holder, holder], "k": (6, {9})}) == [
        1,
        2,
        30,
        40,
        3,
        4,
        7,
        8,
        6,
        9,
    ]
    assert found({"b": {"c": "d"}, "a": ["e"]}, str) == ["b", "c", "d", "a", "e"]
    assert found([1000, int("1000")]) == [1000, 1000]  # equal, and two objects
    cycle: list = [1]
    cycle.append(cycle)
    assert found(cycle) == [1] and found(5) == [5]
    whole = []
    xu.for_each_instance({1: 2}, lambda v: True, whole.append)
    assert whole == [{1: 2}]


def test_keys_and_elements_of_sets_are_converted():
    t = torch.ones(2)
    arena = xm.ToXlaTensorArena(
        lambda tensors: [x.to("xla") for x in tensors], lambda v: isinstance(v, torch.Tensor)
    )
    given = collections.OrderedDict([("a", 1), (t, {torch.zeros(1)}), ("l", [t, (t,)])])
    made = arena.transform(given)
    assert type(made) is collections.OrderedDict and [*made][::2] == ["a", "l"]
    key = [*made][1]
    (element,) = made[key]
    assert key.device.type == element.device.type == "xla"
    assert key.tolist() == [1, 1] and element.tolist() == [0]
    assert made["l"][0] is key and made["l"][1][0] is key  # one tensor, one copy
    assert [*given] == ["a", t, "l"] and t.device.type == "cpu"


# torch_xla.backends


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


# torch_xla._internal


def test_cores_of_neuron(monkeypatch):
    def cores(text):
        monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", text)
        return neuron_utils.get_visible_cores_list()

    monkeypatch.delenv("NEURON_RT_VISIBLE_CORES", raising=False)
    assert neuron_utils.get_visible_cores_list() is None
    assert [cores("3"), cores("0-2"), cores("0,4-6")] == [[3], [0, 1, 2], [0, 4, 5, 6]]
    for text in ("3-1", "1-2-3", "a", "1,0-2", "1,"):
        with pytest.raises(ValueError, match="NEURON_RT_VISIBLE_CORES: expected"):
            cores(text)
    assert cores("4,6-7") == [4, 6, 7]
    for rank, size in ((0, 2), (3, 3), (0, 1)):
        with pytest.raises(ValueError, match="NEURON_RT_VISIBLE_CORES: expected"):
            neuron_utils.remap_visible_cores(rank, size)
    neuron_utils.remap_visible_cores(1, 3)
    assert os.environ["NEURON_RT_VISIBLE_CORES"] == "6"
    neuron_utils.remap_visible_cores(0, 1)
    assert os.environ["NEURON_RT_VISIBLE_CORES"] == "6"


# The extension


def test_what_waits_of_tensors_of_any_device():
    x = torch.ones(2, device="xla") + 1
    assert _XLAC._check_tensor_need_materialization([torch.ones(2), x]) == [False, True]
    assert _XLAC._get_seed_info_id() == -127389


# The package and its modules


def test_names_of_the_package(monkeypatch):
    before = dict(os.environ)
    flags = ["--a=1", "b=2"]
    assert torch_xla._set_missing_flags(flags, (("a", 3), ("b", 4), ("c", "d"))) is flags
    assert flags == ["--a=1", "b=2", "--c=d"]
    for name in ("_setup_xla_flags", "_setup_libtpu_flags", "_setup_default_env"):
        getattr(torch_xla, name)()
    torch_xla._summarize_fn_tracker()
    assert torch_xla._setup_debug_env() == (torch_xla._fd, torch_xla._tmp_fname) == (-1, "")
    assert dict(os.environ) == before
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    assert torch_xla._found_libtpu is torch_xla._setup_tpu_vm_library_path()
    assert torch_xla._found_libneuronxla is torch_xla._aws_ec2_inf_trn_init() is False
    monkeypatch.setenv("XLA_USE_FP16", "1")
    with pytest.warns(UserWarning, match="XLA_USE_FP16 is deprecated"):
        torch_xla._check_deprecated_env_var()


def test_contexts_of_devices():
    context = xm._get_device_context()
    context.mine = 3
    assert xm._get_device_context(torch_xla.device()) is context
    assert xm._DEVICE_CONTEXTS[context.device].mine == 3
    assert isinstance(context, xm.DeviceContext)


def test_choosing_the_device_beforehand(monkeypatch):
    for chosen, expected in ((None, "CPU"), ("0", None)):
        monkeypatch.delenv("PJRT_DEVICE", raising=False)
        if chosen is not None:
            monkeypatch.setenv("PJRT_SELECT_DEFAULT_DEVICE", chosen)
        xr._maybe_select_default_device()
        assert os.environ.get("PJRT_DEVICE") == expected
    monkeypatch.setenv("PJRT_DEVICE", "other")
    xr._maybe_select_default_device()
    assert os.environ["PJRT_DEVICE"] == "other"


def test_a_loader_by_its_later_name():
    data = [torch.ones(2), torch.zeros(2)]
    loader = ParallelLoader(cpu_loader=data, devices=["xla:0"])
    assert [t.tolist() for t in loader.per_device_loader("xla:0")] == [[1, 1], [0, 0]]
    with pytest.raises(TypeError, match="expected one loader"):
        ParallelLoader(devices=["xla:0"])


def test_functions_in_the_place_of_others():
    def old(a, b=2):
        return a

    assert _patched_functions._patch_fn(old, lambda a, b=2: b)._orig is old
    with pytest.raises(RuntimeError, match=r"expected a function of \(a, b=2\)"):
        _patched_functions._patch_fn(old, lambda a: a)


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
