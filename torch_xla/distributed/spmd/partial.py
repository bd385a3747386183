"""DTensors of what each device holds: `Partial`, and parts that manual code has computed.

Along a dimension with `Partial` each device holds a value of the sizes of the whole, and the whole
is their sum (or their average, maximum, ..). Such a DTensor keeps both: what each device holds, as
a manual tensor, and the whole, by which it computes as any DTensor. A whole that is dropped before
the next step's end, and that nothing was computed from, is reduced by no program.

Gradients are as PyTorch defines them for DTensor: of `Partial` they are `Replicate`, so each device
gets the gradient of the whole for what it holds, whatever the reduction is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from torch_xla import _XLAC
from torch_xla._src.dynamo.uncaptured import uncaptured
from torch_xla.distributed.spmd import exchanges
from torch_xla.distributed.spmd.constraints import split
from torch_xla.distributed.spmd.mesh import Mesh, PartitionSpec, ShardingError
from torch_xla.distributed.spmd.placements import (
    axes_of,
    checked,
    convert_to_xla_mesh,
    has_partial,
    name_of,
    spec_along,
)
from torch_xla.distributed.spmd.xla_sharded_tensor import (
    GradientIn,
    XLAShardedTensor,
    make_known,
    on_mesh,
    placed,
)

_uncaptured = uncaptured("what devices hold of a Partial DTensor is used outside of torch.compile")


@dataclasses.dataclass(frozen=True)
class Layout:
    """The way in which devices' parts make a whole: by placements on a mesh. Of a sub-mesh, devices
    along the other axes hold copies. Gradients are those of the reductions themselves where they
    are `exact`, else PyTorch's.
    """

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    exact: bool = False

    @property
    def partial(self) -> tuple[int, ...]:
        """The dimensions of the mesh along which devices hold what is to be reduced."""
        return tuple(i for i, p in enumerate(self.placements) if isinstance(p, Partial))

    def count(self, dims: Sequence[int]) -> int:
        """The number of devices along dimensions of the mesh."""
        return math.prod(self.mesh.size(dim) for dim in dims)

    def parts(self, dim: int) -> int:
        """Into how many parts a dimension of the tensor is split."""
        return self.count([i for i, p in enumerate(self.placements) if p == Shard(dim)])

    def text(self, rank: int, leading: Sequence[int] = ()) -> str:
        """The sharding of the whole for the operators at the boundaries of manual code. Before its
        dimensions it has one for each of some dimensions of the mesh, which is split along it.
        """
        axes = axes_of(self.mesh)
        spec: PartitionSpec = tuple(tuple(axes[dim]) for dim in leading)
        spec += spec_along(rank, axes, self.placements)
        op_sharding = convert_to_xla_mesh(self.mesh).get_op_sharding(spec)
        return op_sharding.constraint(rank + len(leading))

    def evened(self, sizes: Sequence[int]) -> Layout:
        """The same without `Shard` where it does not divide the sizes of the whole: there each
        device holds all of a dimension.
        """
        even = [size % self.parts(dim) == 0 for dim, size in enumerate(sizes)]
        placements = tuple(
            Replicate() if isinstance(p, Shard) and not even[p.dim] else p for p in self.placements
        )
        return dataclasses.replace(self, placements=placements)

    def reduced(self, own: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        """Each device's value, reduced along some of the dimensions with `Partial`."""
        for reduction, *along in self._reductions(dims):
            own = exchanges.all_reduce(own, reduction, self.mesh, along)
        return own

    def _reductions(self, dims: Sequence[int]) -> list[tuple[Any, ...]]:
        by_name: dict[str, list[int]] = {}
        for dim in dims:
            by_name.setdefault(_reduction(self.placements[dim]), []).append(dim)
        return [(name, *along) for name, along in by_name.items()]

    def scattered(self, own: torch.Tensor, dim: int) -> torch.Tensor:
        """Each device's value, reduced along `Partial`; each gets a part along a dimension of
        the tensor.
        """
        ((reduction, *along),) = self._reductions(self.partial)
        return exchanges.reduce_scatter(own, reduction, dim, self.mesh, along)


def _reduction(placement: Placement) -> str:
    assert isinstance(placement, Partial)
    return placement.reduce_op


