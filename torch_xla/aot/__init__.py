"""Programs compiled for chips that are not there: do they fit, and what would they cost?

    with torch.device("meta"):
        model = GPT(config)                # nothing is allocated
    optimizer = torch.optim.AdamW(model.parameters())

    def step(tokens):
        optimizer.zero_grad()
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        return loss

    tokens = torch.empty(8, 1024, dtype=torch.long, device="meta")
    print(torch_xla.aot.compile(step, tokens, topology="v5e:2x2"))

`python -m torch_xla.aot script.py --topology v5e:2x2` does so for each program of a script.
docs/aot.md says what the figures mean.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from torch.export import ExportedProgram

from torch_xla import _XLAC
from torch_xla._src.aot import programs as _programs
from torch_xla._src.aot.collectives import Collective
from torch_xla._src.aot.compiler import TopologyCompiler as _TopologyCompiler
from torch_xla._src.aot.figures import (
    AotError,
    Buffer,
    Chip,
    Compiled,
    DoesNotFit,
    Memory,
    NoCompiler,
    Refused,
    UnknownTopology,
)

__all__ = [
    "AotError",
    "Buffer",
    "Chip",
    "Collective",
    "Compiled",
    "DoesNotFit",
    "Memory",
    "NoCompiler",
    "Refused",
    "UnknownTopology",
    "compile",
]

for _class in (
    AotError,
    Buffer,
    Chip,
    Collective,
    Compiled,
    DoesNotFit,
    Memory,
    NoCompiler,
    Refused,
):
    _class.__module__ = __name__  # the name that users know
UnknownTopology.__module__ = __name__


def compile(
    what: Any = None,
    *args: Any,
    topology: str = "v5e:2x2",
    plugin: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Compiled:
    """Compiles a program for a topology of chips that need not be there.

    It is a program for one chip, or, in SPMD mode, where something in it is split
    (`torch_xla.distributed.spmd.mark_sharding`, of tensors on `meta`, too), one for all chips. With
    `use_spmd(auto=True)` it is chosen how the program of a function or module is split.

    Nothing runs, and no memory is taken. A function runs as Python three times, on tensors without
    values: the first call makes an optimizer's state. Parameters, buffers and optimizer state may
    be on `meta`, on the CPU, fake, or on xla, and hold afterwards what they held before. What the
    function writes of them takes over their memory in the program.

    Args:
        what: A function or module, `torch_xla.compile`d or not, such as a training step; an
            exported program; or None for what is recorded and waits for the next barrier.
        args: Its positional arguments. Tensors count by shape and dtype alone, and may be on `meta`
            or fake; all else is a constant of the program.
        topology: The name of the chips, such as "v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2".
        plugin: The plugin that compiles: a name as in PJRT_DEVICE, or the path of its library. By
            default that of TPUs, libtpu.
        options: Options of the topology that the plugin knows.
        kwargs: The function's keyword arguments.

    Raises:
        DoesNotFit: The program needs more memory than a chip has; the error has the figures.
        NoCompiler: The plugin is not installed, or compiles only for devices that it has.
        UnknownTopology: The plugin knows no such topology.
        Refused: The compiler does not take the program.
        RuntimeError: The function is not one program: it reads values, say. The message names the
            line.
        ValueError: The exported program has dynamic sizes.
        TypeError: `what` is none of these.
    """

    def program(platform: str) -> _programs.Program:
        if what is None:
            return _programs.waiting(platform)
        if not isinstance(what, ExportedProgram):
            return _programs.of_call(what, args, kwargs, platform)
        if args or kwargs:
            raise TypeError(
                "aot.compile: expected an exported program alone, got arguments too. Its sizes are "
                "those that it was exported with."
            )
        return _programs.of_exported(what, platform)

    with _TopologyCompiler(topology, plugin, options) as compiler:
        auto_sharding = sys.modules.get("torch_xla.distributed.spmd.auto_sharding")
        if auto_sharding is not None and auto_sharding.is_enabled():
            return auto_sharding.compile_for(compiler, program)
        return compiler.compile(program(compiler.target))
