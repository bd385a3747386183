"""Something to do when another module is imported, without importing it before."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, action: Callable[[], None]) -> None:
    """Calls `action` once the module is imported: now, or when someone imports it."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, action: Callable[[], None]):
        self._name = name
        self._action = action
        self._asking_others = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._asking_others:
            return None
        self._asking_others = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking_others = False
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            sys.meta_path.remove(self)
            self._action()

        spec.loader.exec_module = exec_module
        return spec
