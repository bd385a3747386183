"""The compiled programs that the process keeps."""

from __future__ import annotations

import dataclasses

from torch_xla import _XLAC


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
    """A program that runs again without being compiled.

    Attributes:
        name: Who asked for it: "sync", or the `name` that `torch_xla.compile` was given.
        key: The hash of its graph, as `PT_XLA_DEBUG_LEVEL` prints it ("Graph Hash").
        parameters, results: Their types, such as "Float[2,3]".
        reused_by: For each parameter the place of the result that takes over its memory, or None.
        calls: The recorded calls, in their order, with the lines of the user's program.
    """

    name: str
    key: str
    parameters: list[str]
    results: list[str]
    reused_by: list[int | None]
    calls: list[str]


def programs() -> list[CompiledProgram]:
    """The compiled programs that are kept in memory, the one that ran last first.

    `torch_xla.runtime.clear_computation_cache` drops them.

    Example:
        >>> [program.name for program in torch_xla.debug.programs()]
        ['train_step', 'sync']
    """
    fields = [field.name for field in dataclasses.fields(CompiledProgram)]
    return [CompiledProgram(*(told[name] for name in fields)) for told in _XLAC._xla_programs()]
