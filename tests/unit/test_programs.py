"""What a graph is compiled to: its hash, and the operations that the compiler makes one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_xla_flags_dump_a_chain_as_one_fusion(tmp_path: Path):
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    subprocess.run(
        [sys.executable, "-c", CHAIN], env={**os.environ, "XLA_FLAGS": flags}, check=True
    )
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
