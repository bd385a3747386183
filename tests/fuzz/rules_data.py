"""Rules for tensors and their memory: factories, views, writes, reads, syncs, deletions."""

from __future__ import annotations

import torch

from tests.fuzz.draw import Draw, rule
from tests.fuzz.expressions import (
    factory,
    indices,
    mask,
    number,
    operand,
    overlaps_itself,
    place,
    views,
)


@rule("factory", 7)
def new_tensor(d: Draw) -> str:
    dtype = d.dtype()
    made = factory(d, d.shape(), dtype)
    if (dtype.is_floating_point or dtype.is_complex) and d.chance(0.3):
        return f"{d.new()} = {made}.clone().requires_grad_()"  # as in `require`
    return f"{d.new()} = {made}"


@rule("factory", 7)
def parameter(d: Draw) -> str:
    made = factory(d, d.shape(), torch.float32)
    copied = ".clone()" if ".expand(" in made else ""  # as in `require`
    return f"{d.new()} = torch.nn.Parameter({made}{copied})"


@rule("view", 16)
def take_view(d: Draw) -> str | None:
    name = d.pick()
    found = views(d, name, 0.2) if name else None
    return f"{d.new()} = {found[0]}" if found else None


@rule("view", 16)
def several_views(d: Draw) -> str | None:
    name = d.pick(lambda t: t.dim() > 0 and 2 <= len(t) <= 4)
    if name is None:
        return None
    t = d.tensor(name)
    new = ", ".join(d.new() for _ in range(len(t)))
    ways = ["unbind()", "unbind(0)", "split(1)", f"chunk({len(t)})", f"tensor_split({len(t)})"]
    return f"{new} = {name}.{d.one(ways)}" if d.chance(0.8) else f"{new} = {name}"


@rule("in-place view", 3)
def view_in_place(d: Draw) -> str | None:
    name = d.pick()
    if name is None:
        return None
    t = d.tensor(name)
    bases = [o for o in (t, t._base) if o is not None]
    views = [v for v in map(d.tensor, d.tensors()) if any(v._base is o for o in bases)]
    # These know only the shape that was, by which PyTorch takes them anew.
    if any(v.is_complex() != t.is_complex() for v in views):
        return None
    rank = t.dim()
    ways = [f"{name}.squeeze_()", f"{name}.unsqueeze_({d.choose.randint(-rank - 1, rank)})"]
    if rank <= 2:
        ways.append(f"{name}.t_()")
    if rank:
        dim = d.choose.randrange(-rank, rank)
        ways += [f"{name}.transpose_({dim}, 0)", f"{name}.swapaxes_(0, {dim})"]
        ways += [f"{name}.squeeze_({dim})"]
    if d.chance(0.1) and not views:  # see `require`
        ways += [f"{name}.detach_()"] * 3
    return d.one(ways)


def guarded(d: Draw, line: str, t: torch.Tensor) -> str:
    """Writes to what requires grad are mostly made under no_grad, as optimizers make them."""
    if t.requires_grad and (t.is_leaf or t._is_view()) and d.chance(0.7):
        return f"with torch.no_grad(): {line}"
    return line


ARITHMETIC = ["add_", "sub_", "mul_"]
UNARY = ["neg_", "abs_", "relu_", "sigmoid_", "tanh_", "sin_", "cos_", "square_", "erf_"]


@rule("write", 14)
def arithmetic(d: Draw) -> str | None:
    target = place(d)
    if target is None:
        return None
    at, t = target
    value = operand(d, t.shape, t.dtype, t) if d.chance(0.7) else number(d, t.dtype)
    if t.dtype == torch.bool:
        return guarded(
            d, f"{at}.{d.one(['logical_and_', 'logical_or_', 'logical_xor_'])}({value})", t
        )
    ways = [f"{at}.{name}({value})" for name in ARITHMETIC]
    if t.is_floating_point():
        ways += [f"{at}.div_({number(d)} + 4)", f"{at}.copysign_({value})"]
        ways += (
            [f"{at}.addcmul_({value}, {value}, value=0.5)"] if "(" in value or "t" in value else []
        )
        ways += [f"{at}.add_({value}, alpha=0.5)", f"{at}.clamp_(-1, 1)", f"{at}.clamp_(min=0)"]
    if at.isidentifier():
        ways += [f"{at} {d.one(['+', '*', '-'])}= {value}"]
    return guarded(d, d.one(ways), t)


