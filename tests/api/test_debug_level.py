"""PT_XLA_DEBUG_LEVEL: what is compiled and run, why and where, in the documents' words.

Units: executor/insight/analysis, executor/compile/cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.runtime as xr
from torch_xla import _XLAC

BLOCK = re.compile(
    r"(?:^Computation hash: (\w+)\n\n)?^(.* Analysis): =+\n((?:\2: .*\n)*?)\2: -+\n\2: =+$", re.M
)


class Block:
    """One framed text: its title, and what its lines say."""

    def __init__(self, computation: str | None, title: str, text: str):
        self.computation = computation  # the hash that is told before it
        self.title = title
        self.lines = [line.removeprefix(f"{title}: ") for line in text.splitlines()]

    def after(self, heading: str) -> list[str]:
        """The indented lines below a heading."""
        first = self.lines.index(heading) + 1
        found = []
        for line in self.lines[first:]:
            if not line.startswith("  "):
                break
            found.append(line.removeprefix("  "))
        return found

    @property
    def cause(self) -> str:
        heading = "Execution Cause" if EXECUTION in self.title else "Compilation Cause"
        return self.after(heading)[0]

    @property
    def frames(self) -> list[str]:
        return self.after("Python Frame Triggered Execution: ")

    def number(self, name: str) -> str | None:
        lines = (line.split(": ") for line in self.after("Graph Info: "))
        return next((value for key, value in lines if key == name), None)


def blocks(text: str) -> list[Block]:
    found = [Block(*match.groups()) for match in BLOCK.finditer(text)]
    assert len(found) == len(re.findall(r"Analysis: -{80}$", text, re.M)), text
    return found


@pytest.fixture
def told(tmp_path: Path, monkeypatch) -> Callable[[int], list[Block]]:
    """Sets the level, and returns a function that gives what was told since it was last called."""
    torch_xla.sync()  # what earlier tests left
    xr.clear_computation_cache()
    path = tmp_path / "told"
    monkeypatch.setenv("PT_XLA_DEBUG_FILE", str(path))
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "2")

    def read() -> list[Block]:
        if not path.exists():
            return []
        text = path.read_text()
        path.unlink()
        return blocks(text)

    return read


COMPILATION, EXECUTION = "Compilation Analysis", "Execution Analysis"
READ = "most likely user code trying to access tensor value before torch_xla.sync"


@pytest.fixture
def x(told) -> torch.Tensor:
    """Data of the device."""
    x = torch.rand(3, 5).to("xla")
    torch_xla.sync()
    told()
    return x


def test_later_steps_are_runs_alone(told, x):
    steps = []
    for _ in range(3):
        y = torch.tanh(x) + 1
        torch_xla.sync()
        steps.append([(b.title, b.number("Graph Hash")) for b in told() if "Post" not in b.title])
        del y
    compiled, ran = steps[0]
    assert compiled == (COMPILATION, ran[1]) and ran[0] == EXECUTION
    assert re.fullmatch("[0-9a-f]{32}", ran[1])
    assert steps[1:] == [[ran], [ran]]


def test_inputs_outputs_and_frames(told, x):
    w = torch.rand(3, 5).to("xla")
    torch_xla.sync()
    told()

    def train():
        y = x * w
        z = y - 1
        xm.mark_step()
        return y, z

    kept = train()
    first = train.__code__.co_firstlineno
    compiled, memory, ran = told()
    assert memory.title == "Post " + COMPILATION
    assert compiled.computation is None and re.fullmatch("[0-9a-f]{32}", memory.computation)
    for block in (compiled, ran):
        assert block.cause == "user torch_xla.sync"
        assert block.number("Number of Graph Inputs") == "2"
        assert block.number("Number of Graph Outputs") == "2"
        assert block.frames[0].startswith("sync (")
        assert block.frames[1].startswith(f"mark_step ({xm.__file__}:")
        assert block.frames[2:4] == [
            f"train ({__file__}:{first + 3})",
            f"test_inputs_outputs_and_frames ({__file__}:{first + 6})",
        ]
    del kept


def test_long_stacks_are_cut(told, x, monkeypatch):
    def deeper(n):
        if n:
            return deeper(n - 1)
        y = x.sin() + 2
        torch_xla.sync()
        return y

    deeper(12)
    frames = told()[0].frames
    assert frames[0].startswith("sync (") and len(frames) == 9
    assert frames[-1] == ".........."
    for most in (0, 1, 3):
        monkeypatch.setenv("PT_XLA_DEBUG_MAX_FRAME", str(most))
        deeper(2)
        assert told()[-1].frames == [*frames[:most], ".........."]


FROM_DISK = """
import torch, torch_xla, torch_xla.debug as debug
for rows in (3, 4):
    x = torch.ones(rows, 2).to("xla")
    y = x.exp() * 7
    torch_xla.sync()
for r in debug.recompiles():
    print(r.from_disk, r.number, r.kind)
