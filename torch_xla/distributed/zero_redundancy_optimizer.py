"""ZeRO-1: each rank keeps an optimizer's state for its shard of each parameter, and updates that.

Gradients are scattered, shards are updated in a dtype of the optimizer's own, and gathered.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

import torch_xla
from torch_xla import runtime as xr
from torch_xla.core import xla_model as xm
from torch_xla.distributed.fsdp._shards import Layout


class _Sharded(NamedTuple):
    """A parameter and this rank's shard of it."""

    full: nn.Parameter
    shard: Any


class ZeroRedundancyOptimizer(Optimizer):
    """An optimizer whose state, and the weights that it updates, are split among ranks.

    It averages gradients itself: call its `step()`, not `xm.optimizer_step`. An optimizer that
    takes norms of parameters (LAMB) sees those of shards.

    Args:
        params: The parameters, or groups of them, on xla.
        optimizer_class: What updates the shards.
        optimizer_dtype: The dtype of the shards; float32 without it.
        grad_clipping: Whether gradients are scaled such that their norm is at most `max_norm`.
        max_norm: The largest norm; 1.0 without it.
        pin_layout: Accepted for programs written for earlier versions.
        sharding_groups: Groups of ranks: parameters are split within each. All ranks without it.
        grad_norm_groups: Groups over which the squared norm is added up, too: of ranks that have
            other parameters.
        lazy_init: Whether `init_zero()` is left to the program.
        bucket_cap_mb_all_gather: How many MiB are gathered in one exchange; all if 0.
        bucket_cap_mb_reduce_scatter: How many MiB of gradients go in one exchange; all if 0.
        use_grad_acc_hook: Whether gradients of several backward passes are added in
            `optimizer_dtype`.
        save_master_weights: Whether `state_dict()` has the shards.
        higher_cc_precision: Whether gradients are sent in `optimizer_dtype`.
        defaults: Options of `optimizer_class`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[Optimizer],
        optimizer_dtype: torch.dtype | None = None,
        grad_clipping: bool = True,
        max_norm: float | None = None,
        pin_layout: bool = True,
        sharding_groups: list[list[int]] | None = None,
        grad_norm_groups: list[list[int]] | None = None,
        lazy_init: bool = False,
        bucket_cap_mb_all_gather: int = 0,
        bucket_cap_mb_reduce_scatter: int = 0,
        use_grad_acc_hook: bool = False,
        save_master_weights: bool = False,
        higher_cc_precision: bool = False,
        **defaults: Any,
    ):
        super().__init__(params, defaults)
        self.optimizer_class = optimizer_class
        self.defaults = defaults
        self.optimizer_dtype = optimizer_dtype or torch.float32
        self.grad_clipping = grad_clipping
        self.max_norm = 1.0 if max_norm is None else max_norm
        self.save_master_weights = save_master_weights
        self.higher_cc_precision = higher_cc_precision
        self.use_grad_acc_hook = use_grad_acc_hook
        self.bucket_cap_mb_all_gather = bucket_cap_mb_all_gather
        self.bucket_cap_mb_reduce_scatter = bucket_cap_mb_reduce_scatter
        self._sharding_groups = sharding_groups or [list(range(xr.world_size()))]
        self._grad_norm_groups = grad_norm_groups
        self._grad_norm: torch.Tensor | None = None
        self._hooks: list[Any] = []
        self._parameters: list[_Sharded] = []
        self.inited = False
        if not lazy_init:
            self.init_zero()

    def init_zero(self) -> None:
        """Makes the shards of the parameters as they are now, and their optimizer."""
        self.remove_hooks()
        rank = xr.global_ordinal()
        own = next((group for group in self._sharding_groups if rank in group), None)
        if own is None:
            raise ValueError(
                f"ZeroRedundancyOptimizer: expected sharding_groups with this rank, {rank}, got "
                f"{self._sharding_groups}."
            )
        self.local_world_size, self.local_rank = len(own), list(own).index(rank)
        self._layout = Layout(self.local_world_size, 1, on_dim_0=True)
        self._parameters, groups = [], []
        for group in self.param_groups:
            pairs = [_Sharded(full, self._shard_of(full)) for full in group["params"]]
            groups.append({**group, "params": [pair.shard for pair in pairs]})
            self._parameters += pairs
        self.base_optimizer = self.optimizer_class(groups, **self.defaults)
        _copy_options(self.param_groups, self.base_optimizer.param_groups)
        if self.use_grad_acc_hook:
            for pair in self._parameters:
                if pair.full.requires_grad:
                    self._hooks.append(
                        pair.full.register_post_accumulate_grad_hook(self._accumulate_in(pair))
                    )
        self.inited = True

    @torch.no_grad()
    def _shard_of(self, full: nn.Parameter) -> nn.Parameter:
        if full.device.type != "xla":
            raise ValueError(
                f"ZeroRedundancyOptimizer: expected parameters on xla, got one on {full.device}."
            )
        data = self._layout.shard(_rows(full.detach()), self.local_rank)
        return nn.Parameter(data.to(self.optimizer_dtype), full.requires_grad)

    def _accumulate_in(self, pair: _Sharded) -> Callable[[torch.Tensor], None]:
        def accumulate(full: Any) -> None:
            gradient = full.grad.to(self.optimizer_dtype)
            before = getattr(pair.shard, "main_grad", None)
            pair.shard.main_grad = gradient if before is None else before + gradient
            full.main_grad = pair.shard.main_grad
            full.grad = None

        return accumulate

    def remove_hooks(self) -> None:
        """Ends adding gradients in `optimizer_dtype`."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """The norm of all gradients of the last step, before they were clipped."""
        return self._grad_norm

    @property
    def sharding_groups(self) -> list[list[int]]:
        """The groups of ranks within which parameters are split."""
        return self._sharding_groups

    @sharding_groups.setter
    def sharding_groups(self, groups: list[list[int]]) -> None:
        if self.inited:
            raise RuntimeError(
                "ZeroRedundancyOptimizer: expected sharding_groups to be set before init_zero()."
            )
        self._sharding_groups = groups

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Averages gradients, updates the shards, and gathers the parameters.

        Args:
            closure: Computes the loss again.
            kwargs: Named arguments of the optimizer's `step`; and `sharding_scheme`, a list of
                dicts with `sharding_group`, `group_size` and `scale_factor`, by which gradients are
                scattered in several exchanges.

        Returns:
            What `closure` returns.
        """
        if not self.inited:
            raise RuntimeError("ZeroRedundancyOptimizer: expected init_zero() before step().")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scheme = kwargs.pop("sharding_scheme", None) or self._scheme()
        _copy_options(self.param_groups, self.base_optimizer.param_groups)
        updated = self._reduce_gradients(scheme)
        if self.grad_clipping:
            self._clip()
        self.base_optimizer.step(closure=None, **kwargs)
        self.base_optimizer.zero_grad(set_to_none=True)
        self._gather(updated, scheme)
        _copy_options(self.base_optimizer.param_groups, self.param_groups)
        return loss

    def _scheme(self) -> list[dict[str, Any]]:
        return [
            {
                "scale_factor": 1.0,
                "sharding_group": self._sharding_groups,
                "group_size": self.local_world_size,
            }
        ]

    def _reduce_gradients(self, scheme: Sequence[dict[str, Any]]) -> list[_Sharded]:
        updated, gradients = [], []
        for pair in self._parameters:
            added = getattr(pair.shard, "main_grad", None) if self.use_grad_acc_hook else None
            gradient = pair.full.grad if added is None else added
            if gradient is not None:
                updated.append(pair)
                whole = self._layout.whole(_rows(gradient))
                gradients.append(
                    whole.to(self.optimizer_dtype) if self.higher_cc_precision else whole
                )
        for step in scheme if gradients else ():
            gradients = xm.reduce_scatter_bucketized(
                xm.REDUCE_SUM,
                gradients,
                step["scale_factor"] / step["group_size"],
                0,
                step["group_size"],
                groups=step["sharding_group"],
                bucket_cap_mb=self.bucket_cap_mb_reduce_scatter or _ALL,
            )
        for pair, gradient in zip(updated, gradients, strict=True):
            pair.shard.grad = gradient.to(self.optimizer_dtype)
        return updated

    def _clip(self) -> None:
        gradients = [p.shard.grad for p in self._parameters if p.shard.grad is not None]
        device = self._parameters[0].full.device
        total = torch.zeros((), dtype=self.optimizer_dtype, device=device)
        for gradient in gradients:
            total = total + gradient.square().sum()
        for groups in (self._sharding_groups, self._grad_norm_groups):
            if groups is not None:
                total = xm.all_reduce(xm.REDUCE_SUM, total, groups=groups)
        self._grad_norm = total.sqrt()
        factor = torch.clamp(self.max_norm / (self._grad_norm + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.mul_(factor)

    @torch.no_grad()
    def allgather_weights_and_update_full_parameter(
        self, sharding_scheme: Sequence[dict[str, Any]] | None = None
    ) -> None:
        """Writes the shards of all ranks to the parameters.

        Args:
            sharding_scheme: As in `step`.
        """
        self._gather(self._parameters, sharding_scheme or self._scheme())

    def _gather(self, pairs: Sequence[_Sharded], scheme: Sequence[dict[str, Any]]) -> None:
        values = [pair.shard.detach().to(pair.full.dtype) for pair in pairs]
        for step in reversed(scheme if values else ()):
            values = xm.all_gather_bucketized(
                values,
                0,
                groups=step["sharding_group"],
                bucket_cap_mb=self.bucket_cap_mb_all_gather or _ALL,
            )
        for pair, value in zip(pairs, values, strict=True):
            size = _rows(pair.full).shape
            pair.full.copy_(self._layout.restore(value, size).view(pair.full.shape))

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Forgets gradients, those in `optimizer_dtype` too, or makes them zeros."""
        super().zero_grad(set_to_none=set_to_none)
        for pair in self._parameters:
            if hasattr(pair.shard, "main_grad"):
                del pair.shard.main_grad
            if hasattr(pair.full, "main_grad"):
                del pair.full.main_grad

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: each rank saves its own."""
        state = super().state_dict()
        state["base_state"] = self.base_optimizer.state_dict()["state"]
        state["shape_info"] = self.get_shape_info()
        if self.save_master_weights:
            state["sharded_master_weights"] = {
                i: pair.shard.detach() for i, pair in enumerate(self._parameters)
            }
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what this rank saved. With master weights, parameters become these."""
        state_dict = copy.copy(state_dict)
        base_state = state_dict.pop("base_state")
        weights = state_dict.pop("sharded_master_weights", None)
        state_dict.pop("shape_info", None)
        super().load_state_dict(state_dict)
        self.init_zero()
        self.base_optimizer.load_state_dict(
            {"state": base_state, "param_groups": state_dict["param_groups"]}
        )
        if weights is not None:
            for i, pair in enumerate(self._parameters):
                pair.shard.copy_(weights[i])
            self.allgather_weights_and_update_full_parameter()
            torch_xla.sync()

    def load_sharded_state_dicts(self, state_dicts: Sequence[Mapping[str, Any]]) -> None:
        """Loads what the ranks of a job of any number saved: this rank takes its part.

        Args:
            state_dicts: `state_dict()` of each rank of one sharding group, in the order of ranks.

        Raises:
            ValueError: They are not those of all ranks of a group.
        """
        if not self.inited:
            self.init_zero()
        saved = Layout(len(state_dicts), 1, on_dim_0=True)
        first = state_dicts[0]

        def part(index: int, values: list[Any]) -> Any:
            if not isinstance(values[0], torch.Tensor) or not values[0].dim():
                return values[0]
            size = first["shape_info"][index] or torch.Size([1])
            rows = sum(value.size(0) for value in values)
            if rows != saved.length(size) * len(values):
                raise ValueError(
                    "ZeroRedundancyOptimizer.load_sharded_state_dicts: expected the state dicts of "
                    f"all ranks of a group; parameter {index} has {size[0]} rows, the "
                    f"{len(values)} given have {rows}."
                )
            whole = torch.cat([value.cpu() for value in values]).narrow(0, 0, size[0])
            return self._layout.shard(whole, self.local_rank)

        base = {
            index: {
                kind: part(index, [s["base_state"][index][kind] for s in state_dicts])
                for kind in kinds
            }
            for index, kinds in first["base_state"].items()
        }
        own = {**first, "base_state": base}
        if "sharded_master_weights" in first:
            own["sharded_master_weights"] = {
                index: part(index, [s["sharded_master_weights"][index] for s in state_dicts])
                for index in first["sharded_master_weights"]
            }
        self.load_state_dict(own)

    def get_shape_info(self) -> dict[int, torch.Size]:
        """The shapes of the parameters by their numbers."""
        return {i: pair.full.shape for i, pair in enumerate(self._parameters)}


_ALL = 1 << 40  # MiB


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """A scalar as a tensor of one row."""
    return tensor.reshape(1) if tensor.dim() == 0 else tensor


def _copy_options(source: list[dict[str, Any]], target: list[dict[str, Any]]) -> None:
    """Copies what groups of parameters have beside these: learning rates, for example."""
    for from_group, to_group in zip(source, target, strict=True):
        to_group.update({k: v for k, v in from_group.items() if k != "params"})
