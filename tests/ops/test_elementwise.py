"""Arithmetic, comparison, logic, bits, functions of one operand, complex numbers: every rule of the
elementwise family against PyTorch's CPU result, values and gradients."""

import itertools
import math

import pytest
import torch

import torch_xla
from torch_xla.debug import metrics

from .harness import Batch, check, nothing_on_the_host

inf, nan = math.inf, math.nan
FLOATS = (torch.float32, torch.bfloat16, torch.float64)
INTS = (torch.int64, torch.int32, torch.int8, torch.uint8)

REAL = torch.tensor([0.0, -0.0, 0.25, -0.75, 1.0, -1.0, 2.5, -2.5, 3.0, 7.25, inf, -inf, nan])
POSITIVE = torch.tensor([0.125, 0.5, 1.0, 1.5, 2.0, 3.0, 6.5, 40.0])
UNIT = torch.tensor([-0.875, -0.5, -0.125, 0.0, 0.25, 0.625, 0.9375])
ABOVE_ONE = torch.tensor([1.125, 1.5, 2.0, 3.5, 40.0])
MODERATE = torch.tensor([-3.5, -1.25, -0.5, 0.0, 0.75, 1.5, 2.5])
INTEGERS = torch.tensor([0, 1, 2, 3, 5, 7, 12, 100])
SIGNED = torch.tensor([0, 1, -1, 2, -3, 7, -12, 100])
BOOLS = torch.tensor([True, False, True, True])

