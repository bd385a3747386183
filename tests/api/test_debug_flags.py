"""Flags that show or check what is recorded: lines, scopes, keys, one operation at a time.

Units: dispatch/record/context, executor/insight/hlo_dump.
"""

from __future__ import annotations

import inspect
import re

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla import _XLAC


@pytest.fixture
def flag(monkeypatch):
    """Sets a flag and makes it count: flags of recording are read at each sync."""
    names = []

    def set_flag(name: str) -> None:
        monkeypatch.setenv(name, "1")
        names.append(name)
        torch_xla.sync()

    yield set_flag
    for name in names:
        monkeypatch.delenv(name)
    torch_xla.sync()


class Scaled(torch.nn.Module):
    def forward(self, x):
        return torch.erf(x)


def line_of(function, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_ir_debug_shows_the_python_stack(flag):
    x = torch.ones(3, device="xla")
    scaled = Scaled()
    text = _XLAC._get_xla_tensors_text([scaled(x)])
    assert "(Scaled.forward)" in text and " < " not in text  # the innermost line alone
    flag("XLA_IR_DEBUG")
    text = _XLAC._get_xla_tensors_text([Scaled()(x)])
    erf = next(line for line in text.splitlines() if "aten::erf" in line)
    assert f"{__file__}:{line_of(Scaled.forward, 'erf')} (Scaled.forward)" in erf
    caller = line_of(test_ir_debug_shows_the_python_stack, "Scaled()(x)")
    assert f"< {__file__}:{caller} (test_ir_debug_shows_the_python_stack)" in erf
    assert "torch/nn/modules" not in erf


@pytest.fixture
def special_scalars():
    """Sets which numbers are constants of the program."""
    setters = [
        _XLAC._set_xla_handle_special_scalars,
        _XLAC._set_xla_all_numbers_special_scalars,
    ]

    def choose(zero_and_one: bool, all_numbers: bool) -> None:
        for setter, enable in zip(setters, (zero_and_one, all_numbers), strict=True):
            setter(enable)

    yield choose
    choose(False, False)


def test_numbers_as_constants_of_the_program(special_scalars):
    x = torch.tensor([1.0, 2.0]).to("xla")
    torch_xla.sync(wait=True)

    def compiled(*calls) -> int:
        """How many programs these need, one after the other."""
        before = met.counter_value("UncachedCompile") or 0
        for call, expected in calls:
            assert call().tolist() == expected
        return (met.counter_value("UncachedCompile") or 0) - before

    def scaled(a, b):
        return lambda: x * a + x * b

    calls = [(scaled(a, b), [a + b, 2 * a + 2 * b]) for a, b in ((0, 5), (5, 0), (7, 1), (5, 5))]
    assert not _XLAC._get_xla_handle_special_scalars()
    assert not _XLAC._get_xla_all_numbers_special_scalars()
    assert compiled(*calls, *calls) == 1
    special_scalars(True, False)
    assert _XLAC._get_xla_handle_special_scalars()
    assert compiled(*calls) == 3 and compiled(*calls) == 0  # (5, 5) has no constant
    special_scalars(False, True)
    assert _XLAC._get_xla_all_numbers_special_scalars()
    assert compiled(*calls) == 4 and compiled(*calls) == 0
    text = _XLAC._get_stablehlo([scaled(3.5, 2)()])
    assert "@main(%0: tensor<2xf32>)" in text and text.count("stablehlo.constant") == 2
    z = (x * (1 + 2j)).cpu()
    torch.testing.assert_close(z, torch.tensor([1 + 2j, 2 + 4j]))


def test_seeds_are_never_constants(special_scalars):
    special_scalars(True, True)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).to("xla")
    x = torch.ones(3, 4).to("xla")
    results = []
    for step in range(4):
        results.append(model(x).detach().cpu())
        if step == 0:
            met.clear_counters()
    assert not met.counter_value("UncachedCompile")
    assert any(not torch.equal(r, results[0]) for r in results[1:])


