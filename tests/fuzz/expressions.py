"""Expressions that rules put into their lines: numbers, views, operands and places to write."""

from __future__ import annotations

import itertools
import math

import torch

from tests.fuzz.draw import Draw


def number(d: Draw, dtype: torch.dtype = torch.float32) -> str:
    if dtype == torch.bool:
        return d.one(["True", "False"])
    if dtype == torch.uint8:
        return d.one(["1", "2", "3"])
    if not dtype.is_floating_point and not dtype.is_complex:
        return d.one(["1", "2", "3", "-1", "-2"])
    if dtype.is_complex and d.chance(0.3):
        return "(0.5+1j)"
    return d.one(["0.5", "2.0", "-1.5", "0.25", "3.0", "-1.0", "1.0", "0.0", "17", "2"])


def list_of(d: Draw, count: int, dtype: torch.dtype) -> str:
    def one() -> str:
        if dtype == torch.bool:
            return d.one(["True", "False"])
        if not dtype.is_floating_point and not dtype.is_complex:
            return str(d.choose.randint(0, 5))
        return str(d.choose.randint(-8, 8) / 4)

    return "[" + ", ".join(one() for _ in range(count)) + "]"


def factory(d: Draw, shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """A new tensor: a constant of the program, an iota, random numbers times 0, or an input."""
    count = math.prod(shape)
    number_ = number(d, dtype)
    made = [
        f"torch.full({shape}, {number_}, dtype={dtype}, device=device)",
        f"torch.ones({shape}, dtype={dtype}, device=device)",
        f"torch.zeros({shape}, dtype={dtype}, device=device)",
    ]
    given = []
    if count <= 48:
        listed = f"torch.tensor({list_of(d, count, dtype)}, dtype={dtype}"
        given.append(f"{listed}, device=device).reshape({shape})")
        given.append(f"{listed}).to(device).view({shape})")
    if dtype not in (torch.bool, torch.complex64):
        iota = f"torch.arange({count}, dtype={dtype}, device=device)"
        made.append(f"{iota}.reshape({shape})")
        made.append(f"{iota}.view({shape}).clone()")
        if dtype != torch.uint8:
            made.append(f"({iota}.reshape({shape}) - {count // 2})")
    if len(shape) == 2 and dtype != torch.bool:
        made.append(f"torch.eye({shape[0]}, {shape[1]}, dtype={dtype}, device=device)")
    if len(shape) > 1 and shape[0]:
        row = f"torch.full({shape[1:]}, {number_}, dtype={dtype}, device=device)"
        made.append(f"{row}.expand({shape})")
    if len(shape) == 1:
        made.append(f"torch.randperm({count}, device=device).sort().values.to({dtype})")
        # Exact in every dtype: rounding in a narrower dtype than the result is not noise.
        made.append(f"(torch.arange({count}, device=device) / 16 - 1).to({dtype})")
    if dtype.is_floating_point or dtype.is_complex:
        generator = f"generator=torch.Generator().manual_seed({d.choose.randint(0, 99)})"
        given.append(f"torch.randn({shape}, {generator}).to({dtype}).to(device)")
        given.append(f"torch.randn({shape}, {generator}).to(device, {dtype})")
        made.append(f"torch.rand({shape}, device=device).to({dtype}).mul(0).add({number_})")
    if like := d.tensors(lambda t: tuple(t.shape) == shape and t.dtype == dtype):
        name = d.one(like)
        made += [f"torch.zeros_like({name})", f"torch.ones_like({name})"]
        made += [f"torch.full_like({name}, {number_})", f"{name}.new_full({shape}, {number_})"]
    return d.one(made if d.chance(0.55) or not given else given)


def indices(d: Draw, size: int, count: int, distinct: bool = False) -> str:
    """`count` indices below `size`: sent from the host, constants, or computed in the program."""
    if distinct:
        drawn = d.choose.sample(range(size), min(count, size))
    else:
        drawn = [d.choose.randrange(size) for _ in range(count)]
        if d.chance(0.2):
            # First those that some operators refuse, before the CPU has written anything.
            drawn = sorted((i - size if d.chance(0.5) else i for i in drawn), key=lambda i: i >= 0)
    count = len(drawn)
    ways = [f"torch.tensor({drawn}, device=device)"] * 3
    first = d.choose.randint(0, max(0, size - count))
    if count <= size:
        ways.append(f"torch.arange({first}, {first + count}, device=device)")
        ways.append(f"torch.arange({size}, device=device).flip(0)[{first}:{first + count}]")
        ways.append(f"torch.randperm({size}, device=device).argsort().sort().values[:{count}]")
    if not distinct:
        ways.append(f"torch.zeros({count}, dtype=torch.int64, device=device)")
        ways.append(f"(torch.arange({count}, device=device) * 3 % {size})")
    return d.one(ways)


def view(d: Draw, name: str, t: torch.Tensor) -> str:
    """A random view of `t`, that the expression `name` stands for."""
    rank, ways = t.dim(), [f"{name}.detach()"] if d.chance(0.15) else []
    ways += [f"{name}.view({name}.shape)", f"{name}.unsqueeze({d.choose.randint(-rank - 1, rank)})"]
    ways += [f"{name}.squeeze()", f"{name}[...]", f"{name}[None]"]
    contiguous = t.is_contiguous()
    sizes = [n for n in (2, 3, 4, 6) if t.numel() % n == 0]
    if sizes:
        n = d.one(sizes)
        shaped = "view" if contiguous and d.chance(0.8) else "reshape"
        ways += [f"{name}.{shaped}({n}, -1)", f"{name}.{shaped}(-1, {n})"]
    if rank != 1:
        ways += [f"{name}.view(-1)" if contiguous else f"{name}.reshape(-1)"]
    if rank > 0:
        dim = d.choose.randrange(rank)
        size, at = t.shape[dim], d.one([dim, dim, dim - rank])
        ways += [f"{name}.movedim({at}, 0)", f"{name}.unflatten({at}, (-1, 1))"]
        ways += [f"{name}.flatten({dim})"]
        if t.numel():
            i = d.choose.randrange(-size, size)
            ways += [f"{name}.select({at}, {i})", f"{name}[{d.choose.randrange(-len(t), len(t))}]"]
            ways += [f"{name}.unbind({at})[{i}]"]
        if size > 1:
            a = d.choose.randrange(size - 1)
            b, step = d.choose.randint(a + 1, size), d.one([1, 1, 2, 3])
            cut = ":, " * dim + f"{a}:{b}" + (f":{step}" if step > 1 else "")
            ways += [f"{name}[{cut}]"] * 3
            ways += [
                f"{name}.narrow({at}, {a}, {b - a})",
                f"{name}.chunk(2, {at})[{d.one([0, -1])}]",
            ]
            ways += [f"{name}.split({d.choose.randint(1, size)}, {at})[-1]"]
            ways += [f"{name}.unfold({at}, 2, {d.one([1, 2, 2])})", f"{name}[..., ::2]"]
            ways += [f"{name}.tensor_split(2, {at})[0]", f"{name}[1:]", f"{name}[:-1]"]
        else:
            ways += [f"{name}.squeeze({at})"]
            sizes = list(t.shape)
            if size:
                sizes[dim] = d.one([2, 3, 4])
                ways += [f"{name}.expand({tuple(sizes)})"] * 2
    if d.chance(0.3):
        ways += [f"{name}.expand({d.one([1, 2, 3])}, {', '.join(['-1'] * rank)})"]
        ways += [f"{name}.expand_as({name})", f"{name}.broadcast_to({(2, *t.shape)})"]
    if rank > 1:
        order = list(range(rank))
        d.choose.shuffle(order)
        a, b = d.choose.sample(range(rank), 2)
        ways += [f"{name}.permute({tuple(order)})", f"{name}.transpose({a}, {b - rank})"] * 2
        ways += [f"{name}.diagonal({d.one([0, 0, 1, -1])}, {a}, {b})", f"{name}.mT"]
        ways += [f"{name}.swapaxes({a}, {b})", f"{name}.view({tuple(t.shape)})"]
    if rank == 2:
        ways += [f"{name}.t()", f"{name}.T"] * 2
    if t.dtype == torch.complex64:
        ways += [
            f"torch.view_as_real({name})",
            f"{name}.real",
            f"{name}.imag",
            f"{name}.conj()",
        ] * 2
        ways += [f"{name}.resolve_conj()", f"{name}.conj().imag"]
    if t.dtype in (torch.float32, torch.float64, torch.float16):
        is_half = t.dtype == torch.float16  # of two, PyTorch makes a complex32
        if rank and t.shape[-1] == 2 and not is_half and d.chance(0.7):
            ways += [f"torch.view_as_complex({name})"] * 3
        if d.chance(0.1):
            ways += [f"{name}.real", f"{name}.conj()", f"{name}.resolve_neg()"]
    # Written through such a view, booleans of the CPU may be other than 0 and 1.
    if d.chance(0.06) and not t.requires_grad and t.dtype != torch.bool:
        ways += [
            f"{name}.view(torch.int32)",
            f"{name}.view(torch.uint8)",
            f"{name}.view(torch.int16)",
        ]
    if d.chance(0.15) and t.numel() >= 4:
        offset = d.one(["", f", {name}.storage_offset()", ", 1", ", 0"])
        square = [((2, 2), (2, 1)), ((2, 2), (1, 2))]
        size, stride = d.one([*square, ((3,), (1,)), ((2,), (2,)), ((), ())])
        ways += [f"{name}.as_strided({size}, {stride}{offset})"] * 6
    if d.chance(0.1):
        ways += [f"{name}.view_as({name})", f"{name}.data", f"torch.atleast_2d({name})"]
    return d.one(ways)


def overlaps_itself(t: torch.Tensor) -> bool:
    if any(s == 0 and n > 1 for s, n in zip(t.stride(), t.shape, strict=True)):
        return True
    places = [range(n) for n in t.shape]
    offsets = [
        sum(i * s for i, s in zip(at, t.stride(), strict=True)) for at in itertools.product(*places)
    ]
    return len(set(offsets)) < len(offsets)


def views(d: Draw, name: str, chain: float = 0.35) -> tuple[str, torch.Tensor] | None:
    """An expression of one or more views of a tensor, and what it is."""
    expression, t = name, d.tensor(name)
    while True:
        longer = view(d, expression, t)
        result = d.value(longer)
        if not isinstance(result, torch.Tensor):
            return None if expression == name else (expression, t)
        expression, t = longer, result
        if not d.chance(chain):
            return expression, t


def place(d: Draw, ok=lambda t: True) -> tuple[str, torch.Tensor] | None:
    """Something to write into: a tensor, or a view of one in the same line."""
    name = d.pick(lambda t: t.numel() or d.chance(0.1))
    if name is None:
        return None
    expression, t = name, d.tensor(name)
    if d.chance(0.45):
        found = views(d, name)
        if found is not None and ".data" not in found[0]:
            expression, t = found
    return (expression, t) if ok(t) and not overlaps_itself(t) else None


def _reaches(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return tuple(torch.broadcast_shapes(shape, target)) == tuple(target)
    except RuntimeError:
        return False


def derived(d: Draw, name: str, shape: tuple[int, ...]) -> str | None:
    """An expression over one tensor that broadcasts to `shape`."""
    t = d.tensor(name)
    if _reaches(tuple(t.shape), shape) and d.chance(0.6):
        return name
    for _ in range(6):
        found = views(d, name)
        if found is None:
            continue
        expression, result = found
        if not _reaches(tuple(result.shape), shape) and result.dim() == len(shape):
            cut = tuple(slice(0, n) for n in shape)
            if all(a >= b for a, b in zip(result.shape, shape, strict=True)):
                text = ", ".join(f":{s.stop}" for s in cut)
                expression = f"{expression}[{text}]" if cut else expression
                result = d.value(expression)
        if isinstance(result, torch.Tensor) and _reaches(tuple(result.shape), shape):
            return expression
    return None


def operand(
    d: Draw,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    target: torch.Tensor | None = None,
    exact: bool = False,
) -> str:
    """A tensor expression that broadcasts to `shape` (is of it, if `exact`), of a dtype that
    `dtype` takes. If it would share memory with `target`, which is written, it is a copy."""
    shape = tuple(shape)

    def fits(t: torch.Tensor) -> bool:
        return torch.can_cast(t.dtype, dtype) and t.dtype.is_complex == dtype.is_complex

    names = d.tensors(fits)
    if target is not None and d.chance(0.5):
        at = target.untyped_storage().data_ptr()
        names = [n for n in names if d.tensor(n).untyped_storage().data_ptr() == at] or names
    for _ in range(3):
        if not names or d.chance(0.25):
            break
        expression = derived(d, d.one(names), shape)
        if expression is None:
            continue
        result = d.value(expression)
        if result is None or (exact and tuple(result.shape) != shape):
            continue
        if target is not None and result.numel():
            shares = result.untyped_storage().data_ptr() == target.untyped_storage().data_ptr()
            if shares:
                ways = [".clone()", ".clone()", ".flip(0).clone()", ".contiguous().clone()"]
                ways += [" * 1"] if result.dtype != torch.bool else []
                way = d.one(ways if result.dim() else [".clone()"])
                expression = f"({expression}{way})" if way.startswith(" ") else expression + way
        elif target is None and d.chance(0.1):
            expression = f"{expression}.clone()"
        if expression.count("(") < 8:
            return expression
    if not exact and d.chance(0.2):
        shape = d.one([shape[k:] for k in range(len(shape) + 1)])
    return factory(d, shape, dtype)


def mask(d: Draw, shape: tuple[int, ...]) -> str:
    shape = tuple(shape)
    names = d.tensors(lambda t: tuple(t.shape) == shape and not t.is_complex())
    listed = list_of(d, math.prod(shape), torch.bool)
    ways = [f"torch.tensor({listed}, dtype=torch.bool, device=device).view({shape})"]
    ways += [f"torch.ones({shape}, dtype=torch.bool, device=device)"]
    ways += [f"(torch.arange({math.prod(shape)}, device=device).view({shape}) % 2 == 0)"]
    if names:
        name = d.one(names)
        ways += [f"({name} > {number(d)})", f"({name} == {name}.clone())", f"({name} <= 1)"] * 2
    return d.one(ways)
