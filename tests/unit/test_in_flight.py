"""What a program sees while calls of the plugin are held, and of those that fail in flight."""

from __future__ import annotations

import textwrap

import pytest

PRELUDE = """
import threading, time
import torch
from torch import nn
import torch_xla
from torch_xla import _XLAC
from tests import fault_plugin

def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

def line_of(function, offset):
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno + offset}"

def raised(function, *arguments):
    try:
        function(*arguments)
    except (RuntimeError, torch.OutOfMemoryError) as error:
        return str(error)
    raise AssertionError("nothing was raised")
"""


@pytest.fixture
def run(run_python, fault_plugin):
    """Runs code on the plugin whose calls can be held."""

    def run(code: str, **env: str) -> str:
        plugin = {"PJRT_DEVICE": "CPU", "PJRT_LIBRARY_PATH": str(fault_plugin), "XLA_EXPLAIN": "0"}
        code = PRELUDE + textwrap.dedent(code)
        return run_python(code, env={**plugin, **env}, timeout=120).stdout

    return run


@pytest.mark.parametrize("eager", [False, True])
def test_other_threads_run_python_while_a_launch_does_not_return(run, eager):
    run(
        """
        x = torch.ones(3).to("xla")
        def step():
            y = x * 2
            torch_xla.sync()
            return y
        step()
        torch_xla.sync(wait=True)
        torch_xla.experimental.eager_mode(eager)
        fault_plugin.hold(fault_plugin.LAUNCH)
        made = []
        stepping = threading.Thread(target=lambda: made.append(step()))
        stepping.start()
        until(lambda: fault_plugin.num_held() == 1)
        assert not made
        fault_plugin.release()
        stepping.join(60)
        assert made[0].tolist() == [2, 2, 2]
        """.replace("eager)", f"{eager})")
    )


@pytest.mark.parametrize("background", ["0", "1"])
def test_a_barrier_returns_before_its_run_has_ended(run, background):
    run(
        """
        x = torch.ones(3).to("xla")
        torch_xla.sync(wait=True)
        fault_plugin.hold(fault_plugin.END)
        for factor in range(1, 4):
            y = x * factor
            torch_xla.sync()
        until(lambda: fault_plugin.num_held() >= 3)
        read = []
        reader = threading.Thread(target=lambda: read.append(y.tolist()))
        reader.start()
        reader.join(0.3)
        assert reader.is_alive() and not read
        fault_plugin.release()
        reader.join(60)
        assert read == [[3, 3, 3]]
        """,
        XLA_BACKGROUND_COMPILE=background,
    )


def test_a_barrier_returns_while_its_program_is_compiled(run):
    run(
        """
        x = torch.ones(3).to("xla")
        torch_xla.sync(wait=True)
        fault_plugin.hold(fault_plugin.COMPILATION)
        y = x + 1
        torch_xla.sync()
        until(lambda: fault_plugin.num_held() == 1)
        assert _XLAC._xla_num_deferred_runs() == 1 and x.tolist() == [1, 1, 1]
        fault_plugin.release()
        assert y.tolist() == [2, 2, 2]
        """
    )


@pytest.mark.parametrize("part", ["forward", "backward"])
def test_a_failure_in_the_middle_of_the_next_step_undoes_both(run, part):
    """The compiler of the first step gives up while the second is recorded: of neither anything is
    left, also of what is recorded behind that."""
    run(
        f"""
        part = {part!r}
        torch.manual_seed(0)
        model = nn.Linear(4, 2).to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        before = [p.detach().cpu() for p in model.parameters()]
        x = torch.ones(3, 4).to("xla")
        torch_xla.sync(wait=True)

        def fail(now):
            if now == part:
                fault_plugin.release()
                until(lambda: _XLAC._xla_num_deferred_runs() == 0)

        def step(fail=lambda now: None):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            fail("forward")
            loss.backward()
            fail("backward")
            optimizer.step()
            torch_xla.sync()

        fault_plugin.arm(fault_plugin.COMPILE, 1, fault_plugin.RESOURCE_EXHAUSTED)
        fault_plugin.hold(fault_plugin.COMPILATION)
        step()
        assert "on purpose" in raised(step, fail)
        for p, b in zip(model.parameters(), before, strict=True):
            assert torch.equal(p.detach().cpu(), b), (p, b)
        """
    )


MODEL = """
def of(device):
    torch.manual_seed(0)
    model = nn.Linear(4, 2).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(3, 4).to(model.weight.device)).square().mean().backward()
    optimizer.step()
    if model.weight.device.type == "xla":
        torch_xla.sync()
"""


def test_a_model_that_is_lost(run):
    """The error says so, since which line, and what to do; what is restored trains on."""
    run(
        MODEL
        + """
model, optimizer = of("xla")
for _ in range(3):
    torch_xla.sync(wait=True)
    fault_plugin.arm(fault_plugin.RUN, 0)
    step(model, optimizer)
torch_xla.sync(wait=True)
saved = {k: v.cpu() for k, v in model.state_dict().items()}, optimizer.state_dict()
saved[1]["state"] = {i: {k: v.cpu() for k, v in s.items()} for i, s in saved[1]["state"].items()}
runs = fault_plugin.count(fault_plugin.RUN)  # the last is the step's, the other may be its gate
fault_plugin.arm(fault_plugin.RUN, runs, fault_plugin.INTERNAL, late=True)
text = raised(lambda: (step(model, optimizer), torch_xla.sync(wait=True)))
line = line_of(step, 5)
assert f"fault plugin: run {runs} fails on purpose" in text
assert f"The run that failed was launched at {line} (step)." in text, text
assert ("It had taken over the memory of 4 tensors that it was to overwrite: their values, "
        "parameters of a model for example, are lost. Load them from a checkpoint.") in text, text
for _ in range(2):
    for t in (model.weight, optimizer.state[model.bias]["momentum_buffer"]):
        text = raised(t.tolist)
        assert "got one that was lost when the run that was to make or overwrite it failed" in text
        assert line in text and "load it from a checkpoint" in text, text
model.load_state_dict(saved[0])
optimizer.load_state_dict(saved[1])
step(model, optimizer)
torch_xla.sync(wait=True)
expected = of("cpu")
for _ in range(4):
    step(*expected)
for ours, theirs in zip(model.parameters(), expected[0].parameters(), strict=True):
    torch.testing.assert_close(ours.cpu(), theirs)
"""
    )


@pytest.mark.parametrize("donation", ["0", "1"])
def test_new_tensors_of_a_run_that_fails_in_flight(run, donation):
    """Each read says that the value is lost and where the run was launched; so does each use."""
    run(
        """
        x = torch.ones(3).to("xla")
        torch_xla.sync(wait=True)
        def launched():
            y = x * 3
            torch_xla.sync()
            return y
        fault_plugin.arm(fault_plugin.RUN, 1, fault_plugin.INTERNAL, late=True)
        y = launched()
        line = line_of(launched, 2)
        until(lambda: fault_plugin.count(fault_plugin.RUN))
        assert line in raised(torch_xla.sync, True)
        reads = [y.tolist, y.cpu, y[0].item, (y + 1).tolist, y.sum().item, lambda: str(y),
                 lambda: torch.utils.dlpack.to_dlpack(y)]
        for read in reads + reads:
            text = raised(read)
            assert "lost" in text and line in text, text
        assert x.tolist() == [1, 1, 1]
        y.copy_(torch.full((3,), 2.0))
        assert (y + x).tolist() == [3, 3, 3]
        """,
        XLA_NO_DONATION=donation,
    )
