"""Metrics, and what else helps to understand a run."""

from torch_xla._src.submodules import importer as _importer

__getattr__ = _importer(__name__)
