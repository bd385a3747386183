"""Functions that torch._dynamo runs as they are, or whose results are constants of its graphs; said
without importing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

Function = TypeVar("Function", bound=Callable[..., Any])


def skipped(function: Function) -> Function:
    """Has Python code, and what it calls, run uncaptured where it is called while a compiled
    function runs. Returns the function.
    """
    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)
    return function


def uncaptured(why: str) -> Callable[[Function], Function]:
    """A decorator by which a call breaks the graph of a compiled function.

    It is what torch.compiler.disable does; that imports torch._dynamo.

    Args:
        why: For the error where a graph must not be broken.
    """

    def decorate(function: Function) -> Function:
        marked: Any = function
        marked._torchdynamo_disable = True
        marked._torchdynamo_disable_msg = why
        return skipped(function)

    return decorate


def constant(function: Function) -> Function:
    """A decorator: torch._dynamo calls the function while it captures a graph, which holds the
    result as a constant.

    It is what torch.compiler.assume_constant_result does; that imports torch._dynamo.
    """
    marked: Any = function
    marked._dynamo_marked_constant = True
    return function
