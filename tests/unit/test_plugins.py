"""Which PJRT plugin is found, and what is said when none is."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_xla._src.device import plugins as discovery
from torch_xla.experimental import plugins

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    """No variable names a plugin, and what a test registers is forgotten."""
    for name in (
        "PJRT_DEVICE",
        "PJRT_LIBRARY_PATH",
        "PJRT_NAMES_AND_LIBRARY_PATHS",
        "TPU_LIBRARY_PATH",
        "CPU_NUM_DEVICES",
        "GPU_NUM_DEVICES",
        "PJRT_ALLOCATOR_FRACTION",
        "PJRT_ALLOCATOR_PREALLOCATE",
        "PJRT_ALLOCATOR_CUDA_ASYNC",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(discovery, "_registered", {})


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Makes files in a folder of installed packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def add(*names):
        for name in names:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("raise RuntimeError('imported')" if path.suffix == ".py" else "")
        importlib.invalidate_caches()
        return folder

    return add


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes a machine's device files, instead of this machine's."""
    root = tmp_path / "root"
    root.mkdir()
    for plugin in discovery._BUILTIN.values():
        present = plugin.present
        monkeypatch.setattr(
            plugin, "present", lambda self, present=present: present(self, str(root))
        )

    def add(**files):
        for name, text in files.items():
            path = root / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return add


def library(path):
    path.write_text("")
    return str(path)


class Plugin(plugins.DevicePlugin):
    def __init__(self, path="/nowhere/mine.so", options=None):
        self.path = path
        self.options = options or {}

    def library_path(self):
        return self.path

    def client_create_options(self):
        return self.options


# --- CPU


def test_a_plain_machine_gets_the_cpu(machine):
    spec = discovery.find()
    assert spec.device_type == "CPU"
    assert Path(spec.library_path).name == "xla_cpu_pjrt.so"
    assert Path(spec.library_path).is_file()
    assert spec.client_options == {"cpu_device_count": 1}
    assert spec.compile_options == {}


def test_cpu_devices_are_counted_when_asked(monkeypatch):
    monkeypatch.setenv("CPU_NUM_DEVICES", "4")
    spec = discovery.find("cpu")
    assert spec.client_options == {"cpu_device_count": 4}
    assert spec.plugin.physical_chip_count() == 4


@pytest.mark.parametrize("text", ["0", "-3", "many", "1.5"])
def test_a_wrong_number_of_devices_is_an_error(monkeypatch, text):
    monkeypatch.setenv("CPU_NUM_DEVICES", text)
    with pytest.raises(ValueError, match=f"CPU_NUM_DEVICES: expected .* at least 1.*'{text}'"):
        discovery.find()


def test_no_cpu_plugin_says_what_to_install(packages, monkeypatch):
    folder = packages("xla_plugins/other/thing.so")
    monkeypatch.setattr(sys, "path", [str(folder)])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(plugins.PluginError) as error:
        discovery.find("CPU")
    assert "PJRT_DEVICE=CPU: expected an installed PJRT plugin, found none" in str(error.value)
    assert f"{folder}/xla_plugins/*cpu*" in str(error.value)
    assert "package jax_plugins" in str(error.value)
    assert "pip install xla-cpu-pjrt" in str(error.value)
    assert "PJRT_LIBRARY_PATH" in str(error.value)


# --- The choice


def test_pjrt_device_chooses(monkeypatch, tmp_path):
    path = library(tmp_path / "mine.so")
    plugins.register_plugin("Mine", Plugin(path, {"a": 1}))
    monkeypatch.setenv("PJRT_DEVICE", "mine")
    spec = discovery.find()
    assert (spec.device_type, spec.library_path) == ("MINE", path)
    assert spec.client_options == {"a": 1}
    assert plugins.default() is spec.plugin


def test_an_argument_goes_before_pjrt_device(monkeypatch):
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    assert discovery.find("CPU").device_type == "CPU"


def test_cuda_is_chosen_where_plugin_and_device_are(packages, machine):
    packages("jax_plugins/xla_cuda13/xla_cuda_plugin.so")
    assert discovery.find().device_type == "CPU"
    machine(dev__nvidia0="")
    assert discovery.find().device_type == "CUDA"


