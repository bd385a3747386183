"""Names of the package `torch_xla` itself.

That of 2.9 sets up its environment by these when it is imported. Importing this one changes nothing
in the environment, so they have little to do, and do it when they are called.
"""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from collections.abc import Iterable

from torch_xla._patched_functions import _apply_patches
from torch_xla._src.device.plugins import TpuPlugin
from torch_xla._src.ending import finish as _prepare_to_exit
from torch_xla.core import xla_model as xm

__all__ = [
    "_apply_patches",
    "_prepare_to_exit",
    "xm",
    *("_aws_ec2_inf_trn_init", "_check_deprecated_env_var", "_fd", "_tmp_fname", "_found_libtpu"),
    *("_found_libneuronxla", "_init_xla_lazy_backend", "_set_missing_flags", "_setup_debug_env"),
    *("_setup_default_env", "_setup_libtpu_flags"),
    *("_setup_tpu_vm_library_path", "_setup_xla_flags", "_summarize_fn_tracker"),
]

# The file in which 2.9 counts calls, for its summary at the end. The waits and recompiles of a run
# are told at its end without one.
_fd = -1
_tmp_fname = ""


def _set_missing_flags(flags: list[str], sets: Iterable[tuple[str, object]]) -> list[str]:
    """Adds `--name=value` of each pair to a list of compiler flags that lacks the name."""
    known = {re.sub(r"^--", "", flag).partition("=")[0] for flag in flags}
    flags.extend(f"--{name}={value}" for name, value in sets if name not in known)
    return flags


def _setup_xla_flags() -> None:
    """Leaves XLA_FLAGS as they are: the plugin's own are those that PyTorch's numbers need."""


def _setup_libtpu_flags() -> None:
    """Leaves LIBTPU_INIT_ARGS as they are."""


def _setup_default_env() -> None:
    """Leaves the environment as it is; what a plugin needs is set when its library is opened."""


def _setup_debug_env() -> tuple[int, str]:
    """The descriptor and the path of the file in which 2.9 counts calls: none."""
    return _fd, _tmp_fname


def _summarize_fn_tracker() -> None:
    """Has nothing to tell: there is no file of counted calls."""


def _setup_tpu_vm_library_path() -> bool:
    """True if there is a libtpu: that of TPU_LIBRARY_PATH, or an installed one."""
    return bool(os.environ.get("TPU_LIBRARY_PATH") or TpuPlugin().search([]))


def _aws_ec2_inf_trn_init() -> bool:
    """True if the package of Neuron's plugin is installed."""
    return importlib.util.find_spec("libneuronxla") is not None


def _check_deprecated_env_var() -> None:
    """Warns of variables that no longer do anything."""
    for name in ("XLA_USE_FP16", "XLA_DOWNCAST_FP16"):
        if os.environ.get(name):
            warnings.warn(
                f"{name} is deprecated and does nothing. Use torch.autocast('xla', torch.half).",
                stacklevel=2,
            )


def _init_xla_lazy_backend() -> None:
    """Does nothing: the device is there once the package is imported."""


_found_libtpu = _setup_tpu_vm_library_path()
_found_libneuronxla = _aws_ec2_inf_trn_init()
