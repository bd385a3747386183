"""torch_xla.debug.report: the page of a run.

Units: _src/insight/recording.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import threading
import time
import warnings
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

import torch_xla
import torch_xla.debug.profiler as xp
from torch_xla import _XLAC
from torch_xla._src.functions import step
from torch_xla._src.insight import recording
from torch_xla._src.insight.cost import Cost, Machine, Row
from torch_xla._src.report import charts as report_charts
from torch_xla._src.report import figures as report_data
from torch_xla._src.report import page as report_page
from torch_xla._src.report import parts as report_parts
from torch_xla.debug import record, report

SECTIONS = {
    "time": "Where the time went",
    "recompiles": "Compiled again",
    "waits": "Waits",
    "programs": "Programs",
    "cost": "Operators, lines and modules",
    "memory": "Memory",
    "host": "Operators on the host",
    "shardings": "Split parameters",
}
LIBRARY = torch.library.Library("report_test", "DEF")
LIBRARY.define("foo(Tensor x) -> Tensor")  # no program can hold it
LIBRARY.impl("foo", lambda x: torch.from_numpy(np.sin(x.numpy())), "CPU")
LIBRARY.impl("foo", torch.empty_like, "Meta")
EMPTY = {"meta", "input", "br", "wbr"}


class Page(HTMLParser):
    """The texts of each section, the tags and their attributes; all tags are closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.sections: dict[str, str] = {"": ""}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._section = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self._section = dict(attrs)["id"]
            self.sections[self._section] = ""
        if tag not in EMPTY:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag
        if tag == "section":
            self._section = ""

    def handle_data(self, data):
        if self._open and self._open[-1] in ("script", "style"):
            self.scripts.append(data)
        else:
            self.sections[self._section] += data.replace("\N{NO-BREAK SPACE}", " ")


@pytest.fixture(autouse=True)
def nothing_recorded(monkeypatch):
    torch_xla.sync(wait=True)
    monkeypatch.setattr(recording, "_last", None)
    yield
    on = recording.current()
    if on is not None:
        on.stop()


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "report.html"


def train_step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
    return loss


def train(sizes=(8, 8, 8, 6), read=True):
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    model = model.to("xla")
    optimizer = torch.optim.AdamW(model.parameters())
    for size in sizes:
        loss = train_step(model, optimizer, torch.randn(size, 16).to("xla"))
        if read:
            loss.item()
    return model, optimizer


def line(function, offset: int) -> str:
    file = os.path.basename(__file__)
    return f"{file}:{function.__code__.co_firstlineno + offset} ({function.__qualname__})"


def read(path: Path) -> Page:
    return Page(path.read_text())


def test_a_recorded_run(path):
    with record() as kept:
        model = train()
        assert kept.is_on
    assert not kept.is_on
    report(path)
    page = read(path)
    assert {k: page.sections[k].startswith(v) for k, v in SECTIONS.items()} == dict.fromkeys(
        SECTIONS, True
    )
    assert re.search(r"Wall time[\d.]+ m?sof the recording", page.sections[""])
    assert re.search(r"Steps4typically", page.sections[""])
    (recompile,) = kept.after.since(kept.before).recompiles
    told = page.sections["recompiles"]
    assert recompile.what in told and recompile.advice in told
    assert line(train_step, 5) in told
    assert f"{line(train, 7)}a number that Python reads4" in page.sections["waits"]
    assert f"compiling, {line(train_step, 5)}" in page.sections["time"]
    assert f"a number that Python reads, {line(train, 7)}" in page.sections["time"]
    assert "main thread" in page.sections["time"] and "xla:0busy" in page.sections["time"]
    assert "Length of each step" in page.sections["time"]
    main = next(t for t in kept.tracks.values() if t.name == "main")
    assert {"sync", "lower", "compile", "launch", "upload", "wait"} <= set(main.seconds)
    assert sum(main.seconds.values()) <= (kept.ended - kept.began) / 1e9
    assert re.search(
        r"sync [0-9a-f]{8} of " + re.escape(line(train_step, 5)), page.sections["programs"]
    )
    memory = page.sections["memory"]
    assert "At its fullest" in memory and "Sequential.0.weight" in memory
    for kind in ("parameters", "gradients", "optimizer state"):
        assert re.search(kind + r" [\d.]+ [kM]?B", memory), kind
    assert "aten::_local_scalar_dense reads a value4" in page.sections["host"]
    assert "No cost was given" in page.sections["cost"]
    del model


