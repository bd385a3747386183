"""The version of torch_xla. Its release is that of the PyTorch it runs with."""

from __future__ import annotations

import torch

# The distribution's version, that of pyproject.toml.
DISTRIBUTION_VERSION = "2.13.0"


def _version(torch_version: str) -> str:
    """PyTorch's release; the local part names the distribution where the two differ."""
    release = torch_version.partition("+")[0]
    if release == DISTRIBUTION_VERSION:
        return release
    return f"{release}+torch.xla.{DISTRIBUTION_VERSION}"


__version__ = _version(torch.__version__)
