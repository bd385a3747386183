"""torch_xla.debug.metrics: values, clearing, and the text of the reports.

Units: executor/run/run_time.
"""

from __future__ import annotations

import os
import re
import threading
import time

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla import _XLAC

count = _XLAC._xla_add_to_counter
sample = _XLAC._xla_add_sample


@pytest.fixture(autouse=True)
def cleared():
    met.clear_all()
    yield
    met.clear_all()


def test_counter_value_and_names():
    assert met.counter_names() == []
    assert met.counter_value("test::b") is None
    count("test::b")
    count("test::b", 4)
    count("test::a")
    assert met.counter_names() == ["test::a", "test::b"]
    assert met.counter_value("test::b") == 5
    assert type(met.counter_value("test::b")) is int


def test_cleared_counter_is_gone_until_it_counts_again():
    count("test::a", 3)
    met.clear_counters()
    assert met.counter_names() == []
    assert met.counter_value("test::a") is None
    assert met.metrics_report() == ""
    count("test::a")
    assert met.counter_value("test::a") == 1


def test_metric_data():
    assert met.metric_data("TestTime") is None
    before = time.time()
    sample("TestTime", 1500.0)
    sample("TestTime", 500.0)
    total, accumulator, samples = met.metric_data("TestTime")
    assert (total, accumulator) == (2, 2000.0)
    assert isinstance(samples, list)
    assert [value for _, value in samples] == [1500.0, 500.0]
    times = [moment for moment, _ in samples]
    # A time is a double of seconds: exact to less than a microsecond.
    assert before - 1e-6 <= times[0] <= times[1] <= time.time() + 1e-6
    assert met.metric_names() == ["TestTime"]


def test_metric_keeps_the_last_1024_samples_and_counts_all():
    for value in range(1500):
        sample("TestValue", value, "value")
    total, accumulator, samples = met.metric_data("TestValue")
    assert total == 1500
    assert accumulator == sum(range(1500))
    assert [value for _, value in samples] == list(range(1500 - 1024, 1500))
    assert "  TotalSamples: 1500\n" in met.metrics_report()


def test_clears():
    count("test::a")
    sample("TestTime", 1)
    met.clear_metrics()
    assert met.metric_names() == [] and met.metric_data("TestTime") is None
    assert met.counter_names() == ["test::a"]
    sample("TestTime", 1)
    met.clear_counters()
    assert met.metric_names() == ["TestTime"] and met.counter_names() == []
    count("test::a")
    met.clear_all()
    assert met.metric_names() == [] and met.counter_names() == []


def test_report_text():
    for value in (1_032_778, 61_500_000_000):
        sample("CompileTime", value)
        time.sleep(0.01)
    count("CachedSyncTensors", 395)
    duration = r"(\d+d)?(\d\dh)?(\d\dm)?(\d\ds)?(\d\d\dms)?\d+\.\d\d\dus"
    percentiles = "; ".join(f"{p}%=001ms032.778us" for p in (1, 5, 10, 20))
    percentiles += "; " + "; ".join(f"{p}%=01m01s500ms000.000us" for p in (50, 80, 90, 95, 99))
    expected = (
        r"Metric: CompileTime\n"
        r"  TotalSamples: 2\n"
        r"  Accumulator: 01m01s501ms032\.778us\n"
        rf"  ValueRate: {duration} / second\n"
        r"  Rate: [0-9.e+]+ / second\n"
        rf"  Percentiles: {re.escape(percentiles)}\n"
        r"Counter: CachedSyncTensors\n"
        r"  Value: 395\n"
    )
    assert re.fullmatch(expected, met.metrics_report())


def test_units():
    sample("TestBytes", 3 << 20, "bytes")
    sample("TestValue", 12.5, "value")
    report = met.metrics_report()
    assert "  Accumulator: 3.00MB\n" in report
    assert "  Accumulator: 12.50\n" in report
    with pytest.raises((ValueError, RuntimeError), match="TestValue: expected the unit.*'meter'"):
        sample("TestValue", 1, "meter")


def test_rate_and_percentiles_agree_with_the_samples():
    for value in (5, 1, 4, 2, 3):
        sample("TestValue", value, "value")
        time.sleep(0.005)
    _, accumulator, samples = met.metric_data("TestValue")
    # The report's times are integer nanoseconds, those of metric_data doubles.
    seconds = samples[-1][0] - samples[0][0]
    report = met.metrics_report()
    rate = float(re.search(r"  Rate: (\S+) / second", report)[1])
    value_rate = float(re.search(r"  ValueRate: (\S+) / second", report)[1])
    assert rate == pytest.approx(len(samples) / seconds, rel=1e-3)
    assert value_rate == pytest.approx(accumulator / seconds, rel=1e-3)
    shown = {1: 1, 5: 1, 10: 1, 20: 2, 50: 3, 80: 5, 90: 5, 95: 5, 99: 5}
    assert "; ".join(f"{percent}%={value}.00" for percent, value in shown.items()) in report


