"""Names that other libraries import from here although they are not documented."""

from torch_xla._src.submodules import importer as _importer

__getattr__ = _importer(__name__)
