"""Submodules that are imported when they are first named.

Programs write `torch_xla.runtime` or `torch_xla.debug.metrics` after a plain `import torch_xla`.
Importing everything would make that import slow, so a package gives its `__getattr__` to this
module.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any


def importer(
    package: str, names: Mapping[str, str] | None = None, rest: str | None = None
) -> Callable[[str], Any]:
    """A module-level `__getattr__` that imports the submodule of that name.

    Args:
        names: What other modules define, with the module of each.
        rest: A module whose `__all__` are further names.
    """

    def getattr_(name: str) -> Any:
        if names and name in names:
            return getattr(importlib.import_module(names[name]), name)
        if not name.startswith("__"):
            full_name = f"{package}.{name}"
            if importlib.util.find_spec(full_name) is not None:
                return importlib.import_module(full_name)
            if rest is not None and name in (module := importlib.import_module(rest)).__all__:
                return getattr(module, name)
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    return getattr_
