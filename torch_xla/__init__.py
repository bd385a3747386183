"""PyTorch on any accelerator that ships a PJRT plugin.

Importing this package makes the device type `xla` work in PyTorch. Nothing else happens until the
first device is used: no client is created, no device is taken, the environment stays as it is.
"""

from __future__ import annotations

import torch

try:
    from torch_xla import _XLAC
except ImportError as error:
    raise ImportError(
        f"torch_xla: expected the extension torch_xla/_XLAC, built for torch {torch.__version__}, "
        "got: "
        f"{error}. Install torch_xla again (pip install --force-reinstall --no-deps torch_xla, or "
        "`make build` in a checkout), so that it is built for the torch that is installed."
    ) from error

from torch_xla._src import setup as _setup
from torch_xla._src.device.devices import (
    device,
    device_count,
    devices,
    manual_seed,
    real_devices,
    set_custom_compile_options,
)
from torch_xla._src.device.launching import launch
from torch_xla._src.functions.compiling import compile, step
from torch_xla._src.functions.step import sync
from torch_xla._src.submodules import importer as _importer
from torch_xla.version import __version__

_setup.install()

__getattr__ = _importer(
    __name__,
    {
        "save_as_stablehlo": "torch_xla.stablehlo",
        "save_torch_model_as_stablehlo": "torch_xla.stablehlo",
    },
    rest="torch_xla._src.old_names.package",
)