def test_hlo_of_pending_tensors():
    x = torch.ones(3, 4, device="xla")
    torch_xla.sync()
    y = (x @ x.t()).sin()
    text = _XLAC._get_xla_tensors_hlo([y])
    assert re.match(r"HloModule \w+, entry_computation_layout=\{\(f32\[3,4\]", text)
    assert re.search(r"ENTRY .*-> f32\[3,3\] \{", text) and "ROOT %sine" in text
    assert "fusion" not in text  # as recorded, before the compiler's optimizations
    module = _XLAC._get_xla_tensors_hlo_proto([y])
    assert isinstance(module, bytes) and module.startswith(b"\n\x09torch_xla") and b"sine" in module
    # They are still pending, and nothing of it is kept.
    assert "aten::sin" in _XLAC._get_xla_tensors_text([y])
    torch.testing.assert_close(y.cpu(), torch.full((3, 3), 4.0).sin())


def test_hlo_that_the_compiler_has_made(monkeypatch):
    y = (torch.ones(3, 4).to("xla") + 5).sin()
    monkeypatch.setenv("XLA_DUMP_POST_OPTIMIZATIONS", "1")
    text = _XLAC._get_xla_tensors_hlo([y])
    assert "is_scheduled=true" in text and " fusion(" in text
    monkeypatch.delenv("XLA_DUMP_POST_OPTIMIZATIONS")
    assert " fusion(" not in _XLAC._get_xla_tensors_hlo([y])


def test_hlo_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    x = torch.ones(3, device="xla") + 1
    assert "add" in _XLAC._get_xla_tensors_hlo([x])
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("TMPDIR", "/proc/none")
    with pytest.raises(RuntimeError, match="hlo: expected a folder for temporary files.*TMPDIR"):
        _XLAC._get_xla_tensors_hlo([x])


def test_graphviz_and_reports_of_pending_tensors():
    x = torch.ones(3, 4, device="xla")
    torch_xla.sync(wait=True)
    values, order = (x * 2).sort()
    dot = _XLAC._get_xla_tensors_dot([values, order])
    assert dot.startswith("digraph G {") and dot.endswith("}\n")
    assert 'node0 [label="xla::device_data\\nFloat[3,4]"]' in dot
    assert re.search(r'node\d \[label="aten::sort.*\\nFloat\[3,4\], Long\[3,4\]"\]', dot)
    assert re.search(r'  node0 -> node1 \[label="0"\]', dot) and "peripheries=2" in dot
    report = _XLAC._xla_tensors_report(2)
    first = re.match(
        r"Tensor: id=\d+, shape=(.*), device=CPU:0, ir_nodes=3\nFrames:\n  (.*)\nIR {", report
    )
    assert first[1] == "f32[3,4]{1,0}" and "aten::sort" in report
    assert first[2].startswith("test_graphviz_and_reports_of_pending_tensors (" + __file__)
    assert report.count("Tensor: ") == 2 and "shape=s64[3,4]{1,0}," in report
    assert _XLAC._xla_tensors_report(4, "xla:0") == ""
    torch_xla.sync(wait=True)
    assert _XLAC._xla_tensors_report(2) == ""
    held = _XLAC._xla_tensors_report(1)
    assert "shape=s64[3,4]{1,0}, device=CPU:0, ir_nodes=1\nFrames:" in held
    assert "IR {\n  %0 = xla::device_data() : Long[3,4]\n  ROOT %0\n}" in held


