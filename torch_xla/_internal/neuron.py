"""Trainium and Inferentia chips of AWS: `PJRT_DEVICE=NEURON`.

The plugin's library and its compiler come with the package `libneuronxla`. It reads its place in
the job from the environment, which these functions set as its documents say.
"""

from __future__ import annotations

import logging
import os

from torch_xla._internal.neuron_utils import get_visible_cores_list, remap_visible_cores
from torch_xla._src.device.plugins import DevicePlugin, PluginError

__all__ = [
    "NeuronPlugin",
    "configure_pjrt_environment",
    "get_master_worker_ip",
    "get_visible_cores_list",
    "initialize_env",
    "num_local_processes",
    "remap_visible_cores",
    "set_envvar_defaults",
    "set_rt_root_comm_id",
]

logger = logging.getLogger(__name__)
_ROOT_PORT = 62182


def get_master_worker_ip() -> str:
    """The address of the job's first machine: MASTER_ADDR, or "localhost"."""
    return os.environ.get("MASTER_ADDR", "localhost")


def set_rt_root_comm_id() -> None:
    """Sets NEURON_RT_ROOT_COMM_ID, where the chips' runtimes find each other, unless it is set."""
    address = get_master_worker_ip()
    if address.count(":") >= 2:  # of IPv6
        address = f"[{address.strip('[]')}]"
    os.environ.setdefault("NEURON_RT_ROOT_COMM_ID", f"{address}:{_ROOT_PORT}")


def set_envvar_defaults() -> None:
    """Sets ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB, unless it is set."""
    os.environ.setdefault("ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB", "50")


def _told(name: str, default: str) -> str:
    if name not in os.environ:
        logger.warning("%s is not set in the environment; taken for %s.", name, default)
    return os.environ.get(name, default)


def _take_core(local_rank: int, local_world_size: int) -> None:
    if os.environ.get("NEURON_RT_VISIBLE_CORES"):
        remap_visible_cores(local_rank, local_world_size)
    else:
        os.environ["NEURON_RT_VISIBLE_CORES"] = str(local_rank)


def configure_pjrt_environment() -> None:
    """Sets up a process that torchrun has started, by torchrun's variables; before the client.

    Raises:
        ValueError: NEURON_RT_VISIBLE_CORES does not name a core for each process.
    """
    from torch.distributed import is_torchelastic_launched

    set_rt_root_comm_id()
    if os.environ.get("XLA_USE_SPMD", "0") == "1" or not is_torchelastic_launched():
        return
    if not {"NEURON_PJRT_PROCESSES_NUM_DEVICES", "NEURON_PJRT_WORLD_SIZE"} & os.environ.keys():
        os.environ["NEURON_PJRT_WORLD_SIZE"] = _told("WORLD_SIZE", "1")
        os.environ["PJRT_LOCAL_PROCESS_COUNT"] = _told("LOCAL_WORLD_SIZE", "1")
    local_rank = _told("LOCAL_RANK", "0")
    _take_core(int(local_rank), int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    os.environ["NEURON_PJRT_PROCESS_INDEX"] = _told("RANK", "0")
    os.environ["PJRT_LOCAL_PROCESS_RANK"] = local_rank


def num_local_processes() -> int:
    """The number of processes of a job on this machine: NEURONCORE_NUM_DEVICES, or 1.

    Tells the plugin that each of them has one core.
    """
    set_rt_root_comm_id()
    processes = int(os.environ.get("NEURONCORE_NUM_DEVICES", "1"))
    os.environ["NEURON_PJRT_PROCESSES_NUM_DEVICES"] = ",".join(["1"] * processes)
    return processes


def initialize_env(local_rank: int, local_world_size: int) -> None:
    """Sets up one of a machine's processes, where torchrun has not started them."""
    from torch.distributed import is_torchelastic_launched

    if not is_torchelastic_launched():
        os.environ["NEURON_PJRT_PROCESS_INDEX"] = str(local_rank)
        _take_core(local_rank, local_world_size)


class NeuronPlugin(DevicePlugin):
    """The library of `libneuronxla`, or that of NEURON_LIBRARY_PATH."""

    def library_path(self) -> str:
        given = os.environ.get("NEURON_LIBRARY_PATH")
        if given:
            return given
        try:
            from libneuronxla.libneuronpjrt_path import libneuronpjrt_path
        except ImportError as error:
            raise PluginError(
                "PJRT_DEVICE=NEURON: expected the package libneuronxla, which is not installed. "
                "Install it, or set NEURON_LIBRARY_PATH to the plugin's library."
            ) from error
        return libneuronpjrt_path()

    def prepare(self) -> None:
        set_envvar_defaults()
        configure_pjrt_environment()

    def configure_single_process(self) -> None:
        initialize_env(0, 1)

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        initialize_env(local_rank, local_world_size)

    def makes_one_client(self) -> bool:
        return True

    def physical_chip_count(self) -> int:
        return num_local_processes()
