"""A program goes on after a barrier while its new graph is compiled: XLA_BACKGROUND_COMPILE."""

from __future__ import annotations

import contextlib
import copy
import os
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla import _XLAC
from torch_xla.experimental.scan import scan
from torch_xla.experimental.stablehlo_custom_call import stablehlo_custom_call


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    torch_xla.sync(wait=True)
    met.clear_all()
    _XLAC._xla_clear_cached_programs()
    yield
    torch_xla.sync(wait=True)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No background compilation begins inside it."""
    _XLAC._xla_set_background("pause")
    try:
        yield
    finally:
        _XLAC._xla_set_background("")


def let_go(seconds: float) -> None:
    """Ends the pause, after some time."""
    threading.Timer(seconds, _XLAC._xla_set_background, ("",)).start()


def waiting() -> int:
    return _XLAC._xla_num_deferred_runs()


def counter(name: str) -> int:
    return met.counter_value(name) or 0


def programs() -> int:
    return counter("UncachedCompile") + counter("CachedCompile")


def on_device(*values: float) -> torch.Tensor:
    x = torch.tensor(values, device="xla")
    torch_xla.sync(wait=True)
    return x


def refused(x: torch.Tensor) -> torch.Tensor:
    """What no compiler takes."""
    y = stablehlo_custom_call((x,), "no_such_target", [x.shape], [x.dtype], api_version=2)
    return y


def test_old_values_are_read_meanwhile():
    x = on_device(1.0, 2.0)
    with paused():
        y = x * 3 + 1
        torch_xla.sync()
        assert waiting() == 1
        assert x.tolist() == [1, 2]
        assert (x + 5).tolist() == [6, 7]  # a program of its own
        assert waiting() == 1
    assert y.tolist() == [4, 7] and waiting() == 0


def test_what_comes_later_waits_for_it():
    """One run after the other, each from what the one before is to give."""
    x = on_device(1.0, 2.0)
    other = on_device(5.0)
    with paused():
        for factor in (2, 3):
            x.mul_(factor).add_(torch.ones(2, device="xla") * factor)
            torch_xla.sync()
        y = x * x
        torch_xla.sync()
        other += 1  # needs none of them, and yet a new program
        torch_xla.sync()
        assert waiting() == 4
    assert x.tolist() == [3 * (2 + 2) + 3, 3 * (4 + 2) + 3]
    assert y.tolist() == [15**2, 21**2] and other.tolist() == [6]


def test_equal_steps_are_compiled_once():
    p = on_device(0.0)
    with paused():
        for _ in range(5):
            p += 1
            torch_xla.sync()
        assert waiting() == 5
    assert p.item() == 5
    assert counter("UncachedCompile") == 1 and counter("CachedCompile") == 4


def test_so_many_wait_at_most():
    p = on_device(0.0)
    with paused():
        for _ in range(8):
            p += 1
            torch_xla.sync()
        assert waiting() == 8
        p += 1
        let_go(0.2)
        torch_xla.sync()  # waits for the first
    assert p.item() == 9


def trained(device: str, sizes: list[int]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step, size in enumerate(sizes):
        torch.manual_seed(step)
        x, y = torch.randn(size, 8).to(device), torch.randn(size, 2).to(device)
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        if device == "xla":
            torch_xla.sync()
        losses.append(loss.detach())
    return [t.cpu() for t in [*losses, *model.parameters(), *model.buffers()]]


def test_training_with_batches_of_several_sizes(monkeypatch: pytest.MonkeyPatch):
    sizes = [4, 6, 8, 4, 6, 8, 4]
    expected = trained("cpu", sizes)
    torch_xla.sync(wait=True)
    met.clear_all()
    _XLAC._xla_clear_cached_programs()
    with paused():
        let_go(0.5)
        got = trained("xla", sizes)
    assert counter("DeferredRuns") >= 3
    in_background = counter("UncachedCompile")
    torch.testing.assert_close(got, expected)
    monkeypatch.setenv("XLA_BACKGROUND_COMPILE", "0")
    torch_xla.sync(wait=True)
    met.clear_all()
    _XLAC._xla_clear_cached_programs()
    torch.testing.assert_close(trained("xla", sizes), got, rtol=0, atol=0)
    assert counter("DeferredRuns") == 0
    # What a run takes over does not depend on whether others wait, so the programs are the same.
    assert counter("UncachedCompile") == in_background


@pytest.mark.parametrize("poison", [False, True])
def test_memory_is_taken_over_in_order(poison: bool):
    _XLAC._xla_set_check_donation(True, poison)
    try:
        x = on_device(*map(float, range(100)))
        expected = torch.arange(100.0)
        with paused():
            y = x + 1  # reads what the next overwrites
            torch_xla.sync()
            x *= 2
            torch_xla.sync()
            z = x - y
            torch_xla.sync()
            del y
            x += 3
            torch_xla.sync()
            assert waiting() == 4
        torch.testing.assert_close(z.cpu(), 2 * expected - expected - 1)
        torch.testing.assert_close(x.cpu(), 2 * expected + 3)
    finally:
        _XLAC._xla_set_check_donation(True)


def test_a_run_of_now_takes_nothing_from_one_that_waits():
    x = on_device(1.0, 2.0)
    with paused():
        y = x.exp()
        torch_xla.sync()
        x += 1
        let_go(0.2)
        assert x.tolist() == [2, 3]  # may overwrite what exp() is to read
    torch.testing.assert_close(y.cpu(), torch.tensor([1.0, 2.0]).exp())


def test_several_results_of_a_call_and_views():
    x = on_device(*map(float, range(12)))
    with paused():
        matrix = x.view(3, 4)
        values, places = matrix.sort(dim=1, descending=True)
        row = matrix[1]
        row.add_(100)
        torch_xla.sync()
        row.mul_(2)
        torch_xla.sync()
    expected = torch.arange(12.0).view(3, 4)
    best = expected.sort(dim=1, descending=True)
    expected[1] = (expected[1] + 100) * 2
    assert torch.equal(matrix.cpu(), expected) and torch.equal(x.cpu(), expected.view(-1))
    assert torch.equal(row.cpu(), expected[1])
    assert torch.equal(values.cpu(), best.values) and torch.equal(places.cpu(), best.indices)


REPORTS = {
    "the next sync": lambda y: torch_xla.sync(),
    "waiting": lambda y: xm.wait_device_ops(),
    "reading": lambda y: y.tolist(),
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS.keys())
def test_a_program_that_cannot_be_compiled(report):
    x = on_device(1.0, 2.0)
    with paused():
        y = refused(x)
        x += 1
        torch_xla.sync()
        x *= 3  # needs what was put off
        torch_xla.sync()
        assert waiting() == 2
    _XLAC._xla_join_compilations()
    with pytest.raises(RuntimeError, match="no_such_target") as caught:
        report(y)
    assert f"the program of {__file__}:" in str(caught.value)
    assert waiting() == 0
    # Nothing is lost: without the part that fails, the rest is computed.
    del y, caught  # which refers to the frames of report()
    assert x.tolist() == [6, 9]
    torch_xla.sync(wait=True)


def test_what_fails_goes_on_failing_while_it_is_wanted():
    x = on_device(1.0)
    y = refused(x)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no_such_target"):
            torch_xla.sync(wait=True)
    with pytest.raises(RuntimeError, match="no_such_target"):
        y.tolist()
    del y
    torch_xla.sync(wait=True)
    assert x.item() == 1


def test_calls_of_several_results_are_recorded_again():
    """Batch norm and optimizers give several results; random numbers stay what they were."""
    x = on_device(*map(float, range(12)))
    torch.manual_seed(3)
    noise = torch.rand(12, device="xla")
    torch.manual_seed(3)
    with paused():
        values, places = x.view(3, 4).sort(dim=1, descending=True)
        random = torch.rand(12, device="xla")
        y = refused(x)
        torch_xla.sync()
        total = values.sum(0)
        torch_xla.sync()
    with pytest.raises(RuntimeError, match="no_such_target"):
        torch_xla.sync(wait=True)
    del y
    assert places.tolist() == [[3, 2, 1, 0]] * 3
    assert values.tolist() == [[3, 2, 1, 0], [7, 6, 5, 4], [11, 10, 9, 8]]
    assert total.tolist() == [21, 18, 15, 12]
    assert torch.equal(random, noise)


def test_parameters_survive_a_failure_of_their_step():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    mine = copy.deepcopy(model).to("xla")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, mine)]
    x = torch.randn(3, 4)
    device_x = x.to("xla")
    torch_xla.sync(wait=True)
    for fails in (False, True, False, False):
        model(x).square().sum().backward()
        loss = mine(device_x).square().sum()
        loss.backward()
        bad = refused(loss) if fails else None
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        torch_xla.sync()
        if fails:
            with pytest.raises(RuntimeError, match="no_such_target"):
                torch_xla.sync(wait=True)
        del bad
    for ours, theirs in zip(mine.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


def test_barriers_that_wait_put_nothing_off(monkeypatch: pytest.MonkeyPatch):
    x = on_device(1.0)
    y = x + 1
    torch_xla.sync(wait=True)
    assert counter("DeferredRuns") == 0
    monkeypatch.setenv("XLA_SYNC_WAIT", "1")
    z = y * 2
    torch_xla.sync()
    assert counter("DeferredRuns") == 0 and z.item() == 4


def test_metrics_are_those_of_the_lines_before():
    x = on_device(1.0)
    with paused():
        y = x - 7
        torch_xla.sync()
        let_go(0.2)
        assert counter("UncachedCompile") == 1
    assert met.metric_data("ExecuteTime")[0] == 1
    del y


def test_whole_graphs_and_steps():
    x = on_device(1.0, 2.0)

    @torch_xla.compile(full_graph=True)
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 0.5

    with paused():
        y = double(x)
        with torch_xla.step():
            z = y.square()
        assert waiting() == 2
    assert y.tolist() == [2.5, 4.5] and z.tolist() == [2.5**2, 4.5**2]


def test_a_wait_for_a_value_is_the_compilers():
    x = on_device(1.0)
    torch_xla._XLAC._xla_waits(True)
    with paused():
        y = x / 7
        torch_xla.sync()
        let_go(0.6)
        y.item()
    assert sum(w["seconds"] for w in _XLAC._xla_waits()) < 0.5


def test_threads(threads: int = 4):
    """Each with steps of its own, in whose programs nobody else has a part."""
    results: dict[int, float] = {}

    def body(number: int) -> None:
        p = torch.full((number + 2,), float(number), device="xla")
        for step in range(6):
            p = p * 2 + step
            torch_xla.sync()
        results[number] = p.sum().item()

    bodies = [threading.Thread(target=body, args=(n,)) for n in range(threads)]
    for thread in bodies:
        thread.start()
    for thread in bodies:
        thread.join()
    for number in range(threads):
        p = float(number)
        for step in range(6):
            p = p * 2 + step
        assert results[number] == p * (number + 2)


def test_the_end_of_a_process_waits(run_python):
    done = run_python(
        """
        import torch, torch_xla
        from torch_xla import _XLAC
        import torch_xla.debug.metrics as met
        x = torch.ones(4, 4, device="xla")
        for i in range(30):
            x = torch.tanh(x @ x + i)
        torch_xla.sync()
        print(_XLAC._xla_num_deferred_runs())
        """
    )
    assert done.stdout == "1\n" and done.stderr == ""


def test_a_failure_that_nobody_asked_for_is_printed_at_the_end(run_python):
    done = run_python(
        """
        import torch, torch_xla
        from torch_xla.experimental.stablehlo_custom_call import stablehlo_custom_call
        x = torch.ones(2, device="xla")
        y = stablehlo_custom_call((x,), "no_such_target", [(2,)], [torch.float32], api_version=2)
        torch_xla.sync()
        """,
        check=False,
    )
    assert done.returncode != 0 and done.stderr.count("no_such_target") == 1, done.stderr


def test_a_forked_child_says_that_it_has_no_device(run_python):
    done = run_python(
        """
        import os, sys, torch, torch_xla
        from torch_xla import _XLAC
        x = torch.ones(2, device="xla")
        torch_xla.sync(wait=True)
        _XLAC._xla_set_background("pause")
        y = x + 1
        torch_xla.sync()
        child = os.fork()
        if child == 0:
            try:
                y.tolist()
            except RuntimeError as error:
                print("child:", "fork" in str(error), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        _XLAC._xla_set_background("")
        print("parent:", y.tolist())
        """
    )
    assert done.stdout == "child: True\nparent: [2.0, 2.0]\n"


def test_profiles_show_who_compiles_and_who_waits(tmp_path):
    pytest.importorskip("google.protobuf")
    from tests.api.test_profiler import events_of, space_in
    from torch_xla.debug import profiler

    x = on_device(1.0, 2.0)
    profiler.start_trace(tmp_path)
    with paused():
        y = x.cosh() + 1
        torch_xla.sync()
        let_go(0.2)
        y.tolist()
    profiler.stop_trace()
    host = events_of(space_in(tmp_path))["/host:CPU"]
    names = [name for name, *_ in host]
    assert names.count("compile") == names.count("launch") == names.count("sync") == 1
    spans = {name: (begin, end) for name, begin, end, _ in host}
    assert spans["compile"][0] > spans["sync"][1]
    wait = spans["wait for the compiler"]
    assert wait[0] < spans["compile"][0] and spans["compile"][1] < wait[1]


def test_a_graph_of_torch_compile_for_another_shape():
    """Its call goes on, too: results of the earlier shape are read meanwhile."""
    compiled = torch.compile(lambda x: (x * 2 + 1).square(), backend="openxla")
    x, longer = on_device(1.0, 2.0), on_device(3.0, 4.0, 5.0)
    with torch.no_grad():
        first = compiled(x)
        torch_xla.sync(wait=True)
        with paused():
            second = compiled(longer)
            assert waiting() == 1
            assert first.tolist() == [9, 25]
            third = compiled(longer)
            assert waiting() == 2
    assert second.tolist() == third.tolist() == [49, 81, 121]


def test_a_graph_of_torch_compile_that_cannot_be_compiled():
    compiled = torch.compile(lambda x: refused(x) + 1, backend="openxla")
    x = on_device(1.0, 2.0)
    with torch.no_grad(), pytest.raises(RuntimeError, match="no_such_target"):
        compiled(x).tolist()
    torch_xla.sync(wait=True)
    assert x.tolist() == [1, 2]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_barrier_that_waits_comes_after_those_that_do_not(is_known: bool):
    x = on_device(1.0, 2.0)
    if is_known:
        torch_xla.sync(wait=True)
        warm = x * 5
        torch_xla.sync(wait=True)
        del warm
    with paused():
        y = x.exp() * 0 + x
        torch_xla.sync()
        z = y * 5
        let_go(0.2)
        torch_xla.sync(wait=True)
        assert waiting() == 0
    assert z.tolist() == [5, 10]


@pytest.mark.parametrize("run_async", [False, True])
def test_step_closures_of_a_step_that_fails_stay_queued(run_async: bool):
    x = on_device(1.0, 2.0)
    seen = []
    y, bad = x * 3, refused(x)
    xm.add_step_closure(lambda y: seen.append(y.tolist()), args=(y,), run_async=run_async)
    with pytest.raises(RuntimeError, match="no_such_target"):
        torch_xla.sync()
    assert seen == []
    del bad
    torch_xla.sync()
    xm.wait_device_ops()
    torch_xla.sync(wait=True)
    assert seen == [[3, 6]]


def test_who_holds_the_graph_lock_may_wait_for_the_compiler():
    """A body of a loop is recorded with the lock, and reads what comes after more programs than
    there are threads that compile."""
    x, start, elements = on_device(1.0, 2.0), on_device(0.0), on_device(0.0)
    steps = min((os.cpu_count() or 1) + 2, 8)
    with paused():
        for i in range(steps):
            x = x * torch.ones(i + 1, 1, device="xla")
            x = x[0] + 1
            torch_xla.sync()
        assert waiting() == steps

        def body(carry: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            let_go(0.1)
            return carry + x.sum().item(), carry

        last, _ = scan(body, start, elements)
    assert last.item() == 3 + 2 * steps
