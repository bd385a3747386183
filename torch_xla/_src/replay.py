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

import collections
import contextlib
import dis
import functools
import operator
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._src import replay_trust as trust
from torch_xla._src.replay_trust import Unfit

_LEAST_CALLS = 1  # that run before one is looked at
_MOST_TRIES = 4
_MOST_KEPT = 8
_MOST_UNUSED = 4  # that are kept in turn, and none of them replayed
_FREE_WALK = 1e-3  # seconds that looking may take, however fast the function is
_LONGEST_REASON = 200

# Operations that read an attribute, in any version of Python.
_LOADS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")

NO_REPLAY = object()


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
        self._unused = 0
        self.refusals: list[str] = []

    def call(self, args: tuple, kwargs: dict) -> Any:
        """The result of a call that could be replayed, or NO_REPLAY. Nothing waits by now."""
        if not self._kept or _is_observed():
            return NO_REPLAY
        kept = self._kept  # other threads may put another list in its place
        for i, (replay, build) in enumerate(kept):
            results = replay.call(args, kwargs)
            if results is not None:
                self._unused = 0
                if i > 0:
                    self._kept = [kept[i], *kept[:i], *kept[i + 1 :]]
                return build(results)
        return NO_REPLAY

    def run(self, args: tuple, kwargs: dict) -> Any:
        """Runs the function, in its region, and may watch it."""
        self._calls += 1
        if not self._wants_look():
            return self._function(*args, **kwargs)
        known = self._known  # other threads may drop it
        if known is None:
            return self._learn(args, kwargs)
        return self._watch(known, args, kwargs)

    def _wants_look(self) -> bool:
        return (
            self._is_on
            and self._calls > self._next_try
            and self._tries < _MOST_TRIES
            and not _is_observed()
        )

    def _refuse(self, why: str) -> None:
        why = why.partition("\n")[0][:_LONGEST_REASON]
        self.refusals.append(why)
        _XLAC._xla_add_to_counter(f"NotReplayed.{why}")
        self._tries += 1
        self._next_try = self._calls + 4**self._tries
        self._known = None

    def _succeeds(self, look: Callable[[], None]) -> bool:
        """Whether a look at what the function reads comes to its end. It is refused otherwise."""
        try:
            look()
        except (Unfit, RuntimeError) as why:
            self._refuse(str(why))
        except Exception as why:  # of objects whose attributes raise
            self._refuse(f"reaches an object that raises {type(why).__name__}")
        else:
            return True
        return False

    def _learn(self, args: tuple, kwargs: dict) -> Any:
        profile = Profile()
        with profile:
            result = self._function(*args, **kwargs)

        def look() -> None:
            self._known = Known(self._function, profile, args, kwargs)

        self._succeeds(look)
        return result

    def _watch(self, known: Known, args: tuple, kwargs: dict) -> Any:
        replay = known.replay(self._function)
        profile = Profile()
        times = [time.perf_counter()]
        try:
            if not self._succeeds(lambda: known.begin(replay, args, kwargs)):
                return self._function(*args, **kwargs)
            times.append(time.perf_counter())
            cpu_state = torch.get_rng_state()
            with profile:
                result = self._function(*args, **kwargs)
            times.append(time.perf_counter())

            def end() -> None:
                known.check(profile)
                if not torch.equal(cpu_state, torch.get_rng_state()):
                    raise Unfit("draws random numbers on the CPU")
                if times[1] - times[0] > max(times[2] - times[1], _FREE_WALK):
                    raise Unfit("reaches so much that it runs faster than that is looked at")
                tensors: list[torch.Tensor] = []
                build = _Builder(tensors, replay).of(result)
                replay.end(args, kwargs, tensors, _histories(tensors, replay))
                self._keep(replay, build)

            self._succeeds(end)
        finally:
            replay.drop()
        return result

    def _keep(self, replay: _XLAC._Replay, build: Callable) -> None:
        self._unused += 1
        if self._unused > _MOST_UNUSED:
            self._unused = 0
            self._kept = []
            raise Unfit("sees something new at each call")
        self._kept = [(replay, build), *self._kept[: _MOST_KEPT - 1]]


def _is_observed() -> bool:
    """Whether a debugger or a profiler wants to see the code run."""
    return (
        sys.gettrace() is not None
        or sys.getprofile() is not None
        or torch.autograd._profiler_enabled()
    )


