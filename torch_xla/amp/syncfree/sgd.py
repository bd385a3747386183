"""Where earlier versions had `SGD`."""

from torch_xla.amp.syncfree import SGD

__all__ = ["SGD"]