"""


def test_programs_from_the_disk_are_told(run_python, tmp_path):
    told = []
    for _ in range(2):
        done = run_python(
            FROM_DISK,
            env={
                "PT_XLA_DEBUG_LEVEL": "2",
                "XLA_PERSISTENT_CACHE_PATH": str(tmp_path),
                "PT_XLA_DEBUG_FILE": "",
            },
        )
        told.append((blocks(done.stderr), done.stderr, done.stdout.split()))
    (first, stderr, printed), (again, stderr_again, printed_again) = told
    assert [b.title for b in first] == [b.title for b in again]
    assert [b.title for b in first] == 2 * [COMPILATION, "Post " + COMPILATION, EXECUTION]
    from_disk = r"taken from the disk cache in [\d.]+ ms"
    for block, other in zip(first, again, strict=True):
        if block.title != COMPILATION:
            continue
        (cause,) = block.after("Compilation Cause")
        cause_again, where = other.after("Compilation Cause")
        assert cause == cause_again == "user torch_xla.sync" and re.fullmatch(from_disk, where)
        assert block.number("Graph Hash") == other.number("Graph Hash")
    assert 'Recompiled "sync" of' in stderr and "Loaded" not in stderr
    assert re.search(r'Loaded "sync" of .* from the disk cache: its program 2\.', stderr_again)
    assert "`self` of aten::exp is Float[4,2], was Float[3,2]" in stderr_again
    assert printed == ["False", "2", "shape"] and printed_again == ["True", "2", "shape"]


def test_sizes_of_a_compiled_program(told):
    x = torch.rand(1000, 500).to("xla")
    torch_xla.sync()
    told()
    y = x + 1
    torch_xla.sync()
    memory = told()[1]
    sizes = {name: size for name, size in (line.split(": ") for line in memory.lines)}
    assert list(sizes) == [
        "Graph input size",
        "Graph output size",
        "Aliased Input size",
        "Intermediate tensor size",
        "Compiled program size",
    ]
    assert all(re.fullmatch(r"\d+\.\d{6} GB", size) for size in sizes.values())
    assert sizes["Graph output size"] == "0.002000 GB"  # a million float32
    assert sizes["Graph input size"] in ("0.002000 GB", "0.002001 GB")  # and the number 1
    del y


def causes(told: list[Block]) -> set[tuple[str, str]]:
    return {(b.title, b.cause) for b in told if "Post" not in b.title}


def both(cause: str) -> set[tuple[str, str]]:
    return {(COMPILATION, cause), (EXECUTION, cause)}


def test_a_value_that_is_read(told, x):
    y = (x * 3).sum()
    told()
    y.item()
    blocks_of_item = told()
    assert causes(blocks_of_item) == both(READ)
    line = test_a_value_that_is_read.__code__.co_firstlineno + 3
    assert blocks_of_item[0].frames[0] == f"test_a_value_that_is_read ({__file__}:{line})"
    str(x / 7)
    assert causes(told()) == both(READ)


def inputs_of(told, step) -> str:
    torch_xla.sync()
    told()
    kept = step()  # noqa: F841
    torch_xla.sync()
    compiled, _, ran = told()
    inputs = compiled.number("Number of Graph Inputs")
    assert ran.number("Number of Graph Inputs") == inputs
    return inputs


def test_seeds_and_numbers_are_inputs(told, x):
    assert inputs_of(told, lambda: torch.randn(3, device="xla")) == "1"
    assert (
        inputs_of(told, lambda: torch.rand(3, device="xla") * torch.randn(3, device="xla")) == "1"
    )
    assert inputs_of(told, lambda: x * 100) == "2"
    assert inputs_of(told, lambda: x + 1) == "1"
    assert inputs_of(told, lambda: (x * 3, x - 3, x / 5)) == "3"


def test_sync_synchronize_and_the_loader(told, x):
    y = x * 5
    torch_xla.sync()
    assert causes(told()) == both("user torch_xla.sync")
    y = x * 6.5 + 1
    torch.xla.synchronize()
    assert causes(told()) == both("user synchronize")
    y = x * 7.5 - x
    torch.xla.current_stream().synchronize()
    assert causes(told()) == both("user synchronize")
    loader = pl.MpDeviceLoader([torch.ones(3, 5), torch.ones(3, 5)], torch.device("xla"))
    for batch in loader:
        y = batch.cos() * x
    assert causes(told()) >= both("torch_xla.sync in parallel loader at step end")
    del y


def test_compiled_functions(told, x):
    @torch_xla.compile
    def step(a):
        return a.sin() - 4

    y = x * 8.5 - x
    z = step(x)
    blocks_of_step = told()
    names = {b.cause: b.number("Graph Name") for b in blocks_of_step if "Post" not in b.title}
    assert names == {
        "torch_xla.compile clear the pending graph prior calling the target function": (
            "step_clear_pending"
        ),
        "torch_xla.compile": "step",
    }
    assert causes(blocks_of_step) == {
        *both("torch_xla.compile clear the pending graph prior calling the target function"),
        *both("torch_xla.compile"),
    }
    run = torch.compile(lambda a: a.sinh() * 2, backend="openxla")
    run(x)
    run(x)
    found = [(b.title, b.cause) for b in told() if "Post" not in b.title]
    assert found == [
        (COMPILATION, "dynamo is compiling a FX graph to HLO"),
        (EXECUTION, "dynamo is executing a compiled program"),
        (EXECUTION, "dynamo is executing a compiled program"),
    ]
    with torch_xla.experimental.eager_mode_context(True):
        x.cosh()
    assert told() == []  # each call is a program
    torch_xla.compile(step, name="named")(x)
    (ran,) = told()
    assert ran.number("Graph Name") == "named"
    assert ran.number("Graph Hash") == blocks_of_step[-1].number("Graph Hash")
    with torch_xla.compile():
        w = x.tan() - 4
    assert [b.number("Graph Name") for b in told() if "Post" not in b.title] == [None, None]
    del y, z, w


def test_a_run_that_may_not_happen_is_told_at_any_level(told, x, monkeypatch, capfd):
    def whole(a):
        b = a.sinh()
        if b.sum().item() > 0:
            return b
        return -b

    monkeypatch.delenv("PT_XLA_DEBUG_LEVEL")
    monkeypatch.delenv("PT_XLA_DEBUG_FILE")
    with pytest.raises(RuntimeError, match="^Unexpected execution happens inside the compiled"):
        torch_xla.compile(whole, full_graph=True)(x)
    (block,) = blocks(capfd.readouterr().err)
    assert block.title == "Unexpected Execution Analysis" and block.cause == READ
    assert block.number("Graph Name") == "whole"
    assert block.number("Number of Graph Inputs") == "1"
    assert block.frames[0].startswith("whole (")
    _XLAC._set_allow_execution(False)
    try:
        y = x + 1  # noqa: F841
        with pytest.raises(RuntimeError, match="^Unexpected execution happens inside the compiled"):
            torch_xla.sync()
    finally:
        _XLAC._set_allow_execution(True)
    (block,) = blocks(capfd.readouterr().err)
    assert block.cause == "user torch_xla.sync" and block.frames[0].startswith("sync (")


def test_level_1_leaves_the_runs_out(told, x, monkeypatch):
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "1")
    y = x.atan() + 2
    torch_xla.sync()
    assert [b.title for b in told()] == [COMPILATION, "Post " + COMPILATION]
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "0")
    y = x.atan() + 3 * x
    torch_xla.sync(wait=True)  # else the compiler may work on while the level rises
    assert told() == []
    monkeypatch.delenv("PT_XLA_DEBUG_LEVEL")
    monkeypatch.setenv("PT_XLA_DEBUG", "1")
    y = x.atan() + 4 * x.exp()
    torch_xla.sync()
    assert [b.title for b in told()] == [COMPILATION, "Post " + COMPILATION, EXECUTION]
    del y


def test_what_is_too_frequent(run_python):
    done = run_python(
        """
        import torch, torch_xla
        import torch_xla.core.xla_model as xm
        x = torch.ones(3, 8, device="xla")
        scores = torch.randn(5, 2, 4).log_softmax(2).to("xla")
        targets = torch.tensor([[1, 2], [3, 1]]).to("xla")
        lengths = [t.to("xla") for t in (torch.tensor([5, 4]), torch.tensor([2, 1]))]
        torch._ctc_loss(scores, targets, *lengths)  # runs on the host
        for i in range(11):
            torch.full((i + 1,), 2.0, device="xla").sqrt().cpu()  # another program in each step
            xm.mark_step()
        """,
        env={"PT_XLA_DEBUG_LEVEL": "1"},
    )
    told = [line for line in done.stderr.splitlines() if line.startswith("pt-xla-profiler: ")]
    compiles, reads, host = told  # the ten steps before are not looked at
    prefix = "pt-xla-profiler: "
    assert re.fullmatch(rf"{prefix}CompileTime too frequent: \d+ counts during 11 steps", compiles)
    assert int(re.search(r"\d+", compiles)[0]) >= 11
    assert reads.startswith(f"{prefix}TransferFromDeviceTime too frequent: ")
    assert host == (
        f"{prefix}Op(s) not lowered: aten::_ctc_loss,  "
        "Please open a GitHub issue with the above op lowering requests."
    )


def test_a_file_that_cannot_be_written(run_python):
    done = run_python(
        """
        import torch, torch_xla
        for i in range(2):
            torch.ones(3 + i, device="xla").add(1).cpu()
        """,
        env={"PT_XLA_DEBUG_LEVEL": "1", "PT_XLA_DEBUG_FILE": "/nowhere/told"},
    )
    assert done.stderr.count("PT_XLA_DEBUG_FILE: expected a file that can be written") == 1
    assert len(blocks(done.stderr)) == 4