UNARY = {
    "abs": (torch.abs, REAL),
    "neg": (torch.neg, REAL),
    "sign": (torch.sign, REAL),
    "sgn": (torch.sgn, REAL),
    "ceil": (torch.ceil, REAL),
    "floor": (torch.floor, REAL),
    "trunc": (torch.trunc, REAL),
    "round": (torch.round, REAL),
    "round to decimals": (lambda x: torch.round(x, decimals=1), MODERATE * 1.5),
    "round to tens": (lambda x: torch.round(x, decimals=-1), MODERATE * 17),
    "frac": (torch.frac, REAL),
    "reciprocal": (torch.reciprocal, REAL),
    "sqrt": (torch.sqrt, POSITIVE),
    "rsqrt": (torch.rsqrt, POSITIVE),
    "square": (torch.square, REAL),
    "exp": (torch.exp, REAL),
    "exp2": (torch.exp2, REAL),
    "exp2 of large": (torch.exp2, torch.tensor([100.5, -100.25, 17.3])),
    "expm1": (torch.expm1, REAL),
    "log": (torch.log, POSITIVE),
    "log2": (torch.log2, POSITIVE),
    "log10": (torch.log10, POSITIVE),
    "log1p": (torch.log1p, POSITIVE),
    "log of what has none": (lambda x: torch.log(x).detach(), REAL),
    "sigmoid": (torch.sigmoid, REAL),
    "logit": (torch.logit, (UNIT + 1) / 2),
    "logit within eps": (lambda x: torch.logit(x, 0.125), (UNIT + 1) / 2),
    "tanh": (torch.tanh, REAL),
    "sin": (torch.sin, MODERATE),
    "cos": (torch.cos, MODERATE),
    "tan": (torch.tan, MODERATE),
    "asin": (torch.asin, UNIT),
    "acos": (torch.acos, UNIT),
    "atan": (torch.atan, REAL),
    "sinh": (torch.sinh, MODERATE),
    "cosh": (torch.cosh, MODERATE),
    "asinh": (torch.asinh, MODERATE),
    "acosh": (torch.acosh, ABOVE_ONE),
    "atanh": (torch.atanh, UNIT),
    "sinc": (torch.sinc, MODERATE),
    "erf": (torch.erf, REAL),
    "erfc": (torch.erfc, MODERATE),
    "erfinv": (torch.erfinv, UNIT),
    "erfcx": (lambda x: torch.special.erfcx(x).detach(), torch.linspace(-3, 60, 40)),
    "ndtri": (
        torch.special.ndtri,
        torch.tensor([1e-30, 1e-7, 0.01, 0.1353, 0.1354, 0.3, 0.5, 0.75, 0.8646, 0.8647, 0.99]),
    ),
    "ndtri at the ends": (
        lambda p: torch.special.ndtri(p).detach(),
        torch.tensor([0.0, 1.0, -0.25, 1.25, -inf, inf, nan]),
    ),
    "log_ndtr": (torch.special.log_ndtr, torch.linspace(-12, 5, 20)),
    "lgamma": (torch.lgamma, POSITIVE),
    "digamma": (torch.digamma, POSITIVE),
    "trigamma": (lambda x: torch.polygamma(1, x), POSITIVE),
    "polygamma": (lambda x: torch.polygamma(3, x), POSITIVE),
    "i0": (torch.special.i0, torch.linspace(-20, 20, 23)),
    "i0e": (torch.special.i0e, torch.linspace(-20, 20, 23)),
    "i1": (torch.special.i1, torch.linspace(-20, 20, 23)),
    "i1e": (torch.special.i1e, torch.linspace(-20, 20, 23)),
    "entr": (torch.special.entr, POSITIVE),
    "nan_to_num": (torch.nan_to_num, REAL),
    "nan_to_num of three": (lambda x: torch.nan_to_num(x, 1.0, 2.0, -3.0), REAL),
    "deg2rad": (torch.deg2rad, MODERATE),
    "angle": (torch.angle, REAL),
    "frexp": (lambda x: [t.detach() for t in torch.frexp(x)], REAL),
    "isnan": (torch.isnan, REAL),
    "isinf": (torch.isinf, REAL),
    "isfinite": (torch.isfinite, REAL),
    "isposinf": (torch.isposinf, REAL),
    "isneginf": (torch.isneginf, REAL),
    "signbit": (torch.signbit, REAL),
    "logical_not": (torch.logical_not, REAL),
    "clone": (torch.clone, REAL),
    "detach": (lambda x: x.detach(), REAL),
    "pow 2": (lambda x: x**2, REAL),
    "pow 3": (lambda x: x**3, REAL),
    "pow 0.5": (lambda x: x**0.5, POSITIVE),
    "pow -0.5": (lambda x: x**-0.5, POSITIVE),
    "pow -1": (lambda x: x**-1, POSITIVE),
    "pow -2": (lambda x: x**-2, POSITIVE),
    "pow 0": (lambda x: x**0, REAL),
    "pow 1.7": (lambda x: x**1.7, POSITIVE),
    "number pow": (lambda x: 1.7**x, MODERATE),
    "number minus": (lambda x: 2 - x, REAL),
    "number over": (lambda x: 3 / x, POSITIVE),
    "number modulo": (lambda x: 7.5 % x.detach(), POSITIVE),
    "clamp": (lambda x: x.clamp(-1.5, 2), REAL),
    "clamp_min": (lambda x: x.clamp(min=0.5), REAL),
    "clamp_max": (lambda x: x.clamp_max(0.5), REAL),
    "clamp to nan": (lambda x: x.clamp(min=nan).detach(), REAL),
}


# Gradients are PyTorch's formulas over these same operators, so two dtypes tell of them.
WITH_GRADIENT = {torch.float32, torch.bfloat16}
# What PyTorch's CPU kernels have not in bfloat16: the function, or its gradient.
NOT_IN_BFLOAT16 = {"erfcx", "log_ndtr", "ndtri", "ndtri at the ends", "zeta", "zeta of a number"}
NO_GRADIENT_IN_BFLOAT16 = {"i1", "i1e"}
# The gradient takes the result's unrounded value where PyTorch reads the rounded one: XLA keeps the
# digits of what it does not store.
KEPT_DIGITS = {"sigmoid": 1e-3, "tanh": 4e-3, "i0e": 1e-3, "lerp": 4e-2}


