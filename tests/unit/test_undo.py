"""A run that fails is reported once, with the user's line, and the process goes on.

Units: executor/step/read_data.
"""

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
    line = launch.__code__.co_firstlineno + 2
    with pytest.raises(torch.OutOfMemoryError) as caught:
        square = launch(column)  # raises where the program is there, and refused
        for _ in range(600):  # a sync only looks: the failure may come later
            report(square)
            time.sleep(0.05)
    assert "Out of memory" in str(caught.value)
    assert f"The run that failed was launched at {__file__}:{line} (launch)." in str(caught.value)
    for _ in range(2):  # reported once
        xm.wait_device_ops()
        torch_xla.sync()
    assert (torch.ones(3, device="xla") + 1).tolist() == [2, 2, 2]


@pytest.mark.parametrize("background", ["0", "1"])
def test_a_launch_that_is_refused_loses_nothing(background, monkeypatch):
    """What has nothing to do with the part that does not fit is computed all the same."""
    monkeypatch.setenv("XLA_BACKGROUND_COMPILE", background)
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    x += 1
    column = torch.ones(TOO_LARGE, 1, device="xla")
    square = torch.mm(column, column.t())
    with pytest.raises(torch.OutOfMemoryError, match="Out of memory"):
        torch_xla.sync()
        torch_xla.sync(wait=True)
    torch_xla.sync(wait=True)
    assert square.shape == (TOO_LARGE, TOO_LARGE)  # no sync computes it
    assert x.tolist() == [2, 2, 2]


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, 0.1),
}


@pytest.mark.parametrize("flags", [{}, {"XLA_NO_DONATION": "1"}, {"XLA_BACKGROUND_COMPILE": "0"}])
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_a_step_whose_temporaries_do_not_fit_is_undone(optimizer, wait, flags, monkeypatch):
    for name, value in flags.items():
        monkeypatch.setenv(name, value)
    torch.manual_seed(0)
    cpu = torch.nn.Linear(4, 4)
    ours = torch.nn.Linear(4, 4)
    ours.load_state_dict(cpu.state_dict())
    ours.to("xla")
    optimizers = {m: optimizer(m.parameters()) for m in (cpu, ours)}

    def step(model, n):
        x = torch.ones(n, 4, device=model.weight.device)
        optimizers[model].zero_grad()
        h = model(x)
        loss = (h @ h.t()).sigmoid().mean()
        loss.backward()
        optimizers[model].step()
        torch_xla.sync(wait=wait)
        return loss

    step(ours, 8), step(cpu, 8)
    with pytest.raises(torch.OutOfMemoryError, match="(?s)Out of memory.*test_undo.py:[0-9]"):
        step(ours, TOO_LARGE).item()
    for _ in range(2):
        torch.testing.assert_close(step(ours, 8).cpu(), step(cpu, 8))
    for a, b in zip(ours.parameters(), cpu.parameters(), strict=True):
        torch.testing.assert_close(a.cpu(), b)


def test_writes_before_a_call_that_does_not_fit_have_happened():
    w = torch.ones(3, device="xla")
    torch_xla.sync(wait=True)
    w.mul_(2)
    values = torch.rand(1 << 42, device="xla").sort()
    with pytest.raises(torch.OutOfMemoryError):
        torch_xla.sync()
        torch_xla.sync(wait=True)
    del values
    assert w.tolist() == [2, 2, 2]


def nans(device: str) -> torch.Tensor:
    return torch.full((3, 3), torch.nan).to(device)


KERNELS = {
    "svdvals": lambda d: torch.linalg.svdvals(nans(d)),
    "pinv": lambda d: torch.linalg.pinv(nans(d)),
    "matrix_rank": lambda d: torch.linalg.matrix_rank(nans(d)),
    "eigvalsh": lambda d: torch.linalg.eigvalsh(nans(d)),
    "eig": lambda d: torch.linalg.eig(torch.full((2, 2), torch.inf).to(d))[0],
    "poisson": lambda d: torch.poisson(torch.full((3,), -1.0).to(d) * 1),  # not known when called
}