@rule("write", 14)
def unary(d: Draw) -> str | None:
    target = place(d, lambda t: t.dtype not in (torch.bool, torch.uint8))
    if target is None:
        return None
    at, t = target
    ways = [f"{at}.zero_()", f"{at}.fill_({number(d, t.dtype)})", f"{at}.neg_()"]
    if t.is_floating_point():
        ways += [f"{at}.{name}()" for name in d.choose.sample(UNARY, 3)]
        ways += [f"{at}.lerp_({operand(d, t.shape, t.dtype, t)}, 0.25)", f"{at}.clip_(-2, 2)"]
        ways += [f"F.relu({at}, inplace=True)", f"F.leaky_relu({at}, 0.1, inplace=True)"]
        ways += [f"torch.nn.init.constant_({at}, {number(d)})", f"{at}.nan_to_num_()"]
    if t.dim() > 1:
        ways += [f"{at}.tril_()", f"{at}.triu_(1)"]
        if t.dim() == 2:
            ways += [f"{at}.fill_diagonal_({number(d, t.dtype)})"]
    if t.dim():
        ways += [f"{at}.cumsum_({d.choose.randrange(t.dim())})"] if t.dtype != torch.uint8 else []
    return guarded(d, d.one(ways), t)


@rule("copy", 7)
def copy(d: Draw) -> str | None:
    target = place(d)
    if target is None:
        return None
    at, t = target
    value = operand(d, t.shape, t.dtype, t)
    return guarded(d, f"{at}.copy_({value})", t)


@rule("copy", 7)
def copy_of_another_dtype(d: Draw) -> str | None:
    target = place(d)
    if target is None:
        return None
    at, t = target
    other = d.pick(lambda o: o.shape == t.shape and not o.is_complex() and o.dtype != t.dtype)
    if other is None or t.dtype == torch.uint8:
        return None
    return guarded(d, f"{at}.copy_({other})", t)


@rule("copy", 7)
def assign_part(d: Draw) -> str | None:
    name = d.pick(lambda t: t.dim() > 0 and t.numel() > 0 and not overlaps_itself(t))
    if name is None:
        return None
    t = d.tensor(name)
    n = len(t)
    ways = ["[0]", "[-1]", "[1:]", "[:-1]", "[::2]", f"[:{max(1, n // 2)}]", "[...]", "[..., 0]"]
    ways += [f"[{d.choose.randrange(-n, n)}]"]
    if t.dim() > 1:
        ways += ["[:, 0]", "[:, 1:]", "[:, ::2]", "[1:, :-1]", "[..., None]", "[None]", "[0, 1:]"]
    where = d.one(ways)
    part = d.value(name + where)
    if not isinstance(part, torch.Tensor):
        return None
    value = operand(d, part.shape, t.dtype, t) if d.chance(0.8) else number(d, t.dtype)
    sign = d.one(["=", "=", "=", "+=", "*="]) if t.dtype != torch.bool else "="
    return guarded(d, f"{name}{where} {sign} {value}", t)


def produced(d: Draw, name: str, t: torch.Tensor) -> str:
    """Memory of its own, from operators whose results programs keep in place."""
    rows = indices(d, len(t), d.one([2, 3, 4]))
    ways = [f"{name}[{rows}]", f"{name}.index_select(0, {rows.replace(' - ', ' + 0 - ')})"]
    ways += [f"{factory(d, (3, 4), t.dtype)}.view(4, 3)", f"{name}.clone().view(-1, {t.shape[-1]})"]
    if t.dim() == 2:
        ways += [f"F.embedding({rows} % {len(t)}, {name})"]
        ways += [f"{name}.scatter(0, ({rows} % {len(t)}).view(-1, 1), {number(d, t.dtype)})"]
    if t.is_floating_point() and t.dim() > 1:
        ways += [f"{name} @ {name}.mT", f"({name} @ {name}.mT)[..., :2]"]
        ways += [f"torch.baddbmm({name}[None], {name}[None] @ {name}.mT, {name}[None])[0]"]
    return d.one(ways)


