"""`import torch_xla`: what it gives, and that it has no side effect.

Units: _src/setup, _src/submodules, _src/patches/after_import.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tomllib
import torch

import torch_xla
from torch_xla import _XLAC, version

ROOT = Path(__file__).resolve().parents[2]


def test_version_is_that_of_torch_and_of_the_distribution():
    release = torch.__version__.partition("+")[0]
    assert torch_xla.__version__.partition("+")[0] == release
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert version.DISTRIBUTION_VERSION == project["version"]


@pytest.mark.parametrize(
    "torch_version, expected",
    [
        ("2.13.0", "2.13.0"),
        ("2.13.0+cpu", "2.13.0"),
        ("2.12.1+cu130", "2.12.1+torch.xla.2.13.0"),
        ("2.14.0a0+git12345", "2.14.0a0+torch.xla.2.13.0"),
    ],
)
def test_version_with_other_releases_of_torch(torch_version, expected):
    assert version._version(torch_version) == expected


def test_the_cpp_library_is_the_one_of_pytorch():
    """A copy in the extension has locales of its own, at which streams fail."""
    assert b"\0libstdc++.so.6\0" in Path(_XLAC.__file__).read_bytes()


def test_import_has_no_side_effect(run_python):
    run_python(
        """
        import os, threading
        import torch
        variables, threads = dict(os.environ), threading.active_count()
        state = torch.get_rng_state()
        files = set(os.listdir("/proc/self/fd"))
        import torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.runtime as xr
        import torch_xla.distributed.parallel_loader
        import torch_xla.debug.metrics as met
        assert not torch_xla._XLAC._xla_is_initialized()
        assert dict(os.environ) == variables
        assert threading.active_count() == threads
        assert torch.equal(torch.get_rng_state(), state)
        assert set(os.listdir("/proc/self/fd")) == files
        # Nor do calls that libraries make whether or not they use a device.
        xm.mark_step()
        torch_xla.sync()
        xm.wait_device_ops()
        torch.manual_seed(3)
        xm.set_rng_state(3)
        assert xm.get_rng_state() == 3
        assert xr.device_type() is not None
        assert xr.world_size() == 1 and xr.global_ordinal() == 0
        assert xm.is_master_ordinal()
        assert torch.xla.is_available() and not torch.xla.is_initialized()
        met.metrics_report()
        assert not torch_xla._XLAC._xla_is_initialized()
        assert dict(os.environ) == variables
        import sys
        assert not any("xla_cpu_pjrt" in line for line in open("/proc/self/maps"))
        """,
        env={"PJRT_DEVICE": "CPU"},
    )


def test_import_of_the_package_is_quick_and_small(run_python):
    """The limit is loose: what is asserted is that nothing big is imported with it."""
    done = run_python(
        """
        import sys, time
        import torch
        before = set(sys.modules)
        start = time.perf_counter()
        import torch_xla
        seconds = time.perf_counter() - start
        new = {name for name in set(sys.modules) - before}
        packages = ("numpy", "sympy", "scipy", "pkg_resources")
        big = {name for name in new if name.split(".")[0] in packages}
        big |= {name for name in new if name.startswith(("torch._dynamo", "torch._inductor"))}
        big |= {name for name in new if name.startswith("importlib.metadata")}
        assert not big, big
        print(len(new), round(seconds, 3))
        """
    )
    modules, seconds = done.stdout.split()
    print(f"import torch_xla: {seconds} s after torch, {modules} modules")
    assert int(modules) < 45


def test_submodules_are_there_after_a_plain_import(run_python):
    run_python(
        """
        import torch, torch_xla
        torch_xla.runtime.world_size
        torch_xla.core.xla_model.xla_device
        torch_xla.debug.metrics.metrics_report
        torch_xla.distributed.parallel_loader.MpDeviceLoader
        torch_xla.distributed.xla_multiprocessing.spawn
        torch_xla.experimental.plugins.DevicePlugin
        torch_xla._internal.tpu.num_available_devices
        torch_xla.utils.serialization.save
        assert torch.xla.device_count is not None
        """
    )
    with pytest.raises(AttributeError, match="module 'torch_xla' has no attribute 'nothing'"):
        _ = torch_xla.nothing
    assert not hasattr(torch_xla, "nothing")


def test_missing_extension_is_explained(run_python, tmp_path):
    package = tmp_path / "torch_xla"
    package.mkdir()
    for path in (ROOT / "torch_xla").glob("*.py"):
        (package / path.name).write_text(path.read_text())
    done = run_python("import torch_xla", env={"PYTHONPATH": str(tmp_path)}, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert re.match(
        r"ImportError: torch_xla: expected the extension torch_xla/_XLAC, built for torch 2\..*"
        r"Install torch_xla again",
        last,
    )
