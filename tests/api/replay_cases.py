"""Functions that torch_xla.compile may replay, each with what to do and to compare at its calls.

A case is run compiled and plainly, with the same changes between calls, and must give the same:
a call whose effect or input is not seen must not be replayed.
"""

from __future__ import annotations

import random

import torch

import torch_xla
import torch_xla.debug.metrics as met

CALLS = 8
LATER = (4, 6)  # calls before which something changes


def batch(i):
    return (torch.arange(1.0, 5.0) * (i + 1)).to("xla")


class Plain:
    pass


def plain(value):
    """A result with lists of numbers in the place of tensors."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().tolist()
    if isinstance(value, list | tuple):
        return type(value)(plain(v) for v in value)
    return value


def changing(function, change):
    """The function's results, with changes before some calls."""

    def drive(step, i):
        if i in LATER:
            change(i)
        return step(batch(i))

    return function, drive


def leaving(function, effect):
    """The function's results, and what it has left."""
    return function, lambda step, i: (step(batch(i)), effect())


def refused(step, i):
    """For what differs from call to call: what there is to compare is that no call is replayed."""
    before = replays()
    step(batch(i))
    return replays() - before


def compare(make):
    """Runs a case, which is a function and what to do at each call, and compares."""
    found = []
    for replay in (False, True):
        random.seed(0)
        torch.manual_seed(0)
        function, drive = make()
        step = torch_xla.compile(function, replay=replay)
        found.append([plain(drive(step, i)) for i in range(CALLS)])
    assert found[0] == found[1]


def replays():
    return met.counter_value("ReplayedCalls") or 0
