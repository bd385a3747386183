"""The persistent cache: later processes load what earlier ones compiled."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

PRELUDE = """
import json, os, shutil, subprocess, sys
import torch, torch.nn as nn
import torch_xla, torch_xla.runtime as xr, torch_xla.debug.metrics as met

def counts():
    "Compiled, loaded from the disk, damaged files, since the last call."
    names = ["UncachedCompile", "PersistentCacheHit", "PersistentCacheDeserializeFailure"]
    now = [met.counter_value(name) or 0 for name in names]
    assert (met.counter_value("PersistentCacheMiss") or 0) in (0, now[0])
    met.clear_all()
    return now

def double():
    "Runs one small program, which is not in memory."
    xr.clear_computation_cache()
    x = torch.arange(6.0, device="cpu").to("xla")
    assert (x + x).tolist() == [0, 2, 4, 6, 8, 10]
    return counts()
"""


@pytest.fixture
def run(run_python):
    """Runs code after the prelude in a process of its own: what it printed last, and its stderr."""

    def run(code, env=None):
        done = run_python(PRELUDE + textwrap.dedent(code), env=env)
        return json.loads(done.stdout.splitlines()[-1]) if done.stdout else None, done.stderr

    return run


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


def programs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def warnings(stderr: str) -> list[str]:
    return re.findall(r"^W.*persistent cache: .*$", stderr, re.M)


# Convolution, pooling and dropout run kernels of the host inside the program.
TRAIN = """
xr.initialize_cache("new/cache")
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2),
                      nn.Flatten(), nn.Linear(4 * 7 * 7, 10)).to("xla")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(8, 1, 14, 14).to("xla"), torch.randint(10, (8,)).to("xla")
losses = []
for _ in range(4):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    torch_xla.sync()
    losses.append(loss.item())
