"""Lines that training scripts print about their progress."""

from __future__ import annotations

import time

import torch

from torch_xla.core import xla_model as xm

# This file is not a test of its own.
__test__ = False


def now(format: str = "%H:%M:%S") -> str:
    """The time of day, in UTC."""
    return time.strftime(format, time.gmtime())


def print_training_update(
    device: str | torch.device,
    step: int,
    loss: float | torch.Tensor,
    rate: float,
    global_rate: float,
    epoch: int | None = None,
    summary_writer: object | None = None,
) -> None:
    """Prints how training is going; usually called by a step closure, as it reads the loss.

    Args:
        device: The device.
        step: The number of the step.
        loss: The loss, a number or a tensor of one element.
        rate: Samples a second of late.
        global_rate: Samples a second since the start.
        epoch: The number of the epoch.
        summary_writer: An object with TensorBoard's `add_scalar`; it gets the loss, too.
    """
    value = loss.item() if isinstance(loss, torch.Tensor) else float(loss)
    parts = [
        f"| Training Device={device}/{xm.get_ordinal()}",
        f"Epoch={epoch}" if epoch is not None else "",
        f"Step={step} Loss={value:.5f} Rate={rate:.2f} GlobalRate={global_rate:.2f}",
        f"Time={now()}",
    ]
    print(" ".join(part for part in parts if part), flush=True)
    if summary_writer is not None:
        summary_writer.add_scalar("loss", value, step)


def print_test_update(
    device: str | torch.device,
    accuracy: float | None,
    epoch: int | None = None,
    step: int | None = None,
) -> None:
    """Prints how a test is going.

    Args:
        device: The device.
        accuracy: In percent, None while it is not known.
        epoch: The number of the epoch.
        step: The number of the step.
    """
    parts = [
        f"| Test Device={device}/{xm.get_ordinal()}",
        f"Step={step}" if step is not None else "",
        f"Epoch={epoch}" if epoch is not None else "",
        f"Accuracy={accuracy:.2f}" if accuracy is not None else "",
        f"Time={now()}",
    ]
    print(" ".join(part for part in parts if part), flush=True)
