"""What `import torch_xla` does to PyTorch, in one list. Each part has its own module."""

from __future__ import annotations

import os

import torch

from torch_xla import _XLAC


def install() -> None:
    """Called once, at the end of the package's import."""
    from torch_xla._src import device_module, module_identity, optim_defaults, pickling

    _XLAC._set_package_folder(os.path.dirname(os.path.dirname(__file__)))
    _XLAC._set_plugin_resolver(_choose_plugin)
    torch._register_device_module("xla", device_module)
    device_module.join_manual_seed()
    module_identity.install()
    pickling.install()
    optim_defaults.install()


def _choose_plugin() -> dict:
    """Called by the extension when the first device is needed."""
    from torch_xla._src import plugins

    spec = plugins.find()
    spec.prepare()
    return {
        "device_type": spec.device_type,
        "library_path": spec.library_path,
        "options": dict(spec.client_options),
        "compile_options": dict(spec.compile_options),
    }
