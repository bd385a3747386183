"""Why programs were compiled again, and which lines waited for values.

The extension takes the notes, always; `XLA_EXPLAIN=0` keeps them to itself.
"""

from __future__ import annotations

import dataclasses
import sys
import time

from torch_xla import _XLAC

# A run of which less than this was spent waiting, or a line that waited less often, is not worth
# a word: that is what it takes to print a result.
_SHARE = 0.05
_SECONDS = 1.0
_TIMES = 5
_STEPS = 0.1
_start = time.monotonic()


@dataclasses.dataclass(frozen=True)
class Recompile:
    """A line of the program needed another compiled program than those that it had.

    Attributes:
        number: Of the program among those of its line: the first recompile is 2.
        name: What asked for it: "sync", "read", "torch.compile" for its graphs that run at once, or
            the name of a function of `torch_xla.compile`.
        place: The line that asked, "train.py:31 (train)".
        seconds: That the compiler took; 0 where it was not asked.
        from_disk: Whether it came from the disk cache, so that nothing was compiled.
        key, earlier_key: Of the program and of the nearest of those before it, as
            `PT_XLA_DEBUG_LEVEL` prints them ("Graph Hash").
        kind: What differs: "shape", "dtype", "attribute", "calls", "inputs", "results", "memory",
            "sharding" or "settings".
        what: The first difference in words.
        line, earlier_line: Where the program has recorded the calls that differ; "" where one of
            the two has no such call.
        advice: What to do about it.
    """

    number: int
    name: str
    place: str
    seconds: float
    from_disk: bool
    key: str
    earlier_key: str
    kind: str
    what: str
    line: str
    earlier_line: str
    advice: str
    text: str = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class Wait:
    """A line of the program waited for the device.

    Attributes:
        place: The line, "train.py:31 (train)"; "" where no line is known.
        why: What it waited for: "a number that Python reads", "a copy to the CPU", or the operator
            that ran on the host.
        count: How often.
        seconds: How long in all. What the compiler took meanwhile is not in it.
    """

    place: str
    why: str
    count: int
    seconds: float


def ran_on_host(why: str) -> bool:
    """True if what a line waited for is an operator."""
    return "::" in why


def recompiles(clear: bool = False) -> list[Recompile]:
    """The recompiles of this process, oldest first; of more than 1,000 the newest.

    A line that asks for a program, with `torch_xla.sync()`, by reading a value or by calling a
    compiled function, gets the one that it had if the recorded calls are the same. Each other one
    is compared with the nearest of those before it.

    Args:
        clear: Whether to forget them.

    Example:
        >>> for r in torch_xla.debug.recompiles():
        ...     print(r)
    """
    return [Recompile(**r) for r in _XLAC._xla_recompiles(clear)]


def waits(clear: bool = False) -> list[Wait]:
    """The lines that waited for the device, the longest first.

    Args:
        clear: Whether to begin anew.
    """
    return [Wait(**w) for w in _XLAC._xla_waits(clear)]


def wait_report(most: int = 10) -> str:
    """Which lines waited for the device, and what part of the process's time that is.

    Args:
        most: How many lines it has at most.
    """
    return _report(waits(), most)


def seconds_of_run() -> float:
    """Since the package was imported."""
    return time.monotonic() - _start


def _report(all_waits: list[Wait], most: int = 10) -> str:
    total = sum(w.seconds for w in all_waits)
    run = seconds_of_run()
    lines = [
        f"torch_xla: this program waited {total:.2f} s for values, {total / run:.0%} of its "
        f"{run:.2f} s:"
    ]
    for w in all_waits[:most]:
        each = w.seconds / w.count * 1e3
        lines.append(
            f"  {w.seconds:8.2f} s  {w.count} times {each:.2f} ms  {w.place or 'no line'}: {w.why}"
        )
    if len(all_waits) > most:
        lines.append(f"  and {len(all_waits) - most} other lines")
    return "\n".join(lines)


def report_at_exit() -> None:
    """Prints that report where a part of the run that is worth it was spent so, in a loop."""
    if not _XLAC._xla_flag("XLA_EXPLAIN"):
        return
    # A line that reads a result now and then waits for the steps since, and costs nothing.
    fewest = max(_TIMES, (_XLAC._xla_counter_value("MarkStep") or 0) * _STEPS)
    often = [w for w in waits() if w.count >= fewest]
    total = sum(w.seconds for w in often)
    if often and total >= _SECONDS and total >= _SHARE * seconds_of_run():
        print(
            _report(often) + "\nRead values less often, or after the barrier (torch_xla.sync()). "
            "torch_xla.debug.waits() has them all; XLA_EXPLAIN=0 prints nothing.",
            file=sys.stderr,
        )
