"""Every optimizer of PyTorch's optimizer database against the CPU: what some steps add to the
parameters, and the state after them, in each implementation that the optimizer has.

`make test` runs the first configuration; `make test-all` runs all of them in more dtypes."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch.testing._internal.common_optimizers import (
    OptimizerErrorEnum,
    OptimizerInfo,
    OptimizerInput,
    optim_db,
)

import torch_xla

from . import database, database_notes
from .database import DEVICE, Gradients, Run, moved

SPARSE = "SparseAdam"  # its gradients are sparse tensors
# Its state is the course of a search, which the last digits of a loss decide; only where the search
# ends is compared.
SEARCHES = {"LBFGS"}
OPTIMIZERS = {info.name: info for info in optim_db if info.name != SPARSE}
FEW_CONFIGURATIONS = 1
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
STEPS = 4
NARROW = (torch.bfloat16, torch.float16)
# Long beside the digits of a narrow dtype, and of what Muon does in one.
LONG_STEP = 0.1
LONG_STEPS = {"Adadelta": 100.0}
SHAPES = ((3, 4), (2, 5))  # Muon takes matrices only


def configurations(info: OptimizerInfo) -> list[OptimizerInput]:
    # What is asked for CUDA has the capturable ones; the tensors in it are on the CPU.
    return info.optim_inputs_func(device="cuda")


def implementations(info: OptimizerInfo) -> list[str]:
    capturable = ["capturable"] if info.has_capturable_arg else []
    return ["default", *capturable, *info.supported_impls]


def tensors(count: int, dtype: torch.dtype) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [[torch.randn(s, generator=generator).to(dtype) for s in SHAPES] for _ in range(count)]


def options(
    info: OptimizerInfo, case: OptimizerInput, form: str, device: str, dtype: torch.dtype
) -> dict[str, Any]:
    found = copy.deepcopy(case.kwargs)
    if (dtype in NARROW and info.name not in SEARCHES) or info.name == "Muon":
        step = LONG_STEPS.get(info.name, LONG_STEP)
        found["lr"] = torch.tensor(step) if isinstance(found.get("lr"), torch.Tensor) else step
    if device == DEVICE:
        return found if form == "default" else {**found, form: True}
    # The CPU takes the loop over parameters, which every configuration permits.
    found.pop("capturable", None)
    return {**found, **{other: False for other in info.supported_impls}}


def state_of(optimizer: torch.optim.Optimizer, device: str) -> list[Any]:
    # Counts of steps may be kept on the CPU.
    state = list(optimizer.state.values())
    return pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), state)


def trained(info: OptimizerInfo, case: OptimizerInput, form: str, dtype: torch.dtype) -> Run:
    start, *gradients = tensors(1 + STEPS, dtype)

    def run(device: str, wider: bool = False) -> Any:
        parameters = [t.requires_grad_() for t in moved(start, device, wider)]
        optimizer = info.optim_cls(parameters, **options(info, case, form, device, dtype))
        for given in moved(gradients, device, wider):

            def closure(given: list[torch.Tensor] = given) -> torch.Tensor:
                loss = sum(((p - g) ** 2).sum() for p, g in zip(parameters, given, strict=True))
                optimizer.zero_grad()
                loss.backward()
                return loss

            if info.step_requires_closure:
                optimizer.step(closure)
                continue
            for p, g in zip(parameters, given, strict=True):
                p.grad = g
            optimizer.step()
            if device == DEVICE:
                torch_xla.sync()  # the usual way, and a program of all steps is slow to compile
        before = moved(start, device, wider)
        found = [p.detach() - q for p, q in zip(parameters, before, strict=True)]
        return found if info.name in SEARCHES else (found, state_of(optimizer, device))

    return run


def differentiated(info: OptimizerInfo, case: OptimizerInput, dtype: torch.dtype) -> Run:
    """The gradients of a step's results with respect to its parameters and their gradients. A
    second step of some optimizers writes, on every device, what the first needs for its own."""
    start, gradients = tensors(2, dtype)
    weighted = Gradients()

    def run(device: str, wider: bool = False) -> Any:
        inputs = moved([start, gradients], device, wider)
        inputs = pytree.tree_map(torch.Tensor.requires_grad_, inputs)
        parameters = [p.clone() for p in inputs[0]]
        before = [p.detach() for p in inputs[0]]
        found = options(info, case, "differentiable", device, dtype)
        found.pop("capturable", None)
        optimizer = info.optim_cls(parameters, **{**found, "differentiable": True})
        for p, g in zip(parameters, inputs[1], strict=True):
            p.grad = g.clone()
        optimizer.step()
        added = [p.detach() - q for p, q in zip(parameters, before, strict=True)]
        return added, weighted.of(parameters, inputs)

    return run


def tolerances(name: str, form: str, dtype: torch.dtype) -> dict[str, Any]:
    return database_notes.tolerances(f"{name}.{form}", dtype) or database_notes.tolerances(
        name, dtype
    )


def compare(name: str, form: str, dtype: torch.dtype, limit: int | None) -> None:
    info = OPTIMIZERS[name]

    def runs():
        for case in itertools.islice(configurations(info), limit):
            if form == "differentiable":
                yield case.desc, differentiated(info, case, dtype)
            else:
                yield case.desc, trained(info, case, form, dtype)

    outcome = database.compare_runs((runs(), None), **tolerances(name, form, dtype))
    outcome.check()


def cases(dtypes: tuple[torch.dtype, ...]) -> list:
    found = []
    for name, info in OPTIMIZERS.items():
        for form, dtype in itertools.product(implementations(info), dtypes):
            if form == "differentiable" and torch.finfo(dtype).bits < 32:
                continue  # differences of what was rounded, over a root of such
            label = f"{name}-{form}-{str(dtype).removeprefix('torch.')}"
            marks = database_notes.marks(name, form, dtype)
            found.append(pytest.param(name, form, dtype, marks=marks, id=label))
    return found


@pytest.mark.parametrize(("name", "form", "dtype"), cases((torch.float32,)))
def test_first_configuration(name, form, dtype):
    compare(name, form, dtype, FEW_CONFIGURATIONS)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form", "dtype"), cases(DTYPES))
def test_all_configurations(name, form, dtype):
    compare(name, form, dtype, None)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_that_no_step_touched_fails(name):
    """The tolerances are narrower than what is learned."""
    info = OPTIMIZERS[name]
    for dtype, case in itertools.product(DTYPES, configurations(info)):
        if dtype in NARROW and name in SEARCHES:
            continue  # in no agreement, as database_notes.py says
        allowed = tolerances(name, "default", dtype)
        found = trained(info, case, "default", dtype)("cpu")
        for added in found if name in SEARCHES else found[0]:
            with pytest.raises(AssertionError):
                torch.testing.assert_close(torch.zeros_like(added), added, **allowed)


def on_device(value: Any) -> Any:
    """With each parameter in the place of its own, so that what is given twice stays the same."""
    known: dict[int, torch.Tensor] = {}

    def one(t: torch.Tensor) -> torch.Tensor:
        if id(t) not in known:
            known[id(t)] = t.detach().to(DEVICE).requires_grad_()
        return known[id(t)]

    return pytree.tree_map_only(torch.nn.Parameter, one, value)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_errors(name):
    info = OPTIMIZERS[name]
    for case in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
        given = case.optimizer_error_input
        params = torch.nn.Parameter(torch.randn(2, 3, device=DEVICE))
        params = [params] if given.params is None else on_device(given.params)
        if case.error_type is UserWarning:
            with pytest.warns(UserWarning, match=case.error_regex):
                info.optim_cls(params, **given.kwargs)
            continue
        if case.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR:
            with pytest.raises(case.error_type, match=case.error_regex):
                info.optim_cls(params, **given.kwargs)
            continue
        optimizer = info.optim_cls(params, **given.kwargs)
        with pytest.raises(case.error_type, match=case.error_regex):
            optimizer.step()
