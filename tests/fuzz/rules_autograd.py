"""Rules for gradients: backward, hooks, modes and optimizers."""

from __future__ import annotations

import torch

from tests.fuzz.draw import Draw, rule
from tests.fuzz.expressions import number, operand

DENSE = "torch.contiguous_format"


def differentiable(t: torch.Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def tracked(t: torch.Tensor) -> bool:
    return t.requires_grad and t.is_floating_point()


def loss(d: Draw) -> str | None:
    """A scalar expression that requires grad, from what does."""
    a = d.pick(lambda t: tracked(t) and not t.is_leaf) or d.pick(tracked)
    if a is None:
        return None
    t = d.tensor(a)
    weight = operand(d, t.shape, t.dtype)
    return d.one(
        [
            f"{a}.sum()",
            f"{a}.sum()",
            f"({a} * {weight}).sum()",
            f"{a}.square().mean()",
            f"{a}.mean()",
        ]
    )


@rule("requires_grad_", 3)
def require(d: Draw) -> str | None:
    # Not of views, and never False: a view whose base needs no gradient loses its own on the CPU
    # when it is written, and PyTorch has an internal assertion there for devices that replay views.
    a = d.pick(lambda t: differentiable(t) and t.is_leaf and not t._is_view())
    return f"{a}.requires_grad_()" if a else None


# Writes whose gradient keeps their result.
KEEP_RESULT = ("relu_(", "sigmoid_(", "tanh_(", "copysign_(")


def differentiable_again(d: Draw) -> bool:
    """PyTorch orders calls by a counter of each thread: where backward has a thread of its own, as
    on CUDA, what backward records may come after a call that wrote a view, and frees its result."""
    if any(write in step.line for step in d.steps for write in KEEP_RESULT):
        return False
    # Of a view without elements that was written the CPU's gradient is zeros of no history.
    return not d.tensors(lambda t: t.numel() == 0 and t._is_view() and t.requires_grad)


@rule("backward", 9)
def backward(d: Draw) -> str | None:
    made = loss(d)
    if made is None:
        return None
    kept = d.one(["", "", "retain_graph=True", "create_graph=True"] if d.chance(0.4) else [""])
    if kept == "create_graph=True" and not differentiable_again(d):
        return None
    return f"{made}.backward({kept})"


@rule("backward", 9)
def backward_with_gradient(d: Draw) -> str | None:
    a = d.pick(lambda t: tracked(t) and not t.is_leaf)
    if a is None:
        return None
    t = d.tensor(a)
    given = f"{operand(d, t.shape, t.dtype, exact=True)}.to({t.dtype})"
    # Backward of a view may keep what it was given as the gradient of a leaf, and add to it later.
    # Which views do depends on the device: after a write the CPU's are all as_strided.
    address = d.value(f"{given}.untyped_storage().data_ptr()")
    lasting = d.tensors(lambda o: o.requires_grad or (t._is_view() and t._version > 0))
    if any(d.tensor(n).untyped_storage().data_ptr() == address for n in lasting):
        given = f"{given}.clone()"
    return f"{a}.backward({given})"


@rule("grad", 4)
def grad(d: Draw) -> str | None:
    made = loss(d)
    of = [n for n in d.tensors(tracked) if d.chance(0.5)][:3]
    if made is None or not of:
        return None
    new = ", ".join(d.new() for _ in of)
    options = d.one(["", ", create_graph=True", ", retain_graph=True", ", materialize_grads=True"])
    if "create_graph" in options and not differentiable_again(d):
        return None
    used = "" if "materialize" in options or d.chance(0.2) else ", allow_unused=True"
    grads = f"torch.autograd.grad({made}, [{', '.join(of)}]{used}{options})"
    # Autograd promises nothing of the memory of its results: some are expanded.
    return f"{new}, = (g if g is None else torch.clone(g, memory_format={DENSE}) for g in {grads})"


@rule("use a gradient", 4)
def use_gradient(d: Draw) -> str | None:
    a = d.pick(lambda t: t.is_leaf and t.grad is not None)
    if a is None:
        return None
    ways = [f"{d.new()} = {a}.grad", f"{a}.grad = None", f"{a}.grad.zero_()", f"{a}.grad.mul_(0.5)"]
    ways += [f"with torch.no_grad(): {a}.sub_({a}.grad, alpha=0.1)", f"show({a}.grad.cpu())"]
    ways += [f"{d.new()} = {a}.grad.detach().clone()", f"{a}.grad = {a}.grad.detach() * 2"]
    ways += [
        f"torch.nn.utils.clip_grad_norm_([{a}], 1.0)",
        f"torch.nn.utils.clip_grad_value_([{a}], 0.5)",
    ]
    ways += [
        f"show(torch.nn.utils.clip_grad_norm_([{a}], 0.7).item())",
        f"{a}.grad[...] = {number(d)}",
    ]
    return d.one(ways)


@rule("hook", 3)
def hook(d: Draw) -> str | None:
    a = d.pick(tracked)
    if a is None:
        return None
    ways = [
        f"{a}.register_hook(lambda g: g * 2)",
        f"{a}.register_hook(lambda g: g.clone().mul_(0.5))",
    ]
    ways += [
        f"{a}.retain_grad()",
        f"{a}.register_hook(lambda g: show(g.sum()))" if not d.thread else ways[0],
    ]
    if d.tensor(a).is_leaf:
        ways += [f"{a}.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(3) and None)"]
    return d.one(ways)


@rule("mode", 4)
def under_a_mode(d: Draw) -> str | None:
    a = d.pick(lambda t: t.is_floating_point() and t.numel() > 0)
    if a is None:
        return None
    t = d.tensor(a)
    b = operand(d, t.shape, t.dtype)
    mode = d.one(
        ["torch.no_grad()", "torch.no_grad()", "torch.enable_grad()", "torch.inference_mode()"]
    )
    c = d.new()
    ways = [f"{c} = {a} * {b}", f"{c} = {a}.view(-1)", f"{c} = {a}[0] if {a}.dim() else {a}.sin()"]
    ways += [f"{c} = ({a} * {b}); {c}.add_(1)"]
    # Which calls record what an inference tensor requires follows from how the CPU's kernels are
    # written: clone() does, since it is a copy into a new tensor.
    if "inference" not in mode:
        ways.append(f"{c} = {a}.detach().clone(); {c}.requires_grad_()")
    return f"with {mode}: {d.one(ways)}"


@rule("custom function", 1)
def checkpointed(d: Draw) -> str | None:
    a = d.pick(tracked)
    if a is None:
        return None
    ways = ["x.sin() * x", "(x @ x.mT).sum() if x.dim() > 1 else x * 3"]
    if d.tensor(a).dtype not in (torch.bfloat16, torch.float16):
        ways.append("x.mul(2).tanh()")  # 1 in few bits, where a program has more between two calls
    f = d.one(ways)
    options = "use_reentrant=False, preserve_rng_state=False"
    run = f"torch.utils.checkpoint.checkpoint(lambda x: {f}, {a}, {options})"
    return f"import torch.utils.checkpoint; {d.new()} = {run}"


@rule("optimizer", 3)
def optimizer(d: Draw) -> str | None:
    of = d.tensors(lambda t: t.is_leaf and tracked(t) and t.dtype == torch.float32)
    if not of:
        return None
    # Each once: PyTorch warns of others, whose result differs between its own implementations.
    of = list({id(d.tensor(name)): name for name in of}.values())[: d.choose.randint(1, 3)]
    listed = f"[{', '.join(of)}]"
    # `eps`: these divide a gradient by its size, so that rounding alone would become a step.
    made = [
        "SGD({p}, lr=0.1{o})", "SGD({p}, lr=0.1, momentum=0.9{o})",
        "SGD({p}, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01{o})",
        "Adam({p}, lr=0.1, eps=0.1{o})", "AdamW({p}, lr=0.1, eps=0.1{o})",
        "Adam({p}, lr=0.1, amsgrad=True, eps=0.1{o})", "RMSprop({p}, lr=0.1, eps=0.1{o})",
        "Adagrad({p}, lr=0.1, eps=0.1{o})",
    ]  # fmt: skip
    # On xla the default is fused=True, which counts no version where it is asked for on the CPU.
    o = d.one(["", "", ", foreach=True", ", foreach=False"])
    line = d.one(made).format(p=listed, o=o)
    name = d.new("o")
    return f"{name} = torch.optim.{line}"


@rule("optimizer", 3)
def step(d: Draw) -> str | None:
    made = d.others("o")
    if not made:
        return None
    name = d.one(made)
    return d.one(
        [f"{name}.step()"] * 3 + [f"{name}.zero_grad()", f"{name}.zero_grad(set_to_none=False)"]
    )


@rule("train", 2)
def train(d: Draw) -> str | None:
    """A whole training step in one line."""
    made, lossy = d.others("o"), loss(d)
    if not made or lossy is None:
        return None
    name = d.one(made)
    return f"{name}.zero_grad(); {lossy}.backward(); {name}.step()"
