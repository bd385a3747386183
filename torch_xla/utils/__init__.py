"""Helpers of training programs: serialization, gradient checkpointing, fake data."""

from torch_xla._src.submodules import importer as _importer

__getattr__ = _importer(__name__)
