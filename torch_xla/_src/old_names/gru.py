"""`torch.nn.GRU` as 2.9 leaves it: a class of its own, with the original in `GRU._orig`."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn


class GRU(nn.GRU):
    """`torch.nn.GRU`, which is one loop of the program on `xla` by itself."""

    __module__ = "torch_xla.experimental.gru"

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is GRU and kwargs.get("bidirectional"):
            logging.warning(
                "GRU: expected one direction, got bidirectional=True: makes the original nn.GRU."
            )
            return GRU._orig(*args, **kwargs)
        return super().__new__(cls)


def install() -> None:
    """Puts it in the place of the original, once."""
    if nn.GRU is not GRU:
        GRU._orig, nn.GRU = nn.GRU, GRU  # type: ignore[misc]
