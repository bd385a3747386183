"""Rules for operators that make new tensors."""

from __future__ import annotations

import torch

from tests.fuzz.draw import DTYPES, Draw, rule
from tests.fuzz.expressions import factory, indices, mask, number, operand, overlaps_itself

ELEMENTWISE = [
    "{a}.sin()", "{a}.tanh()", "torch.sigmoid({a})", "F.relu({a})", "F.gelu({a})", "F.silu({a})",
    "{a}.abs()", "-{a}", "{a}.square()", "1 / ({a}.abs() + 1)", "({a}.abs() + 1).sqrt()",
    "({a}.abs() + 1).log()", "{a}.clamp(-1, 1)", "{a}.clamp(min=0.5)", "{a}.sign()", "{a}.floor()",
    "{a}.round()", "{a} ** 2", "{a} ** 3", "{a}.atan()", "F.softplus({a})", "F.elu({a})",
    "F.hardtanh({a})", "F.leaky_relu({a}, 0.1)", "{a}.erf()", "{a}.expm1().clamp(max=5)",
    "{a}.sinc()", "{a}.nan_to_num()", "{a}.frac()", "{a}.exp().clamp(max=9)", "{a} % 3", "{a} // 2",
    "{a} / 3", "2 - {a}", "1.5 * {a}", "F.dropout({a}, 0.0)", "F.dropout({a}, 0.5, False)",
    "{a}.logit(0.1)", "{a}.to(torch.float64)", "{a}.float()", "{a}.half().float()",
    "{a}.bfloat16()", "{a} + 1",
]  # fmt: skip

# {x} is a dimension.
ALONG = [
    "{a}.softmax({x})", "{a}.log_softmax({x})", "{a}.cumsum({x})", "{a}.sum({x})", "{a}.mean({x})",
    "{a}.amax({x})", "{a}.amin({x}, keepdim=True)", "{a}.sort({x}, stable=True)[0]",
    "{a}.flip({x})", "{a}.roll(1, {x})", "{a}.logsumexp({x})", "{a}.norm(dim={x})",
    "{a}.max({x})[0]", "{a}.sort({x}, descending=True)[0]",
    "{a}.contiguous().median({x})[0]",  # the CPU's kernel reads expanded tensors past their end
    "{a}.cummax({x})[0]", "{a}.argsort({x}, stable=True)", "{a}.argmax({x})",
    "{a}.var({x}, unbiased=False)", "F.normalize({a}, dim={x})", "{a}.diff(dim={x})",
    "{a}.detach().topk(1, {x})[0]", "{a}.prod({x}) + 0", "{a}.sum({x}, keepdim=True)",
    "{a}.repeat_interleave(2, {x})", "{a}.cumprod({x})", "{a}.logcumsumexp({x})",
    "{a}.std({x}, correction=0)", "{a}.any({x})", "{a}.count_nonzero({x})",
    "F.glu({a}.repeat_interleave(2, {x}), {x})",
    "{a}.softmin({x}) if hasattr({a}, 'softmin') else {a}",
]  # fmt: skip

WHOLE = [
    "{a}.sum()", "{a}.mean()", "{a}.norm()", "{a}.max()", "{a}.min()",
    # Of more, it may be infinite, and what its gradient is then. The CPU alone refuses to write
    # into a product that needs a gradient.
    "{a}.flatten()[:12].prod() + 0",
    "{a}.var(correction=0)", "{a}.clone()", "{a}.flatten()[::2]", "{a}.repeat(2, *[1] * {a}.dim())",
    "{a}.reshape(-1).cumsum(0)", "torch.stack([{a}, {a}])",
    "torch.cat([{a}.flatten(), {a}.flatten()])", "{a}.isnan()",
    "{a}.sort(stable=True)[1] if {a}.dim() else {a}", "{a}.contiguous()", "{a} > 0", "{a}.ne(0)",
    "{a}.flip(*range({a}.dim()))", "torch.zeros_like({a})", "{a}.masked_fill({a} > 0, 0.5)",
    "{a}.nonzero()", "{a}[{a} > 0]", "{a}.unique()", "{a}.all()", "{a}.aminmax()[0]",
    "{a}.nansum()",
    # Of more than 16 elements the CPU takes any of equal ones.
    "{a}.flatten()[:16].quantile(0.5) if {a}.dtype == torch.float32 else {a}",
    "F.one_hot({a}.long().abs().clamp(max=5))", "F.pad({a}, (1, 1))", "F.pad({a}, (1, 0), value=2)",
    "F.pad({a}, (-1, 1))", "{a}.logsumexp(0)",
    "torch.bucketize({a}, torch.tensor([-1., 0., 1.], device=device))", "{a}.tile(2)",
    "{a}.rot90()", "torch.meshgrid({a}.flatten()[:3], {a}.flatten()[:2], indexing='ij')[0]",
    "{a}.trace()",
]  # fmt: skip