@pytest.mark.parametrize("read", [False, True], ids=["sync", "read"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_fails_takes_nothing_along(name, read):
    """The error is the CPU's, in class and words, and no value of the step is lost."""
    with pytest.raises(RuntimeError) as expected:
        KERNELS[name]("cpu")
    w = torch.ones(3, device="xla")
    torch_xla.sync()
    w.mul_(2)  # would be in the memory of w
    result = KERNELS[name]("xla")
    depends = w + result.flatten()[0].abs()
    for _ in range(2 if read else 1):  # whoever reads the result is told, and one sync
        with pytest.raises(type(expected.value)) as caught:
            depends.cpu() if read else torch_xla.sync()
        assert type(caught.value) is type(expected.value)
        told, line = str(caught.value).split("\nThe call that failed was recorded at ")
        assert told == str(expected.value)
        assert line.startswith(__file__)
    torch_xla.sync(wait=True)
    assert w.tolist() == [2, 2, 2]
    with pytest.raises(type(expected.value)):
        depends.cpu()
    depends.fill_(3)
    torch_xla.sync(wait=True)
    assert depends.flatten()[0].item() == 3
    assert (w + 1).tolist() == [3, 3, 3]


BAD = 2  # the batch of nan among five


def batches():
    """Of more rows than columns: a singular value of zero has no gradient. In float64: gradients of
    a bias before a batch norm are the noise of their sums."""
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(5, 6, 3, generator=generator, dtype=torch.float64)
    data[BAD] = torch.nan
    return data


def train(device, model, optimizer, when_told):
    """Leaves out the batches whose step raises."""
    skipped = []
    for i, batch in enumerate(batches()):
        try:
            optimizer.zero_grad()
            loss = torch.linalg.svdvals(model(batch.to(device))).sum()
            loss.backward()
            optimizer.step()
            when_told(loss)
        except torch.linalg.LinAlgError:
            skipped.append(i)
    return skipped


@pytest.mark.parametrize("read", [False, True], ids=["sync", "read"])
@pytest.mark.parametrize("momentum", [0, 0.9])
def test_training_goes_on_without_a_batch_that_fails(read, momentum):
    """As on the CPU, where the call raises before anything is made of its result."""
    tell = (lambda loss: loss.item()) if read else lambda loss: torch_xla.sync()
    results = []
    for device in "cpu", "xla":
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        model = model.to(device, torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        assert train(device, model, optimizer, tell) == [BAD]
        states = [s["momentum_buffer"] for s in optimizer.state.values()] if momentum else []
        results.append([t.detach().cpu() for t in [*model.parameters(), *states]])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("synced", [False, True])
def test_writes_that_need_a_result_that_failed_are_taken_back(synced):
    """To what the tensors held before the first of them, computed or not."""
    x, y = torch.ones(3, device="xla"), torch.ones(4, device="xla")
    z, views = torch.zeros(3, device="xla"), torch.zeros(2, 3, device="xla")
    if synced:
        torch_xla.sync()
    x += 1
    z += 1
    failed = torch.linalg.svdvals(nans("xla"))
    y *= 5
    x += failed
    x *= 2
    views[1] += failed
    views[0].add_(1)
    z.copy_(failed)  # what it held is gone
    z += 1
    first = failed + 1
    with pytest.raises(torch.linalg.LinAlgError):
        torch_xla.sync()
    torch_xla.sync(wait=True)
    assert x.tolist() == [2, 2, 2]
    assert y.tolist() == [5, 5, 5, 5]
    assert views.tolist() == [[0, 0, 0], [0, 0, 0]]
    for gone in z, first, failed:
        with pytest.raises(torch.linalg.LinAlgError):
            gone.cpu()
    z.zero_()
    assert (x + z).tolist() == [2, 2, 2]


def test_several_calls_that_fail_are_told_of_once():
    bad, w = nans("xla"), torch.ones(2, device="xla")
    failed = [torch.linalg.svdvals(bad), torch.linalg.eigvalsh(bad + 1)]
    w += 1
    with pytest.raises(torch.linalg.LinAlgError):
        torch_xla.sync()
    torch_xla.sync(wait=True)
    assert w.tolist() == [2, 2]
    for result in failed:
        with pytest.raises(torch.linalg.LinAlgError):
            result.sum().item()


def test_a_kernel_that_fails_while_others_run():
    """A step that is launched behind one that runs waits for it before it says what failed."""
    x = torch.randn(600, 600, device="xla")
    w = torch.ones(3, device="xla")
    torch_xla.sync()
    for _ in range(5):
        x = x @ x / 25
    torch_xla.sync()
    w.mul_(2)
    matrix = x[:3, :3] * torch.nan
    result = torch.linalg.eigvalsh(matrix)
    with pytest.raises(torch.linalg.LinAlgError, match="linalg.eigh"):
        torch_xla.sync()
    del result
    assert w.tolist() == [2, 2, 2]


def test_training_reuses_its_buffers():
    """The kernels that training steps are made of do not fail, so their programs take buffers over.

    One that may fail leaves the parameters where they are.
    """
    layers = [torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(64, 4)]
    model = torch.nn.Sequential(*layers).to("xla")
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(2, 1, 6, 6, device="xla")

    def step(loss_of):
        optimizer.zero_grad()
        loss_of(model(x)).backward()
        optimizer.step()
        torch_xla.sync(wait=True)

    def pointers():
        moments = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
        tensors = [*model.parameters(), *moments]
        return {torch.from_dlpack(t.detach()).data_ptr() for t in tensors}

    for _ in range(2):  # the first run of a program takes nothing over
        step(lambda y: y.square().mean())
    before = pointers()
    step(lambda y: y.square().mean())
    assert len(pointers() & before) >= 8  # gradients take others
    step(lambda y: torch.linalg.svdvals(y).sum())
    assert pointers().isdisjoint(before)


def test_failing_compile_leaves_the_graph_and_the_process():
    x = torch.arange(7.0, device="xla")
    torch_xla.sync()
    y = x * 2
    torch_xla.set_custom_compile_options({"xla_no_such_flag": True})
    with pytest.raises(RuntimeError, match="xla_no_such_flag"):
        torch_xla.sync(wait=True)
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
        torch_xla.sync(wait=True)
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
        if recorded > 200:
            break
    thread.join()
    assert sum(counts) > 10
    torch.testing.assert_close(w.cpu(), z + recorded)
    expected = x.cpu()
    for i in range(150):
        expected = torch.tanh(expected @ x.cpu() + i % 7)
    torch.testing.assert_close(y.cpu(), expected, atol=1e-3, rtol=1e-3)
