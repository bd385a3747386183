"""Metrics, and what else helps to understand a run: `recompiles()`, `waits()`, `wait_report()`."""

from torch_xla._src.explain import (  # noqa: F401
    Recompile,
    Wait,
    recompiles,
    wait_report,
    waits,
)
from torch_xla._src.submodules import importer as _importer

__getattr__ = _importer(__name__)
