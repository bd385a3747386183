"""PyTorch's control flow operators on `xla`: one call of the program for a loop or a branch.

`while_loop`, `cond`, `scan` and `map` come here as PyTorch's higher-order operators, from a call in
lazy mode, from torch.compile or from an exported program. Their gradients are PyTorch's, in terms
of the same operators; `associative_scan` is PyTorch's, in terms of slices.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch.utils import _pytree as pytree

from torch_xla import _XLAC
from torch_xla._src.device.names import is_xla_tensor

_log = logging.getLogger(__name__)


def register() -> None:
    # PyTorch lets its operators pass through the autocast of devices that it knows.
    autocast = torch._C._dispatch_key_parse("AutocastXLA")
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(autocast)
    for operator in torch._ops._higher_order_ops.values():
        operator.fallthrough(autocast)
    for operator, kernel in (
        (while_loop_op, _while_loop),
        (cond_op, _cond),
        (scan_op, _scan),
        (map_impl, _map),
    ):
        operator.py_impl(torch._C.DispatchKey.XLA)(kernel)


def _recorded_or_run(operator: Any, arguments: tuple, record: Callable[[], Any]) -> Any:
    """The result of `record`; where no program can hold a body, PyTorch's own loop in Python.

    That one reads the condition of each iteration, and records the bodies one by one.
    """
    try:
        return record()
    except RuntimeError as error:
        reason = error
        _log.info("%s is run by Python, since %s", operator, error)
    try:
        return operator.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd](*arguments)
    except RuntimeError as error:
        raise error from reason


def _on_device(values: Sequence) -> bool:
    return all(is_xla_tensor(v) for v in values if isinstance(v, torch.Tensor))


def _while_loop(
    condition: Callable,
    body: Callable,
    carried: Sequence,
    additional: Sequence,
    mutated_arg_indices: str = "",
) -> tuple:
    arguments: tuple[Any, ...] = (condition, body, carried, additional)
    if mutated_arg_indices:  # which PyTorch 2.11 does not take
        arguments += (False, mutated_arg_indices)
    carried, additional = list(carried), list(additional)
    # Buffers that the body writes are carried along.
    written = [int(i) - len(carried) for i in mutated_arg_indices.split(",") if i]

    def record() -> tuple:
        device = next(v.device for v in (*carried, *additional) if is_xla_tensor(v))
        state = [_as_tensor(v, device) for v in (*carried, *(additional[i] for i in written))]

        def inputs(values: Sequence[torch.Tensor]) -> list:
            others = list(additional)
            for i, value in zip(written, values[len(carried) :], strict=True):
                others[i] = value.clone()
            return [*values[: len(carried)], *others]

        def go_on(*values: torch.Tensor) -> list[torch.Tensor]:
            given = inputs(values)
            result = condition(*given)
            buffers = [given[len(carried) + i] for i in written]
            if any(not b.is_inference() and b._version != 0 for b in buffers):
                raise RuntimeError("while_loop: the condition writes a buffer.")
            return [_as_tensor(result, device)]

        def run(*values: torch.Tensor) -> list[torch.Tensor]:
            given = inputs(values)
            results = [_as_tensor(v, device) for v in body(*given)]
            return [*results, *(given[len(carried) + i] for i in written)]

        results = _XLAC._while_loop(go_on, run, state)
        for i, value in zip(written, results[len(carried) :], strict=True):
            additional[i].copy_(value)
        return tuple(
            result if isinstance(value, torch.Tensor) else type(value)(result.item())
            for value, result in zip(carried, results, strict=False)
        )

    if not _on_device(carried) or not any(map(is_xla_tensor, (*carried, *additional))):
        return while_loop_op.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd](*arguments)
    return _recorded_or_run(while_loop_op, arguments, record)


def _as_tensor(value: Any, device: torch.device) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, device=device)


def _cond(predicate: Any, on_true: Callable, on_false: Callable, operands: Sequence) -> Any:
    if not is_xla_tensor(predicate):  # known already
        return on_true(*operands) if predicate else on_false(*operands)

    def record() -> Any:
        others: list[tuple] = []  # of each branch: the tree of its results, and what is no tensor

        def branch(function: Callable) -> Callable[[], list[torch.Tensor]]:
            def run() -> list[torch.Tensor]:
                leaves, spec = pytree.tree_flatten(function(*operands))
                tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
                others.append(
                    (spec, [None if isinstance(v, torch.Tensor) else (v,) for v in leaves])
                )
                return tensors

            return run

        results = iter(_XLAC._cond(predicate.reshape(()), branch(on_true), branch(on_false)))
        if others[0] != others[1]:
            raise RuntimeError(
                f"cond: expected results of one kind of both branches, got {others[0]} and "
                f"{others[1]}."
            )
        spec, constants = others[0]
        leaves = [next(results) if constant is None else constant[0] for constant in constants]
        return pytree.tree_unflatten(leaves, spec)

    return _recorded_or_run(cond_op, (predicate, on_true, on_false, operands), record)


def _scan(combine: Callable, init: Sequence, xs: Sequence, additional: Sequence) -> tuple:
    arguments = (combine, init, xs, additional)

    def step(*values: torch.Tensor) -> Sequence:
        return combine(*values, *additional)

    if not xs or not all(map(is_xla_tensor, (*init, *xs))):
        return scan_op.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd](*arguments)
    return _recorded_or_run(scan_op, arguments, lambda: tuple(_stacked(step, init, xs)[0]))


def _map(function: Callable, xs: Sequence, additional: Sequence) -> Any:
    arguments = (function, xs, additional)

    def record() -> Any:
        leaves, spec = _stacked(lambda *rows: function(*rows, *additional), [], xs)
        return pytree.tree_unflatten(leaves, spec)

    if not xs or not all(map(is_xla_tensor, xs)):
        return map_impl.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd](*arguments)
    return _recorded_or_run(map_impl, arguments, record)


def _stacked(step: Callable, init: Sequence, xs: Sequence) -> tuple[list, pytree.TreeSpec]:
    """Flat results of a scan, None where `step` gives None, and the tree of what `step` gives."""
    found: list[tuple] = []

    def run(*values: torch.Tensor) -> list[torch.Tensor]:
        leaves, spec = pytree.tree_flatten(step(*values))
        found.append(([leaf is not None for leaf in leaves], spec))
        return [leaf for leaf in leaves if leaf is not None]

    results = iter(_XLAC._scan(run, list(init), list(xs)))
    is_given, spec = found[0]
    return [next(results) if given else None for given in is_given], spec
