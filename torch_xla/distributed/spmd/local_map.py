"""PyTorch's `local_map` for DTensors on an xla mesh: its function computes with what a device has.

The parts are manual tensors (`manual.py`), of the sizes of one device's part. Devices exchange what
they have by `torch.distributed._functional_collectives`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_xla._src.dynamo.uncaptured import uncaptured
from torch_xla.distributed.spmd import exchanges, partial
from torch_xla.distributed.spmd.placements import ByCompiler, checked, has_partial
from torch_xla.distributed.spmd.xla_sharded_tensor import (
    XLAShardedTensor,
    make_known,
    on_mesh,
    with_gradient,
)

_WHO = "local_map"


@uncaptured("local_map on an xla mesh runs outside of torch.compile")
def called_on_parts(
    func: Callable[..., Any],
    out_placements: Any,
    in_placements: Sequence[Sequence[Placement] | None] | None,
    in_grad_placements: Sequence[Sequence[Placement] | None] | None,
    device_mesh: DeviceMesh | None,
    redistribute_inputs: bool,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The results of a function of `local_map` for arguments of which one is an `XLAShardedTensor`.

    Gradients are those of the whole: a part's is the sum of what the devices did with copies of it,
    and of a result that is `Replicate` each device gets an equal share. Of `Partial("avg")`, too;
    of a maximum or minimum it goes to who has it.

    Args:
        func, out_placements, in_placements, in_grad_placements, device_mesh, redistribute_inputs:
            As of `local_map`. Arguments that nothing has said the placements of, as results of
            functions, are redistributed in any case.
        args, kwargs: Those of `func`.

    Raises:
        AssertionError: As PyTorch's: placements are missing, or too many.
        ValueError: An argument has other placements, and `redistribute_inputs` is False; or nothing
            says any.
        ShardingError: Sizes do not divide.
        RuntimeError, NotImplementedError: The function writes into an argument that needs a
            gradient, or is `Partial`.
    """
    flat_args, nest = tree_flatten(args)
    for name, each in (
        ("in_placements", in_placements),
        ("in_grad_placements", in_grad_placements),
    ):
        if each is not None and len(each) != len(flat_args):
            raise AssertionError(
                f"{_WHO}: expected {name} for each of the {len(flat_args)} arguments, got "
                f"{len(each)}."
            )
    mesh = device_mesh
    given: list[Any] = []
    parts: list[tuple[XLAShardedTensor, torch.Tensor, tuple[Placement, ...]]] = []
    for i, arg in enumerate(flat_args):
        wanted = None if in_placements is None else in_placements[i]
        if not isinstance(arg, DTensor):
            if wanted is not None and not isinstance(arg, torch.Tensor):
                raise AssertionError(
                    f"{_WHO}: expected None as placements of {arg!r}, which is no tensor, got "
                    f"{wanted}."
                )
            given.append(arg)
            continue
        d = cast(XLAShardedTensor, arg)
        mesh = d.device_mesh if mesh is None else mesh
        said, back = d.placements, None
        if in_placements is not None:
            said = _expected(wanted, d, "in_placements", i)
            if said != d.placements and d.is_placed and not redistribute_inputs:
                raise ValueError(
                    f"{_WHO}: expected the DTensor at {i} with the placements {list(said)}, got "
                    f"{list(d.placements)}. Redistribute it, or pass redistribute_inputs=True."
                )
        if in_grad_placements is not None:
            back = _expected(in_grad_placements[i], d, "in_grad_placements", i)
        given.append(_own_part(d, said, back, i))
        if said == d.placements or not d.is_placed:
            parts.append((d, given[-1], said))
    out = func(*tree_unflatten(given, nest), **kwargs)
    for part in parts:
        _write_back(*part)
    assert mesh is not None  # of the argument that is a DTensor
    return _joined(out, out_placements, mesh)


def _expected(
    said: Sequence[Placement] | None, d: XLAShardedTensor, name: str, i: int
) -> tuple[Placement, ...]:
    if said is None:
        raise AssertionError(f"{_WHO}: expected {name} of the DTensor at {i}, got None.")
    return checked(said, d.dim(), d.device_mesh, _WHO, may_be_partial=True)