class Profile:
    """What a block runs: code objects, and built-in functions by type, module and name."""

    def __init__(self) -> None:
        self._namespaces: dict[tuple[types.CodeType, int, int], tuple[dict, dict]] = {}
        self._built_in: set[tuple[type | None, str | None, str]] = set()

    def __enter__(self) -> None:
        self._stack = contextlib.ExitStack()
        # A backward pass on another thread would run its hooks unseen.
        self._stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        sys.setprofile(self._note)

    def __exit__(self, *error: Any) -> None:
        self._is_whole = sys.getprofile() == self._note
        if self._is_whole:  # else the function has set its own
            sys.setprofile(None)
        self._stack.close()

    def _note(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if frame.f_code is Profile.__exit__.__code__:
            return
        if event == "call":
            key = frame.f_code, id(frame.f_globals), id(frame.f_builtins)
            self._namespaces[key] = frame.f_globals, frame.f_builtins
        elif event == "c_call":
            self._built_in.add(trust.identity(argument))

    @property
    def codes(self) -> set[types.CodeType]:
        return {code for code, *_ in self._namespaces}

    @property
    def namespaces(self) -> Iterator[tuple[types.CodeType, dict, dict]]:
        """Each code object with the globals and built-ins of the function that ran it."""
        return ((key[0], *value) for key, value in self._namespaces.items())

    def check(self) -> None:
        """Raises Unfit where code or a built-in function may read or change what is not walked."""
        if not self._is_whole:
            raise Unfit("sets a profile function")
        for code in self.codes:
            trust.check_code(code)
        for built_in in self._built_in:
            trust.check_built_in(*built_in)


class Known:
    """What the code of a call can read, beside its arguments and its closure."""

    def __init__(self, function: Callable, profile: Profile, args: tuple, kwargs: dict):
        profile.check()
        self._codes = profile.codes
        users = [code for code in self._codes if not trust.is_trusted(code)]
        self._stored = _names_in(users, "STORE_ATTR", "DELETE_ATTR")
        self._attributes = _names_in(users, *_LOADS, "IMPORT_FROM")
        trust.check_attributes(self._stored | self._attributes)
        self._names: dict[tuple[int, str], tuple[dict, str, Any]] = {}
        self._others: list[Any] = []
        self._modules: set[int] = set()
        for code, namespace, built_ins in profile.namespaces:
            if not trust.is_trusted(code):
                trust.check_comparisons(code)
                self._add_globals_of(code, namespace, built_ins)
        for code, namespace, _ in profile.namespaces:
            if trust.is_trusted(code):
                self._add_trusted_code(code, namespace)
        reached = self._look_at_classes(function, args, kwargs)
        inner = {c for code in self._codes for c in code.co_consts if isinstance(c, types.CodeType)}
        for code in self._codes - reached - inner:
            if not trust.is_trusted(code):
                raise Unfit(f"runs {code.co_name}, which it does not reach")

    def _look_at_classes(
        self, function: Callable, args: tuple, kwargs: dict
    ) -> set[types.CodeType]:
        """Adds what classes hold, and returns the code that can be reached."""
        walk = self.replay(function)
        self._look(walk, args, kwargs)
        known = -1
        functions: list[types.FunctionType] = []
        while len(walk.types()) > known:  # values of classes lead to other classes
            known = len(walk.types())
            functions = list(_functions_of_classes(walk.types(), self._codes))
            self._others = [*functions, *_values_of_classes(walk.types(), self._attributes)]
            walk = self.replay(function)
            self._look(walk, args, kwargs)
        self._checked = walk.types() | walk.built_ins()
        for value in self._checked:
            trust.check_use(value)
        return walk.codes() | {f.__code__ for f in functions}

    def replay(self, function: Callable) -> _XLAC._Replay:
        return _XLAC._Replay(function, list(self._names.values()), self._others, trust.OPAQUE)

    def begin(self, replay: _XLAC._Replay, args: tuple, kwargs: dict) -> None:
        """Begins to watch a call. Raises where it could see what has not been looked at."""
        replay.begin(args, kwargs)
        if not replay.types() | replay.built_ins() <= self._checked:
            raise Unfit("reaches other types or built-in functions than before")

    def check(self, profile: Profile) -> None:
        """Raises Unfit where a call did what this one does not know of."""
        if not profile.codes <= self._codes:
            raise Unfit("runs other code than before")
        profile.check()

    def _look(self, replay: _XLAC._Replay, args: tuple, kwargs: dict) -> None:
        try:
            replay.look(args, kwargs)
        finally:
            replay.drop()

    def _add_trusted_code(self, code: types.CodeType, namespace: dict) -> None:
        """Data is walked. Functions and classes must be the same ones, here and in modules."""
        attributes = _names_in([code], *_LOADS)
        for name in _global_names(code) & namespace.keys():
            value = namespace[name]
            if isinstance(value, trust.DATA):
                self._names.setdefault((id(namespace), name), (namespace, name, None))
            else:
                self._expect(namespace, name)
            if isinstance(value, types.ModuleType):
                for attribute in attributes & vars(value).keys():
                    self._expect(vars(value), attribute)

    def _expect(self, namespace: dict, name: str) -> None:
        value = namespace[name]
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
            self._names.setdefault((id(namespace), name), (namespace, name, value))

    def _add_globals_of(self, code: types.CodeType, namespace: dict, built_ins: dict) -> None:
        for name in _global_names(code):
            self._add(namespace, name)
            if name not in namespace:
                self._add(built_ins, name)
        for name in _names_in([code], "IMPORT_NAME"):
            if not trust.is_trusted_module(name):
                raise Unfit(f"imports {name}")
            self._add(sys.modules, name)

    def _add(self, namespace: dict, name: str) -> None:
        if (id(namespace), name) in self._names:
            return
        value = namespace.get(name)
        trust.check_use(value)
        is_module = isinstance(value, types.ModuleType)
        self._names[id(namespace), name] = namespace, name, value if is_module else None
        if is_module and id(value) not in self._modules:
            self._modules.add(id(value))
            self._add_module(value)

    def _add_module(self, module: types.ModuleType) -> None:
        namespace = vars(module)
        name = namespace.get("__name__")
        if not isinstance(name, str):
            raise Unfit("uses a module without a name")
        root = name.split(".")[0]
        if root == "numpy" and ("random" in name or self._attributes & {"random", "datetime64"}):
            raise Unfit("may read the clock or draw random numbers by numpy")
        if module is operator:
            for attribute in self._attributes & namespace.keys():
                trust.check_use(namespace[attribute])
        if changed := self._stored & namespace.keys():
            raise Unfit(f"may change {name}.{min(changed)}")
        if trust.is_trusted_module(name):
            for attribute in self._attributes & namespace.keys():
                self._add_trusted(namespace, attribute)
            return
        if type(module) is not types.ModuleType:
            raise Unfit(f"uses a module of type {type(module).__name__}")
        for attribute in self._attributes | {"__getattr__"}:  # one that is not there may come
            self._add(namespace, attribute)

    def _add_trusted(self, namespace: dict, name: str) -> None:
        """Functions and classes are what they were, if they are the same ones."""
        value = namespace[name]
        is_read = isinstance(value, types.FunctionType) and self._attributes & vars(value).keys()
        if (trust.is_fixed(value) and not is_read) or namespace["__name__"].startswith("numpy"):
            self._names[id(namespace), name] = namespace, name, value
        else:
            self._add(namespace, name)


def _global_names(code: types.CodeType) -> set[str]:
    loads = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    return _names_in([code], *loads, "STORE_GLOBAL", "DELETE_GLOBAL")


def _names_in(codes: list[types.CodeType], *operations: str) -> set[str]:
    """The names that are operands of these operations."""
    return {
        instruction.argval
        for code in codes
        for instruction in dis.get_instructions(code)
        if instruction.opname in operations
    }


def _functions_of_classes(
    classes: set[type], codes: set[types.CodeType]
) -> Iterator[types.FunctionType]:
    """Functions with this code that classes define, which may close over something."""
    for base in dict.fromkeys(base for kind in classes for base in kind.__mro__):
        for value in vars(base).values():
            for part in _parts(value):
                if isinstance(part, types.FunctionType) and part.__code__ in codes:
                    yield part


# What a class statement makes by itself.
_OF_STATEMENTS = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    type(collections.namedtuple("_", "field").field),  # type: ignore[attr-defined]
)


