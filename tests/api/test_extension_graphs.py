"""Names of the extension for graphs: leaves, programs by hash, lowering, and when programs run."""

from __future__ import annotations

import json
import threading
import warnings

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla import _XLAC
from torch_xla._src.export import mlir
from torch_xla._src.functions import step
from torch_xla.core.xla_builder import create_placeholder_tensor
from torch_xla.experimental import assume_pure
from torch_xla.experimental.xla_marker import BoundaryMetadata, BoundaryMetadataSerializer

needs_jaxlib = pytest.mark.skipif(not mlir.is_installed(), reason="needs jaxlib")


@pytest.fixture(autouse=True)
def fresh():
    torch_xla.sync(wait=True)


def close(found, expected):
    assert found.device.type == "xla"
    torch.testing.assert_close(found.detach().cpu(), expected, rtol=1e-5, atol=1e-6)


def waits(*tensors):
    return _XLAC._check_tensor_need_materialization(list(tensors))


def runs():
    data = met.metric_data("ExecuteTime")
    return data[0] if data else 0


def ids(*tensors):
    return [_XLAC._xla_get_tensor_id(t) for t in tensors]


# Leaves


def test_leaves_are_the_data_that_a_graph_reads():
    a, b, c = (torch.randn(n) for n in (3, 3, 1))
    x, y, z = a.to("xla"), b.to("xla"), c.to("xla")
    unread = torch.randn(3).to("xla")
    out = torch.sin(y * 2) + x + z
    found, values = _XLAC._get_tensors_xla_device_data_node([out])
    assert found == ids(z, x, y) and ids(unread)[0] not in found
    for value, expected in zip(values, (c, a, b), strict=True):
        close(value, expected)
    assert waits(out) == [True]


def test_leaves_of_several_graphs_are_there_once():
    x, y = torch.randn(2, 3).to("xla"), torch.randn(3).to("xla")
    found, _ = _XLAC._get_tensors_xla_device_data_node([x + 1, x * y, x - y, x])
    assert found == ids(x, y)
    assert _XLAC._get_tensors_xla_device_data_node([x, y]) == ([], [])


def test_what_is_used_last_comes_first():
    a, b, c = torch.randn(2).to("xla"), torch.randn(2).to("xla"), torch.randn(2).to("xla")
    for out, order in [
        ([torch.sin(a) * b - c], (c, b, a)),
        ([torch.cat([a, b, c]) + 1], (c, b, a)),
        ([(a @ b) * c.sum() + (b - a).sum()], (a, b, c)),
        ([a + 1, b + 1, c + 1], (a, b, c)),
        ([torch.where(a > 1, b, c) * a], (a, c, b)),
    ]:
        hash, values = cached(out)
        assert _XLAC._get_tensors_xla_device_data_node(out)[0] == ids(*order)
        close(_XLAC._run_cached_graph(hash, [v.cpu() for v in values])[0], out[0].cpu())


def test_a_view_reads_the_tensor_that_it_shows():
    x = torch.arange(6.0).to("xla")
    view, expected = x.view(2, 3)[1], ids(x)
    del x
    found, values = _XLAC._get_tensors_xla_device_data_node([view * 2])
    assert found == expected
    close(values[0], torch.arange(6.0))


def test_a_view_reads_what_python_has_never_seen():
    a, b = torch.randn(2, 3), torch.randn(3, 4)
    view = torch.einsum("ij,jk->ki", a.to("xla"), b.to("xla"))
    torch_xla.sync()
    hash, values = cached([view * 2])
    close(_XLAC._run_cached_graph(hash, values)[0], (a @ b).T * 2)


def test_leaves_of_a_layer():
    layer = torch.nn.Linear(3, 2).to("xla")
    x = torch.randn(4, 3).to("xla")
    found, _ = _XLAC._get_tensors_xla_device_data_node([layer(x)])
    assert set(found) == set(ids(x, layer.weight, layer.bias))


