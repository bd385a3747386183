"""One process of a job compiles a program, and the others take it.

Units: executor/stored/job_programs, executor/stored/program_file, _src/job/compiles,
executor/stored/tcp_store.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[2] / "build/fault_plugin.so"

BEGIN = """
import json, os, time
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr

rank = xr.global_ordinal()
SHORT = {"compiled": "UncachedCompile", "given": "JobCompileGiven", "taken": "JobCompileTaken",
         "failed": "JobCompileFailure", "loaded": "PersistentCacheHit"}
told = {}


def compute(size):
    # A program for each size.
    x = torch.arange(float(size)).to("xla")
    assert (x.sin() + x.cos()).sum().item() is not None


def case(name, work, first=None):
    # Counts while all ranks work, one before the others where `first` says so.
    torch_xla.sync(wait=True)
    before = {short: met.counter_value(name) or 0 for short, name in SHORT.items()}
    xm.rendezvous(name)
    if first not in (None, rank):
        xm.rendezvous("first")
    work()
    if first == rank:
        xm.rendezvous("first")
    xm.rendezvous(name + " is over")
    now = {short: met.counter_value(name) or 0 for short, name in SHORT.items()}
    told[name] = {short: now[short] - before[short] for short in SHORT}
"""


def of_ranks(done):
    """What the ranks have told of a case, by its name."""
    told = [json.loads(process.stdout.splitlines()[-1]) for process in done]
    return {name: [of[name] for of in told] for name in told[0]}


CASES = """
from tests import fault_plugin
from torch_xla import _XLAC


