"""Names for the parts of a program: which module or optimizer recorded a call."""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as optim
from torch.utils.hooks import RemovableHandle

from torch_xla import _XLAC


class _Thread(threading.local):
    def __init__(self) -> None:
        # The open scopes: of which module or optimizer, and the scope before.
        self.open: list[tuple[int, str]] = []
        self.names: dict[int, str] = {}  # of the modules within the outermost one


_thread = _Thread()
_names_of: weakref.WeakKeyDictionary[torch.nn.Module, dict[int, str]] = weakref.WeakKeyDictionary()


def _names(root: torch.nn.Module) -> dict[int, str]:
    if root not in _names_of:
        name = type(root).__name__
        _names_of[root] = {
            id(m): f"{name}.{path}" if path else name for path, m in root.named_modules()
        }
    return _names_of[root]


def _enter(owner: object, name: str) -> None:
    _thread.open.append((id(owner), _XLAC._xla_set_scope(name)))


def _leave(owner: object) -> None:
    """Leaves the owner's scope, and those within it that an error has left open."""
    owners = [opened for opened, _ in _thread.open]
    if id(owner) in owners:
        first = len(owners) - 1 - owners[::-1].index(id(owner))
        _XLAC._xla_set_scope(_thread.open[first][1])
        del _thread.open[first:]


def _enter_module(module: torch.nn.Module, *_: Any) -> None:
    if torch.compiler.is_compiling():  # its calls are of the compiled function
        return
    if not _thread.open or id(module) not in _thread.names:
        _thread.names = _names(module)
    _enter(module, _thread.names[id(module)])


def _leave_scope(owner: torch.nn.Module | torch.optim.Optimizer, *_: Any) -> None:
    if torch.compiler.is_compiling():
        return
    _leave(owner)


def _enter_optimizer(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if torch.compiler.is_compiling():
        return
    _leave(optimizer)  # PyTorch calls no hook after a step that has raised
    _enter(optimizer, f"{type(optimizer).__name__}.step")


class _Hooks:
    """On all modules and optimizers, while anybody asks for them. Each keeps its number: with
    others, torch.compile would compile its functions anew each time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._handles: list[tuple[RemovableHandle, Callable[..., None]]] = []

    def add(self) -> None:
        with self._lock:
            self._count += 1
            if self._count > 1:
                return
            for handle, hook in self._handles:
                hooks: Any = handle.hooks_dict_ref()
                hooks[handle.id] = hook
                for always_called in handle.extra_dict_ref:
                    always_called()[handle.id] = True
            if not self._handles:
                before = nn_module.register_module_forward_pre_hook(_enter_module)
                after = nn_module.register_module_forward_hook(_leave_scope, always_call=True)
                self._handles = [
                    (before, _enter_module),
                    (after, _leave_scope),
                    (optim.register_optimizer_step_pre_hook(_enter_optimizer), _enter_optimizer),
                    (optim.register_optimizer_step_post_hook(_leave_scope), _leave_scope),
                ]

    def remove(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                for handle, _ in self._handles:
                    handle.remove()


_hooks = _Hooks()


@contextlib.contextmanager
def named_modules() -> Iterator[None]:
    """While entered, calls know the module that records them, as "Net.layers.3.mlp", or the
    optimizer, as "AdamW.step". A backward pass belongs to the modules of its forward pass.

    Forward passes cost some microseconds more for each module.
    """
    _names_of.clear()  # modules may have been added since
    _hooks.add()
    open_, names = list(_thread.open), _thread.names  # of one that is entered already
    scope = _XLAC._xla_set_scope("")
    _XLAC._xla_set_scope(scope)
    try:
        with warnings.catch_warnings():
            # torch.compile warns of hooks on all modules. These do nothing in what it has compiled.
            warnings.filterwarnings("ignore", "Using `torch.compile.* global hooks", UserWarning)
            yield
    finally:
        _hooks.remove()
        _thread.open, _thread.names = open_, names
        _XLAC._xla_set_scope(scope)