def test_hlo_debug_puts_lines_and_scopes_into_the_program(flag):
    x = torch.ones(3, device="xla")
    flag("XLA_IR_DEBUG")
    assert "loc(" not in _XLAC._get_stablehlo([Scaled()(x)])
    flag("XLA_HLO_DEBUG")
    y = Scaled()(x)
    text = _XLAC._get_stablehlo([y])
    line = line_of(Scaled.forward, "erf")
    frame = f'"Scaled.forward"("{__file__}":{line}:0)'
    assert f'loc("Scaled.forward/aten::erf"(callsite({frame} at ' in text
    torch.testing.assert_close(y.cpu(), torch.ones(3).erf())  # and the compiler accepts it


def test_hlo_debug_names_modules_and_scopes(flag):
    flag("XLA_HLO_DEBUG")
    net = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sequential(Scaled()))
    x = torch.ones(3, device="xla", requires_grad=True)
    with torch_xla.debug.named_modules():
        y = net(x)
        [gradient] = torch.autograd.grad(y.sum(), x)
    outside = Scaled()(x.detach())
    text = _XLAC._get_stablehlo([y, gradient])
    assert '"Sequential.0/aten::relu"' in text and '"Sequential.1.0/aten::erf"' in text
    assert '"Sequential.1.0/aten::mul.Tensor"' in text  # the gradient of erf
    assert '"Scaled.forward/aten::erf"' in _XLAC._get_stablehlo([outside])
    outer = _XLAC.profiler.scope_pusher("epoch")
    inner = _XLAC.profiler.scope_pusher("decode")
    scoped = outside + 1
    del inner
    after = outside + 2
    del outer
    text = _XLAC._get_stablehlo([scoped, after])
    assert '"epoch/decode/aten::add.Tensor"' in text and '"epoch/aten::add.Tensor"' in text


def test_a_call_gets_the_prefix_that_its_tensor_is_given(flag):
    flag("XLA_HLO_DEBUG")
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    y = x.erf()
    z = y + 1
    assert _XLAC._set_xla_custom_op_name_prefix(y, "decoder.3", 2)
    text = _XLAC._get_stablehlo([z])
    assert '"decoder.3/aten::erf"' in text and '"decoder.3/aten::add' not in text
    assert not _XLAC._set_xla_custom_op_name_prefix(x, "decoder.3", 2)
    torch.testing.assert_close(z.cpu(), torch.ones(3).erf() + 1)


def test_eager_debug_mode_runs_each_operation(flag):
    x = torch.ones(3, device="xla")
    flag("XLA_USE_EAGER_DEBUG_MODE")
    before = (met.metric_data("EagerOpExecuteTime") or (0,))[0]
    y = (x + 1) * 2
    assert met.metric_data("EagerOpExecuteTime")[0] == before + 2
    assert y.tolist() == [4, 4, 4]


def test_check_graph_key_compares_programs(flag):
    flag("XLA_CHECK_GRAPH_KEY")
    x = torch.ones(5, device="xla")
    hits = met.counter_value("CachedCompile") or 0
    for _ in range(3):
        assert (x * 7.25 - 1).sum().item() == 31.25
    assert met.counter_value("CachedCompile") > hits


def test_a_flag_of_the_program_makes_another_program(flag):
    x = torch.ones(6, device="xla")
    torch_xla.sync()
    (x * 3.5).tolist()
    compiled = met.counter_value("UncachedCompile")
    (x * 3.5).tolist()
    assert met.counter_value("UncachedCompile") == compiled
    flag("XLA_NO_DONATION")
    (x * 3.5).tolist()
    assert met.counter_value("UncachedCompile") == compiled + 1


def test_a_result_of_several_is_computed_once():
    x = torch.randn(4, 5).to("xla")
    values, _ = x.max(dim=1)
    row = x.sort(dim=1)[0][2]  # a view of one result of several
    values.cpu(), row.cpu()
    runs = met.metric_data("ExecuteTime")[0]
    torch.testing.assert_close(values.cpu(), x.cpu().max(dim=1)[0])
    torch.testing.assert_close(row.cpu(), x.cpu().sort(dim=1)[0][2])
    assert met.metric_data("ExecuteTime")[0] == runs
