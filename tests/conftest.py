"""What the Python tests share."""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import os
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.fork_server import ForkServer

ROOT = Path(__file__).resolve().parents[1]
# The processes that tests start import this checkout too, from whatever folder.
_PATH = [str(ROOT), os.environ.get("PYTHONPATH")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _PATH))
# What is compiled does not depend on what was compiled before.
os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""

# PyTorch keeps each seed for accelerators that are not there, beside a text of its caller's stack:
# milliseconds for every test and every sample.
for _module in (torch.cuda, torch.xpu, torch.mtia):
    if not _module.is_available():
        _module.manual_seed_all = lambda seed: None

Run = Callable[..., subprocess.CompletedProcess]


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer | None]:
    """Runs programs as if PyTorch were imported at once; None where a sanitizer is loaded."""
    if "LD_PRELOAD" in os.environ:
        yield None
        return
    server = ForkServer("torch")
    yield server
    server.close()


@pytest.fixture
def run_python(tmp_path: Path, fork_server: ForkServer | None) -> Run:
    """Runs Python code in a process of its own and returns what came of it.

    `env` adds variables, or removes those that are None. Its folder is a temporary one. PyTorch is
    imported already, unless `fresh`.
    """

    def run(
        code: str,
        env: dict[str, str | None] | None = None,
        check: bool = True,
        timeout: float = 300,
        fresh: bool = False,
    ) -> subprocess.CompletedProcess:
        code = textwrap.dedent(code)
        variables = {**os.environ, **(env or {})}
        variables = {name: value for name, value in variables.items() if value is not None}
        if not fresh and fork_server is not None and fork_server.takes(variables):
            done = fork_server.run(code, tmp_path, variables, timeout)
        else:
            done = subprocess.run(
                [sys.executable, "-c", code],
                cwd=tmp_path,  # what is in this folder would be imported before PYTHONPATH
                env=variables,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        if check:
            assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr[-4000:]}"
        return done

    return run


def shard_of(items: list, shard: str) -> tuple[list, list]:
    """The items of a shard, "2of4", and the others. Long tests lie beside each other: every fourth
    is taken."""
    number, count = map(int, shard.split("of"))
    if not 1 <= number <= count:
        raise pytest.UsageError(f"TEST_SHARD: expected 1of4 to 4of4, for example, got '{shard}'.")
    chosen = items[number - 1 :: count]
    return chosen, [item for i, item in enumerate(items) if i % count != number - 1]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """TEST_SHARD=2of4 takes the second of four parts, so that each ends within an hour or so."""
    shard = os.environ.get("TEST_SHARD")
    if shard:
        items[:], others = shard_of(items, shard)
        config.hook.pytest_deselected(items=others)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # no collection walks over the tests themselves, of which there are thousands


@pytest.fixture(autouse=True)
def check_donation() -> None:
    """Each run is followed by a search for calls that read memory which it has taken over."""
    extension = sys.modules.get("torch_xla._XLAC")  # some tests look at the import itself
    if extension is not None:
        extension._xla_set_check_donation(True)


@pytest.fixture(autouse=True)
def lower_views(request: pytest.FixtureRequest) -> None:
    """Tests of operators lower the views that they read. Elsewhere the host may cut them out."""
    extension = sys.modules.get("torch_xla._XLAC")
    if extension is not None:
        lowered = request.path.parent.name in ("ops", "unit")
        extension._xla_set_reads_views_by_programs(lowered)


@pytest.fixture
def share_of_the_launch() -> Callable[[], float]:
    """Launches long products; what part of their time `torch_xla.sync()` itself took."""
    import torch_xla  # here: some tests look at the import itself
    import torch_xla.core.xla_model as xm

    x = torch.randn(1000, 1000, device="xla")

    def share() -> float:
        y = x
        for _ in range(6):
            y = y @ x / 40
        start = time.perf_counter()
        torch_xla.sync()
        launched = time.perf_counter() - start
        xm.wait_device_ops()
        return launched / (time.perf_counter() - start)

    share()  # compiles
    return share


def built(target: str) -> Path:
    """The build folder, after `target` was built there."""
    build, cmake = ROOT / "build", Path(sys.executable).with_name("cmake")
    with open(build / f".{target}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers build it too
        command = [cmake, "--build", build, "--target", target]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        why = f"{target} was not built: {(done.stdout + done.stderr)[-2000:]}"
        warnings.warn(why, stacklevel=1)
        pytest.skip(why)
    return build


@pytest.fixture(scope="session")
def profiling_plugin() -> Path:
    """Builds the CPU plugin that makes profiles (tests/cpp/profiling_plugin)."""
    return built("profiling_plugin") / "profiling_plugin.so"


@pytest.fixture(scope="session")
def fault_plugin() -> Path:
    """Builds the CPU plugin in which chosen calls fail (tests/fault_plugin.py tells which)."""
    return built("fault_plugin") / "fault_plugin.so"


@pytest.fixture(scope="session")
def half_plugin() -> Path:
    """Builds the CPU plugin of which one process of a job of two has half of the devices."""
    return built("half_plugin") / "half_plugin.so"


@pytest.fixture(scope="session")
def pod_plugin() -> Path:
    """Builds the CPU plugin whose client spans the processes of a job."""
    return built("pod_plugin") / "pod_plugin.so"


@pytest.fixture(scope="session")
def plugin_without_shardy() -> Path:
    """The CPU plugin that refuses programs in Shardy's words (tests/cpp/fake_plugin, the 8th)."""
    return built("fake_plugin_8") / "fake_plugin_8.so"


@pytest.fixture(scope="session")
def step_runner() -> Run:
    """Builds examples/runner, and runs it on the CPU; `status` is what it has to end with."""
    build = built("step_runner")
    package = importlib.util.find_spec("xla_plugins.xla_cpu_pjrt")
    plugin = Path(list(package.submodule_search_locations)[0], "xla_cpu_pjrt.so")

    def run(folder: Path, *options: object, status: int = 0) -> subprocess.CompletedProcess:
        command = [build / "step_runner", "--plugin", plugin, folder, *options]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
        assert done.returncode == status, f"exit status {done.returncode}\n{done.stderr[-4000:]}"
        if status != 0:
            assert done.stderr.startswith(("step_runner: ", "usage: ")), done.stderr
        return done

    return run
