"""Every module of PyTorch's module database against the CPU: results, gradients and buffers, in
training and in evaluation.

`make test` runs the first input in float32; `make test-all` runs all inputs in all dtypes."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import (
    ModuleErrorEnum,
    ModuleInfo,
    ModuleInput,
    module_db,
)

from . import database, database_notes
from .database import DEVICE, WIDER, Gradients, Run, moved

MODULES = {info.name: info for info in module_db}
FEW_INPUTS = 1
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
NARROW = (torch.bfloat16, torch.float16)  # not of the database, which says nothing of them
# Nor does it say where the CPU has no kernel of these to compare with.
NOT_NARROW = {"nn.AvgPool3d", "nn.CTCLoss", "nn.LPPool3d", "nn.LocalResponseNorm"}
NOT_NARROW |= {"nn.MultiLabelMarginLoss", "nn.MultiMarginLoss"}


def inputs(info: ModuleInfo, dtype: torch.dtype, training: bool) -> list[ModuleInput]:
    made = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    return list(made)


def build(info: ModuleInfo, case: ModuleInput, dtype: torch.dtype) -> torch.nn.Module:
    """The module with parameters of its own, on the CPU."""
    made = copy.deepcopy(case.constructor_input)
    torch.manual_seed(0)
    return info.module_cls(*made.args, **made.kwargs).to(dtype)


def forward_and_backward(
    info: ModuleInfo, case: ModuleInput, dtype: torch.dtype, training: bool
) -> Run:
    given = (case.forward_input.args, case.forward_input.kwargs)
    source = build(info, case, dtype).train(training)
    if info.is_lazy:  # The first call makes the parameters, at random.
        args, kwargs = moved(given, "cpu")
        source(*args, **kwargs)
    weighted = Gradients()

    def run(device: str, wider: bool = False) -> Any:
        module = copy.deepcopy(source).to(device, WIDER.get(dtype, dtype) if wider else dtype)
        args, kwargs = moved(given, device, wider)
        results = module(*args, **kwargs)
        found = weighted.of(results, (args, kwargs, list(module.parameters())))
        return results, found, dict(module.named_buffers())

    return run


def compare(name: str, dtype: torch.dtype, training: bool, limit: int | None) -> None:
    info = MODULES[name]
    runs = (
        (f"input {i}, {case.desc}", forward_and_backward(info, case, dtype, training))
        for i, case in enumerate(itertools.islice(inputs(info, dtype, training), limit))
    )
    outcome = database.compare_runs((runs, None), **database_notes.tolerances(name, dtype))
    outcome.check()
    assert not outcome.host - database_notes.READS, f"ran on the host: {outcome.host}"


def cases(dtypes: tuple[torch.dtype, ...]) -> list:
    found = []
    for name, info in MODULES.items():
        for dtype, training in itertools.product(dtypes, (True, False)):
            if dtype not in info.dtypes and dtype not in NARROW:
                continue
            if dtype in NARROW and name in NOT_NARROW:
                continue
            if not training and not info.train_and_eval_differ:
                continue
            mode = "train" if training else "eval"
            label = f"{name}-{mode}-{str(dtype).removeprefix('torch.')}"
            marks = database_notes.marks(name, mode, dtype)
            found.append(pytest.param(name, dtype, training, marks=marks, id=label))
    return found


@pytest.mark.parametrize(("name", "dtype", "training"), cases((torch.float32,)))
def test_first_input(name, dtype, training):
    compare(name, dtype, training, FEW_INPUTS)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype", "training"), cases(DTYPES))
def test_all_inputs(name, dtype, training):
    compare(name, dtype, training, None)


@pytest.mark.parametrize("name", [n for n, i in MODULES.items() if i.module_error_inputs_func])
def test_errors(name):
    info = MODULES[name]
    wrong = info.module_error_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
    )
    for case in wrong:
        given = case.module_error_input
        made = given.constructor_input
        if case.error_on is ModuleErrorEnum.CONSTRUCTION_ERROR:
            with torch.device(DEVICE), pytest.raises(case.error_type, match=case.error_regex):
                info.module_cls(*made.args, **made.kwargs)
            continue
        module = info.module_cls(*made.args, **made.kwargs).to(DEVICE)
        args, kwargs = moved((given.forward_input.args, given.forward_input.kwargs), DEVICE)
        with pytest.raises(case.error_type, match=case.error_regex):
            module(*args, **kwargs)