def test_leaves_that_no_tensor_has_any_more():
    a, b = torch.randn(3), torch.randn(3)
    x = a.to("xla")
    x.add_(b.to("xla"))
    found, values = _XLAC._get_tensors_xla_device_data_node([x])
    assert len({*found, *ids(x)}) == 3
    close(values[0], b)
    close(values[1], a)
    hash, values = cached([x])
    close(_XLAC._run_cached_graph(hash, values)[0], a + b)


# Programs by hash


def cached(outputs):
    hash = _XLAC._get_graph_hash(outputs)
    _, values = _XLAC._get_tensors_xla_device_data_node(outputs)
    _XLAC._xla_warm_up_cache(outputs, [])
    return hash, values


def test_a_cached_graph_runs_on_its_leaves_and_on_others():
    a, b = torch.randn(2, 3), torch.randn(3)
    x, y = a.to("xla"), b.to("xla")
    outputs = [torch.sin(x) * 3 + y, x]
    outputs.append(outputs[0].sum(0))
    before = runs()
    hash, values = cached(outputs)
    assert runs() == before and waits(*outputs) == [True, False, True]
    expected = torch.sin(a) * 3 + b
    first, second = _XLAC._run_cached_graph(hash, values)
    close(first, expected)
    close(second, expected.sum(0))
    assert waits(*outputs, first) == [True, False, True, False]
    c = torch.randn(2, 3)
    close(_XLAC._run_cached_graph(hash.decode(), [y, c.to("xla")])[0], torch.sin(c) * 3 + b)
    close(_XLAC._run_cached_graph(hash, [b, c])[0], torch.sin(c) * 3 + b)
    close(outputs[0], expected)


def test_a_cached_graph_draws_anew():
    x = torch.ones(1000).to("xla")
    out = torch.nn.functional.dropout(x, 0.5) + torch.rand(1000, device="xla")
    found, _ = _XLAC._get_tensors_xla_device_data_node([out])
    assert found == [*ids(x), _XLAC._get_seed_info_id()]
    hash, values = cached([out])
    torch_xla.manual_seed(3)
    draws = []
    for _ in range(2):
        values[1] = _XLAC._get_base_seed_as_tensor("xla:0")
        draws.append(_XLAC._run_cached_graph(hash, values)[0].cpu())
    assert not torch.equal(*draws)
    kept = draws[0] > 1
    assert 300 < int(((draws[0] - draws[0].floor()) < 0.5).sum()) < 700
    assert 350 < int(kept.sum()) < 650  # 2 or 0, and a number from 0 to 1
    torch_xla.manual_seed(3)
    values[1] = _XLAC._get_base_seed_as_tensor("xla:0")
    torch.testing.assert_close(_XLAC._run_cached_graph(hash, values)[0].cpu(), draws[0])


def test_each_draw_of_a_cached_graph_has_its_own_seed():
    hash, values = cached([torch.rand(9, device="xla"), torch.rand(9, device="xla")])
    first, second = _XLAC._run_cached_graph(hash, values)
    assert not torch.equal(first.cpu(), second.cpu())


def test_the_seed_as_a_tensor():
    for seed in (7, 2**64 - 5):
        _XLAC._xla_set_rng_seed(seed, "xla:0")
        assert int(_XLAC._get_base_seed_as_tensor("xla:0")) % 2**64 == seed
        assert _XLAC._xla_get_rng_seed("xla:0") == seed


def test_graphs_that_differ_in_numbers_alone():
    x = torch.randn(3).to("xla")
    hash, values = cached([torch.cos(x) * 2.25])
    _XLAC._run_cached_graph(hash, values)
    assert cached([torch.cos(x) * 2.75])[0] == hash
    with pytest.raises(RuntimeError, match="expected the hash of one graph, got one of 2 that"):
        _XLAC._run_cached_graph(hash, values)
    before = _XLAC._get_xla_all_numbers_special_scalars()
    _XLAC._set_xla_all_numbers_special_scalars(True)
    try:
        graphs = {factor: cached([torch.cos(x) * factor])[0] for factor in (2.25, 2.75)}
    finally:
        _XLAC._set_xla_all_numbers_special_scalars(before)
    for factor, hash in graphs.items():
        close(_XLAC._run_cached_graph(hash, values)[0], torch.cos(x.cpu()) * factor)