def test_a_gpu_without_its_plugin_is_not_chosen(packages, machine):
    packages("jax_plugins/other/xla_cuda_plugin.so")
    machine(dev__nvidia0="")
    assert discovery.find().device_type == "CPU"


def test_tpu_goes_first(packages, machine):
    packages("libtpu/libtpu.so", "libtpu/__init__.py", "jax_plugins/xla_cuda13/xla_cuda_plugin.so")
    machine(dev__nvidia0="", dev__accel0="")
    assert discovery.find().device_type == "TPU"


@pytest.mark.parametrize(
    "vendor, device, chosen",
    [("0x1ae0", "0x0063", "TPU"), ("0x1ae0", "0x0042", "CPU"), ("0x10de", "0x0063", "CPU")],
)
def test_a_tpu_behind_vfio_is_told_by_its_pci_device(packages, machine, vendor, device, chosen):
    packages("libtpu/libtpu.so")
    machine(dev__vfio__0="")
    pci = "sys__bus__pci__devices__0"
    machine(**{f"{pci}__vendor": vendor + "\n", f"{pci}__device": device + "\n"})
    assert discovery.find().device_type == chosen


def test_rocm_is_chosen_where_plugin_and_device_are(packages, machine):
    packages("jax_plugins/xla_rocm7/xla_rocm_plugin.so")
    machine(dev__kfd="", dev__dri__renderD128="")
    spec = discovery.find()
    assert spec.device_type == "ROCM"
    assert spec.client_options == {"platform_name": "ROCM"}


# --- CUDA, TPU


def test_cuda_library_and_options(packages, monkeypatch):
    folder = packages(
        "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
        "jax_plugins/xla_cuda13/__init__.py",
        "jax_plugins/xla_cuda13/cuda_extra.so",
        "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
    )
    assert discovery.find("CUDA").client_options == {}
    monkeypatch.setenv("GPU_NUM_DEVICES", "2")
    monkeypatch.setenv("PJRT_ALLOCATOR_FRACTION", "0.5")
    monkeypatch.setenv("PJRT_ALLOCATOR_PREALLOCATE", "false")
    monkeypatch.setenv("PJRT_ALLOCATOR_CUDA_ASYNC", "1")
    spec = discovery.find("CUDA")
    assert spec.library_path == str(folder / "jax_plugins/xla_cuda13/xla_cuda_plugin.so")
    assert spec.client_options == {
        "visible_devices": [0, 1],
        "memory_fraction": 0.5,
        "preallocate": False,
        "allocator": "cuda_async",
    }
    assert spec.plugin.physical_chip_count() == 2


@pytest.fixture
def place_of_second(monkeypatch):
    """Of four processes, two on each of two hosts."""
    for name, value in {
        "RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
    }.items():
        monkeypatch.setenv(name, value)


def test_processes_of_gpus_make_one_client(packages, monkeypatch, place_of_second):
    packages("jax_plugins/xla_cuda13/xla_cuda_plugin.so")
    monkeypatch.setenv("PJRT_ALLOCATOR_FRACTION", "0.5")
    spec = discovery.find("CUDA")
    assert spec.needs_store() and spec.makes_one_client()
    assert spec.options_of_process(1) == {
        "node_id": 1,
        "num_nodes": 4,
        "visible_devices": [1],
        "memory_fraction": 0.5,
    }
    spec.expect_one_client("use_spmd")
    # A process by itself on its host has all that are there.
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert "visible_devices" not in spec.options_of_process(0)


def test_processes_of_tpus_are_told_of_each_other(packages, monkeypatch, place_of_second):
    packages("libtpu/libtpu.so")
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v4-16",
        "TPU_PROCESS_BOUNDS": "1,1,2",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,1,1",
        "TPU_WORKER_ID": "0",
        "TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2",
    }.items():
        monkeypatch.setenv(name, value)
    names = ("TPU_VISIBLE_CHIPS", "CLOUD_TPU_TASK_ID", "TPU_PROCESS_ADDRESSES", "TPU_PROCESS_PORT")
    for name in names:
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)
    spec = discovery.find("TPU")
    assert spec.makes_one_client() and not spec.needs_store()
    spec.configure_multiprocess(0, 1)  # a process that has all chips of its host
    assert "TPU_VISIBLE_CHIPS" not in os.environ
    spec.configure_multiprocess(1, 2)
    addresses = ",".join(f"10.0.0.{host}:{port}" for host in (1, 2) for port in (8476, 8477))
    assert [os.environ[name] for name in names] == ["1", "1", addresses, "8477"]


