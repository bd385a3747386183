"""Trains the models of the zoo and writes docs/models.md.

`python -m tests.models --only NAME ...` writes the rows of these.
"""

from __future__ import annotations

import argparse
import gc
import re
import sys
import time
from pathlib import Path

import torch_xla.runtime as xr

from .conftest import repair_torchvision
from .training import RTOL, STEPS, Case, Graphs, Result, check, check_compiled
from .zoo_transformers import CASES as TRANSFORMERS
from .zoo_vision import CASES as VISION

TABLE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
HEAD = f"""# Models

Architectures of `transformers`, `torchvision` and `timm`, with random weights and small sizes, as
their libraries build them: nothing in them knows `xla`. Each is trained for {STEPS} steps of AdamW
on the CPU and on `xla` (the CPU plugin). Outputs and gradients of the first step and the losses of
three agree within {RTOL:g} of the largest value; after the second step nothing is compiled; nothing
runs on the host. A model that reads a value in each step (a mask that is looked at, say) waits for
it. `PYTHONPATH=build/vision python -m tests.models` writes this table, `tests/models` and
`make test-all` (`make part-models`) check it.

Batch normalizations over few values and deep stacks of ReLU make much of little: where any two
orders of summation differ by more than the tolerance in float32, the model is compared in float64.

`generate()` gives the CPU's tokens with greedy and beam search and with a static cache
(`tests/models/test_generate.py`). Samples come from the seed, but are others than the CPU's. The
first call compiles a program for each length, since `transformers` appends each token to a longer
tensor; later calls compile nothing.

As a function of `torch.compile(backend="openxla")` each trains as with `backend="eager"` on the
CPU, within the same tolerance. The last column counts the graphs that torch._dynamo found, and in
brackets where it broke them, to read a value, say: no more often than there.
"""


CASES = [*TRANSFORMERS, *VISION]


def row(case: Case, result: Result, graphs: Graphs) -> str:
    breaks = f" ({graphs.breaks})" if graphs.breaks else ""
    return (
        f"| {case.name} | {case.family} | {result.parameters:,} "
        f"| {str(case.dtype).removeprefix('torch.')} | {result.difference:.0e} "
        f"| {result.compiles} | {'yes' if result.reads else ''} | {graphs.count}{breaks} |"
    )


def rows_of_the_table() -> dict[str, str]:
    """The rows by their model's name, in order."""
    text = TABLE.read_text() if TABLE.exists() else ""
    lines = [line for line in text.splitlines() if re.match(r"\| [^|]+ \| [a-z]", line)]
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines}


def table(rows: dict[str, str]) -> str:
    listed = [rows[case.name] for case in CASES if case.name in rows]
    titles = "| Model | Family | Parameters | dtype | Gradients differ by | Programs | Reads "
    titles += "| Graphs |"
    rule = "| --- | --- | ---: | --- | ---: | ---: | --- | --- |"
    return "\n".join([HEAD, f"{len(listed)} models.\n", titles, rule, *listed]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME")
    only = parser.parse_args().only
    repair_torchvision()
    failed = 0
    for case in CASES:
        if only and case.name not in only:
            continue
        start = time.perf_counter()
        xr.clear_computation_cache()  # programs of one model are of no use to the next
        gc.collect()
        try:
            result, graphs = check(case), check_compiled(case)
            TABLE.write_text(table({**rows_of_the_table(), case.name: row(case, result, graphs)}))
            outcome = f"{result}, {graphs}"
        except Exception as e:
            failed += 1
            outcome = f"{type(e).__name__}: {e}"
        print(f"{case.name} ({time.perf_counter() - start:.1f} s): {outcome}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
