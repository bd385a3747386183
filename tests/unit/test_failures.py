"""A run that fails is reported once, with the user's line, and the process goes on."""

from __future__ import annotations

import threading
import time

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm

TOO_LARGE = 1 << 20  # squared, in float32: 4 TiB


def launch(column) -> torch.Tensor:
    square = torch.mm(column, column.t())
    torch_xla.sync()  # the failing launch
    return square


REPORTS = {
    "the next sync": lambda square: torch_xla.sync(),
    "waiting": lambda square: xm.wait_device_ops(),
    "reading": lambda square: square[0, 0].item(),
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS.keys())
def test_failing_run(report):
    column = torch.ones(TOO_LARGE, 1, device="xla")
    torch_xla.sync()
    square = launch(column)
    line = launch.__code__.co_firstlineno + 2
    with pytest.raises(torch.OutOfMemoryError) as caught:
        for _ in range(600):  # a sync only looks: the failure may come later
            report(square)
            time.sleep(0.05)
    assert "Out of memory" in str(caught.value)
    assert f"The run that failed was launched at {__file__}:{line} (launch)." in str(caught.value)
    del square
    for _ in range(2):  # reported once
        xm.wait_device_ops()
        torch_xla.sync()
    assert (torch.ones(3, device="xla") + 1).tolist() == [2, 2, 2]


def test_a_launch_that_fails_loses_nothing():
    """What the plugin refuses at once stays recorded: without the part that failed, it runs."""
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    x += 1
    column = torch.ones(TOO_LARGE, 1, device="xla")
    square = torch.mm(column, column.t())
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match="Out of memory"):
            torch_xla.sync()
    del square, column
    torch_xla.sync()
    assert x.tolist() == [2, 2, 2]


def test_a_value_that_a_failed_run_took_over_is_reported_as_lost():
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    x += 1  # in the memory of x, by the run that fails
    values = torch.linalg.eig(torch.full((2, 2), torch.inf, device="xla"))[0]
    with pytest.raises(RuntimeError, match="should not contain infs"):
        torch_xla.sync(wait=True)
    del values
    with pytest.raises(RuntimeError, match="lost when the run .* failed .*should not contain infs"):
        x.tolist()
    x.copy_(torch.ones(3))
    torch_xla.sync()
    assert (x + 1).tolist() == [2, 2, 2]


def test_failing_compile_leaves_the_graph_and_the_process():
    x = torch.arange(7.0, device="xla")
    torch_xla.sync()
    y = x * 2
    torch_xla.set_custom_compile_options({"xla_no_such_flag": True})
    with pytest.raises(RuntimeError, match="xla_no_such_flag"):
        torch_xla.sync()
    torch_xla.set_custom_compile_options({})
    torch_xla.sync()
    assert y.tolist() == [0, 2, 4, 6, 8, 10, 12]


def test_others_record_while_the_compiler_runs():
    """A long compilation in one thread does not stop another one from recording."""
    x = torch.randn(8, 8, device="xla")
    torch_xla.sync()
    y = x
    for i in range(150):
        y = torch.tanh(y @ x + i % 7)
    counts = []
    compiling = threading.Event()

    def compile_and_run():
        compiling.set()
        torch_xla.sync()
        compiling.clear()

    thread = threading.Thread(target=compile_and_run)
    thread.start()
    compiling.wait()
    z = torch.zeros(8, 8)
    w = z.to("xla")
    recorded = 0
    while compiling.is_set():
        w = w + 1
        recorded += 1
        counts.append(compiling.is_set())
        if recorded > 2000:
            break
    thread.join()
    assert sum(counts) > 10
    torch.testing.assert_close(w.cpu(), z + recorded)
    expected = x.cpu()
    for i in range(150):
        expected = torch.tanh(expected @ x.cpu() + i % 7)
    torch.testing.assert_close(y.cpu(), expected, atol=1e-3, rtol=1e-3)