def expect_one_reduction(placements: Sequence[Placement], who: str) -> None:
    """Raises a ValueError where placements have reductions whose order would matter."""
    found = {p.reduce_op for p in placements if isinstance(p, Partial)}
    if len(found) > 1 and found != {"sum", "avg"}:
        raise ValueError(
            f"{who}: expected one reduction in all Partial placements, got {sorted(found)}."
        )


def _joined(own: torch.Tensor, layout: Layout, kept: tuple[int, ...] = ()) -> torch.Tensor:
    """The whole of what devices hold, reduced along all dimensions with `Partial` but those that
    are `kept`: it has a dimension for each of these, the first ones.
    """
    ended = [dim for dim in layout.partial if dim not in kept]
    text = layout.text(own.dim(), kept)
    if not layout.exact or all(_reduction(layout.placements[dim]) == "sum" for dim in ended):
        return _Joined.apply(own, layout, ended, len(kept), text)
    return _assembled(own, layout, ended, len(kept), text)


def _assembled(
    own: torch.Tensor, layout: Layout, ended: Sequence[int], leading: int, text: str
) -> torch.Tensor:
    reduced = layout.reduced(own, ended)[(None,) * leading]
    return torch.ops.torch_xla.shard_to_full(reduced, text)


class _Joined(torch.autograd.Function):
    """The result of `_joined` with PyTorch's gradient, that of a sum: it is sent nowhere."""

    @staticmethod
    def forward(
        ctx: Any, own: torch.Tensor, layout: Layout, ended: Sequence[int], leading: int, text: str
    ) -> torch.Tensor:
        ctx.how = text, _XLAC._copies_of_parts(text) // layout.count(ended), own.shape
        return _assembled(own, layout, ended, leading, text)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        text, copies, sizes = ctx.how
        part = torch.ops.torch_xla.full_to_shard(grad, text).reshape(sizes)
        return part if copies == 1 else part / copies, None, None, None, None


class _Held(torch.autograd.Function):
    """Each device's share of a whole: its part, of which those along `Partial` have copies. The
    gradient of the whole is that of any of these.
    """

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, own: torch.Tensor, layout: Layout) -> torch.Tensor:
        ctx.layout = layout
        return own.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        layout = ctx.layout
        whole = torch.ops.torch_xla.shard_to_full(grad, layout.text(grad.dim()), True)
        return whole / layout.count(layout.partial), None, None


class _Instead(torch.autograd.Function):
    """An equal value, computed in another way, or one that stands for it; its gradient is that of
    the first.
    """

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad.clone(), None