def add_floats(batch, name, fn, *inputs):
    """Values and gradients in each float dtype that PyTorch has for it."""
    for dtype in FLOATS:
        options = {"label": f"{name} {dtype}", "dtype": dtype, "grad": dtype in WITH_GRADIENT}
        if dtype is torch.bfloat16:
            if name in NOT_IN_BFLOAT16:
                continue
            options["grad"] &= name not in NO_GRADIENT_IN_BFLOAT16
            if name in KEPT_DIGITS:
                options |= {"rtol": 1.6e-2, "atol": KEPT_DIGITS[name]}
        batch.add(fn, *inputs, **options)


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    fn, x = UNARY[name]
    with nothing_on_the_host(), Batch() as batch:
        add_floats(batch, name, fn, x)
        batch.add(fn, x[:0], label="empty")


def test_unary_of_0_dim():
    with Batch() as batch:
        for name in ("abs", "exp", "round to decimals", "sigmoid", "frexp", "pow 2", "clamp", "i0"):
            fn, x = UNARY[name]
            batch.add(fn, x[1], label=name)


INTEGER_UNARY = {
    "abs": torch.abs,
    "neg": torch.neg,
    "sign": torch.sign,
    "ceil": torch.ceil,
    "floor": torch.floor,
    "round": torch.round,
    "trunc": torch.trunc,
    "square": torch.square,
    "pow 2": lambda x: x**2,
    "pow 5": lambda x: x**5,
    "pow of a float": lambda x: x.abs() ** 1.5,
    "number pow": lambda x: 2 ** x.abs().clamp(max=6),
    "sqrt": lambda x: torch.sqrt(x.abs()),
    "exp": lambda x: torch.exp(x.clamp(max=10)),
    "log1p": lambda x: torch.log1p(x.abs()),
    "sin": torch.sin,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "reciprocal": lambda x: torch.reciprocal(x.abs() + 1),
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isposinf": torch.isposinf,
    "signbit": torch.signbit,
    "nan_to_num": torch.nan_to_num,
    "angle": torch.angle,
    "logical_not": torch.logical_not,
    "bitwise_not": torch.bitwise_not,
    "clamp": lambda x: x.clamp(1, 5),
    "to float": lambda x: x.float(),
    "to bool": lambda x: x.bool(),
    "mean": lambda x: x * 0.5,
}


@pytest.mark.parametrize("name", INTEGER_UNARY)
def test_unary_of_integers(name):
    with nothing_on_the_host(), Batch() as batch:
        for dtype in INTS:
            x = INTEGERS if dtype is torch.uint8 else SIGNED
            batch.add(INTEGER_UNARY[name], x.to(dtype), label=str(dtype))


BOOL_UNARY = {
    "logical_not": torch.logical_not,
    "bitwise_not": torch.bitwise_not,
    "sign": torch.sign,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "isnan": torch.isnan,
    "times a number": lambda x: x * 2,
    "plus a number": lambda x: x + 1.5,
    "plus itself": lambda x: x + x,
    "plus itself in a list": lambda x: torch._foreach_add([x], [x])[0],
    "to int8": lambda x: x.to(torch.int8),
    "clone": torch.clone,
}


def test_unary_of_bools():
    with nothing_on_the_host(), Batch() as batch:
        for name, fn in BOOL_UNARY.items():
            batch.add(fn, BOOLS, label=name)


# --- two operands --------------------------------------------------------------------------------

A = torch.tensor([[0.5, -1.5, 2.25, 3.0], [-4.0, 5.5, -6.25, 7.0], [1.0, -0.25, 0.125, 9.0]])
B = torch.tensor([[1.5, -2.0, 0.75, 3.0], [2.0, -2.5, -1.25, 0.5], [-3.0, 4.0, 0.625, -7.0]])
ODD = torch.tensor([0.0, -0.0, 1.0, -2.0, inf, -inf, nan, 3.5])

BINARY = {
    "add": torch.add,
    # The CPU rounds alpha to bfloat16; this one has no digits to lose.
    "add with alpha": lambda x, y: torch.add(x, y, alpha=0.375),
    "sub": torch.sub,
    "sub with alpha": lambda x, y: torch.sub(x, y, alpha=2),
    "rsub": torch.rsub,
    "mul": torch.mul,
    "div": torch.div,
    "div trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "div floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "floor_divide": lambda x, y: torch.floor_divide(x, y).detach(),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "nextafter": lambda x, y: torch.nextafter(x, y).detach(),
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "heaviside": lambda x, y: torch.heaviside(x, y).detach(),
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "clamp below": lambda x, y: torch.clamp(x, min=y),
    "clamp above": lambda x, y: torch.clamp_max(x, y),
    "where": lambda x, y: torch.where(x > 0.5, x, y),
    "masked_fill": lambda x, y: x.masked_fill(y.detach() > 0, -7.5),
    "copy": lambda x, y: torch.zeros_like(x).copy_(y),
    "lerp of a number": lambda x, y: torch.lerp(x, y, 0.3),
}


