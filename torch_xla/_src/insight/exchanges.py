"""Times of a job's exchanges, and the ranks that wait in them for others."""

from __future__ import annotations

import dataclasses
import json

from torch_xla import _XLAC
from torch_xla._src.job import place, rendezvous


@dataclasses.dataclass(frozen=True)
class Exchanged:
    """The exchanges of one line that are alike.

    Attributes:
        exchange: "all_reduce add Float[4]".
        place: The line, "train.py:31 (train)"; "" where no line is known.
        ranks: Those that exchange.
        count: How often they did.
        seconds: How long this process spent so in all, with the time for which it waited for the
            others. Whoever comes last spends the least.
    """

    exchange: str
    place: str
    ranks: tuple[int, ...]
    count: int
    seconds: float


def exchanges(clear: bool = False) -> list[Exchanged]:
    """The exchanges of this process that went through the host, the longest first. What a plugin
    exchanges by itself is in its profile.

    Args:
        clear: Whether to begin anew.
    """
    return [Exchanged(**e) for e in _XLAC._xla_exchanges(clear)]


def exchange_report(most: int = 10) -> str:
    """Which exchanges took long, and what each rank lost there: the seconds that it spent beyond
    those of the rank that spent least, for which the others wait. All ranks of the job call it, and
    each gets the text.

    Args:
        most: How many lines it has at most, those first where ranks lost most.

    Raises:
        RuntimeError: Another rank is at another rendezvous.
    """
    mine = json.dumps([dataclasses.astuple(e) for e in exchanges()]).encode()
    taken: dict[tuple[str, str, tuple[int, ...]], dict[int, tuple[int, float]]] = {}
    for rank, text in enumerate(rendezvous.meet("torch_xla.debug.exchange_report", mine, ())):
        for exchange, line, ranks, count, seconds in json.loads(text):
            taken.setdefault((exchange, line, tuple(ranks)), {})[rank] = count, seconds
    rows = []
    for (exchange, line, ranks), by_rank in taken.items():
        # A line of one rank alone, as of a branch, has nobody to be compared with.
        least = min(by_rank.get(r, (0, 0.0))[1] for r in ranks)
        lost = {r: seconds - least for r, (_, seconds) in sorted(by_rank.items())}
        count = max(count for count, _ in by_rank.values())
        rows.append((sum(lost.values()), count, lost, f"{exchange} at {line or 'no line'}"))
    rows.sort(key=lambda row: row[0], reverse=True)
    lines = [
        f"torch_xla: {place.world_size()} ranks, and what each lost in exchanges while it waited "
        "for a later one:"
    ]
    for _, count, lost, what in rows[:most]:
        each = ", ".join(f"rank {r} {seconds:.2f} s" for r, seconds in lost.items())
        lines.append(f"  {count} times {what}: {each}")
    if len(rows) > most:
        lines.append(f"  and {len(rows) - most} others")
    return "\n".join(lines)
