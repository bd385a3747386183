"""What gradients keep: a tensor that is written between a call and its backward spoils the gradient
on xla where it does on the CPU, and there alone. Nothing is compiled: only errors are compared."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
import torch.utils._pytree as pytree
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from . import database
from .harness import DEVICE

SAMPLES = 2
# A call of many tensors writes into the first of them.
MOST_OPERANDS = 5

LESS_IS_KEPT = "gradients of xla that read no value need the operand alone"
OTHER_FORMULA = "one fused call on xla, many small ones on the CPU"
DIFFERENT = {
    "prod": LESS_IS_KEPT,
    "nn.functional.scaled_dot_product_attention": OTHER_FORMULA,
    "nn.functional.rms_norm": OTHER_FORMULA,
    "nn.functional.multi_head_attention_forward": OTHER_FORMULA,
    "tensor_split": "places of the splits come from the CPU",
}

ENTRIES = {
    name: entry
    for name, entry in database.ENTRIES.items()
    if entry.supports_autograd and torch.float32 in entry.dtypes and entry.op is not None
}


def operands(sample: SampleInput) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return [t for t in leaves if isinstance(t, torch.Tensor)][:MOST_OPERANDS]


def cases(sample: SampleInput) -> Iterator[tuple[list[int], int, bool]]:
    """The operands that want a gradient, and the operand or result that is written."""
    found = operands(sample)
    real = [i for i, t in enumerate(found) if t.is_floating_point() or t.is_complex()]
    subsets = [real] + ([[i] for i in real] if len(real) > 1 else [])
    for wanted in subsets:
        yield from ((wanted, i, False) for i in range(len(found)))
        yield from ((wanted, i, True) for i in range(2))


def outcome(
    entry: OpInfo,
    sample: SampleInput,
    device: str,
    wanted: list[int],
    written: int,
    is_result: bool,
) -> str:
    given = itertools.count()
    tensors: list[torch.Tensor] = []

    def operand(t: torch.Tensor) -> torch.Tensor:
        copy = t.detach().clone().to(device)
        if next(given) in wanted:
            copy = copy.requires_grad_().clone()
        tensors.append(copy)
        return copy

    nest = pytree.tree_map_only(
        torch.Tensor, operand, (sample.input, list(sample.args), dict(sample.kwargs))
    )
    torch.manual_seed(0)
    try:
        results = entry.op(nest[0], *nest[1], **nest[2])
        found = [t for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
        differentiable = [t for t in found if t.requires_grad]
        if not differentiable:
            return "no gradient"
        sums = [t.abs().sum() if t.is_complex() else t.sum() for t in differentiable]
        if is_result and written >= len(found):
            return "no such result"
        with torch.no_grad():
            (found if is_result else tensors)[written].zero_()
        torch.autograd.grad(sums, [tensors[i] for i in wanted], allow_unused=True)
    except RuntimeError as e:
        # Messages name devices and nodes further on.
        return " ".join(str(e).split()[:12])
    return "a gradient"


@pytest.mark.parametrize("name", ENTRIES)
def test_writes_before_backward(name, request):
    if name in DIFFERENT:
        request.applymarker(pytest.mark.xfail(reason=DIFFERENT[name], strict=True))
    entry = ENTRIES[name]
    for sample in itertools.islice(database.samples(entry, torch.float32, grad=False), SAMPLES):
        for case in cases(sample):
            expected = outcome(entry, sample, "cpu", *case)
            assert outcome(entry, sample, DEVICE, *case) == expected, (sample, case)
