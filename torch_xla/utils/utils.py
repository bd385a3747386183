"""Small helpers that training scripts use: fake data, nested data, the environment, threads."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch

from torch_xla._src.functions.nested import DataWrapper, for_each, replace

__all__ = [
    "Cleaner",
    "DataWrapper",
    "FnDataGenerator",
    "LazyProperty",
    "SampleGenerator",
    "TimedScope",
    "TmpFolder",
    "as_list",
    "check_env_flag",
    "eprint",
    "flatten_nested_tuple",
    "for_each_instance",
    "for_each_instance_rewrite",
    "get_free_tcp_ports",
    "get_print_fn",
    "getenv_as",
    "list_copy_append",
    "null_print",
    "parallel_work",
    "shape",
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
        self._left = sample_count

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._count):
            yield self._data

    def __len__(self) -> int:
        return self._count

    def __next__(self) -> Any:
        return self.next()

    def next(self) -> Any:
        """The data, so often in all; iterations do not count."""
        self._left -= 1
        if self._left < 0:
            raise StopIteration
        return self._data


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
        self._left = count

    def __iter__(self) -> Iterator[tuple[torch.Tensor, Any]]:
        for _ in range(self._count):
            yield self._batch()

    def __len__(self) -> int:
        return self._count

    def __next__(self) -> tuple[torch.Tensor, Any]:
        return self.next()

    def next(self) -> tuple[torch.Tensor, Any]:
        """A batch, `count` in all; iterations do not count."""
        self._left -= 1
        if self._left < 0:
            raise StopIteration
        return self._batch()

    def _batch(self) -> tuple[torch.Tensor, Any]:
        data = self._gen_tensor(*self._sizes)
        return data, self._func(data)


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


def _for_each_instance(
    value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], None], seen: set[int]
) -> None:
    """`for_each_instance` of what is not in `seen`, a set of ids that grows."""

    def visit(found: Any) -> None:
        if id(found) not in seen:
            seen.add(id(found))
            fn(found)

    for_each(value, select_fn, visit)


def _for_each_instance_rewrite(
    value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any], rwmap: dict[int, Any]
) -> Any:
    """`for_each_instance_rewrite` with the results of `rwmap`, by id; it adds those it made."""

    def rewrite(found: Any) -> Any:
        if id(found) not in rwmap:
            rwmap[id(found)] = fn(found)
        return rwmap[id(found)]

    return for_each_instance_rewrite(value, select_fn, rewrite)


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
    return eprint if debug else null_print


def eprint(*args: Any, **kwargs: Any) -> None:
    """`print` to standard error."""
    print(*args, file=sys.stderr, **kwargs)


class TimedScope:
    """Context manager: prints how many seconds a block took, and how it failed.

    Args:
        msg: What the line begins with.
        printfn: Prints a line.
    """

    def __init__(self, msg: str = "", printfn: Callable[[str], None] | None = eprint):
        self._msg = msg
        self._print = printfn or null_print
        self._error: BaseException | None = None

    def __enter__(self) -> TimedScope:
        self._start = time.perf_counter()
        return self

    def set_error(self, error: BaseException) -> None:
        """Says what went wrong, where the block does not raise it."""
        self._error = error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        seconds = time.perf_counter() - self._start
        failure = error or self._error
        reason = f" (failed: {failure!r})" if failure is not None else ""
        self._print(f"{self._msg}: {seconds:.3f} s{reason}")


def timed(
    fn: Callable[[], Any], msg: str = "", printfn: Callable[[str], None] | None = eprint
) -> Any:
    """Returns `fn()` and prints how many seconds it took."""
    with TimedScope(msg, printfn):
        return fn()


class Cleaner:
    """Context manager: calls a function at the end of the block."""

    def __init__(self, func: Callable[[], None]):
        self._func = func

    def __enter__(self) -> Cleaner:
        return self

    def __exit__(self, *_: object) -> None:
        self._func()


class TmpFolder:
    """Context manager: the path of a new folder, which is removed at the end of the block."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp()

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.name, ignore_errors=True)


class LazyProperty:
    """A value that is made when it is first asked for.

    Args:
        gen_fn: Makes it.
    """

    def __init__(self, gen_fn: Callable[[], Any]):
        self._make = gen_fn

    @property
    def value(self) -> Any:
        """The value, made once."""
        if not hasattr(self, "_value"):
            self._value = self._make()
        return self._value


def as_list(t: Any) -> list[Any] | tuple[Any, ...]:
    """A list or tuple as it is, anything else in a list."""
    return t if isinstance(t, (list, tuple)) else [t]


def list_copy_append(ilist: list[Any], item: Any) -> list[Any]:
    """A new list with an item more."""
    return [*ilist, item]


def flatten_nested_tuple(inputs: Any) -> tuple[Any, ...]:
    """The leaves of tuples in tuples, in order."""
    if not isinstance(inputs, tuple):
        return (inputs,)
    return tuple(leaf for value in inputs for leaf in flatten_nested_tuple(value))


def shape(inputs: Any) -> list[int]:
    """The sizes of lists in lists, from those of the first elements."""
    sizes = []
    while isinstance(inputs, (list, tuple)):
        sizes.append(len(inputs))
        if not inputs:
            break
        inputs = inputs[0]
    return sizes


def check_env_flag(name: str, default: str = "") -> bool:
    """True if an environment variable says yes: on, 1, yes, true or y."""
    return os.environ.get(name, default).upper() in ("ON", "1", "YES", "TRUE", "Y")


def get_free_tcp_ports(n: int = 1) -> list[int]:
    """Ports of this machine that nobody listens on at this moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(("", 0))
        return [s.getsockname()[1] for s in sockets]


def parallel_work(num_workers: int, fn: Callable[..., Any], *args: Any) -> list[Any]:
    """`list(map(fn, *args))` on some threads.

    Args:
        num_workers: How many.
        fn: The function.
        args: An iterable for each of its arguments.
    """
    with ThreadPoolExecutor(num_workers) as threads:
        return list(threads.map(fn, *args))
