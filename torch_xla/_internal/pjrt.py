"""Starting the processes of a job, by the names of 2.9; programs use `torch_xla.launch`."""

from __future__ import annotations

from torch_xla._src.old_names.pjrt import (
    R,
    _initialize_single_process,
    _merge_replica_results,
    _run_singleprocess,
    _run_thread_per_device,
    _SpawnFn,
    initialize_multiprocess,
    initialize_singleprocess,
    run_multiprocess,
    spawn_threads,
)
from torch_xla._src.old_names.pjrt import spawn_function as spawn

__all__ = [
    "R",
    "_SpawnFn",
    "_initialize_single_process",
    "_merge_replica_results",
    "_run_singleprocess",
    "_run_thread_per_device",
    "initialize_multiprocess",
    "initialize_singleprocess",
    "run_multiprocess",
    "spawn",
    "spawn_threads",
]
