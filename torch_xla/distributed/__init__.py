"""Feeding devices with data, and jobs of several replicas."""

from torch_xla._src.submodules import importer as _importer

__getattr__ = _importer(__name__)
