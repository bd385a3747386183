"""The extension's `_read_program`: programs as data."""

from __future__ import annotations

import pytest
import torch

from torch_xla import _XLAC

LOOP = """module @m {
  sdy.mesh @mesh = <["a"=2, "b"=3], device_ids=[5, 4, 3, 2, 1, 0]>
  func.func public @main(%0: tensor<i64> {sdy.sharding = #x<1>}, %1: tensor<2x3xcomplex<f32>>) -> (tensor<i64>) {
    %2 = "stablehlo.while"(%0) ({
    ^bb0(%3: tensor<i64>):
      %4 = "stablehlo.constant"() {value = dense<7> : tensor<i64>} : () -> tensor<i64>
      %5 = "stablehlo.compare"(%3, %4) {comparison_direction = #stablehlo<comparison_direction LT>} : (tensor<i64>, tensor<i64>) -> tensor<i1>
      "stablehlo.return"(%5) : (tensor<i1>) -> ()
    }, {
    ^bb0(%6: tensor<i64>):
      "stablehlo.return"(%6) : (tensor<i64>) -> ()
    }) : (tensor<i64>) -> tensor<i64> loc("a.py":3:0)
    "func.return"(%2) : (tensor<i64>) -> ()
  }
func.func private @other(%arg0: tensor<f32>) -> tensor<f32> {
  return %arg0 : tensor<f32>
}
}
"""  # noqa: E501


def test_the_parts_of_a_program():
    number = ("i64",)
    program = _XLAC._read_program(LOOP)
    assert program["mesh"] == (("a", "b"), (2, 3), [5, 4, 3, 2, 1, 0])
    assert list(program["functions"]) == ["main"]  # the other is from elsewhere
    arguments, (loop, end) = program["functions"]["main"]
    assert arguments == ((0, (), *number), (1, (2, 3), "complex<f32>"))
    name, operands, results, attributes, (condition, body) = loop
    assert (name, operands, attributes) == ("stablehlo.while", (0,), {})
    assert results == ((2, (), "i64"),) and end == ("func.return", (2,), (), {}, ())
    assert condition[0] == ((3, (), "i64"),) and condition[1][0][3] == {"value": 7}
    assert condition[1][1][3] == {"comparison_direction": "#stablehlo<comparison_direction LT>"}
    assert body == (((6, (), "i64"),), (("stablehlo.return", (6,), (), {}, ()),))


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("dim = 3 : i64, on = true", {"dim": 3, "on": "true"}),
        ("n = -1 : i32, f = dense<1.5> : tensor<f32>", {"n": -1, "f": "dense<1.5> : tensor<f32>"}),
        ("d = array<i64: 0, 2>, none = array<i64>", {"d": (0, 2), "none": ()}),
        (
            "d = #stablehlo.dot<lhs = [0], rhs = [1, 2], n = 4>",
            {"lhs": (0,), "rhs": (1, 2), "n": 4},
        ),
        ('s = #sdy.sharding<@mesh, [{"a"}, {?}]>', {"s": ('{"a"}', "{?}")}),
        ("p = dense<[[0, 1]]> : tensor<1x2xi64>", {"p": "dense<[[0, 1]]> : tensor<1x2xi64>"}),
    ],
)
def test_attributes(text, attributes):
    line = f'    "stablehlo.foo"() {{{text}}} : () -> ()'
    program = f"module @m {{\n  func.func public @main() -> () {{\n{line}\n  }}\n}}\n"
    _, ((name, _, _, found, _),) = _XLAC._read_program(program)["functions"]["main"]
    assert name == "stablehlo.foo" and found == attributes


def test_what_is_recorded():
    x = torch.ones(2, 3, device="xla")
    text = _XLAC._get_stablehlo([x.sum(0)])
    arguments, operations = _XLAC._read_program(text)["functions"]["main"]
    reduce = next(o for o in operations if o[0] == "stablehlo.reduce")
    assert reduce[2][0][1:] == ((3,), "f32") and reduce[3]["dimensions"] == (0,)


def test_what_is_no_program():
    with pytest.raises(RuntimeError, match="stablehlo: expected .* in the generic form of a prog"):
        _XLAC._read_program("module {\n  func.func @main() -> () {\n    %0 = add %1\n  }\n}\n")
