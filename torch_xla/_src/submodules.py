"""Submodules that are imported when they are first named.

Programs write `torch_xla.runtime` or `torch_xla.debug.metrics` after a plain `import torch_xla`.
Importing everything would make that import slow, so a package gives its `__getattr__` to this
module.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType


def importer(package: str) -> Callable[[str], ModuleType]:
    """A module-level `__getattr__` that imports the submodule of that name."""

    def getattr_(name: str) -> ModuleType:
        if not name.startswith("__"):
            full_name = f"{package}.{name}"
            if importlib.util.find_spec(full_name) is not None:
                return importlib.import_module(full_name)
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    return getattr_
