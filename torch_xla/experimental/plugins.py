"""PJRT plugins for devices that torch_xla does not know by itself.

A package offers its plugin by the entry point group `torch_xla.plugins`, or a program registers it:

    class MyPlugin(plugins.DevicePlugin):
        def library_path(self):
            return "/path/to/pjrt_plugin_mine.so"

    plugins.register_plugin("MINE", MyPlugin())

after which `PJRT_DEVICE=MINE` selects it.
"""

from __future__ import annotations

import sys

from torch_xla._src.device.plugins import (
    DevicePlugin,
    PluginError,
    find,
    register_installed_plugins,
    register_plugin,
)
from torch_xla._src.device.plugins import _registered as _plugin_registry  # noqa: F401  by their names

__all__ = [
    "DevicePlugin",
    "PluginError",
    "default",
    "register_installed_plugins",
    "register_plugin",
    "use_dynamic_plugins",
    "using_dynamic_plugins",
]


def default() -> DevicePlugin:
    """The plugin of the device type in use."""
    return find().plugin


def use_dynamic_plugins() -> None:
    """Registers the installed plugins; must come before the first use of a device.

    Without this call, an installed plugin is found when `PJRT_DEVICE` names it.
    """
    extension = sys.modules.get("torch_xla._XLAC")
    initialized = getattr(extension, "_xla_is_initialized", None)
    if initialized is not None and initialized():
        raise RuntimeError(
            "use_dynamic_plugins: expected to be called before the first use of a device, "
            "which has happened. Call it right after importing torch_xla."
        )
    register_installed_plugins()


def using_dynamic_plugins() -> bool:
    """Always true: every device is reached through a plugin library."""
    return True
