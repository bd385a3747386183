"""Which PJRT plugin to use: `find()` names its library and the options of its client.

Nothing here imports a plugin's Python code, opens its library or creates a client; the environment
is read at each call. The rules, first match wins, are those of `find`.
"""

from __future__ import annotations

import dataclasses
import glob
import importlib
import importlib.util
import os
import re
from collections.abc import Iterable, Mapping

OptionValue = str | int | float | bool | list[int]

ENTRY_POINT_GROUP = "torch_xla.plugins"
# Plugins of vendors whose packages lack an entry point, by module and class.
_OF_VENDORS = {
    "NEURON": ("torch_xla._internal.neuron", "NeuronPlugin"),
    "XPU": ("torch_xla._internal.xpu", "XpuPlugin"),
}
# Packages that JAX and XLA users install; plugins live in a folder each.
_NAMESPACES = ("jax_plugins", "xla_plugins")


class PluginError(RuntimeError):
    """No usable plugin; the text says what was tried and what to install."""


class DevicePlugin:
    """The needs of a kind of device; subclass it and call `register_plugin`."""

    def library_path(self) -> str:
        """Path of the shared library that exports GetPjrtApi."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method library_path().")

    def client_create_options(self) -> dict[str, OptionValue]:
        """Options of the plugin's client, by name."""
        return {}

    def compile_options(self) -> dict[str, OptionValue]:
        """Compiler flags that every program gets, by name."""
        return {}

    def prepare(self) -> None:
        """Runs once in this process, before the library is opened."""

    def host_index(self) -> int:
        """Index of this host among those of the job."""
        return 0

    def physical_chip_count(self) -> int:
        """Chips of this host: as many processes are started by `xmp.spawn` or `torchrun`."""
        return 1

    def configure_single_process(self) -> None:
        """Sets this process up to use one device alone."""
        raise NotImplementedError(
            f"{type(self).__name__}: expected a method configure_single_process()."
        )

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """Sets this process up as one of several on this host, before its client is created."""

    def options_of_process(self, local_rank: int) -> dict[str, OptionValue]:
        """Options of the client of a process that uses one device of several, by name."""
        return {}

    def requires_xla_coordinator(self) -> bool:
        """True if the processes of a job make one client, by a key-value store that it is given."""
        return False

    def makes_one_client(self) -> bool:
        """True if the processes of a job have one client, which shows the devices of all.

        The plugin exchanges values among them then, and SPMD mode is for the devices of all.
        """
        return self.requires_xla_coordinator()

    def topology_environment(self) -> dict[str, str]:
        """Variables of a process that compiles for devices that are not there."""
        return {}

    def topology_options(self, topology: str) -> dict[str, OptionValue]:
        """Options of a topology of this name."""
        return {}


@dataclasses.dataclass(frozen=True)
class PluginSpec:
    """The answer of `find`."""

    device_type: str
    library_path: str
    client_options: Mapping[str, OptionValue]
    compile_options: Mapping[str, OptionValue]
    plugin: DevicePlugin

    def prepare(self) -> None:
        """To be called before the library is opened."""
        _prepare(self.plugin)

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """To be called before that, in a process of several, which uses one device."""
        _call(self.plugin, "configure_multiprocess", None, local_rank, local_world_size)

    def needs_store(self) -> bool:
        """True if the client of a process of several is made by a key-value store."""
        return bool(_call(self.plugin, "requires_xla_coordinator", False))

    def makes_one_client(self) -> bool:
        """True if the client of a process of several shows the devices of all."""
        return bool(_call(self.plugin, "makes_one_client", self.needs_store()))

    def expect_one_client(self, asked_by: str) -> None:
        """Raises in a job of several processes that have a client each: SPMD mode is for one.

        Raises:
            NotImplementedError: So it is.
        """
        from torch_xla._src.job import place

        if place.world_size() > 1 and not self.makes_one_client():
            raise NotImplementedError(
                f"{asked_by}: expected a job of one process on {self.device_type}, got "
                f"{place.world_size()} from {place.launcher()}. Each process has devices of its "
                "own there. Start one process, which uses all devices of this host."
            )

    def options_of_process(self, local_rank: int) -> dict[str, OptionValue]:
        """Options of the client of a process of several, in place of those of one."""
        return {**self.client_options, **_call(self.plugin, "options_of_process", {}, local_rank)}

    def topology_environment(self) -> dict[str, str]:
        return _call(self.plugin, "topology_environment", {})

    def topology_options(self, topology: str) -> dict[str, OptionValue]:
        return _call(self.plugin, "topology_options", {}, topology)


