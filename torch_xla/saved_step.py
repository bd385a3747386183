"""Training steps as artifacts: a folder that any PJRT plugin can train on with, without Python.

    @torch_xla.compile
    def step(x, y): ...                    # forward, backward, optimizer

    step(x, y)                             # makes the optimizer's state
    torch_xla.saved_step.save(step, "folder", (x, y))

    again = torch_xla.saved_step.load("folder")
    loss = again(x, y)                     # trains on, with the state of the folder

docs/saved_steps.md describes the folder, and `examples/runner`, which trains on in C++.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._src.device import rng
from torch_xla._src.functions.step import sync
from torch_xla._src.saved_step import folder as step_folder
from torch_xla._src.saved_step import recording as step_recording
from torch_xla._src.saved_step import tensor_names, unchanged
from torch_xla._src.saved_step.folder import Manifest
from torch_xla._src.saved_step.recording import ExampleCall


def save(
    step: Callable[..., Any],
    folder: str | os.PathLike[str],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Writes a training step to a folder: its program, what it takes and gives, and its state.

    The step's Python runs twice, on tensors without values: nothing is computed. Whatever tensors
    on `xla` it uses beside its arguments are its state (parameters, buffers, moments, step counts,
    the random state), and keep their values; so do gradients, and what modules, optimizers,
    learning-rate schedulers and loss scalers hold. What else the Python does (it prints, it appends
    to a list) happens twice. No other thread may train meanwhile.

    Numbers that Python computes, a learning rate say, are constants of the program. One that
    differs from call to call is refused: keep it in a tensor on `xla`, or pass it as one.

    Args:
        step: A function, `torch_xla.compile`d or not, which has run at least once: an optimizer
            makes its state in the first step.
        folder: Where to write. A saved step that is there is replaced; the folder is never seen
            half-written.
        args: Positional arguments of an example call. Tensors, of any device, are arguments of the
            program, of these shapes and dtypes; parameters among them are state. All else is a
            constant of the program.
        kwargs: Keyword arguments of that call.

    Raises:
        RuntimeError: The step is not one program for every compiler, which the message explains
            with the step's own line: it reads values, runs an operator on the host, computes
            something else in its second call, or leaves a new tensor to the next call.
        FileExistsError: There is something else in the folder.
        ImportError: The package `safetensors` is not installed.
    """
    if not callable(step):
        raise TypeError(f"saved_step.save: expected a function, got {type(step).__name__}.")
    step_folder.check(folder)
    call = ExampleCall(step, args, kwargs or {})
    sync()
    random_state = rng.get_state()
    with unchanged.state_of_python():
        recorded = step_recording.record(call, "saved_step.save")
    values = [state.detach().cpu().contiguous() for state in recorded.states]
    names = tensor_names.names_of(recorded.states, step, args, kwargs or {}, step_folder.RESERVED)
    inputs, outputs = recorded.interface(call, names)
    state = dict(zip(names, values, strict=True))
    if recorded.draws:
        state[step_folder.RANDOM] = torch.tensor(random_state, dtype=torch.uint64)
    platform, options = _XLAC._compile_options()
    manifest = Manifest(call.name, inputs, outputs, call.constants, {platform: options})
    example = {n: t.detach().cpu() for n, t in zip(call.names, call.tensors, strict=True)}
    programs = step_folder.programs(_XLAC._pretty_stablehlo(recorded.text))
    step_folder.write(folder, manifest, programs, state, example)


def load(folder: str | os.PathLike[str]) -> SavedStep:
    """Reads what `save`, or the runner, has written.

    Raises:
        FileNotFoundError: The folder, or a file of it, is not there.
        ValueError: A file is not what it should be.
    """
    return SavedStep(*step_folder.read(folder))


class SavedStep:
    """A saved step on this process's device, with its state.

    Attributes:
        state: The state's tensors by name, on `xla`; calls write them in place.
    """

    def __init__(
        self,
        manifest: Manifest,
        programs: Mapping[str, bytes],
        state: Mapping[str, torch.Tensor],
        example: Mapping[str, torch.Tensor],
    ) -> None:
        self._manifest = manifest
        self._programs = dict(programs)
        self._example = dict(example)
        self.state = {name: tensor.to("xla") for name, tensor in state.items()}
        self._arguments = [i for i in manifest.inputs if i.kind == "argument"]
        self._results = [o.name for o in manifest.outputs if o.kind == "result"]
        like = [*self._example.values(), *self.state.values()]
        written_by = [-1] * len(like)
        for i, output in enumerate(manifest.outputs):
            if output.replaces is not None:
                written_by[output.replaces] = i
        program = next(iter(programs.values()))
        self._program = _XLAC._LoadedProgram(program, like, manifest.name, "xla", written_by)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Runs one step.

        Args:
            args: The arguments that are tensors, in their order; numbers and texts may stand among
                them as in the example call.
            named: Others, by their names in `step.json`.

        Returns:
            The step's result, or all of them by name if there are several, on `xla`.

        Raises:
            ValueError: An argument lacks, is not known, has another shape or dtype, or is another
                number or text than in the example call.
        """
        names = [argument.name for argument in self._arguments]
        tensors = self._without_constants(args, named)
        given = dict(zip(names, tensors, strict=False))
        if len(tensors) > len(names) or given.keys() & named.keys() or {*given, *named} != {*names}:
            raise ValueError(
                f"saved_step: expected the arguments {names}, got {len(tensors)} without names and "
                f"{sorted(named)}."
            )
        given.update(named)
        for argument in self._arguments:
            argument.check(given[argument.name])
        tensors = [given[name].detach().to("xla") for name in names]
        results = self._program([*tensors, *self.state.values()])
        if self._results == ["result"]:
            return results[0]
        return dict(zip(self._results, results, strict=True))

    def _without_constants(self, args: Sequence[Any], named: dict[str, Any]) -> list[Any]:
        """The positional arguments but for those that the program holds, which also leave `named`.
        Those without a name come in the order of the example call."""
        constants, rest = self._manifest.constants, []
        names = iter([name for name in constants if name not in named])
        for value in args:
            is_constant = value is None or isinstance(value, (bool, int, float, str))
            name = next(names, None) if is_constant else None
            if name is None:
                rest.append(value)
            else:
                _check_constant(name, constants[name], value)
        for name in constants.keys() & named.keys():
            _check_constant(name, constants[name], named.pop(name))
        return rest

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the step with its present state, as `torch_xla.saved_step.save` does."""
        state = {name: tensor.cpu() for name, tensor in self.state.items()}
        step_folder.check(folder)
        step_folder.write(folder, self._manifest, self._programs, state, self._example)


def _check_constant(name: str, saved: Any, value: Any) -> None:
    is_same = type(value) is type(saved) and (value == saved or (value != value and saved != saved))
    if not is_same:
        raise ValueError(
            f"saved_step: expected {name} = {saved!r}, which the program holds, got {value!r}. "
            "Save the step for it, or with a tensor on xla in its place."
        )