class _GradientReduced(torch.autograd.Function):
    """Each device's value, with a gradient that is reduced as `Partial` placements say."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, layout: Layout) -> torch.Tensor:
        ctx.layout = layout
        return own.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.layout.reduced(grad, ctx.layout.partial), None


class XLAPartialDTensor(XLAShardedTensor):
    """A DTensor with `Partial` among its placements, until it is written.

    Args:
        whole: What devices hold, reduced.
        own: What each device holds, a manual tensor.
        layout: How that makes the whole.
        placements: As they were said.
    """

    @staticmethod
    def __new__(
        cls,
        whole: torch.Tensor,
        own: torch.Tensor,
        layout: Layout,
        placements: tuple[Placement, ...],
    ) -> Any:
        if whole.is_inference():
            with torch.inference_mode(False):  # else nothing would tell that it was written
                whole = whole.clone()
        made = placed(whole, name_of(layout.mesh), cls=cls)
        made.__dict__["_held"] = own, layout, placements, whole._version
        return made

    @property
    def _is_held(self) -> bool:
        """True if the whole is still that of what devices hold: nothing was written into it."""
        return self._version == self.__dict__["_held"][-1]

    @property
    @_uncaptured
    def placements(self) -> tuple[Placement, ...]:
        return self.__dict__["_held"][2] if self._is_held else super().placements

    @property
    def is_placed(self) -> bool:
        return self._is_held

    def _own(self) -> torch.Tensor:
        """Each device's value; of a leaf of autograd, with its gradient."""
        own, layout, *_ = self.__dict__["_held"]
        if self.requires_grad and not own.requires_grad:
            return _Held.apply(self.global_tensor, own, layout)
        return own

    @_uncaptured
    def detach(self) -> Any:
        if not self._is_held:
            return super().detach()
        own, layout, placements, _ = self.__dict__["_held"]
        return XLAPartialDTensor(self.global_tensor.detach(), own.detach(), layout, placements)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copies and files have the whole."""
        made, (plain, mesh, said, *rest) = super().__reduce_ex__(protocol)
        said = None if said is None else tuple(map(_replicated, said))
        return made, (plain, mesh, said, *rest)

    @_uncaptured
    def redistribute(
        self,
        device_mesh: DeviceMesh | Mesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        async_op: bool = False,
        forward_dtype: torch.dtype | None = None,
        backward_dtype: torch.dtype | None = None,
    ) -> XLAShardedTensor:
        """As `XLAShardedTensor.redistribute`: what devices hold is reduced along the dimensions
        that are to be `Replicate` or `Shard`; a `Partial` of the tensor's own may stay.
        """
        mesh = self.device_mesh
        if placements is None or device_mesh not in (None, mesh) or not self._is_held:
            return super().redistribute(
                device_mesh, placements, forward_dtype=forward_dtype, backward_dtype=backward_dtype
            )
        said = checked(placements, self.dim(), mesh, "redistribute", may_be_partial=True)
        _expect_present(self.placements, said)
        if forward_dtype not in (None, self.dtype):
            _, layout, present, _ = self.__dict__["_held"]
            sent = _of_own(self._own().to(forward_dtype), layout, present)
            return sent.redistribute(mesh, said, backward_dtype=backward_dtype)
        if has_partial(said):
            return self._still_partial(said, backward_dtype)
        whole = self._scattered(said)
        return on_mesh(whole, mesh).redistribute(mesh, said, backward_dtype=backward_dtype)

    def _scattered(self, said: tuple[Placement, ...]) -> torch.Tensor:
        """The whole; where each device is to have a part of what is reduced, no more is sent."""
        own, layout, *_ = self.__dict__["_held"]
        targets = {said[dim] for dim in layout.partial}
        rest = [p for i, p in enumerate(said) if i not in layout.partial]
        stays = rest == [p for p in layout.placements if not isinstance(p, Partial)]
        names = {_reduction(layout.placements[dim]) for dim in layout.partial}
        target = targets.pop() if len(targets) == len(names) == 1 else None
        if (
            not isinstance(target, Shard)
            or not stays
            or target in rest
            or names & {*exchanges.OF_BITS}
        ):
            return self.global_tensor
        if own.shape[target.dim] % layout.count(layout.partial):
            return self.global_tensor
        part = layout.scattered(own.detach(), target.dim)
        text = Layout(layout.mesh, said).text(self.dim())
        return _Instead.apply(self.global_tensor, torch.ops.torch_xla.shard_to_full(part, text))

    def _still_partial(
        self, said: tuple[Placement, ...], backward_dtype: torch.dtype | None
    ) -> XLAShardedTensor:
        _, layout, *_ = self.__dict__["_held"]
        kept = tuple(i for i, p in enumerate(said) if isinstance(p, Partial))
        target = dataclasses.replace(layout, placements=said).evened(self.shape)
        own = self._own()
        if backward_dtype is not None:
            own = GradientIn.apply(own, backward_dtype)
        stacked = _joined(own, layout, kept)
        part = torch.ops.torch_xla.full_to_shard(stacked, target.text(self.dim(), kept))
        return _of_own(part.reshape(part.shape[len(kept) :]), target, said)

    @_uncaptured
    def to_local(self, *, grad_placements: Sequence[Placement] | None = None) -> torch.Tensor:
        """Each device's value, as a manual tensor: a copy.

        Args:
            grad_placements: With `Partial` where the devices' gradients are to be reduced; others
                are each device's own.
        """
        if not self._is_held:
            return super().to_local(grad_placements=grad_placements)
        own = self._own()
        if grad_placements is None:
            return own.clone()
        mesh = self.device_mesh
        said = checked(grad_placements, self.dim(), mesh, "to_local", may_be_partial=True)
        return _GradientReduced.apply(own, Layout(mesh, said))


make_known(XLAPartialDTensor)


def _replicated(placement: Placement) -> Placement:
    return Replicate() if isinstance(placement, Partial) else placement


def _expect_present(present: Sequence[Placement], said: Sequence[Placement]) -> None:
    for before, placement in zip(present, said, strict=True):
        if isinstance(placement, Partial) and placement != before:
            raise RuntimeError(
                f"redistribute: expected Shard or Replicate where the tensor has {before}, got "
                f"{placement}. distribute_tensor and DTensor.from_local make it."
            )


def _of_own(
    own: torch.Tensor, layout: Layout, placements: tuple[Placement, ...]
) -> XLAShardedTensor:
    whole = _joined(own, layout)
    if not layout.partial:
        return on_mesh(whole, layout.mesh, placements)
    return XLAPartialDTensor(whole, own, layout, placements)


@_uncaptured
def of_parts(
    t: torch.Tensor,
    device_mesh: DeviceMesh,
    placements: tuple[Placement, ...],
    who: str,
    exact: bool = False,
) -> XLAShardedTensor:
    """The DTensor whose parts a manual tensor has.

    Args:
        t: Manual, or a part that all devices share.
        device_mesh: The mesh. Devices along axes that a sub-mesh lacks must have the same.
        placements: As `checked` gives them.
        who: For errors.
        exact: Whether its gradient is that of the reductions, not PyTorch's.

    Raises:
        ValueError: Several reductions.
    """
    expect_one_reduction(placements, who)
    own = exchanges.own(t).clone()  # which nobody else writes
    return _of_own(own, Layout(device_mesh, placements, exact), placements)


def part_of(d: XLAShardedTensor, placements: tuple[Placement, ...], who: str) -> torch.Tensor:
    """Each device's part of a DTensor without `Partial` that is split so, as a manual tensor. Its
    gradient is that of all devices: of copies of one part, the sum.

    Raises:
        ShardingError: The placements do not divide the tensor's sizes.
    """
    layout = Layout(d.device_mesh, placements)
    if layout != layout.evened(d.shape):
        raise ShardingError(
            f"{who}: expected sizes that the mesh {tuple(d.device_mesh.shape)} divides, got "
            f"{list(d.shape)} with {list(placements)}. Pad the tensor."
        )
    return torch.ops.torch_xla.full_to_shard(d.global_tensor, layout.text(d.dim()))


@_uncaptured
def from_whole(
    t: torch.Tensor, device_mesh: DeviceMesh, placements: tuple[Placement, ...], who: str
) -> XLAShardedTensor:
    """The DTensor of which devices along `Partial` hold the same: of a sum, the value times their
    number. Of `Shard` and `Replicate` the value is the whole.

    Raises:
        ValueError: Several reductions.
    """
    expect_one_reduction(placements, who)
    layout = Layout(device_mesh, placements).evened(t.shape)
    own = torch.ops.torch_xla.full_to_shard(t.detach(), layout.text(t.dim()))
    whole = _Instead.apply(t, _joined(own, layout))
    return XLAPartialDTensor(whole, _Held.apply(t, own, layout), layout, placements)


@_uncaptured
def distributed(
    t: torch.Tensor, device_mesh: DeviceMesh, placements: tuple[Placement, ...], who: str
) -> XLAShardedTensor:
    """The DTensor with `Partial` whose whole is a value: of a sum, devices hold equal shares.

    Raises:
        ValueError: Several reductions, or one of a product or of bits, which is not undone.
        TypeError: A sum of integers, which have no equal shares.
    """
    expect_one_reduction(placements, who)
    layout = Layout(device_mesh, placements).evened(t.shape)
    names = {p.reduce_op for p in placements if isinstance(p, Partial)}
    if not names <= {"sum", "avg", "min", "max"}:
        raise ValueError(f"{who}: expected a sum, avg, min or max in Partial, got {names.pop()!r}.")
    if "sum" in names and not (t.is_floating_point() or t.is_complex()):
        raise TypeError(
            f"{who}: expected a floating-point tensor for Partial('sum'), of which each device "
            f"holds an equal share, got {t.dtype}."
        )
    shares = layout.count([i for i in layout.partial if _reduction(placements[i]) == "sum"])
    held = t.detach() if shares == 1 else t.detach() / shares
    text = layout.text(t.dim())
    own = torch.ops.torch_xla.full_to_shard(held, text)
    return XLAPartialDTensor(split(t, text, text), own, layout, placements)
