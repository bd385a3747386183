"""Functions that torch._dynamo runs as they are, without importing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch._C._dynamo import eval_frame

Function = TypeVar("Function", bound=Callable)


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
        function._torchdynamo_disable = True
        function._torchdynamo_disable_msg = why
        return skipped(function)

    return decorate
