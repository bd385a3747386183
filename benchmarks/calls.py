"""Where the time of a model's step goes, call by call, on xla against PyTorch eager on the CPU.

    python -m benchmarks.calls gpt2 [--train] [--top 30] [--seconds 0.15] [--only addmm]

One step runs in eager and its operator calls are recorded, forward and backward, with their
operands. Calls of equal operators, shapes, dtypes, strides and numbers are one group, and each is
timed alone, on the values of its first call: in eager, in a process without torch_xla, and on xla
as a program of its own, of which the time of an empty program is taken off. Groups are sorted by
what they lose in a step: (xla - eager) * count. The optimizer is one call, whatever it is made of
on each side. Each figure is the least of many; where other processes disturb, `taskset -c 0` in
front compares the processor time of one thread with that of one thread.

What this cannot see: XLA compiles a step as a whole, so that elementwise calls become one loop with
their neighbours, layouts are chosen to suit both sides, and independent calls run side by side. The
line `whole step` has all that; the sum of calls above it shows how much it saves. Views cost
nothing on xla and are left out; eager's are counted. A strided operand is laid out densely, in the
order of its dimensions.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.networks import NETWORKS, Network
from benchmarks.timing import seconds


def copy(t: torch.Tensor) -> torch.Tensor:
    """The same values with the same strides, in memory of its own."""
    if not t.numel():
        return t.detach().clone()
    extent = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return t.detach().as_strided((extent,), (1,)).clone().as_strided(t.shape, t.stride())


def to_xla(t: torch.Tensor) -> torch.Tensor:
    """On the device, the dimensions in the same order in memory."""
    if t.is_contiguous():
        return t.to("xla")
    order = sorted(range(t.dim()), key=lambda d: -t.stride(d))
    dense = t.permute(order)
    for dim in range(t.dim()):
        if dense.stride(dim) == 0:
            dense = dense.narrow(dim, 0, 1)
    back = [order.index(dim) for dim in range(t.dim())]
    return dense.contiguous().to("xla").permute(back).expand(t.shape)


def text_of(x: Any) -> str:
    if not isinstance(x, torch.Tensor):
        return f"{x:.3g}" if isinstance(x, float) else str(x)
    strides = "" if x.is_contiguous() else "/" + ",".join(map(str, x.stride()))
    return f"{str(x.dtype)[6:]}[{','.join(map(str, x.shape))}{strides}]"


@dataclass
class Call:
    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    count: int = 0

    def title(self) -> str:
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        shown = [text_of(x) for x in leaves if isinstance(x, (torch.Tensor, float))]
        return f"{self.op.removeprefix('aten.').removesuffix('.default')} {' '.join(shown)}"

    def function(self) -> Callable[..., Any]:
        namespace, name, overload = self.op.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)


class Recorder(TorchDispatchMode):
    """Groups the calls below autograd; those that make views are only counted."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[str, Call] = {}
        self.views = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        returns = [r.alias_info for r in func._schema.returns]
        if any(a is not None and not a.is_write for a in returns) or func.namespace != "aten":
            self.views += 1
            return func(*args, **kwargs)
        key = str(func) + str(pytree.tree_map(text_of, (args, kwargs)))
        if key not in self.groups:
            held = pytree.tree_map_only(torch.Tensor, copy, (args, kwargs))
            self.groups[key] = Call(str(func), *held)
        self.groups[key].count += 1
        return func(*args, **kwargs)


def record(network: Network, train: bool) -> Recorder:
    from benchmarks.steps import inference_step, training_parts

    step = training_parts(network, "eager")[1] if train else inference_step(network, "eager")
    with Recorder() as recorder:
        step()
    return recorder


def best(call: Callable[[], object], length: float) -> float:
    """The least time of a call, in seconds, of many within `length` seconds."""
    for _ in range(3):
        call()
    least, end = float("inf"), time.perf_counter() + length
    while time.perf_counter() < end:
        least = min(least, seconds(call, 1))
    return least


def time_eager(call: Call, length: float) -> float:
    function = call.function()
    with torch.no_grad():
        return best(lambda: function(*call.args, **call.kwargs), length)


