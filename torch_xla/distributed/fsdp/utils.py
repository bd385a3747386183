"""Gradient checkpointing of modules."""

from __future__ import annotations

import functools

import torch

from torch_xla.utils.checkpoint import checkpoint


def checkpoint_module(module: torch.nn.Module) -> torch.nn.Module:
    """Has the module's forward pass computed again in the backward pass, so that its activations
    need not be kept.

    Returns:
        The same module, with another `forward`.
    """
    module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
    return module