def percentile(samples: list[float], percent: int) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


def nanoseconds(text: str) -> float:
    """Of a duration as the report writes it: 01m02s003ms4.005us."""
    units = {"d": 864e11, "h": 36e11, "m": 6e10, "s": 1e9, "ms": 1e6, "us": 1e3}
    return sum(float(n) * units[u] for n, u in re.findall(r"([\d.]+)(ms|us|d|h|m|s)", text))


def test_report_of_a_models_steps():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model.to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(4, 8).to("xla")
    torch_xla.sync(wait=True)
    met.clear_all()
    steps = 12
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        torch_xla.sync(wait=True)
    assert met.counter_value("MarkStep") == steps
    compiled = met.counter_value("UncachedCompile")
    assert 1 <= compiled == met.metric_data("CompileTime")[0] <= 3
    runs = steps + 1  # the momentum is made of zeros before the first step
    assert met.counter_value("CachedCompile") == runs - compiled
    total, accumulator, samples = met.metric_data("ExecuteTime")
    values = [value for _, value in samples]
    assert total == len(samples) == runs and accumulator == sum(values) and min(values) > 0
    report = met.metrics_report()
    assert f"Counter: MarkStep\n  Value: {steps}\n" in report
    section = re.search(r"Metric: ExecuteTime\n((?:  .*\n)+)", report)[1]
    lines = dict(line.strip().split(": ", 1) for line in section.splitlines())
    assert lines["TotalSamples"] == str(runs)
    assert nanoseconds(lines["Accumulator"]) == pytest.approx(accumulator, rel=1e-6)
    seconds = samples[-1][0] - samples[0][0]
    assert float(lines["Rate"].split()[0]) == pytest.approx(runs / seconds, rel=1e-3)
    value_rate = nanoseconds(lines["ValueRate"].split()[0])
    assert value_rate == pytest.approx(accumulator / seconds, rel=1e-3)
    shown = dict(part.split("%=") for part in lines["Percentiles"].split("; "))
    assert list(map(int, shown)) == [1, 5, 10, 20, 50, 80, 90, 95, 99]
    for percent, text in shown.items():
        expected = percentile(values, int(percent))
        assert nanoseconds(text) == pytest.approx(expected, rel=1e-6), f"{percent}%"


def fill_for_short_report():
    for name in ("CachedCompile", "MarkStep", "other", "aten::nonzero"):
        count(name)
    for name in ("CompileTime", "TransferToDeviceTime", "TestTime"):
        sample(name, 1)


def named(report: str) -> list[str]:
    return re.findall(r"^(?:Metric|Counter): (.*)$", report, re.MULTILINE)


def test_short_report_by_default():
    fill_for_short_report()
    assert named(met.short_metrics_report()) == [
        *("CompileTime", "TransferToDeviceTime"),
        *("CachedCompile", "MarkStep", "aten::nonzero"),
    ]


def test_short_report_of_chosen_names():
    fill_for_short_report()
    report = met.short_metrics_report(counter_names=["other", "absent"])
    assert named(report) == ["CompileTime", "TransferToDeviceTime", "aten::nonzero", "other"]
    report = met.short_metrics_report(metric_names=["TestTime"])
    assert named(report) == ["TestTime", "CachedCompile", "MarkStep", "aten::nonzero"]
    chosen = met.short_metrics_report(["other"], ["TestTime"])
    assert named(chosen) == ["TestTime", "aten::nonzero", "other"]
    assert met.short_metrics_report([], []) == met.short_metrics_report()


def test_executed_fallback_ops():
    for name in ("aten::nonzero", "xla::add", "aten::_ctc_loss", "mine::custom"):
        count(name)
    assert met.executed_fallback_ops() == ["aten::_ctc_loss", "aten::nonzero", "mine::custom"]
    met.clear_counters()
    assert met.executed_fallback_ops() == []


def test_threads_lose_no_count():
    def work():
        for _ in range(2000):
            count("test::shared")
            sample("TestValue", 1, "value")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert met.counter_value("test::shared") == 8000
    assert met.metric_data("TestValue")[:2] == (8000, 8000.0)


