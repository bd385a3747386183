"""The programs that `torch_xla.aot` compiles: of functions, modules, exported programs, and of what
is recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from torch_xla import _XLAC
from torch_xla._src.aot import stand_ins
from torch_xla._src.export import recording as export_recording
from torch_xla._src.export.bundle import VariableType
from torch_xla._src.export.dynamic import is_dynamic
from torch_xla._src.functions.step import sync
from torch_xla._src.saved_step import folder as step_folder
from torch_xla._src.saved_step import recording as step_recording
from torch_xla._src.saved_step import tensor_names, unchanged
from torch_xla._src.saved_step.folder import Input, Output
from torch_xla._src.saved_step.recording import ExampleCall

_WHO = "aot.compile"


@dataclasses.dataclass
class Program:
    """StableHLO for a platform, in MLIR's generic form.

    Inputs and outputs have no names where there is no function.
    """

    name: str
    text: str
    inputs: list[Input] | None = None
    outputs: list[Output] | None = None


def waiting(platform: str) -> Program:
    """The program that the next barrier would launch."""
    return Program("sync", _XLAC._stablehlo_of_sync(platform))


def of_call(
    step: Callable, args: Sequence[Any], kwargs: Mapping[str, Any], platform: str
) -> Program:
    """A call of a function or module, with whatever it does: gradients, an optimizer's step."""
    if not callable(step):
        raise TypeError(
            f"{_WHO}: expected a function, a module or an exported program, got "
            f"{type(step).__name__}."
        )
    _refuse_modes()
    call = ExampleCall(step, args, kwargs)
    sync()
    weights = stand_ins.in_place(tensor_names.reached(step, args, kwargs))
    with weights, unchanged.state_of_python():
        made = stand_ins.MadeState()
        step_recording.rehearse(call, _WHO)
        made.keep()
        recorded = step_recording.record(call, _WHO, platform)
        names = tensor_names.names_of(recorded.states, step, args, kwargs, step_folder.RESERVED)
    return Program(call.name, recorded.text, *recorded.interface(call, names))


def of_exported(exported: ExportedProgram, platform: str) -> Program:
    """An exported program. Its weights are not read."""
    _refuse_modes()
    example = export_recording.example_inputs(exported)
    inputs, _ = export_recording.inputs_of(exported, example, inline_constants=True)
    placed: dict[str, Any] = {}
    for given in inputs:
        value = given.value
        if isinstance(value, torch.SymInt) or (
            isinstance(value, torch.Tensor) and any(is_dynamic(size) for size in value.shape)
        ):
            raise ValueError(
                f"{_WHO}: expected an exported program of static sizes, got the dynamic input "
                f"{given.name!r}. Export it without dynamic_shapes."
            )
        is_tensor = isinstance(value, torch.Tensor)
        placed[given.name] = stand_ins.of(export_recording.like(value)) if is_tensor else value

    def forward() -> list[Any]:
        return export_recording.run(exported, inputs, list(placed.values()))

    call = ExampleCall(forward, (), {})
    call.name = "forward"
    recorded = step_recording.record(call, _WHO, platform)
    names = tensor_names.names_of(recorded.states, forward, (), placed, step_folder.RESERVED)
    takes, gives = recorded.interface(call, names)
    arguments = {g.name for g in inputs if g.location.type_ == VariableType.INPUT_ARG}
    for taken in takes:
        if taken.name in arguments:
            taken.kind = "argument"
    return Program(call.name, recorded.text, takes, gives)


def _refuse_modes() -> None:
    if type(torch.empty(0)) is not torch.Tensor:
        raise RuntimeError(
            f"{_WHO}: expected to be called outside of FakeTensorMode and other modes, got "
            f"{type(torch.empty(0)).__name__} from torch.empty. Leave the mode first; tensors that "
            "were made in it are fine."
        )
