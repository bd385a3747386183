"""Calls of compiled functions that are recorded without running their Python.

A function that has no effect but on tensors records the same at each call for which all that it
reads is as it was. So the second call of a function is profiled, to learn which code runs; the
third is watched: what it can read is walked before and after (`csrc/python/reach.h`), and what it
recorded is kept (`csrc/dispatch/record/step_replay.h`). Later calls walk again, and where nothing
but values of tensors differs, record what was kept.

What cannot be seen through is refused, and then each call runs the function as ever: built-in
functions that are not known to depend on their arguments alone (the clock, files, random numbers of
the CPU), values that are read, objects with a state of C's, effects on what outlives the call.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import logging
import operator
import os
import re
import sys
import sysconfig
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_xla import _XLAC

_LEAST_CALLS = 1  # that run before one is looked at
_MOST_TRIES = 4
_MOST_KEPT = 8

_TORCH = os.path.dirname(torch.__file__) + os.sep
_XLA = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STDLIB = sysconfig.get_path("stdlib") + os.sep
_SITE = sysconfig.get_path("purelib") + os.sep

# Code of others that reads nothing but its arguments, globals that no one changes while a program
# trains, and what is walked.
_TRUSTED_CODE = (
    *(
        _TORCH + part
        for part in (
            "__init__.py",
            "_C/",
            "_VF.py",
            "_compile.py",
            "_jit_internal.py",
            "_ops.py",
            "_tensor.py",
            "_utils.py",
            "amp/",
            "autograd/",
            "compiler/__init__.py",
            "functional.py",
            "nn/",
            "optim/",
            "overrides.py",
            "return_types.py",
            "utils/_contextlib.py",
            "utils/_foreach_utils.py",
            "utils/_pytree.py",
            "utils/hooks.py",
        )
    ),
    *(_XLA + part for part in ("_src/optim_defaults.py", "_src/clip_grad.py", "amp/")),
    *(
        _STDLIB + part
        for part in (
            "_collections_abc.py",
            "_weakrefset.py",
            "abc.py",
            "collections/",
            "contextlib.py",
            "copy.py",
            "copyreg.py",
            "dataclasses.py",
            "enum.py",
            "functools.py",
            "numbers.py",
            "operator.py",
            "types.py",
            "typing.py",
            "weakref.py",
        )
    ),
)
# Functions of PyTorch and of the standard library's elsewhere that those run.
_TRUSTED_FUNCTIONS = {
    *("DisableContext.__call__.<locals>._fn", "_callback_from_stance", "graph_break"),  # _dynamo
    *("annotate", "push_user_annotation", "ContextProp.__get__", "current_accelerator"),
    "Logger.getEffectiveLevel",
}
_TRUSTED_MODULES = ("torch", "torch_xla", "math", "operator", "functools", "itertools", "typing")
# Built-in functions that read no more than their arguments, by the module that defines them.
_PURE_MODULES = {
    "math",
    "_operator",
    "itertools",
    "_functools",
    "_collections",
    "_collections_abc",
    "_abc",
    "_weakref",
    "_contextvars",  # PyTorch copies a context; its variables have methods of a type
    "typing",
    "_typing",
}
_PURE_BUILTINS = {
    *("abs", "all", "any", "callable", "chr", "delattr", "divmod", "format", "getattr", "hasattr"),
    *("hash", "id", "isinstance", "issubclass", "iter", "len", "max", "min", "next", "ord", "pow"),
    *("repr", "round", "setattr", "sorted", "sum", "__build_class__"),
}
# What the user's own code must not use: attributes that no code names, and addresses.
_UNSEEN_READS = (
    *(getattr, setattr, delattr, hasattr, id, hash, repr),
    *(operator.attrgetter, operator.methodcaller),
)
_PURE_TYPES = (
    *(bool, bytes, complex, dict, float, frozenset, int, list, object, range, set, slice, str),
    *(tuple, type, types.MappingProxyType, types.MethodType),
)
# Parts of names of PyTorch's functions that read or change what is not walked.
_IMPURE_WORDS = re.compile(
    r"memory|event|stream|record|profil|seed|rng|generator|_jit|dynamo|item|tolist|numpy|cuda|"
    r"clock|time|thread|storage|data_ptr|_cdata|save|load|print|warn|version"
)
# Attributes that differ from call to call, and one that leads to others by their names.
_UNSEEN_ATTRIBUTES = {"_version", "_cdata", "__dict__"}
_DATA = bool | int | float | str | dict | list | set | None
# Their objects are what they are.
_OPAQUE = (
    logging.Logger,
    re.Pattern,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    types.GenericAlias,
    types.UnionType,
    typing._Final,
)


NO_REPLAY = object()


class Unfit(Exception):
    """Why a function's calls are not replayed."""


