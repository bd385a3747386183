"""What goes wrong in a process: forks, signals, exits, failing runs.

Units: _src/ending.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm


def test_exit_with_work_in_flight(run_python):
    code = """
        import torch, torch_xla
        x = torch.randn(1000, 1000, device="xla")
        for _ in range(8):  # a third of a second of two cores
            x = x @ x / 40
        torch_xla.sync()
        print("exit")
        """
    for _ in range(3):
        done = run_python(code, timeout=120)
        assert done.stdout == "exit\n" and done.stderr == ""


def test_exit_with_a_pending_graph_and_global_tensors(run_python):
    """Several times: PyTorch's backward threads hold tensors for a moment after backward()."""
    for _ in range(3):
        done = run_python(
            """
            import torch, torch_xla
            model = torch.nn.Linear(4, 4).to("xla")
            loss = model(torch.ones(2, 4, device="xla")).sum()
            loss.backward()
            """
        )
        assert done.stderr == ""


def test_exit_in_the_middle_of_a_convolution(run_python):
    """Its kernel is PyTorch's, which must not run on while PyTorch is torn down."""
    done = run_python(
        """
        import torch, torch_xla
        model = torch.nn.Sequential(*(torch.nn.Conv2d(32, 32, 3, padding=1) for _ in range(6)))
        model.to("xla")
        x = torch.randn(8, 32, 64, 64, device="xla")
        for _ in range(3):
            model(x).sum().backward()
            torch_xla.sync()
        """,
        env={"XLA_EXPLAIN": "0"},  # the first step makes the gradients
    )
    assert done.stderr == ""