def _own_part(
    d: XLAShardedTensor, said: tuple[Placement, ...], back: tuple[Placement, ...] | None, i: int
) -> torch.Tensor:
    if ByCompiler() in said:
        raise ValueError(
            f"{_WHO}: expected placements of the DTensor at {i}, which the compiler splits as it "
            "chooses. Pass in_placements, or redistribute it."
        )
    if has_partial((*said, *d.placements)):
        d = d.redistribute(placements=said)
    if has_partial(said):
        return d.to_local(grad_placements=back)
    if back is not None:
        # The devices' gradients are added up in any case.
        whole = [Replicate() if isinstance(p, Partial) else p for p in back]
        d = on_mesh(with_gradient(d, whole), d.device_mesh)
    return partial.part_of(d, said, _WHO)


def _write_back(d: XLAShardedTensor, part: torch.Tensor, said: tuple[Placement, ...]) -> None:
    """A write of the function into its part is a write into the DTensor."""
    if part.is_inference() or part._version == 0:
        return
    if has_partial(said):
        raise NotImplementedError(
            f"{_WHO}: expected a function that leaves Partial arguments as they are, got one that "
            "writes into what each device holds. Let it write into a copy."
        )
    if d.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            f"{_WHO}: expected a function that leaves arguments as they are which need a gradient, "
            "got one that writes into them. Let it write into a copy."
        )
    with torch.no_grad():
        d.global_tensor.copy_(partial.of_parts(part, d.device_mesh, said, _WHO).global_tensor)


def _joined(out: Any, out_placements: Any, mesh: DeviceMesh) -> Any:
    flat, nest = tree_flatten(out)
    each = out_placements if isinstance(out_placements, tuple) else (out_placements,)
    if len(flat) != len(each):
        raise AssertionError(
            f"{_WHO}: expected out_placements for each of the {len(flat)} results, got {len(each)}."
        )
    return tree_unflatten([_result(t, p, mesh) for t, p in zip(flat, each, strict=True)], nest)


def _result(t: Any, said: Sequence[Placement] | None, mesh: DeviceMesh) -> Any:
    if not isinstance(t, torch.Tensor):
        if said is not None:
            raise AssertionError(
                f"{_WHO}: expected None as placements of the result {t!r}, which is no tensor, "
                f"got {said}."
            )
        return t
    if isinstance(t, DTensor):
        raise AssertionError(f"{_WHO}: expected a plain tensor as a result, got a DTensor.")
    plain = t.global_tensor if isinstance(t, XLAShardedTensor) else t.to("xla")
    placements = [Replicate()] * mesh.ndim if said is None else said
    of = checked(placements, plain.dim(), mesh, _WHO, may_be_partial=True)
    return partial.of_parts(plain, mesh, of, _WHO, exact=True)


# The functions of torch.distributed._functional_collectives. Their `group` is a mesh of one
# dimension, or (mesh, dim).


def all_reduce(t: torch.Tensor, reduction: str, group: Any) -> torch.Tensor:
    """`all_reduce` along a dimension of a `DeviceMesh("xla", ...)`."""
    return _done(exchanges.all_reduce(_plain(t), reduction.lower(), *_along(group)))


def all_gather(t: torch.Tensor, gather_dim: int, group: Any) -> torch.Tensor:
    """`all_gather_single`, likewise."""
    return _done(exchanges.all_gather(_plain(t), gather_dim, *_along(group)))


def reduce_scatter(t: torch.Tensor, reduction: str, scatter_dim: int, group: Any) -> torch.Tensor:
    """`reduce_scatter_single`, likewise."""
    made = exchanges.reduce_scatter(_plain(t), reduction.lower(), scatter_dim, *_along(group))
    return _done(made)


def _along(group: Any) -> tuple[DeviceMesh, tuple[int, ...]]:
    mesh, *dims = group if isinstance(group, tuple) else (group,)
    if not dims and mesh.ndim != 1:
        raise ValueError(
            f"torch.distributed: expected a mesh of one dimension or (mesh, dim), got {mesh}."
        )
    return mesh, tuple(dims) or (0,)


def _plain(t: torch.Tensor) -> torch.Tensor:
    return t.global_tensor if isinstance(t, XLAShardedTensor) else t


class _Done(torch.Tensor):
    """A tensor with the `wait()` of those that PyTorch's collectives give. What is computed from it
    is a plain tensor.
    """

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    def wait(self) -> torch.Tensor:
        """The plain tensor, at once."""
        return self.as_subclass(torch.Tensor)


make_known(_Done)


def _done(t: torch.Tensor) -> torch.Tensor:
    return t.as_subclass(_Done)
