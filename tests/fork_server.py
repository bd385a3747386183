"""Runs Python programs in forks of a process that has imported PyTorch.

Importing it takes three seconds of a processor, which is more than most tests of a process take,
and hundreds of tests need a process of their own. A fork begins where the import has ended; all
else is as after `python -c`: its variables, its folder, its arguments, and the interpreter's end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType

# Variables of these names are read later than at the start of Python and of PyTorch, if at all.
# Another value of any other variable needs a start of its own.
_READ_LATER = (
    *("CPU_", "GPU_", "HOME", "PJRT_", "PT_XLA_", "TPU_", "XDG_CACHE_", "XLA_", "XRT_"),
    *("LOCAL_RANK", "RANK", "WORLD_SIZE"),
    "TF_CPP_",  # by plugins, which are loaded later
    "ORDER",  # by a program of the tests
    "PYTEST_",  # the name of the test
)


class ForkServer:
    """Runs programs in forks of a process of its own, which it starts when it first needs it.

    Args:
        modules: What that process imports.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._process: subprocess.Popen | None = None
        # That of the tests, and not of the first program, which may be a special one.
        self._environment = dict(os.environ)
        self._lock = threading.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="fork_server_")

    def takes(self, environment: dict[str, str]) -> bool:
        """Whether a program with these variables would run as after a start of its own."""
        with self._lock:
            if self._process is None:
                self._start()
        both = {*environment, *self._environment}
        differs = {n for n in both if environment.get(n) != self._environment.get(n)}
        return all(name.startswith(_READ_LATER) for name in differs)

    def run(
        self, code: str, folder: Path, environment: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess:
        """Runs a program, as `subprocess.run([sys.executable, "-c", code], ...)` does.

        Raises:
            TimeoutExpired: It took longer than `timeout` seconds, and was killed.
        """
        with (
            tempfile.TemporaryFile("w+", dir=self._folder.name) as out,
            tempfile.TemporaryFile("w+", dir=self._folder.name) as err,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
        ):
            connection.connect(self._address)
            request = json.dumps([code, str(folder), environment]).encode()
            size = len(request).to_bytes(8, "little")
            socket.send_fds(connection, [size], [out.fileno(), err.fileno()])
            connection.sendall(request)
            replies = connection.makefile("r")
            child = int(replies.readline())
            connection.settimeout(timeout)
            timed_out = False
            try:
                status = int(replies.readline())
            except TimeoutError:
                timed_out = True
                os.kill(child, signal.SIGKILL)
                connection.settimeout(None)
                connection.recv(64)  # it has ended
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read())
        command = [sys.executable, "-c", code]
        if timed_out:
            raise subprocess.TimeoutExpired(command, timeout, *texts)
        return subprocess.CompletedProcess(command, os.waitstatus_to_exitcode(status), *texts)

    @property
    def _address(self) -> str:
        return self._folder.name + "/socket"

    def _start(self) -> None:
        # The program runs in the module __main__, which has no names yet.
        given = ", ".join(map(repr, (self._address, *self._modules)))
        start = f"exec(__import__('tests.fork_server').fork_server.serve({given}))"
        self._process = subprocess.Popen(
            [sys.executable, "-c", start],
            env=self._environment,
            stdin=subprocess.PIPE,  # it ends with this process, which holds the other end
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"fork server: expected that it starts, got {self._process.wait()}.")

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()
        self._folder.cleanup()


def serve(address: str, *modules: str) -> CodeType:
    """Answers requests until the process that started this one ends.

    Returns, in a fork, the program that it is to run.
    """
    import gc
    import importlib
    import select

    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork does not write to pages that all forks share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listener, 0], [], [])
            if 0 in ready:
                os._exit(0)
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
    return _answer(connection)


def _answer(connection: socket.socket) -> CodeType:
    """Forks for one request, and tells how the fork ended. Returns in the fork."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, outputs, _, _ = socket.recv_fds(connection, 8, 2)
    wanted, request = int.from_bytes(size, "little"), b""
    while len(request) < wanted:
        request += connection.recv(wanted - len(request))
    code, folder, environment = json.loads(request)
    child = os.fork()
    if child != 0:
        connection.sendall(f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        connection.sendall(f"{status}\n".encode())
        os._exit(0)
    connection.close()
    for descriptor, file in zip((1, 2), outputs, strict=True):
        os.dup2(file, descriptor)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
        del sys.modules[name]
    return compile(code, "<string>", "exec")