def attention(q, k, v, dropout=0.0, is_causal=False, *, attn_mask=None, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return torch.ops.torch_xla.attention(q, k, v, attn_mask, None, dropout, is_causal, scale)


def attention_backward(g, q, k, v, out, lse, dropout, is_causal, *, attn_mask=None, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return torch.ops.torch_xla.attention_backward(
        g, q, k, v, out, lse, attn_mask, None, dropout, is_causal, scale, False
    )


def lstm_layer(x, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse, _sizes, _mode, *rest):
    parameters, train = [w_ih, w_hh, b_ih, b_hh], rest[-1]
    if train or reverse:
        return torch.ops.torch_xla.rnn_layer(x, hx, cx, *parameters, "lstm", reverse, train)
    return torch.ops.torch_xla.lstm(x, hx[None], cx[None], parameters, True, 1, False, False)


# What xla makes of PyTorch's calls that are for the CPU alone.
ON_XLA = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": attention_backward,
    "aten.mkldnn_rnn_layer.default": lstm_layer,
}


def time_xla(call: Call, length: float) -> float:
    """The program that holds this call alone, with its launch."""
    import torch_xla

    function = ON_XLA.get(call.op) or call.function()
    args, kwargs = pytree.tree_map_only(torch.Tensor, to_xla, (call.args, call.kwargs))

    def run() -> None:
        result = function(*args, **kwargs)  # kept: what nobody holds is not computed
        torch_xla.sync(wait=True)
        del result

    with torch.no_grad():
        return best(run, length)


def time_optimizer(network: Network, side: str, length: float) -> float:
    from benchmarks.steps import finish, training_parts

    optimizer, gradients = training_parts(network, side)
    gradients()
    finish(side)

    def step() -> None:
        optimizer.step()
        finish(side)

    return best(step, length)


Row = tuple[str, int, float, float]  # title, count, seconds on xla and in eager


def show(rows: list[Row], totals: list[tuple[str, float, float]], top: int) -> None:
    def milliseconds(xla: float, alone: float) -> str:
        return "".join(f"{t * 1e3:9.3f}" for t in (xla - alone, xla, alone))

    print(f"{'xla-eager':>9}{'xla':>9}{'eager':>9}{'count':>6}{'xla':>9}{'eager':>9}")
    print(f"{'ms/step':>9}{'ms/step':>9}{'ms/step':>9}{'':6}{'us/call':>9}{'us/call':>9}")
    rows = sorted(rows, key=lambda row: -row[1] * (row[2] - row[3]))
    for i, (title, count, xla, alone) in enumerate(rows):
        if i < top or i >= len(rows) - 5:  # of what xla gains, the most
            line = f"{count:6d}{xla * 1e6:9.1f}{alone * 1e6:9.1f}  {title[:150]}"
            print(milliseconds(count * xla, count * alone) + line)
    for title, xla, alone in totals:
        print(milliseconds(xla, alone) + f"  {title}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=NETWORKS)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--only", default="", help="calls whose line contains this")
    parser.add_argument("--top", type=int, default=30, help="rows of the table")
    parser.add_argument("--seconds", type=float, default=0.15, help="for each call on each side")
    options = parser.parse_args()
    from benchmarks.models import measure  # not where eager is timed: it imports torch_xla

    network, length = NETWORKS[options.model], options.seconds
    recorder = record(network, options.train)
    empty = time_xla(Call("aten.add.Tensor", (torch.ones(1), torch.ones(1)), {}), length)
    rows: list[Row] = []
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as eager:
        for call in recorder.groups.values():
            if options.only not in call.title():
                continue
            try:
                xla = max(0.0, time_xla(call, length) - empty)
            except (RuntimeError, NotImplementedError) as error:
                print(f"not on xla: {call.title()}: {str(error).splitlines()[0]}")
                continue
            rows.append(
                (call.title(), call.count, xla, eager.submit(time_eager, call, length).result())
            )
        if options.train and not options.only:
            xla = time_optimizer(network, "xla", length) - empty
            alone = eager.submit(time_optimizer, network, "eager", length).result()
            rows.append(("optimizer.step()", 1, xla, alone))
    totals = [("all calls", *(sum(row[1] * row[side] for row in rows) for side in (2, 3)))]
    if not options.only:
        whole = measure(options.model, options.train, ("xla", "eager"), rounds=12)
        totals.append(("the whole step", whole["xla"], whole["eager"]))
    show(rows, totals, options.top)
    print(f"(an empty program: {empty * 1e6:.1f} us; views in eager: {recorder.views})")


if __name__ == "__main__":
    main()
