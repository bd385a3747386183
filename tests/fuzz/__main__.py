"""Draws programs and compares their runs: `python -m tests.fuzz --programs 1000 --jobs 2`."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import select
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import torch_xla  # once, for all processes
from tests.fuzz import known, plant, splits
from tests.fuzz import program as runs
from tests.fuzz.compare import Difference
from tests.fuzz.draw import draw
from tests.fuzz.judge import Child, examine, examine_apart
from tests.fuzz.program import Program, run, script, text
from tests.fuzz.reduce import reduce

MODES = {
    "plain": {},
    "no-donation": {"XLA_NO_DONATION": "1"},
    # No program can be had in the background: what was put off is recorded again.
    "refused": {},
    "check-key": {"XLA_CHECK_GRAPH_KEY": "1"},
    "spmd": {"CPU_NUM_DEVICES": "4", "XLA_USE_SPMD": "1"},
    "sharded": {"CPU_NUM_DEVICES": "4", "XLA_USE_SPMD": "1"},
    "planned": {"CPU_NUM_DEVICES": "4", "XLA_USE_SPMD": "1"},
    "eager": {"XLA_USE_EAGER_DEBUG_MODE": "1"},
    # Recording is the same, and programs compile in a quarter of the time, by another way.
    "quick-compiler": {
        "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    },
}
MODES["pieces"] = MODES["quick-compiler"]  # most programs do the same three times
# Parts of the program are functions of torch.compile.
MODES["compiled"] = MODES["quick-compiler"]
# Programs that one process runs: later ones meet the memos and compiled programs of earlier ones.
IN_ONE_PROCESS = 100


@dataclass
class Finding:
    seeds: list[int]  # the last one differs; the others ran before it
    difference: Difference
    programs: list[Program] = field(default_factory=list)

    def signature(self) -> tuple:
        """The same for what is likely the same fault: what differs, and the calls that are left."""
        calls = {c for p in self.programs for s in p for c in re.findall(r"(\w+)\(", s.line)}
        calls -= {"full", "ones", "zeros", "tensor", "arange", "randn", "Generator", "manual_seed"}
        return self.difference.what, *sorted(calls)


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--mode", choices=MODES, default="plain")
    parser.add_argument("--minutes", type=float, help="end after this time, programs left or not")
    parser.add_argument("--findings", type=int, default=20, help="end after this many")
    parser.add_argument("--reduce", type=float, default=600, help="seconds for each; 0: as drawn")
    parser.add_argument("--print", action="store_true", help="print the programs, run nothing")
    parser.add_argument("--plant", choices=plant.FAULTS, help="a fault that must be found")
    return parser.parse_args(arguments)


def program_of(seed: int, mode: str) -> Program:
    program = draw(seed, known.refuse, mode)
    if mode != "pieces":
        return program
    half = len(program) // 2
    if any(step.kind == "in-place view" for step in program[half:]):
        return program  # done again, indices would be those of another shape
    return program[:half] + 3 * program[half:]


class Search:
    def __init__(self, o: argparse.Namespace):
        self.o = o
        self.started = time.monotonic()
        self.left = list(range(o.seed, o.seed + o.programs))
        self.kinds: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.done = 0
        self.findings: list[Finding] = []

    def prepare(self) -> None:
        """In each process that runs programs."""
        os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""  # programs are met once
        os.environ.update(MODES[self.o.mode])
        torch.set_num_threads(1)
        torch_xla._XLAC._xla_set_check_donation(True, poison=True)
        # Views are cut on the host in the modes of users, and lowered in the others.
        lowered = self.o.mode not in ("plain", "quick-compiler", "spmd", "pieces", "compiled")
        torch_xla._XLAC._xla_set_reads_views_by_programs(lowered)
        if self.o.mode == "refused":
            torch_xla._XLAC._xla_set_background("refuse")
        if self.o.mode == "pieces":
            torch_xla._XLAC._xla_set_piece_limits(1, 2, 1, 1)
        if self.o.mode == "sharded":
            runs.between_steps = splits.splitter
        if self.o.mode == "planned":
            torch_xla._XLAC._set_split_planner(splits.plan)
        if self.o.plant:
            plant.FAULTS[self.o.plant]()

    def work(self, seeds: list[int]) -> Iterator[Any]:
        self.prepare()
        for seed in seeds:
            yield seed, None, None
            program = program_of(seed, self.o.mode)
            yield seed, [s.kind for s in program], examine(program)

    def over(self) -> bool:
        minutes = self.o.minutes
        late = minutes is not None and time.monotonic() - self.started > 60 * minutes
        return late or len(self.findings) >= self.o.findings

    def run(self) -> None:
        running: dict[Child, list[int]] = {}
        started: dict[Child, list[int]] = {}
        while (self.left or running) and not self.over():
            while self.left and len(running) < self.o.jobs:
                seeds, self.left = self.left[:IN_ONE_PROCESS], self.left[IN_ONE_PROCESS:]
                child = Child(lambda seeds=seeds: self.work(seeds))
                running[child], started[child] = seeds, []
            ready, _, _ = select.select(list(running), [], [], 5.0)
            for child in list(running):
                if child in ready or child.silent():
                    if not self._hear(child, running[child], started[child], child in ready):
                        del running[child], started[child]
        for child in running:
            child.stop()

    def _hear(self, child: Child, seeds: list[int], begun: list[int], ready: bool) -> bool:
        """One result of a process; False when it has ended."""
        try:
            if not ready:
                raise EOFError
            seed, kinds, found = child.next()
        except EOFError:
            ended = child.end()
            if ended:
                self._found(Finding(list(begun), Difference(ended, None, "")))
                self.left = [s for s in seeds if s not in begun] + self.left
            return False
        if kinds is None:
            begun.append(seed)
            return True
        self.done += 1
        self.kinds.update(kinds)
        if found is not None:
            self._found(Finding(list(begun), found))
        return True

    def _found(self, finding: Finding) -> None:
        self.findings.append(finding)
        what, detail = finding.difference.what, finding.difference.detail
        print(f"seed {finding.seeds[-1]}: {what}: {detail[:400]}", flush=True)

    def reduce(self, finding: Finding) -> None:
        programs = self._programs(finding.seeds)

        def fails(candidate):
            return examine_apart(candidate, self.prepare)

        last = programs[-1:]
        finding.programs = last
        if not self.o.reduce:
            return
        if fails(last) is None:
            last = programs
            if fails(last) is None:
                finding.difference = Difference(
                    finding.difference.what, None, "only once: not again in a process of its own"
                )
                return
        finding.programs, finding.difference = reduce(last, fails, self.o.reduce)

    def _programs(self, seeds: list[int]) -> list[Program]:
        """Drawn in a child: nothing may run in this process, whose memory the others copy."""

        def work() -> Iterator[Any]:
            torch.set_num_threads(1)
            yield [program_of(seed, self.o.mode) for seed in seeds]

        return self._apart(work)

    def _apart(self, work: Callable[[], Iterator[Any]]) -> Any:
        child = Child(work)
        result = child.next()
        child.end()
        return result

    def _script(self, finding: Finding) -> str:
        def work() -> Iterator[Any]:
            traces = [run(program, "cpu") for program in finding.programs]
            pairs = zip(sum(finding.programs, ()), sum((t.steps for t in traces), []), strict=True)
            yield {step.line for step, seen in pairs if seen.error}

        guarded = self._apart(work)
        at = finding.difference.step
        if at is not None:
            guarded.add(finding.programs[-1][at].line)
        return script(finding.programs, guarded)

    def report(self) -> None:
        minutes = (time.monotonic() - self.started) / 60
        for finding in self.findings[: self.o.findings]:
            self.reduce(finding)
        distinct: dict[tuple, list[Finding]] = {}
        for finding in self.findings:
            distinct.setdefault(finding.signature(), []).append(finding)
        for (what, *_), alike in distinct.items():
            best = min(alike, key=lambda f: sum(len(p) for p in f.programs))
            seeds = ", ".join(str(f.seeds[-1]) for f in alike)
            print(f"\n=== {what} (seeds {seeds})\n{best.difference.detail}")
            print(f"\n{self._script(best)}")
        counts = ", ".join(f"{kind} {n}" for kind, n in self.kinds.most_common())
        print(f"steps: {counts}")
        rate = f"{self.done / max(minutes, 1e-9):.0f} a minute"
        end = f"{len(distinct)} distinct failures, mode {self.o.mode}"
        print(f"{self.done} programs ({rate}), {end}")


def main() -> int:
    o = options(sys.argv[1:])
    if o.print:
        for seed in range(o.seed, o.seed + o.programs):
            print(f"--- seed {seed}\n{text(program_of(seed, o.mode))}")
        return 0
    torch.ones(2, device="meta").cumsum(0)  # imports half of PyTorch, once for all processes
    if o.mode == "compiled":
        importlib.import_module("torch._dynamo.backends.debugging")
    search = Search(o)
    search.run()
    search.report()
    return 1 if search.findings else 0


if __name__ == "__main__":
    sys.exit(main())