@rule("shift", 6)
def write_what_was_read(d: Draw) -> str | None:
    """A part of a tensor, moved or computed with, over another part of the tensor."""
    name = d.pick(lambda t: t.dim() > 0 and t.numel() > 1 and not overlaps_itself(t))
    if name is None:
        return None
    t, first = d.tensor(name), ""
    if d.chance(0.4):
        made = produced(d, name, t)
        result, name = d.value(made), d.new()
        if not isinstance(result, torch.Tensor) or not result.dim() or result.numel() < 2:
            return None
        t, first = result, f"{name} = {made}; "
    dim = d.choose.randrange(t.dim())
    n = t.shape[dim]
    if n < 2:
        return None
    k = d.choose.randint(1, n - 1)
    ways = [(f"{k}:", f":-{k}"), (f":-{k}", f"{k}:")] * 2 + [(f":-{k}", f":-{k}")]
    if n % 2 == 0:
        ways += [("::2", "1::2"), ("1::2", "::2")]
    to, of = (f"{name}[{':, ' * dim}{cut}]" for cut in d.one(ways))
    count = len(range(n)[:-k]) if of.endswith(f":-{k}]") or to.endswith(f":-{k}]") else n // 2
    values = [f"{of}.clone()"] * 2 + [f"{of}.flip({dim})", f"{of}.roll(1, {dim})"]
    # The CPU copies memory that overlaps in any order.
    values += [of] if to == of or "::2" in of or 2 * k >= n else []
    values += [f"{of}.index_select({dim}, {indices(d, count, count, distinct=True)})"]
    values += [f"{of}.sort({dim}).values"] if not t.is_complex() else []
    if t.dtype != torch.bool:
        values += [f"({of} * 2)", f"({of} + {number(d, t.dtype)})", f"{of}.cumsum({dim})"]
        values += [f"({of} + {to})", f"torch.where({of} == {to}, {of}, {of} * 2)"]
    value = d.one(values)
    if value != of and d.chance(0.2):
        read = d.new()
        first, value = f"{first}{read} = {value}; ", read
    ways = [f"{to} = {value}"] * 4 + [f"{to}.copy_({value})"]
    if t.dtype != torch.bool:
        ways += [f"{to} += {value}", f"{to}.sub_({value})"]
    return guarded(d, first + d.one(ways), t)


@rule("index write", 8)
def assign_at_indices(d: Draw) -> str | None:
    target = place(d, lambda t: t.dim() > 0 and len(t) > 0)
    if target is None:
        return None
    at, t = target
    if d.chance(0.4):
        where = mask(d, t.shape) if d.chance(0.6) else mask(d, t.shape[:1])
        value = number(d, t.dtype)
        if d.chance(0.3) and t.dim():
            value = operand(d, (), t.dtype, t)
        ways = [f"{at}[{where}] = {value}", f"{at}.masked_fill_({mask(d, t.shape)}, {value})"]
        whole = operand(d, t.shape, t.dtype, t, exact=True)
        ways += [f"{at}.masked_scatter_({mask(d, t.shape)}, {whole}.to({t.dtype}))"]
        if t.dtype != torch.bool:
            ways += [f"{at}[{where}] += {number(d, t.dtype)}"]
        return guarded(d, d.one(ways), t)
    index = indices(d, len(t), d.one([1, 2, 3]), distinct=True)
    part = d.value(f"{at}[{index}]")
    if part is None:
        return None
    value = operand(d, part.shape, t.dtype, t) if d.chance(0.7) else number(d, t.dtype)
    ways = [f"{at}[{index}] = {value}"] * 2
    if t.dtype != torch.bool:
        ways += [f"{at}[{index}] += {value}"]
    if t.dim() > 1 and t.shape[1]:
        other = indices(d, t.shape[1], 1)
        ways += [f"{at}[{index}, {other}] = {number(d, t.dtype)}"]
        ways += [f"{at}[:, {indices(d, t.shape[1], 2, distinct=True)}] = {number(d, t.dtype)}"]
    return guarded(d, d.one(ways), t)


