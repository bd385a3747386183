"""Gradient checkpointing: values are computed again in backward instead of being kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Calls `function(*args, **kwargs)` and recomputes it in backward.

    Values and gradients are those of a plain call; random operations draw the same numbers again.

    Args:
        function: What to compute. It must do the same when it is called again.
        args: Its arguments.
        use_reentrant: As in `torch.utils.checkpoint.checkpoint`.
        preserve_rng_state: Whether random operations draw the same numbers in the recomputation.
        kwargs: Named arguments of `function`, and, if `use_reentrant` is false, the further ones of
            `torch.utils.checkpoint.checkpoint`.
    """
    return torch.utils.checkpoint.checkpoint(
        function,
        *args,
        use_reentrant=use_reentrant,
        preserve_rng_state=preserve_rng_state,
        **kwargs,
    )
