"""The examples run, learn, and print what they promise; the lines that scripts print."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import Run
from torch_xla.test import test_utils

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run_example(run_python: Run) -> Callable[..., str]:
    """Runs a script of examples/ with these arguments, and returns what it prints."""

    def run(name: str, *arguments: str) -> str:
        script = ROOT / "examples" / name
        # As `python script.py` begins: with the script's folder first, and its arguments.
        code = f"""
            import runpy, sys
            sys.argv[:] = {[str(script), *arguments]!r}
            sys.path.insert(0, {str(script.parent)!r})
            runpy.run_path(sys.argv[0], run_name="__main__")
        """
        return run_python(code, timeout=900).stdout

    return run


@pytest.mark.slow
def test_train_digits(run_example):
    out = run_example("train_digits.py")
    assert float(re.search(r"test accuracy: ([\d.]+)%", out)[1]) >= 97
    assert re.search(r"^loss: \d+\.\d+$", out, re.MULTILINE)
    assert re.search(r"^steps per second of PyTorch eager.*: \d", out, re.MULTILINE)
    assert "Metric: CompileTime" in out and "Metric: ExecuteTime" in out
    # Nothing went to the host but what the program asked for.
    assert set(re.findall(r"^Counter: (aten::\S+)", out, re.MULTILINE)) <= {
        "aten::_local_scalar_dense"
    }


@pytest.mark.slow
def test_train_lm(run_example):
    out = run_example("train_lm.py", "--steps", "120", "--seed", "2")
    assert float(re.search(r"^loss: ([\d.]+)", out, re.MULTILINE)[1]) < 3.2  # ln 96 is 4.56
    assert re.search(r"sample:\nReturn the .{10,}", out)
    assert "Metric: CompileTime" in out


@pytest.mark.slow
def test_train_spmd(run_example, monkeypatch):
    monkeypatch.setenv("CPU_NUM_DEVICES", "4")
    found = {}
    for how in ("none", "data", "fsdp", "tensor"):
        out = run_example("train_spmd.py", "--shard", how, "--steps", "12", "--layers", "2")
        held, whole = (
            float(re.search(p, out)[1]) for p in (r"([\d.]+) on a dev", r"([\d.]+) MB, ")
        )
        found[how] = (
            float(re.search(r"loss ([\d.]+)", out)[1]),
            round(whole / held),
            "all-" in out,
        )
    losses = [loss for loss, _, _ in found.values()]
    assert max(losses) - min(losses) < 0.01, found
    assert [share for _, share, _ in found.values()][:3] == [1, 1, 4], found
    assert [sends for _, _, sends in found.values()] == [False, True, True, True], found


def test_sequence_parallel(run_example, monkeypatch):
    monkeypatch.setenv("CPU_NUM_DEVICES", "8")
    out = run_example("sequence_parallel.py")
    whole = int(re.search(r"a tensor has (\d+)", out)[1])
    line = r"^(\w+): differs by (\S+); sends ([\w-]+), at most (\d+) bytes"
    found = {name: rest for name, *rest in re.findall(line, out, re.MULTILINE)}
    assert found["Ulysses"][1] == "all-to-all" and found["ring"][1] == "collective-permute", out
    for off, _, size in found.values():
        assert float(off) < 1e-12 and int(size) == whole // 8, out


def test_compiled_step(run_example):
    out = run_example("compiled_step.py")
    losses = [float(loss) for loss in re.findall(r"loss:? ([\d.]+)$", out, re.MULTILINE)]
    assert len(losses) == 4
    assert losses[-1] < 0.01 < losses[0]


@pytest.mark.slow
def test_torch_compile(run_example):
    out = run_example("torch_compile.py")
    launches = int(re.search(r"^launches in the last 12 steps: (\d+)$", out, re.MULTILINE)[1])
    assert 12 <= launches <= 14
    assert "programs compiled or loaded for them: 0\n" in out
    assert float(re.search(r"^test accuracy: ([\d.]+)%", out, re.MULTILINE)[1]) >= 94


@pytest.mark.slow
def test_sample_diffusion(run_example):
    out = run_example("sample_diffusion.py")
    programs = int(re.search(r"loaded in 100 steps: (\d+)$", out, re.MULTILINE)[1])
    assert 1 <= programs <= 3  # the first step may differ, not the ones after it
    sampled, noise = (float(d) for d in re.findall(r"^.*(?:spiral|noise): ([\d.]+)$", out, re.M))
    assert sampled < 0.1 < 0.4 < noise


def test_export_model(run_example):
    out = run_example("export_model.py")
    assert "tensor<?x16xf32>" in out and out.count("differs from PyTorch by at most") == 2


@pytest.mark.slow
def test_train_digits_follows_pytorch(run_example):
    """Few epochs, the same on both devices: data, model and loop are sound."""
    arguments = ("--epochs", "2", "--seed", "3")
    accuracies = {
        device: float(
            re.search(
                r"test accuracy: ([\d.]+)%",
                run_example("train_digits.py", "--device", device, *arguments),
            )[1]
        )
        for device in ("xla", "cpu")
    }
    assert min(accuracies.values()) > 80, accuracies


def test_training_update_line(capsys):
    test_utils.print_training_update("xla:0", 20, torch.tensor(6.79297), 117.164, 45.84, epoch=1)
    line = capsys.readouterr().out
    assert re.fullmatch(
        r"\| Training Device=xla:0/0 Epoch=1 Step=20 Loss=6\.79297 Rate=117\.16 "
        r"GlobalRate=45\.84 Time=\d\d:\d\d:\d\d\n",
        line,
    )
    written = []

    class Writer:
        def add_scalar(self, *values):
            written.append(values)

    test_utils.print_training_update("xla:0", 2, 1.5, 1, 1, summary_writer=Writer())
    assert written == [("loss", 1.5, 2)]
    assert "Epoch" not in capsys.readouterr().out


def test_test_update_line(capsys):
    test_utils.print_test_update("xla:0", 97.5, epoch=2)
    assert re.fullmatch(
        r"\| Test Device=xla:0/0 Epoch=2 Accuracy=97\.50 Time=\d\d:\d\d:\d\d\n",
        capsys.readouterr().out,
    )


def test_saved_step(run_example, tmp_path):
    out = run_example("saved_step.py", str(tmp_path / "step"))
    pairs = re.findall(r"this process: ([\d.]+)   the folder: ([\d.]+)", out)
    assert len(pairs) == 5
    for here, there in pairs:
        assert float(here) == pytest.approx(float(there), rel=1e-3)
    assert (tmp_path / "step" / "step.json").exists()