def test_forked_child_counts_on():
    count("test::a", 2)
    child = os.fork()
    if child == 0:
        count("test::a")
        os._exit(met.counter_value("test::a"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert met.counter_value("test::a") == 2


def test_memory_that_results_take_over():
    def taken_over(step) -> list[float]:
        torch_xla.sync(wait=True)
        met.clear_metrics()
        step()
        torch_xla.sync(wait=True)
        return [value for _, value in met.metric_data("InputOutputAliasCount")[2]]

    t, u, cache = (torch.ones(7, 3).to("xla") for _ in range(3))
    assert taken_over(lambda: t.add_(1)) == [1]
    assert taken_over(lambda: (t.mul_(3), u.mul_(3))) == [2]
    assert taken_over(lambda: [cache[i].add_(i) for i in range(7)]) == [1]
    assert taken_over(lambda: (t.sum() * 0.25).item()) == [0]


def test_counters_of_eager_mode():
    x = torch.ones(5, 2, device="xla")
    torch_xla.sync(wait=True)
    with torch_xla.experimental.eager_mode_context(True):
        met.clear_all()
        for _ in range(3):
            x.sinh()
        torch_xla.sync(wait=True)
        assert met.metric_data("EagerOpCompileTime")[0] == 1
        assert met.metric_data("EagerOpExecuteTime")[0] == 3
        assert met.metric_data("EagerOpExecuteTime")[1] > 0
        assert met.metric_data("CompileTime") is None and met.metric_data("ExecuteTime") is None

        compiled = torch_xla.compile(lambda a: a.cosh() + 1)
        met.clear_all()
        compiled(x)
        torch_xla.sync(wait=True)
        assert met.metric_data("CompileTime")[0] == met.metric_data("ExecuteTime")[0] == 1
        assert met.metric_data("EagerOpCompileTime") is None
        assert met.metric_data("EagerOpExecuteTime") is None

        met.clear_all()
        torch.nn.BatchNorm1d(2).to("xla")(x)
        assert met.counter_value("xla::native_batch_norm") == 1


def test_names_of_a_step():
    torch_xla.sync(wait=True)
    met.clear_all()
    x = torch.ones(4, 3).to("xla")
    names = ("TensorToData", "IrValueTensorToXlaData", "TransferToDeviceTime")
    assert [met.metric_data(name)[0] for name in names] == [1, 1, 1]
    met.clear_all()
    y = x * 7 + x
    assert met.metric_data("LazyTracing")[0] == 2
    assert met.counter_value("CreateXlaTensor") == 2  # one of them is between the two calls
    assert met.counter_value("DestroyXlaTensor") == met.counter_value("DestroyLtcTensor") == 1
    torch_xla.sync(wait=True)
    assert met.metric_data("TensorsGraphSize")[:2] == (1, 4)  # data, 7, two calls
    assert met.counter_value("ExecuteComputation") == 1
    for name in ("UnwrapXlaData", "WrapXlaData", "DeviceLockWait"):
        total, seconds, _ = met.metric_data(name)
        assert total >= 1 and seconds > 0, name
    del x, y


def test_tensors_are_counted():
    torch.tensor(2077, device="xla")
    assert met.counter_value("CreateXlaTensor") == 1
    x = torch.ones(4, 3).to("xla")
    torch_xla.sync(wait=True)
    met.clear_all()
    views = [x[0], x.t(), x.view(-1)]
    assert (
        met.counter_value("CreateXlaTensor") == 3 and met.counter_value("DestroyXlaTensor") is None
    )
    del views
    assert met.counter_value("DestroyXlaTensor") == 3


def test_recorded_calls_are_counted_and_some_are_timed():
    x = torch.ones(4, 3).to("xla")
    torch_xla.sync(wait=True)
    met.clear_all()
    for _ in range(210):
        y = x + x
    total, accumulator, samples = met.metric_data("LazyTracing")
    assert total == 210 and len(samples) == 8 + 3
    values = [value for _, value in samples]
    assert accumulator == pytest.approx((sum(values[:8]) + 64 * sum(values[8:])) * 210 / 200)
    assert "Metric: LazyTracing\n  TotalSamples: 210\n" in met.metrics_report()
    met.clear_all()
    assert met.metric_data("LazyTracing") is None
    y = x + x
    assert met.metric_data("LazyTracing")[0] == 1
    del y


def test_the_extension_counts_that_it_is_registered(run_python):
    code = """
        import torch_xla, torch_xla.debug.metrics as met
        print(met.counter_value("RegisterXLAFunctions"), met.counter_names(), met.metric_names())
        torch_xla._XLAC._init_xla_lazy_backend()
        print(met.counter_value("RegisterXLAFunctions"))
    """
    assert run_python(code).stdout.split("\n")[:2] == ["1 ['RegisterXLAFunctions'] []", "1"]