def test_a_graph_of_nothing_gives_nothing():
    hash, values = cached([torch.ones(3).to("xla")])
    assert values == [] and _XLAC._run_cached_graph(hash, values) == []


def test_kernels_of_pytorch_run_in_a_cached_graph():
    a = torch.randn(4, 4)
    x = a.to("xla")
    hash, values = cached([torch.linalg.lu_factor_ex(x)[0]])
    close(_XLAC._run_cached_graph(hash, values)[0], torch.linalg.lu_factor(a)[0])


def test_what_a_cached_graph_refuses():
    x = torch.randn(5).to("xla")
    hash, _ = cached([torch.tan(x)])
    with pytest.raises(RuntimeError, match="expected inputs of types tensor<5xf32>, got none"):
        _XLAC._run_cached_graph(hash, [])
    with pytest.raises(RuntimeError, match="expected inputs of types .*, got tensor<5xi64>"):
        _XLAC._run_cached_graph(hash, [torch.arange(5).to("xla")])
    with pytest.raises(
        RuntimeError, match="expected the hash of a compiled graph, got 'feed'. Call"
    ):
        _XLAC._run_cached_graph("feed", [x])


# StableHLO


ADD = """
module {
  func.func public @main(%arg0: tensor<3xf32>, %arg1: tensor<3xf32>) -> tensor<3xf32> {
    %0 = stablehlo.add %arg0, %arg1 : tensor<3xf32>
    return %0 : tensor<3xf32>
  }
}
"""


@pytest.mark.parametrize("program", [ADD, ADD.encode()], ids=["text", "bytes"])
def test_stablehlo_runs(program):
    a, b = torch.randn(3), torch.randn(3)
    for _ in range(2):
        (found,) = _XLAC._run_stablehlo(program, [a.to("xla"), b.to("xla") * 2])
        close(found, a + b * 2)
    with pytest.raises(RuntimeError, match="expected inputs of types tensor<3xf32>, tensor<3xf32>"):
        _XLAC._run_stablehlo(program, [a.to("xla")])
    with pytest.raises(RuntimeError, match="got tensor<3xf32>, tensor<3xi32>"):
        _XLAC._run_stablehlo(program, [a.to("xla"), b.int().to("xla")])
    with pytest.raises(TypeError, match="_run_stablehlo: expected xla tensors, got one on cpu"):
        _XLAC._run_stablehlo(program, [a, b])


@needs_jaxlib
def test_bytecode_is_not_run_on_other_types():
    x = torch.ones(3).to("xla")
    message = "types tensor<3xf32>, tensor<3xf32>, got tensor<3xf32>, tensor<3xi32>"
    with pytest.raises(RuntimeError, match=message):
        _XLAC._run_stablehlo(mlir.artifact(ADD), [x, x.int()])


def test_what_is_no_stablehlo():
    with pytest.raises(TypeError, match="_run_stablehlo: expected StableHLO .* got a int"):
        _XLAC._run_stablehlo(3, [])
    with pytest.raises(RuntimeError, match="[Ff]ailed to parse"):
        _XLAC._run_stablehlo("module { nonsense }", [])


@pytest.mark.parametrize("bytecode", [False, pytest.param(True, marks=needs_jaxlib)])
def test_stablehlo_by_the_arguments_of_earlier_versions(bytecode):
    a, b = torch.randn(2, 3), torch.randn(3)
    x, y = a.to("xla"), b.to("xla")
    out = torch.exp(x) - y * 2
    program = _XLAC._get_stablehlo([out], "xla:0", [], bytecode)
    assert isinstance(program, bytes) and program.startswith(b"ML\xefR" if bytecode else b"module")
    close(_XLAC._run_stablehlo(program, [x, y])[0], torch.exp(a) - b * 2)
    assert isinstance(_XLAC._get_stablehlo([out]), str)  # by those of now
    assert _XLAC._get_stablehlo([out], platform="TPU") == _XLAC._get_stablehlo([out], "TPU")