MATRICES = [
    "{a} @ {a}.mT", "{a}.mT @ {a}", "{a}.tril()", "{a}.triu(1)",
    "F.layer_norm({a}, {a}.shape[-1:])",
    "torch.cdist({a}, {a}, compute_mode='donot_use_mm_for_euclid_dist')", "{a}.diag_embed()",
    "torch.einsum('...ij,...ij->...i', {a}, {a})", "torch.linalg.matrix_norm({a})",
    "{a}.mT.contiguous()",
    "torch.linalg.det({a} @ {a}.mT + 3 * torch.eye({a}.shape[-2], device=device))",
    "torch.linalg.inv({a} @ {a}.mT + 3 * torch.eye({a}.shape[-2], device=device))",
    "torch.linalg.cholesky({a} @ {a}.mT + 3 * torch.eye({a}.shape[-2], device=device))",
    "torch.linalg.solve({a} @ {a}.mT + 3 * torch.eye({a}.shape[-2], device=device), {a})",
    "torch.kron({a}, torch.eye(2, device=device))", "F.rms_norm({a}, {a}.shape[-1:])",
    # Of one observation cov() divides a rounding error by zero.
    "torch.cov({a}, correction=0)", "torch.tensordot({a}, {a}, dims=([-1], [-1]))",
    "F.cosine_similarity({a}, {a} + 1)",
]  # fmt: skip

# {v} is a contiguous batch of images, {s} one of signals.
IMAGES = [
    "F.interpolate({v}, scale_factor={k}, mode='nearest')",
    "F.interpolate({v}, size=(3, 5), mode='bilinear', align_corners={b})",
    "F.interpolate({v}, size=(2, 3), mode='bicubic', align_corners={b})",
    "F.interpolate({v}, scale_factor=0.6, mode='bilinear')",
    "F.interpolate({v}, size=(3, 3), mode='area')", "F.avg_pool2d({v}, 2, 1)",
    "F.max_pool2d({v}, 2, 1)", "F.adaptive_avg_pool2d({v}, (1, 2))",
    "F.avg_pool2d({v}, 2, 1, padding=1, count_include_pad={b})", "F.adaptive_max_pool2d({v}, 1)",
    "F.pad({v}, (1, 0, 1, 1), mode='{m}')", "F.unfold({v}, 2)",
    "F.pixel_shuffle({v}.repeat(1, 4, 1, 1), 2)",
    "F.conv2d({v}, torch.ones(2, {v}.shape[1], 2, 2, device=device))",
    "F.conv2d({v}, torch.eye(2, device=device).expand(3, {v}.shape[1], 2, 2), padding=1)",
    "F.conv_transpose2d({v}, torch.ones({v}.shape[1], 2, 2, 2, device=device), stride={k})",
    "F.batch_norm({v}, None, None, training=True)", "F.group_norm({v}, 1)", "F.instance_norm({v})",
    "F.grid_sample({v}, torch.zeros({v}.shape[0], 2, 2, 2, device=device), align_corners={b})",
    "torch.fft.rfft2({v}).real", "F.local_response_norm({v}, 2)",
    "F.lp_pool2d({v}.abs() + 1, 2, 2)",
]  # fmt: skip

SIGNALS = [
    "F.conv1d({s}, torch.ones(2, {s}.shape[1], 2, device=device))", "F.max_pool1d({s}, 2, 1) + 0",
    "F.conv1d({s}, torch.arange(2., device=device).expand(3, {s}.shape[1], 2), padding={k})",
    "F.interpolate({s}, size=3, mode='linear', align_corners={b})", "F.avg_pool1d({s}, 2)",
    "F.interpolate({s}, scale_factor=2, mode='linear')", "F.pad({s}, (1, 1), mode='{m}')",
    "F.batch_norm({s}, None, None, training=True)",
    "F.scaled_dot_product_attention(*[{s}[None]] * 3)[0]",
    "torch.bmm({s}, {s}.mT)", "torch.baddbmm({s} @ {s}.mT, {s}, {s}.mT, beta=0.5)",
    "F.scaled_dot_product_attention(*[{s}[None]] * 3, is_causal=True)[0]",
    "torch.fft.rfft({s}).abs()",
]  # fmt: skip


def real(t: torch.Tensor) -> bool:
    return t.is_floating_point() and t.numel() > 0


def result(d: Draw, expression: str) -> str:
    return f"{d.new()} = {expression}"


def argument(d: Draw, ok) -> str | None:
    """A tensor, or now and then a view of one in the same line."""
    name = d.pick(ok)
    if name and d.chance(0.25):
        views = [".mT", "[1:]", "[..., 1:]", "[None]", ".detach()", ".clone()", "[::2]"]
        viewed = name + d.one(views)
        found = d.value(viewed)
        if isinstance(found, torch.Tensor) and ok(found):
            return viewed
    return name


