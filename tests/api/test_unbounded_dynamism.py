"""Rewritings of exported graphs: values stay, the operators go."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from torch_xla.experimental import unbounded_dynamism_export as rewritings
from torch_xla.stablehlo import exported_program_to_stablehlo

ROWS = torch.export.Dim("rows")
weight = torch.linspace(-1, 1, 40).reshape(10, 4)
CASES = {
    "flatten_embedding_indices_tensor": (
        lambda x: F.embedding((x > 0).long(), weight),
        lambda node: (
            node.target == torch.ops.aten.embedding.default and node.args[1].meta["val"].dim() != 1
        ),
    ),
    "remove_no_op_slice": (lambda x: x[:, :] * 2, rewritings._is_no_op_slice),
    "decompose_dynamic_shape_select": (lambda x: x[:, 1] + x[:, -1], "select.int"),
    "decompose_split_with_sizes": (lambda x: x.split_with_sizes([1, 3], 1)[1], "split_with_sizes"),
    "dynamic_unsqueeze_to_view": (lambda x: x.unsqueeze(-1) * 2, "unsqueeze"),
    "decompose_dynamic_native_layer_norm": (
        lambda x: F.layer_norm(x, (4,), weight[0], weight[1]),
        "native_layer_norm",
    ),
    "decompose_dynamic_native_group_norm": (
        lambda x: F.group_norm(x, 2, weight[0], weight[1]),
        "native_group_norm",
    ),
    "replace_dynamic_expand_with_xla_op": (
        lambda x: weight[0].expand(x.shape[0], 4) + x,
        "aten.expand",
    ),
    "replace_dynamic_view_with_xla_op": (lambda x: x.view(x.shape[0] * 2, 2) + 1, "aten.view"),
}


def exported(name: str) -> torch.export.ExportedProgram:
    model = rewritings.wrap_func_as_nn_module(CASES[name][0])
    shapes = (({0: ROWS},),)
    ep = torch.export.export(model, (torch.randn(6, 4),), dynamic_shapes=shapes)
    return ep.run_decompositions() if "norm" in name or "view" in name else ep


def count(ep: torch.export.ExportedProgram, what) -> int:
    found = what if callable(what) else lambda node: what in str(node.target)
    return sum(node.op == "call_function" and bool(found(node)) for node in ep.graph.nodes)


@pytest.mark.parametrize("name", CASES)
def test_rewriting(name):
    function, what = CASES[name]
    ep = exported(name)
    assert count(ep, what) > 0
    getattr(rewritings, name)(ep.graph_module)
    ep.graph.lint()
    assert count(ep, what) == 0
    program = exported_program_to_stablehlo(ep)
    for rows in (2, 7):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(program(x), function(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_all_rewritings(name):
    ep = exported(name)
    rewritings.process_exported_program_with_symbolic_input(ep)
    x = torch.randn(5, 4)
    torch.testing.assert_close(
        exported_program_to_stablehlo(ep)(x), CASES[name][0](x), rtol=1e-5, atol=1e-5
    )


def test_no_view_of_the_indices_of_an_embedding_is_left():
    model = rewritings.wrap_func_as_nn_module(CASES["flatten_embedding_indices_tensor"][0])
    ep = torch.export.export(model, (torch.randn(6, 4),), dynamic_shapes=(({0: ROWS},),))
    rewritings.process_exported_program_with_symbolic_input(ep)
    assert count(ep, "xla.dynamic_view") == 2
    assert count(ep, "aten.reshape") == count(ep, "aten.view") == 0


def test_patterns_are_what_is_replaced():
    x = torch.randn(3, 4, 5)
    args = (x, [5], torch.ones(5) * 2, torch.ones(5), 1e-5)
    torch.testing.assert_close(
        rewritings.native_layer_norm_impl(*args), rewritings.native_layer_norm_pattern(*args)
    )
    args = (x, torch.ones(4) * 2, torch.ones(4), 3, 4, 5, 2, 1e-5)
    torch.testing.assert_close(
        rewritings.native_group_norm_impl(*args), rewritings.native_group_norm_pattern(*args)
    )


def test_reshapes_to_sizes_of_others():
    for device in ("cpu", "xla"):
        x, other = torch.ones(1, 4, device=device), torch.ones(5, 6, device=device)
        assert torch.ops.xla.dynamic_expand(x, [1, 4], other, 0, 0).shape == (5, 4)
        assert torch.ops.xla.dynamic_view(other, [1, 3], other, 0, 0, 2).shape == (10, 3)
