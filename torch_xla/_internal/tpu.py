"""The TPU chips of this machine, found without opening them, and its place among TPU machines.

What a machine of a pod is comes from its environment (with TPU_SKIP_MDS_QUERY, as in containers) or
from the metadata server of Google Cloud, which is asked when a function needs it.
"""

from __future__ import annotations

import math
import operator
import os
import re
import urllib.request
from typing import NamedTuple

from torch_xla._src.device.plugins import TpuPlugin
from torch_xla.core import xla_env_vars as xenv

_GCE_METADATA_ROOT_URL = "http://metadata.google.internal/computeMetadata/v1"
_GOOGLE_PCI_VENDOR_ID = TpuPlugin._VENDOR
_TPU_PCI_DEVICE_IDS = sorted(TpuPlugin._DEVICES)
_TIMEOUT_SECONDS = 10
# The metadata of older generations lacks the bounds: hosts of four chips in each direction.
_ACCELERATOR_TYPE_TO_HOST_BOUNDS = {
    **{"v2-8": "1,1,1", "v2-32": "2,2,1", "v2-128": "4,4,1", "v2-256": "4,8,1", "v2-512": "8,8,1"},
    **{"v3-8": "1,1,1", "v3-32": "2,2,1", "v3-64": "2,4,1", "v3-128": "4,4,1", "v3-256": "4,8,1"},
    **{"v3-512": "8,8,1", "v3-1024": "8,16,1", "v3-2048": "16,16,1"},
}


class MeshShape(NamedTuple):
    """The number in each direction."""

    x: int
    y: int
    z: int

    @classmethod
    def from_string(cls, mesh: str) -> MeshShape:
        """A text such as "2,2,1" as numbers.

        Raises:
            ValueError: It is no such text.
        """
        parts = mesh.split(",")
        if len(parts) != 3 or not all(part.strip().isdigit() for part in parts):
            raise ValueError(f"MeshShape: expected three numbers such as '2,2,1', got '{mesh}'.")
        return cls(*map(int, parts))

    @property
    def size(self) -> int:
        """The number in all."""
        return math.prod(self)

    def __mul__(self, other: MeshShape) -> MeshShape:  # type: ignore[override]
        return MeshShape(*map(operator.mul, self, other))


class TpuEnv(dict):
    """Facts about the TPU machine, by the names of the environment's variables."""


def num_available_chips() -> int:
    """The number of TPU chips of this machine, by its PCI devices."""
    return TpuPlugin()._chips()


def num_available_devices() -> int:
    """The number of TPU devices of this machine; 0 on machines without TPU.

    Raises:
        OSError: There are chips, and nobody tells of which version.
    """
    chips = num_available_chips()
    return chips * num_logical_cores_per_chip() if chips else 0


def _using_env_vars() -> bool:
    """True if the environment, not the metadata server, tells of the machine."""
    return os.environ.get(xenv.TPU_SKIP_MDS_QUERY, "").lower() not in ("", "0", "false", "no")


def _get_metadata(key: str) -> str:
    """The text of Google Cloud's metadata server under `instance/attributes/<key>`.

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
    """The environment's variables, by the metadata server's names; None for the rest."""
    variables = {
        xenv.ACCELERATOR_TYPE: (xenv.TPU_ACCELERATOR_TYPE,),
        xenv.TPU_PROCESS_BOUNDS: (xenv.TPU_PROCESS_BOUNDS, xenv.TPU_HOST_BOUNDS),
        xenv.TPU_CHIPS_PER_PROCESS_BOUNDS: (
            xenv.TPU_CHIPS_PER_PROCESS_BOUNDS,
            xenv.TPU_CHIPS_PER_HOST_BOUNDS,
        ),
        xenv.WORKER_ID: (xenv.CLOUD_TPU_TASK_ID, xenv.TPU_WORKER_ID),
    }
    return TpuEnv(
        (name, next((os.environ[v] for v in given if os.environ.get(v)), None))
        for name, given in variables.items()
    )


def get_tpu_env() -> TpuEnv:
    """Facts about this TPU machine: ACCELERATOR_TYPE, WORKER_ID, TPU_PROCESS_BOUNDS, ...

    Raises:
        OSError: It is asked of the metadata server, and there is none.
    """
    if _using_env_vars():
        return build_tpu_env_from_vars()
    return TpuEnv(re.findall(r"^(\w+):\s*'?(.*?)'?\s*$", _get_metadata("tpu-env"), re.M))


def _required(name: str) -> str:
    env = get_tpu_env()
    if env.get(name) is None:
        source = "the environment" if _using_env_vars() else "the metadata server"
        known = sorted(key for key, value in env.items() if value is not None)
        raise KeyError(f"tpu: expected {name} from {source}, which tells of {known}.")
    return str(env[name])


def get_tpu_type() -> str:
    """The kind of the slice's chips: "v4" of "v4-16", "v5litepod" of "v5litepod-8"."""
    return _required(xenv.ACCELERATOR_TYPE).partition("-")[0]