def prepare(device_type: str, library: str) -> None:
    """`PluginSpec.prepare` in another process than the one that has found the plugin."""
    _prepare(_plugin(device_type, library))


def _prepare(plugin: DevicePlugin) -> None:
    # Plugins log each option of a client at level 0. Ours is the default of this flag, too.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    plugin.prepare()


# By upper-case name.
_registered: dict[str, DevicePlugin] = {}


def register_plugin(name: str, device_plugin: DevicePlugin) -> None:
    """Makes `PJRT_DEVICE=<name>` mean this plugin."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"register_plugin: expected the name of a device type, got {name!r}.")
    if isinstance(device_plugin, type) or not callable(
        getattr(device_plugin, "library_path", None)
    ):
        raise TypeError(
            f"register_plugin: expected an instance of DevicePlugin for {name!r}, got "
            f"{device_plugin!r}. "
            "Pass the object, not its class."
        )
    _registered[name.upper()] = device_plugin


def register_installed_plugins() -> None:
    """Registers each plugin that an installed package offers in `torch_xla.plugins`."""
    for name, entry_point in _entry_points(ENTRY_POINT_GROUP).items():
        register_plugin(name, entry_point.load()())


def chosen() -> str | None:
    """The device type that `find()` looks for; None where none is to be chosen: it raises then.

    No plugin is looked for, unless nobody has asked for a device type.
    """
    name = _flag("PJRT_DEVICE")
    if not name and not _truth(_flag("PJRT_SELECT_DEFAULT_DEVICE") or "1"):
        return None
    return _canonical(name or _choose())


def find(device_type: str | None = None) -> PluginSpec:
    """Chooses the plugin for `device_type`, else for `PJRT_DEVICE`, else for what is there.

    The library is the first of: PJRT_LIBRARY_PATH; <NAME>_LIBRARY_PATH, such as TPU_LIBRARY_PATH;
    the entry of PJRT_NAMES_AND_LIBRARY_PATHS ("name:path,name:path"); a registered plugin; one of
    an installed package (entry points "torch_xla.plugins"); for CPU, CUDA, ROCM and TPU their
    well-known packages; for other names a package of `jax_plugins` or `xla_plugins`.
    """
    name = _canonical(device_type) if device_type else chosen()
    if name is None:
        raise PluginError(
            "PJRT_DEVICE: expected the device type to use, as PJRT_SELECT_DEFAULT_DEVICE=0 leaves "
            "the choice to you, got none. Set PJRT_DEVICE to CPU, CUDA, TPU or a plugin's name."
        )
    library = _library_of_environment(name)
    plugin = _plugin(name, library)
    path = library or os.fspath(plugin.library_path())
    if not os.path.isfile(path):
        raise PluginError(
            f"PJRT_DEVICE={name}: expected the plugin's library at '{path}' "
            f"({type(plugin).__name__}.library_path()), there is no such file. "
            "Install the plugin's package again."
        )
    return PluginSpec(
        device_type=name,
        library_path=path,
        client_options=_checked(name, plugin.client_create_options()),
        compile_options=_checked(name, _call(plugin, "compile_options", {})),
        plugin=plugin,
    )


def of_library(path: str) -> PluginSpec:
    """The plugin of a library, of the kind that its file name tells."""
    name = _named_in(path)
    plugin = _BUILTIN[name]() if name in _BUILTIN else LibraryPlugin(name, path)
    return PluginSpec(name, path, {}, _checked(name, plugin.compile_options()), plugin)


def _flag(name: str) -> str:
    """The variable's text; empty is the same as none. Declared in csrc/util/flags.h."""
    return os.environ.get(name, "")


