"""What is known of code, built-in functions and types: whether calls that use them can
be replayed (`replay.py`).

Python code is either trusted, which is PyTorch's and the standard library's that is listed here, or
the user's, of which all that it names is looked at, or refused. What is written in C is refused
unless it is listed.
"""

from __future__ import annotations

import builtins
import collections
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
import weakref
from typing import Any

import torch


class Unfit(Exception):
    """Why a function's calls are not replayed."""


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
# Modules whose functions and classes are what they were, as long as they have the same names.
_TRUSTED_MODULES = (
    *("torch", "torch_xla", "numpy", "math", "operator", "functools", "itertools", "typing"),
)
# Built-in functions that read no more than their arguments, by the module that defines them.
_PURE_MODULES = {
    *("math", "_operator", "itertools", "_functools", "_collections", "_collections_abc", "_abc"),
    *("_weakref", "weakref", "typing", "_typing"),
    "_contextvars",  # PyTorch copies a context; its variables have methods of a type
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
# Attributes that the user's own code must not name: they differ from call to call, or lead to what
# is not walked. Of those between underscores, the ones that are listed may be named.
_UNSEEN_ATTRIBUTES = {
    *("_version", "_cdata", "_base", "format", "format_map", "handlers", "default_generator"),
    *("tb_frame", "gi_frame", "cr_frame", "ag_frame", "f_back", "f_globals", "f_locals"),
}
_SEEN_DUNDERS = {
    *("__init__", "__new__", "__call__", "__class__", "__name__", "__post_init__", "__eq__"),
    *("__enter__", "__exit__", "__iter__", "__next__", "__len__", "__contains__"),
    *("__getitem__", "__setitem__", "__delitem__", "__getattr__", "__version__", "__path__"),
}
# Types made in C whose objects and methods depend on nothing but what they are given.
_PURE_TYPES = {
    *(kind for kind in vars(builtins).values() if isinstance(kind, type)),
    *(collections.OrderedDict, collections.defaultdict, collections.deque, functools.partial),
    *(re.Pattern, re.Match, weakref.ref, types.GenericAlias, types.UnionType),
    *(types.BuiltinFunctionType, types.CellType, types.CodeType, types.EllipsisType),
    types.MappingProxyType,
    *(types.FunctionType, types.MethodType, types.NoneType, types.NotImplementedType),
    *(torch.Size, torch.device, torch.dtype, torch.layout, torch.memory_format),
    *(torch.finfo, torch.iinfo, torch._C.TensorBase, torch._C._FunctionBase),
    *(torch._C.DisableTorchFunctionSubclass, torch._C._ImperativeEngine, torch._C._TensorMeta),
}
# Parts of names of operators that read or change what is not walked.
_IMPURE_WORDS = re.compile(
    r"memory|event|stream|record|profil|seed|rng|generator|_jit|dynamo|item|tolist|numpy|cuda|"
    r"clock|time|thread|storage|data_ptr|_cdata|save|load|print|warn|version|file|buffer|hook|vulkan"
)
# Functions of PyTorch's that are no operators: what they read is compared before each replay, or
# nobody changes it, and what they change, ordinary code changes back.
_PURE_OF_TORCH = {
    "torch": {
        *("autocast_decrement_nesting", "autocast_increment_nesting", "clear_autocast_cache"),
        *("get_autocast_dtype", "is_autocast_cache_enabled", "is_autocast_enabled"),
        *("set_autocast_cache_enabled", "set_autocast_dtype", "set_autocast_enabled"),
        *("get_default_dtype", "is_grad_enabled", "is_inference_mode_enabled"),
    },
    "torch._C": {
        *("_accelerator_getAccelerator", "_are_functorch_transforms_active", "_get_cudnn_enabled"),
        *("_get_privateuse1_backend_name", "_get_tracing_state", "_has_torch_function"),
        *("_group_tensors_by_device_and_dtype", "_has_torch_function_unary"),
        *("_has_torch_function_variadic", "_is_autocast_available", "_log_api_usage_once"),
        *("_is_torch_function_mode_enabled", "_remove_obj_from_tls", "_set_grad_enabled"),
        "_stash_obj_in_tls",
    },
    "torch._C._dynamo.eval_frame": {"set_eval_frame"},
    "torch._ops.profiler": {"_record_function_enter_new", ""},
}
_OPERATORS = {
    "torch": set(dir(torch._C._VariableFunctions)),
    **{
        f"torch._C._{name}": set(dir(getattr(torch._C, f"_{name}")))
        for name in ("nn", "linalg", "special", "fft")
    },
    "torch._ops.aten": set(dir(torch.ops.aten)) | set(dir(torch._C._VariableFunctions)),
}

# Values of globals that trusted code may read and others may change.
DATA = bool | int | float | str | dict | list | set | None
# Types whose objects lead to more than code reads of them, with the attributes that it does not.
# None: it reads plain values alone.
OPAQUE = {
    logging.Logger: ("manager", "handlers", "filters", "_cache"),
    re.Pattern: None,
    torch._ops.OpOverload: None,
    torch._ops.OpOverloadPacket: None,
    types.UnionType: None,
    typing._Final: None,
}
_BUILT_IN = (types.BuiltinFunctionType, types.MethodDescriptorType)
_MADE_IN_C = (*_BUILT_IN, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
_IS_HEAP_TYPE = 1 << 9


def is_library(path: str) -> bool:
    """Whether a file is PyTorch's, this package's or the standard library's."""
    if path.startswith((_TORCH, _XLA)):
        return True
    return path.startswith(_STDLIB) and not path.startswith(_SITE)


def is_trusted(code: types.CodeType) -> bool:
    """Whether code reads nothing but its arguments, globals that no one changes while a program
    trains, and what is walked."""
    path = code.co_filename
    if path.startswith(_TRUSTED_CODE):
        return True
    return code.co_qualname in _TRUSTED_FUNCTIONS and path.startswith((_TORCH, _STDLIB + "logging"))


def is_trusted_module(name: str) -> bool:
    """Whether functions and classes of a module are what they were."""
    return name.split(".")[0] in _TRUSTED_MODULES


def check_attributes(names: set[str]) -> None:
    """Raises Unfit where the user's code names an attribute by which it sees what is not walked."""
    dunders = {n for n in names if n.startswith("__") and n.endswith("__")}
    if unseen := names & _UNSEEN_ATTRIBUTES | dunders - _SEEN_DUNDERS:
        raise Unfit(f"reads {min(unseen)} of an object")


def check_comparisons(code: types.CodeType) -> None:
    """Raises Unfit where the user's code may ask which of two equal strings or numbers it has."""
    constant = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IS_OP" and constant not in ("None", "True", "False", "Ellipsis"):
            raise Unfit(f"compares by `is` in {code.co_name}")
        constant = instruction.argrepr if instruction.opname == "LOAD_CONST" else None


def check_code(code: types.CodeType) -> None:
    """Raises Unfit for a library's code that may read or change what is not walked."""
    if not is_trusted(code) and is_library(code.co_filename):
        raise Unfit(f"runs {code.co_name} of {os.path.basename(code.co_filename)}")


def identity(built_in: Any) -> tuple[type | None, str | None, str]:
    """Of a built-in function: the type that defines it, its module and its name."""
    owner = getattr(built_in, "__self__", None)
    name = built_in.__name__
    if isinstance(built_in, types.MethodDescriptorType):
        return built_in.__objclass__, None, name
    # What pybind11 makes belongs to a record of its own.
    is_record = type(owner).__name__.startswith("pybind11_detail_function_record")
    if owner is None or is_record or isinstance(owner, types.ModuleType):
        return None, built_in.__module__, name
    for kind in (*(owner.__mro__ if isinstance(owner, type) else ()), *type(owner).__mro__):
        if not isinstance(vars(kind).get(name, _is_pure), types.FunctionType):
            return kind, None, name
    return type(owner), None, name


def check_built_in(kind: type | None, module: str | None, name: str) -> None:
    """Raises Unfit for a built-in function that may read or change what is not walked."""
    if not _is_pure(kind, module, name):
        raise Unfit(f"calls {module if kind is None else kind.__name__}.{name}")


def is_fixed(value: Any) -> bool:
    """Whether a value of a trusted module is all that it was, as long as it is the same object."""
    if isinstance(value, types.FunctionType):
        return is_library(value.__code__.co_filename)
    is_built_in = isinstance(value, types.BuiltinFunctionType)
    return is_built_in or type(value).__module__ in ("numpy", "typing")


def check_use(value: Any) -> None:
    """Raises Unfit for a value that code can get at, where it may be called by C, which no profile
    sees, and reads or changes what is not walked."""
    if any(value is unseen for unseen in _UNSEEN_READS):
        raise Unfit(f"uses {value.__name__}")
    if isinstance(value, type):
        _check_type(value)
    elif isinstance(value, _BUILT_IN):
        kind, module, name = identity(value)
        if not _is_pure(kind, module, name):
            raise Unfit(f"may call {module if kind is None else kind.__name__}.{name}")


def _check_type(kind: type) -> None:
    """A call of a type made in C, such as that of a file, is seen by no profile either."""
    for base in kind.__mro__:
        is_pure = base in _PURE_TYPES or base.__module__ in _PURE_MODULES
        if is_made_in_c(base) and not is_pure:
            raise Unfit(f"reaches the type {base.__module__}.{base.__name__}")


def is_made_in_c(kind: type) -> bool:
    """Whether no class statement has made a type."""
    if not kind.__flags__ & _IS_HEAP_TYPE:
        return True
    return any(
        isinstance(value, _MADE_IN_C)
        and (getattr(value, "__objclass__", None) is kind or getattr(value, "__self__", 0) is kind)
        for value in vars(kind).values()
    )


def is_of_library(kind: type) -> bool:
    """Whether a class is PyTorch's, this package's or the standard library's, or made in C."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return is_made_in_c(kind) or is_library(file)


def _is_pure(kind: type | None, module: str | None, name: str) -> bool:
    if kind is None:
        if module == "builtins":
            return name in _PURE_BUILTINS
        if module in _PURE_MODULES:
            return True
        if name in _PURE_OF_TORCH.get(module or "", ()):
            return True
        return name in _OPERATORS.get(module or "", ()) and not _IMPURE_WORDS.search(name)
    if kind is torch._C.TensorBase or issubclass(kind, torch.Tensor):
        return not _IMPURE_WORDS.search(name)
    return kind in _PURE_TYPES or kind.__module__ in _PURE_MODULES