def _values_of_classes(classes: set[type], attributes: set[str]) -> Iterator[Any]:
    """What the user's classes hold beside functions that have no attributes, and what other classes
    hold under names in the user's code. The interpreter itself tells when an attribute of a class
    is another object than before."""
    for base in dict.fromkeys(base for kind in classes for base in kind.__mro__):
        if trust.is_of_library(base):
            own = (v for n, v in vars(base).items() if n in attributes)
            yield from (v for v in own if not callable(v) and not hasattr(type(v), "__get__"))
            continue
        for name, value in vars(base).items():
            # Such names are refused in code, but the interpreter calls what they stand for.
            is_hidden = name.startswith("__") and not callable(value)
            is_hidden = is_hidden and not hasattr(type(value), "__get__")
            if is_hidden or name == "_abc_impl" or isinstance(value, _OF_STATEMENTS):
                continue
            for part in _parts(value):
                if not isinstance(part, types.FunctionType):
                    yield part
                elif vars(part).keys() - {"__wrapped__"}:
                    yield vars(part)


def _parts(value: Any) -> Iterator[Any]:
    """What the usual descriptors are made of; anything else is its own part."""
    if isinstance(value, staticmethod | classmethod):
        yield from _parts(value.__func__)
    elif type(value) is property:
        for part in (value.fget, value.fset, value.fdel):
            if part is not None:
                yield from _parts(part)
    elif type(value) is functools.cached_property:
        yield from _parts(value.func)
    else:
        yield value


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
        if not tensor._is_view():
            continue
        base = tensor._base  # writes in place would reach it through autograd
        is_shared = any(t is base for t in tensors) or sum(b is base for b in bases) > 1
        if (is_shared and torch.is_grad_enabled()) or replay.sees(base):
            raise Unfit("returns a view of a tensor that others have")
    return [not replay.sees(t) and _has_history(t) for t in tensors]