def _number(name: str, text: str, minimum: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = minimum - 1
    if value < minimum:
        raise ValueError(
            f"{name}: expected a number of at least {minimum} in the environment, got '{text}'. "
            "Set it to a number or unset it."
        )
    return value


def _fraction(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise ValueError(
            f"{name}: expected a number above 0 and up to 1 in the environment, got '{text}'. "
            "Set it to such a number or unset it."
        )
    return value


def _truth(text: str) -> bool:
    return text.lower() not in ("0", "false", "no", "off")


def _call(plugin, method: str, default, *args):
    """Plugins need not derive from DevicePlugin."""
    function = getattr(plugin, method, None)
    return function(*args) if function is not None else default


def _checked(name: str, options: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    for key, value in options.items():
        is_list = isinstance(value, (list, tuple)) and all(isinstance(i, int) for i in value)
        if not isinstance(key, str) or not (isinstance(value, (str, int, float, bool)) or is_list):
            raise PluginError(
                f"PJRT_DEVICE={name}: expected options that are text, numbers, bools or lists of "
                f"integers, got {key!r}: {value!r}. Correct the plugin's client_create_options()."
            )
    return {key: list(v) if isinstance(v, tuple) else v for key, v in options.items()}


def _canonical(name: str) -> str:
    """In upper case; GPU is an old name for the kind whose plugin is installed."""
    name = name.upper()
    if name != "GPU" or name in _registered:
        return name
    return "ROCM" if RocmPlugin().search([]) and not CudaPlugin().search([]) else "CUDA"


def _choose() -> str:
    """The device type when nobody asks for one. CPU always works."""
    path = _flag("PJRT_LIBRARY_PATH")
    if path:
        return _named_in(path)
    for name in ("TPU", "CUDA", "ROCM"):
        plugin = _BUILTIN[name]()
        if plugin.present() and (_library_of_environment(name) or plugin.search([])):
            return name
    return "CPU"


def _named_in(path: str) -> str:
    file_name = os.path.basename(path).lower()
    for part, name in (("cpu", "CPU"), ("rocm", "ROCM"), ("cuda", "CUDA"), ("tpu", "TPU")):
        if part in file_name:
            return name
    return "LIBRARY"


def _library_of_environment(name: str) -> str | None:
    sources = [("PJRT_LIBRARY_PATH", _flag("PJRT_LIBRARY_PATH"))]
    variable = f"{name}_LIBRARY_PATH"
    path = _flag("TPU_LIBRARY_PATH") if name == "TPU" else _flag(variable)
    # A folder is another program's search path: CUDA_LIBRARY_PATH often is one.
    if not os.path.isdir(path):
        sources.append((variable, path))
    for entry in filter(None, _flag("PJRT_NAMES_AND_LIBRARY_PATHS").split(",")):
        entry_name, separator, path = entry.partition(":")
        if not separator:
            raise PluginError(
                f"PJRT_NAMES_AND_LIBRARY_PATHS: expected name:path,name:path, got '{entry}'."
            )
        if entry_name.upper() == name:
            sources.append(("PJRT_NAMES_AND_LIBRARY_PATHS", path))
    for variable, path in sources:
        if path and not os.path.isfile(path):
            raise PluginError(
                f"{variable}: expected the path of a PJRT plugin library, there is no file "
                f"'{path}'. Correct the path or unset the variable."
            )
        if path:
            return path
    return None


def _plugin(name: str, library: str | None) -> DevicePlugin:
    if name in _registered:
        return _registered[name]
    # Scanning the installed packages takes a while, and no package replaces the CPU.
    entry_points = {} if name == "CPU" else _entry_points(ENTRY_POINT_GROUP)
    if name in entry_points:
        register_plugin(name, entry_points[name].load()())
        return _registered[name]
    if name in _BUILTIN:
        return _BUILTIN[name]()
    if name in _OF_VENDORS:
        module, kind = _OF_VENDORS[name]
        return getattr(importlib.import_module(module), kind)()
    if library is not None:
        return LibraryPlugin(name, library)
    if name == "LIBRARY":
        raise PluginError(
            "PJRT_DEVICE=LIBRARY: expected the path of a PJRT plugin library in "
            "PJRT_LIBRARY_PATH, which is not set. Set it."
        )
    return PackagedPlugin(name, entry_points)


def _entry_points(group: str) -> dict:
    """By upper-case name."""
    # Imported here: it is slow, and most programs do not come here.
    from importlib import metadata

    return {point.name.upper(): point for point in metadata.entry_points(group=group)}


def _package_folders(module: str) -> list[str]:
    """Where a package lies, without running its code."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module that was put together by hand
        spec = None
    locations = (spec and spec.submodule_search_locations) or []
    folders = [os.path.join(location, *rest) for location in locations]
    return [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]


def _libraries(folder: str) -> list[str]:
    """The shared libraries in a plugin package, the likeliest first."""
    paths = glob.glob(os.path.join(glob.escape(folder), "*.so"))
    paths += glob.glob(os.path.join(glob.escape(folder), "lib", "*.so"))
    return sorted(paths, key=lambda path: not re.search("pjrt|plugin", os.path.basename(path)))


def _packaged_libraries(pattern: str, tried: list[str]) -> list[str]:
    """Libraries of packages in jax_plugins and xla_plugins whose name matches; newest first."""
    found = []
    for namespace in _NAMESPACES:
        folders = _package_folders(namespace)
        if not folders:
            tried.append(f"package {namespace}")
        for folder in folders:
            tried.append(os.path.join(folder, f"*{pattern}*"))
            for name in os.listdir(folder):
                if re.search(pattern, name) and os.path.isdir(os.path.join(folder, name)):
                    version = [int(digits) for digits in re.findall(r"\d+", name)]
                    found += [(version, path) for path in _libraries(os.path.join(folder, name))]
    # Stable: within a version the order of _libraries stays.
    found.sort(key=lambda item: item[0], reverse=True)
    return [path for _, path in found]


class _BuiltinPlugin(DevicePlugin):
    """A kind of device with well-known packages."""

    name = ""
    install = ""

    def search(self, tried: list[str]) -> str | None:
        """The installed library, or None; adds each place to `tried`."""
        raise NotImplementedError

    def present(self, root: str = "/") -> bool:
        """True if this machine has such a device."""
        raise NotImplementedError

    def library_path(self) -> str:
        tried: list[str] = []
        path = self.search(tried)
        if path is None:
            raise PluginError(
                f"PJRT_DEVICE={self.name}: expected an installed PJRT plugin, found none. "
                f"Tried: {_sentence(tried)}. Run: {self.install}, or set PJRT_LIBRARY_PATH to the "
                "plugin's library."
            )
        return path

    def configure_single_process(self) -> None:
        pass


def _sentence(tried: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(tried)) or "nothing"


class CpuPlugin(_BuiltinPlugin):
    name = "CPU"
    install = "pip install xla-cpu-pjrt"

    def search(self, tried):
        return next(iter(_packaged_libraries("cpu", tried)), None)

    def present(self, root="/"):
        return True

    def client_create_options(self):
        return {"cpu_device_count": self.physical_chip_count()}

    def configure_multiprocess(self, local_rank, local_world_size):
        if local_world_size > 1 and not (os.environ.get("PJRT_NPROC") or os.environ.get("NPROC")):
            # The plugin would have a thread for each core in each process.
            cores = len(os.sched_getaffinity(0))
            os.environ["PJRT_NPROC"] = str(max(1, cores // local_world_size))

    def options_of_process(self, local_rank):
        return {"cpu_device_count": 1}

    def physical_chip_count(self):
        return _number("CPU_NUM_DEVICES", _flag("CPU_NUM_DEVICES") or "1", 1)


class _GpuPlugin(_BuiltinPlugin):
    def client_create_options(self):
        options: dict[str, OptionValue] = {}
        count = _flag("GPU_NUM_DEVICES")
        if count:
            options["visible_devices"] = list(range(_number("GPU_NUM_DEVICES", count, 1)))
        fraction = _flag("PJRT_ALLOCATOR_FRACTION")
        if fraction:
            options["memory_fraction"] = _fraction("PJRT_ALLOCATOR_FRACTION", fraction)
        if _flag("PJRT_ALLOCATOR_PREALLOCATE"):
            options["preallocate"] = _truth(_flag("PJRT_ALLOCATOR_PREALLOCATE"))
        if _truth(_flag("PJRT_ALLOCATOR_CUDA_ASYNC") or "0"):
            options["allocator"] = "cuda_async"
        return options

    def options_of_process(self, local_rank):
        from torch_xla._src.job import place

        here = place.place()
        options: dict[str, OptionValue] = {"node_id": here.rank, "num_nodes": here.world_size}
        if here.local_world_size > 1:
            options["visible_devices"] = [local_rank]
        return options

    def requires_xla_coordinator(self):
        return True

    def compile_options(self):
        from torch_xla._src.job import place

        # A conversion to a narrow dtype and back rounds, as PyTorch's does.
        options: dict[str, OptionValue] = {"xla_allow_excess_precision": False}
        if place.world_size() > 1:  # one compiles, and must not wait for what the others tune
            options["xla_gpu_shard_autotuning"] = False
        return options

    def device_files(self, root: str) -> list[str]:
        raise NotImplementedError

    def present(self, root="/"):
        return bool(self.device_files(root))

    def physical_chip_count(self):
        count = _flag("GPU_NUM_DEVICES")
        return _number("GPU_NUM_DEVICES", count, 1) if count else len(self.device_files("/"))


class CudaPlugin(_GpuPlugin):
    name = "CUDA"
    install = "pip install jax-cuda13-pjrt"

    # The libraries that the plugin opens by name, in the order in which they need each other.
    _LIBRARIES = (
        "libcudart",
        "libnvrtc",
        "libnvJitLink",
        "libcublasLt",
        "libcublas",
        "libnccl",
        "libcupti",
        "libcusparse",
        "libcusolver",
        "libcufft",
        "libnvshmem_host",
        "libcudnn",
    )

    def search(self, tried):
        return next(iter(_packaged_libraries("cuda", tried)), None)

    def device_files(self, root):
        return glob.glob(os.path.join(root, "dev/nvidia[0-9]*")) or glob.glob(
            os.path.join(root, "dev/dxg")  # Windows Subsystem for Linux
        )

    def _nvidia_folders(self) -> list[str]:
        """Folders of NVIDIA's packages; those of the plugin's CUDA version first."""
        version = re.search(r"cuda(\d+)", self.search([]) or "")
        own = f"cu{version.group(1)}" if version else "cu13"
        folders = []
        for nvidia in _package_folders("nvidia"):
            for name in os.listdir(nvidia):
                # CUDA 13 has one package cu13, CUDA 12 one for each library.
                if not re.fullmatch(r"cu\d+", name) or name == own:
                    folders.append(os.path.join(nvidia, name))
        return sorted(folders, key=lambda folder: (os.path.basename(folder) != own, folder))

    def preload_libraries(self) -> list[str]:
        """The NVIDIA libraries of Python packages, which the loader would not find by itself."""
        found = []
        for library in self._LIBRARIES:
            for folder in self._nvidia_folders():
                matches = sorted(
                    glob.glob(os.path.join(glob.escape(folder), "lib", f"{library}.so.*"))
                )
                if matches:
                    found.append(matches[0])
                    break
        return found

    def prepare(self):
        import ctypes

        for path in self.preload_libraries():
            try:
                ctypes.CDLL(path)
            except OSError as error:
                raise PluginError(
                    f"PJRT_DEVICE=CUDA: expected to load NVIDIA's library '{path}', got: {error}. "
                    "Install its package again, in the version that the plugin asks for."
                ) from error

    def compile_options(self):
        options: dict[str, OptionValue] = dict(super().compile_options())
        # The compiler's own data: libdevice and ptxas.
        for folder in self._nvidia_folders():
            if os.path.isdir(os.path.join(folder, "nvvm", "libdevice")):
                options["xla_gpu_cuda_data_dir"] = folder
                break
        return options


class RocmPlugin(_GpuPlugin):
    name = "ROCM"
    install = "pip install jax-rocm7-pjrt"

    def search(self, tried):
        return next(iter(_packaged_libraries("rocm", tried)), None)

    def device_files(self, root):
        if not os.path.exists(os.path.join(root, "dev/kfd")):
            return []
        return glob.glob(os.path.join(root, "dev/dri/renderD*"))

    def client_create_options(self):
        return {"platform_name": "ROCM", **super().client_create_options()}


class TpuPlugin(_BuiltinPlugin):
    name = "TPU"
    install = "pip install libtpu"

    # Google's PCI devices that are TPUs: v2 and v3, v4, v4 lite, v5p, v5e, v6e, v7x.
    _VENDOR = "0x1ae0"
    _DEVICES = {"0x0027", "0x005e", "0x0056", "0x0062", "0x0063", "0x006f", "0x0076"}

    def search(self, tried):
        candidates = [os.path.join(folder, "libtpu.so") for folder in _package_folders("libtpu")]
        if not candidates:
            tried.append("package libtpu")
        candidates += ["/usr/lib/libtpu.so", "/lib/libtpu.so"]
        tried += candidates
        return next(filter(os.path.isfile, candidates), None)

    def _chips(self, root: str = "/") -> int:
        def read(path: str) -> str:
            try:
                with open(path) as file:
                    return file.read().strip()
            except OSError:
                return ""  # a device that has just gone

        return sum(
            read(os.path.join(device, "vendor")) == self._VENDOR
            and read(os.path.join(device, "device")) in self._DEVICES
            for device in glob.glob(os.path.join(root, "sys/bus/pci/devices/*"))
        )

    def present(self, root="/"):
        return bool(glob.glob(os.path.join(root, "dev/accel[0-9]*"))) or (
            os.path.isdir(os.path.join(root, "dev/vfio")) and self._chips(root) > 0
        )

    def prepare(self):
        os.environ.setdefault("TPU_ML_PLATFORM", "PyTorch/XLA")

    def physical_chip_count(self):
        return self._chips() or len(glob.glob("/dev/accel[0-9]*"))

    def topology_environment(self):
        # There is no TPU to ask about its surroundings, and none to share.
        return {
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": "v5litepod-4",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }

    def topology_options(self, topology):
        # Hosts have 2x2 chips unless one says otherwise, as of a host with a single chip.
        shape = re.fullmatch(r".*[:=](\d+)x(\d+)(?:x(\d+))?", topology)
        if shape is None:
            return {}
        chips = [int(size or 1) for size in shape.groups()]
        return {} if chips[0] * chips[1] * chips[2] != 1 else {"chips_per_host_bounds": chips}

    def configure_single_process(self):
        os.environ.setdefault("TPU_PROCESS_BOUNDS", "1,1,1")
        os.environ.setdefault("TPU_VISIBLE_CHIPS", "0")

    def configure_multiprocess(self, local_rank, local_world_size):
        if local_world_size > 1:  # each has a chip, and libtpu finds the others
            tpu = importlib.import_module("torch_xla._internal.tpu")
            tpu.configure_topology(local_rank, local_world_size)

    def makes_one_client(self):
        return True


class LibraryPlugin(DevicePlugin):
    """A library that the environment names."""

    def __init__(self, name: str, path: str):
        self.name = name
        self._path = path

    def library_path(self):
        return self._path

    def configure_single_process(self):
        pass


class PackagedPlugin(DevicePlugin):
    """Any other name: a package of jax_plugins or xla_plugins, or one with their entry point."""

    def __init__(self, name: str, entry_points: Iterable[str]):
        self.name = name
        self._offered = sorted({*_registered, *entry_points})

    def library_path(self):
        tried: list[str] = []
        found = _packaged_libraries(re.escape(self.name.lower()), tried)
        for namespace in _NAMESPACES:
            tried.append(f"entry points '{namespace}' and '{ENTRY_POINT_GROUP}'")
            point = _entry_points(namespace).get(self.name)
            if point is not None:
                for folder in _package_folders(point.value.partition(":")[0]):
                    found += _libraries(folder)
        if found:
            return found[0]
        others = f", and of plugins: {', '.join(self._offered)}" if self._offered else ""
        raise PluginError(
            f"PJRT_DEVICE={self.name}: expected CPU, CUDA, ROCM, TPU or the name of a plugin, "
            f"found none of this name. Known names: {', '.join(sorted(_BUILTIN))}{others}. "
            f"Tried: {_sentence(tried)}. Correct PJRT_DEVICE, install the plugin's package, "
            "register it with torch_xla.experimental.plugins.register_plugin, or set "
            "PJRT_LIBRARY_PATH to its library."
        )

    def configure_single_process(self):
        pass


_BUILTIN = {plugin.name: plugin for plugin in (CpuPlugin, CudaPlugin, RocmPlugin, TpuPlugin)}
