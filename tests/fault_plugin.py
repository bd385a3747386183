"""Says which calls of tests/cpp/fault_plugin fail, and holds its runs.

The process that is tested has PJRT_LIBRARY_PATH set to the plugin, and PJRT_DEVICE to CPU.
"""

from __future__ import annotations

import ctypes
import os

RUN, COMPILE, UPLOAD, DOWNLOAD = range(4)
RESOURCE_EXHAUSTED, INTERNAL = 8, 13
LAUNCH, END, COMPILATION = 1, 2, 3

_plugin = ctypes.CDLL(os.environ["PJRT_LIBRARY_PATH"])
_plugin.fault_count.restype = _plugin.fault_num_held.restype = ctypes.c_int64


def arm(kind: int, nth: int, code: int = INTERNAL, late: bool = False) -> None:
    """The nth call of a kind from now on fails: at once, or, if `late`, by its events and results,
    after it has taken over the inputs that it may. 0: none fails."""
    _plugin.fault_arm(kind, ctypes.c_int64(nth), code, late)


def count(kind: int) -> int:
    """The calls of a kind since it was armed."""
    return _plugin.fault_count(kind)


def has_fired(kind: int) -> bool:
    """Whether the call that was to fail has failed."""
    return bool(_plugin.fault_has_fired(kind))


def hold(what: int) -> None:
    """From now on launches do not return (LAUNCH), runs and reads do not end (END), or compilations
    do not return (COMPILATION)."""
    _plugin.fault_hold(what)


def release() -> None:
    """Lets go what is held."""
    _plugin.fault_release()


def num_held() -> int:
    """The runs, or compilations, that came to the plugin since hold()."""
    return _plugin.fault_num_held()
