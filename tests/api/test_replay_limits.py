"""Objects that a walk of what a function reads must bear, and how many walks are kept."""

from __future__ import annotations

import gc
import threading
import types

import torch

import torch_xla

from .replay_cases import CALLS, Plain, batch, changing, replays


def refusal(function):
    """Why the calls of a function are refused, which must not end the process."""
    step = torch_xla.compile(function, replay=True)
    for i in range(CALLS):
        step(batch(i))
    return step._replays.refusals[0]


def test_names_that_cannot_be_encoded():
    held = {"\udcff": iter([])}
    assert refusal(lambda x: x * len(held)).endswith("(\\udcff)")
    held = {"\udcff": 0}

    def count(x):
        held["\udcff"] += 1
        return x * 2

    assert refusal(count) == "changes \\udcff"
    held = {"k" * 100_000: iter([])}
    assert len(refusal(lambda x: x * len(held))) < 200


nameless = types.ModuleType("nameless")
del nameless.__name__


def test_objects_whose_attributes_raise_are_refused():
    class Meta(type):
        @property
        def __module__(cls):
            raise ValueError("no module")

    class Number(int, metaclass=Meta):
        pass

    number, module_of_a_closure = Number(3), nameless
    assert "Number" in refusal(lambda x: x * number)
    assert "module" in refusal(lambda x: (module_of_a_closure, x * 2)[1])
    nameless.rate = 2
    assert "module" in refusal(lambda x: x * nameless.rate)


def test_objects_that_are_freed_during_a_walk():
    table, things = {}, []

    class Clearing:
        def __del__(self):
            table.clear()
            things.clear()

    function = torch_xla.compile(lambda x: x * (len(table) + len(things)), replay=True)
    threshold = gc.get_threshold()
    try:
        for i in range(60):
            gc.disable()
            table.update({k: [Plain()] for k in range(50)})
            things.extend(Plain() for _ in range(50))
            for thing in things:
                thing.itself = (thing,)
            x = batch(i)
            clearing = Clearing()
            clearing.itself = clearing
            del clearing
            gc.set_threshold(1 + 7 * i, 10**6, 10**6)
            gc.enable()
            function(x)
    finally:
        gc.set_threshold(*threshold)
        gc.enable()


def test_the_stack_of_a_small_thread_is_enough():
    nested = []
    for _ in range(380):
        nested = [nested]
    refusals = []
    previous = threading.stack_size(64 * 1024)
    try:
        thread = threading.Thread(
            target=lambda: refusals.append(refusal(lambda x: (nested, x * 2)[1]))
        )
        thread.start()
        thread.join()
    finally:
        threading.stack_size(previous)
    assert "nested" in refusals[0]


def test_replays_that_never_come_are_dropped():
    step = torch_xla.compile(lambda x, n: x * n, replay=True)
    for i in range(20):
        assert step(torch.ones(2, device="xla"), i + 0.5).tolist() == [i + 0.5] * 2
    assert step._replays._kept == []
    assert set(step._replays.refusals) == {"sees something new at each call"}


def test_what_takes_longer_to_look_at_than_to_run_is_not_replayed():
    data = [float(i) for i in range(300_000)]
    assert "faster" in refusal(lambda x: x * (len(data) > 0))


def test_eight_that_were_used_last_are_kept():
    step = torch_xla.compile(lambda x, n: x * n, replay=True)
    before = replays()
    for i in range(60):
        step(torch.ones(2, device="xla"), i // 5)
    assert len(step._replays._kept) == 8
    assert replays() - before > 40


def test_a_function_that_reads_a_table_is_replayed():
    table = {"k": 1.0}
    function, drive = changing(lambda x: x * table["k"], lambda i: table.update(k=float(i)))
    step = torch_xla.compile(function, replay=True)
    before = replays()
    for i in range(CALLS):
        drive(step, i)
    assert replays() > before
