"""`torch.nn.GRU` under the name of earlier versions."""

from torch import nn

from torch_xla.experimental.scan import scan

__all__ = ["GRU", "scan"]


class GRU(nn.GRU):
    """`torch.nn.GRU`, which is one loop of the program on `xla` by itself."""
