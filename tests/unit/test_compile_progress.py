"""A compilation that takes long shows itself on a terminal, and nowhere else."""

import os
import pty
import subprocess
import sys
import termios
import textwrap

import pytest

# The compilation is held in the background while Python's lock is: whoever writes needs it not. The
# collector may run wherever Python does, and wants the graph lock, whose holder may wait for the
# compiler.
HELD = """
    import ctypes, os, sys
    import torch, torch_xla
    from tests import fault_plugin
    x = torch.randn(20).to("xla")
    torch_xla.sync(wait=True)
    fault_plugin.hold(fault_plugin.COMPILATION)
    y = x.sin() + 1
    torch_xla.sync()
    sys.setswitchinterval(100)
    ctypes.PyDLL(None).usleep(3_600_000)
    os.write(2, b"<Python again>")
    fault_plugin.release()
    y.tolist()
"""
COMPILE = """
    import torch, torch_xla
    x = torch.randn(2000).to("xla")
    kept = [x[: 1000 + i].sort()[0].cumsum(0) for i in range(120)]
    torch_xla.sync()
"""


def on_terminal(code, columns=200, **env):
    """What a program prints to stderr, which is a terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    env = {**os.environ, "XLA_PERSISTENT_CACHE_PATH": "", "XLA_FLAGS": "", **env}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stderr=theirs, stdout=theirs, env=env
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        text += part
    os.close(ours)
    assert process.wait() == 0, text
    return text.decode()


@pytest.fixture
def held(fault_plugin):
    return {"PJRT_DEVICE": "CPU", "PJRT_LIBRARY_PATH": str(fault_plugin)}


@pytest.mark.parametrize("columns", [200, 30])
def test_what_is_shown_needs_no_python(held, columns):
    before, after = on_terminal(HELD, columns, **held).split("<Python again>")
    shown = 'Compiling "sync" of <string>:9 (<module>) (2 calls): 00:03'
    assert f"\r\033[K{shown[-columns + 1 :]}" in before
    assert after.endswith("\r\033[K")  # and gone at the end


def test_nothing_is_shown_in_a_file(run_python, held):
    assert run_python(HELD, env={**held, "XLA_EXPLAIN": "0"}).stderr == "<Python again>"


@pytest.mark.slow
def test_a_long_compilation(run_python):
    text = on_terminal(COMPILE)
    assert 'Compiling "sync" of <string>:5 (<module>) (' in text and "calls): 00:03" in text
    env = {"XLA_PERSISTENT_CACHE_PATH": "", "XLA_FLAGS": "", "XLA_EXPLAIN": "0"}
    assert run_python(COMPILE, env=env).stderr == ""