def test_processes_of_the_cpu_have_a_client_each(place_of_second):
    spec = discovery.find("CPU")
    assert not spec.needs_store() and not spec.makes_one_client()
    with pytest.raises(NotImplementedError, match="use_spmd: expected a job of one process on CPU"):
        spec.expect_one_client("use_spmd")


def test_wrong_gpu_options_are_errors(packages, monkeypatch):
    packages("jax_plugins/xla_cuda13/xla_cuda_plugin.so")
    monkeypatch.setenv("PJRT_ALLOCATOR_FRACTION", "75")
    with pytest.raises(ValueError, match="PJRT_ALLOCATOR_FRACTION: expected .* got '75'"):
        discovery.find("CUDA")


def test_xla_plugins_are_found_too(packages):
    folder = packages("xla_plugins/xla_cuda13_pjrt/xla_cuda13_pjrt.so")
    path = discovery.find("CUDA").library_path
    assert path == str(folder / "xla_plugins/xla_cuda13_pjrt/xla_cuda13_pjrt.so")


@pytest.mark.parametrize("installed, expected", [("cuda13", "CUDA"), ("rocm7", "ROCM")])
def test_gpu_is_the_kind_that_is_installed(packages, installed, expected):
    packages(f"jax_plugins/xla_{installed}/plugin.so")
    assert discovery.find("GPU").device_type == expected


def test_nvidia_libraries_of_the_plugins_version_come_first(packages):
    folder = packages(
        "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
        "nvidia/cu13/lib/libcudart.so.13",
        "nvidia/cu13/lib/libcusparse.so.12",
        "nvidia/cu13/nvvm/libdevice/libdevice.10.bc",
        "nvidia/cu12/lib/libcufft.so.11",
        "nvidia/cuda_runtime/lib/libcudart.so.12",
        "nvidia/cusparse/lib/libcusparse.so.12",
        "nvidia/cudnn/lib/libcudnn.so.9",
        "nvidia/nccl/lib/libnccl.so.2",
    )
    spec = discovery.find("CUDA")
    assert spec.plugin.preload_libraries() == [
        str(folder / "nvidia" / name)
        for name in (
            "cu13/lib/libcudart.so.13",
            "nccl/lib/libnccl.so.2",
            "cu13/lib/libcusparse.so.12",
            "cudnn/lib/libcudnn.so.9",
        )
    ]
    assert spec.compile_options == {
        "xla_gpu_cuda_data_dir": str(folder / "nvidia/cu13"),
        "xla_allow_excess_precision": False,
    }
    with pytest.raises(plugins.PluginError, match="libcudart.so.13', got: .*[Ii]nstall"):
        spec.prepare()  # they are empty files here


def test_one_process_of_a_job_tunes_for_all(packages, monkeypatch):
    packages("jax_plugins/xla_cuda13/xla_cuda_plugin.so")
    assert "xla_gpu_shard_autotuning" not in discovery.find("CUDA").compile_options
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert discovery.find("CUDA").compile_options["xla_gpu_shard_autotuning"] is False


def test_missing_cuda_and_tpu_say_what_to_install(packages):
    packages("jax_plugins/nothing/readme.txt")
    with pytest.raises(plugins.PluginError, match=r"jax_plugins/\*cuda\*.*pip install jax-cuda13"):
        discovery.find("CUDA")
    with pytest.raises(plugins.PluginError, match="package libtpu.*/libtpu.so.*pip install libtpu"):
        discovery.find("TPU")


def test_tpu_alone_in_its_process(packages, monkeypatch):
    packages("libtpu/libtpu.so")
    for name in ("TPU_PROCESS_BOUNDS", "TPU_VISIBLE_CHIPS", "TPU_ML_PLATFORM"):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    plugin = discovery.find("TPU").plugin
    plugin.configure_single_process()
    plugin.prepare()
    import os

    assert os.environ["TPU_PROCESS_BOUNDS"] == "1,1,1"
    assert os.environ["TPU_VISIBLE_CHIPS"] == "0"
    assert os.environ["TPU_ML_PLATFORM"] == "PyTorch/XLA"


