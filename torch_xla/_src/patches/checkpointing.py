"""Gradient checkpointing computes again, whatever the compiler thinks of it.

What `torch.utils.checkpoint` computes in the backward pass is equal to what was computed before,
in the same program: a compiler would compute it once and keep it in memory. So it begins at copies
of its inputs behind a barrier, which no compiler knows to be equal, and which wait for gradients
that the backward pass has come to: nothing is computed again, and takes memory, long before.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torch_xla._src.device.names import is_xla_tensor

# A backward pass, and gradients that it has come to. Of two at once, one is forgotten: then it
# computes again as early as the compiler likes.
_come_to: tuple[int, Sequence[Any]] = (-1, ())


def install() -> None:
    """Changes `torch.utils.checkpoint`, once it is imported."""
    from torch.utils import checkpoint

    # With use_reentrant=True: a function of autograd that detaches its inputs and calls again.
    detach, go_back = checkpoint.detach_variable, checkpoint.CheckpointFunction.backward
    go = checkpoint.CheckpointFunction.forward

    @functools.wraps(go)
    def forward(ctx: Any, run_function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return go(ctx, _of_dtensors(run_function, args), preserve, *args)

    @functools.wraps(detach)
    def detach_variable(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return _behind_barrier(detach(inputs))

    @functools.wraps(go_back)
    def backward(ctx: Any, *gradients: Any) -> Any:
        before = _come_to
        _come(torch._C._current_graph_task_id(), gradients)
        try:
            return go_back(ctx, *gradients)
        finally:
            _come(*before)

    checkpoint.detach_variable = detach_variable
    checkpoint.CheckpointFunction.forward = staticmethod(forward)
    checkpoint.CheckpointFunction.backward = staticmethod(backward)

    # With use_reentrant=False: a frame that is called again when a value which it saved is wanted.
    # Gradients are at hand where a frame gives them to its inputs, which is just before the frame
    # that made these is called again.
    begin, make_frame = (
        checkpoint._checkpoint_without_reentrant_generator,
        checkpoint._CheckpointFrame.__init__,
    )

    @functools.wraps(begin)
    def generator(*args: Any, **kwargs: Any) -> Iterator[None]:
        if torch.is_grad_enabled():
            for value in (*args, *kwargs.values()):
                if is_xla_tensor(value) and value.grad_fn is not None:
                    value.register_hook(_come_here)
        function, options, inputs = args[0], args[1:6], args[6:]
        return begin(_of_dtensors(function, inputs), *options, *inputs, **kwargs)

    @functools.wraps(make_frame)
    def init(self: Any, recompute_fn: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        make_frame(self, lambda *inputs: recompute_fn(*_behind_barrier(inputs)), *args, **kwargs)

    checkpoint._checkpoint_without_reentrant_generator = generator
    checkpoint._CheckpointFrame.__init__ = init


def _of_dtensors(function: Callable[..., Any], inputs: Sequence[Any]) -> Callable[..., Any]:
    """The function, for which those inputs are DTensors again that are now: autograd keeps tensors
    without their class.
    """
    module = sys.modules.get("torch_xla.distributed.spmd.xla_sharded_tensor")
    if module is None:
        return function
    kept = {i: t.like for i, t in enumerate(inputs) if isinstance(t, module.XLAShardedTensor)}
    if not kept:
        return function

    def of_dtensors(*given: Any, **kwargs: Any) -> Any:
        again = [
            kept[i](t) if i in kept and not isinstance(t, module.DTensor) else t
            for i, t in enumerate(given)
        ]
        return function(*again, **kwargs)

    return of_dtensors


def _come(backward_pass: int, gradients: Sequence[Any]) -> None:
    global _come_to
    _come_to = (backward_pass, gradients)


def _come_here(gradient: torch.Tensor) -> None:
    backward_pass = torch._C._current_graph_task_id()
    if _come_to[0] != backward_pass:
        # Where the pass fails, the next one forgets.
        torch.autograd.Variable._execution_engine.queue_callback(lambda: _come(-1, ()))
    _come(backward_pass, (gradient,))


def _behind_barrier(values: Sequence[Any]) -> tuple[Any, ...]:
    """Equal values, computed after the gradients of now; those of xla are leaves."""
    backward_pass, gradients = _come_to
    if backward_pass != torch._C._current_graph_task_id():
        gradients = ()
    result = list(values)
    for device in dict.fromkeys(value.device for value in values if is_xla_tensor(value)):
        places = [i for i, v in enumerate(values) if is_xla_tensor(v) and v.device == device]
        waits_for = [g for g in gradients if is_xla_tensor(g) and g.device == device]
        with torch.no_grad():
            given = [values[i].detach() for i in places]
            copies = torch.ops.torch_xla.optimization_barrier(given + waits_for)
        for i, copy in zip(places, copies, strict=False):  # what follows is of the gradients
            result[i] = copy.requires_grad_(values[i].requires_grad)
    return tuple(result)
