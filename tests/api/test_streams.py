"""Streams and events: points in the work of a device."""

from __future__ import annotations

import pytest
import torch

import torch_xla.debug.metrics as met


def work():
    x = torch.ones(300, 300, device="xla")
    for _ in range(4):
        x = x @ x / 300
    return x


def runs():
    data = met.metric_data("ExecuteTime")
    return data[0] if data else 0


STREAMS = {
    "torch": lambda: torch.Stream("xla"),
    "torch_index": lambda: torch.Stream(device="xla:0"),
    "torch.xla": lambda: torch.xla.Stream(),
    "torch.xla_device": lambda: torch.xla.Stream(device="xla:0", priority=-1),
    "current": lambda: torch.xla.current_stream(),
    "current_device": lambda: torch.xla.current_stream("xla:0"),
    "default": lambda: torch.xla.default_stream(0),
}


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_streams_wait_for_what_was_recorded(make):
    stream = make()
    assert isinstance(stream, torch.Stream)
    assert stream.device == torch.device("xla:0")
    assert stream == torch.xla.current_stream()
    before = runs()
    x = work()
    stream.synchronize()
    assert runs() == before + 1  # launched by it
    assert stream.query()
    assert x[0, 0].item() == 1
    event = stream.record_event()
    stream.wait_event(event)
    stream.wait_stream(torch.Stream("xla"))
    assert event.device.type == "xla"


def test_a_stream_that_is_asked_launches():
    stream = torch.xla.Stream()
    before = runs()
    _keep = work()
    while not stream.query():
        pass
    assert runs() == before + 1


EVENTS = {
    "torch": lambda **k: torch.Event("xla", **k),
    "torch.xla": lambda **k: torch.xla.Event(**k),
}


@pytest.mark.parametrize("make", EVENTS.values(), ids=EVENTS)
def test_events_are_points_in_the_work(make):
    start, end = make(enable_timing=True), make(enable_timing=True)
    assert isinstance(start, torch.Event)
    assert start.query()  # of no work
    start.synchronize()
    before = runs()
    start.record()
    x = work()
    end.record()
    assert runs() == before + 1  # the work between is launched, so that it can be waited for
    end.synchronize()
    assert start.query() and end.query()
    assert start.elapsed_time(end) >= 0 >= end.elapsed_time(start)
    assert x.sum().item() == 300 * 300
    end.wait()
    end.wait(torch.xla.current_stream())
    start.record(torch.xla.current_stream())  # again
    start.synchronize()
    assert end.elapsed_time(start) >= 0


def test_events_without_a_time_launch_when_they_are_asked():
    before = runs()
    _keep = work()
    event = torch.xla.Stream().record_event()
    torch.xla.current_stream().wait_event(event)
    torch.xla.current_stream().wait_stream(torch.xla.Stream())
    assert runs() == before  # such order streams, of which a device has one
    event.synchronize()
    assert event.query() and runs() == before + 1


def test_time_passes_between_events_with_work():
    start, end = (torch.xla.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    y = work().sum()
    end.record()
    y.item()
    end.synchronize()
    assert start.elapsed_time(end) > 0


def test_errors_are_those_of_pytorch():
    with pytest.raises(ValueError, match="enable_timing=True"):
        torch.xla.Event().elapsed_time(torch.xla.Event())
    timed = torch.xla.Event(enable_timing=True)
    with pytest.raises(ValueError, match="must be recorded"):
        timed.elapsed_time(torch.xla.Event(enable_timing=True))


def test_blocks_on_a_stream_compute_the_same():
    stream = torch.Stream("xla")
    with stream:
        a = work() + 1
    with torch.xla.stream(stream):
        b = work() + 1
    with torch.xla.stream(None):
        pass
    torch.xla.set_stream(stream)
    stream.wait_stream(torch.xla.current_stream())
    assert torch.equal(a, b)
    a.record_stream(stream)
    assert torch.equal(a, b)


def test_a_stream_names_the_device(run_python):
    run_python(
        """
        import torch, torch_xla
        other = torch.xla.Stream("xla:2")
        assert other.device.index == 2 and other != torch.xla.current_stream()
        with torch.xla.stream(other):
            assert torch.xla.current_device() == 2
            assert torch.ones(2, device="xla").device.index == 2
            assert torch.xla.current_stream() == other
        assert torch.xla.current_device() == 0
        event = other.record_event()
        event.synchronize()
        """,
        env={"CPU_NUM_DEVICES": "4"},
    )


def test_nothing_of_it_needs_a_client(run_python):
    run_python(
        """
        import torch, torch_xla
        s = torch.Stream("xla:0")
        e = torch.Event("xla")
        e.record(s); e.synchronize(); s.synchronize(); s.query(); e.query()
        assert not torch_xla._XLAC._xla_is_initialized()
        """
    )
