"""The text that people read is what MLIR's own printer writes, of every pinned program."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from tests.hlo import golden
from torch_xla import _XLAC
from torch_xla._src.builder import foreign_computation
from torch_xla._src.export import mlir
from torch_xla.experimental.unbounded_dynamism_export import wrap_func_as_nn_module
from torch_xla.stablehlo import exported_program_to_stablehlo

pytestmark = pytest.mark.skipif(not mlir.is_installed(), reason="needs jaxlib")


def modules(step: int) -> Iterator[str]:
    """The pinned programs in the generic form, of every `step`-th case."""
    for text in golden.lower(itertools.islice(golden.cases(), 0, None, step)).texts.values():
        for module in text.split("module @")[1:]:
            yield "module @" + module.partition("// TPU\n")[0]


def again(text: str) -> str:
    with mlir._mlir() as m:
        return str(m.ir.Module.parse(text))


def test_mlir_prints_programs_of_dynamic_sizes_alike():
    rows = torch.export.Dim("rows", min=4)
    x = torch.randn(5, 4)
    model = wrap_func_as_nn_module(lambda x: (torch.softmax(x @ x.T, -1).mean(0), x[1:-1] * 2))
    ep = torch.export.export(model, (x,), dynamic_shapes=(({0: rows},),))
    text = exported_program_to_stablehlo(ep).get_stablehlo_text()
    assert "(%arg0: tensor<?x4xf32>)" in text and "stablehlo.dynamic_broadcast_in_dim %" in text
    assert again(text) == text


def test_mlir_prints_functions_from_elsewhere_alike():
    module = """module {
      func.func @main(%a: tensor<3xf32>) -> tensor<3xf32> {
        %0 = func.call @twice(%a) {no_inline} : (tensor<3xf32>) -> tensor<3xf32>
        return %0 : tensor<3xf32>
      }
      func.func @twice(%a: tensor<3xf32>) -> tensor<3xf32> {
        %0 = stablehlo.add %a, %a : tensor<3xf32>
        return %0 : tensor<3xf32>
      }
    }"""
    x = torch.randn(3)
    twice = foreign_computation.from_stablehlo("twice", module)
    (y,) = _XLAC._xla_user_computation("xla::twice", [x.to("xla")], twice)
    text = _XLAC._get_portable_stablehlo([y])
    assert "stablehlo.add %arg0, %arg0" in text and again(text) == text
    torch.testing.assert_close(y.cpu(), x * 2)


def check(step: int) -> int:
    count = 0
    with mlir._mlir() as m:
        for generic in modules(step):
            pretty = _XLAC._pretty_stablehlo(generic)
            # A main function is public by default.
            printed = str(m.ir.Module.parse(generic)).replace("func.func public", "func.func")
            assert pretty == printed, generic
            assert str(m.ir.Module.parse(pretty)) == pretty
            folded = _XLAC._pretty_stablehlo(generic, True)
            assert str(m.ir.Module.parse(folded)) == folded
            count += 1
    return count


def test_mlir_prints_programs_alike():
    assert check(step=20) > 300


@pytest.mark.slow
def test_mlir_prints_all_programs_alike():
    assert check(step=1) > 7000
