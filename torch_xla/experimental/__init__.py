"""Parts whose interface may still change, and old names of parts that have moved."""

from torch_xla._src.submodules import importer as _importer

__getattr__ = _importer(__name__)
