"""Functions that replace PyTorch's, by the names of earlier versions."""

from math import inf

from torch_xla._src.old_names.patches import _patch_fn, _pathch_module
from torch_xla._src.patches.clip_grad import clip_grad_norm_
from torch_xla._src.patches.clip_grad import install as _apply_patches

__all__ = ["_apply_patches", "_patch_fn", "_pathch_module", "clip_grad_norm_", "inf"]
