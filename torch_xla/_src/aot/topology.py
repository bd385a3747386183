"""A plugin's compiler for devices that are not there, in a process of its own.

A compiler may take its process down, and libtpu wants another environment than one that has a TPU.
The process runs `main`: each line of its input is a request, and it answers with a line of JSON on
a descriptor of its own, since compilers print.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_xla._src.device import plugins


class Refused(RuntimeError):
    """The plugin's refusal of a topology or a program.

    Attributes:
        method: The method of PJRT that failed; "" where the process ended.
        code: PJRT's name of the error, such as "INVALID_ARGUMENT".
        text: The plugin's words.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        parts = re.match(r"\[(\w+)\] ([A-Z_]+): (.*)", message, re.DOTALL)
        self.method, self.code, self.text = parts.groups() if parts else ("", "", message)


def is_partitioned(stablehlo: str) -> bool:
    """True if a program is one for several devices."""
    return "\n  sdy.mesh @mesh = " in stablehlo


class Compiler:
    """Compiles programs for the first device of a topology, or for all if it is partitioned.

    Args:
        spec: The plugin.
        topology: The topology's name, as the plugin knows it.
        options: Options of the topology, beside the plugin's.
    """

    def __init__(
        self,
        spec: plugins.PluginSpec,
        topology: str,
        options: Mapping[str, plugins.OptionValue] | None = None,
    ) -> None:
        self._spec, self._topology = spec, topology
        self._options = {**spec.topology_options(topology), **(options or {})}
        self._folder = tempfile.TemporaryDirectory(prefix="torch_xla_topology_")
        self._log = Path(self._folder.name, "log")
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def describe(self) -> dict[str, Any]:
        """The topology's platform and devices, each with its id, kind and attributes."""
        return self._ask({"describe": True})

    def compile(self, stablehlo: str) -> dict[str, Any]:
        """The compiler's figures of a program: its name, `memory` in bytes, `cost`, the `cycles` of
        a run, and what the devices exchange: `collectives`, each a kind, bytes, how often, groups
        of devices, an operation and its line.

        Raises:
            Refused: The plugin refuses the program or the topology, or its process has ended; the
                next call starts another one.
        """
        Path(self._program).write_text(stablehlo)
        return self._ask({"program": self._program})

    def compile_and_serialize(self, stablehlo: str) -> tuple[dict[str, Any], bytes]:
        """`compile`, and the executable in the plugin's form."""
        Path(self._program).write_text(stablehlo)
        figures = self._ask({"program": self._program, "save": self._executable})
        return figures, Path(self._executable).read_bytes()

    def close(self) -> None:
        self._end()
        self._folder.cleanup()

    @property
    def _program(self) -> str:
        return os.path.join(self._folder.name, "program.mlir")

    @property
    def _executable(self) -> str:
        return os.path.join(self._folder.name, "executable")

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            answer = self._answers.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            status = self._process.wait()
            self._end()
            raise Refused(
                f"the compiler's process ended with status {status}. It printed: {self._printed()}"
            )
        figures = json.loads(answer)
        if "error" in figures:
            raise Refused(figures["error"])
        return figures

    def _start(self) -> None:
        answers, theirs = os.pipe()
        given = {
            "path": sys.path,
            "device_type": self._spec.device_type,
            "library": self._spec.library_path,
            "flags": dict(self._spec.compile_options),
            "topology": self._topology,
            "options": self._options,
            "answers": theirs,
        }
        code = (
            "import json, sys; given = json.loads(sys.argv[1]); sys.path[:] = given['path']; "
            f"from {__name__} import main; main(given)"
        )
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, json.dumps(given)],
                env={**os.environ, **self._spec.topology_environment()},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[theirs],
                text=True,
            )
        os.close(theirs)
        self._answers = os.fdopen(answers)

    def _end(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended by itself
        self._process.wait()
        self._answers.close()
        self._process = None

    def _printed(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return "\n".join(lines[-20:]) or "nothing"


def main(given: dict[str, Any]) -> None:
    from torch_xla import _XLAC

    library, device_type = given["library"], given["device_type"]
    topology = None
    with os.fdopen(given["answers"], "w") as answers:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if topology is None:
                    plugins.prepare(device_type, library)
                    topology = _XLAC._Topology(library, given["topology"], given["options"])
                answer = _answer(topology, request, given["flags"])
            except Exception as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), file=answers, flush=True)


def _answer(topology: Any, request: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    if "describe" in request:
        return {"platform": topology.platform_name, "devices": topology.devices()}
    text = Path(request["program"]).read_text()
    partitioned = is_partitioned(text)
    program = topology.compile(text, flags, partitioned)
    if "save" in request:
        Path(request["save"]).write_bytes(program.serialize())
    return {
        "name": program.name,
        "memory": program.memory(),
        "cost": program.cost(),
        "cycles": program.cycles(),
        "collectives": program.collectives() if partitioned else [],
    }