def version() -> int:
    """The TPU's generation: 4 of "v4-16", 5 of "v5litepod-8", 7 of "tpu7x-8".

    Raises:
        OSError: Nobody tells of the machine, or it is of no known kind.
    """
    kind = _required(xenv.ACCELERATOR_TYPE)
    found = re.match(r"(?:v|tpu)(\d+)[a-z]*-\d+$", kind, re.I)
    if found is None:
        raise OSError(f"tpu: expected a type such as 'v4-16', got '{kind}'.")
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
    return len(get_worker_ips())


def num_local_processes() -> int:
    """The number of a job's processes here: one a chip, or fewer by TPU_PROCESS_BOUNDS."""
    chips = num_available_chips()
    return min(chips, process_bounds_size() or chips)


def num_expected_global_devices() -> int:
    """The number of devices of the slice, where its machines are like this one."""
    return num_available_devices() * num_tpu_workers()


def task_id() -> int | None:
    """This process's number among those of the slice by CLOUD_TPU_TASK_ID; None if not set."""
    value = os.environ.get(xenv.CLOUD_TPU_TASK_ID)
    return int(value) if value else None


def worker_id() -> int:
    """This machine's number among those of the slice."""
    return int(_required(xenv.WORKER_ID))


def get_worker_ips() -> list[str]:
    """The addresses of the slice's machines, in order; "localhost" of a machine by itself."""
    if _using_env_vars():
        hosts = os.environ.get(xenv.TPU_WORKER_HOSTNAMES, "").split(",")
    else:  # "name:number:address" of each
        workers = _get_metadata("worker-network-endpoints").split(",")
        hosts = [worker.split(":")[2] for worker in workers]
    return hosts if len(hosts) > 1 else ["localhost"]


def discover_master_worker_ip(use_localhost: bool = True) -> str:
    """The address of the slice's first machine: "localhost" of a machine by itself.

    Args:
        use_localhost: Has no effect; programs of torch_xla 2.9 pass it.
    """
    return get_worker_ips()[0]


def configure_one_chip_topology() -> None:
    """Lets this process use one chip, unless the environment says otherwise; before any use."""
    os.environ.setdefault(xenv.TPU_VISIBLE_CHIPS, "0")
    os.environ.setdefault(xenv.TPU_CHIPS_PER_PROCESS_BOUNDS, "1,1,1")
    os.environ.setdefault(xenv.TPU_PROCESS_BOUNDS, "1,1,1")


def configure_topology(local_rank: int, local_world_size: int, base_port: int = 8476) -> None:
    """Lets this process use one chip of the slice, unless the environment says otherwise.

    Sets TPU_CHIPS_PER_PROCESS_BOUNDS, TPU_PROCESS_BOUNDS, CLOUD_TPU_TASK_ID,
    TPU_PROCESS_ADDRESSES, TPU_VISIBLE_CHIPS and TPU_PROCESS_PORT, which libtpu reads when the
    device is first used.

    Args:
        local_rank: This process among those of this machine.
        local_world_size: The number of processes of each machine, one a chip.
        base_port: The first of as many ports, which must be free on each machine.

    Raises:
        OSError: Nobody tells of the machine, or it is of no known kind.
        KeyError: What tells of it lacks the bounds, or its number.
    """
    generation = version()
    if generation >= 4:
        hosts = MeshShape.from_string(_required(xenv.TPU_PROCESS_BOUNDS))
        chips = MeshShape.from_string(_required(xenv.TPU_CHIPS_PER_PROCESS_BOUNDS))
    else:
        kind = _required(xenv.ACCELERATOR_TYPE)
        hosts = MeshShape.from_string(_ACCELERATOR_TYPE_TO_HOST_BOUNDS[kind])
        chips = MeshShape(2, 2, 1)
    bounds = ",".join(map(str, hosts * chips))
    ports = range(base_port, base_port + local_world_size)
    addresses = [f"{host}:{port}" for host in get_worker_ips() for port in ports]
    # A chip of the seventh generation is two devices.
    values = {
        xenv.TPU_CHIPS_PER_PROCESS_BOUNDS: "1,1,1",
        xenv.TPU_PROCESS_BOUNDS: bounds + (",2" if generation == 7 else ""),
        xenv.CLOUD_TPU_TASK_ID: str(worker_id() * local_world_size + local_rank),
        xenv.TPU_PROCESS_ADDRESSES: ",".join(addresses),
        xenv.TPU_VISIBLE_CHIPS: str(local_rank),
        xenv.TPU_PROCESS_PORT: str(ports[local_rank]),
    }
    for name, value in values.items():
        os.environ.setdefault(name, value)