def test_failure_that_nobody_asked_for_is_printed_at_exit(run_python):
    done = run_python(
        """
        import torch, torch_xla
        x = torch.ones(1 << 22, 1 << 22, device="xla")
        y = x @ x
        torch_xla.sync()
        """,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("RESOURCE_EXHAUSTED") == 1, done.stderr


def test_exit_runs_the_asynchronous_closures(run_python):
    done = run_python(
        """
        import time, torch, torch_xla
        import torch_xla.core.xla_model as xm
        def late(t):
            time.sleep(0.3)
            print("value", t.item())
        xm.add_step_closure(late, args=(torch.ones(1, device="xla") + 1,), run_async=True)
        torch_xla.sync()
        """
    )
    assert done.stdout == "value 2.0\n" and done.stderr == ""


def test_error_of_an_asynchronous_closure_at_exit_is_printed(run_python):
    done = run_python(
        """
        import time, torch, torch_xla
        import torch_xla.core.xla_model as xm
        def late():
            time.sleep(0.3)
            raise LookupError("nobody else would tell")
        torch_xla.device()
        xm.add_step_closure(late, run_async=True)
        torch_xla.sync()
        """
    )
    assert "LookupError: nobody else would tell" in done.stderr


def test_exception_that_ends_the_program(run_python):
    done = run_python(
        """
        import torch, torch_xla
        x = torch.ones(3, device="xla") * 2
        torch_xla.sync()
        raise ValueError("the user's own")
        """,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == "ValueError: the user's own"


# Forks


def test_fork_before_the_first_device_is_fine(run_python):
    done = run_python(
        """
        import os, torch, torch_xla
        torch_xla.sync()
        pid = os.fork()
        if pid == 0:
            print("child", (torch.ones(2, device="xla") + 1).tolist(), flush=True)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print("parent", (torch.ones(2, device="xla") + 1).tolist())
        """,
        timeout=120,
    )
    assert done.stdout == "child [2.0, 2.0]\nparent [2.0, 2.0]\n"


def test_use_after_a_fork_is_a_clear_error_and_the_parent_goes_on(run_python):
    done = run_python(
        """
        import os, torch, torch_xla
        import torch_xla.core.xla_model as xm
        x = torch.ones(2, device="xla") * 3
        torch_xla.sync()
        pid = os.fork()
        if pid == 0:
            assert torch.xla._is_in_bad_fork()
            torch.manual_seed(1)
            assert torch.rand(2).sum() > 0
            uses = {
                "new": lambda: torch.ones(2, device="xla"),
                "read": lambda: x.tolist(),
                "devices": torch_xla.devices,
                "sync": lambda: (x + 1, torch_xla.sync()),
            }
            for name, use in uses.items():
                try:
                    use()
                except RuntimeError as error:
                    print(name, str(error).splitlines()[0], flush=True)
                else:
                    print(name, "no error", flush=True)
            del x
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert not torch.xla._is_in_bad_fork()
        print("parent", (x + 1).tolist())
        """,
        timeout=120,
    )
    lines = done.stdout.strip().splitlines()
    assert [line.split()[0] for line in lines] == ["new", "read", "devices", "sync", "parent"]
    for line in lines[:4]:
        assert "forked" in line and "spawn" in line, line
    assert lines[4] == "parent [4.0, 4.0]"


@pytest.mark.forks
def test_dataloader_workers_after_the_first_use(run_python):
    done = run_python(
        """
        import torch, torch_xla
        from torch.utils.data import DataLoader, TensorDataset
        import torch_xla.distributed.parallel_loader as pl
        x = torch.ones(2, device="xla") + 1
        torch_xla.sync()
        loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=2, num_workers=2)
        for _ in range(2):
            print([b.tolist() for (b,) in pl.MpDeviceLoader(loader, "xla")])
        """,
        timeout=120,
    )
    assert done.stdout == "[[0, 1], [2, 3], [4, 5], [6, 7]]\n" * 2


# Signals


# As in a terminal: a job in the background starts with the signal ignored.
HEED_INTERRUPTS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


def interrupt_when_ready(code: str) -> tuple[int, str, str]:
    """Runs code, sends SIGINT when it has printed `ready`."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", HEED_INTERRUPTS + textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, out, err


def test_ctrl_c_in_a_training_loop_leaves_a_usable_process():
    code, out, err = interrupt_when_ready(
        """
        import itertools, torch, torch_xla
        import torch_xla.distributed.parallel_loader as pl
        import torch_xla.core.xla_model as xm
        model = torch.nn.Linear(64, 64).to("xla")
        optimizer = torch.optim.AdamW(model.parameters())
        loader = pl.MpDeviceLoader((torch.ones(8, 64) for _ in itertools.count()), "xla")
        try:
            for i, batch in enumerate(loader):
                optimizer.zero_grad()
                model(batch).pow(2).sum().backward()
                xm.optimizer_step(optimizer)
                if i == 5:
                    print("ready")
        except KeyboardInterrupt:
            print("interrupted")
        loss = model(torch.ones(8, 64, device="xla")).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
        print("finite", torch.isfinite(loss).item())
        """
    )
    assert (code, out) == (0, "interrupted\nfinite True\n"), err
    assert err == ""


def test_ctrl_c_ends_a_program_that_does_not_handle_it():
    code, out, err = interrupt_when_ready(
        """
        import torch, torch_xla
        x = torch.randn(256, 256, device="xla")
        print("ready")
        while True:
            x = x @ x / 16
            torch_xla.sync()
        """
    )
    assert code == -signal.SIGINT or code == 130
    assert err.strip().splitlines()[-1] == "KeyboardInterrupt"


def test_ctrl_c_while_waiting_for_a_loader():
    code, out, err = interrupt_when_ready(
        """
        import time, torch, torch_xla
        import torch_xla.distributed.parallel_loader as pl
        def source():
            yield torch.ones(1)
            print("ready")
            time.sleep(3)
            yield torch.ones(1)
        start = time.monotonic()
        try:
            list(pl.MpDeviceLoader(source(), "xla"))
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - start < 2.5)
        """
    )
    assert (code, out) == (0, "interrupted True\n"), err


# Failing programs and runs


OUT_OF_MEMORY = {
    "launch": lambda x: x.expand(10**14).clone(),
    "factory": lambda x: torch.zeros(10**14, dtype=torch.int8, device="xla"),
    "while it runs": lambda x: torch.ones(1 << 22, 1 << 22, device="xla").mm(
        torch.ones(1 << 22, 1 << 22, device="xla")
    ),
}


@pytest.mark.parametrize("case", OUT_OF_MEMORY)
def test_out_of_memory(case):
    x = torch.ones(1, device="xla")
    other = x + 1
    torch_xla.sync()
    huge = OUT_OF_MEMORY[case](x)
    with pytest.raises(torch.OutOfMemoryError, match="RESOURCE_EXHAUSTED.*make the batch smaller"):
        torch_xla.sync(wait=True)
    # Other values are still computed, and once the tensor is gone, so are whole steps.
    assert (x + 1).item() == 2
    del huge
    y = x * 3 + other
    torch_xla.sync(wait=True)
    xm.wait_device_ops()
    assert y.item() == 5 and other.item() == 2


@pytest.mark.process_memory
def test_one_of_several_values_that_cannot_be_read(run_python):
    """The copies of the others end before the memory that they write to is let go."""
    done = run_python(
        """
        import tempfile, torch, torch_xla
        import torch_xla.core.xla_model as xm
        weights = [torch.ones(1 << 24, device="xla") for _ in range(8)]
        torch_xla.sync(wait=True)
        for _ in range(3):
            loss = torch.rand(1 << 42, device="xla").sort().values[:1]
            try:
                xm.save({"loss": loss, "weights": weights}, tempfile.mktemp())
            except torch.OutOfMemoryError:
                print("out of memory")
        print(sum(w.sum().item() for w in weights) == 8 << 24)
        """,
    )
    assert done.stdout.split("\n") == ["out of memory"] * 3 + ["True", ""]


def test_reading_what_does_not_fit_the_host():
    x = torch.ones(1, device="xla")
    with pytest.raises(RuntimeError, match="allocate|RESOURCE_EXHAUSTED"):
        x.expand(10**14).cpu()
    assert (x + 1).item() == 2


def test_sizes_beyond_64_bits():
    x = torch.ones(1, device="xla")
    torch_xla.sync()
    with pytest.raises(RuntimeError, match="overflow"):
        (x.expand(1 << 62).to(torch.int16) + 1).max().item()
    y = x + 1
    torch_xla.sync(wait=True)
    assert y.item() == 2


def test_failing_compile(run_python):
    """Without this pass the CPU's compiler does not know one of the operations."""
    done = run_python(
        """
        import torch, torch_xla
        x = torch.zeros(2, device="xla")
        torch_xla.sync()
        z = x + 1
        y = torch.sigmoid(x)
        sync = lambda: torch_xla.sync(wait=True)
        for use in (sync, sync, y.tolist, lambda: print(y)):
            try:
                use()
            except RuntimeError as error:
                print(error)
            else:
                print("no error")
        print("before", (x + 2).tolist(), z.tolist())
        del y
        w = x + 3
        torch_xla.sync(wait=True)
        print("after", w.tolist())
        """,
        env={"PJRT_DEVICE": "CPU", "XLA_FLAGS": "--xla_disable_hlo_passes=logistic-expander"},
    )
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 6 and done.stderr == "", (done.stdout, done.stderr)
    for line in lines[:4]:
        assert "PJRT_Client_Compile" in line and "logistic" in line, line
    assert lines[4:] == ["before [2.0, 2.0] [1.0, 1.0]", "after [3.0, 3.0]"]


def test_unknown_compiler_flag_is_named(run_python):
    """The plugin itself ends the process, as it does for every program that loads it."""
    done = run_python(
        "import torch, torch_xla; torch.ones(1, device='xla')",
        env={"PJRT_DEVICE": "CPU", "XLA_FLAGS": "--xla_no_such_flag=1"},
        check=False,
    )
    assert done.returncode != 0
    assert "Unknown flag in XLA_FLAGS: --xla_no_such_flag=1" in done.stderr


def test_exception_in_a_step_closure_leaves_a_usable_process():
    x = torch.ones(2, device="xla")

    def fail(value):
        raise LookupError(f"closure saw {value.tolist()}")

    xm.add_step_closure(fail, args=(x,))
    x += 1
    with pytest.raises(LookupError, match=r"closure saw \[2.0, 2.0\]"):
        torch_xla.sync()
    x += 1
    torch_xla.sync()
    assert x.tolist() == [3, 3]


def test_threads_that_record_at_the_same_time():
    import threading

    errors, results = [], {}

    def work(i):
        try:
            x = torch.full((16,), float(i), device="xla")
            for _ in range(20):
                x = x * 1.0 + 1
                if i % 2:
                    torch_xla.sync()
            results[i] = x.tolist()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert results == {i: [i + 20.0] * 16 for i in range(6)}