# Lowering


def test_a_lowered_graph_and_its_parameters():
    a, b = torch.randn(2, 3), torch.randn(3)
    x, y = a.to("xla"), b.to("xla")
    out = torch.tanh(x) * 2.5 + y
    context = _XLAC.lowering.LoweringContext("step")
    context.build([out])
    assert waits(out) == [True] and context.get_name_string() == "step"
    text = context.hlo_text()
    assert text.startswith('name: "step"\n') and '    opcode: "tanh"\n' in text
    assert "      element_type: F32\n      dimensions: 2\n      dimensions: 3\n" in text
    as_json = json.loads(context.hlo_json())
    (shape, other) = as_json["hostProgramShape"]["parameters"]
    assert shape["elementType"] == "F32" and shape["dimensions"] == ["2", "3"]
    assert other["dimensions"] == ["3"]
    opcodes = [i["opcode"] for c in as_json["computations"] for i in c["instructions"]]
    assert {"parameter", "tanh", "multiply", "add"} <= set(opcodes)
    (constant,) = [
        i for c in as_json["computations"] for i in c["instructions"] if i["opcode"] == "constant"
    ]
    assert [v for k, v in constant["literal"].items() if k != "shape"] == [[2.5]]
    assert isinstance(context.hlo(), bytes)
    assert [context.tensor_parameter_id(t) for t in (x, y, out)] == [0, 1, -1]
    on_host = context.parameter_id_tensor_mapping()
    assert list(on_host) == [0, 1] and on_host[0].device.type == "cpu"
    torch.testing.assert_close(on_host, {0: a, 1: b})
    on_device = context.device_parameter_id_tensor_mapping()
    assert ids(*on_device.values()) == ids(x, y)
    context.set_name_string("other")
    assert context.get_name_string() == "other"


@needs_jaxlib
def test_lowered_graphs_compute_what_the_graph_does():
    a, b = torch.randn(2, 3), torch.randn(3)
    x, y = a.to("xla"), b.to("xla")
    context = _XLAC.lowering.LoweringContext()
    context.build([torch.tanh(x) * 2.5 + y, y + 1])
    found = _XLAC._run_stablehlo(
        mlir.text_of_hlo(context.hlo()), list(context.device_parameter_id_tensor_mapping().values())
    )
    close(found[0], torch.tanh(a) * 2.5 + b)
    close(found[1], b + 1)


@needs_jaxlib
def test_a_lowered_body_takes_what_the_loop_carries_along():
    a, b = torch.randn(3), torch.randn(3)
    x, y = a.to("xla"), b.to("xla")
    context = _XLAC.lowering.LoweringContext("bodyctx")
    context.buildforiloop([x * 2], [y])
    assert context.tensor_parameter_id(y) == 1
    found = _XLAC._run_stablehlo(mlir.text_of_hlo(context.hlo()), [x, y])
    close(found[0], a * 2)
    close(found[1], b)


def test_what_cannot_be_lowered():
    context = _XLAC.lowering.LoweringContext("empty")
    with pytest.raises(RuntimeError, match="expected that 'empty' has been built"):
        context.hlo()
    x = torch.randn(3).to("xla")
    with pytest.raises(RuntimeError, match="expected tensors that wait to be computed, got none"):
        context.build([x])
    assert context.tensor_parameter_id(x) == -1


def test_inputs_of_a_lowered_function():
    held, like, x = (torch.randn(3).to("xla") for _ in range(3))
    context = _XLAC.lowering.LoweringContext()
    context.build([held * 2 + like])
    found = assume_pure.prepare_computation_inputs(context, [like, 3], [x, 3])
    assert ids(*found) == ids(held, x)
    with pytest.raises(ValueError, match="an input for each of 1 placeholders, got 2"):
        assume_pure.prepare_computation_inputs(context, [like], [x, x])


# What waits


