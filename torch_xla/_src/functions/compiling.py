"""`torch_xla.compile`: what a function or a block computes is one graph."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch_xla import _XLAC
from torch_xla._src.functions.step import barrier, clear_pending


def compile(
    f: Callable | None = None,
    full_graph: bool = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
    *,
    num_different_graphs_allowed: int | None = None,
    replay: bool | None = None,
) -> Any:
    """Makes what a function computes one graph: forward, backward and optimizer, if it has them.

    What was recorded before a call is launched at its start, what the call recorded at its end. In
    eager mode the function is recorded like everything is without it. A compiled function that is
    called inside another one belongs to that one's graph.

        @torch_xla.compile          # or step = torch_xla.compile(step, full_graph=True)
        def step(batch, target): ...

        with torch_xla.compile():   # a block
            loss = step(batch, target)

    The function may do anything that Python can, and its Python runs at each call. If it raises,
    what it recorded is launched as well.

    Args:
        f: A function or module. Without one, the result is a context manager and a decorator.
        full_graph: Whether a value that is read inside, and a barrier inside, are errors. Without
            it they end a graph and begin another.
        name: What its programs are called in reports; the function's own name by default, that of
            a module's class.
        max_different_graphs: How many different graphs the calls may have altogether, also by other
            functions that `compile` has made of `f` with such a limit. A call with one more raises
            before it is compiled, and says what differs.
        num_different_graphs_allowed: Another name of `max_different_graphs`.
        replay: False or None. Calls that run no Python are those of
            `torch.compile(backend="openxla")`.

    Returns:
        A function that takes and returns what `f` does.

    Raises:
        TypeError: `f` cannot be called, or returns before it has run (a coroutine, a generator).
        ValueError: The number of graphs is not positive, or was given under both names; or
            `replay` is set.
        RuntimeError: From a call: a second graph with `full_graph`, or one too many.

    Source: torch_xla.compile of PyTorch/XLA 2.5 to 2.9.
    """
    most = _number_of_graphs(max_different_graphs, num_different_graphs_allowed)
    if replay:
        raise ValueError(
            "torch_xla.compile: expected replay=None, got True. Calls are no longer replayed: "
            "nothing proves that their Python would have done the same. Use "
            'torch.compile(step, backend="openxla"), which guards what the Python depends on, with '
            "an optimizer that is compiled, too."
        )
    if f is None:
        return _Compiling(full_graph, name, most)
    if not callable(f):
        raise TypeError(f"torch_xla.compile: expected a function, got {type(f).__name__}.")
    if inspect.iscoroutinefunction(f) or inspect.isgeneratorfunction(f):
        raise TypeError(
            f"torch_xla.compile: expected a function that has computed when it returns, got the "
            f"generator or coroutine {f.__qualname__}. Compile the functions that it calls."
        )
    if name is None:
        name = getattr(f, "__name__", type(f).__name__)  # that of its class, of a module
    region = _region_of(f, name, full_graph, most)

    @functools.wraps(f)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        if _XLAC._xla_in_region():
            return f(*args, **kwargs)
        clear_pending(region)
        with _launched_if_it_raises(region):
            result = f(*args, **kwargs)
        barrier("", "torch_xla.compile", region=region)
        return result

    return compiled


def step(function: Callable | None = None) -> Any:
    """Makes a block of code, or a function, one graph of its own: `compile` without limits.

    with torch_xla.step():
        loss = train(batch)

    @torch_xla.step()       # `@torch_xla.step` does the same
    def train_step(batch): ...
    """
    return compile(function)


# The first region of each function whose graphs are limited in number; others count with it.
_limited: weakref.WeakKeyDictionary[Any, _XLAC._Region] = weakref.WeakKeyDictionary()


def _region_of(f: Callable, name: str, full_graph: bool, most: int | None) -> _XLAC._Region:
    if most is None:
        return _XLAC._Region(name, full_graph, most)
    try:
        like = _limited.get(f)
        region = _XLAC._Region(name, full_graph, most, like)
        if like is None:
            _limited[f] = region
    except TypeError:  # it has no hash, or no weak references
        return _XLAC._Region(name, full_graph, most)
    return region


def _number_of_graphs(number: int | None, old: int | None) -> int | None:
    if number is not None and old is not None:
        raise ValueError(
            "torch_xla.compile: expected max_different_graphs or num_different_graphs_allowed, got "
            "both."
        )
    number = old if number is None else number
    if number is not None and number < 1:
        raise ValueError(f"torch_xla.compile: expected at least one graph, got {number}.")
    return number


@contextmanager
def inside(region: _XLAC._Region) -> Iterator[None]:
    """Calls that are recorded in the block belong to the region."""
    region.enter()
    try:
        yield
    finally:
        _XLAC._xla_leave_region()


@contextmanager
def _launched_if_it_raises(region: _XLAC._Region) -> Iterator[None]:
    """`inside`; after an exception comes the barrier, without the region's limits."""
    try:
        with inside(region):
            yield
    except BaseException:
        barrier("", "torch_xla.compile")
        raise


@contextmanager
def _one_graph(region: _XLAC._Region) -> Iterator[None]:
    if _XLAC._xla_in_region():
        yield
        return
    clear_pending(region)
    with _launched_if_it_raises(region):
        yield
    barrier("", "torch_xla.compile", region=region)


class _Compiling:
    """`torch_xla.compile()` without a function."""

    def __init__(self, full_graph: bool, name: str | None, most: int | None):
        self._options = (full_graph, name, most)
        self._region = _XLAC._Region(name or "", full_graph, most)
        self._blocks: list[AbstractContextManager] = []

    def __call__(self, f: Callable) -> Callable:
        full_graph, name, most = self._options
        return compile(f, full_graph, name, most)

    def __enter__(self) -> None:
        self._blocks.append(_one_graph(self._region))
        self._blocks[-1].__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._blocks.pop().__exit__(*error)