class Replays:
    """The calls of one compiled function."""

    def __init__(self, function: Callable, is_on: bool | None = None):
        self._function = function
        self._is_on = _XLAC._xla_flag("XLA_REPLAY") if is_on is None else is_on
        self._calls = 0
        self._tries = 0
        self._next_try = _LEAST_CALLS
        self._known: Known | None = None
        self._kept: list[tuple[_XLAC._Replay, Callable]] = []
        self.refusals: list[str] = []

    def call(self, args: tuple, kwargs: dict) -> Any:
        """The result of a call that could be replayed, or NO_REPLAY. Nothing waits by now."""
        if not self._kept or sys.gettrace() is not None:  # a debugger wants to see the code run
            return NO_REPLAY
        for i, (replay, build) in enumerate(self._kept):
            results = replay.call(args, kwargs)
            if results is not None:
                if i > 0:
                    self._kept.insert(0, self._kept.pop(i))
                return build(results)
        return NO_REPLAY

    def run(self, args: tuple, kwargs: dict) -> Any:
        """Runs the function, in its region, and may watch it."""
        self._calls += 1
        if not self._wants_look():
            return self._function(*args, **kwargs)
        if self._known is None:
            return self._learn(args, kwargs)
        return self._watch(args, kwargs)

    def _wants_look(self) -> bool:
        return (
            self._is_on
            and self._calls > self._next_try
            and self._tries < _MOST_TRIES
            and len(self._kept) < _MOST_KEPT
            and sys.getprofile() is None
            and sys.gettrace() is None
        )

    def _refuse(self, why: str) -> None:
        self.refusals.append(why)
        _XLAC._xla_add_to_counter(f"NotReplayed.{why}")
        self._tries += 1
        self._next_try = self._calls + 4**self._tries
        self._known = None

    def _learn(self, args: tuple, kwargs: dict) -> Any:
        profile = Profile()
        with profile:
            result = self._function(*args, **kwargs)
        try:
            self._known = Known(self._function, profile, args, kwargs)
        except Unfit as why:
            self._refuse(str(why))
        return result

    def _watch(self, args: tuple, kwargs: dict) -> Any:
        known = self._known
        assert known is not None
        replay = known.replay(self._function)
        try:
            replay.begin(args, kwargs)
        except RuntimeError as why:
            self._refuse(str(why))
            return self._function(*args, **kwargs)
        profile = Profile()
        cpu_state = torch.get_rng_state()
        try:
            with profile:
                result = self._function(*args, **kwargs)
            try:
                if not profile.codes <= known.codes:
                    raise Unfit("runs other code than before")
                profile.check()
                if not torch.equal(cpu_state, torch.get_rng_state()):
                    raise Unfit("draws random numbers on the CPU")
                tensors: list[torch.Tensor] = []
                build = _builder(result, tensors, replay)
                replay.end(args, kwargs, tensors, _histories(tensors, replay))
            except (Unfit, RuntimeError) as why:
                self._refuse(str(why).splitlines()[0])
                return result
        finally:
            replay.drop()
        self._kept.insert(0, (replay, build))
        return result