@rule("op", 22)
def elementwise(d: Draw) -> str | None:
    a = argument(d, real)
    return result(d, d.one(ELEMENTWISE).format(a=a)) if a else None


@rule("op", 22)
def binary(d: Draw) -> str | None:
    a = argument(d, lambda t: t.numel() > 0)
    if a is None:
        return None
    t = d.value(a)
    b = operand(d, t.shape, t.dtype)
    ways = ["{a} + {b}", "{a} * {b}", "torch.stack([{a}, {b}.expand_as({a})])"]
    # Of what was rounded, equality is no question.
    ways += ["torch.isclose({a}, {b}.to({a}.dtype), 0, 0.0137)" if real(t) else "{a} == {b}"]
    if t.dtype != torch.bool:
        ways += ["{a} - {b}", "torch.where({m}, {a}, {b})", "torch.where({m}, {a}, {n})"]
    if real(t):
        ways += ["torch.maximum({a}, {b})", "{a} / ({b}.abs() + 1)", "torch.lerp({a}, {b}, 0.25)"]
        ways += ["torch.addcmul({a}, {b}, {b}, value=0.5)", "{a}.atan2({b}.abs() + 1)", "{a} < {b}"]
        ways += ["F.mse_loss({a}, {b}.expand_as({a}))", "F.smooth_l1_loss({a}, {b}.expand_as({a}))"]
        ways += [
            "torch.fmin({a}, {b})",
            "{a}.hypot({b} + 4)",
            "torch.xlogy({a}.abs(), {b}.abs() + 1)",
        ]
        # In the dtype of a: a compiler need not round to a narrower one on the way.
        ways += ["F.binary_cross_entropy_with_logits({a}, {b}.to({a}).sigmoid().expand_as({a}))"]
    elif not t.is_complex() and t.dtype != torch.bool:
        ways += [
            "{a} & {b}",
            "{a} | 3",
            "{a} ^ {b}",
            "{a} // 2",
            "{a} % 3",
            "{a} << 1",
            "{a}.float()",
        ]
        ways += ["{a} / 2", "{a}.pow(2)", "{a}.bitwise_not()", "torch.maximum({a}, {b})"]
    elif t.is_complex():
        ways += [
            "{a}.abs()",
            "{a}.angle()",
            "{a} * {a}.conj()",
            "{a}.real + 1",
            "{a}.sum()",
            "{a}.exp()",
        ]
    else:
        ways += [
            "~{a}",
            "{a} & {b}",
            "{a} | {b}",
            "{a}.float()",
            "{a}.sum()",
            "{a}.any()",
            "{a}.long() + 1",
        ]
    line = d.one(ways)
    m = mask(d, t.shape) if "{m}" in line else ""
    return result(d, line.format(a=a, b=b, m=m, n=number(d, t.dtype)))


@rule("op", 22)
def along(d: Draw) -> str | None:
    a = argument(d, lambda t: real(t) and t.dim() > 0)
    if a is None:
        return None
    rank = d.value(a).dim()
    return result(d, d.one(ALONG).format(a=a, x=d.choose.randrange(-rank, rank)))


@rule("op", 22)
def whole(d: Draw) -> str | None:
    a = argument(d, lambda t: t.numel() > 0 if d.chance(0.3) else real(t))
    return result(d, d.one(WHOLE).format(a=a)) if a else None


@rule("op", 22)
def product(d: Draw) -> str | None:
    a = argument(d, lambda t: real(t) and t.dim() > 0 and t.shape[-1] > 0)
    if a is None:
        return None
    t = d.value(a)
    n = t.shape[-1]
    wide = operand(d, (n, 3), t.dtype, exact=True)
    ways = [f"{a} @ {wide}", f"torch.matmul({a}, {wide})", f"F.linear({a}, ({wide}).mT)"]
    if t.dim() == 2:
        bias = operand(d, (3,), t.dtype)
        ways += [f"torch.addmm({bias}, {a}, {wide})", f"torch.addmm({bias}, {a}, {wide}, beta=0.5)"]
        ways += [f"{a} @ {operand(d, (n,), t.dtype, exact=True)}"]
    if t.dim() == 1:
        ways += [f"torch.outer({a}, {operand(d, (3,), t.dtype, exact=True)})", f"{a}.dot({a})"]
    return result(d, d.one(ways))


@rule("op", 22)
def matrix(d: Draw) -> str | None:
    a = argument(d, lambda t: t.dtype == torch.float32 and t.dim() >= 2 and t.numel() > 0)
    return result(d, d.one(MATRICES).format(a=a)) if a else None