# --- Libraries named in the environment


def test_pjrt_library_path_overrides_the_library_only(monkeypatch, tmp_path):
    path = library(tmp_path / "my.so")
    monkeypatch.setenv("PJRT_LIBRARY_PATH", path)
    monkeypatch.setenv("CPU_NUM_DEVICES", "3")
    spec = discovery.find("CPU")
    assert spec.library_path == path
    assert spec.client_options == {"cpu_device_count": 3}


@pytest.mark.parametrize(
    "file_name, expected",
    [
        ("pjrt_c_api_cpu_plugin.so", "CPU"),
        ("xla_cuda_plugin.so", "CUDA"),
        ("libtpu.so", "TPU"),
        ("mine.so", "LIBRARY"),
    ],
)
def test_pjrt_library_path_alone(monkeypatch, tmp_path, file_name, expected):
    path = library(tmp_path / file_name)
    monkeypatch.setenv("PJRT_LIBRARY_PATH", path)
    spec = discovery.find()
    assert (spec.device_type, spec.library_path) == (expected, path)


def test_library_is_a_device_type_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("PJRT_DEVICE", "LIBRARY")
    with pytest.raises(plugins.PluginError, match="PJRT_LIBRARY_PATH, which is not set"):
        discovery.find()
    monkeypatch.setenv("PJRT_LIBRARY_PATH", library(tmp_path / "a.so"))
    assert discovery.find().device_type == "LIBRARY"


def test_wrong_library_paths_are_errors(monkeypatch, tmp_path):
    monkeypatch.setenv("PJRT_LIBRARY_PATH", "/nowhere/a.so")
    with pytest.raises(plugins.PluginError, match="PJRT_LIBRARY_PATH: .* no file '/nowhere/a.so'"):
        discovery.find("CPU")
    monkeypatch.delenv("PJRT_LIBRARY_PATH")
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/nowhere/b.so")
    with pytest.raises(plugins.PluginError, match="TPU_LIBRARY_PATH: .* no file '/nowhere/b.so'"):
        discovery.find("TPU")


def test_library_path_by_name(monkeypatch, tmp_path, packages):
    folder = packages("jax_plugins/xla_cuda13/xla_cuda_plugin.so")
    path = library(tmp_path / "mine.so")
    monkeypatch.setenv("MINE_LIBRARY_PATH", path)
    assert discovery.find("mine").library_path == path
    # A folder of libraries is not meant for us.
    monkeypatch.setenv("CUDA_LIBRARY_PATH", str(tmp_path))
    assert discovery.find("CUDA").library_path.startswith(str(folder))


def test_names_and_library_paths(monkeypatch, tmp_path):
    a, b = library(tmp_path / "a.so"), library(tmp_path / "b.so")
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", f"one:{a},two:{b}")
    assert discovery.find("TWO").library_path == b
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", "one")
    with pytest.raises(plugins.PluginError, match="expected name:path,name:path, got 'one'"):
        discovery.find("ONE")


# --- Other plugins


def entry_points(folder, distribution, group, **points):
    info = folder / f"{distribution}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")


def test_a_plugin_of_an_installed_package(monkeypatch, packages, tmp_path):
    folder = packages("my_device/lib/mine.so")
    path = str(folder / "my_device/lib/mine.so")
    (folder / "my_device/__init__.py").write_text(
        "from torch_xla.experimental import plugins\n"
        "class MyPlugin(plugins.DevicePlugin):\n"
        f"    def library_path(self): return {path!r}\n"
    )
    entry_points(folder, "my_device", "torch_xla.plugins", mydevice="my_device:MyPlugin")
    spec = discovery.find("MYDEVICE")
    assert (spec.device_type, spec.library_path) == ("MYDEVICE", path)
    assert type(spec.plugin).__name__ == "MyPlugin"
    assert discovery.find("MYDEVICE").plugin is spec.plugin

    discovery._registered.clear()
    # Other tests of this process have used a device.
    monkeypatch.delitem(sys.modules, "torch_xla._XLAC", raising=False)
    plugins.use_dynamic_plugins()
    assert set(discovery._registered) == {"MYDEVICE"}
    assert plugins.using_dynamic_plugins()


