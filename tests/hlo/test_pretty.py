"""The text that people read is what MLIR's own printer writes, of every pinned program."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.hlo import golden
from torch_xla import _XLAC
from torch_xla._src import mlir

pytestmark = pytest.mark.skipif(not mlir.is_installed(), reason="needs jaxlib")


def modules(step: int) -> Iterator[str]:
    """The pinned programs in the generic form, of every `step`-th case."""
    for text in golden.lower(itertools.islice(golden.cases(), 0, None, step)).texts.values():
        for module in text.split("module @")[1:]:
            yield "module @" + module.partition("// TPU\n")[0]


def check(step: int) -> int:
    count = 0
    with mlir._mlir() as m:
        for generic in modules(step):
            pretty = _XLAC._pretty_stablehlo(generic)
            # A main function is public by default.
            printed = str(m.ir.Module.parse(generic)).replace("func.func public", "func.func")
            assert pretty == printed, generic
            assert str(m.ir.Module.parse(pretty)) == pretty
            count += 1
    return count


def test_mlir_prints_programs_alike():
    assert check(step=20) > 300


@pytest.mark.slow
def test_mlir_prints_all_programs_alike():
    assert check(step=1) > 7000