def _has_history(tensor: torch.Tensor) -> bool:
    """Whether autograd has computed a tensor. Each way back must end where backward has freed what
    it needs."""
    if tensor.grad_fn is None:
        return False
    stack, seen = [tensor.grad_fn], set()
    while stack:
        node = stack.pop()
        if node in seen or _is_freed(node):
            continue
        seen.add(node)
        following = [n for n, _ in node.next_functions if n is not None]
        if not following:
            raise Unfit("returns a tensor that has a gradient")
        stack.extend(following)
    return True


def _is_freed(node: Any) -> bool:
    for name in dir(node):
        if name.startswith("_saved_") or name == "saved_tensors":
            try:
                getattr(node, name)
            except RuntimeError:
                return True
    return False


class _Builder:
    """Makes functions that make results like those of a call of other tensors. `tensors` takes
    those of the call."""

    def __init__(self, tensors: list[torch.Tensor], replay: _XLAC._Replay):
        self._tensors = tensors
        self._replay = replay
        self._containers: list[list | dict] = []

    def of(self, result: Any) -> Callable:
        kind = type(result)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            return self._of_tensor(result)
        if result is None or kind in (bool, int, float, str, bytes, torch.dtype, torch.Size):
            return lambda found: result
        if kind not in (tuple, list, dict):
            raise Unfit(f"returns an object of type {kind.__name__}")
        if kind is not tuple and any(other is result for other in self._containers):
            raise Unfit(f"returns a {kind.__name__} twice")
        if result != () and self._replay.sees(result):
            raise Unfit(f"returns a {kind.__name__} that is there before")
        if kind is not tuple:
            self._containers.append(result)
        if kind is dict:
            return self._of_dict(result)
        parts = [self.of(v) for v in result]
        return lambda found: kind(build(found) for build in parts)

    def _of_tensor(self, result: torch.Tensor) -> Callable:
        index = next((i for i, t in enumerate(self._tensors) if t is result), len(self._tensors))
        if index == len(self._tensors):
            self._tensors.append(result)
        return lambda found: found[index]

    def _of_dict(self, result: dict) -> Callable:
        for key in result:
            if key is not None and type(key) not in (bool, int, float, str, bytes):
                raise Unfit(f"returns a dictionary with a key of type {type(key).__name__}")
        values = {k: self.of(v) for k, v in result.items()}
        return lambda found: {k: build(found) for k, build in values.items()}
