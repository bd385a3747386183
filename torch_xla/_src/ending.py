"""The end of the interpreter: other threads finish, and reports that were asked for are written."""

from __future__ import annotations

import sys
from types import ModuleType

import torch

from torch_xla import _XLAC
from torch_xla._src.insight import explain  # from here on it counts the run's time


def finish() -> None:
    """Called before the interpreter ends: what runs on other threads must be over by then."""
    if torch.get_device_module("xla")._is_in_bad_fork():
        return  # a forked child has none of these threads
    _XLAC._xla_drain_autograd_threads()
    explain.report_at_exit()
    try:
        # Others may wait for what this process has recorded, unless it ends by an error.
        is_well = not hasattr(sys, "last_value")
        if is_well:
            _XLAC._xla_launch_exchanges()
        _XLAC._xla_wait_device_ops()
        if is_well:
            _XLAC._xla_finish_sends()
    except BaseException as error:  # that nobody asked for: it is printed
        _XLAC._fail_at_exit()
        if (watch := _watch()) is not None:
            watch.report(error)
        raise
    finally:
        _XLAC._xla_join_compilations()
        _report_run()
    if (watch := _watch()) is not None:
        watch.leave()


def _watch() -> ModuleType | None:
    """The module, where this process is one of several."""
    return sys.modules.get("torch_xla._src.job.watch")


def _report_run() -> None:
    recording = sys.modules.get("torch_xla._src.insight.recording")
    if recording is not None and recording.began_from_flag():
        from torch_xla._src.report import file as report

        report.report_at_exit()