@rule("index write", 8)
def write_at_indices(d: Draw) -> str | None:
    target = place(d, lambda t: t.dim() > 0 and len(t) > 0 and t.dtype != torch.bool)
    if target is None:
        return None
    at, t = target
    count = d.one([1, 2, 3])
    distinct = indices(d, len(t), count, distinct=True)
    part = d.value(f"{at}[{distinct}]")
    if part is None:
        return None
    source = operand(d, part.shape, t.dtype, t, exact=True)
    source = f"{source}.to({t.dtype})"
    ways = [f"{at}.index_copy_(0, {distinct}, {source})"]
    ways += [f"{at}.index_fill_(0, {distinct}, {number(d, t.dtype)})"]
    ways += [f"{at}.index_put_(({distinct},), {source})"]
    index = indices(d, len(t), len(part))
    ways += [f"{at}.index_add_(0, {index}, {source})"] * 2
    ways += [f"{at}.index_add_(0, {index}, {source}, alpha=2)"]
    ways += [f"{at}.index_put_(({index},), {source}, accumulate=True)"]
    if t.dim() == 1:
        ways += [
            f"{at}.scatter_(0, {distinct}, {source})",
            f"{at}.scatter_add_(0, {index}, {source})",
        ]
        ways += [f"{at}.put_({distinct}, {source})"]
        ways += (
            [f"{at}.scatter_reduce_(0, {index}, {source}, 'amax')"] if t.is_floating_point() else []
        )
    elif t.dim() == 2 and t.shape[1]:
        wide = f"{distinct}.view(-1, 1).expand({tuple(part.shape)})"
        ways += [f"{at}.scatter_(0, {wide}, {source})", f"{at}.scatter_add_(0, {wide}, {source})"]
        ways += [f"{at}.scatter_(0, {wide}, {number(d, t.dtype)})"]
    return guarded(d, d.one(ways), t)


LISTS = ["mul_", "add_", "sub_"]


@rule("list write", 4)
def write_lists(d: Draw) -> str | None:
    name = d.pick(lambda t: t.is_floating_point() and not overlaps_itself(t))
    if name is None:
        return None
    t = d.tensor(name)
    memory = {t.untyped_storage().data_ptr()}
    several = [name]
    for other in d.tensors(lambda o: o.dtype == t.dtype and not overlaps_itself(o)):
        at = d.tensor(other).untyped_storage().data_ptr()
        if len(several) < 3 and (at not in memory or (d.chance(0.2) and other != name)):
            several.append(other)
            memory.add(at)
    listed = f"[{', '.join(several)}]"
    with_others = ", ".join(
        operand(d, d.tensor(n).shape, t.dtype, d.tensor(n), exact=True) for n in several
    )
    ways = [f"torch._foreach_{f}({listed}, {number(d)})" for f in LISTS]
    ways += [f"torch._foreach_{f}({listed}, [{with_others}])" for f in LISTS]
    ways += [
        f"torch._foreach_lerp_({listed}, [{with_others}], 0.5)",
        f"torch._foreach_zero_({listed})",
    ]
    ways += [f"torch._foreach_copy_({listed}, [{with_others}])", f"torch._foreach_neg_({listed})"]
    ways += [f"torch._foreach_addcmul_({listed}, [{with_others}], [{with_others}], value=0.5)"]
    ways += [f"torch._foreach_clamp_max_({listed}, 2.0)", f"torch._foreach_abs_({listed})"]
    return guarded(d, d.one(ways), t)


@rule("out", 4)
def write_out(d: Draw) -> str | None:
    target = place(d, lambda t: t.is_floating_point() and not t.requires_grad)
    if target is None:
        return None
    at, t = target
    a, b = (operand(d, t.shape, t.dtype, t, exact=True) for _ in range(2))
    ways = [f"torch.{f}({a}, {b}, out={at})" for f in ("add", "mul", "sub", "maximum")]
    ways += [f"torch.{f}({a}, out={at})" for f in ("sin", "neg", "abs", "sigmoid")]
    if t.dim():
        dim = d.choose.randrange(t.dim())
        ways += [f"torch.cumsum({a}, {dim}, out={at})"]
        half = t.shape[dim] // 2
        if half:
            cut = [f"{a}.narrow({dim}, 0, {half})", f"{b}.narrow({dim}, 0, {t.shape[dim] - half})"]
            ways += [f"torch.cat([{cut[0]}, {cut[1]}], {dim}, out={at})"]
        if t.shape[0]:
            ways += [f"torch.index_select({a}, 0, {indices(d, len(t), len(t))}, out={at})"]
    if t.dim() == 2:
        ways += [
            f"torch.mm({a}, torch.eye({t.shape[1]}, dtype={t.dtype}, device=device), out={at})"
        ]
    ways += [f"torch.where({mask(d, t.shape)}, {a}, {b}, out={at})"]
    return "with torch.no_grad(): " + d.one(ways)


