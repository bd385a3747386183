"""One step of a model on one side: on xla in one of three ways, in PyTorch eager, or compiled by
inductor."""

from __future__ import annotations

from collections.abc import Callable

import torch

import torch_xla
import torch_xla.runtime as xr
from benchmarks.networks import Loss, Network
from benchmarks.timing import seconds

# What xla is given: calls one by one, a function of torch_xla.compile, a model of torch.compile.
ON_XLA = ("xla", "compile", "openxla")
SIDES = (*ON_XLA, "eager", "inductor")


def device_of(side: str) -> str:
    """PyTorch's sides run where xla does, if that is a GPU; elsewhere on the CPU."""
    if side in ON_XLA:
        return "xla"
    return "cuda" if xr.device_type() == "CUDA" and torch.cuda.is_available() else "cpu"


def compiled_model(model: torch.nn.Module, side: str) -> Callable[..., torch.Tensor]:
    return torch.compile(model, backend=side) if side in ("openxla", "inductor") else model


def training_parts(network: Network, side: str) -> tuple[torch.optim.Optimizer, Callable[[], None]]:
    """The optimizer, and a call that makes new gradients for it."""
    torch.manual_seed(0)
    model = network.make()
    model = (model if network.is_language else Loss(model)).to(device_of(side))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x, target = (t.to(device_of(side)) for t in network.data())
    loss = compiled_model(model, side)

    def gradients() -> None:
        optimizer.zero_grad()
        loss(x, target).backward()

    return optimizer, gradients


def training_step(network: Network, side: str) -> Callable[[], None]:
    """Forward, loss, backward and AdamW; on xla its graph is launched, and not waited for."""
    optimizer, gradients = training_parts(network, side)

    def step() -> None:
        gradients()
        optimizer.step()
        if side in ("xla", "openxla"):
            torch_xla.sync()

    return torch_xla.compile(step) if side == "compile" else step


def inference_step(network: Network, side: str) -> Callable[[], None]:
    torch.manual_seed(0)
    model = network.make().to(device_of(side)).eval()
    x = network.data()[0].to(device_of(side))
    forward = compiled_model(model, side)
    if side == "compile":
        forward = torch_xla.compile(forward)

    def step() -> None:
        with torch.no_grad():
            result = forward(x)  # kept: what nobody holds is not computed
        if side in ("xla", "openxla"):  # torch.compile leaves parts of some models as they are
            torch_xla.sync()
        del result

    return step


def make_step(network: Network, side: str, train: bool) -> Callable[[], None]:
    return (training_step if train else inference_step)(network, side)


def finish(side: str) -> None:
    if side in ON_XLA:
        torch_xla.sync(wait=True)
    elif device_of(side) == "cuda":
        torch.cuda.synchronize()


def round_of(step: Callable[[], None], side: str, repeats: int) -> float:
    """The seconds of one step, over some in a row after one that is not counted."""

    def steps(count: int) -> None:
        for _ in range(count):
            step()
        finish(side)

    steps(1)
    return seconds(lambda: steps(repeats), 1) / repeats