class Profile:
    """What a block runs: code objects, and built-in functions by type, module and name."""

    def __init__(self) -> None:
        self._namespaces: dict[tuple[types.CodeType, int], dict] = {}
        self._built_in: set[tuple[type | None, str | None, str]] = set()

    def __enter__(self) -> None:
        self._stack = contextlib.ExitStack()
        # A backward pass on another thread would run its hooks unseen.
        self._stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        sys.setprofile(self._note)

    def __exit__(self, *error: Any) -> None:
        self._is_whole = sys.getprofile() == self._note
        sys.setprofile(None)
        self._stack.close()
        self._namespaces = {
            key: value
            for key, value in self._namespaces.items()
            if key[0] is not Profile.__exit__.__code__
        }
        self._built_in -= {(None, "sys", "getprofile"), (None, "sys", "setprofile")}

    def _note(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self._namespaces[frame.f_code, id(frame.f_globals)] = frame.f_globals
        elif event == "c_call":
            self._built_in.add(_identity(argument))

    @property
    def codes(self) -> set[types.CodeType]:
        return {code for code, _ in self._namespaces}

    @property
    def namespaces(self) -> Iterator[tuple[types.CodeType, dict]]:
        """Each code object with the globals of the function that ran it."""
        return ((code, namespace) for (code, _), namespace in self._namespaces.items())

    def check(self) -> None:
        """Raises Unfit where code or a built-in function may read or change what is not walked."""
        if not self._is_whole:
            raise Unfit("sets a profile function")
        for code in self.codes:
            path = code.co_filename
            if _is_trusted(code):
                continue
            if _is_library(path):
                raise Unfit(f"runs {code.co_name} of {os.path.basename(path)}")
        for kind, module, name in self._built_in:
            if not _is_pure(kind, module, name):
                owner = module if kind is None else kind.__name__
                raise Unfit(f"calls {owner}.{name}")


def _identity(built_in: Any) -> tuple[type | None, str | None, str]:
    """Of a built-in function: the type that it belongs to, its module and its name."""
    owner = getattr(built_in, "__self__", None)
    # What pybind11 makes belongs to a capsule.
    is_function = owner is None or isinstance(owner, types.ModuleType)
    is_function = is_function or type(owner).__name__ == "PyCapsule"
    kind = getattr(built_in, "__objclass__", None) if is_function else type(owner)
    if isinstance(owner, type):
        kind = owner
    return kind, getattr(built_in, "__module__", None), built_in.__name__


def _check_use(value: Any) -> None:
    """Raises Unfit where a value that code can get at may be called by C, which no profile sees,
    and reads or changes what is not walked."""
    if any(value is unseen for unseen in _UNSEEN_READS):
        raise Unfit(f"uses {value.__name__}")
    if not isinstance(value, types.BuiltinFunctionType | types.MethodDescriptorType):
        return
    kind, module, name = _identity(value)
    if not _is_pure(kind, module, name):
        raise Unfit(f"may call {module if kind is None else kind.__name__}.{name}")


def _is_library(path: str) -> bool:
    """Whether a file is PyTorch's, this package's or the standard library's."""
    if path.startswith((_TORCH, _XLA)):
        return True
    return path.startswith(_STDLIB) and not path.startswith(_SITE)


def _is_trusted(code: types.CodeType) -> bool:
    path = code.co_filename
    if path.startswith(_TRUSTED_CODE):
        return True
    return code.co_qualname in _TRUSTED_FUNCTIONS and path.startswith((_TORCH, _STDLIB + "logging"))


def _is_pure(kind: type | None, module: str | None, name: str) -> bool:
    if kind is None:
        if module == "builtins":
            return name in _PURE_BUILTINS
        if module in _PURE_MODULES:
            return True
        return _is_torch(module) and _is_pure_name(name)
    if issubclass(kind, torch.Tensor) or _is_torch(kind.__module__):
        return _is_pure_name(name)
    return (
        issubclass(kind, _PURE_TYPES)
        or kind.__module__ in _PURE_MODULES
        or (kind.__module__ == "weakref")
    )


def _is_torch(module: str | None) -> bool:
    return module is not None and (module == "torch" or module.startswith("torch."))


def _is_pure_name(name: str) -> bool:
    return not _IMPURE_WORDS.search(name)


class Known:
    """What the code of a call can read, beside its arguments and its closure."""

    def __init__(self, function: Callable, profile: Profile, args: tuple, kwargs: dict):
        profile.check()
        self.codes = profile.codes
        attributes: set[str] = set()
        self._stored: set[str] = set()
        for code in profile.codes:
            if not _is_trusted(code):
                attributes.update(_attributes(code, "LOAD_ATTR", "LOAD_METHOD"))
                self._stored.update(_attributes(code, "STORE_ATTR", "DELETE_ATTR"))
        if unseen := attributes & _UNSEEN_ATTRIBUTES:
            raise Unfit(f"reads {min(unseen)} of an object")
        self._names: dict[tuple[int, str], tuple[dict, str]] = {}
        self._others: list[Any] = []
        self._modules: set[int] = set()
        for code, namespace in profile.namespaces:
            is_trusted = _is_trusted(code)
            for name in _global_names(code):
                self._add(namespace, name, attributes, is_trusted)
        first = self.replay(function)
        self._look(first, args, kwargs)
        functions = list(_functions_of_classes(first.types(), profile.codes))
        second, known = first, -1
        while len(second.types()) > known:  # values of classes lead to other classes
            known = len(second.types())
            self._others = [*functions, *_values_of_classes(second.types())]
            second = self.replay(function)
            self._look(second, args, kwargs)
        for value in (*second.built_ins(), *second.types()):
            _check_use(value)
        reached = second.codes() | {f.__code__ for f in functions}
        inner = {
            c for code in profile.codes for c in code.co_consts if isinstance(c, types.CodeType)
        }
        for code in profile.codes - reached - inner:
            if not _is_trusted(code):
                raise Unfit(f"runs {code.co_name}, which it does not reach")

    def replay(self, function: Callable) -> _XLAC._Replay:
        return _XLAC._Replay(function, list(self._names.values()), self._others, _OPAQUE)

    def _look(self, replay: _XLAC._Replay, args: tuple, kwargs: dict) -> None:
        try:
            replay.look(args, kwargs)
        except RuntimeError as why:
            raise Unfit(str(why)) from None
        finally:
            replay.drop()

    def _add(self, namespace: dict, name: str, attributes: set[str], is_trusted: bool) -> None:
        if (id(namespace), name) in self._names:
            return
        value = namespace.get(name)
        if is_trusted and not isinstance(value, _DATA):
            return
        if name not in namespace and not hasattr(builtins, name):
            return
        if not is_trusted:
            _check_use(namespace.get(name, getattr(builtins, name, None)))
        self._names[id(namespace), name] = (namespace, name)
        is_module = isinstance(value, types.ModuleType) and not is_trusted
        if is_module and id(value) not in self._modules:
            self._modules.add(id(value))
            self._add_module(value, attributes)

    def _add_module(self, module: types.ModuleType, attributes: set[str]) -> None:
        root = module.__name__.split(".")[0]
        if root == "numpy" and ("random" in attributes or "random" in module.__name__):
            raise Unfit("may draw random numbers of numpy")
        if module is operator:
            for name in attributes & vars(operator).keys():
                _check_use(getattr(operator, name))
        namespace = vars(module)
        if changed := self._stored & namespace.keys():
            raise Unfit(f"may change {module.__name__}.{min(changed)}")
        is_trusted = root in _TRUSTED_MODULES or root == "numpy"
        for name in attributes & namespace.keys():
            # Of others' modules, what is no function.
            if not is_trusted or isinstance(namespace[name], _DATA | types.ModuleType):
                self._add(namespace, name, attributes, False)


def _global_names(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"):
            yield instruction.argval
        elif instruction.opname == "IMPORT_NAME" and not _is_trusted(code):
            root = instruction.argval.split(".")[0]
            if root not in _TRUSTED_MODULES:
                raise Unfit(f"imports {instruction.argval}")


def _attributes(code: types.CodeType, *operations: str) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in operations:
            yield instruction.argval


def _functions_of_classes(
    classes: set[type], codes: set[types.CodeType]
) -> Iterator[types.FunctionType]:
    """Functions with this code that classes define, which may close over something."""
    seen = set()
    for kind in classes:
        for base in kind.__mro__:
            if base in seen:
                continue
            seen.add(base)
            for value in vars(base).values():
                for function in _parts(value):
                    if function.__code__ in codes:
                        yield function


def _values_of_classes(classes: set[type]) -> Iterator[Any]:
    """What the user's classes hold beside functions and plain values. The interpreter itself tells
    when an attribute of a class is another object than before."""
    for base in dict.fromkeys(base for kind in classes for base in kind.__mro__):
        file = getattr(sys.modules.get(base.__module__), "__file__", None) or ""
        if base.__module__ == "builtins" or _is_library(file):
            continue
        for name, value in vars(base).items():
            is_function = hasattr(type(value), "__get__") or (
                callable(value) and not isinstance(value, type)
            )
            if not is_function and not (name.startswith("__") or name == "_abc_impl"):
                yield value


def _parts(value: Any) -> Iterator[types.FunctionType]:
    if isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, staticmethod | classmethod):
        yield from _parts(value.__func__)
    elif isinstance(value, property):
        for part in (value.fget, value.fset, value.fdel):
            yield from _parts(part)
    elif isinstance(value, functools.cached_property):
        yield from _parts(value.func)


def _histories(tensors: list[torch.Tensor], replay: _XLAC._Replay) -> list[bool]:
    """Whether autograd has computed each result, and nobody can go back through that any more."""
    new = [t for t in tensors if not replay.sees(t)]
    if any(vars(t) for t in new):
        raise Unfit("returns a tensor with attributes")
    bases = [t._base for t in new if t._is_view()]
    for tensor in new:
        if type(tensor) is not torch.Tensor:
            raise Unfit(f"returns a new {type(tensor).__name__}")
        if tensor.is_inference() != torch.is_inference_mode_enabled():
            raise Unfit("returns a tensor of another inference mode")
        if tensor.is_leaf and tensor.requires_grad:
            raise Unfit("returns a new tensor that requires gradients")
        if tensor._backward_hooks or tensor.retains_grad:
            raise Unfit("returns a tensor with hooks")
        if not torch.is_grad_enabled() or not tensor._is_view():
            continue
        base = tensor._base  # writes in place would reach it through autograd
        is_shared = any(t is base for t in tensors) or sum(b is base for b in bases) > 1
        if is_shared or replay.sees(base):
            raise Unfit("returns a view of a tensor that others have")
    return [not replay.sees(t) and _has_history(t) for t in tensors]


def _has_history(tensor: torch.Tensor) -> bool:
    if tensor.grad_fn is None:
        return False
    stack, seen = [tensor.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for name in dir(node):
            if name.startswith("_saved_"):
                try:
                    getattr(node, name)
                except RuntimeError:
                    return True  # backward has freed it
        stack.extend(following for following, _ in node.next_functions)
    raise Unfit("returns a tensor that has a gradient")


def _builder(result: Any, tensors: list[torch.Tensor], replay: _XLAC._Replay) -> Callable:
    """Makes a result like this one of other tensors; `tensors` takes those of this one."""
    kind = type(result)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        index = next((i for i, t in enumerate(tensors) if t is result), len(tensors))
        if index == len(tensors):
            tensors.append(result)
        return lambda found: found[index]
    if result is None or kind in (bool, int, float, str, bytes, torch.dtype, torch.Size):
        return lambda found: result
    if kind not in (tuple, list, dict):
        raise Unfit(f"returns an object of type {kind.__name__}")
    if result and replay.sees(result):
        raise Unfit(f"returns a {kind.__name__} that is there before")
    if kind is dict:
        values = {k: _builder(v, tensors, replay) for k, v in result.items()}
        return lambda found: {k: build(found) for k, build in values.items()}
    parts = [_builder(v, tensors, replay) for v in result]
    return lambda found: kind(build(found) for build in parts)