def test_tensors_of_a_device_that_wait():
    x = torch.randn(3).to("xla")
    before = _XLAC._check_device_tensor_need_materialization("xla:0")
    out = x + 1
    after = _XLAC._check_device_tensor_need_materialization("xla:0")
    assert sum(after) == sum(before) + 1 and len(after) == len(before) + 1
    assert len(out) == 3


def test_wrappers_of_tensors_are_not_asked():
    x = torch.randn(2, 3).to("xla")
    expected = _XLAC._check_device_tensor_need_materialization("xla:0")
    seen = []

    def row(x):
        seen.append(_XLAC._check_device_tensor_need_materialization("xla:0"))
        return x * 2

    torch.vmap(row)(x)
    assert seen == [expected]


def test_pending_tensors_are_dropped():
    a = torch.randn(3)
    x = a.to("xla")
    out, parameter = x + 1, torch.nn.Parameter(x * 2)
    loss = (parameter.sin().exp() * parameter).sum()  # autograd alone holds what it is made of
    _XLAC._clear_pending_irs("xla:0")
    before = runs()
    torch_xla.sync(wait=True)
    assert runs() == before
    for tensor in (out, parameter, out + 1, loss):
        with pytest.raises(RuntimeError, match="expected a tensor with a value"):
            tensor.cpu()
    close(x, a)
    out.copy_(x)
    close(out, a)


def test_handles_are_those_of_memory():
    x, y = torch.randn(4).to("xla"), torch.randn(4).to("xla")
    out = x + y
    first, second, view, alias, made = _XLAC._get_tensors_handle([x, y, x[1:], x.detach(), out])
    assert first == view == alias and len({first, second, made, 0}) == 4
    assert _XLAC._get_tensors_handle([x]) == [first]
    fakes = [create_placeholder_tensor((4,), torch.float32) for _ in range(2)]
    assert len({0, *_XLAC._get_tensors_handle([*fakes, x, y])}) == 5


# When programs run


@pytest.fixture
def refusing():
    _XLAC._set_allow_execution(False)
    yield
    _XLAC._set_allow_execution(True)


def test_what_would_run_is_refused(refusing):
    assert not _XLAC._get_allow_execution()
    a = torch.randn(3)
    x = a.to("xla")
    close(x, a)
    out = x + 1
    refused = r"expected \"what follows _set_allow_execution\(False\)\" to be one graph, got a "
    with pytest.raises(RuntimeError, match=refused + "value that is read"):
        out.cpu()
    with pytest.raises(RuntimeError, match=refused + "sync"):
        torch_xla.sync()
    with pytest.raises(RuntimeError, match="_run_stablehlo: expected that programs may run"):
        _XLAC._run_stablehlo(ADD, [x, x])
    hash, values = cached([out])
    with pytest.raises(RuntimeError, match="_run_cached_graph: expected that programs may run"):
        _XLAC._run_cached_graph(hash, values)
    _XLAC._set_use_eager_mode(True)
    try:
        assert waits(x * 2) == [True]  # recorded, as in a function of torch_xla.compile
    finally:
        _XLAC._set_use_eager_mode(False)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(_XLAC._get_allow_execution()))
    thread.start()
    thread.join()
    assert seen == [True]
    _XLAC._set_allow_execution(False)
    _XLAC._set_allow_execution(True)
    assert _XLAC._get_allow_execution()
    close(out, a + 1)


def test_programs_have_the_name_that_was_given():
    assert _XLAC._get_current_graph_name() == ""
    _XLAC._set_current_graph_name("evaluation")
    try:
        assert _XLAC._get_current_graph_name() == "evaluation"
        x = torch.randn(7, 11).to("xla")
        out = torch.atan(x) * x
        torch_xla.sync(wait=True)
        assert _XLAC._xla_programs()[0]["name"] == "evaluation"

        @torch_xla.compile(name="inside")
        def function(x):
            names.append(_XLAC._get_current_graph_name())
            return torch.atan(x) - x

        names = []
        function(out)
        assert names == ["inside"] and _XLAC._xla_programs()[0]["name"] == "inside"
    finally:
        _XLAC._set_current_graph_name("")
    assert _XLAC._get_current_graph_name() == "" and step.named is None