counters = {name: met.counter_value(name) for name in met.counter_names() if "ach" in name}
times = {name: met.metric_data(name)[0] for name in met.metric_names() if "Time" in name}
print(json.dumps({"losses": losses, **counters, **times}))
"""


def test_second_process_compiles_nothing_and_computes_the_same(run, tmp_path):
    first, stderr = run(TRAIN)
    files = programs(tmp_path / "new/cache")
    assert "PersistentCacheHit" not in first and "PersistentCacheLoadTime" not in first
    assert first["PersistentCacheMiss"] == first["UncachedCompile"] == first["CompileTime"] > 1
    assert first["PersistentCacheStoreTime"] == len(files) == first["UncachedCompile"]
    assert all(name.endswith(".program") for name in files)
    assert any(b"aten::" in content for content in files.values())  # host kernels
    assert not warnings(stderr)

    second, stderr = run(TRAIN)
    assert second["losses"] == first["losses"]
    assert second["PersistentCacheHit"] == second["PersistentCacheLoadTime"] == len(files)
    # The compiler was not called; each step found its program.
    assert second["CachedCompile"] == first["CachedCompile"] + first["UncachedCompile"]
    for absent in ("PersistentCacheMiss", "UncachedCompile", "CompileTime"):
        assert absent not in second
    assert not warnings(stderr) and programs(tmp_path / "new/cache") == files


def test_two_processes_at_once(run, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        reports = [r.result()[0] for r in [pool.submit(run, TRAIN) for _ in range(2)]]
    assert reports[0]["losses"] == reports[1]["losses"]
    third, _ = run(TRAIN)
    assert "UncachedCompile" not in third and third["losses"] == reports[0]["losses"]
    assert all(name.endswith(".program") for name in programs(tmp_path / "new/cache"))


def test_readonly_reads_and_writes_nothing(run, tmp_path):
    assert run("xr.initialize_cache('cache'); print(double())")[0] == [1, 0, 0]
    before = programs(tmp_path / "cache")
    (tmp_path / "cache").chmod(0o555)
    report, stderr = run(
        """
        xr.initialize_cache("cache", readonly=True)
        known = double()
        torch.ones(2, device="xla").add(1).mul(3).tolist()
        print([known, counts()])
        """
    )
    assert report == [[0, 1, 0], [1, 0, 0]]
    assert programs(tmp_path / "cache") == before
    assert not warnings(stderr)


def test_damaged_file_is_compiled_and_replaced(run, tmp_path):
    report, stderr = run(
        """
        from pathlib import Path
        xr.initialize_cache("cache")
        assert double() == [1, 0, 0]
        (path,) = Path("cache").iterdir()
        good = path.read_bytes()
        key_at = good.index(b"torch_xla ", len(b"torch_xla program"))
        for bad in [
            b"",
            b"not a program",
            good[:30],
            good[: len(good) // 2],
            good[:-20] + bytes([good[-20] ^ 1]) + good[-19:],
            good[:key_at] + b"T" + good[key_at + 1 :],  # of another key
        ]:
            path.write_bytes(bad)
            assert double() == [1, 0, 1], bad[:100]
            assert double() == [0, 1, 0]  # it was written anew
        print(json.dumps(path.name))
        """
    )
    (warning,) = warnings(stderr)
    assert "expected a whole program in" in warning and report in warning


def test_changed_options_and_flags_miss(run, tmp_path):
    run(
        """
        xr.initialize_cache("cache")
        assert double() == [1, 0, 0]
        torch_xla.set_custom_compile_options({"xla_cpu_enable_fast_math": True})
        assert double() == [1, 0, 0] and double() == [0, 1, 0]
        os.environ["XLA_FLAGS"] = "--xla_cpu_enable_fast_math=true"
        assert double() == [1, 0, 0] and double() == [0, 1, 0]
        """
    )
    assert len(programs(tmp_path / "cache")) == 3


def test_children_and_the_environment(run, tmp_path):
    """The cache reaches the processes that are started by the one that asked for it."""
    child = PRELUDE + "print(double())"
    report, _ = run(
        f"""
        xr.initialize_cache("relative")
        os.chdir("/")
        def start(**env):
            run = [sys.executable, "-c", {child!r}]
            return json.loads(subprocess.check_output(run, env={{**os.environ, **env}}))
        first = start()
        print([first, start(XLA_PERSISTENT_CACHE_READ_ONLY="1")])
        """
    )
    assert report == [[1, 0, 0], [0, 1, 0]]
    assert len(programs(tmp_path / "relative")) == 1


ON_DEVICES = """
xr.initialize_cache("cache")
report = []
for index in map(int, os.environ["ORDER"].split()):
    xr.clear_computation_cache()
    y = torch.arange(3.0, device="cpu").to(f"xla:{index}") * 3
    assert y.tolist() == [0, 3, 6] and y.device.index == index
    report.append(counts())
print(report)
"""


def test_program_of_one_device_serves_the_others(run):
    report, _ = run(ON_DEVICES, env={"CPU_NUM_DEVICES": "3", "ORDER": "0 1 2"})
    assert report == [[1, 0, 0], [0, 1, 0], [0, 1, 0]]


def test_plugin_that_does_not_move_programs(run, tmp_path):
    """Then each device has files of its own, and none is run on another's device."""
    env = {"CPU_NUM_DEVICES": "2", **proxy(tmp_path, "-DNO_MOVE")}
    report, _ = run(ON_DEVICES, env={**env, "ORDER": "0 1 0 1"})
    assert report == [[1, 0, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0]]
    report, stderr = run(ON_DEVICES, env={**env, "ORDER": "1 0"})
    assert report == [[0, 1, 0], [0, 1, 0]]
    assert not warnings(stderr)


def test_what_the_plugin_refuses_is_compiled(run, tmp_path):
    report, stderr = run(
        "xr.initialize_cache('cache'); print([double(), double()])",
        env=proxy(tmp_path, "-DBREAK_SERIALIZED"),
    )
    assert report == [[1, 0, 0], [1, 0, 1]]
    (warning,) = warnings(stderr)
    assert "the plugin cannot load" in warning


@pytest.mark.parametrize("without", ["-DNO_SERIALIZE", "-DNO_DESERIALIZE"])
def test_plugin_without_serialization_warns_once_and_compiles(run, tmp_path, without):
    _, stderr = run(
        """
        xr.initialize_cache("cache")
        for _ in range(3):
            xr.clear_computation_cache()
            assert (torch.arange(3.0, device="cpu").to("xla") + 1).tolist() == [1, 2, 3]
        assert met.counter_value("UncachedCompile") == 3
        """,
        env=proxy(tmp_path, without),
    )
    (warning,) = warnings(stderr)
    assert "expected a plugin that serializes programs" in warning and "UNIMPLEMENTED" in warning


PROXY = """
// The CPU plugin with a part of it changed.
#include <dlfcn.h>
#include <pjrt_c_api.h>

static const PJRT_Api* real() {
  static auto get = (const PJRT_Api* (*)())dlsym(dlopen(PLUGIN, RTLD_NOW), "GetPjrtApi");
  return get();
}

extern "C" const PJRT_Api* GetPjrtApi() {
  static PJRT_Api api = *real();
#ifdef NO_SERIALIZE
  api.PJRT_Executable_Serialize = nullptr;
#endif
#ifdef NO_DESERIALIZE
  api.PJRT_Executable_DeserializeAndLoad = nullptr;
#endif
#ifdef BREAK_SERIALIZED
  api.PJRT_Executable_Serialize = [](PJRT_Executable_Serialize_Args* args) {
    PJRT_Error* error = real()->PJRT_Executable_Serialize(args);
    args->serialized_bytes_size /= 2;
    return error;
  };
#endif
#ifdef NO_MOVE
  api.PJRT_Executable_DeserializeAndLoad = [](PJRT_Executable_DeserializeAndLoad_Args* args) {
    args->overridden_serialized_compile_options = nullptr;
    args->overridden_serialized_compile_options_size = 0;
    return real()->PJRT_Executable_DeserializeAndLoad(args);
  };
#endif
  return &api;
}
"""


def proxy(folder: Path, define: str) -> dict[str, str]:
    """The environment that chooses a changed CPU plugin, which is built here.

    All variants have one path and size, so that they share files.
    """
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    import xla_plugins.xla_cpu_pjrt as package

    real = Path(list(package.__path__)[0])
    folder.mkdir(exist_ok=True)
    (folder / "proxy.cpp").write_text(PROXY)
    library = folder / "plugin.so"
    command = [compiler, "-std=c++17", "-shared", "-fPIC", define, "-ldl", "-o", str(library)]
    subprocess.run(
        [
            *command,
            f'-DPLUGIN="{real / "xla_cpu_pjrt.so"}"',
            f"-I{real / 'include'}",
            str(folder / "proxy.cpp"),
        ],
        check=True,
    )
    size = 1 << 16
    assert library.stat().st_size <= size
    os.truncate(library, size)
    return {"PJRT_LIBRARY_PATH": str(library), "PJRT_DEVICE": "CPU"}


def test_calling_it_too_late_is_an_error(run, tmp_path):
    run(
        """
        # A device, recorded calls and transfers are no computation.
        x = torch.ones(3).to(torch_xla.device()) + 1
        xr.initialize_cache("first")
        xr.initialize_cache("second")
        assert x.sum().item() == 6
        try:
            xr.initialize_cache("third")
        except RuntimeError as error:
            assert "initialize_cache: expected a process that has computed nothing" in str(error)
            assert "Call it before" in str(error)
        else:
            raise AssertionError("no error")
        """
    )
    assert programs(tmp_path / "second") and not programs(tmp_path / "first")
    assert not (tmp_path / "third").exists()


def test_too_late_without_a_cache_too(run):
    run(
        """
        import pytest
        torch.ones(3, device="xla").add(1).tolist()
        with pytest.raises(RuntimeError, match="computed nothing"):
            xr.initialize_cache("cache")
        """
    )


def test_folder_that_cannot_be_used(run, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "locked").mkdir(mode=0o555)
    run(
        """
        import pytest
        unusable = ["", "/proc/self", "/proc/nothing", "file", "file/inside"]
        if os.geteuid() != 0:  # the superuser may write everywhere
            unusable.append("locked")
        for path in unusable:
            with pytest.raises(RuntimeError) as caught:
                xr.initialize_cache(path)
            text = str(caught.value)
            assert "persistent cache: expected a folder that can be written to, got '" in text
            assert f"{path}' (" in text and "Give another path, or readonly=True" in text
        for path in ["", "nothing", "file"]:
            with pytest.raises(RuntimeError) as caught:
                xr.initialize_cache(path, readonly=True)
            assert "expected a folder that can be read, got '" in str(caught.value)
        assert not os.path.exists("nothing")
        assert "XLA_PERSISTENT_CACHE_PATH" not in os.environ
        # From the environment it is an error of the computation, until it is put right.
        os.environ["XLA_PERSISTENT_CACHE_PATH"] = "/proc/nothing"
        x = torch.ones(3, device="xla") + 1
        for _ in range(2):
            with pytest.raises(RuntimeError, match="persistent cache: expected a folder"):
                x.tolist()
        xr.initialize_cache("cache")
        assert x.tolist() == [2, 2, 2]
        """,
        env={"XLA_PERSISTENT_CACHE_PATH": None, "XLA_PERSISTENT_CACHE_READ_ONLY": None},
    )


def test_folder_that_is_lost_does_not_stop_the_program(run):
    _, stderr = run(
        """
        xr.initialize_cache("cache")
        assert double() == [1, 0, 0]
        shutil.rmtree("cache")
        for n in (1, 2):
            assert double() == [1, 0, 0]
        xr.clear_computation_cache()
        assert torch.ones(2, device="xla").add(1).tolist() == [2, 2]
        assert met.counter_value("PersistentCacheStoreFailure") == 1
        """
    )
    (warning,) = warnings(stderr)
    assert "could not be written: No such file or directory" in warning


def test_folder_that_others_can_write_to_is_left_alone(run, tmp_path):
    """A program that is found is run: the cache is off where somebody else could have put it."""
    for mode in (0o777, 0o1777, 0o770):
        folder = tmp_path / f"cache{mode:o}"
        folder.mkdir()
        folder.chmod(mode)
        counted, err = run(
            f"""
            xr.initialize_cache({str(folder)!r})
            print(json.dumps(double()))
            """
        )
        assert counted == [1, 0, 0] and not list(folder.iterdir())
        assert re.search("only you can write to.*chmod go-w", err), err


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="gives folders to other users")
def test_folder_and_files_of_others_are_left_alone(run, tmp_path):
    code = """
        xr.initialize_cache("cache")
        print(json.dumps(double()))
        """
    assert run(code)[0] == [1, 0, 0]
    assert run(code)[0] == [0, 1, 0]
    (program,) = (tmp_path / "cache").iterdir()
    assert program.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    program.chmod(0o666)
    counted, err = run(code)
    assert counted == [1, 0, 1] and "others can write to: everybody" in err
    assert program.stat().st_mode & 0o777 == 0o600  # replaced
    os.chown(program, 65534, 0)
    assert run(code)[0] == [1, 0, 1]
    assert run(code)[0] == [0, 1, 0]
    os.chown(tmp_path / "cache", 65534, 0)
    counted, err = run(code)
    assert counted == [1, 0, 0] and "user 65534, whose it is" in err


