"""Names of devices."""

from __future__ import annotations

import re


def parse_xla_device(device: str) -> tuple[str, int]:
    """("TPU", 3) of "TPU:3".

    Raises:
        ValueError: It is no such name.
    """
    parts = re.fullmatch(r"([A-Za-z]\w*):(\d+)", device)
    if parts is None:
        raise ValueError(f"parse_xla_device: expected a name such as 'TPU:3', got '{device}'.")
    return parts[1], int(parts[2])