@pytest.fixture
def sessions():
    yield
    for name in ("a", "b"):
        _XLAC._dynamic_shape_detector_remove_session(name)
    _XLAC._dynamic_shape_detector_set_max_different_graphs(1)


def in_session(name, x):
    _XLAC._dynamic_shape_detector_start_session(name)
    out = torch.asinh(x)
    _XLAC._dynamic_shape_detector_end_session()
    return out


def test_a_session_has_so_many_graphs(sessions):
    _XLAC._dynamic_shape_detector_set_max_different_graphs(2)
    assert _XLAC._dynamic_shape_detector_get_max_different_graphs() == 2
    a, b, c = (torch.randn(n).to("xla") for n in (3, 4, 5))
    for x in (a, b, a, b):
        close(in_session("a", x), torch.asinh(x.cpu()))
    with pytest.raises(
        RuntimeError, match='function exceeded: 2\n(.*\n)*torch_xla.compile of "a": It first'
    ):
        in_session("a", c)
    in_session("b", c)
    _XLAC._dynamic_shape_detector_remove_session("a")
    in_session("a", c)


def test_what_waited_before_is_of_no_session(sessions):
    x = torch.randn(3).to("xla")
    for n in (3, 4, 5):
        before = torch.ones(n, device="xla") * 3
        in_session("a", x)
        close(before, torch.full((n,), 3.0))


def test_sessions_begin_and_end(sessions):
    with pytest.raises(RuntimeError, match="expected a session on this thread, got none"):
        _XLAC._dynamic_shape_detector_end_session()
    _XLAC._dynamic_shape_detector_start_session("a")
    with pytest.raises(RuntimeError, match="expected no session, got 'a' on this thread"):
        _XLAC._dynamic_shape_detector_start_session("b")
    _XLAC._dynamic_shape_detector_end_session()
    with pytest.raises(ValueError, match="expected at least one graph, got 0"):
        _XLAC._dynamic_shape_detector_set_max_different_graphs(0)


# Marks and calls of exported programs


def test_marks_make_a_composite():
    def mark(tensor, is_input):
        data = BoundaryMetadata("my.op", 0, "1", is_input, None if is_input else {"n": 3})
        return _XLAC._xla_mark_tensor(tensor, json.dumps(data, cls=BoundaryMetadataSerializer))

    a = torch.randn(3)
    out = mark(mark(a.to("xla"), True) * 2, False)
    text = _XLAC._get_portable_stablehlo([out])
    assert "stablehlo.composite" in text and '"my.op"' in text and "n = 3 : i64" in text
    close(out, a * 2)
    for info in ("no json", '{"name": "x"}'):
        with pytest.raises(ValueError, match="_xla_mark_tensor: expected the JSON of a Boundary"):
            _XLAC._xla_mark_tensor(out, info)


def test_custom_calls():
    x = torch.randn(2, 3).to("xla")
    for shapes in ([[2, 3]], [[3], [4]]):
        dtypes = [torch.float32] * len(shapes)
        results = _XLAC._xla_custom_call([x], "my.call", shapes, dtypes, True, "abc", 1, {"k": "v"})
        assert [list(r.shape) for r in results] == shapes
        text = _XLAC._get_portable_stablehlo(results)
        assert "@my.call(" in text and '"abc"' in text and 'k = "v"' in text


def test_sizes_that_are_called_dynamic():
    x = torch.randn(1, 3).to("xla")
    with pytest.warns(UserWarning, match="has 3 elements in dimension 1. For any number, pass"):
        before = met.counter_value("XlaMarkDynamic") or 0
        _XLAC._xla_mark_dynamic(x, 1)
        assert met.counter_value("XlaMarkDynamic") == before + 1
    with warnings.catch_warnings(), pytest.raises(IndexError, match="of a tensor of 2, got 2"):
        warnings.simplefilter("error")
        _XLAC._xla_mark_dynamic(x, 2)
