"""libtpu's compiler in a process of its own, which it may take down without taking the tests.

As a program: compiles each file of StableHLO that a line of stdin names for the topology, and
answers with a line of JSON, on the descriptor that its last argument names since libtpu prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# There is no TPU to ask about its surroundings.
WITHOUT_A_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # there is no device to share
}


class Compiler:
    """Compiles programs for devices that are not there."""

    def __init__(self, library: str, topology: str, folder: Path) -> None:
        self._library, self._topology = library, topology
        self._file = folder / "program.mlir"
        self._process: subprocess.Popen | None = None

    def _start(self) -> subprocess.Popen:
        answers, theirs = os.pipe()
        command = [sys.executable, "-m", "tests.tpu.compiler", self._library, self._topology]
        with open(self._file.with_suffix(".log"), "a") as log:
            process = subprocess.Popen(
                [*command, str(theirs)],
                cwd=ROOT,
                env={**os.environ, **WITHOUT_A_TPU},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[theirs],
                text=True,
            )
        os.close(theirs)
        self._answers = os.fdopen(answers)
        return process

    def compile(self, text: str) -> str | None:
        """What the compiler says against a program, or None."""
        self._file.write_text(text)
        if self._process is None:
            self._process = self._start()
        try:
            print(self._file, file=self._process.stdin, flush=True)
            answer = self._answers.readline()
        except BrokenPipeError:
            answer = ""
        if answer:
            return json.loads(answer)
        status = self._process.wait()
        self.close()
        return f"libtpu crashed with exit status {status}"

    def close(self) -> None:
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()
            self._answers.close()
            self._process = None


def main(library: str, topology_name: str, descriptor: str) -> None:
    from torch_xla import _XLAC

    topology = _XLAC._Topology(library, topology_name)
    with os.fdopen(int(descriptor), "w") as answers:
        for line in sys.stdin:
            try:
                topology.compile(Path(line.strip()).read_text())
                answer = None
            except Exception as e:
                answer = f"{type(e).__name__}: {e}"
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
