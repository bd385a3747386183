"""The core of the API: `torch_xla.core.xla_model`."""

from torch_xla._src.submodules import importer as _importer

__getattr__ = _importer(__name__)
