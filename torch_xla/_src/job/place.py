"""This process among those of its job, as its launcher's environment tells.

Read at each call: no process group has to exist, and nothing is imported. First match wins:
torchrun's variables (`xmp.spawn` sets them, too), a SLURM step's, Open MPI's; else one process.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from torch_xla import _XLAC


class Place(NamedTuple):
    rank: int
    world_size: int
    local_rank: int  # among those of this host
    local_world_size: int
    host_index: int


_ALONE = Place(0, 1, 0, 1, 0)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def place() -> Place:
    """All of it.

    Raises:
        ValueError: The launcher's variables contradict each other, or one is missing.
    """
    environment = os.environ
    if environment.get("WORLD_SIZE"):
        return _of_torchrun()
    # They are of a step: a batch script by itself is one process, whatever its allocation.
    if "SLURM_STEP_NUM_TASKS" in environment and "SLURM_PROCID" in environment:
        return _of_slurm()
    if "OMPI_COMM_WORLD_SIZE" in environment:
        return _of_open_mpi()
    return _ALONE


def rank() -> int:
    """This process's number among all."""
    return place().rank


def world_size() -> int:
    """The number of processes."""
    return place().world_size


def replica() -> tuple[int, int]:
    """This process's number among the replicas of the job, and how many those are.

    In SPMD mode all processes are one replica: one program runs on the devices of all.
    """
    here = place()
    return (0, 1) if _XLAC._xla_is_spmd() else (here.rank, here.world_size)


def local_rank() -> int:
    """This process's number among those of its host."""
    return place().local_rank


def local_world_size() -> int:
    """The number of processes of this host."""
    return place().local_world_size


def host_index() -> int:
    """This host's number among all."""
    return place().host_index


def on_one_host() -> bool:
    """True if all processes of the job are on this host."""
    here = place()
    return here.local_world_size == here.world_size


def launcher() -> str:
    """Who started this process as one of several; empty where nobody did."""
    if os.environ.get("WORLD_SIZE"):
        if _XLAC._xla_flag("XLA_JOB_STORE"):
            return "xmp.spawn"
        return "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ else "the environment"
    if "SLURM_STEP_NUM_TASKS" in os.environ:
        return "SLURM"
    return "Open MPI" if "OMPI_COMM_WORLD_SIZE" in os.environ else ""


def master_address() -> str:
    """The address of the host of rank 0."""
    given = os.environ.get("MASTER_ADDR")
    if given:
        return given
    if not os.environ.get("WORLD_SIZE") and os.environ.get("SLURM_STEP_NODELIST"):
        return _first_node(os.environ["SLURM_STEP_NODELIST"])
    return "127.0.0.1"


def master_port() -> int:
    """The port at which rank 0, or its launcher, keeps the job's store.

    Without MASTER_PORT it is made of the launcher's number of the job, so that jobs of one host do
    not meet.
    """
    given = os.environ.get("MASTER_PORT")
    if given:
        return _number("MASTER_PORT")
    step = os.environ.get("SLURM_JOB_ID", "") + os.environ.get("SLURM_STEP_ID", "")
    digits = re.sub(r"\D", "", step or os.environ.get("PMIX_NAMESPACE", ""))
    return 61440 + int(digits or 0) % 4096


def _of_torchrun() -> Place:
    size = _number("WORLD_SIZE")
    if size == 1:
        return _ALONE
    if "RANK" not in os.environ:
        raise ValueError(
            f"torch_xla: expected RANK beside WORLD_SIZE={size} in the environment, got none. "
            "Start the processes with torchrun or torch_xla.launch, or unset WORLD_SIZE."
        )
    rank = _number("RANK")
    # Whoever sets no more than these two has all on one host, or each on one of its own.
    together = os.environ.get("MASTER_ADDR", "127.0.0.1") in _LOOPBACK
    local_size = _number("LOCAL_WORLD_SIZE", size if together else 1)
    return _checked(
        Place(
            rank,
            size,
            _number("LOCAL_RANK", rank % local_size),
            local_size,
            _number("GROUP_RANK", rank // local_size),
        )
    )


def _of_slurm() -> Place:
    node = _number("SLURM_NODEID", 0)
    return _checked(
        Place(
            _number("SLURM_PROCID"),
            _number("SLURM_STEP_NUM_TASKS"),
            _number("SLURM_LOCALID"),
            _tasks_of_node(os.environ.get("SLURM_STEP_TASKS_PER_NODE", "1"), node),
            node,
        )
    )


def _of_open_mpi() -> Place:
    rank = _number("OMPI_COMM_WORLD_RANK")
    local_size = _number("OMPI_COMM_WORLD_LOCAL_SIZE")
    return _checked(
        Place(
            rank,
            _number("OMPI_COMM_WORLD_SIZE"),
            _number("OMPI_COMM_WORLD_LOCAL_RANK"),
            local_size,
            rank // local_size,
        )
    )


def _number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name) or ("" if default is None else str(default))
    if not text.isdigit():
        raise ValueError(f"torch_xla: expected a number in {name}, got '{text}'.")
    return int(text)


def _checked(here: Place) -> Place:
    ranks_fit = here.rank < here.world_size and here.local_rank < here.local_world_size
    if not ranks_fit or not 0 < here.local_world_size <= here.world_size:
        raise ValueError(
            "torch_xla: expected a rank below the number of processes from the launcher, and no "
            f"more on a host than in all, got {here}."
        )
    return here if here.world_size > 1 else _ALONE


def _tasks_of_node(counts: str, node: int) -> int:
    """SLURM's text counts those of all nodes, as in "2(x3),1"."""
    of_all: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts):
        of_all += [int(count)] * int(times or 1)
    return of_all[node]


def _first_node(nodes: str) -> str:
    """SLURM's text names all nodes, as in "gpu[07-09,12],login1"."""
    found = re.match(r"([^\[,]+)(?:\[(\d+))?", nodes)
    if found is None:
        raise ValueError(f"torch_xla: expected names in SLURM_STEP_NODELIST, got '{nodes}'.")
    return found[1] + (found[2] or "")
