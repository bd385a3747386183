"""Devices, the runtime's figures and the module torch.xla.

Units: executor/run/runtime, _src/device/module, _src/device/names.
"""

from __future__ import annotations

import io
import os
import threading

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr


def test_devices_of_the_process():
    devices = torch_xla.devices()
    assert devices == [torch.device("xla", i) for i in range(len(devices))]
    assert torch_xla.device_count() == len(devices) == xm.xla_device_count()
    assert xm.get_xla_supported_devices() == [str(d) for d in devices]
    assert len(torch_xla.real_devices()) == len(devices)
    assert torch_xla.device() == torch.device("xla:0") == xm.xla_device()
    assert torch_xla.device(0) == devices[0] == xm.xla_device(0) == xm.xla_device(n=0)


def test_device_that_is_not_there():
    count = torch_xla.device_count()
    with pytest.raises(IndexError, match=rf"expected an index from 0 to {count - 1}, got {count}"):
        torch_xla.device(count)
    with pytest.raises(IndexError, match=f"got {-count - 1}"):
        xm.xla_device(-count - 1)
    assert xm.xla_device(-1) == torch_xla.devices()[-1]  # positions are those of a list
    with pytest.raises(RuntimeError):
        torch.ones(2, device=f"xla:{count}")


def test_devkind():
    kind = xr.device_type()
    assert xm.xla_device(devkind=kind) == torch.device("xla:0")
    assert xm.get_xla_supported_devices(kind) == xm.get_xla_supported_devices()
    assert xm.get_xla_supported_devices(kind, max_devices=0) == []
    assert xm.get_xla_supported_devices("OTHER") == []
    with pytest.raises(RuntimeError, match=f"expected a device of type 'OTHER', got {kind}"):
        xm.xla_device(devkind="OTHER")


def test_hardware_of_a_device():
    kind = xr.device_type()
    assert xm.xla_device_hw("xla:0") == xm.xla_device_hw(torch.device("xla:0")) == kind
    assert xm.xla_real_devices(["xla:0"]) == [torch_xla.real_devices()[0]] == [f"{kind}:0"]
    with pytest.raises(RuntimeError, match="expected one of xla:0.*got 'xla:99'"):
        xm.xla_real_devices(["xla:99"])
    with pytest.raises(ValueError, match="expected an xla device, got 'cpu'"):
        xm.xla_device_hw("cpu")


def test_tensors_are_created_on_the_device():
    device = xm.xla_device()
    t1 = torch.tensor(100, device=device)
    t2 = torch.tensor(200, device=device)
    assert repr(t1 + t2) == "tensor(300, device='xla:0')"
    assert torch.randn(2, 2, device=device).device == device
    assert torch.zeros(2, device="xla").device == device
    assert xm.is_xla_tensor(t1) and not xm.is_xla_tensor(torch.ones(1))
    with torch.device("xla"):
        assert torch.ones(3).device == device


def test_runtime_of_one_process():
    count = xr.addressable_device_count()
    assert count == torch_xla.device_count()
    assert xr.local_process_count() == xr.process_count() == xr.world_size() == 1
    assert xr.local_device_count() == xr.global_device_count() == count
    assert xr.global_runtime_device_count() == count == xr.addressable_runtime_device_count()
    assert xr.global_ordinal() == xr.local_ordinal() == xr.process_index() == xr.host_index() == 0
    assert xm.get_ordinal() == xm.get_local_ordinal() == 0 and xm.xrt_world_size() == 1
    assert xm.is_master_ordinal() and xm.is_master_ordinal(local=False)
    assert not xr.is_spmd()
    assert xr.using_pjrt()
    assert xr.xla_device(0) == torch.device("xla:0")