def train(width, step):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)]).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def body(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        xm.optimizer_step(optimizer)

    run = step(body)
    for _ in range(3):
        run(torch.randn(4, width).to("xla"))
        torch_xla.sync()
    torch_xla.sync(wait=True)


def openxla(size):
    graph = torch.compile(lambda x: (x @ x).tanh(), backend="openxla")
    assert graph(torch.randn(size, size).to("xla")).sum().item() is not None


def pieces():
    x = torch.randn(4, 24).to("xla")
    for w in [torch.randn(24, 24).to("xla") for _ in range(6)]:
        x = x @ w + 0.1 * ((x.sin() * x.cos()).tanh() - x.square().sigmoid() + x.abs().sqrt())
    for w in [torch.randn(24, 24).to("xla") for _ in range(6)]:
        x = x @ w - 0.1 * ((x.exp() * x.sin()).tanh() + x.square().erf() + x.abs().log1p())
    torch_xla.sync(wait=True)
    assert len(set(_XLAC._xla_programs()[0]["pieces"])) > 1


def fails(size):
    if rank == 0:
        fault_plugin.arm(fault_plugin.COMPILE, 1)
        try:
            compute(size)
        except RuntimeError as error:
            assert "PJRT_Client_Compile" in str(error), error
        else:
            raise AssertionError("it has not failed")
        finally:
            fault_plugin.arm(fault_plugin.COMPILE, 0)
    else:
        compute(size)


def is_slow(size):
    # Rank 0 has claimed the program, and its compiler does not come to an end.
    if rank == 0:
        fault_plugin.hold(fault_plugin.COMPILATION)
        x = torch.arange(float(size)).to("xla").sin()
        torch_xla.sync()
        while fault_plugin.num_held() == 0:
            time.sleep(0.01)
        xm.rendezvous("it is held")
        xm.rendezvous("it was waited for")
        fault_plugin.release()
    else:
        xm.rendezvous("it is held")
        os.environ["XLA_JOB_COMPILE_SECONDS"] = "1"
        x = torch.arange(float(size)).to("xla").sin()
        torch_xla.sync(wait=True)
        xm.rendezvous("it was waited for")
        del os.environ["XLA_JOB_COMPILE_SECONDS"]
    assert x.tolist() is not None


def without(size):
    os.environ["XLA_JOB_COMPILE_SECONDS"] = "0"
    compute(size)
    del os.environ["XLA_JOB_COMPILE_SECONDS"]


def told_of(size):
    os.environ.update(PT_XLA_DEBUG_LEVEL="1", PT_XLA_DEBUG_FILE=f"told{rank}")
    compute(size)
    os.environ["PT_XLA_DEBUG_LEVEL"] = "0"


case("at once", lambda: compute(11))
case("one after the other", lambda: compute(12), first=1)
case("another program", lambda: compute(13 + rank))
case("one alone", lambda: compute(15) if rank == 1 else None)
case("it fails", lambda: fails(16), first=0)
case("it is slow", lambda: is_slow(17))
case("turned off", lambda: without(18))
case("told", lambda: told_of(19), first=0)
case("in the background", lambda: train(8, lambda body: body))
case("torch_xla.compile", lambda: train(9, torch_xla.compile))
case("torch.compile", lambda: openxla(6))
_XLAC._xla_set_piece_limits(8, 4, 1, 24)
case("in pieces", pieces)
print(json.dumps(told), flush=True)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    from contextlib import ExitStack

    from tests.jobs.conftest import Jobs

    folder = tmp_path_factory.mktemp("one_compile")
    env = {"PJRT_LIBRARY_PATH": str(PLUGIN)}
    with ExitStack() as stack:
        done = Jobs(folder, stack).by_hand(BEGIN + CASES, env=env)
    return of_ranks(done), done, folder


def sums(ranks):
    return {name: sum(of[name] for of in ranks) for name in ranks[0]}


@pytest.mark.parametrize(
    "name",
    ["at once", "one after the other", "in the background", "torch_xla.compile", "torch.compile"],
)
def test_one_compiles_for_two(told, name):
    both = sums(told[0][name])
    assert both["compiled"] == both["given"] == both["taken"] > 0 and both["failed"] == 0, both


def test_the_first_compiles(told):
    ranks = told[0]["one after the other"]
    assert [of["compiled"] for of in ranks] == [0, 1] and [of["taken"] for of in ranks] == [1, 0]


def test_pieces_of_a_program(told):
    """Each executable is compiled by one."""
    both = sums(told[0]["in pieces"])
    assert both["given"] == both["taken"] > 1 and both["failed"] == 0, both


def test_other_programs_do_not_wait(told):
    ranks = told[0]["another program"]
    assert [of["compiled"] for of in ranks] == [1, 1] and sums(ranks)["taken"] == 0, ranks
    ranks = told[0]["one alone"]
    assert [of["compiled"] for of in ranks] == [0, 1], ranks  # who waits for nobody comes to an end


def test_a_compilation_that_fails(told):
    ranks = told[0]["it fails"]
    assert ranks[1]["compiled"] == ranks[1]["failed"] == 1 and sums(ranks)["taken"] == 0, ranks


def test_a_compilation_that_takes_too_long(told):
    ranks = told[0]["it is slow"]
    assert ranks[1]["failed"] == 1 and sums(ranks)["taken"] == 0, ranks
    warning = "expected a program from rank 0 within 1 s (XLA_JOB_COMPILE_SECONDS)"
    assert warning in told[1][1].stderr and warning not in told[1][0].stderr


def test_each_compiles_where_that_is_wanted(told):
    ranks = told[0]["turned off"]
    assert [of["compiled"] for of in ranks] == [1, 1]
    assert sums(ranks)["given"] == sums(ranks)["taken"] == 0


def test_the_analysis_says_whose_it_is(told):
    text = (told[2] / "told1").read_text()
    assert "taken from rank 0 in " in text and " of waiting for its compiler" in text
    assert "taken from" not in (told[2] / "told0").read_text()


FOLDER = """
if __name__ == "__main__":
    # Rank 1 may only read.
    if rank == 1:
        os.environ["XLA_PERSISTENT_CACHE_READ_ONLY"] = "1"
        while not os.path.isdir("cache"):
            time.sleep(0.02)
    files = lambda: {name for name in os.listdir("cache") if name.endswith(".program")}
    if rank == 0:
        compute(10)
    case("by who reads", lambda: compute(11), first=1)
    case("by who writes", lambda: compute(12), first=0)
    told["files"] = len(files())
    print(json.dumps(told), flush=True)
"""


def test_a_folder_that_some_only_read(jobs):
    """A program goes by the folder if it can, and gets there whoever compiles it."""
    done = jobs.by_hand(BEGIN + FOLDER, env={"XLA_PERSISTENT_CACHE_PATH": "cache"})
    told = of_ranks(done)
    assert told["files"] == [3, 3]
    assert [of["compiled"] for of in told["by who reads"]] == [0, 1]
    assert [of["taken"] for of in told["by who reads"]] == [1, 0]
    assert [of["loaded"] for of in told["by who reads"]] == [0, 0]  # it went through the store
    assert [of["compiled"] for of in told["by who writes"]] == [1, 0]
    # Found in the folder before it is asked for.
    assert [of["loaded"] for of in told["by who writes"]] == [0, 1]
    assert all("Traceback" not in process.stderr for process in done)
