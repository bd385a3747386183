"""Jobs of several processes: each test starts its own, with ports and a store of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

Run = Callable[..., list[subprocess.CompletedProcess]]

_OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")


def reserved_port() -> socket.socket:
    """A bound socket: nobody else gets its port while it is open, but who is told may listen."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def _hear_interrupts() -> None:
    """A shell's background jobs ignore them, and so would what they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Job:
    """Processes that were started together, each in a process group of its own."""

    def __init__(self, commands: list[list[str]], environments: list[dict], folder: Path):
        self.processes = [
            subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                preexec_fn=_hear_interrupts,
            )
            for command, environment in zip(commands, environments, strict=True)
        ]

    def wait(self, timeout: float) -> list[subprocess.CompletedProcess]:
        """Kills what is not over by then, and raises."""
        done = []
        for process in self.processes:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                texts = "".join(f"\n{p.args[-1]}: {p.communicate()[1]}" for p in self.processes)
                raise AssertionError(f"not over after {timeout} s{texts[-6000:]}") from None
            done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
        return done

    def kill(self) -> None:
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


class Jobs:
    """Ways to start a script; the folder is the test's."""

    def __init__(self, folder: Path, stack: ExitStack):
        self._folder = folder
        self._stack = stack
        self._count = 0

    def script(self, code: str) -> str:
        self._count += 1
        path = self._folder / f"job{self._count}.py"
        path.write_text(textwrap.dedent(code))
        return str(path)

    def environment(self, env: dict[str, str | None] | None = None) -> dict[str, str]:
        # Python that does not buffer writes a line in parts, and those of two ranks mix.
        ours = {"PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
        ours["XLA_JOB_WAIT_SECONDS"] = "60"  # busy machines
        variables = {**os.environ, **ours, **(env or {})}
        return {
            name: value
            for name, value in variables.items()
            if value is not None and (name not in _OF_LAUNCHERS or (env and name in env))
        }

    def port(self) -> str:
        return str(self._stack.enter_context(reserved_port()).getsockname()[1])

    def start(self, commands: list[list[str]], environments: list[dict]) -> Job:
        job = Job(commands, environments, self._folder)
        self._stack.callback(job.kill)
        return job

    def start_by_hand(self, code: str, ranks: int = 2, env: dict | None = None) -> Job:
        """Each process is told of its place, and nobody watches over them."""
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.port(), **(env or {})}
        environments = [
            self.environment({"RANK": str(rank), "WORLD_SIZE": str(ranks), **meeting})
            for rank in range(ranks)
        ]
        return self.start([[sys.executable, self.script(code)]] * ranks, environments)

    def start_torchrun(
        self,
        code: str,
        ranks: int = 2,
        hosts: int = 1,
        env: dict | None = None,
        options: tuple = (),
    ) -> Job:
        """torchrun with `ranks` processes on each of `hosts` hosts, which are all this one."""
        meeting = (
            ["--standalone"]
            if hosts == 1
            else ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port()}"]
        )
        command = [
            *(sys.executable, "-m", "torch.distributed.run", *meeting, *options),
            *(f"--nnodes={hosts}", f"--nproc-per-node={ranks}"),
            # torchrun's own Python does not buffer.
            *("--no-python", sys.executable, self.script(code)),
        ]
        return self.start([command] * hosts, [self.environment(env)] * hosts)

    def start_spawn(self, code: str, ranks: int = 2, env: dict | None = None) -> Job:
        """A script that calls torch_xla.launch or xmp.spawn itself."""
        environment = self.environment({"CPU_NUM_DEVICES": str(ranks), **(env or {})})
        return self.start([[sys.executable, self.script(code)]], [environment])

    def _finish(self, job: Job, check: bool, timeout: float) -> list[subprocess.CompletedProcess]:
        done = job.wait(timeout)
        failed = [process for process in done if process.returncode != 0]
        if check and failed:
            texts = [f"{p.returncode}\n{p.stdout[-2000:]}\n{p.stderr[-6000:]}" for p in done]
            raise AssertionError("exit status " + "\n---- exit status ".join(texts))
        return done

    def by_hand(self, code, ranks=2, env=None, check=True, timeout=120):
        return self._finish(self.start_by_hand(code, ranks, env), check, timeout)

    def torchrun(self, code, ranks=2, hosts=1, env=None, options=(), check=True, timeout=120):
        return self._finish(self.start_torchrun(code, ranks, hosts, env, options), check, timeout)

    def spawn(self, code, ranks=2, env=None, check=True, timeout=120):
        return self._finish(self.start_spawn(code, ranks, env), check, timeout)[0]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with ExitStack() as stack:
        yield Jobs(tmp_path, stack)