def test_strided_operands():
    """Values lie row-major whatever the strides; this is the recorder's affair, not a rule's."""
    with Batch() as batch:
        batch.add(torch.exp, A[:2, :3].T, label="transposed")
        batch.add(torch.neg, A[:, ::2], label="every second")
        batch.add(torch.mul, A[:, :3].T, B[:, :3], label="one of two")
        batch.add(torch.atan2, A.T, B.T, label="both")
        batch.add(torch.where, A.T[:3] > 0, A[:, :3], B[:, :3].T, label="one of three")
        batch.add(torch.add, A[:, :1].expand(3, 4), B.flip(1), label="expanded")


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    fn = BINARY[name]
    with nothing_on_the_host(), Batch() as batch:
        add_floats(batch, name, fn, A, B)
        batch.add(fn, A, B[1], label="broadcast", grad=False)
        batch.add(fn, A[0, 0], B[0, 1], label="0-dim", grad=False)
        batch.add(fn, A[:0], B[:0], label="empty")


WHOLE_QUOTIENTS = {
    "truncated": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "floor_divide": torch.floor_divide,
    "by one": lambda x, y: torch.div(x, y[:1], rounding_mode="trunc"),
    "by a scalar": lambda x, y: x // y[1],
    "by a number": lambda x, y: torch.div(x, 0.7, rounding_mode="floor"),
    "by integers": lambda x, y: torch.div(x * 900, (y * 900).long(), rounding_mode="trunc"),
}


