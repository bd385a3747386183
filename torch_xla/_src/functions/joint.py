"""A Python function of tensors, and its gradients, as two recorded functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torch_xla import _XLAC


class Joint:
    """`function`, recorded once for inputs of these shapes and these that require gradients.

    The function runs on placeholders, as if it had not run; then so does its backward pass.

    Args:
        function: Takes tensors and returns a list of tensors. It may close over others.
        inputs: Tensors on `xla`.
        requires_grad: Which of them require gradients.
        recomputes: Whether the backward pass keeps no values that elementwise operations make of
            others, and computes them again.

    Attributes:
        captured: The tensors on `xla` that the function closes over: further inputs of what was
            recorded.
        has_gradient: Which results require gradients.
        gets_gradient: Which inputs and captured tensors get one.
        kept: What the backward pass takes before the gradients: (True, i) is input i, and
            (False, i) is result i of the forward call.

    Raises:
        RuntimeError: If the function needs values, or writes tensors that it does not make.
    """

    def __init__(
        self,
        function: Callable[..., list[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        requires_grad: Sequence[bool],
        recomputes: bool = False,
    ):
        self.has_gradient: list[bool] = []
        # For each input and captured tensor its place among what the backward pass returns.
        self._place: list[int | None] = []
        leaves: list[torch.Tensor] = []
        results: list[torch.Tensor] = []

        def forward(*placeholders: torch.Tensor) -> list[torch.Tensor]:
            leaves[:] = placeholders
            for leaf, requires in zip(leaves, requires_grad, strict=True):
                leaf.requires_grad_(requires)
            with torch.enable_grad():
                results[:] = function(*leaves)
            self.has_gradient = [t.requires_grad for t in results]
            return results

        def backward(captured: list, gradients: list) -> list[torch.Tensor]:
            inputs = [*leaves, *captured]
            wanted = [t for t in inputs if t.requires_grad]
            outputs = [t for t in results if t.requires_grad]
            if not wanted:
                raise RuntimeError(
                    "recorded function: expected gradients of its inputs or of tensors that it "
                    "reads, got a result whose gradient leads elsewhere. Pass what it uses as an "
                    "argument."
                )
            found = torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)
            places = iter(found)
            present: list[torch.Tensor] = []
            for tensor in inputs:
                gradient = next(places) if tensor.requires_grad else None
                self._place.append(None if gradient is None else len(present))
                if gradient is not None:
                    present.append(gradient)
            return present

        self._recorded = _XLAC._Joint(list(inputs), forward, backward, recomputes)
        self.captured = self._recorded.captured()
        self.kept = self._recorded.kept()
        self.num_results = len(results)
        if not self._place:
            self._place = [None] * (len(leaves) + len(self.captured))
        self.gets_gradient = [place is not None for place in self._place]
        leaves.clear()
        results.clear()

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """The results, then what is kept, of inputs and captured tensors."""
        return self._recorded.forward(list(inputs))

    def backward(self, *kept_and_gradients: torch.Tensor) -> list[torch.Tensor | None]:
        """The gradients of inputs and captured tensors. It takes those of results that have one."""
        if not any(self.gets_gradient):
            return [None] * len(self._place)
        found = self._recorded.backward(list(kept_and_gradients))
        return [None if place is None else found[place] for place in self._place]

    def gradients_given(
        self, gradients: Sequence[torch.Tensor | None], like: Sequence[tuple]
    ) -> list[torch.Tensor]:
        """Those that `backward` takes, zeros for None. `like`: shape, dtype and device of each."""
        return [
            torch.zeros(shape, dtype=dtype, device=device) if g is None else g
            for g, (shape, dtype, device), has in zip(
                gradients, like, self.has_gradient, strict=True
            )
            if has
        ]


def not_twice_differentiable(gradients: Sequence[torch.Tensor | None], name: str) -> tuple:
    """The gradients, which raise where somebody differentiates them."""
    if not torch.is_grad_enabled():
        return tuple(gradients)
    present = [g for g in gradients if g is not None]
    message = (
        f"{name}: expected one derivative, got the gradient of a gradient. Write in plain Python "
        "what needs second derivatives."
    )
    marked = torch._C._functions.DelayedError(message, len(present))(
        *(g.detach().requires_grad_() for g in present)
    )
    each = iter(marked if isinstance(marked, tuple) else (marked,))
    return tuple(None if g is None else next(each) for g in gradients)
