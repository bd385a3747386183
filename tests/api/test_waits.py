"""Which lines of a program waited for values, how often and how long."""

from __future__ import annotations

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla.debug import wait_report, waits


@pytest.fixture(autouse=True)
def fresh():
    torch_xla.sync()
    waits(clear=True)


def by_line() -> dict[str, list]:
    found: dict[str, list] = {}
    for w in waits(clear=True):
        found.setdefault(w.place, []).append(w)
    return found


def line(function, offset: int) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno + offset} ({function.__qualname__})"


def test_each_way_to_wait():
    x = torch.arange(4.0).to("xla")

    def loop():
        for _ in range(3):
            y = x + 1
            y.sum().item()
            if y[0] > 0:
                y.cpu()
            str(y)
            torch_xla.sync(wait=True)

    loop()
    found = by_line()
    kinds = {place: [(w.why, w.count) for w in all_] for place, all_ in found.items()}
    number, copy = "a number that Python reads", "a copy to the CPU"
    assert kinds[line(loop, 3)] == [(number, 3)]
    assert kinds[line(loop, 4)] == [(number, 3)]
    assert kinds[line(loop, 5)] == [(copy, 3)]
    assert [why for why, _ in kinds[line(loop, 6)]] == [copy]
    assert kinds[line(loop, 7)] == [("a wait for the device", 3)]
    assert len(found) == 5
    assert all(0 <= w.seconds < 60 for all_ in found.values() for w in all_)
    assert waits() == []


def test_sizes_that_values_decide():
    x = torch.arange(4.0).to("xla")
    counts = torch.tensor([1, 2]).to("xla")

    def loop():
        x[x > 1]
        torch.unique(x)
        torch.repeat_interleave(counts)
        torch.bincount(counts)
        (x > 1).nonzero()

    loop()
    found = by_line()
    for i in range(1, 6):
        assert {w.why for w in found[line(loop, i)]} == {"a size that values decide"}, i


def test_operators_on_the_host(monkeypatch):
    monkeypatch.setenv("XLA_HOST_FALLBACK", "allow")
    scores = torch.randn(5, 2, 4).log_softmax(-1).to("xla")
    labels = torch.randint(1, 4, (2, 3)).to("xla")
    lengths = torch.tensor([5, 5]).to("xla"), torch.tensor([3, 3]).to("xla")

    def loop():
        torch._ctc_loss(scores, labels, *lengths)

    loop()
    assert [w.why for w in by_line()[line(loop, 1)]] == ["aten::_ctc_loss"]


def test_what_the_compiler_took_is_not_waiting():
    x = torch.rand(50, 50).to("xla")

    def loop():
        y = x
        for _ in range(20):
            y = torch.linalg.lu_factor(y)[0].tanh()
        return y.sum().item()

    met.clear_all()
    loop()
    waited = sum(w.seconds for w in waits())
    compiled = met.metric_data("CompileTime")[1] * 1e-9
    assert compiled > 0.01  # else this compares nothing
    assert 0 < waited < compiled / 2


def test_waits_are_sorted_and_reported():
    x = torch.ones(4).to("xla")
    (x + 1).sum().item()
    x.cpu()
    assert [w.seconds for w in waits()] == sorted((w.seconds for w in waits()), reverse=True)
    report = wait_report(most=1)
    assert report.startswith("torch_xla: this program waited ")
    assert "and 1 other lines" in report and f"{__file__}:" in report


PROGRAM = """
    import os, time
    import torch, torch_xla
    from torch_xla._src.insight import explain
    explain._SECONDS = float(os.environ["LEAST"])
    x = torch.rand(200, 200).to("xla")
    def loop(times):
        for _ in range(times):
            y = x
            for _ in range(30):
                y = y @ x
            y.sum().item()
    loop(int(os.environ["TIMES"]))
    time.sleep(float(os.environ["SLEEP"]))
"""


@pytest.mark.parametrize(
    ("told", "variables"),
    [
        (True, {}),
        (False, {"XLA_EXPLAIN": "0"}),
        (False, {"TIMES": "1"}),  # not a loop
        (False, {"LEAST": "60"}),  # not long
    ],
)
def test_the_summary_at_exit(run_python, told, variables):
    env = {"LEAST": "0.01", "TIMES": "20", "SLEEP": "0", **variables}
    done = run_python(PROGRAM, env=env)
    assert ("this program waited" in done.stderr) is told, done.stderr
    if told:
        assert "20 times" in done.stderr and "(loop): a number that Python reads" in done.stderr
        assert "Read values less often" in done.stderr


def test_no_summary_where_little_of_the_run_was_spent_so(run_python):
    done = run_python(
        """
        import torch, torch_xla
        from torch_xla._src.insight import explain
        explain._SECONDS = 0
        x = torch.rand(2).to("xla")
        x.cpu()
        for _ in range(10):
            x.sum().item()
        explain._start -= 1000  # as if the program had run for long
        """
    )
    assert "waited" not in done.stderr


def test_no_summary_of_a_line_that_reads_now_and_then(run_python):
    """A loop that is bound by the device waits for the steps since wherever it reads."""
    code = """
        import torch, torch_xla
        from torch_xla._src.insight import explain
        explain._SECONDS = explain._SHARE = 0
        x = torch.rand(2).to("xla")
        for i in range(100):
            x = x + 1
            torch_xla.sync()
            if i % EVERY == EVERY - 1:
                x[0].item()
    """
    assert "waited" not in run_python(code.replace("EVERY", "20")).stderr
    assert "10 times" in run_python(code.replace("EVERY", "10")).stderr


def test_an_operator_that_is_taken_back(recwarn):
    waits(clear=True)
    with torch.library._scoped_library("waits_test", "DEF") as library:
        library.define("an_operator_with_a_name_of_its_own(Tensor x) -> Tensor")
        library.impl("an_operator_with_a_name_of_its_own", torch.Tensor.exp, "CPU")
        library.impl("an_operator_with_a_name_of_its_own", torch.empty_like, "Meta")
        torch.ops.waits_test.an_operator_with_a_name_of_its_own(torch.ones(3, device="xla"))
    whys = [w.why for w in waits(clear=True)]
    assert whys == ["waits_test::an_operator_with_a_name_of_its_own"]
