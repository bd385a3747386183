"""Processes of tests are forks of one that has imported PyTorch, and act as if they were not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def server(fork_server):
    if fork_server is None:
        pytest.skip("a sanitizer is loaded")
    return fork_server


def test_other_tests_and_other_flags_fork_too(server):
    here = dict(os.environ)
    assert server.takes({**here, "PYTEST_CURRENT_TEST": "another", "XLA_ANY": "1"})
    assert server.takes({**here, "WORLD_SIZE": "2", "TF_CPP_MIN_LOG_LEVEL": "0"})
    assert not server.takes({**here, "OMP_NUM_THREADS": "17"})


def test_what_a_program_does_is_that_of_a_process_of_its_own(server, tmp_path: Path):
    code = """if True:
        import os, sys
        print(__name__, sys.argv, os.getcwd(), os.environ["XLA_ANY"], "torch" in sys.modules)
        print("to the other", file=sys.stderr)
        sys.exit(3)
    """
    done = server.run(code, tmp_path, {**os.environ, "XLA_ANY": "1"}, timeout=60)
    assert done.stdout == f"__main__ ['-c'] {tmp_path} 1 True\n"
    assert done.stderr == "to the other\n" and done.returncode == 3
    ended = server.run("import os; os.abort()", tmp_path, dict(os.environ), timeout=60)
    assert ended.returncode == -6


def test_a_program_that_takes_too_long_is_killed(server, tmp_path: Path):
    with pytest.raises(subprocess.TimeoutExpired) as error:
        code = "import time; print('begun', flush=True); time.sleep(60)"
        server.run(code, tmp_path, dict(os.environ), timeout=2)
    assert error.value.stdout == "begun\n"
