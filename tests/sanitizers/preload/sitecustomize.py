"""Python imports this at its start where scripts/sanitized.sh put its folder on PYTHONPATH: the
extension that TORCH_XLA_TEST_EXTENSION names is loaded in place of the one beside the package."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

NAME = "torch_xla._XLAC"


class Instrumented:
    @staticmethod
    def find_spec(name: str, path=None, target=None) -> importlib.machinery.ModuleSpec | None:
        if name != NAME:
            return None
        return importlib.util.spec_from_file_location(NAME, os.environ["TORCH_XLA_TEST_EXTENSION"])


sys.meta_path.insert(0, Instrumented)
