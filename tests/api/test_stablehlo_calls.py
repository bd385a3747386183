"""What a model says to another compiler: composites, custom calls and locations.

Units: executor/program/marked_calls.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla.core.xla_model as xm
from torch_xla import _XLAC
from torch_xla._src.export import mlir
from torch_xla.experimental import xla_marker
from torch_xla.experimental.mark_pattern_utils import StableHLOCompositeBuilder
from torch_xla.experimental.stablehlo_custom_call import (
    extract_custom_call_outputs_shape_dtype,
    place_to_device,
    place_to_host,
    stablehlo_custom_call,
)
from torch_xla.experimental.xla_mlir_debuginfo import write_mlir_debuginfo
from torch_xla.stablehlo import StableHLOExportOptions
from torch_xla.tf_saved_model_integration import save_torch_module_as_tf_saved_model
from torch_xla.utils import stablehlo_test_utils

from .exported_models import exported


class Attention(nn.Module):
    def __init__(self, attr: dict[str, Any]) -> None:
        super().__init__()
        self.attr = attr
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> Any:
        builder = StableHLOCompositeBuilder("my.attention", self.attr)
        q, k = builder.mark_inputs(q + 1, k)
        scores = (q @ self.weight @ k.T * 0.25).softmax(-1)
        scores, total = builder.mark_outputs(scores, scores.sum() + torch.ones(2))
        return scores * 2, total


def lines_with(text: str, part: str) -> list[str]:
    return [line for line in text.splitlines() if part in line]


def test_a_composite():
    torch.manual_seed(0)
    attr = {"scale": 0.25, "axis": 1, "mode": "exact", "causal": False, "sizes": [1, 2]}
    model = Attention(attr)
    q, k = torch.randn(3, 4), torch.randn(5, 4)
    program = exported(model, (q, k))
    text = program.get_stablehlo_text()
    (composite,) = lines_with(text, "stablehlo.composite")
    assert (
        'composite "my.attention" %' in composite
        and "decomposition = @my.attention.impl}" in composite
    )
    assert "(tensor<3x4xf32>, tensor<5x4xf32>, tensor<4x4xf32>)" in composite
    assert "-> (tensor<3x5xf32>, tensor<2xf32>)" in composite
    for part in ("scale = 2.500000e-01 : f32", "axis = 1 : i64", 'mode = "exact"'):
        assert part in composite
    assert "causal = false" in composite and "dense<[1, 2]> : tensor<2xi64>" in composite
    function = text[text.index("func.func private @my.attention.impl") :].split("func.func")[1]
    assert function.count("dot_general") == 2
    main = text[text.index("func.func @main") :]
    assert "dot_general" not in main
    torch.testing.assert_close(program(q, k), model(q, k))
    assert "stablehlo.composite" in mlir.text_of(program.get_stablehlo_bytecode())
    assert exported(model, (q, k)).get_stablehlo_text() == text  # the same at each export


def test_composites_one_after_the_other():
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i in range(3):
                builder = StableHLOCompositeBuilder(f"my.step{i}")
                x = builder.mark_outputs(builder.mark_inputs(x).sin() + i)
            return x

    x = torch.randn(3)
    program = exported(Model(), (x,))
    assert len(lines_with(program.get_stablehlo_text(), "stablehlo.composite")) == 3
    torch.testing.assert_close(program(x), Model()(x))


def test_a_composite_in_a_composite_is_a_part_of_it():
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outer, inner = StableHLOCompositeBuilder("my.outer"), StableHLOCompositeBuilder("my.in")
            y = inner.mark_outputs(inner.mark_inputs(outer.mark_inputs(x).sin()).cos())
            return outer.mark_outputs(y + 1)

    x = torch.randn(3)
    program = exported(Model(), (x,))
    (composite,) = lines_with(program.get_stablehlo_text(), "stablehlo.composite")
    assert "my.outer" in composite
    torch.testing.assert_close(program(x), Model()(x))


def test_inputs_that_need_outputs_are_refused():
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            builder = StableHLOCompositeBuilder("my.loop")
            y = builder.mark_outputs(builder.mark_inputs(x).sin())
            z = xla_marker.mark_tensor(y * 2, "my.loop", 1, builder.id, True)
            return xla_marker.mark_tensor(z + 1, "my.loop", 1, builder.id, False)

    with pytest.raises(ValueError, match="my.loop: expected inputs that do not need its outputs"):
        exported(Model(), (torch.randn(3),))


def test_marks_leave_values_and_gradients():
    for device in ("cpu", "xla"):
        x = torch.randn(3, device=device, requires_grad=True)
        builder = StableHLOCompositeBuilder("my.sin")
        y = builder.mark_outputs(builder.mark_inputs(x).sin())
        y.sum().backward()
        torch.testing.assert_close(x.grad.cpu(), x.detach().cpu().cos())
        torch.testing.assert_close(y.detach().cpu(), x.detach().cpu().sin())
    z = builder.mark_outputs(builder.mark_inputs(x.detach()).sin())
    assert xm.get_stablehlo([z]).count("stablehlo.composite") == 1
    assert "composite" not in _XLAC._get_stablehlo([z])  # what this process runs


VALUES = (1 / 3, 123456.789, 16777217.0, 1e-45, 1e39, -0.0, math.inf, -math.inf, math.nan)
TEXTS = ("ünï", "日本", 'a"b\n\t\\', "\x01\x7f", "%0 = <[")


@pytest.mark.skipif(not mlir.is_installed(), reason="needs jaxlib")
def test_attributes_are_the_values_that_were_given():
    """As numbers of 32 bits and as UTF-8, read back by MLIR."""
    attr: dict[str, Any] = {f"f{i}": value for i, value in enumerate(VALUES)}
    attr |= {f"t{i}": text for i, text in enumerate(TEXTS)}
    attr |= {"list": list(VALUES), "ü": 1}
    text = exported(Attention(attr), (torch.randn(3, 4), torch.randn(5, 4))).get_stablehlo_text()
    with mlir._mlir() as m:
        module = m.ir.Module.parse(text)
        assert str(module) == text
        (call,) = [
            operation
            for function in module.body
            for operation in function.regions[0].blocks[0]
            if operation.operation.name == "stablehlo.composite"
        ]
        read = call.attributes["composite_attributes"]
        floats = torch.tensor([m.ir.FloatAttr(read[f"f{i}"]).value for i in range(len(VALUES))])
        expected = torch.tensor(VALUES)
        torch.testing.assert_close(floats, expected, rtol=0, atol=0, equal_nan=True)
        listed = torch.tensor(list(m.ir.DenseFPElementsAttr(read["list"])))
        torch.testing.assert_close(listed, expected, rtol=0, atol=0, equal_nan=True)
        assert [m.ir.StringAttr(read[f"t{i}"]).value for i in range(len(TEXTS))] == list(TEXTS)
        assert m.ir.IntegerAttr(read["ü"]).value == 1


@pytest.mark.parametrize(
    "attr",
    [{"x": None}, {"x": [1, 2.0]}, {1: 2}, [1], {"x": []}, {"x": 2**63}, {"x": [0, -(2**63) - 1]}],
)
def test_attributes_that_have_no_form(attr):
    with pytest.raises(ValueError, match="composite: expected"):
        StableHLOCompositeBuilder("my.op", attr)


def test_attributes_as_text():
    attr = {"a": 1, "b": [1.5, 2.5]}
    text = xla_marker.serialize_composite_attr(attr)
    assert xla_marker.deserialize_composite_attr(text) == attr
    mark = xla_marker.BoundaryMetadata("my.op", 0, "7", True, attr)
    written = json.loads(json.dumps(mark, cls=xla_marker.BoundaryMetadataSerializer))
    assert written["name"] == "my.op" and written["attr"] == attr


def test_a_list_of_bools_as_an_attribute():
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            builder = StableHLOCompositeBuilder("my.op", {"keep": [True, False]})
            return builder.mark_outputs(builder.mark_inputs(x) + 1)

    text = exported(Model(), (torch.ones(2),)).get_stablehlo_text()
    assert "composite_attributes = {keep = dense<[true, false]> : tensor<2xi1>}" in text


def test_names_of_bodies():
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for name in ("my.a", "my.b", "my.a", "my.a"):
                builder = StableHLOCompositeBuilder(name)
                x = builder.mark_outputs(builder.mark_inputs(x).sin())
            return x

    x = torch.randn(3)
    program = exported(Model(), (x,))
    calls = lines_with(program.get_stablehlo_text(), "stablehlo.composite")
    bodies = [re.search(r"{decomposition = @(\S+)}", call)[1] for call in calls]
    assert bodies == ["my.a.impl", "my.b.impl", "my.a.impl_0", "my.a.impl_1"]
    torch.testing.assert_close(program(x), Model()(x))


@pytest.fixture
def operators():
    """Two custom operators without a kernel for xla."""
    with torch.library._scoped_library("my_calls", "FRAGMENT") as library:
        library.define("one(Tensor x, Tensor y) -> Tensor")
        library.define("two(Tensor x) -> (Tensor, Tensor)")
        library.define("scaled(Tensor x, float by) -> Tensor")
        library.impl("one", lambda x, y: torch.empty_like(x), "Meta")
        library.impl("two", lambda x: (torch.empty_like(x), x.new_empty(2)), "Meta")
        library.impl("scaled", lambda x, by: torch.empty_like(x), "Meta")
        library.impl("scaled", lambda x, by: torch.from_numpy(x.numpy() * by), "CPU")
        yield torch.ops.my_calls


def test_operators_that_become_calls_of_their_names(operators):
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            a, b = operators.two(operators.one(x, x + 1))
            return a * 2, b

    options = StableHLOExportOptions(custom_ops_allowed_in_graph={"my_calls"})
    text = exported(Model(), (torch.randn(3),), options).get_stablehlo_text()
    one, two = lines_with(text, "custom_call")
    assert "= stablehlo.custom_call @my_calls.one.default(%arg0, %" in one
    assert ":2 = stablehlo.custom_call @my_calls.two.default(%" in two
    assert "(tensor<3xf32>) -> (tensor<3xf32>, tensor<2xf32>)" in two


def test_operators_that_exist_elsewhere_are_refused(operators):
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return operators.scaled(x, 2.0)

    with pytest.raises(NotImplementedError, match="my_calls.scaled.default: expected an operator"):
        exported(Model(), (torch.randn(3),))
    options = StableHLOExportOptions(custom_ops_allowed_in_graph={"my_calls"})
    with pytest.raises(ValueError, match="my_calls.scaled.default: expected tensors only"):
        exported(Model(), (torch.randn(3),), options)


class Custom(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return stablehlo_custom_call(
            [x, x * 2],
            "my_target",
            [(2,), (3, 4)],
            [torch.float32, torch.int64],
            has_side_effect=True,
            backend_config='a "config"',
            api_version=1,
            frontend_attributes={"key": "value", "text": "日\n本"},
        )


def test_a_custom_call():
    ep = torch.export.export(Custom(), (torch.randn(3),))
    (node,) = (n for n in ep.graph.nodes if "custom_call" in str(n.target))
    shapes, dtypes = extract_custom_call_outputs_shape_dtype(node)
    assert [tuple(s) for s in shapes] == [(2,), (3, 4)]
    assert dtypes == [torch.float32, torch.int64]
    program = exported(Custom(), (torch.randn(3),))
    (call,) = lines_with(program.get_stablehlo_text(), "custom_call")
    assert "= stablehlo.custom_call @my_target(%arg0, %" in call and "api_version" not in call
    assert r'backend_config = "a \22config\22"' in call and "has_side_effect = true" in call
    written = 'text = "\\E6\\97\\A5\\0A\\E6\\9C\\AC"'
    assert f'mhlo.frontend_attributes = {{key = "value", {written}}}' in call
    assert "(tensor<3xf32>, tensor<3xf32>) -> (tensor<2xf32>, tensor<3x4xi64>)" in call
    assert "@my_target" in mlir.text_of(program.get_stablehlo_bytecode())
    x = torch.ones(3, device="xla")
    y = stablehlo_custom_call([x], "one", [(3,)], [torch.float32])
    assert y.shape == (3,) and "one" in xm.get_stablehlo([y])
    with pytest.raises(ValueError, match="expected a dtype for each result"):
        stablehlo_custom_call([x], "one", [(3,)], [])


def test_custom_calls_of_typed_handlers():
    x = torch.ones(3, device="xla")
    y = stablehlo_custom_call(
        [x], "typed", [(3,)], [torch.float32], api_version=4, backend_config='{a = "b"}'
    )
    assert 'backend_config = {a = "b"}' in xm.get_stablehlo([y])


def test_places_of_memory():
    x = torch.ones(3, device="xla", requires_grad=True)
    y = torch.ops.xla.place_to_host(x * 2)
    text = xm.get_stablehlo([y])
    assert "annotate_device_placement" in text and "pinned_host" in text
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert "annotate_device_placement" not in xm.get_stablehlo([grad])  # it stays where it is
    torch.testing.assert_close(grad.cpu(), torch.full((3,), 2.0))
    assert place_to_host(None) is None and place_to_device(None) is None
    text = xm.get_stablehlo([place_to_device(place_to_host(x.detach()))])
    assert '_xla_buffer_placement = "device"' in text and "pinned_host" in text


def test_locations_that_a_model_gives():
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return write_mlir_debuginfo(x @ x, "the product") + 1

    x = torch.randn(3, 3)
    program = exported(Model(), (x,))
    (dot,) = lines_with(program.get_stablehlo_text(), "dot_general")
    assert dot.endswith('loc("the product")')
    assert program.get_stablehlo_text().count("loc(") == 1
    torch.testing.assert_close(program(x), Model()(x))
    options = StableHLOExportOptions(export_node_metadata=True)
    text = exported(Model(), (x,), options).get_stablehlo_text()
    assert text.count('loc("the product")') == 1 and "aten::add" in text


def quantized(x: torch.Tensor) -> torch.Tensor:
    """What torch.ao's and torchao's exported models do around each operator."""
    ops = torch.ops.quantized_decomposed
    scales, zeros = torch.tensor([0.1, 0.2]), torch.tensor([3, 0])
    q = ops.quantize_per_tensor(x, 0.1, 3, -128, 127, torch.int8)
    x = ops.dequantize_per_tensor(q, 0.1, 3, -128, 127, torch.int8)
    q = ops.quantize_per_channel(x, scales, zeros, 1, -127, 127, torch.int8)
    return ops.dequantize_per_channel(q, scales, zeros, 1, -127, 127, torch.int8)


@pytest.mark.parametrize("shapes", [None, ({0: torch.export.Dim("rows")},)])
def test_quantization_is_arithmetic_under_its_name(shapes):
    pytest.importorskip("torch.ao.quantization.fx._decomposed")
    model = stablehlo_test_utils.wrap_func_as_nn_module(quantized)
    x = torch.randn(8, 2)
    program = exported(model, (x,), dynamic_shapes=shapes and (shapes,))
    text = program.get_stablehlo_text()
    calls = lines_with(text, "stablehlo.composite")
    names = [re.search(r'composite "quantized_decomposed\.(\w+)"', call)[1] for call in calls]
    assert names == [
        "quantize_per_tensor",
        "dequantize_per_tensor",
        "quantize_per_channel",
        "dequantize_per_channel",
    ]
    assert "scale = 1.000000e-01 : f32" in calls[0] and "zero_point = 3 : i64" in calls[0]
    assert 'dtype = "int8"' in calls[0] and "x2xi8>" in calls[0]
    torch.testing.assert_close(program(x), model(x))
    if shapes:
        y = torch.randn(5, 2)
        torch.testing.assert_close(program(y), model(y))


def test_composites_of_dynamic_sizes():
    torch.manual_seed(0)
    model = Attention({"scale": 0.25})
    q, k = torch.randn(3, 4), torch.randn(5, 4)
    shapes = ({0: torch.export.Dim("queries")}, {0: torch.export.Dim("keys")})
    program = exported(model, (q, k), dynamic_shapes=shapes)
    (composite,) = lines_with(program.get_stablehlo_text(), "stablehlo.composite")
    assert "-> (tensor<?x?xf32>, tensor<2xf32>)" in composite
    for a, b in ((3, 5), (7, 2)):
        q, k = torch.randn(a, 4), torch.randn(b, 4)
        torch.testing.assert_close(program(q, k), model(q, k))


def test_without_tensorflow(tmp_path):
    if stablehlo_test_utils.has_tf_package():
        pytest.skip("tensorflow is here")
    with pytest.raises(ImportError, match="pip install tensorflow"):
        save_torch_module_as_tf_saved_model(nn.Linear(3, 2), (torch.randn(1, 3),), tmp_path)
    with pytest.raises(ImportError, match="pip install tensorflow"):
        stablehlo_test_utils.load_save_model_and_inference(str(tmp_path), ())


def test_wrapped_functions():
    model = stablehlo_test_utils.wrap_func_as_nn_module(lambda x, y: x + y)
    x = torch.randn(3)
    torch.testing.assert_close(exported(model, (x, x))(x, x), x + x)


@pytest.mark.parametrize("name", ["attention", "my.", ".my", "1.op", "my-own.op", "my.op\n", ""])
def test_composites_have_names_that_readers_take(name):
    class Marked(nn.Module):
        def forward(self, x):
            builder = StableHLOCompositeBuilder(name)
            return builder.mark_outputs(builder.mark_inputs(x) * 2)

    with pytest.raises(ValueError, match='as "my.attention", got'):
        exported(Marked(), (torch.ones(2),))