def test_operators_on_the_host(path):
    with record() as kept, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            torch.ops.report_test.foo(torch.ones(3, device="xla")).cpu()
        torch.ones(3, device="xla").sum().item()
    report(path)
    told = read(path).sections
    assert "Ran on the host: report_test::foo." in told[""]
    duration = r"[\d.]+ (?:s|ms|µs)"
    assert re.search(rf"report_test::foo3{duration}", told["host"])
    assert re.search(rf"aten::_local_scalar_dense reads a value1{duration}", told["host"])
    main = next(t for t in kept.tracks.values() if t.name == "main")
    assert main.seconds["host"] > 0
    assert re.search(r"report_test::foo, test_report.py:\d+ \(", told["time"])


def test_what_is_compiled_again_in_one_way_is_one_entry(path):
    x = torch.ones(9, device="xla")
    torch_xla.sync()
    with record() as kept:
        for n in range(2, 8):
            y = x[:n].exp()
            torch_xla.sync()
        for dtype in (torch.float64, torch.float16):
            y = x.to(dtype).sinh()
            torch_xla.sync()
    del y
    recompiles = kept.after.since(kept.before).recompiles
    assert len(recompiles) == 6
    report(path)
    told = read(path).sections
    assert "6 programs of 2 lines were compiled again" in told[""]
    entries = [attrs for tag, attrs in read(path).tags if attrs.get("class") == "head"]
    assert len(entries) == 2 and told["recompiles"].count("The last: ") == 1
    assert "5 programs" in told["recompiles"] and "1 program" in told["recompiles"]
    assert recompiles[4].what in told["recompiles"]
    assert recompiles[3].what not in told["recompiles"]

    loaded = [dataclasses.replace(r, from_disk=True) for r in recompiles]
    run = dataclasses.replace(report_data.collect(), recompiles=loaded, compiled=0)
    page = Page(report_page.page(run))
    assert "6 programs of 2 lines were taken from the disk" in page.sections[""]
    assert "none again" in page.sections[""] and "from the disk" in page.sections["recompiles"]


def test_one_total_of_waits_and_one_fullest_moment(path):
    with record() as kept:
        kept_alive = torch.ones(1000, 1000, device="xla")
        torch_xla.sync(wait=True)
        for _ in range(3):
            kept_alive.sum().item()
    report(path)
    page = read(path)
    (top,) = re.findall(r"Waiting for values(.*?s)[\d.<]+% of the time", page.sections[""])
    seconds = dict(report_charts.kind_seconds(kept))
    assert top == report_parts.duration(seconds["wait"]).replace("\N{NO-BREAK SPACE}", " ")
    at, snapshot = kept.peak
    assert all(sum(parts.values()) <= snapshot.bytes for _, parts in kept.snapshots)
    left = f"{(at - kept.began) / (kept.ended - kept.began) * 100:.1f}"
    marks = [a["style"] for _, a in page.tags if (a.get("class") or "").startswith("peak")]
    assert float(re.match(r"left:([\d.]+)%", marks[0])[1]) == pytest.approx(float(left), abs=0.2)
    del kept_alive


