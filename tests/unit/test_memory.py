"""Memory: parameters exist once, what a step made ends with it, and nothing grows with steps."""

from __future__ import annotations

import gc
import pathlib
import resource
import subprocess
import sys

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr
from torch_xla import _XLAC


def mlp(width: int = 64) -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
    return model, torch.randn(8, width)


def cnn() -> tuple[nn.Module, torch.Tensor]:
    """Convolutions and the optimizer run PyTorch's kernels, in parts."""
    convolutions = [nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3)]
    head = [nn.Dropout(0.1), nn.Flatten(), nn.Linear(16 * 8 * 8, 64)]
    return nn.Sequential(*convolutions, *head), torch.randn(16, 1, 12, 12)


def trainer(make=mlp, optimizer=torch.optim.AdamW):
    torch.manual_seed(0)
    model, x = make()
    model, x = model.to("xla"), x.to("xla")
    optimizer = optimizer(model.parameters(), lr=1e-3)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        return loss.detach()

    return step


def live() -> tuple[int, int]:
    """Storages, and buffers on the device."""
    gc.collect()
    created = met.counter_value("CreateDataHandles") or 0
    return _XLAC._xla_live_storages(), created - (met.counter_value("DestroyDataHandles") or 0)


def test_live_storages_and_buffers_do_not_grow():
    step = trainer()
    for _ in range(4):
        step()
    xm.wait_device_ops()
    before, programs = live(), xr.get_num_cached_compilation_graph()
    for _ in range(100):
        step()
    xm.wait_device_ops()
    assert live() == before
    assert xr.get_num_cached_compilation_graph() == programs


def test_dropped_tensors_end_with_their_buffers():
    x = torch.ones(16, device="xla")
    torch_xla.sync()
    before = live()
    y = [x * i for i in range(10)]
    z = y[3][2:].view(2, 7)
    torch_xla.sync(wait=True)
    assert live()[1] >= before[1] + 10
    del y, z
    assert live() == before
    # What was recorded and never needed ends too.
    w = x + 1
    for _ in range(10):
        w = w * 2
    del w
    torch_xla.sync()
    assert live() == before


def resident() -> int:
    return xm.get_memory_info()["bytes_used"]


@pytest.mark.process_memory
@pytest.mark.skipif(xr.device_type() != "CPU", reason="reads the memory of the process")
@pytest.mark.parametrize("make", [mlp, cnn])
def test_resident_memory_does_not_grow_with_steps(make):
    step = trainer(make)
    for _ in range(100):
        step()
    xm.wait_device_ops()
    before = resident()
    for _ in range(1000):
        step()
    xm.wait_device_ops()
    grown = resident() - before
    assert grown < 8 << 20, f"{grown / 2**20:.1f} MiB in 1000 steps"


def peak() -> int:
    """The most memory that was resident since the last `forget_peak()`."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def forget_peak() -> None:
    pathlib.Path("/proc/self/clear_refs").write_text("5")


@pytest.mark.skipif(xr.device_type() != "CPU", reason="reads the memory of the process")
@pytest.mark.parametrize("read", [False, True], ids=["sync", "read"])
def test_overwritten_parameters_are_reused(read):
    """A step over 256 MiB of state needs no second copy of it, nor does one whose loss is read."""
    p = torch.ones(1 << 26, device="xla")

    def step() -> None:
        loss = p.mean()
        p.add_(loss)
        assert not read or loss.item() > 0
        torch_xla.sync(wait=True)

    step()
    step()
    forget_peak()
    before = resident()
    step()
    assert peak() - before < 64 << 20
    assert p[5].item() == 8.0
    info = xm.get_memory_info()
    assert info["bytes_used"] > 256 << 20


def test_what_others_still_hold_is_not_reused():
    p = torch.ones(1 << 10, device="xla")
    torch_xla.sync()
    kept = p.clone()
    view = p[:4]
    torch_xla.sync()
    for _ in range(3):
        p.mul_(2.0)
        torch_xla.sync()
    assert kept[0].item() == 1.0 and view.tolist() == [8.0] * 4


def huge_pages() -> bool:
    setting = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.exists() and "[never]" not in setting.read_text()


def least_faults(run) -> int:
    """Page faults of one of several runs: the first has the compiler's."""

    def faults_of_a_run() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        run()
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    return min(faults_of_a_run() for _ in range(5))


@pytest.mark.process_memory
@pytest.mark.skipif(not huge_pages(), reason="the kernel has no transparent huge pages")
@pytest.mark.skipif(xr.device_type() != "CPU", reason="the memory of the CPU plugin")
def test_large_temporaries_come_in_huge_pages():
    """A run over 128 MiB of temporary memory does not fault for each 4 KiB of it."""
    x = torch.ones(1 << 12, 1 << 8, device="xla")
    torch_xla.sync(wait=True)

    def run() -> None:
        y = torch.softmax(x @ x.T, -1) @ x
        assert y.sum().item() > 0

    # Now and then there are 20 MiB that the products' kernels pack their operands into, which is
    # not the program's memory.
    faults = least_faults(run)
    assert faults < 8192, f"{faults} page faults"


@pytest.mark.slow
@pytest.mark.process_memory
@pytest.mark.skipif(xr.device_type() != "CPU", reason="the memory of the CPU plugin")
def test_large_temporaries_are_kept():
    """A run over 160 MiB that the run before has used maps none of it anew."""
    x = torch.ones(1 << 24, device="xla")
    torch_xla.sync(wait=True)

    def run() -> None:
        y = x.cumsum(0).sort().values
        torch_xla.sync(wait=True)
        del y

    faults = least_faults(run)
    assert faults < 40, f"{faults} page faults, where 160 MiB have 80 huge pages"


@pytest.mark.process_memory
@pytest.mark.skipif(xr.device_type() != "CPU", reason="the memory of the CPU plugin")
def test_memory_of_kernels_is_kept(tmp_path):
    """What PyTorch's kernels allocate in a run, 40 MiB here, is mapped once; in a process of its
    own, since the C library raises its limits for good."""
    script = tmp_path / "faults.py"
    script.write_text(
        "import resource, torch, torch_xla\n"
        "from torch import nn\n"
        "convs = nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)\n"
        "net = nn.Sequential(*convs, nn.Flatten(), nn.Linear(9216, 128)).to('xla')\n"
        "x = torch.ones(64, 1, 28, 28, device='xla')\n"
        "def faults():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    net.zero_grad()\n"
        "    net(x).sum().backward()\n"
        "    torch_xla.sync(wait=True)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "print(sorted(faults() for _ in range(20))[10])\n"
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 1000, f"{run.stdout} page faults a run"


@pytest.mark.process_memory
@pytest.mark.skipif(xr.device_type() != "CPU", reason="the memory of the CPU plugin")
def test_kept_memory_is_given_back_when_asked():
    x = torch.ones(1 << 26, device="xla")
    torch_xla.sync(wait=True)
    del x
    before = resident()
    torch.xla.empty_cache()
    assert before - resident() > 128 << 20
