"""What a graph is compiled to: its hash, and the operations that the compiler makes one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import torch_xla
from torch_xla import _XLAC


def graph_hash(function, *shape: int) -> bytes:
    x = torch.ones(shape, device="xla")
    return _XLAC._get_graph_hash([function(x)])


def test_the_graph_hash_is_that_of_the_computation():
    of_two = graph_hash(lambda x: torch.erf(x * 2), 3, 4)
    assert of_two == graph_hash(lambda x: torch.erf(x * 2), 3, 4)
    assert of_two == graph_hash(lambda x: torch.erf(x * 5), 3, 4)  # numbers are inputs
    others = [
        graph_hash(lambda x: torch.erf(x + 2), 3, 4),
        graph_hash(lambda x: torch.erf(x * 2), 4, 3),
        graph_hash(lambda x: torch.erf(x * 2).t(), 3, 4),
        graph_hash(lambda x: torch.erf(x.double() * 2), 3, 4),
        graph_hash(lambda x: x.sum(0, keepdim=True), 3, 4),
        graph_hash(lambda x: x.sum(1, keepdim=True), 3, 4),
    ]
    assert len({of_two, *others}) == 1 + len(others)


CHAIN = """
import torch, torch_xla
x = torch.ones(1000, device="xla")
torch_xla.sync()
y = ((x * 3 + 1) / 7 - x).abs()
torch_xla.sync(wait=True)
"""


def test_xla_flags_dump_a_chain_as_one_fusion(run_python, tmp_path: Path):
    run_python(CHAIN, env={"XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"})
    before = [p.read_text() for p in tmp_path.glob("*before_optimizations.txt")]
    after = [p.read_text() for p in tmp_path.glob("*after_optimizations.txt")]
    before = [text for text in before if " divide(" in text]
    after = [text for text in after if " divide(" in text]
    assert len(before) == len(after) == 1
    assert " fusion(" not in before[0]
    entry = after[0][after[0].index("ENTRY ") :]
    assert entry.count(" fusion(") == 1 and " divide(" not in entry


def test_complex_numbers_on_a_tpu_have_parts_of_float32():
    """libtpu aborts at complex128."""
    x = torch.randn(3, device="xla")
    z = torch.randn(3, dtype=torch.complex64, device="xla")
    torch_xla.sync()
    results = [x * 2j, torch.add(z, z, alpha=2j), z == 1j, torch.where(x > 0, z, 1j), z ** (1 + 2j)]
    assert "complex<f64>" not in _XLAC._get_stablehlo(results, platform="TPU")
    assert "complex<f64>" in _XLAC._get_stablehlo(results)  # exact elsewhere


# Linux refuses a process more maps of its memory, and compiled code takes some.
MANY_MAPS = """
import mmap, torch, torch_xla
import torch_xla.debug.metrics as met

def run(n):
    x = torch.full((n,), 2.0, device="xla") * n
    assert x.tolist() == [2.0 * n] * n
    return met.counter_value("UncachedCompile")

def maps():
    with open("/proc/self/maps") as file:
        return sum(1 for _ in file)

with open("/proc/sys/vm/max_map_count") as file:
    limit = int(file.read())
held = []
while maps() < limit * 3 // 4:  # pages with other rights than their neighbours'
    held += [mmap.mmap(-1, mmap.PAGESIZE, prot=1 + i % 2 * 2) for i in range(4000)]
programs = [run(1), run(2), run(2), run(1)]
print(*(after - before for before, after in zip(programs, programs[1:])))
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux tells its maps")
def test_programs_are_dropped_before_the_limit_of_memory_maps(run_python):
    run = run_python(MANY_MAPS)
    assert run.stdout.split() == ["1", "0", "1"], run.stderr
