"""Parts of a model that an exported program shows as one operation, a StableHLO composite."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from torch_xla.experimental import xla_marker

_numbers = itertools.count()


def _get_uuid() -> str:
    """A text that no other call of this process gives."""
    return f"{next(_numbers):x}"


class StableHLOCompositeBuilder:
    """Makes what is computed between its marks one operation of exported programs.

    A compiler that has an operation of the name may take it; others compile what it is made of.

        builder = StableHLOCompositeBuilder("my.scaled_product", {"scale": 0.25})
        q, k = builder.mark_inputs(q, k)
        product = builder.mark_outputs(q @ k.T * 0.25)

    What it computes with beside its inputs (weights) become further operands. A builder inside
    another one's marks adds nothing.

    Args:
        name: The name of the operation.
        attr: Its attributes: numbers, texts, lists of numbers.
    """

    def __init__(self, name: str, attr: dict[str, int | float | str] | None = None) -> None:
        xla_marker._assert_valid_composite_attr(attr)
        self.name = name
        self.attr = attr
        self.id = _get_uuid()

    def mark_inputs(self, *tensors: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The inputs; compute with what this returns. One tensor comes back as itself."""
        return self._mark(tensors, True, None)

    def mark_outputs(self, *tensors: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The outputs; go on with what this returns. One tensor comes back as itself."""
        return self._mark(tensors, False, self.attr)

    def _mark(
        self, tensors: tuple[torch.Tensor, ...], is_input: bool, attr: dict[Any, Any] | None
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        marked = tuple(
            xla_marker.mark_tensor(t, self.name, i, self.id, is_input, attr)
            for i, t in enumerate(tensors)
        )
        return marked[0] if len(marked) == 1 else marked
