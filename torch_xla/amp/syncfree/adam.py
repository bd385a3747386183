"""Where earlier versions had `Adam`."""

from torch_xla.amp.syncfree import Adam

__all__ = ["Adam"]
