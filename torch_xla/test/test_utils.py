"""Tests in processes of their own; lines that training scripts print, or write to TensorBoard."""

from __future__ import annotations

import functools
import multiprocessing
import os
import time
import unittest
from collections.abc import Callable
from typing import Any

import torch

from torch_xla.core import xla_model as xm
from torch_xla.debug import metrics as met

# This file is not a test of its own.
__test__ = False


def mp_test(func: Callable[..., Any]) -> Callable[..., int | None]:
    """Runs a test in a process of its own, which a device may be chosen and used in.

    The process is forked, so the test must be the first of its process to use a device.

    Args:
        func: A method of a `unittest.TestCase`, or a function.

    Returns:
        A function with the same arguments, that returns the exit status of the process; where it is
        a method of a TestCase, one that fails where that is not 0.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> int | None:
        process = multiprocessing.get_context("fork").Process(target=func, args=args, kwargs=kwargs)
        process.start()
        process.join()
        if args and isinstance(args[0], unittest.TestCase):
            args[0].assertEqual(process.exitcode, 0)
            return None  # a test that returns something is warned of
        return process.exitcode

    return wrapper


def now(format: str = "%H:%M:%S") -> str:
    """The time of day, in UTC."""
    return time.strftime(format, time.gmtime())


def _get_device_spec(device: str | torch.device) -> str:
    """A device and this replica's ordinal: "xla:0/0"."""
    return f"{device}/{xm.get_ordinal()}"


def get_summary_writer(logdir: str | os.PathLike[str] | None) -> Any:
    """TensorBoard's writer to a folder; None on other replicas than the first, or without one."""
    if not logdir or not xm.is_master_ordinal():
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(log_dir=os.fspath(logdir))


def write_to_summary(
    summary_writer: Any,
    global_step: int | None = None,
    dict_to_write: dict[str, float] | None = None,
    write_xla_metrics: bool = False,
) -> None:
    """Writes numbers to TensorBoard; nothing where there is no writer.

    Args:
        summary_writer: What `get_summary_writer` returned.
        global_step: The number of the step.
        dict_to_write: The numbers by name.
        write_xla_metrics: Whether to write the counters, and the sums of the metrics, too.
    """
    if summary_writer is None:
        return
    numbers = dict(dict_to_write or {})
    if write_xla_metrics:
        counters = ((name, met.counter_value(name)) for name in met.counter_names())
        metrics = ((name, met.metric_data(name)) for name in met.metric_names())
        numbers.update((name, count) for name, count in counters if count is not None)
        numbers.update((name, data[1]) for name, data in metrics if data is not None)
    for name, number in numbers.items():
        summary_writer.add_scalar(name, number, global_step)


def close_summary_writer(summary_writer: Any) -> None:
    """Writes what waits and closes the writer, if there is one."""
    if summary_writer is not None:
        summary_writer.flush()
        summary_writer.close()


def print_training_update(
    device: str | torch.device,
    step: int,
    loss: float | torch.Tensor,
    rate: float,
    global_rate: float,
    epoch: int | None = None,
    summary_writer: Any = None,
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
        f"| Training Device={_get_device_spec(device)}",
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
        f"| Test Device={_get_device_spec(device)}",
        f"Step={step}" if step is not None else "",
        f"Epoch={epoch}" if epoch is not None else "",
        f"Accuracy={accuracy:.2f}" if accuracy is not None else "",
        f"Time={now()}",
    ]
    print(" ".join(part for part in parts if part), flush=True)
