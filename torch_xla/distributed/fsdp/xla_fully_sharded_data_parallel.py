"""FSDP: each process of a job holds a shard of each parameter, of its gradient and of what an
optimizer keeps for it. Full values exist while a module computes.

A full value is a function of its shard for autograd (_autograd.py): its gradient is scattered, and
becomes that of the shard. What is saved for the backward pass is gathered again there
(_full_values.py).
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

import torch_xla
from torch_xla import _XLAC
from torch_xla.core import xla_model as xm
from torch_xla.distributed.fsdp import _arguments, _shards, loading
from torch_xla.distributed.fsdp._arguments import FLOAT_DTYPES  # noqa: F401
from torch_xla.distributed.fsdp._autograd import Barrier, FullOfShards, behind_barrier
from torch_xla.distributed.fsdp._full_values import FullValues
from torch_xla.distributed.fsdp._init_utils import _materialize_module
from torch_xla.distributed.fsdp.utils import (
    DummyReduceScatter,
    apply_xla_patch_to_nn_linear,  # noqa: F401
    dummy_all_gather,
    dummy_all_reduce,
)
from torch_xla.distributed.fsdp.wrap import recursive_wrap
from torch_xla.distributed.fsdp.xla_flatten_params_wrapper import Place, XlaFlattenParamsWrapper

# MiB of gradients in one exchange, unless the user says; as many as PyTorch's DDP takes.
_ON_HOST_MB = 25


class TrainingState(Enum):
    """The work that a wrapper does."""

    IDLE = auto()
    FORWARD = auto()
    BACKWARD_PRE = auto()
    BACKWARD_POST = auto()


class XlaFullyShardedDataParallel(_shards.HoldsShards):
    """A module whose parameters are split among the processes of a job.

    Wrap inner modules first, or give `auto_wrap_policy`: then full values of one inner module exist
    at a time. Make the optimizer after wrapping, and call its `step()`, not `xm.optimizer_step`.
    Each process saves `state_dict()`, with `get_shard_metadata()` beside it; see
    `consolidate_sharded_model_checkpoints` for making one file of them.

    Args:
        module: The module. All processes have equal ones, since each keeps its part of its own.
        reshard_after_forward: Whether full values are gathered anew for the backward pass (ZeRO-3)
            or kept for it (ZeRO-2).
        flatten_parameters: Whether all parameters are one, in a line: one exchange for all.
        execute_sharding_on_init: Whether a barrier is issued at the end, which frees what was there
            of full parameters.
        optimization_barrier_in_forward: Whether the module gathers after its inputs are computed,
            and what follows is computed after it. Without it the compiler may gather earlier: that
            takes more memory, and less time where it overlaps.
        optimization_barrier_in_backward: The same for the backward pass.
        sync_on_finalization: Whether the outermost wrapper issues a barrier after backward.
        disable_reshard_on_root: Whether the outermost wrapper keeps full values for the backward
            pass, which begins with it.
        compute_dtype: The dtype of full values, and of floating point inputs; without it that of
            the parameters.
        buffer_dtype: The dtype of floating point buffers; without it `compute_dtype`.
        fp32_reduce_scatter: Whether gradients of a narrower `compute_dtype` are added in float32.
        sharding_groups: Groups of ranks: parameters are split within each. All ranks without it.
        sharding_rank: This process's place in its group; needed with `sharding_groups`.
        sharding_world_size: The size of a group; needed with `sharding_groups`.
        shard_param_on_dim_0: Whether parameters are cut into rows, else into pieces of a line.
        pin_layout_in_collective_ops: Accepted for programs written for earlier versions.
        reduce_scatter_bucket_size_mb: How many MiB of gradients go in one exchange; each parameter
            in one of its own if 0, or 25 MiB where exchanges go through the host, as on the CPU.
        coalesce_all_gather_ops: Whether one exchange gathers all parameters of the module; through
            the host one does.
        auto_wrap_policy: Which modules within are wrapped, too; see
            `torch_xla.distributed.fsdp.wrap`.
        auto_wrapper_callable: What wraps these; this class without it.
        param_init_fn: Fills a module whose parameters are on `meta`; without it
            `reset_parameters` does.
        replication_groups: Groups of ranks that have the same shard of different `sharding_groups`:
            gradients are averaged over these, too. Together they are hybrid sharding (HSDP).
        mark_step_on_finalization: The older name of `sync_on_finalization`.

    `_shard_size_multiple` is the number of elements that shards are padded to. The `_debug_dummy_*`
    leave out exchanges, barriers or the module's own work, to measure what they cost.
    """

    def __init__(
        self,
        module: nn.Module,
        reshard_after_forward: bool = True,
        flatten_parameters: bool = False,
        execute_sharding_on_init: bool = True,
        optimization_barrier_in_forward: bool = True,
        optimization_barrier_in_backward: bool = True,
        sync_on_finalization: bool = False,
        disable_reshard_on_root: bool = True,
        compute_dtype: torch.dtype | None = None,
        buffer_dtype: torch.dtype | None = None,
        fp32_reduce_scatter: bool = False,
        sharding_groups: list[list[int]] | None = None,
        sharding_rank: int | None = None,
        sharding_world_size: int | None = None,
        shard_param_on_dim_0: bool = False,
        pin_layout_in_collective_ops: bool = True,
        reduce_scatter_bucket_size_mb: int | None = 0,
        coalesce_all_gather_ops: bool = False,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        param_init_fn: Callable[[nn.Module], None] | None = None,
        _shard_size_multiple: int = 128,
        _use_xla_patched_linear: bool = True,
        _debug_dummy_forward_pass: bool = False,
        _debug_msg: str = "xla_fsdp",
        _debug_print: bool = False,
        _debug_dummy_all_gather_op: bool = False,
        _debug_dummy_all_reduce_op: bool = False,
        _debug_dummy_reduce_scatter_op: bool = False,
        _debug_dummy_optimization_barrier_op: bool = False,
        *,
        replication_groups: list[list[int]] | None = None,
        mark_step_on_finalization: bool = False,
    ):
        arguments = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "module", "__class__", "auto_wrap_policy")
        }
        _arguments.check_module(module, XlaFullyShardedDataParallel)
        super().__init__()
        if auto_wrap_policy is not None:
            _wrap_inner(module, auto_wrap_policy, arguments)

        self.reshard_after_forward = reshard_after_forward
        self.disable_reshard_on_root = disable_reshard_on_root
        self.flatten_parameters = flatten_parameters
        has_barriers = not _debug_dummy_optimization_barrier_op
        self.optimization_barrier_in_forward = optimization_barrier_in_forward and has_barriers
        self.optimization_barrier_in_backward = optimization_barrier_in_backward and has_barriers
        self.sync_on_finalization = sync_on_finalization or mark_step_on_finalization
        self.compute_dtype = _arguments.float_dtype("compute_dtype", compute_dtype)
        of_buffers = _arguments.float_dtype("buffer_dtype", buffer_dtype)
        self.buffer_dtype = of_buffers or self.compute_dtype
        self.fp32_reduce_scatter = fp32_reduce_scatter
        # A compiler may join exchanges; those through the host take their time each.
        on_host = _XLAC._xla_exchanges_on_host()
        self.coalesce_all_gather_ops = coalesce_all_gather_ops or on_host
        self.sharding_groups = sharding_groups
        self.replication_groups = replication_groups
        self.rank, self.world_size = _arguments.place_in_group(
            sharding_groups, sharding_rank, sharding_world_size
        )
        replicas = len(replication_groups[0]) if replication_groups else 1
        self.gradient_predivide_factor = _arguments.predivide_factor(self.world_size * replicas)
        self.gradient_postdivide_factor = (
            self.world_size * replicas / self.gradient_predivide_factor
        )
        self._reduce_scale = 1.0
        self._debug_dummy_forward_pass = _debug_dummy_forward_pass
        self._all_gather = dummy_all_gather if _debug_dummy_all_gather_op else xm.all_gather
        self._all_reduce: Callable[..., Any] = (
            dummy_all_reduce if _debug_dummy_all_reduce_op else xm.all_reduce
        )
        self._dummy_reduce_scatter = (
            DummyReduceScatter(self.world_size) if _debug_dummy_reduce_scatter_op else None
        )
        on_dim_0 = shard_param_on_dim_0 and not flatten_parameters
        self._layout = _shards.Layout(
            self.world_size, 1 if shard_param_on_dim_0 else _shard_size_multiple, on_dim_0
        )

        _materialize_module(
            module,
            param_init_fn,
            [],
            deferred_init_check_fn=lambda m: not isinstance(m, XlaFullyShardedDataParallel),
        )
        params = [p for p in module.parameters() if not hasattr(p, "_is_sharded")]
        for p in params:
            if hasattr(p, "_is_sharded_elsewhere"):
                raise ValueError(
                    "XlaFullyShardedDataParallel: expected modules that share no parameter with "
                    f"one wrapped before, got one of shape {tuple(p.shape)}. Wrap what shares it "
                    "in one wrapper."
                )
        self.xla_device = torch_xla.device()
        self._fsdp_wrapped_module = XlaFlattenParamsWrapper(
            module, _arguments.flat_groups(params) if flatten_parameters else [], None, False
        )
        self._shard_parameters(params)
        for p in params:
            p._is_sharded_elsewhere = True  # type: ignore[attr-defined]  # if a module outside has it
        self._cast_buffers()

        if _debug_print:
            count = sum(p.numel() for p in self.sharded_params)
            xm.master_print(f"{_debug_msg}: {count} elements in shards of this rank", flush=True)
        self._buckets = _arguments.buckets(
            self.sharded_params,
            self.world_size,
            reduce_scatter_bucket_size_mb or (_ON_HOST_MB if on_host else 0),
        )
        self._full = FullValues(self.sharded_params, self._gather)
        self._unreduced: dict[int, torch.Tensor] = {}  # gradients of no_sync, of full values
        self._require_backward_grad_sync = True
        self._is_root: bool | None = None
        self._backward_has_begun = False
        self.training_state = TrainingState.IDLE
        self._stand_ins = self._make_stand_ins()
        self._are_hidden = False
        self._hide()
        if execute_sharding_on_init:
            gc.collect()
            torch_xla.sync()

    # Parameters

    @torch.no_grad()
    def _shard_parameters(self, params: list[nn.Parameter]) -> None:
        """Replaces the parameters by shards, which this wrapper has."""
        wanted = {id(p) for p in (self.module.flat_params if self.flatten_parameters else params)}
        # The places where modules have each parameter, the first of which names it.
        self._places: list[list[Place]] = []
        full: list[nn.Parameter] = []
        index_of: dict[int, int] = {}
        for module_name, m in self.named_modules():
            for name, p in m.named_parameters(recurse=False, remove_duplicate=False):
                if id(p) not in wanted:
                    continue
                if id(p) not in index_of:
                    index_of[id(p)] = len(full)
                    full.append(p)
                    self._places.append([])
                self._places[index_of[id(p)]].append(Place(module_name, m, name))
        self.sharded_params: list[nn.Parameter] = []
        for p, places in zip(full, self._places, strict=True):
            data = self._layout.shard(p.detach(), self.rank).to(self.xla_device)
            shard: Any = nn.Parameter(data, p.requires_grad)
            shard._is_sharded = True
            shard._orig_size = p.shape
            shard._orig_name = places[0].full_name
            shard._name = _shards.name_of_shard(shard._orig_name)
            self.sharded_params.append(shard)
            for place in places:
                place.module._parameters.pop(place.name)
            self.register_parameter(shard._name, shard)

    def _gather(self, shards: list[torch.Tensor]) -> list[torch.Tensor]:
        values = [self._to_compute_dtype(shard) for shard in shards]
        if self.world_size == 1:
            return values
        if not self._layout.on_dim_0:
            # In two dimensions: TPUs can gather their tiles as they are.
            values = [v.view(-1, self._layout.multiple) for v in values]
        if self.coalesce_all_gather_ops and self._all_gather is xm.all_gather:
            values = self._all_gather(values, groups=self.sharding_groups) if values else []
        else:
            values = [self._all_gather(v, groups=self.sharding_groups) for v in values]
        return values if self._layout.on_dim_0 else [v.view(-1) for v in values]

    def _to_compute_dtype(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.compute_dtype is None or not tensor.is_floating_point():
            return tensor
        return tensor.to(self.compute_dtype)

    def _show(self, wait_for: Sequence[torch.Tensor] = ()) -> list[torch.Tensor]:
        """Has modules use the full values, gathered after `wait_for` is computed.

        Returns:
            `wait_for`; behind a barrier if it was asked for and something was gathered.
        """
        waiting = list(wait_for)
        if self.sharded_params and not self._full.are_here():
            shards = [shard.detach() for shard in self.sharded_params]
            if waiting:
                both = behind_barrier([*shards, *waiting])
                shards, waiting = both[: len(shards)], both[len(shards) :]
            self._full.get(shards)
        self._expose()
        return waiting

    def _expose(self) -> None:
        """Puts full values, as functions of their shards, where modules have parameters."""
        self._are_hidden = False
        values = self._full.get()
        for bucket in self._buckets:
            wanted = [i for i in bucket if self.sharded_params[i].requires_grad]
            if wanted and torch.is_grad_enabled():
                full = FullOfShards.apply(
                    [values[i] for i in wanted],
                    self._reduce(wanted),
                    *(self.sharded_params[i] for i in wanted),
                )
            else:
                full, wanted = [], []
            self._put(wanted, full)
            rest = [i for i in bucket if i not in wanted]
            self._put(rest, [values[i].detach() for i in rest])

    def _put(self, indices: Sequence[int], values: Sequence[torch.Tensor]) -> None:
        for i, value in zip(indices, values, strict=True):
            shard: Any = self.sharded_params[i]
            tensor = self._layout.restore(value, shard._orig_size)
            for place in self._places[i]:
                setattr(place.module, place.name, tensor)

    def _hide(self, keep_values: bool = False) -> None:
        """Takes the full values from their places, and forgets them unless `keep_values`. What is
        there then has their shapes, and is nan: nobody shall compute with it.
        """
        if not keep_values:
            self._full.drop()
        if self._are_hidden:
            return
        self._are_hidden = True
        for stand_in, places in zip(self._stand_ins, self._places, strict=True):
            for place in places:
                setattr(place.module, place.name, stand_in)
        if self.module.flat_param_names:
            self.module.set_views()

    def _make_stand_ins(self) -> list[torch.Tensor]:
        """A tensor of the shape of each full value; all of a dtype are one element in memory."""
        elements: dict[torch.dtype, torch.Tensor] = {}
        stand_ins = []
        for shard in self.sharded_params:
            dtype = self._to_compute_dtype(shard.detach()[:0]).dtype
            if dtype not in elements:
                is_nan = dtype.is_floating_point or dtype.is_complex
                value = math.nan if is_nan else 0
                elements[dtype] = torch.full((), value, dtype=dtype, device=self.xla_device)
            stand_ins.append(elements[dtype].expand(shard._orig_size))  # type: ignore[attr-defined]
        return stand_ins

    # Forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's."""
        self._find_root()
        self.training_state = TrainingState.FORWARD
        (args, kwargs), copied = self._before_forward((args, kwargs))
        keeps = self._keeps_full_values()
        in_backward = torch._C._current_graph_task_id() != -1
        if not in_backward:
            self._backward_has_begun = False  # of a pass that failed
        saving = contextlib.nullcontext() if keeps else self._full.not_saved()
        try:
            with saving if torch.is_grad_enabled() else contextlib.nullcontext():
                outputs = (
                    self._dummy_forward(args, kwargs)
                    if self._debug_dummy_forward_pass
                    else self.module(*args, **kwargs)
                )
        finally:
            # The backward pass goes on with what a checkpoint computes again.
            if not in_backward:
                self._hide(keep_values=keeps and torch.is_grad_enabled())
        for original, copy, version in copied:
            if copy._version != version:  # the module wrote to its input
                original.copy_(copy)
        outputs = self._after_forward(outputs, keeps)
        self.training_state = TrainingState.IDLE
        return outputs

    def _keeps_full_values(self) -> bool:
        return not self.reshard_after_forward or (
            bool(self._is_root) and self.disable_reshard_on_root
        )

    def _before_forward(
        self, inputs: Any
    ) -> tuple[Any, list[tuple[torch.Tensor, torch.Tensor, int]]]:
        """Shows the full values. The inputs as the module gets them, and which were copied."""
        leaves, spec = _pytree.tree_flatten(inputs)
        if self.compute_dtype is not None:
            leaves = [
                self._to_compute_dtype(x) if isinstance(x, torch.Tensor) else x for x in leaves
            ]
        places = [i for i, x in enumerate(leaves) if _is_on(x, self.xla_device)]
        copied: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        if self.optimization_barrier_in_forward and places:
            gathers = self.sharded_params and not self._full.are_here()
            shards = [s.detach() for s in self.sharded_params] if gathers else []
            given = [leaves[i] for i in places]
            results = Barrier.apply(shards, self.optimization_barrier_in_backward, *given)
            for i, original, result in zip(places, given, results, strict=True):
                leaves[i] = result
                copied.append((original, result, result._version))
            if gathers:
                with torch.no_grad():
                    self._full.get(shards)
        self._show()
        return _pytree.tree_unflatten(leaves, spec), copied

    def _after_forward(self, outputs: Any, keeps: bool) -> Any:
        leaves, spec = _pytree.tree_flatten(outputs)
        places = [i for i, x in enumerate(leaves) if _is_on(x, self.xla_device)]
        if self.optimization_barrier_in_forward and not keeps and places:
            given = [leaves[i] for i in places]
            results = Barrier.apply([], self.optimization_barrier_in_backward, *given)
            for i, result in zip(places, results, strict=True):
                leaves[i] = result
        for i in places:
            if torch.is_grad_enabled() and leaves[i].requires_grad:
                leaves[i].register_hook(self._before_backward)
        return _pytree.tree_unflatten(leaves, spec)

    def _dummy_forward(self, args: Any, kwargs: Any) -> torch.Tensor:
        """The sum of the means of all inputs and parameters, of inner wrappers too."""
        given = [
            *_pytree.tree_leaves((args, kwargs)),
            *(getattr(places[0].module, places[0].name) for places in self._places),
        ]
        total = torch.zeros((), device=self.xla_device)
        for x in given:
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                total = total + x.mean()
        for m in self._wrappers():
            if m is not self and self._is_root:
                m._debug_dummy_forward_pass, before = True, m._debug_dummy_forward_pass
                total = m(total)
                m._debug_dummy_forward_pass = before
        return total

    # Backward

    @torch.no_grad()
    def _before_backward(self, gradient: torch.Tensor) -> torch.Tensor:
        """Is called with each gradient of an output, before the module's own backward pass."""
        if self._backward_has_begun:
            return gradient
        self._backward_has_begun = True
        self.training_state = TrainingState.BACKWARD_PRE
        torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
        waits = [gradient] if self.optimization_barrier_in_backward else []
        with torch.enable_grad():  # for what a checkpoint computes again
            behind = self._show(waits)
            if self.module.flat_param_names:
                self.module.set_views()
        return behind[0] if behind else gradient

    def _reduce(self, indices: Sequence[int]) -> Callable[..., list[torch.Tensor | None]]:
        def reduce(gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
            return self._gradients_of_shards(indices, gradients)

        return reduce

    @torch.no_grad()
    def _gradients_of_shards(
        self, indices: Sequence[int], gradients: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """The gradients of some shards, for those of their full values; None while not synced."""
        self.training_state = TrainingState.BACKWARD_POST
        found: list[tuple[int, torch.Tensor]] = []
        for index, gradient in zip(indices, gradients, strict=True):
            if gradient is not None:
                before = self._unreduced.pop(index, None)
                found.append((index, gradient if before is None else before + gradient))
        if not self._require_backward_grad_sync:
            self._unreduced.update(found)
            return [None] * len(indices)
        reduced = dict(
            zip((i for i, _ in found), self._average([g for _, g in found]), strict=True)
        )
        return [
            reduced[i].to(self.sharded_params[i].dtype) if i in reduced else None for i in indices
        ]

    def _average(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """This rank's parts of the averages of gradients, which go in one exchange."""
        if not gradients:
            return []
        if self.fp32_reduce_scatter:
            gradients = [
                g.float() if g.dtype in (torch.float16, torch.bfloat16) else g for g in gradients
            ]
        if self.gradient_predivide_factor != 1:
            gradients = [g / self.gradient_predivide_factor for g in gradients]
        if self.optimization_barrier_in_backward:
            gradients = behind_barrier(gradients)
        results: list[torch.Tensor] = []
        if self._dummy_reduce_scatter is not None:
            for g in gradients:
                self._dummy_reduce_scatter(g, results.append)
        else:
            results = xm.reduce_scatter(
                xm.REDUCE_SUM,
                gradients,
                self._reduce_scale,
                0,
                self.world_size,
                groups=self.sharding_groups,
            )
        if self.replication_groups is not None:
            self._all_reduce(xm.REDUCE_SUM, results, groups=self.replication_groups)
        if self.gradient_postdivide_factor != 1:
            results = [r / self.gradient_postdivide_factor for r in results]
        return results

    def _after_backward(self) -> None:
        """Is called at the end of a backward pass that came to this wrapper."""
        wrappers = self._wrappers() if self._is_root else [self]
        for m in wrappers:
            m._hide(keep_values=not m._require_backward_grad_sync and m._keeps_full_values())
            m._backward_has_begun = False
            m.training_state = TrainingState.IDLE
        if not self._is_root:
            return
        for m in wrappers:
            m._reduce_what_is_left()
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        if self.optimization_barrier_in_backward and gradients:
            xm.optimization_barrier_(gradients)
        if self.sync_on_finalization:
            torch_xla.sync()

    @torch.no_grad()
    def _reduce_what_is_left(self) -> None:
        """Reduces gradients of `no_sync` which the synced backward pass did not come to."""
        if not self._require_backward_grad_sync or not self._unreduced:
            return
        indices = sorted(self._unreduced)
        left = self._average([self._unreduced.pop(i) for i in indices])
        for i, gradient in zip(indices, left, strict=True):
            shard = self.sharded_params[i]
            gradient = gradient.to(shard.dtype)
            shard.grad = gradient if shard.grad is None else shard.grad + gradient

    # For programs

    @property
    def module(self) -> XlaFlattenParamsWrapper:
        """The holder of the wrapped module, which is `module.module`."""
        return self._fsdp_wrapped_module

    @property
    def params_with_grad(self) -> list[nn.Parameter]:
        """The shards that have a gradient."""
        return [p for p in self.parameters() if p.grad is not None]

    def set_gradient_divide_factors(self, pre: float, post: float, recursive: bool) -> None:
        """Sets by what gradients are divided, in place of the number of ranks.

        Args:
            pre: The divisor before they are added.
            post: The divisor of the sum. If both are 1, the sum is multiplied by 1 / ranks.
            recursive: Whether this is for the wrappers within, too.
        """
        self.assert_state(TrainingState.IDLE)
        for m in self._wrappers() if recursive else [self]:
            m.gradient_predivide_factor, m.gradient_postdivide_factor = pre, post
            m._reduce_scale = 1.0 / m.world_size if (pre, post) == (1, 1) else 1.0

    @torch.no_grad()
    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        groups: list[list[int]] | None = None,
    ) -> torch.Tensor:
        """Scales gradients such that the norm of all of them together is at most `max_norm`.

        All ranks call it, on the outermost wrapper.

        Args:
            max_norm: The largest norm.
            norm_type: The power; `inf` for the largest absolute value.
            groups: The groups of ranks that hold all gradients together; all ranks without it, or
                the `sharding_groups` where there are `replication_groups`.

        Returns:
            The norm before.
        """
        self._find_root()
        if not self._is_root:
            raise RuntimeError(
                "clip_grad_norm_: expected the outermost wrapper, got one within another. Call it "
                "on the whole model."
            )
        self.assert_state(TrainingState.IDLE)
        if groups is None and self.replication_groups is not None:
            groups = self.sharding_groups
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        power = float(norm_type)
        norm = _norm(gradients, power, self.xla_device)
        if power == math.inf:
            total = self._all_reduce(xm.REDUCE_MAX, norm, groups=groups)
        else:
            total = self._all_reduce(xm.REDUCE_SUM, norm**power, groups=groups) ** (1.0 / power)
        factor = torch.clamp(float(max_norm) / (total + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.dtype))
        return total

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context manager: gradients are added up on each rank by itself, and averaged in the first
        backward pass after it. They take the memory of full gradients until then.
        """
        self._find_root()
        if not self._is_root:
            raise RuntimeError(
                "no_sync: expected the outermost wrapper, got one within another. Call it on the "
                "whole model."
            )
        self.assert_state(TrainingState.IDLE)
        before = [(m, m._require_backward_grad_sync) for m in self._wrappers()]
        for m, _ in before:
            m._require_backward_grad_sync = False
        try:
            yield
        finally:
            for m, flag in before:
                m._require_backward_grad_sync = flag

    def assert_state(self, state: TrainingState | list[TrainingState]) -> None:
        """Raises ValueError unless the wrapper does one of these."""
        states = [state] if isinstance(state, TrainingState) else state
        if self.training_state not in states:
            raise ValueError(
                f"XlaFullyShardedDataParallel: expected to be in {states}, got "
                f"{self.training_state}. Call it between a backward pass and the next forward pass."
            )

    def get_original_names_and_sharded_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The shards of all wrappers by the names of the parameters in the model."""
        result = []
        for module_name, m in self.named_modules():
            if isinstance(m, XlaFullyShardedDataParallel):
                prefix = f"{module_name}." if module_name else ""
                for shard in m.sharded_params:
                    name = prefix + shard._orig_name  # type: ignore[attr-defined]
                    result.append((_shards.original_name(name), shard))
        return result

    def get_shard_metadata(self) -> dict[str, Any]:
        """All that is needed to make parameters of shards; it belongs into each checkpoint."""
        shard_info, flatten_info, buffer_info = {}, {}, {}
        for full_name, m in self.named_modules(remove_duplicate=False):
            name = full_name.replace("_fpw_module.", "")
            if isinstance(m, XlaFullyShardedDataParallel):
                shards: list[Any] = m.sharded_params
                shard_info[name] = {
                    s._name: {"_orig_size": s._orig_size, "_orig_name": s._orig_name}
                    for s in shards
                }
            elif isinstance(m, XlaFlattenParamsWrapper):
                for i, flat_name in enumerate(m.flat_param_names):
                    flatten_info[f"{name}.{flat_name}" if name else flat_name] = m.metadata(i)
        for name, buffer in self.named_buffers():
            if hasattr(buffer, "_orig_dtype"):
                key = name.replace("_fpw_module.", "")
                buffer_info[key] = {"_orig_dtype": buffer._orig_dtype}
        return {
            "shard_info": shard_info,
            "flatten_info": flatten_info,
            "buffer_info": buffer_info,
            "world_size": self.world_size,
            "rank": self.rank,
        }

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Loads this rank's state dict, or the whole model's, of which it takes its shards."""
        if any(_shards.split_name(key) is not None for key in state_dict):
            return super().load_state_dict(state_dict, strict, assign)
        return loading.load_full_state_dict(self, state_dict, strict)

    def parts_of_shards(self) -> list[list[tuple[list[str], torch.Size]]]:
        result: list[list[tuple[list[str], torch.Size]]] = []
        for places in self._places:
            if places[0].module is self.module:
                index = self.module.flat_param_names.index(places[0].name)
                parts = self.module.parts(index)
                result.append([([f"_fsdp_wrapped_module.{n}" for n in ns], s) for ns, s in parts])
            else:
                size = self.sharded_params[len(result)]._orig_size  # type: ignore[attr-defined]
                result.append([([place.full_name for place in places], size)])
        return result

    def extra_repr(self) -> str:
        return (
            f"world_size={self.world_size}, rank={self.rank}, compute_dtype={self.compute_dtype}, "
            f"buffer_dtype={self.buffer_dtype}, flatten_parameters={self.flatten_parameters}, "
            f"reshard_after_forward={self.reshard_after_forward}, "
            f"sharding_groups={self.sharding_groups}"
        )

    def __getattr__(self, name: str) -> Any:
        """The module has all that is not here."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_fsdp_wrapped_module":
                raise
            return getattr(self.module, name)

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]

    # Within

    def _wrappers(self) -> list[XlaFullyShardedDataParallel]:
        """This wrapper and all within it."""
        return [m for m in self.modules() if isinstance(m, XlaFullyShardedDataParallel)]

    def _find_root(self) -> None:
        """The first one of nested wrappers that is called is the outermost."""
        if self._is_root is None:
            for m in self._wrappers():
                m._is_root = m is self

    @torch.no_grad()
    def _cast_buffers(self) -> None:
        """Moves buffers to the device, floating point ones in `buffer_dtype`. Those of wrappers
        within are theirs.
        """
        inner = {id(m) for w in self._wrappers() if w is not self for m in w.modules()}
        for m in self.modules():
            if id(m) in inner:
                continue
            for name, buffer in m.named_buffers(recurse=False):
                moved = buffer.to(self.xla_device)
                if self.buffer_dtype is not None and buffer.is_floating_point():
                    moved = moved.to(self.buffer_dtype)
                    if moved.dtype != buffer.dtype:
                        moved._orig_dtype = buffer.dtype  # type: ignore[attr-defined]
                m._buffers[name] = moved


def _wrap_inner(module: nn.Module, policy: Callable[..., bool], arguments: dict[str, Any]) -> None:
    if any(isinstance(m, XlaFullyShardedDataParallel) for m in module.modules()):
        raise ValueError(
            "XlaFullyShardedDataParallel: expected a model without wrapped modules, with "
            "auto_wrap_policy. Leave one of the two ways out."
        )
    wrapper = arguments.pop("auto_wrapper_callable") or XlaFullyShardedDataParallel
    recursive_wrap(
        module=module,
        auto_wrap_policy=policy,
        wrapper_cls=wrapper,
        ignored_modules=set(),
        ignored_params=set(),
        only_wrap_children=True,
        **arguments,
    )


def _is_on(value: Any, device: torch.device) -> bool:
    return isinstance(value, torch.Tensor) and value.device == device


def _norm(gradients: list[torch.Tensor], power: float, device: torch.device) -> torch.Tensor:
    if not gradients:
        return torch.zeros((), device=device)
    norms = [torch.linalg.vector_norm(gradient, power) for gradient in gradients]
    dtype = max((n.dtype for n in norms), key=lambda d: torch.finfo(d).bits)
    return torch.linalg.vector_norm(torch.stack([n.to(dtype) for n in norms]), power)
