"""Importing it once made `init_method="pjrt://"` known; `import torch_xla` does by now."""

from torch_xla.distributed import xla_backend

__all__ = ["xla_backend"]