@pytest.mark.parametrize(
    ("seconds", "marks"),
    [
        (0.5, ["0", "100 ms", "200 ms", "300 ms", "400 ms"]),
        (110, ["0", "20 s", "40 s", "60 s", "80 s", "100 s"]),
        (
            150,
            [
                "0",
                "0:20 min",
                "0:40 min",
                "1:00 min",
                "1:20 min",
                "1:40 min",
                "2:00 min",
                "2:20 min",
            ],
        ),
        (1800, ["0", "5:00 min", "10:00 min", "15:00 min", "20:00 min", "25:00 min"]),
        (9000, ["0", "0:20 h", "0:40 h", "1:00 h", "1:20 h", "1:40 h", "2:00 h", "2:20 h"]),
        (400_000, ["0", "20:00 h", "40:00 h", "60:00 h", "80:00 h", "100:00 h"]),
    ],
)
def test_marks_of_time_have_one_unit(seconds, marks):
    told = Page(f"<section id=x>{report_charts.ruler(seconds)}</section>")
    spans = re.findall(r">([^<>]+)</span>", report_charts.ruler(seconds))
    assert [s.replace("\N{NO-BREAK SPACE}", " ") for s in spans] == marks
    far = [a for tag, a in told.tags if tag == "span" and "far" in (a["class"] or "")]
    assert all(float(a["style"][5:-1]) > 80 for a in far)


def test_inside_a_recording_and_without_one(path):
    report(path)
    page = read(path)
    assert "Nothing was recorded." in page.sections["time"]
    assert "XLA_REPORT_FILE" in page.sections["time"]
    assert "since the import of torch_xla" in page.sections[""]
    with record() as kept:
        train()
        report(path)
        assert kept.is_on
        assert "Steps4" in read(path).sections[""]
        train()
    report(path)
    assert "Steps8" in read(path).sections[""]


def test_what_came_before_and_after_is_left_out(path):
    with record():
        pass
    x = torch.ones(3, device="xla")
    x.sum().item()
    report(path)
    page = read(path)
    assert "No line waited" in page.sections["waits"]
    assert "Python, recording" in page.sections["time"] and "wait" not in page.sections["time"]


def test_nothing_is_fetched_from_elsewhere(path):
    with record():
        train()
    report(path, cost=a_cost())
    html = path.read_text()
    assert not re.search(r"https?://|url\(|@import|\bsrc=", html)
    page = Page(html)
    links = [attrs["href"] for tag, attrs in page.tags if "href" in attrs]
    assert links and all(link.startswith("#") for link in links)
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    assert {link[1:] for link in links} <= ids
    assert not {tag for tag, _ in page.tags} & {"img", "iframe", "object", "link", "audio", "video"}
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)


def a_cost(name: str = "aten::mm") -> Cost:
    rows = [
        Row(name, 2e-3, 1e9, 5e6, 1e-3, 3),
        Row("aten::add", 1e-3, 1e6, 8e6, 0.4e-3, 7),
        Row("aten::view", 0.0, 0.0, 0.0, 0.0, 1),
    ]
    machine = Machine({torch.float32: 1e12}, 2e10, 1e-5)
    return Cost(2.5e-3, 3e-3, rows, rows, rows, 1, machine)


def test_what_a_step_costs(path):
    report(path, cost=a_cost())
    page = read(path).sections["cost"]
    assert "The step takes 2.50 ms in 1 program, 3.00 ms part by part." in page
    assert "aten::mm2.00 ms67%1.00 GFLOP5.00 MB2.03" in page
    assert "aten::add1.00 ms33%1.00 MFLOP8.00 MB2.57" in page
    assert "1.00 TFLOP/s and 20.0 GB/s" in page
    with pytest.raises(TypeError, match=r"report: expected cost to be what .* got int\."):
        report(path, cost=3)


def test_names_of_users_are_text(path):
    evil = "<script>alert('&1')</script><b title=\"x"
    with record(), xp.Trace(evil):
        module = torch.nn.Module()
        module.register_parameter(
            "<script>a&b</script>", torch.nn.Parameter(torch.ones(1 << 20, device="xla"))
        )
        torch_xla.sync()
    report(path, cost=a_cost(evil))
    html = path.read_text()
    page = Page(html)  # whose tags are closed in order
    assert html.count("<script") == 1
    assert evil in page.sections["cost"]
    assert "Module.<script>a&b</script>" in page.sections["memory"]


