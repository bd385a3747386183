"""Every entry of PyTorch's operator database in a function of torch.compile(backend="openxla"), in
float32, against the CPU: with static and with dynamic shapes, and its gradients.

One function serves all samples of an entry, as it would a user's calls: a static one is compiled
for each of their shapes, a dynamic one meets shapes that it was not compiled for. `make test` runs
an entry in forty. What differs, and why, is in database_notes.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import _disable_current_modes

from . import database, database_notes
from .database import ENTRIES, Call, Gradients, Run
from .harness import DEVICE

# check -> (gradient, dynamic)
CHECKS = {
    "static": (False, False),
    "dynamic": (False, True),
    "static gradient": (True, False),
}
SAMPLES = 2


class Compiled:
    """An entry's operator as a function of torch.compile."""

    def __init__(self, entry: database.OpInfo, check: str, backend: str) -> None:
        gradient, dynamic = CHECKS[check]

        def call(*args: Any, **kwargs: Any) -> Any:
            if gradient:
                return entry.gradcheck_wrapper(entry.op, *args, **kwargs)
            return entry.op(*args, **kwargs)

        # Dynamo remembers by a function's code and name which sizes have changed.
        call.__code__ = call.__code__.replace(co_name=f"call_{backend}")
        self.plain = call
        self.backend = CompileCounterWithBackend(backend)
        self.breaks = 0
        self._function = torch.compile(call, backend=self.backend, dynamic=dynamic)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = counters["graph_break"].total()
        try:
            return self._function(*args, **kwargs)
        finally:
            self.breaks += counters["graph_break"].total() - before


def runs(
    check: str, entry: database.OpInfo, ours: Compiled, pytorchs: Compiled
) -> Iterator[tuple[str, Run]]:
    """A sample counts where torch.compile(backend="eager") runs it on the CPU."""
    gradient, _ = CHECKS[check]
    for i, sample in enumerate(database.samples(entry, torch.float32, gradient)):

        def run(device: str, wider: bool = False, sample: Any = sample) -> Any:
            try:
                if device != DEVICE and not wider:
                    with _disable_current_modes():
                        Call.of(entry, sample, device).run(pytorchs)
                call = Call.of(entry, sample, device, wider)
                results = call.run(ours if device == DEVICE else ours.plain)
                if not gradient:
                    return database.what_is_compared(entry, results)
                return Gradients().of(sample.output_process_fn_grad(results), call.tensors)
            except Exception as e:
                raise e if device == DEVICE else database.Senseless from e

        yield f"{check}, sample {i}", run


def cases(every: int) -> list[Any]:
    found = []
    for i, (name, entry) in enumerate(ENTRIES.items()):
        for check, (gradient, _) in CHECKS.items():
            kind = "gradient" if gradient else "forward"
            if i % every == 0 and database.applies(entry, torch.float32, kind):
                marks = database_notes.marks_compiled(name, check)
                found.append(pytest.param(name, check, marks=marks, id=f"{name}-{check}"))
    return found


@pytest.fixture(autouse=True)
def _many_graphs():
    with torch._dynamo.config.patch(recompile_limit=64):
        yield
    torch._dynamo.reset()


def compare(name: str, check: str) -> None:
    entry = ENTRIES[name]
    ours, pytorchs = (Compiled(entry, check, backend) for backend in ("openxla", "eager"))
    kind = "gradient" if CHECKS[check][0] else "forward"
    outcome = database.compare_runs(
        (runs(check, entry, ours, pytorchs), SAMPLES),
        values=database.has_values(entry),
        **database_notes.tolerances(name, torch.float32, kind),
    )
    outcome.check()
    assert ours.breaks <= pytorchs.breaks
    assert ours.backend.frame_count or not pytorchs.backend.frame_count


@pytest.mark.parametrize(("name", "check"), cases(every=40))
def test_some_entries(name, check):
    compare(name, check)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "check"), cases(every=1))
def test_all_entries(name, check):
    compare(name, check)
