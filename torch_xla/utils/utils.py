"""Small helpers that training scripts use: fake data, nested data, the environment."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from torch_xla._src.nested import DataWrapper, for_each, replace

__all__ = [
    "DataWrapper",
    "FnDataGenerator",
    "SampleGenerator",
    "for_each_instance",
    "for_each_instance_rewrite",
    "get_print_fn",
    "getenv_as",
    "null_print",
    "timed",
]


class SampleGenerator:
    """Yields the same data a number of times, in the place of a DataLoader.

    Args:
        data: What each iteration yields.
        sample_count: How often.
    """

    def __init__(self, data: Any, sample_count: int):
        self._data = data
        self._count = sample_count

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._count):
            yield self._data

    def __len__(self) -> int:
        return self._count


class FnDataGenerator:
    """Yields `(data, label)` batches: random data and what a function makes of it.

    Args:
        func: Makes the label of a batch of data.
        batch_size: The first dimension of the data.
        gen_tensor: Makes a tensor of given sizes, such as `torch.randn`.
        dims: The other dimensions; none without it.
        count: How many batches.
    """

    def __init__(
        self,
        func: Callable[[torch.Tensor], Any],
        batch_size: int,
        gen_tensor: Callable[..., torch.Tensor],
        dims: Sequence[int] | None = None,
        count: int = 1,
    ):
        self._func = func
        self._sizes = [batch_size, *(dims or ())]
        self._gen_tensor = gen_tensor
        self._count = count

    def __iter__(self) -> Iterator[tuple[torch.Tensor, Any]]:
        for _ in range(self._count):
            data = self._gen_tensor(*self._sizes)
            yield data, self._func(data)

    def __len__(self) -> int:
        return self._count


def for_each_instance(
    value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], None]
) -> None:
    """Calls `fn` with each selected value inside nested data, once each."""
    for_each(value, select_fn, fn)


def for_each_instance_rewrite(
    value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any]
) -> Any:
    """A copy of nested data with `fn(x)` in the place of each selected value `x`."""
    return replace(value, select_fn, lambda values: [fn(x) for x in values])


def getenv_as(name: str, type: Callable[[str], Any], defval: Any = None) -> Any:
    """An environment variable as a type; a bool is 0, 1, true or false. `defval` if not set."""
    text = os.environ.get(name)
    if text is None:
        return defval
    if type is bool:
        words = {"1": True, "true": True, "0": False, "false": False, "": False}
        if text.lower() not in words:
            raise ValueError(f"{name}: expected 0 or 1 in the environment, got '{text}'.")
        return words[text.lower()]
    return type(text)


def null_print(*args: Any, **kwargs: Any) -> None:
    """A `print` that prints nothing."""


def get_print_fn(debug: bool | None = None) -> Callable[..., None]:
    """`print` to standard error if `debug` (by default: if DEBUG is 1), else `null_print`."""
    if debug is None:
        debug = getenv_as("DEBUG", bool, defval=False)
    return (
        (lambda *args, **kwargs: print(*args, file=sys.stderr, **kwargs)) if debug else null_print
    )


@contextmanager
def timed(msg: str, printfn: Callable[[str], None] | None = None) -> Iterator[None]:
    """Context manager and decorator: prints how many seconds a block took."""
    start = time.perf_counter()
    yield
    (printfn or get_print_fn(debug=True))(f"{msg}: {time.perf_counter() - start:.3f} s")
