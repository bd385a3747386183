"""Calls of a user's function that are recorded and not run: `torch_xla.saved_step` and
`torch_xla.aot` build on these."""

from __future__ import annotations

import dataclasses
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from torch_xla import _XLAC
from torch_xla._src.functions.compiling import inside
from torch_xla._src.saved_step import folder as step_folder
from torch_xla._src.saved_step import tensor_names
from torch_xla._src.saved_step.folder import Input, Output


class ExampleCall:
    """An example call, taken apart, and what it has returned."""

    def __init__(self, step: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._step = step
        self.name = tensor_names.name_of(step)
        leaves, self._spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self._leaves = leaves
        self._places = [i for i, leaf in enumerate(leaves) if _is_argument(leaf)]
        names = tensor_names.argument_names(step, args, kwargs)
        self.names = [names[i] for i in self._places]
        self.tensors = [leaves[i] for i in self._places]
        self.constants = {
            names[i]: leaf
            for i, leaf in enumerate(leaves)
            if leaf is None or isinstance(leaf, (bool, int, float, str))
        }
        self.results: list[tuple[str, torch.Tensor]] = []  # of no memory, by name

    def run(self, placeholders: list[torch.Tensor]) -> list[torch.Tensor]:
        """Calls the step on placeholders of the tensors, and returns its tensors."""
        leaves = list(self._leaves)
        for i, placeholder in zip(self._places, placeholders, strict=True):
            leaves[i] = placeholder
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        result = self._step(*args, **kwargs)
        found = [
            (path, leaf)
            for path, leaf in pytree.tree_flatten_with_path(result)[0]
            if isinstance(leaf, torch.Tensor)
        ]
        for path, tensor in found:
            if tensor.device.type != "xla":
                raise RuntimeError(
                    f"a {tensor_names.result_name(path)} on {tensor.device}. Return tensors on xla."
                )
        names = tensor_names.unique(tensor_names.result_name(path) for path, _ in found)
        tensors = [tensor for _, tensor in found]
        like = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in tensors]
        self.results = list(zip(names, like, strict=True))
        return tensors


def _is_argument(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and not isinstance(leaf, nn.Parameter)


@dataclasses.dataclass
class RecordedStep:
    """The program of a call, which takes its arguments, `states`, and the random state if `draws`.

    `text` is in MLIR's generic form; `_XLAC._pretty_stablehlo` makes it one to read.

    It gives the results, new values of the states at the places `written`, and a random state.
    """

    text: str
    states: list[torch.Tensor]
    written: list[int]
    draws: bool

    def interface(
        self, call: ExampleCall, state_names: Sequence[str]
    ) -> tuple[list[Input], list[Output]]:
        """The program's inputs and outputs, in its order."""
        inputs = [Input.of("argument", n, t) for n, t in zip(call.names, call.tensors, strict=True)]
        outputs = [Output.of("result", name, result) for name, result in call.results]
        at = len(inputs)
        states = list(zip(state_names, self.states, strict=True))
        inputs += [Input.of("state", name, state) for name, state in states]
        outputs += [Output.of("state", *states[i], replaces=at + i) for i in self.written]
        if self.draws:
            seed = torch.empty([], dtype=torch.uint64, device="meta")
            inputs.append(Input.of("random", step_folder.RANDOM, seed))
            outputs.append(Output.of("random", step_folder.RANDOM, seed, replaces=len(inputs) - 1))
        return inputs, outputs


def record(call: ExampleCall, who: str, platform: str | None = None) -> RecordedStep:
    """Records the call's program, for every compiler or for that of one platform.

    Raises:
        RuntimeError: It is not one program; the message begins with `who`.
    """
    options: dict[str, Any] = {}
    if platform is not None:
        shardings = [getattr(t, "_xla_sharding", "") for t in call.tensors]
        options = {"platform": platform, "shardings": shardings}
    with _alone(call, who, platform or "every compiler"):
        return RecordedStep(*_XLAC._record_step(call.tensors, call.run, **options))


def rehearse(call: ExampleCall, who: str) -> None:
    """Runs the call once as `record` does, for what its Python makes: state of no value."""
    with _alone(call, who, "every compiler"):
        _XLAC._rehearse_step(call.tensors, call.run)


@contextmanager
def _alone(call: ExampleCall, who: str, target: str) -> Iterator[None]:
    try:
        if _XLAC._xla_in_region():
            raise RuntimeError("a call within another one. Call it outside of a compiled function.")
        # In a region torch_xla.compile and eager mode leave what is recorded alone.
        with inside(_XLAC._Region(call.name, False, None)):
            yield
    except RuntimeError as error:
        line = _line_of_user(error)
        raise RuntimeError(
            f"{who}: expected {call.name!r} to be one program for {target}, got: "
            f"{error}{f' At {line}.' if line else ''}"
        ) from error


_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_OURS = (os.path.dirname(torch.__file__) + os.sep, _PACKAGE + os.sep)


def _line_of_user(error: BaseException) -> str:
    """The innermost line of the traceback that is neither PyTorch's nor ours."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*_OURS, "<")):
            return f"{frame.filename}:{frame.lineno}"
    return ""