@rule("index", 5)
def take(d: Draw) -> str | None:
    a = argument(d, lambda t: t.dim() > 0 and t.numel() > 0)
    if a is None:
        return None
    t = d.value(a)
    dim = d.choose.randrange(t.dim())
    n = t.shape[dim]
    i = indices(d, n, d.one([1, 2, 3, 4]))
    cut = ":, " * dim
    ways = [f"{a}[{cut}{i}]", f"{a}.index_select({dim}, {i.replace(' - ', ' + 0 - ')})"]
    ways += [f"{a}[{cut}{d.choose.randrange(n)}]", f"{a}[{cut}{i}[0]]", f"{a}[{cut}{i}, ...]"]
    ways += [f"{a}.take({i} % {n})", f"{a}[{mask(d, t.shape)}]", f"{a}[{mask(d, t.shape[:1])}]"]
    if t.dim() == 1:
        ways += [f"{a}.gather(0, {i} % {n})"]
    if t.dim() == 2:
        ways += [
            f"F.embedding({i} % {len(t)}, {a})",
            f"{a}[{i} % {len(t)}, {d.choose.randrange(t.shape[1])}]",
        ]
        ways += [f"{a}.take_along_dim(({i} % {len(t)}).view(-1, 1), 0)"]
        ways += [f"F.embedding_bag(({i} % {len(t)}).view(1, -1), {a}, mode='sum')"] * (
            t.dtype == torch.float32
        )
        if t.is_floating_point():
            ways += [f"F.cross_entropy({a}, {indices(d, t.shape[1], len(t))} % {t.shape[1]})"] * 2
            ways += [
                f"F.nll_loss({a}.log_softmax(1), {indices(d, t.shape[1], len(t))} % {t.shape[1]})"
            ]
    return result(d, d.one(ways))


@rule("join", 4)
def join(d: Draw) -> str | None:
    a = d.pick(lambda t: t.dim() > 0)
    if a is None:
        return None
    t = d.tensor(a)
    b = operand(d, t.shape, t.dtype, exact=True)
    dim = d.choose.randrange(-t.dim(), t.dim())
    ways = [f"torch.cat([{a}, {b}], {dim})", f"torch.cat([{b}, {a}, {a}], {dim})"]
    ways += [
        f"torch.stack([{b}, {a}], {dim})",
        f"torch.hstack([{a}, {b}])",
        f"torch.vstack([{a}, {b}])",
    ]
    ways += [f"torch.cat([{a}, {factory(d, tuple(t.shape), d.dtype())}], {dim})"]
    ways += [f"torch.block_diag({a}.flatten()[:2], {b}.flatten()[:2])"]
    # Where elements share memory the CPU writes them all, in the gradient's gradient too.
    if t.shape[dim] and not overlaps_itself(t):
        ways += [f"torch.slice_scatter({a}.clone(), {b}.narrow({dim}, 0, 1), {dim}, 0, 1)"]
        if t.dtype != torch.bool:
            ways += [f"torch.select_scatter({a}.clone(), {a}.select({dim}, 0) + 1, {dim}, 0)"]
    return result(d, d.one(ways))


@rule("image", 3)
def image(d: Draw) -> str | None:
    def ok(t: torch.Tensor) -> bool:
        return t.dtype == torch.float32 and 4 <= t.numel() <= 48 and t.numel() % 4 == 0

    a = d.pick(ok)
    if a is None:
        return None
    t = d.tensor(a)
    ways, viewed = IMAGES, f"{a}.reshape(1, -1, 2, 2)"
    if t.numel() % 16 == 0:
        viewed = f"{a}.reshape(1, -1, 4, 4)"
    elif t.numel() % 12 == 0:
        viewed = d.one([f"{a}.reshape(1, -1, 3, 4)", f"{a}.reshape(1, -1, 4, 3).mT"])
    if d.chance(0.3):
        ways, viewed = SIGNALS, f"{a}.reshape({d.one([1, 2]) if t.numel() % 8 == 0 else 1}, -1, 4)"
    line = d.one(ways).format(
        v=viewed,
        s=viewed,
        k=d.one([1, 2]),
        b=d.one([True, False]),
        m=d.one(["constant", "reflect", "replicate"]),
    )
    return result(d, line)


@rule("convert", 3)
def convert(d: Draw) -> str | None:
    a = d.pick()
    if a is None:
        return None
    t = d.tensor(a)
    to = d.one([dtype for dtype in DTYPES if dtype.is_complex >= t.is_complex()])
    if t.is_floating_point() and not to.is_floating_point and not to.is_complex:
        a = f"{a}.abs().clamp(max=100)"  # what does not fit has no defined value
    return result(d, d.one([f"{a}.to({to})", f"{a}.type({to})", f"{a}.to(dtype={to}, copy=True)"]))