def test_a_jax_plugin_by_its_folder(packages):
    folder = packages("jax_plugins/neuro/__init__.py", "jax_plugins/neuro/lib/pjrt_neuro.so")
    spec = discovery.find("neuro")
    assert spec.library_path == str(folder / "jax_plugins/neuro/lib/pjrt_neuro.so")


def test_a_jax_plugin_by_its_entry_point(packages):
    folder = packages("pjrt_plugin_tt/__init__.py", "pjrt_plugin_tt/pjrt_plugin_tt.so")
    entry_points(folder, "pjrt_plugin_tt", "jax_plugins", tt="pjrt_plugin_tt")
    assert discovery.find("TT").library_path == str(folder / "pjrt_plugin_tt/pjrt_plugin_tt.so")


def test_an_unknown_name_is_explained(packages, tmp_path):
    folder = packages("jax_plugins/other/a.so")
    plugins.register_plugin("MINE", Plugin())
    with pytest.raises(plugins.PluginError) as error:
        discovery.find("CPUU")
    text = str(error.value)
    assert "PJRT_DEVICE=CPUU: expected CPU, CUDA, ROCM, TPU or the name of a plugin" in text
    assert "and of plugins: MINE" in text
    assert f"{folder}/jax_plugins/*cpuu*" in text
    assert "entry points 'xla_plugins'" in text
    assert "Correct PJRT_DEVICE" in text


def test_a_registered_plugin_without_its_file(tmp_path):
    plugins.register_plugin("MINE", Plugin("/nowhere/mine.so"))
    with pytest.raises(plugins.PluginError, match=r"'/nowhere/mine.so' \(Plugin.library_path"):
        discovery.find("MINE")


def test_a_registered_plugin_with_wrong_options(tmp_path):
    plugins.register_plugin("MINE", Plugin(library(tmp_path / "a.so"), {"a": {"b": 1}}))
    with pytest.raises(plugins.PluginError, match="got 'a': {'b': 1}"):
        discovery.find("MINE")


def test_registering_the_wrong_thing():
    with pytest.raises(TypeError, match="Pass the object, not its class"):
        plugins.register_plugin("MINE", Plugin)
    with pytest.raises(TypeError, match="expected the name of a device type, got 3"):
        plugins.register_plugin(3, Plugin())


def test_defaults_of_a_device_plugin():
    plugin = plugins.DevicePlugin()
    assert plugin.physical_chip_count() == 1
    assert plugin.host_index() == 0
    assert plugin.client_create_options() == {}
    assert plugin.requires_xla_coordinator() is False
    assert plugin.configure_multiprocess(0, 4) is None
    with pytest.raises(NotImplementedError, match=r"library_path\(\)"):
        plugin.library_path()
    with pytest.raises(NotImplementedError, match=r"configure_single_process\(\)"):
        plugin.configure_single_process()


def test_dynamic_plugins_come_before_the_first_device(monkeypatch):
    from types import SimpleNamespace

    running = SimpleNamespace(_xla_is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch_xla._XLAC", running)
    with pytest.raises(RuntimeError, match="before the first use of a device"):
        plugins.use_dynamic_plugins()


# --- Cost and side effects


def test_preparing_quiets_the_plugins_log_only_where_the_user_does_not_say(monkeypatch):
    import os

    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    discovery.find("CPU").prepare()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0"
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    discovery.find("CPU").prepare()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "1"


def test_importing_and_finding_load_nothing():
    # The file alone: what torch and torch_xla import is not its doing.
    code = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("plugins", "torch_xla/_src/device/plugins.py")
plugins = sys.modules["plugins"] = importlib.util.module_from_spec(spec)
environment = dict(os.environ)
spec.loader.exec_module(plugins)
assert "importlib.metadata" not in sys.modules
plugins.find("CPU")
for name in ("torch", "torch_xla", "jax", "jaxlib", "ctypes", "importlib.metadata"):
    assert name not in sys.modules, name
assert environment == dict(os.environ)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