def test_master_ip(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert xr.get_master_ip() == "127.0.0.1"
    monkeypatch.setenv("MASTER_ADDR", "10.1.2.3")
    assert xr.get_master_ip() == "10.1.2.3"


def test_spmd_in_a_process_of_several_is_refused(run_python):
    done = run_python(
        """
        import torch, torch_xla
        import torch_xla.runtime as xr
        for use in (xr.use_spmd, lambda: torch.ones(2).to("xla"), torch_xla.device_count):
            try:
                use()
            except NotImplementedError as error:
                assert "got 2 from the environment" in str(error), error
                assert "one process" in str(error), error
            else:
                raise AssertionError("was not refused")
        assert not torch_xla._XLAC._xla_is_initialized()
        """,
        env={"WORLD_SIZE": "2", "RANK": "1", "PJRT_DEVICE": "CPU", "XLA_USE_SPMD": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_process_of_several_may_import(run_python):
    run_python(
        "import torch, torch_xla; torch_xla.sync(); print(torch.ones(2).sum())",
        env={"WORLD_SIZE": "2", "PJRT_DEVICE": "CPU"},
    )


def test_set_device_type_asks_the_extension(monkeypatch):
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setattr(torch_xla._XLAC, "_xla_runtime_is_initialized", lambda: False)
    xr.set_device_type("TPU")
    assert os.environ["PJRT_DEVICE"] == "TPU"


def test_device_type_cannot_change_once_a_device_is_used(monkeypatch):
    torch_xla.devices()
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    xr.set_device_type(xr.device_type())
    with pytest.raises(RuntimeError, match="which this process uses already, got 'TPU'"):
        xr.set_device_type("TPU")


def test_old_pjrt_names_are_those_of_the_runtime():
    from torch_xla.experimental import pjrt

    assert pjrt.world_size is xr.world_size
    assert pjrt.device_type() == xr.device_type()
    assert pjrt.addressable_device_count() == xr.addressable_device_count()


def test_several_devices(run_python):
    run_python(
        """
        import threading, torch, torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.runtime as xr
        assert torch_xla.device_count() == 3 == xr.addressable_device_count()
        assert xr.local_device_count() == xr.global_runtime_device_count() == 3
        assert torch_xla.devices() == [torch.device("xla", i) for i in range(3)]
        assert torch_xla.real_devices() == ["CPU:0", "CPU:1", "CPU:2"]
        assert xm.xla_device(2) == torch.device("xla:2") == torch_xla.device(2)
        assert xm.xla_device() == torch.device("xla:0")
        a = torch.arange(3, device="xla:1")
        b = torch.arange(3, device="xla:2")
        assert (a * 2).device == torch.device("xla:1")
        assert torch.equal(a.to("xla:2") + b, torch.tensor([0, 2, 4], device="xla:2"))
        # The default device belongs to the thread.
        with torch.xla.device(1):
            assert torch.xla.current_device() == 1
            assert torch.ones(1, device="xla").device == torch.device("xla:1")
            assert torch_xla.device() == torch.device("xla:1")
            seen = []
            thread = threading.Thread(target=lambda: seen.append(torch.xla.current_device()))
            thread.start(); thread.join()
            assert seen == [0]
        assert torch.xla.current_device() == 0
        # A barrier is that of its device; a closure belongs to the device it was added for.
        order = []
        c = a + 1
        torch.xla.set_device(1)
        xm.add_step_closure(order.append, args=("one",))
        torch.xla.set_device(0)
        xm.add_step_closure(order.append, args=("zero",))
        torch_xla.sync()
        assert order == ["zero"], order
        torch.xla.set_device(1)
        torch_xla.sync()
        assert order == ["zero", "one"]
        torch.xla.set_device(0)
        xm.wait_device_ops()
        xm.wait_device_ops(["xla:1", "xla:2"])
        assert c.tolist() == [1, 2, 3]
        xm.set_rng_state(5, "xla:2")
        assert xm.get_rng_state("xla:2") == 5 != xm.get_rng_state("xla:1")
        torch.manual_seed(9)
        assert [xm.get_rng_state(f"xla:{i}") for i in range(3)] == [9, 9, 9]
        """,
        env={"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "3"},
    )


def test_default_device_type_is_chosen(run_python):
    done = run_python(
        """
        import torch, torch_xla
        import torch_xla.runtime as xr
        chosen = xr.device_type()
        assert not torch_xla._XLAC._xla_is_initialized()
        assert torch.ones(2, device="xla").sum().item() == 2
        assert xr.device_type() == chosen
        print(chosen)
        """,
        env={"PJRT_DEVICE": None, "XRT_TPU_CONFIG": "localservice;0;localhost:51011"},
    )
    assert done.stdout.strip() == "CPU"


def test_set_device_type(run_python):
    run_python(
        """
        import os
        import torch_xla.runtime as xr
        xr.set_device_type("CPU")
        assert os.environ["PJRT_DEVICE"] == "CPU" and xr.device_type() == "CPU"
        """,
        env={"PJRT_DEVICE": "TPU"},
    )


def test_the_device_type_is_that_of_the_environment(run_python):
    """Asking looks for no plugin."""
    run_python(
        """
        import torch_xla
        import torch_xla.runtime as xr
        assert xr.device_type() == "NONESUCH"
        try:
            torch_xla.device()
        except RuntimeError as error:
            assert "PJRT_DEVICE=NONESUCH" in str(error)
        else:
            raise AssertionError("there is no such plugin")
        """,
        env={"PJRT_DEVICE": "NONESUCH"},
    )


def test_no_device_is_chosen_where_the_user_is_to(run_python):
    run_python(
        """
        import os
        import torch_xla
        import torch_xla.runtime as xr
        assert xr.device_type() is None
        try:
            torch_xla.device()
        except RuntimeError as error:
            assert "PJRT_SELECT_DEFAULT_DEVICE" in str(error) and "Set PJRT_DEVICE" in str(error)
        else:
            raise AssertionError("a device was chosen")
        os.environ["PJRT_DEVICE"] = "CPU"
        assert xr.device_type() == "CPU" and str(torch_xla.device()) == "xla:0"
        """,
        env={"PJRT_DEVICE": None, "PJRT_SELECT_DEFAULT_DEVICE": "0"},
    )


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
def test_the_package_can_be_reloaded(run_python, used):
    done = run_python(
        f"""
        import importlib, io, torch, torch_xla
        x = torch.ones(2, device="xla") if {used} else None
        assert importlib.reload(torch_xla) is torch_xla
        assert importlib.reload(torch_xla) is torch_xla
        y = torch.ones(2, device="xla") + (1 if x is None else x)
        torch_xla.sync()
        assert y.tolist() == [2, 2] and torch.xla.device_count() == 1
        file = io.BytesIO()
        torch.save(y, file)
        file.seek(0)
        assert torch.load(file).device.type == "xla"
        """
    )
    assert done.stderr == ""


def test_unknown_pjrt_device(run_python):
    done = run_python(
        """
        import torch, torch_xla
        import torch_xla.core.xla_model as xm
        assert not torch.xla.is_available()
        for use in (xm.xla_device, lambda: torch.ones(1, device="xla"), torch_xla.devices):
            try:
                use()
            except RuntimeError as error:
                assert "PJRT_DEVICE=NOTADEVICE: expected CPU, CUDA" in str(error), error
            else:
                raise AssertionError("no error")
        # The process stays usable, with another choice too.
        assert torch.ones(2).sum() == 2
        import torch_xla.runtime as xr
        xr.set_device_type("CPU")
        print(torch.ones(2, device="xla").sum().item())
        """,
        env={"PJRT_DEVICE": "NOTADEVICE"},
    )
    assert done.stdout.strip() == "2.0"


def test_missing_plugin_library(run_python, tmp_path):
    done = run_python(
        "import torch, torch_xla; torch.ones(1, device='xla')",
        env={"PJRT_LIBRARY_PATH": str(tmp_path / "nothing.so")},
        check=False,
    )
    assert done.returncode == 1
    assert "PJRT_LIBRARY_PATH: expected the path of a PJRT plugin library" in done.stderr


def test_broken_plugin_library(run_python, tmp_path):
    (tmp_path / "broken.so").write_text("not a library")
    done = run_python(
        """
        import torch, torch_xla
        try:
            torch.ones(1, device="xla")
        except RuntimeError as error:
            print(error)
        """,
        env={"PJRT_LIBRARY_PATH": str(tmp_path / "broken.so"), "PJRT_DEVICE": "CPU"},
    )
    assert str(tmp_path / "broken.so") in done.stdout


def test_master_print():
    out = io.StringIO()
    xm.master_print("loss", 1, fd=out)
    xm.master_print("again", fd=out, local=True, flush=True)
    assert out.getvalue() == "loss 1\nagain\n"


# torch.xla


def test_device_module():
    module = torch.get_device_module("xla")
    assert module is torch.xla
    assert module.is_available() and module.is_initialized()
    assert module.device_count() == torch_xla.device_count()
    assert module.current_device() == 0
    assert isinstance(module.get_device_name(0), str)
    module.set_device("xla:0")
    with module.device("xla:0"), module.device(None), module.device_of(torch.ones(1)):
        assert module.current_device() == 0
    with pytest.raises(ValueError, match="expected an xla device, got 'cpu'"):
        module.set_device("cpu")
    with pytest.raises(RuntimeError):
        module.set_device(99)
    assert not module._is_in_bad_fork()
    module.empty_cache()


def test_synchronize_waits_for_what_was_recorded():
    x = torch.ones(300, 300, device="xla")
    y = x @ x
    torch.xla.synchronize()
    assert "device_data" in torch_xla._XLAC._get_xla_tensors_text([y])
    assert y[0, 0].item() == 300
    torch.xla.synchronize("xla:0")
    torch.xla.synchronize(0)


def test_current_device_in_threads():
    seen = []
    threads = [
        threading.Thread(target=lambda: seen.append(torch.xla.current_device())) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [0, 0, 0]


# Memory


def test_memory_info():
    info = xm.get_memory_info(xm.xla_device())
    assert 0 < info["bytes_used"] <= info["bytes_limit"]
    assert info["peak_bytes_used"] >= info["bytes_used"] * 0.5
    assert info["kb_total"] == info["bytes_limit"] >> 10
    assert 0 < info["kb_free"] <= info["kb_total"]
    assert info["source"] in ("plugin", "process")
    assert xm.get_memory_info("xla:0").keys() == info.keys() == xm.get_memory_info().keys()
    free, total = torch.xla.mem_get_info()
    assert 0 < free <= total == info["bytes_limit"]
    assert torch.xla.memory_allocated() > 0
    with pytest.raises(ValueError, match="expected an xla device"):
        xm.get_memory_info("cpu")


@pytest.mark.skipif(xr.device_type() != "CPU", reason="the figures of the process")
def test_memory_info_of_the_process_follows_its_memory():
    before = xm.get_memory_info()
    assert before["source"] == "process"
    block = torch.ones(1 << 26)  # 256 MB
    after = xm.get_memory_info()
    assert after["bytes_used"] - before["bytes_used"] > 200 << 20
    assert after["peak_bytes_used"] >= after["bytes_used"]
    del block