def test_a_pipe_in_place_of_a_program_does_not_block(run, tmp_path):
    code = """
        xr.initialize_cache("cache")
        print(json.dumps(double()))
        """
    run(code)
    (program,) = (tmp_path / "cache").iterdir()
    program.unlink()
    os.mkfifo(program)
    counted, err = run(code)
    assert counted == [1, 0, 1] and "not a regular file" in err
    assert run(code)[0] == [0, 1, 0]  # replaced


def test_what_killed_writers_left_is_removed_when_it_is_old(run, tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    name = f"{0:032x}.program"
    old, new, other = folder / f"{name}.1.tmp", folder / f"{name}.2.tmp", folder / "notes.tmp"
    for file in (old, new, other):
        file.write_text("cut short")
    os.utime(old, (1, 1))
    os.utime(other, (1, 1))
    run("xr.initialize_cache('cache'); print(json.dumps(double()))")
    assert not old.exists() and new.exists() and other.exists()


def user(home: Path | str | None, caches: Path | str | None = None, **env: str | None) -> dict:
    """The environment of a user who names no cache."""
    named = {"HOME": home, "XDG_CACHE_HOME": caches, "XLA_PERSISTENT_CACHE_PATH": None}
    return {name: value and str(value) for name, value in {**named, **env}.items()}


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("caches", [None, "caches", slow("relative")])
def test_programs_are_kept_among_the_users_caches(run, tmp_path, caches):
    """`$XDG_CACHE_HOME`, which must be absolute, or `~/.cache`; only the user can write there."""
    env = user(tmp_path / "home", caches and (tmp_path / caches if caches == "caches" else caches))
    (tmp_path / "home").mkdir()
    code = "os.umask(0); print(double())"
    assert run(code, env) == ([1, 0, 0], "")
    folder = tmp_path / ("caches" if caches == "caches" else "home/.cache")
    assert mode(folder) == mode(folder / "torch_xla") == 0o700
    (program,) = (folder / "torch_xla").iterdir()
    assert mode(program) == 0o600
    assert run(code, env) == ([0, 1, 0], "")
    report, _ = run(code, {**env, "XLA_PERSISTENT_CACHE_READ_ONLY": "1"})
    assert report == [0, 1, 0]
    assert not (tmp_path / "relative").exists()


def test_an_empty_path_is_no_cache(run, tmp_path):
    env = user(tmp_path, XLA_PERSISTENT_CACHE_PATH="")
    assert run("print([double(), double()])", env) == ([[1, 0, 0], [1, 0, 0]], "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "home",
    [None, "relative", *map(slow, ["/proc/nothing", "", "/dev/null", "locked"])],
)
@pytest.mark.parametrize("read_only", ["0", slow("1")])
def test_no_cache_where_the_user_can_have_none(run, tmp_path, home, read_only):
    """Nobody asked for it: nothing fails, and nothing is said but to those who listen."""
    if home == "locked":
        if os.geteuid() == 0:
            pytest.skip("the superuser may write everywhere")
        home = tmp_path / "locked"
        home.mkdir(mode=0o555)
    env = user(home, XLA_PERSISTENT_CACHE_READ_ONLY=read_only)
    assert run("print([double(), double()])", env) == ([[1, 0, 0], [1, 0, 0]], "")
    assert not (tmp_path / "relative").exists()
    _, stderr = run("double()", {**env, "TF_CPP_MIN_LOG_LEVEL": "0"})
    assert len(re.findall("^I.*persistent cache: expected a folder", stderr, re.M)) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="gives folders to other users")
