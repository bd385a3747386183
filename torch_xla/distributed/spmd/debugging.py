"""Shows how tensors are split among devices, and what programs send between them.

Drawings are tables of the `rich` package: each cell is a part of the tensor, in its place, and
names the devices that hold it.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import torch

from torch_xla import _XLAC
from torch_xla import runtime as xr
from torch_xla.distributed.spmd.mesh import tiles_of
from torch_xla.distributed.spmd.xla_sharding import (  # noqa: F401
    annotate_custom_sharding,
    aot_mark_sharding_fake,
    apply_backward_optimization_barrier,
    apply_xla_patch_to_nn_linear,
    clear_sharding,
    disable_manual_sharding,
    enable_manual_sharding,
    get_1d_mesh,
    get_global_mesh,
    mark_sharding,
    mark_sharding_with_gradients,
    maybe_get_jax,
    maybe_get_torchax,
    requires_jax,
    set_global_mesh,
    shard_as,
    unwrap_sharded_tensor,
    wrap_as_sharded_tensor,
    wrap_if_sharded,
    xla_patched_nn_linear_forward,
)

# True if drawings can be made.
RICH_ENABLED = importlib.util.find_spec("rich") is not None

_COLORS = ("red", "green", "yellow", "blue", "magenta", "cyan", "bright_red", "bright_green")


def collectives(index: int = 0) -> list[tuple[str, int]]:
    """The collectives of a program of this process.

    Args:
        index: Which program: 0 is the one that was used last, 1 the one before it.

    Returns:
        For each operation its kind, "all-reduce" for example, and the bytes of its result on each
        device. Those within a loop are listed once.

    Raises:
        IndexError: There are fewer programs.
    """
    return _XLAC._xla_collectives(index)


def visualize_tensor_sharding(t: torch.Tensor, **kwargs: Any) -> Any:
    """Prints how an xla tensor is split, and returns the table; see `visualize_sharding`.

    Args:
        t: The tensor, of one or two dimensions if it is split.
        kwargs: Those of `visualize_sharding`.
    """
    return visualize_sharding(_XLAC._get_xla_sharding_spec(unwrap_sharded_tensor(t)), **kwargs)


def visualize_sharding(
    sharding: str,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
) -> Any:
    """Prints a sharding, and returns the table.

    Args:
        sharding: As `sharding_of` gives it; "" is replicated.
        use_color: Whether each part has a color of its own.
        scale, min_width: Accepted: cells are as small as what is in them.
        max_width: The width of the drawing in characters.

    Returns:
        A `rich.table.Table`.

    Raises:
        ImportError: The package `rich` is not installed.
        ValueError: The text is no sharding, or has more than two dimensions.
    """
    try:
        import rich.align
        import rich.box
        import rich.console
        import rich.padding
        import rich.style
        import rich.table
    except ImportError as e:
        raise ImportError(
            "visualize_sharding: expected the package rich. Install it with `pip install rich`."
        ) from e
    cells = _cells(sharding)
    rows, columns = cells.shape
    console = rich.console.Console(width=max_width)
    use_color = use_color and console.color_system is not None
    table = rich.table.Table(
        show_header=False,
        show_lines=not use_color,
        padding=0,
        highlight=not use_color,
        pad_edge=False,
        box=None if use_color else rich.box.SQUARE,
    )
    for row in range(rows):
        line = []
        for column in range(columns):
            text = f"{xr.device_type()} {cells[row, column]}"
            style = rich.style.Style()
            if use_color:
                color = _COLORS[(row * columns + column) % len(_COLORS)]
                style = rich.style.Style(bgcolor=color, color="black")
            aligned = rich.align.Align(text, "center", vertical="middle")
            line.append(rich.padding.Padding(aligned, (1, 1, 1, 1), style=style))
        table.add_row(*line)
    print(f"Visualizing {sharding} (showing up to the first two dimensions)")
    console.print(table, end="\n\n")
    return table


def _cells(sharding: str) -> np.ndarray:
    """The devices that hold each part, as texts in two dimensions."""
    if sharding in ("", "{replicated}"):
        return np.array([[str(list(range(xr.global_runtime_device_count())))]])
    tiles = tiles_of(sharding)
    if tiles is None:
        raise ValueError(
            f"visualize_sharding: expected a sharding such as '{{devices=[2,2]0,1,2,3}}' or "
            f"'{{replicated}}', got '{sharding}'."
        )
    *sizes, replicas = tiles.shape
    if len(sizes) > 2:
        raise ValueError(
            f"visualize_sharding: expected at most two dimensions, got {len(sizes)} in "
            f"'{sharding}'."
        )
    parts = tiles.reshape(-1, replicas).tolist()
    texts = [str(part[0]) if replicas == 1 else str(part) for part in parts]
    return np.array(texts).reshape([1] * (2 - len(sizes)) + sizes)