def test_the_program_is_the_one_that_runs(path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/some/where/<i>.py", "--fast"])
    report(path)
    assert "<title>&lt;i&gt;.py: report of a run</title>" in path.read_text()


def test_long_runs_stay_small(path, monkeypatch):
    monkeypatch.setattr(recording, "_POINTS", 20)
    x = torch.ones(4, device="xla")
    with record() as kept:
        for i in range(300):
            with xp.Trace(f"step {i}"):
                x = x * 2
                torch_xla.sync()
            if i % 100 == 50:
                kept.catch_up()
    count = sum(t.count for t in kept.tracks.values())
    assert count > 900
    assert sum(len(t.counted) for t in kept.tracks.values()) <= 600
    assert kept.steps.count == 300 and len(kept.steps.points) <= 41
    assert len(kept.live.points) <= 41
    assert sum(p.launched for p in kept.programs.values()) == 300
    report(path)
    assert path.stat().st_size < 200_000


def test_a_curve_keeps_its_peaks():
    curve = recording.Curve()
    values = [(i * 7919) % 10_007 for i in range(50_000)]
    for i, value in enumerate(values):
        curve.add(i, value)
    assert curve.count == len(values)
    assert len(curve.points) <= 2 * recording._POINTS + 1
    assert max(value for _, value in curve.points) == max(values)
    assert [w for w, _ in curve.points] == sorted(w for w, _ in curve.points)


def test_density_grows_with_the_run():
    density = recording.Density(1000)
    spans = [(1000 + i * 50_000_000, 1000 + i * 50_000_000 + 20_000_000) for i in range(500)]
    for begin, end in spans:
        density.add((0, "run"), begin, end)
    (parts,) = density.rows.values()
    assert sum(parts) == sum(end - begin for begin, end in spans)
    assert max(parts) <= density.width
    assert density.width * recording._PARTS >= spans[-1][1] - 1000


def span(begin, end, kind="sync"):
    return recording.Span(begin, end, kind)


def test_time_is_counted_once():
    spans = [span(0, 100), span(10, 60, "compile"), span(20, 30, "upload"), span(150, 170, "wait")]
    pieces = [(b, e, s.kind) for b, e, s in recording.exclusive(spans)]
    assert pieces == [
        (0, 10, "sync"),
        (10, 20, "compile"),
        (20, 30, "upload"),
        (30, 60, "compile"),
        (60, 100, "sync"),
        (150, 170, "wait"),
    ]


def test_a_span_that_ends_after_a_fetch():
    kept = recording.Recording()
    kept.began, kept.density = 1, recording.Density(1)
    track = recording.Track("main", False)
    kept.tracks[False, 7] = track
    inner = ("compile", 100, 600, [("graph", "ab"), ("line", "a.py:1"), ("calls", "3")])
    kept._add(track, 7, [inner], set())
    kept._add(track, 7, [("sync", 50, 1050, [])], set())
    assert track.seconds == pytest.approx({"compile": 500e-9, "sync": 500e-9})
    assert [s.kind for s in track.counted] == ["sync"] and track.count == 2


def test_files_are_whole_or_not_there(path, monkeypatch):
    path.write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(report_page, "_waits", lambda run: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            report(path)

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            report(path)
    assert path.read_text() == "old" and os.listdir(path.parent) == [path.name]
    report(path)
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert os.listdir(path.parent) == [path.name]


def test_paths_that_are_none(tmp_path):
    text = r"report: expected the path of a file, in a folder that exists, got "
    with pytest.raises(OSError, match=text + "a folder: "):
        report(tmp_path)
    with pytest.raises(OSError, match=text + "one in a folder that does not exist: .*/no/r.html"):
        report(tmp_path / "no" / "r.html")


def test_recordings_one_at_a_time():
    kept = record()
    assert kept.start() is kept
    with pytest.raises(RuntimeError, match=r"^record: expected no other recording, got one that"):
        with record():
            pass
    assert kept.is_on
    kept.stop()
    kept.stop()
    with pytest.raises(RuntimeError, match="got one that has. Call torch_xla.debug.record"):
        kept.start()
    with record():
        pass


def test_a_recording_or_a_profile(tmp_path):
    xp.start_trace(str(tmp_path))
    try:
        with pytest.raises(RuntimeError, match="record: expected that no profile .* stop it first"):
            with record():
                pass
    finally:
        xp.stop_trace()
    with record() as kept:
        text = r"profiler: .* got the one that torch_xla.debug.record\(\) began"
        with pytest.raises(RuntimeError, match=text):
            xp.start_trace(str(tmp_path))
        assert kept.is_on and _XLAC._xla_is_tracing()
    assert not _XLAC._xla_is_tracing()
    xp.start_trace(str(tmp_path))
    xp.stop_trace()


def test_without_a_recording_barriers_call_nothing():
    assert step.on_barrier is None
    with record():
        assert step.on_barrier is not None
    assert step.on_barrier is None and not _XLAC._xla_is_tracing()


def test_the_run_goes_on_where_the_memory_cannot_be_seen(path, monkeypatch):
    def broken():
        raise ValueError("no figures")

    with monkeypatch.context() as patch, record() as kept:
        patch.setattr(_XLAC, "_xla_live_data", broken)
        train(sizes=(8,))
    assert kept.trouble == "ValueError: no figures"
    report(path)
    assert "The memory was not watched: ValueError: no figures" in read(path).sections["memory"]


def test_a_run_that_fails_at_the_end_of_a_recording(path, monkeypatch):
    def lost():
        raise RuntimeError("the run was lost")

    with monkeypatch.context() as patch:
        patch.setattr(_XLAC, "_xla_wait_device_ops", lost)
        with pytest.raises(RuntimeError, match="the run was lost"):
            with record() as kept:
                train(sizes=(8,))
        assert not kept.is_on and not _XLAC._xla_is_tracing()
        with pytest.raises(ValueError, match="mine"):
            with record():
                raise ValueError("mine")
    report(path)


def test_other_threads_have_tracks_of_their_own(path):
    def work():
        (torch.ones(3, device="xla") + 1).sum().item()

    with record() as kept:
        work()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    report(path)
    names = re.findall(r'class="lane-name">([^<]*)<', path.read_text())
    assert names == ["main thread", "xla:0"]
    assert [t.seconds["wait"] > 0 for t in kept.tracks.values() if not t.is_device] == [True] * 2


def test_a_step_without_barriers_is_fetched_too(monkeypatch):
    monkeypatch.setattr(recording, "_SECONDS", 0.05)
    x = torch.ones(3, device="xla")
    with record() as kept:
        (x + 1).sum().item()
        end = time.monotonic() + 30
        while not kept.tracks and time.monotonic() < end:
            time.sleep(0.02)
        assert kept.tracks


def test_what_stands_out(path, monkeypatch):
    report(path)
    run = report_data.collect()
    calm = dict(seconds=100.0, compile_seconds=1.0, wait_seconds=1.0, recompiles=[], waits=[])
    quiet = dataclasses.replace(run, **calm, host_operators=[], memory=None)
    assert "Nothing stands out." in report_page.page(quiet)
    loud = dataclasses.replace(
        quiet,
        compile_seconds=40.0,
        wait_seconds=20.0,
        waits=[torch_xla.debug.Wait("/a/b.py:3 (f)", "aten::_ctc_loss", 5, 20.0)],
        host_operators=[("aten::_ctc_loss", 5), ("aten::nonzero", 2)],
    )
    told = Page(report_page.page(loud)).sections[""]
    assert "The compiler took 40.0 s, 40% of the time." in told
    assert "Waits for values took 20.0 s, 20% of the time: most of all b.py:3 (f), 20.0 s." in told
    assert "Ran on the host: aten::_ctc_loss." in told


@pytest.mark.parametrize(
    "seconds, told",
    [(0, "0 s"), (2.6e-6, "2.60 µs"), (0.0123, "12.3 ms"), (9.996, "10.0 s"), (0.9999, "1.00 s")]
    + [(119, "119 s"), (125, "2 min 05 s"), (7260, "2 h 01 min")],
)
def test_times_in_words(seconds, told):
    assert report_parts.duration(seconds).replace("\N{NO-BREAK SPACE}", " ") == told


@pytest.mark.parametrize(
    "count, told", [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (12_345_678, "12.3 MB")]
)
def test_sizes_in_words(count, told):
    assert report_parts.size(count).replace("\N{NO-BREAK SPACE}", " ") == told


PROGRAM = """
    import torch, torch_xla
    x = torch.ones(3, device="xla")
    for i in range(5):
        x = x + 1
        torch_xla.sync()
    print(x.sum().item())
"""


def test_the_variable_that_asks_for_a_report(run_python, tmp_path):
    done = run_python(PROGRAM, env={"XLA_REPORT_FILE": "r.html", "XLA_EXPLAIN": "0"})
    assert done.stdout == "18.0\n" and done.stderr == ""
    page = read(tmp_path / "r.html")
    assert re.search("Steps[56]typically", page.sections[""])
    assert "a number that Python reads1" in page.sections["waits"]
    assert "xla:0" in page.sections["time"]


def test_the_variable_and_a_program_that_fails(run_python, tmp_path):
    code = PROGRAM + "\n    raise ValueError('wrong')"
    done = run_python(code, env={"XLA_REPORT_FILE": "r.html"}, check=False)
    assert done.returncode == 1 and "ValueError: wrong" in done.stderr
    assert (tmp_path / "r.html").exists()


def test_the_variable_with_a_folder_that_is_not_there(run_python):
    done = run_python(PROGRAM, env={"XLA_REPORT_FILE": "no/r.html"})
    assert "torch_xla: report: expected the path of a file" in done.stderr


def test_the_variable_and_what_else_records(run_python):
    done = run_python(
        """
        import torch_xla
        try:
            torch_xla.debug.record().start()
        except RuntimeError as error:
            print(error)
        """,
        env={"XLA_REPORT_FILE": "r.html"},
    )
    assert "got the one that XLA_REPORT_FILE began. Unset it" in done.stdout


@pytest.mark.forks
def test_forked_children_write_nothing(run_python, tmp_path):
    run_python(
        """
        import os, sys, torch_xla
        child = os.fork()
        if child == 0:
            sys.exit(0)
        os.waitpid(child, 0)
        assert not os.path.exists("r.html")
        """,
        env={"XLA_REPORT_FILE": "r.html"},
    )
    assert (tmp_path / "r.html").exists()


@pytest.mark.slow
def test_in_a_browser(path):
    """The script runs without an error and sorts."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if browser is None:
        pytest.skip("chromium is not installed")
    with record():
        train()
    report(path)
    html = path.read_text()
    watch = "<script>addEventListener('error', e => document.title = 'error ' + e.message)</script>"
    after = "<script>document.querySelector('#waits th button').click()</script></body>"
    path.write_text(html.replace("<title>", watch + "<title>").replace("</body>", after))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "<title>error" not in done.stdout
    assert 'aria-sort="ascending"' in done.stdout


def test_parameters_that_are_split(run_python, tmp_path):
    run_python(
        """
        import torch, torch_xla
        import torch_xla.distributed.spmd as xs
        import torch_xla.runtime as xr
        xr.use_spmd()
        mesh = xs.get_1d_mesh("model")
        with torch_xla.debug.record():
            model = torch.nn.Linear(8, 16).to("xla")
            xs.mark_sharding(model.weight, mesh, ("model", None))
            model(torch.ones(2, 8, device="xla")).sum().backward()
            torch_xla.sync()
        del model
        torch_xla.debug.report("r.html")
        """,
        env={"CPU_NUM_DEVICES": "4", "PJRT_DEVICE": "CPU"},
    )
    page = read(tmp_path / "r.html")
    split = page.sections["shardings"]
    assert "Linear.weight[16, 8]{devices=[4,1]0,1,2,3}" in split and "bias" not in split
    assert "CPU, 4 devices" in page.sections[""]


def test_what_is_no_file_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    texts = []
    reader = threading.Thread(target=lambda: texts.append(pipe.read_text()), daemon=True)
    reader.start()
    report(pipe)
    reader.join(30)
    assert pipe.is_fifo() and "</html>" in texts[0]


def test_a_link_stays(tmp_path):
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "page.html")
    report(link)
    assert link.is_symlink() and "</html>" in (tmp_path / "page.html").read_text()
