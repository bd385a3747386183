"""Every core ATen operator can be exported: torch.export, then StableHLO for any compiler, whose
program gives PyTorch's values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree

from torch_xla.stablehlo import exported_program_to_stablehlo

from .harness import assert_same
from .test_core_aten import (
    CORE,
    FIRST_RESULT_ONLY,
    METADATA,
    VALUE_DEPENDENT,
    WITHOUT_FIXED_VALUES,
    calls,  # noqa: F401
)

pytestmark = pytest.mark.slow


class OneCall(torch.nn.Module):
    """A call of an operator whose tensors are the arguments."""

    def __init__(self, operator: Any, args: Any, kwargs: Any) -> None:
        super().__init__()
        self.operator = operator
        self.leaves, self.spec = pytree.tree_flatten((args, kwargs))
        self.places = [i for i, v in enumerate(self.leaves) if isinstance(v, torch.Tensor)]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(self.leaves[i] for i in self.places)

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.leaves)
        for i, tensor in zip(self.places, tensors, strict=True):
            leaves[i] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.operator(*args, **kwargs)


def through_stablehlo(model: OneCall) -> Any:
    program = exported_program_to_stablehlo(torch.export.export(model, model.tensors()))
    assert "custom_call" not in program.get_stablehlo_text()
    results = program(*model.tensors())
    return pytree.tree_map_only(torch.Tensor, lambda t: t.to("xla"), results)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("operator", CORE, ids=str)
def test_core_operator_exports(operator, calls):  # noqa: F811
    if operator in METADATA:
        pytest.skip("reads metadata")
    models = [OneCall(operator, args, kwargs) for args, kwargs in calls[operator]]
    if operator in VALUE_DEPENDENT:
        with pytest.raises(
            (NotImplementedError, RuntimeError), match="nonzero|_local_scalar_dense"
        ):
            through_stablehlo(models[0])
        return
    with torch.no_grad():
        expected = [operator(*args, **kwargs) for args, kwargs in calls[operator]]
    actual = [through_stablehlo(model) for model in models]
    if operator in WITHOUT_FIXED_VALUES:
        shapes = [[(t.shape, t.dtype) for t in pytree.tree_leaves(r)] for r in (actual, expected)]
        assert shapes[0] == shapes[1]
        return
    if operator in FIRST_RESULT_ONLY:
        actual, expected = [r[0] for r in actual], [r[0] for r in expected]
    assert_same(actual, expected)
