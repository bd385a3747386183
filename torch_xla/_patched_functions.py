"""What torch_xla puts in the place of PyTorch's functions, by the names of earlier versions."""

from math import inf

from torch_xla._src.clip_grad import clip_grad_norm_
from torch_xla._src.clip_grad import install as _apply_patches

__all__ = ["_apply_patches", "clip_grad_norm_", "inf"]
