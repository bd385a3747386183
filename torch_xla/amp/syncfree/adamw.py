"""Where earlier versions had `AdamW`."""

from torch_xla.amp.syncfree import AdamW

__all__ = ["AdamW"]
