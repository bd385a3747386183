"""The service by which processes of 2.9 agree on the step that answers SIGTERM.

Of one process nobody has to agree: it watches the signal as `CheckpointManager` does.
"""

from __future__ import annotations

from typing import Any

_is_initialized = False
_watch: Any = None


def _ensure_xla_coordinator_initialized(
    global_rank: int, world_size: int, master_addr: str, master_port: str = "8547"
) -> None:
    """Starts nothing: one process needs no service.

    Raises:
        NotImplementedError: There are several processes.
    """
    global _is_initialized
    if world_size != 1:
        raise NotImplementedError(
            f"_ensure_xla_coordinator_initialized: expected one process, got {world_size}."
        )
    _is_initialized = True


def _expect(there: Any, name: str) -> None:
    if not there:
        raise RuntimeError(f"expected a call of {name} before, got none.")


def _activate_preemption_sync_manager() -> None:
    """Notes SIGTERM from now on."""
    from torch_xla.experimental.distributed_checkpoint._preemption import Watch

    global _watch
    _expect(_is_initialized, "_ensure_xla_coordinator_initialized")
    if _watch is None:
        _watch = Watch(None)


def _deactivate_preemption_sync_manager() -> None:
    """Notes it no more."""
    global _watch
    _expect(_is_initialized, "_ensure_xla_coordinator_initialized")
    _watch = None


def _sync_point_reached(step: int) -> bool:
    """True if this step is the first that is asked about after the signal."""
    _expect(_watch, "_activate_preemption_sync_manager")
    return _watch.reached(step)


FUNCTIONS = (
    _ensure_xla_coordinator_initialized,
    _activate_preemption_sync_manager,
    _deactivate_preemption_sync_manager,
    _sync_point_reached,
)