@rule("out", 4)
def several_outs(d: Draw) -> str | None:
    a = d.pick(lambda t: t.is_floating_point() and t.dim() and t.numel() > 0)
    if a is None:
        return None
    t = d.tensor(a)
    dim = d.choose.randrange(t.dim())
    kept = t.shape[:dim] + t.shape[dim + 1 :]
    values = d.pick(lambda o: o.shape == kept and o.dtype == t.dtype and not overlaps_itself(o))
    if values is None or d.tensor(values).requires_grad:
        return None
    index = f"torch.zeros({tuple(kept)}, dtype=torch.int64, device=device)"
    return f"with torch.no_grad(): torch.max({a}.detach().clone(), {dim}, out=({values}, {index}))"


@rule("swap memory", 1.5)
def data(d: Draw) -> str | None:
    name = d.pick()
    if name is None:
        return None
    t = d.tensor(name)
    # What is differentiable keeps its shape: backward may have kept it for a formula, and a view is
    # taken anew when its base is written.
    alike = t._is_view() or t.requires_grad
    other = d.pick(lambda o: o.dtype == t.dtype and (not alike or o.shape == t.shape))
    if other is None:
        return None
    ways = [f"{name}.data.mul_(2)"] if t.is_floating_point() and not overlaps_itself(t) else []
    ways += [f"{name}.data = {other}.detach()", f"{name}.set_({other}.detach())"]
    ways += [f"{d.new()} = {name}.data"]
    if (
        t.is_contiguous()
        and t.storage_offset() == 0
        and t.dim()
        and len(t) > 1
        and not t._is_view()
    ):
        ways += [f"{name}.resize_({len(t) - 1}, {', '.join(str(n) for n in t.shape[1:]) or '1'})"]
    return d.one(ways)


@rule("read", 6)
def read(d: Draw) -> str | None:
    name = d.pick()
    if name is None:
        return None
    t = d.tensor(name)
    at = name
    if d.chance(0.3) and (found := views(d, name)):
        at, t = found
    # Reading takes part in autograd on all devices but the CPU.
    name, at = f"{name}.detach()", f"{at}.detach()"
    ways = [f"show({at}.cpu())", f"show({at}.tolist())"]
    if t.dtype != torch.bfloat16:
        ways += [f"show({at}.cpu().numpy().copy().tolist())"]
    if t.numel() == 1:
        ways += [f"show({at}.item())"] * 3
        ways += [f"show(bool({at}))", f"show(float({at}))"] if not t.is_complex() else []
    if not t.is_complex() and t.numel():
        ways += [
            f"show({at}.sum().item())",
            f"show(bool(({at} > 0).any()))",
            f"show(len({at}.nonzero()))",
        ]
        ways += [
            f"show({at}.max().item())",
            f"show(int(({at} != 0).sum()))",
            f"show({at}.argmax().item())",
        ]
    if not t.is_floating_point() and not t.is_complex():
        # Where lines break depends on the length of the device's name.
        words = f"str({at}).replace(\"device='xla:0'\", '').replace(',', '').split()"
        ways += [f"show(str({at}.cpu()))", f"show(''.join({words}))"]
    ways += [f"str({at})", f"show(torch.equal({at}, {at}.clone()))", f"show({at}.to('cpu') + 1)"]
    ways += [
        f"{d.new()} = {at}.cpu().clone().to(device)",
        f"show({at}.data_ptr() == {name}.data_ptr())",
    ]
    return d.one(ways)


@rule("read", 6)
def branch(d: Draw) -> str | None:
    a, b, c = d.pick(lambda t: t.numel() > 0 and not t.is_complex()), d.pick(), d.pick()
    if a is None:
        return None
    # No sum of round numbers is near it.
    return f"{d.new()} = {b} if bool({a}.sum() > {number(d)} + 0.0637) else {c}.clone()"


@rule("sync", 5)
def sync(d: Draw) -> str:
    return d.one(["sync()"] * 4 + ["sync(wait=True)"])


@rule("delete", 3)
def delete(d: Draw) -> str | None:
    name = d.one(d.tensors() or [None])
    return f"del {name}" if name else None


@rule("copy of an object", 1)
def copies(d: Draw) -> str | None:
    name = d.pick(lambda t: t.is_leaf)
    if name is None:
        return None
    ways = [
        f"__import__('copy').deepcopy({name})",
        f"{name}.clone()",
    ]  # copy.copy copies values on xla, on purpose
    ways += [f"{name}.clone(memory_format=torch.contiguous_format)", f"{name}.contiguous()"]
    return f"{d.new()} = {d.one(ways)}"
