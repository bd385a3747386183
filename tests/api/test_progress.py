"""A compilation that takes long shows itself on a terminal, and nowhere else."""

import os
import pty
import subprocess
import sys
import termios
import textwrap

import pytest

SHOW = """
    from torch_xla._src import progress
    progress.show('Compiling "sync" of train.py:3 (12 calls)', 3.0, False)
    progress.show('Compiling "sync" of train.py:3 (12 calls)', 4.0, False)
    progress.show('Compiling "sync" of train.py:3 (12 calls)', 4.2, True)
    assert not progress._bars
"""
COMPILE = """
    import torch, torch_xla
    x = torch.randn(2000).to("xla")
    kept = [x[: 1000 + i].sort()[0].cumsum(0) for i in range(120)]
    torch_xla.sync()
"""


def on_terminal(code):
    """What a program prints to stderr, which is a terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 200))
    env = {**os.environ, "XLA_PERSISTENT_CACHE_PATH": "", "XLA_FLAGS": ""}
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


def test_what_is_shown():
    text = on_terminal(SHOW)
    assert 'Compiling "sync" of train.py:3 (12 calls): 00:03' in text


def test_nothing_is_shown_in_a_file(run_python):
    assert run_python(SHOW).stderr == ""


@pytest.mark.slow
def test_a_long_compilation(run_python):
    text = on_terminal(COMPILE)
    assert 'Compiling "sync" of <string>:5 (<module>) (' in text and "calls): 00:03" in text
    env = {"XLA_PERSISTENT_CACHE_PATH": "", "XLA_FLAGS": "", "XLA_EXPLAIN": "0"}
    assert run_python(COMPILE, env=env).stderr == ""