def test_root_leaves_another_users_home_alone(run, tmp_path):
    """Under sudo, HOME may be the user's, who could not write to what root creates there."""
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    for caches in (None, home / "caches/deep"):
        assert run("print([double(), double()])", user(home, caches)) == ([[1, 0, 0]] * 2, "")
    assert not list(home.iterdir())


def test_users_folder_that_others_can_write_to_is_left_alone(run, tmp_path):
    folder = tmp_path / ".cache/torch_xla"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    report, stderr = run("print([double(), double()])", user(tmp_path))
    assert report == [[1, 0, 0], [1, 0, 0]] and not list(folder.iterdir())
    (warning,) = warnings(stderr)
    assert "only you can write to" in warning and "everybody" in warning


SUMS = """
xr.initialize_cache("cache")
x = torch.arange(6.0, device="cpu").to("xla")

def sums(numbers):
    "A program for each number; all are of about one size."
    for n in numbers:
        assert torch.cat([x + 1] * n).sum().item() == 21 * n
"""


def test_the_least_recently_used_programs_go(run, tmp_path):
    folder = tmp_path / "cache"
    run(SUMS + "sums([1])")
    (first,) = folder.iterdir()
    run(SUMS + "sums(range(1, 7))")
    files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)
    assert len(files) == 6
    size = sum(file.stat().st_size for file in files)
    for age, file in enumerate(reversed(files)):
        os.utime(file, (1e9 - age, 1e9 - age))
    os.utime(first, (1, 1))
    # The oldest is used again; the next two go for a seventh.
    env = {"XLA_PERSISTENT_CACHE_SIZE": str(size)}
    run(SUMS + "sums([1, 7])", env)
    left = set(folder.iterdir())
    assert sum(file.stat().st_size for file in left) <= size
    assert first in left and len(left - set(files)) == 1
    gone = [file for file in files if file not in left]
    assert gone and gone == [file for file in files if file != first][: len(gone)]
    # Processes that only read change nothing, and a program that is too large is not kept.
    read_only = {"XLA_PERSISTENT_CACHE_READ_ONLY": "1", "XLA_PERSISTENT_CACHE_SIZE": "1"}
    times = {file: file.stat().st_mtime for file in left}
    code = SUMS.replace('("cache")', '("cache", readonly=True)') + "sums([1, 7, 8])"
    assert not warnings(run(code, read_only)[1])
    assert {file: file.stat().st_mtime for file in folder.iterdir()} == times
    _, stderr = run(SUMS + "sums([8, 9])", {"XLA_PERSISTENT_CACHE_SIZE": "1"})
    (warning,) = warnings(stderr)
    assert "File too large" in warning and set(folder.iterdir()) == left