@pytest.mark.parametrize("name", WHOLE_QUOTIENTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_whole_quotients_of_narrow_floats(name, dtype):
    """The CPU rounds the quotient before it drops the fraction."""
    generator = torch.Generator().manual_seed(1)
    x, y = (scale * torch.randn(20000, generator=generator) for scale in (10, 3))
    x, y = x.to(dtype), torch.where(y.abs() < 0.01, 1, y).to(dtype)
    there = WHOLE_QUOTIENTS[name](x.to("xla"), y.to("xla"))
    torch.testing.assert_close(there.cpu(), WHOLE_QUOTIENTS[name](x, y), rtol=0, atol=0)


BESIDE_INTEGERS = {
    "add": torch.add,
    "rsub": lambda x, n: n - x,
    "mul": torch.mul,
    "div": torch.div,
    "divided": lambda x, n: n / x,
    "fmod": lambda x, n: torch.fmod(n, x),
    "remainder": lambda x, n: n % x,
    "floor_divide": lambda x, n: n // x,
    "atan2": torch.atan2,
    "addcmul": lambda x, n: torch.addcmul(x, x, n),
    "maximum": torch.maximum,
    "where": lambda x, n: torch.where(x > 0, x, n),
    "in place": lambda x, n: x.clone().sub_(n),
    "first": lambda x, n: n * x[:, None],
}


@pytest.mark.parametrize("name", BESIDE_INTEGERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_integers_are_rounded_beside_narrow_floats(name, dtype):
    generator = torch.Generator().manual_seed(2)
    x = (torch.rand(300, generator=generator) * 5 + 0.1).to(dtype)
    n = torch.randint(300, 5000, (300,), generator=generator)
    there = BESIDE_INTEGERS[name](x.to("xla"), n.to("xla"))
    torch.testing.assert_close(there.cpu(), BESIDE_INTEGERS[name](x, n), rtol=0, atol=0)


@pytest.mark.parametrize("name", [n for n in BINARY if not n.startswith("nextafter")])
def test_binary_of_odd_values(name):
    x, y = torch.cartesian_prod(ODD, ODD).unbind(1)
    with Batch() as batch:
        for dtype in (torch.float32, torch.bfloat16):
            batch.add(BINARY[name], x, y, label=str(dtype), dtype=dtype, grad=False)


BINARY_OF_FEW = {
    "pow": (torch.pow, POSITIVE, MODERATE.repeat(2)[:8]),
    "xlogy": (torch.xlogy, torch.cat([torch.zeros(1), POSITIVE[1:]]), POSITIVE),
    "xlogy of a number": (
        lambda x, y: torch.xlogy(2.5, y) + torch.xlogy(x, 1.5),
        POSITIVE,
        POSITIVE,
    ),
    "xlog1py": (torch.special.xlog1py, MODERATE, POSITIVE[:7]),
    "zeta": (lambda x, y: torch.special.zeta(x, y).detach(), POSITIVE + 1, POSITIVE),
    "zeta of a number": (lambda x, y: torch.special.zeta(2.5, y).detach(), POSITIVE, POSITIVE),
    "addcmul": (lambda x, y: torch.addcmul(x, y, x, value=0.7), A, B),
    "addcdiv": (lambda x, y: torch.addcdiv(x, x, y, value=-0.7), A, B),
    "addcmul by default": (lambda x, y: torch.addcmul(x, y, x), A, B),
    "addcdiv by default": (lambda x, y: torch.addcdiv(x, x, y), A, B),
    "lerp": (lambda x, y: torch.lerp(x, y, torch.sigmoid(x)), A, B),
    "clamp between tensors": (lambda x, y: torch.clamp(x, y - 1, y + 1), A, B),
    "masked_fill of a tensor": (lambda x, y: x.masked_fill(y.detach() > 0, y.sum()), A, B),
    "ldexp": (lambda x, y: torch.ldexp(x, y.detach().int()), A, B),
    "polar": (lambda x, y: torch.view_as_real(torch.polar(x.float(), y.float())), A, B),
    "fill of a tensor": (lambda x, y: torch.empty_like(x).fill_(y.sum()), A, B),
}


@pytest.mark.parametrize("name", BINARY_OF_FEW)
def test_binary_of_few(name):
    fn, x, y = BINARY_OF_FEW[name]
    with nothing_on_the_host(), Batch() as batch:
        add_floats(batch, name, fn, x, y)


def test_zeta_of_negative_numbers():
    """Its terms cancel but for the last digits of float32."""
    x = torch.linspace(-9, 9, 37)
    with Batch() as batch:
        for n in range(1, 6):
            batch.add(lambda x, n=n: torch.polygamma(n, x), x[x != x.floor()], label=f"order {n}")
            batch.add(lambda x, n=n: torch.special.zeta(n + 1.0, x), x, grad=False, label=f"{n}")


INTEGER_BINARY = {
    "add": torch.add,
    "add with alpha": lambda x, y: torch.add(x, y, alpha=3),
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "div trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "div floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "pow": lambda x, y: torch.pow(x, y.abs() % 6),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "gcd": torch.gcd,
    "lcm": torch.lcm,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "left shift": lambda x, y: x << (y.abs() % 5),
    "right shift": lambda x, y: x >> (y.abs() % 5),
    "lt": torch.lt,
    "eq": torch.eq,
    "logical_xor": torch.logical_xor,
    "addcmul": lambda x, y: torch.addcmul(x, y, x, value=2),
    "heaviside": torch.heaviside,
    "clamp": lambda x, y: torch.clamp(x, y, y + 2),
    "numbers": lambda x, y: (x & 5) + (y | 3) + (x ^ 6) + (x << 2) + (y >> 1) + (7 - x) + (x // 3),
    "numbers first": lambda x, y: (5 & x) + torch.bitwise_left_shift(3, y.abs() % 4),
}
DIVISORS = torch.tensor([3, 1, -1, 5, -2, -7, 7, 9])


@pytest.mark.parametrize("name", INTEGER_BINARY)
def test_binary_of_integers(name):
    with nothing_on_the_host(), Batch() as batch:
        for dtype in INTS:
            x = INTEGERS if dtype is torch.uint8 else SIGNED
            y = DIVISORS.abs() if dtype is torch.uint8 else DIVISORS
            batch.add(INTEGER_BINARY[name], x.to(dtype), y.to(dtype), label=str(dtype))


def test_binary_of_bools():
    x, y = torch.cartesian_prod(torch.tensor([True, False]), torch.tensor([True, False])).unbind(1)
    table = [torch.add, torch.mul, torch.div, torch.eq, torch.lt, torch.ge, torch.maximum]
    table += [torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor, torch.logical_and]
    table += [lambda x, y: torch.where(x, y, ~y)]
    with nothing_on_the_host(), Batch() as batch:
        for i, fn in enumerate(table):
            batch.add(fn, x, y, label=str(i))


def test_integer_division_by_zero_does_not_crash():
    # PyTorch raises here on the CPU; a compiled program has no way to, and gives some number.
    x = torch.tensor([5, -5, 0]).to("xla")
    for y in (torch.div(x, x * 0, rounding_mode="trunc"), x // (x * 0), x % (x * 0)):
        assert y.cpu().shape == (3,)


def test_integers_at_their_ends():
    top = torch.iinfo(torch.int64)
    x = torch.tensor([top.max, top.min, top.max - 1, 2**53 + 1])
    with Batch() as batch:
        batch.add(lambda x: x + 1, x, label="wraps")
        batch.add(lambda x: x * 3, x, label="product wraps")
        batch.add(lambda x: x - (2**62 + 1), x, label="a number past 2^53")
        batch.add(lambda x: x == 2**53 + 1, x, label="equality past 2^53")
        batch.add(lambda x: torch.full_like(x, 2**60 + 3), x, label="full past 2^53")


# --- dtypes that meet ----------------------------------------------------------------------------

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
)
# Which of these equal their neighbours depends on the dtype in which they are compared.
TELLING = torch.tensor(
    [0.0, 1.0, 0.1, 100.3, 127.0, 257.0, 2049.0, 16777217.0], dtype=torch.float64
)


def telling(dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point or dtype is torch.bool:
        return TELLING.to(dtype)
    return TELLING.clamp(max=torch.iinfo(dtype).max).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_comparisons_use_the_promoted_dtype(dtype):
    x = telling(dtype)
    with Batch() as batch:
        for i, other in enumerate(DTYPES):
            y = telling(other)
            if i <= DTYPES.index(dtype):  # the other order is another row of this test
                batch.add(torch.eq, x, y, label=f"eq {other}", grad=False)
                batch.add(torch.lt, y, x, label=f"lt {other}", grad=False)
            batch.add(torch.eq, x, y[2], label=f"eq 0-dim {other}", grad=False)
        for number in (True, 1, 0.1, 100.3, 2049.0):
            batch.add(lambda x, n=number: x == n, x, label=f"eq {number}", grad=False)
        for number in (1, 0.1):
            batch.add(lambda x, n=number: x[2] >= n, x, label=f"0-dim ge {number}", grad=False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arithmetic_between_dtypes(dtype):
    x = telling(dtype)[:5]
    with Batch() as batch:
        for i, other in enumerate(DTYPES):
            y = telling(other)[:5]
            if i <= DTYPES.index(dtype):
                batch.add(torch.add, x, y, label=f"add {other}", grad=False)
                batch.add(torch.where, x > 0, x, y, label=f"where {other}", grad=False)
            batch.add(torch.mul, y[3], x, label=f"mul 0-dim {other}", grad=False)
            batch.add(torch.div, x, y[3] + 1, label=f"div 0-dim {other}", grad=False)
            batch.add(lambda x, d=other: x.to(d), x, label=f"to {other}", grad=False)
        for number in (3, 0.1, 100.3):
            batch.add(lambda x, n=number: x * n + n, x, label=str(number), grad=False)


def test_numbers_are_not_rounded_to_a_narrow_float():
    x = torch.full((4,), 3.0, dtype=torch.bfloat16)
    check(lambda x: x * 1.00390625 + 0.001953125, x, grad=False, rtol=0, atol=0)


def test_conversions():
    x = torch.tensor([0.0, -0.5, 1.75, -3.9, 100.5, nan, inf])
    with Batch() as batch:
        batch.add(lambda x: x.bool(), x, label="bool")
        batch.add(lambda x: x[:5].to(torch.uint8), x.abs(), label="uint8")
        batch.add(lambda x: x[:5].to(torch.int8), x, label="int8")
        batch.add(lambda x: x[:5].long(), x, label="long")
        batch.add(lambda x: x.to(torch.complex64), x, label="complex")
        batch.add(lambda x: torch.empty(2, 7, dtype=torch.int32, device=x.device).copy_(x),
                  x.nan_to_num(0, 1), label="copy_ converts and broadcasts")  # fmt: skip
        batch.add(lambda x: x.bool(), torch.tensor([0j, 1j, 1 + 0j]), label="complex to bool")
        batch.add(lambda x: x.to(torch.uint8), torch.tensor([300, -1, 255]), label="int64 wraps")


# --- complex -------------------------------------------------------------------------------------

Z = torch.tensor([1 + 2j, -0.5 + 0.25j, 3 - 1j, -2 - 2j, 0.5j, 1.5 + 0j])
W = torch.tensor([0.5 - 1j, 2 + 2j, -1 + 0.5j, 1 + 0j, 0.25 - 0.75j, 1j])

COMPLEX = {
    "add": lambda z, w: z + w,
    "sub": lambda z, w: z - 2 * w,
    "mul": lambda z, w: z * w,
    "mul of a number": lambda z, w: z * (1 + 2j) + w * 0.5,
    "div": lambda z, w: z / w,
    "neg": lambda z, w: -z,
    "abs": lambda z, w: z.abs(),
    "angle": lambda z, w: z.angle(),
    "real": lambda z, w: z.real,
    "imag": lambda z, w: z.imag,
    "conj": lambda z, w: z.conj() * w,
    "conj_physical": lambda z, w: torch.conj_physical(z),
    "conj imag": lambda z, w: z.conj().imag,
    "view_as_real": lambda z, w: torch.view_as_real(z),
    "view_as_complex": lambda z, w: torch.view_as_complex(torch.view_as_real(z) * 2),
    "complex": lambda z, w: torch.complex(z.real, w.imag),
    "sgn": lambda z, w: z.sgn(),
    "reciprocal": lambda z, w: z.reciprocal(),
    "exp": lambda z, w: z.exp(),
    "log": lambda z, w: z.log(),
    "sqrt": lambda z, w: z.sqrt(),
    "sin": lambda z, w: z.sin(),
    "tanh": lambda z, w: z.tanh(),
    "sigmoid": lambda z, w: z.sigmoid(),
    "pow": lambda z, w: z**w,
    "pow 2": lambda z, w: z**2,
    "eq": lambda z, w: z == w,
    "isnan": lambda z, w: torch.isnan(z),
    "isfinite": lambda z, w: torch.isfinite(z),
    "where": lambda z, w: torch.where(z.real > 0, z, w),
    "with a real": lambda z, w: z + w.real,
    "lerp": lambda z, w: torch.lerp(z, w, 0.3),
    "addcmul": lambda z, w: torch.addcmul(z, z, w, value=0.5),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex(name):
    with nothing_on_the_host(), Batch() as batch:
        for dtype in (torch.complex64, torch.complex128):
            grad = dtype is torch.complex64
            batch.add(COMPLEX[name], Z.to(dtype), W.to(dtype), label=str(dtype), grad=grad)


TURNING = ["sin", "cos", "tan", "sinh", "cosh", "tanh"]


@pytest.mark.parametrize("name", TURNING)
def test_complex_numbers_near_zeros_and_poles(name):
    """All digits but a few of the last, which formulas by powers of e lose."""
    generator = torch.Generator().manual_seed(0)
    near = math.pi / 2 * torch.arange(-6, 7).repeat(500)
    for scale in (1e-3, 0.1, 10):
        z = torch.randn(len(near), generator=generator, dtype=torch.complex64) * scale + 1j * near
        z = z * -1j if name in ("sin", "cos", "tan") else z
        f = getattr(torch, name)
        want, got = f(z.to(torch.complex128)), f(z.to("xla")).cpu()
        error = (got - want).abs() / want.abs()
        assert error.max() < 8 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("name", ["sinh", "cosh"])
def test_hyperbolic_functions_of_large_numbers(name):
    x = torch.linspace(-88, 88, 10_001)
    want, got = getattr(torch, name)(x.double()), getattr(torch, name)(x.to("xla")).cpu()
    error = ((got - want) / want).abs()
    assert error[want != 0].max() < 6 * torch.finfo(torch.float32).eps
    ends = torch.tensor([-inf, -90.0, -89.0, 89.0, 90.0, inf, torch.nan])
    ours = getattr(torch, name)(ends.to("xla")).cpu()
    torch.testing.assert_close(ours, getattr(torch, name)(ends), equal_nan=True)


EDGES = [
    complex(a, b)
    for a in (0.0, -0.0, 1.0, -1.0, inf, -inf)
    for b in (0.0, -0.0, 2.0, -2.0, inf, -inf)
]


@pytest.mark.parametrize(
    "name",
    ["exp", "exp2", "log", "log2", "log10", "log1p", "sqrt", "abs", "angle", "square", *TURNING],
)
def test_complex_numbers_at_the_edges(name):
    """Signs of zeros, which tell the sides of a cut, and infinities."""
    for dtype in (torch.complex64, torch.complex128):
        z = torch.tensor(EDGES, dtype=dtype)
        want, got = getattr(torch, name)(z), getattr(torch, name)(z.to("xla")).cpu()
        if name == "log2":  # infinities become nan in PyTorch's kernel for processors without AVX
            want = torch.view_as_complex(torch.view_as_real(torch.log(z)) / math.log(2))
        parts = [torch.view_as_real(t) if t.is_complex() else t for t in (got, want)]
        torch.testing.assert_close(*parts, equal_nan=True)
        seen = parts[1].ne(0)
        assert (
            torch.equal(parts[0].signbit()[seen], parts[1].signbit()[seen])
            or parts[1].isnan().any()
        )


# --- in place, and what must not recompile -------------------------------------------------------

IN_PLACE = {
    "add_": lambda x, y: x.add_(y, alpha=2),
    "mul_": lambda x, y: x.mul_(0.5),
    "clamp_": lambda x, y: x.clamp_(-1, 1),
    "masked_fill_": lambda x, y: x.masked_fill_(y > 0, 3.0),
    "fill_": lambda x, y: x.fill_(2.5),
    "zero_": lambda x, y: x.zero_(),
    "copy_": lambda x, y: x.copy_(y[0]),
    "exp_": lambda x, y: x.exp_(),
    "int of a float": lambda x, y: torch.ones_like(x, dtype=torch.bfloat16).add_(y),
    "out=": lambda x, y: torch.add(x, y, out=torch.empty_like(x)),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name):
    check(lambda x, y: IN_PLACE[name](x.clone(), y), A, B, grad=False)


def test_a_changing_number_does_not_recompile():
    x = A.to("xla")
    compiled = []
    for step, number in enumerate((0.5, 0.25, 0.125)):
        y = x * number + x / (number + 1) - x.clamp(max=number) + number**x + x.lerp(x * 2, number)
        torch_xla.sync()
        a = A
        expected = a * number + a / (number + 1) - a.clamp(max=number) + number**a
        torch.testing.assert_close(y.cpu(), expected + a.lerp(a * 2, number))
        compiled.append(metrics.counter_value("UncachedCompile"))
        assert compiled[step] == compiled[0]


def test_broadcasts_of_every_pair_of_shapes():
    shapes = [(), (1,), (3,), (2, 1), (2, 3), (1, 1, 3), (0, 1), (4, 0, 3)]
    with Batch() as batch:
        for a, b in itertools.product(shapes, shapes):
            try:
                torch.broadcast_shapes(a, b)
            except RuntimeError:
                continue
            batch.add(lambda x, y: x * y + x, torch.ones(a), torch.full(b, 2.0), label=f"{a} {b}")
