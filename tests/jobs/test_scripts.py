"""The scripts that the documents name, under their names there and with their flags."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--model", "resnet18", "--batch_size", "4", "--image_size", "32"]


@pytest.fixture
def run(jobs, tmp_path):
    """Runs a script on so many processes; returns what it prints."""

    def run(script: str, *flags: str, ranks: int = 1) -> str:
        command = [sys.executable, str(ROOT / script), *flags]
        environment = jobs.environment({"CPU_NUM_DEVICES": str(ranks)})
        done: subprocess.CompletedProcess = jobs.start([command], [environment]).wait(400)[0]
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    return run


def test_mnist_on_fake_data(run):
    out = run("test/test_train_mp_mnist.py", "--fake_data", "--num_epochs", "1")
    line = r"\| Training Device=xla:0/0 Epoch=1 Step=0 Loss=[\d.]+ Rate=[\d.]+ GlobalRate=[\d.]+ "
    assert re.search(line + r"Time=\d\d:\d\d:\d\d$", out, re.MULTILINE), out
    assert "Epoch 1 test end" in out


def test_mnist_with_ddp(run):
    flags = ["--ddp", "--pjrt_distributed", "--batch_size", "32", "--num_epochs", "6"]
    run("test/test_train_mp_mnist.py", *flags, "--target_accuracy", "93", ranks=2)


def test_mnist_with_fsdp_consolidates(run, tmp_path):
    flags = ["--batch_size", "16", "--drop_last", "--num_epochs", "2", "--use_nested_fsdp"]
    out = run(
        "test/test_train_mp_mnist_fsdp_with_ckpt.py",
        *[*flags, "--use_gradient_checkpointing", "--target_accuracy", "90"],
        *["--ckpt_prefix", str(tmp_path / "fsdp" / "final_ckpt")],
        ranks=2,
    )
    accuracy = re.search(r"Epoch 2 test end, Accuracy=([\d.]+)", out)
    assert accuracy and f"the consolidated model: Accuracy={accuracy[1]}" in out, out
    assert len(list((tmp_path / "fsdp").glob("*_rank-*-of-*.pth"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "script, flags",
    [
        ("test_train_mp_imagenet.py", ["--amp", "--async_closures"]),
        ("test_train_mp_imagenet_fsdp.py", ["--use_nested_fsdp", "--use_gradient_checkpointing"]),
    ],
)
def test_imagenet(run, script, flags):
    data = ["--fake_data", "--train_samples", "80", "--num_epochs", "1", "--log_steps", "5"]
    out = run(f"test/{script}", *SMALL, *data, *flags, ranks=2)
    losses = [float(loss) for loss in re.findall(r"Step=\d+ Loss=([\d.]+)", out)]
    assert len(losses) == 4 and losses[-1] < losses[0]
    assert "Max Accuracy: " in out


@pytest.mark.slow
def test_resnet(run):
    out = run("examples/train_resnet_base.py", *SMALL, "--num_steps", "21")
    assert re.search(r"^epoch: 1, step: 20, loss: [\d.]+, rate: [\d.]+$", out, re.MULTILINE)
    assert re.search(r"^Epoch 1 train end .* on ", out, re.MULTILINE)
    out = run("examples/train_resnet_benchmark.py", *SMALL, "--num_steps", "6")
    assert re.search(r"^step: [\d.]+ ms, [\d.]+ images/s$", out, re.MULTILINE)
    run("examples/train_resnet_ddp.py", *SMALL, "--num_steps", "4", ranks=2)


@pytest.mark.slow
def test_decoder_only(run):
    small = ["--hidden_size", "64", "--seq_len", "16", "--batch_size", "4", "--num_steps", "41"]
    out = run("examples/train_decoder_only_base.py", *small)
    losses = [float(loss) for loss in re.findall(r"loss: ([\d.]+)", out)]
    assert losses[-1] < losses[0] / 2
    assert "Epoch 1 train end" in out