def test_bound_that_is_no_number(run, tmp_path):
    run(
        """
        import pytest
        with pytest.raises(ValueError, match="XLA_PERSISTENT_CACHE_SIZE: expected an integer"):
            double()
        os.environ["XLA_PERSISTENT_CACHE_SIZE"] = "-1"
        assert double() == [1, 0, 0]
        """,
        env=user(tmp_path, XLA_PERSISTENT_CACHE_SIZE="4G"),
    )


@pytest.mark.slow
def test_eight_processes_in_a_folder_that_is_too_small(run, tmp_path):
    """They store, find, miss and remove at once: all values are right, and no file is damaged."""
    code = """
        for _ in range(3):
            xr.clear_computation_cache()
            sums(range(1, 6))
        print(json.dumps({name: met.counter_value(name) for name in met.counter_names()}))
        """
    run(SUMS + "sums(range(1, 6))")
    size = sum(file.stat().st_size for file in (tmp_path / "cache").iterdir())
    shutil.rmtree(tmp_path / "cache")
    env = {"XLA_PERSISTENT_CACHE_SIZE": str(size // 2)}
    with ThreadPoolExecutor(8) as pool:
        started = [pool.submit(run, SUMS + textwrap.dedent(code), env) for _ in range(8)]
        done = [process.result() for process in started]
    for counters, stderr in done:
        assert not warnings(stderr)
        assert counters["PersistentCacheMiss"] > 0
        assert "PersistentCacheDeserializeFailure" not in counters
        assert "PersistentCacheStoreFailure" not in counters
    files = list((tmp_path / "cache").iterdir())
    assert all(file.suffix == ".program" for file in files)
    # Each may have written a sixteenth since it last looked, and a program.
    assert sum(file.stat().st_size for file in files) < 2 * size


def test_full_disk_does_not_stop_the_program(run, tmp_path):
    report, stderr = run(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # a write of more is cut short
        print(json.dumps([double(), double(), met.counter_value("PersistentCacheStoreFailure")]))
        """,
        env=user(tmp_path),
    )
    assert report[:2] == [[1, 0, 0], [1, 0, 0]]
    (warning,) = warnings(stderr)
    assert "could not be written: File too large" in warning
    assert not list((tmp_path / ".cache/torch_xla").iterdir())  # no drafts


@pytest.mark.slow
def test_killed_writers_leave_nothing_that_is_broken(run, tmp_path):
    code = PRELUDE + textwrap.dedent(
        """
        xr.initialize_cache("cache")
        x = torch.arange(6.0, device="cpu").to("xla")
        for n in range(1, 1000):
            y = ((x + 1).reshape(-1, 1) @ torch.ones(1, n, device="xla")).sum()
            print(y.item(), flush=True)
        """
    )
    for attempt in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        for _ in range(1 + 3 * attempt):
            process.stdout.readline()
        time.sleep(0.003 * attempt)
        process.kill()
        process.communicate()
    stored = [file for file in (tmp_path / "cache").iterdir() if file.suffix == ".program"]
    assert stored
    report, stderr = run(
        """
        xr.initialize_cache("cache")
        x = torch.arange(6.0, device="cpu").to("xla")
        for n in range(1, 20):
            y = ((x + 1).reshape(-1, 1) @ torch.ones(1, n, device="xla")).sum()
            assert y.item() == 21 * n
        print(json.dumps(counts()))
        """
    )
    assert report[1] > 0 and report[2] == 0 and not warnings(stderr)
