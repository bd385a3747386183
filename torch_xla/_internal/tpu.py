"""The TPU chips of this machine, found without opening them, and its place among TPU machines.

What a machine of a pod is comes from its environment (with TPU_SKIP_MDS_QUERY, as in containers) or
from the metadata server of Google Cloud, which is asked when a function needs it.
"""

from __future__ import annotations

import functools
import math
import operator
import os
import re
import urllib.request
from typing import NamedTuple

from torch_xla._src.plugins import TpuPlugin
from torch_xla.core import xla_env_vars as xenv

_GCE_METADATA_ROOT_URL = "http://metadata.google.internal/computeMetadata/v1"
_GOOGLE_PCI_VENDOR_ID = TpuPlugin._VENDOR
_TPU_PCI_DEVICE_IDS = sorted(TpuPlugin._DEVICES)
_TIMEOUT_SECONDS = 10


class MeshShape(NamedTuple):
    """How many there are in each direction."""

    x: int
    y: int
    z: int

    @classmethod
    def from_string(cls, mesh: str) -> MeshShape:
        """Of text such as "2,2,1".

        Raises:
            ValueError: It is no such text.
        """
        parts = mesh.split(",")
        if len(parts) != 3 or not all(part.strip().isdigit() for part in parts):
            raise ValueError(f"MeshShape: expected three numbers such as '2,2,1', got '{mesh}'.")
        return cls(*map(int, parts))

    @property
    def size(self) -> int:
        """How many there are in all."""
        return math.prod(self)

    def __mul__(self, other: MeshShape) -> MeshShape:  # type: ignore[override]
        return MeshShape(*map(operator.mul, self, other))


class TpuEnv(dict):
    """What is known of the TPU machine, by the names of the environment's variables."""


def num_available_chips() -> int:
    """The number of TPU chips of this machine."""
    plugin = TpuPlugin()
    return plugin.physical_chip_count() if plugin.present() else 0


def num_available_devices() -> int:
    """The number of TPU devices of this machine, one a chip; 0 on machines without TPU."""
    return num_available_chips()


def _using_env_vars() -> bool:
    """Whether the environment, not the metadata server, tells of the machine."""
    return os.environ.get(xenv.TPU_SKIP_MDS_QUERY, "").lower() in ("1", "true", "yes")


def _get_metadata(key: str) -> str:
    """What the metadata server of Google Cloud has under `instance/attributes/<key>`.

    Raises:
        OSError: There is no such server, or it has nothing of that name.
    """
    request = urllib.request.Request(
        f"{_GCE_METADATA_ROOT_URL}/instance/attributes/{key}",
        headers={"Metadata-Flavor": "Google"},
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
        return answer.read().decode()


def build_tpu_env_from_vars() -> TpuEnv:
    """What the environment's variables tell, under the metadata server's names."""
    names = {
        xenv.ACCELERATOR_TYPE: xenv.TPU_ACCELERATOR_TYPE,
        xenv.TPU_PROCESS_BOUNDS: xenv.TPU_PROCESS_BOUNDS,
        xenv.TPU_CHIPS_PER_PROCESS_BOUNDS: xenv.TPU_CHIPS_PER_PROCESS_BOUNDS,
        xenv.WORKER_ID: xenv.TPU_WORKER_ID,
    }
    # Older names of the bounds, which are of hosts.
    older = {
        xenv.TPU_PROCESS_BOUNDS: xenv.TPU_HOST_BOUNDS,
        xenv.TPU_CHIPS_PER_PROCESS_BOUNDS: xenv.TPU_CHIPS_PER_HOST_BOUNDS,
    }
    env = TpuEnv()
    for name, variable in names.items():
        value = os.environ.get(variable) or os.environ.get(older.get(name, variable))
        if value:
            env[name] = value
    return env


def get_tpu_env() -> TpuEnv:
    """What is known of this TPU machine: ACCELERATOR_TYPE, WORKER_ID, TPU_PROCESS_BOUNDS, ...

    Raises:
        OSError: It is asked of the metadata server, and there is none.
    """
    return build_tpu_env_from_vars() if _using_env_vars() else _read_metadata()


@functools.cache
def _read_metadata() -> TpuEnv:
    lines = re.findall(r"^(\w+):\s*'?(.*?)'?\s*$", _get_metadata("tpu-env"), re.M)
    return TpuEnv(lines)


def _required(name: str) -> str:
    env = get_tpu_env()
    if name not in env:
        source = "the environment" if _using_env_vars() else "the metadata server"
        raise KeyError(f"tpu: expected {name} from {source}, which tells of {sorted(env)}.")
    return env[name]


def get_tpu_type() -> str:
    """The kind and size of the slice: "v4-16", "v5litepod-8"."""
    return _required(xenv.ACCELERATOR_TYPE)


def version() -> int:
    """The TPU's generation: 4 of "v4-16", 5 of "v5litepod-8"."""
    found = re.match(r"v(\d+)", get_tpu_type())
    if found is None:
        raise ValueError(f"tpu: expected a type such as 'v4-16', got '{get_tpu_type()}'.")
    return int(found[1])


def num_logical_cores_per_chip() -> int:
    """2 on v2 and v3, where a chip is two devices; else 1."""
    return 2 if version() <= 3 else 1


def process_bounds_size() -> int | None:
    """The number of processes by TPU_PROCESS_BOUNDS; None where it is not set."""
    bounds = os.environ.get(xenv.TPU_PROCESS_BOUNDS)
    return MeshShape.from_string(bounds).size if bounds else None


def num_tpu_workers() -> int:
    """The number of machines of the slice."""
    return process_bounds_size() or MeshShape.from_string(_required(xenv.TPU_PROCESS_BOUNDS)).size


def num_local_processes() -> int:
    """The number of processes that a job has on this machine: one for each chip it may use."""
    visible = os.environ.get(xenv.TPU_VISIBLE_CHIPS)
    return len(visible.split(",")) if visible else num_available_chips()


def num_expected_global_devices() -> int:
    """The number of devices of the slice."""
    processes = MeshShape.from_string(_required(xenv.TPU_PROCESS_BOUNDS))
    chips = MeshShape.from_string(_required(xenv.TPU_CHIPS_PER_PROCESS_BOUNDS))
    return (processes * chips).size * num_logical_cores_per_chip()


def task_id() -> int | None:
    """This process's number among those of the slice by CLOUD_TPU_TASK_ID; None if not set."""
    value = os.environ.get(xenv.CLOUD_TPU_TASK_ID)
    return int(value) if value else None


def worker_id() -> int:
    """This machine's number among those of the slice."""
    return int(_required(xenv.WORKER_ID))


def get_worker_ips() -> list[str]:
    """The addresses of the slice's machines, in the order of their numbers."""
    if _using_env_vars():
        return os.environ.get(xenv.TPU_WORKER_HOSTNAMES, "localhost").split(",")
    workers = _get_metadata("worker-network-endpoints").split(",")  # "name:number:address" of each
    return [worker.split(":")[-1] for worker in workers]


def discover_master_worker_ip(use_localhost: bool = True) -> str:
    """The address of the slice's first machine.

    Args:
        use_localhost: Whether a machine by itself is "localhost".
    """
    hosts = get_worker_ips()
    return "localhost" if len(hosts) == 1 and use_localhost else hosts[0]
