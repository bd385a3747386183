"""torch_xla.core.xla_builder and xla_op_registry: every operation against PyTorch or NumPy.

Units: dispatch/functions/user_computation, _src/builder.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import torch_xla
import torch_xla.core.xla_builder as xb
import torch_xla.core.xla_op_registry as xor
import torch_xla.debug.metrics as met
from torch_xla import _XLAC
from torch_xla.core.xla_builder import Op, Type


def run(opfn, *tensors, **kwargs):
    results = xor.register("xla::tested", opfn)(*(t.to("xla") for t in tensors), **kwargs)
    return [r.cpu() for r in results] if isinstance(results, list) else results.cpu()


def check(opfn, reference, *tensors, **tolerance):
    found, expected = run(opfn, *tensors), reference(*tensors)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, equal_nan=True, **tolerance)


def scalars(function, dtype=Type.F32, count=2):
    """A computation of scalars."""
    return xb.create_computation("scalars", function, [xb.mkshape(dtype, ())] * count)


def add(a, b):
    return a + b


A = torch.tensor([[0.25, -0.5, 0.75], [0.1, 0.9, -0.99]])
B = torch.tensor([[1.5, 2.0, -0.5], [3.0, -2.5, 0.25]])
POSITIVE = A.abs() + 0.5
INTS = torch.tensor([[7, -8, 3], [100, -1, 0]], dtype=torch.int32)
OTHER_INTS = torch.tensor([[2, 3, 1], [5, 4, 2]], dtype=torch.int32)
MASK = torch.tensor([[True, False, True], [False, True, True]])

UNARY = {
    "acos": torch.acos,
    "asin": torch.asin,
    "atan": torch.atan,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erfinf": torch.erfinv,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "floor": torch.floor,
    "real": lambda x: x,
    "imag": torch.zeros_like,
    "conj": lambda x: x,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
}


@pytest.mark.parametrize("name", UNARY)
def test_elementwise(name):
    check(lambda x: getattr(x, name)(), UNARY[name], A)


@pytest.mark.parametrize("name", ["log", "log1p", "sqrt", "rsqrt"])
def test_of_positive_numbers(name):
    check(lambda x: getattr(x, name)(), getattr(torch, name), POSITIVE)


BY_NAME = {
    "Abs": torch.abs,
    "Acosh": lambda x: torch.acosh(x + 2),
    "Asinh": torch.asinh,
    "Atanh": torch.atanh,
    "Cbrt": lambda x: torch.from_numpy(np.cbrt(x.numpy())),
    "IsFinite": torch.isfinite,
    "Logistic": torch.sigmoid,
    "Neg": torch.neg,
    "Round": lambda x: torch.trunc(x + x.sign() * 0.5),
    "RoundNearestEven": torch.round,
    "Sign": torch.sign,
}


@pytest.mark.parametrize("name", BY_NAME)
def test_by_name(name):
    check(lambda x: xb.mkop(name, (x + 2 if name == "Acosh" else x,)), BY_NAME[name], A)


BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: abs(a) ** b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "numbers": lambda a, b: 2 - (1.5 + a * 3) / 2 + 4 / b - 2 * b + 2.0**a,
}


@pytest.mark.parametrize("name", BINARY)
def test_operators_of_python(name):
    check(BINARY[name], BINARY[name], A, B)


def test_functions_of_two():
    check(lambda a, b: a.max(b), torch.maximum, A, B)
    check(lambda a, b: a.min(b), torch.minimum, A, B)
    check(lambda a, b: a.atan2(b), torch.atan2, A, B)
    check(lambda a, b: a % b, torch.fmod, A, B)
    check(lambda a, b: a @ b.transpose((1, 0)), lambda a, b: a @ b.t(), A, B)
    check(lambda a, b: a @ b, torch.mv, A, B[0])
    check(lambda a, b: a @ b, torch.dot, A[0], B[0])


def test_integers_and_truth_values():
    i, j = INTS, OTHER_INTS
    check(lambda a, b: a & b, torch.bitwise_and, i, j)
    check(lambda a, b: a | b, torch.bitwise_or, i, j)
    check(lambda a, b: a ^ b, torch.bitwise_xor, i, j)
    check(lambda a, b: a << b, torch.bitwise_left_shift, i, j)
    check(lambda a, b: a >> b, torch.bitwise_right_shift, i, j)
    check(lambda a: ~a, torch.bitwise_not, i)
    check(lambda a, b: a % b, torch.fmod, i, j)
    check(lambda a, b: a / b, lambda a, b: torch.div(a, b, rounding_mode="trunc"), i, j)
    check(lambda a, b: (a & b) | ~a, lambda a, b: (a & b) | ~a, MASK, MASK.flip(0))
    bits = torch.tensor([1, 255, 1 << 30, 0, -1], dtype=torch.int32)
    check(lambda a: a.clz(), lambda a: torch.tensor([31, 24, 1, 32, 0], dtype=torch.int32), bits)
    unsigned = torch.tensor([0x80000000], dtype=torch.uint32)
    found = run(lambda a: (a >> Op.scalar(a.builder(), 31, Type.U32)).cast(Type.S32), unsigned)
    assert found.tolist() == [1]  # no sign to keep


def test_complex_numbers():
    z = torch.complex(A, B)
    check(lambda x: x.real(), lambda x: x.real.clone(), z)
    check(lambda x: x.imag(), lambda x: x.imag.clone(), z)
    check(lambda x: x.conj() * x, lambda x: x.conj().resolve_conj() * x, z)
    check(lambda x, y: xb.mkop("Complex", (x, y)), torch.complex, A, B)


def test_scalars_and_ones_are_broadcast():
    check(lambda a, b: a + b, torch.add, A, torch.tensor(2.0))
    check(lambda a, b: b * a, torch.mul, A, torch.tensor(2.0))
    check(lambda a, b: a + b, torch.add, A, torch.tensor([[1.0], [2.0]]))
    check(lambda a, b: a + b, torch.add, A[:, :1], B[:1])


TYPES = [t for t in vars(Type) if t.isupper()]


@pytest.mark.parametrize("name", TYPES)
def test_types(name):
    dtype = Op.to_torch_type(getattr(Type, name))
    x = torch.tensor([[0, 1, 5], [100, 7, 2]]).to(dtype)
    check(lambda a: a, lambda a: a, x)
    check(lambda a: a.cast(getattr(Type, name)), lambda a: a.to(dtype), OTHER_INTS)

    def constants(a):
        shape = a.shape()
        assert (shape.dtype, shape.sizes) == (getattr(Type, name), (2, 3))
        one = Op.one(a.builder(), shape.dtype).broadcast((2, 3))
        return Op.tuple((Op.constant(a.builder(), x), one, a.zeros_like()))

    constant, one, zero = run(constants, x)
    for found, expected in (
        (constant, x),
        (one, torch.ones(2, 3, dtype=dtype)),
        (zero, torch.zeros(2, 3, dtype=dtype)),
    ):
        assert found.dtype == dtype and torch.equal(found, expected)
    assert Op.from_torch_type(dtype) == getattr(Type, name)


def test_numbers_are_of_f32_by_default():
    builder = xb.create_builder("b")
    assert Op.scalar(builder, 3).shape() == xb.mkshape(Type.F32, ())
    assert Op.zero(builder).shape().dtype == Op.one(builder).shape().dtype == Type.F32
    assert Op.constant(builder, np.arange(3)).shape() == xb.mkshape(Type.S64, (3,))


def test_bits():
    check(lambda a: a.bitcast(Type.S32), lambda a: a.view(torch.int32), A)
    check(lambda a: a.bitcast(Type.U8), lambda a: a.view(torch.uint8).view(2, 3, 4), A)
    check(lambda a: a.bitcast(Type.F64), lambda a: a.view(torch.float64)[..., 0], A[:, :2].clone())


def test_numbers_without_a_sign_and_bits_that_are_none():
    unsigned = torch.tensor([0, 1, 200], dtype=torch.uint8)
    check(lambda a: xb.mkop("Sign", (a,)), torch.sign, unsigned)
    check(abs, torch.abs, unsigned)
    check(lambda a: a.bitcast(Type.PRED), lambda a: a, MASK)
    for dtype, to in ((Type.U8, Type.PRED), (Type.PRED, Type.U8), (Type.C64, Type.F64)):
        x = xb.mkparam(xb.create_builder("b"), 0, xb.mkshape(dtype, (2,)))
        with pytest.raises(RuntimeError, match="integers or floats"):
            x.bitcast(to)
        with pytest.raises(RuntimeError, match="BitCast|numbers|expected"):
            (xb.mkop("Sign", (x,)) if dtype == Type.PRED else x.bitcast(to))


def test_choices():
    check(lambda m, a, b: m.select(a, b), torch.where, MASK, A, B)
    check(lambda m, a, b: m.select(a, b), torch.where, torch.tensor(True), A, B)
    low, high = torch.full((2, 3), -0.3), torch.full((2, 3), 0.4)
    check(lambda a, x, y: a.clamp(x, y), torch.clamp, A, low, high)
    check(
        lambda a: a.clamp(Op.scalar(a.builder(), -0.3), Op.scalar(a.builder(), 0.4)),
        lambda a: a.clamp(-0.3, 0.4),
        A,
    )


# Shapes

CUBE = torch.arange(24.0).view(2, 3, 4)


def dynamic_start(x, *starts):
    return [Op.scalar(x.builder(), s, Type.S32) for s in starts]


SHAPES = {
    "reshape": (lambda x: x.reshape((4, 6)), lambda x: x.reshape(4, 6)),
    "reshape in an order": (
        lambda x: x.reshape((4, 6), dimensions=(2, 0, 1)),
        lambda x: x.permute(2, 0, 1).reshape(4, 6),
    ),
    "dynamic_reshape": (lambda x: x.dynamic_reshape((24,)), lambda x: x.reshape(24)),
    "broadcast": (lambda x: x.broadcast((5, 1)), lambda x: x.expand(5, 1, 2, 3, 4)),
    "broadcast_in_dim": (
        lambda x: x.broadcast_in_dim((2, 3, 7, 4), (0, 1, 3)),
        lambda x: x[:, :, None].expand(2, 3, 7, 4),
    ),
    "slice": (lambda x: x.slice((0, 1, 0), (2, 3, 4)), lambda x: x[:, 1:]),
    "slice with strides": (
        lambda x: x.slice((0, 0, 1), (2, 3, 4), (1, 2, 2)),
        lambda x: x[:, ::2, 1::2],
    ),
    "slice_in_dim": (lambda x: x.slice_in_dim(0, 3, 2, stride=2), lambda x: x[:, :, 0:3:2]),
    "dynamic_slice": (
        lambda x: x.dynamic_slice(dynamic_start(x, 1, 0, 9), (1, 2, 3)),
        lambda x: x[1:, :2, 1:],
    ),
    "dynamic_slice of a list": (
        lambda x: x.dynamic_slice(
            Op.constant(x.builder(), torch.tensor([1, 1, 0], dtype=torch.int32)), (1, 2, 3)
        ),
        lambda x: x[1:, 1:, :3],
    ),
    "pad": (
        lambda x: x.pad(Op.scalar(x.builder(), 9), ((0, 0, 0), (1, 2, 0), (-1, 0, 1))),
        lambda x: F.pad(
            torch.stack((x, torch.full_like(x, 9)), 3).flatten(2)[..., :-1], (-1, 0, 1, 2), value=9
        ),
    ),
    "transpose": (lambda x: x.transpose((2, 0, 1)), lambda x: x.permute(2, 0, 1)),
    "rev": (lambda x: x.rev((0, 2)), lambda x: x.flip(0, 2)),
    "get_dimension_size": (
        lambda x: x.get_dimension_size(1),
        lambda x: torch.tensor(3, dtype=torch.int32),
    ),
    "iota": (
        lambda x: Op.iota(x.builder(), xb.mkshape(Type.S32, (2, 3)), 1),
        lambda x: torch.arange(3, dtype=torch.int32).expand(2, 3),
    ),
    "concat": (lambda x: Op.concat_in_dim((x, x, x), 1), lambda x: torch.cat((x, x, x), 1)),
    "scalar_like": (lambda x: x.scalar_like(2.5), lambda x: torch.full_like(x, 2.5)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    check(*SHAPES[name], CUBE)


def test_updates_at_a_place():
    update = torch.full((1, 2, 4), -1.0)
    expected = CUBE.clone()
    expected[1:, 1:] = update

    def opfn(x, u):
        return x.dynamic_update_slice(u, dynamic_start(x, 1, 1, 0))

    check(opfn, lambda x, u: expected, CUBE, update)


def test_gather():
    table, rows = torch.randn(7, 3), torch.tensor([[2], [6], [2], [0]])
    options = {
        "offset_dims": (1,),
        "collapsed_slice_dims": (0,),
        "start_index_map": (0,),
        "index_vector_dim": 1,
    }
    check(lambda t, i: t.gather(i, **options), lambda t, i: t[i[:, 0]], table, rows)
    check(
        lambda t, i: t.gather(i, **options, slice_sizes=(1, 2)),
        lambda t, i: t[i[:, 0], :2],
        table,
        rows,
    )


def test_scatter():
    table, rows, updates = torch.randn(7, 3), torch.tensor([[2], [6], [2]]), torch.randn(3, 3)

    def opfn(t, i, u):
        return t.scatter(
            i,
            u,
            scalars(add),
            update_window_dims=(1,),
            inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0,),
            index_vector_dim=1,
        )

    check(opfn, lambda t, i, u: t.index_add(0, i[:, 0], u), table, rows, updates)


# Convolutions and windows

IMAGE, KERNEL = torch.randn(2, 4, 8, 7), torch.randn(6, 4, 3, 3)
NCHW = (0, 1, 1, 0, 0, 1, (2, 3), (2, 3), (2, 3))


@pytest.mark.parametrize("precision", [None, "default", "high", "highest"])
def test_convolutions(precision):
    close = {"rtol": 1e-4, "atol": 1e-4}
    p = {"precision_config": precision}
    check(
        lambda x, k: x.conv(k, (2, 1), **p),
        lambda x, k: F.conv2d(x, k, stride=(2, 1)),
        IMAGE,
        KERNEL,
        **close,
    )
    check(
        lambda x, k: x.conv(k, (1, 1), padding="same", **p),
        lambda x, k: F.conv2d(x, k, padding=1),
        IMAGE,
        KERNEL,
        **close,
    )
    check(
        lambda x, k: x.conv_with_general_padding(k, (1, 2), ((1, 1), (0, 0)), **p),
        lambda x, k: F.conv2d(x, k, padding=(1, 0), stride=(1, 2)),
        IMAGE,
        KERNEL,
        **close,
    )
    check(
        lambda x, k: x.conv_general_dilated(
            k, (1, 1), ((2, 2), (2, 2)), (1, 1), (2, 2), *NCHW, feature_group_count=2, **p
        ),
        lambda x, k: F.conv2d(x, k, padding=2, dilation=2, groups=2),
        IMAGE,
        KERNEL[:, :2],
        **close,
    )
    check(
        lambda x, k: x.conv_general(k, (1, 1), ((1, 1), (1, 1)), *NCHW, **p),
        lambda x, k: F.conv2d(x, k, padding=1),
        IMAGE,
        KERNEL,
        **close,
    )
    nhwc = (0, 3, 2, 3, 0, 3, (1, 2), (0, 1), (1, 2))
    check(
        lambda x, k: x.conv_with_general_dimensions(k, (2, 2), *nhwc, padding="same", **p),
        lambda x, k: F.conv2d(
            F.pad(x.permute(0, 3, 1, 2), (1, 1, 0, 1)), k.permute(3, 2, 0, 1), stride=2
        ).permute(0, 2, 3, 1),
        IMAGE.permute(0, 2, 3, 1),
        KERNEL.permute(2, 3, 1, 0),
        **close,
    )


def test_transposed_convolution():
    check(
        lambda x, k: x.conv_general_dilated(
            k.rev((2, 3)),
            (1, 1),
            ((2, 2), (2, 2)),
            (2, 2),
            (1, 1),
            0,
            1,
            0,
            1,
            0,
            1,
            (2, 3),
            (2, 3),
            (2, 3),
        ),
        lambda x, k: F.conv_transpose2d(x, k, stride=2),
        IMAGE,
        torch.randn(4, 5, 3, 3),
        rtol=1e-4,
        atol=1e-4,
    )


def test_windows():
    pools = (1, 1, 3, 2), (1, 1, 2, 2)

    def sums(padding):
        return lambda x: x.reduce_window(
            Op.zero(x.builder()), scalars(add), *pools, padding=padding
        )

    def reference(*pad):
        return lambda x: F.avg_pool2d(F.pad(x, pad), (3, 2), (2, 2), divisor_override=1)

    check(sums("valid"), reference(0, 0, 0, 0), IMAGE)
    check(sums("same"), reference(0, 1, 0, 1), IMAGE)
    check(sums(((0, 0), (0, 0), (1, 0), (0, 1))), reference(0, 1, 1, 0), IMAGE)

    for kernel, stride in (pools, (pools[0][2:], pools[1][2:])):
        check(
            lambda x, k=kernel, s=stride: x.max_pool(k, s, 0, 1, (2, 3)),
            lambda x: F.max_pool2d(x, (3, 2), 2),
            IMAGE,
        )


def test_select_and_scatter_is_the_gradient_of_a_pool():
    x = IMAGE.clone().requires_grad_()
    y = F.max_pool2d(x, 2)
    source = torch.randn_like(y)
    y.backward(source)

    def opfn(x, s):
        return x.select_and_scatter(
            s,
            Op.zero(x.builder()),
            (1, 1, 2, 2),
            (1, 1, 2, 2),
            scalars(lambda a, b: a >= b),
            scalars(add),
        )

    check(opfn, lambda a, b: x.grad, IMAGE, source)
    padded = ((0, 0), (0, 0), (0, 0), (0, 1))
    found = run(
        lambda x, s: x.select_and_scatter_with_general_padding(
            s, Op.zero(x.builder()), (1, 1, 2, 2), (1, 1, 2, 2),
            scalars(lambda a, b: a >= b), scalars(add), padded,
        ),
        IMAGE,
        torch.ones(2, 4, 4, 4),
    )  # fmt: skip
    assert found.sum() == 2 * 4 * 4 * 4


# Reductions, sorts, maps


def test_reductions():
    def sums(x):
        return x.reduce(Op.zero(x.builder()), scalars(add), (0, 2))

    def largest(x):
        return x.reduce_all(Op.scalar(x.builder(), -1e9), scalars(lambda a, b: a.max(b)))

    check(sums, lambda x: x.sum((0, 2)), CUBE)
    check(largest, torch.amax, CUBE)


def test_sorts():
    x = torch.randn(4, 6)
    less = scalars(lambda a, b: a < b)
    check(lambda x: Op.sort((x,), less), lambda x: x.sort().values, x)
    check(lambda x: Op.sort((x,), less, dimension=0), lambda x: x.sort(0).values, x)

    def with_indices(x):
        both = [xb.mkshape(Type.F32, ())] * 2 + [xb.mkshape(Type.S32, ())] * 2
        greater = xb.create_computation("greater", lambda a, b, i, j: a > b, both)
        index = Op.iota(x.builder(), xb.mkshape(Type.S32, x.shape().sizes), 1)
        return Op.sort((x, index), greater, dimension=1, is_stable=True)

    values, indices = run(with_indices, x)
    expected = x.sort(descending=True, stable=True)
    assert torch.equal(values, expected.values) and torch.equal(indices, expected.indices.int())


def test_maps():
    computation = scalars(lambda a, b: a * b + 1)
    check(lambda a, b: Op.map((a, b), computation, (0, 1)), lambda a, b: a * b + 1, A, B)
    with pytest.raises(ValueError, match="static_operands"):
        run(lambda a: Op.map((a,), computation, (0, 1), (a,)), A)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_triangular_solve(lower, left, transpose):
    a = torch.randn(3, 3) + 4 * torch.eye(3)
    b = torch.randn(3, 2) if left else torch.randn(2, 3)
    triangle = a.tril() if lower else a.triu()

    def opfn(a, b):
        return a.triangualr_solve(b, left, lower, False, transpose)

    used = triangle.t() if transpose else triangle
    expected = torch.linalg.solve(used, b, left=left)
    check(opfn, lambda a, b: expected, a, b, rtol=1e-4, atol=1e-5)


# Control flow


def test_calls_and_tuples():
    pair = xb.create_computation(
        "pair",
        lambda a, b: Op.tuple((a + b, Op.tuple((a - b, a)))),
        [xb.mkshape(Type.F32, (2, 3))] * 2,
    )

    def opfn(a, b):
        result = Op.call(pair, (a, b))
        shape = result.shape()
        assert shape.is_tuple() and shape.tuple_size() == 2
        assert shape.tuple_shape(1).tuple_shape(0) == a.shape()
        inner = result.get_tuple_element(1)
        return result.get_tuple_element(0) * inner.get_tuple_element(0) + inner.get_tuple_element(1)

    check(opfn, lambda a, b: (a + b) * (a - b) + a, A, B)
    flat = run(lambda a, b: Op.call(pair, (a, b)), A, B)
    assert [torch.equal(f, e) for f, e in zip(flat, (A + B, A - B, A), strict=True)] == [True] * 3


def test_conditions():
    def opfn(k, a, b, limit=0.0):
        chooses = k > Op.scalar(k.builder(), limit, Type.F32)
        return chooses.mkconditional((a, b), lambda a, b: a + b, lambda a, b: a - b)

    for k in (1.0, -1.0):
        expected = A + B if k > 0 else A - B
        assert torch.equal(run(opfn, torch.tensor(k), A, B), expected)
    assert torch.equal(run(opfn, torch.tensor(1.0), A, B, limit=2.0), A - B)


def test_branches_of_other_operands():
    array = xb.mkshape(Type.F32, (2, 3))
    double = xb.create_computation("double", lambda a: a + a, [array])
    pair = xb.create_computation(
        "sum", lambda t: t.get_tuple_element(0) + t.get_tuple_element(1), [[array, array]]
    )

    def opfn(c, a, b):
        return c.conditional(a, Op.tuple((a, b)), double, pair)

    for chooses, expected in ((True, A + A), (False, A + B)):
        assert torch.equal(run(opfn, torch.tensor(chooses), A, B), expected)


def test_loops():
    def condition(counter, a, b, limit=None):
        return counter < Op.scalar(counter.builder(), limit, dtype=Type.S32)

    def body(counter, a, b, limit=None):
        return counter + Op.scalar(counter.builder(), 1, dtype=Type.S32), a + b, b

    def opfn(a, b, limit=None):
        zero = Op.scalar(a.builder(), 0, dtype=Type.S32)
        return Op.mkwhile((zero, a, b), condition, body, limit=limit).get_tuple_element(1)

    for limit in (0, 1, 7):
        torch.testing.assert_close(run(opfn, A, B, limit=limit), A + limit * B)


def test_loops_by_computations():
    state = [xb.mkshape(Type.S32, ()), xb.mkshape(Type.F32, ())]

    def below(t):
        return t.get_tuple_element(0) < Op.scalar(t.builder(), 10, Type.S32)

    def step(t):
        return Op.tuple((t.get_tuple_element(0) + 1, t.get_tuple_element(1) * 2))

    condition, body = (xb.create_computation(f.__name__, f, [state]) for f in (below, step))

    def opfn(i, x):
        return Op.tuple((i, x)).while_loop(condition, body)

    found = run(opfn, torch.tensor(3, dtype=torch.int32), torch.tensor(1.0))
    assert [f.item() for f in found] == [10, 128]


# Computations and their calls


def test_a_call_is_one_recorded_call_of_one_program():
    op = xor.register("xla::once", lambda x, y, scale=1.0: (x + y) * scale)
    x, y = A.to("xla"), B.to("xla")
    torch_xla.sync()
    compiles = met.counter_value("UncachedCompile") or 0
    for _ in range(3):
        z = op(x * 2, y, scale=3.0).exp()
        assert _XLAC._get_xla_tensors_text([z]).count("torch_xla::user_computation(") == 1
        torch_xla.sync()
        torch.testing.assert_close(z.cpu(), ((A * 2 + B) * 3).exp())
    assert met.counter_value("UncachedCompile") == compiles + 1


def test_other_arguments_and_shapes_are_other_computations():
    op = xor.register("xla::kinds", lambda x, k=None, names=(): x * float(k) + len(names))
    x = torch.ones(2).to("xla")
    for k in (1, 2.0, True, 1.0):
        assert op(x, k=k).tolist() == [float(k)] * 2
    assert op(x, k=1, names=["a"]).tolist() == [2, 2]  # a list cannot be a key
    assert op(torch.ones(3).to("xla"), k=2).tolist() == [2, 2, 2]
    assert op(torch.ones(2, dtype=torch.float64).to("xla"), k=2).dtype == torch.float64


def test_computation_as_function_and_its_hlo():
    shape = xb.mkshape(Type.F32, (2, 3))
    computation = xb.create_computation("both", lambda a, b: a * b, [shape, shape])
    function = xb.xla_computation_as_func(computation)
    torch.testing.assert_close(function(A.to("xla"), B.to("xla")).cpu(), A * B)
    text = xb.get_computation_hlo(computation)
    assert text.startswith("HloModule") and "multiply(" in text


def test_views_arguments_and_results():
    """Arguments that are views, one tensor twice, and a parameter that is not read."""
    op = xor.register("xla::views", lambda x, y, unused: x - y)
    x = torch.arange(6.0).view(2, 3).to("xla")
    assert torch.equal(op(x.t(), x.t(), x).cpu(), torch.zeros(3, 2))
    same = xor.register("xla::same", lambda x: x)
    y = same(x)
    x.add_(1)
    assert torch.equal(y.cpu(), torch.arange(6.0).view(2, 3))
    assert y.is_contiguous() and not y.requires_grad


def test_placeholders_have_no_value():
    x = xb.create_placeholder_tensor((2, 3), torch.bfloat16)
    assert x.shape == (2, 3) and x.dtype == torch.bfloat16 and x.device.type == "xla"
    assert _XLAC._is_placecholder(x) and not _XLAC._is_placecholder(torch.ones(2, device="xla"))
    assert not _XLAC._is_placecholder(torch.ones(2))
    for read in (lambda: x.cpu(), lambda: (x + 1).cpu(), lambda: print(x)):
        with pytest.raises(RuntimeError, match="placeholder"):
            read()


def test_tensor_shapes():
    assert xb.tensor_shape(torch.ones(2, 3, dtype=torch.bfloat16)) == xb.mkshape("bf16", (2, 3))
    shapes = xb.tensor_shape([torch.ones(2, device="xla"), torch.tensor(1)])
    assert [str(s) for s in shapes] == ["f32[2]", "s64[]"]
    shape = xb.Shape.create(Type.F32, (2, 3), (False, True))
    assert shape.is_dynamic() and shape.rank == 2 and shape.dynamic_dimensions == (False, True)
    assert shape.as_scalar() == xb.mkshape(Type.F32, ())
    with pytest.raises(NotImplementedError, match="dynamic"):
        xb.mkparam(xb.create_builder("b"), 0, shape)


def test_a_module_of_another_producer():
    """HLO that the compiler wrote, which jaxlib reads."""
    pytest.importorskip("jaxlib")
    x = A.to("xla")
    y = (x @ x.t()).softmax(0)
    proto = _XLAC._get_xla_tensors_hlo_proto([y])
    computation = xb.computation_from_module_proto("again", proto)
    function = xb.xla_computation_as_func(computation)
    found = function(B.to("xla"))
    expected = (B @ B.t()).softmax(0)
    torch.testing.assert_close((found + function(B.to("xla"))).cpu(), expected * 2)
    with pytest.raises(ValueError, match="HloModuleProto"):
        xb.computation_from_module_proto("none", b"no such thing")


def test_trees_of_ops():
    def function(pair, scale=1.0):
        return {"sum": pair["a"] + pair["b"], "scaled": pair["a"] * scale}

    call = xb.XlaCallable(function)
    pair = {"a": A.to("xla"), "b": B.to("xla")}
    for scale in (2.0, 3.0, 2.0):
        found = call(pair, scale=scale)
        torch.testing.assert_close(found["sum"].cpu(), A + B)
        torch.testing.assert_close(found["scaled"].cpu(), A * scale)
    assert len(call._compiled) == 2


def test_jax_functions(run_python):
    """Where JAX is missing, the error says so."""
    done = run_python(
        """
        import sys
        sys.modules["jax"] = None
        import torch_xla.core.xla_builder as xb
        assert xb.maybe_get_jax(log=False) is None
        try:
            xb.call_jax(lambda x: x, ())
        except ImportError as error:
            print(error)
        """
    )
    assert "expected JAX" in done.stdout


# Errors

SHAPE = xb.mkshape(Type.F32, (2, 3))


def param(number=0, shape=SHAPE, builder=None):
    return xb.mkparam(builder or xb.create_builder("b"), number, shape)


def other(x, shape=None, dtype=Type.F32):
    return xb.mkparam(x.builder(), 1, shape or xb.mkshape(dtype, (2, 3)))


ERRORS = {
    "element types": (lambda x: x + other(x, dtype=Type.S32), "one element type.*Cast"),
    "shapes": (lambda x: x + other(x, xb.mkshape(Type.F32, (3, 2))), "one shape.*2x3.*3x2"),
    "ranks": (lambda x: x + other(x, xb.mkshape(Type.F32, (3,))), "broadcast_in_dim"),
    "no operation": (lambda x: xb.mkop("Addd", (x,)), "'Addd'"),
    "too few operands": (lambda x: xb.mkop("Add", (x,)), "Add: expected at least 2 operands"),
    "missing option": (lambda x: xb.mkop("Transpose", (x,)), "'permutation'"),
    "wrong option": (lambda x: xb.mkop("Transpose", (x,), permutation="no"), "integers"),
    "permutation": (lambda x: x.transpose((0, 0)), "transpose"),
    "sizes": (lambda x: x.reshape((4, 2)), "reshape"),
    "negative sizes": (lambda x: x.broadcast((-1,)), "from 0 on"),
    "two builders": (lambda x: x + param(), "another builder"),
    "number of a parameter": (lambda x: param(0, builder=x.builder()), "no parameter has"),
    "tuple": (lambda x: Op.tuple((x, x)) + x, "expected arrays"),
    "no tuple": (lambda x: x.get_tuple_element(0), "expected a tuple"),
    "element": (lambda x: Op.tuple((x,)).get_tuple_element(1), r"in \[0, 1\)"),
    "reduction": (
        lambda x: x.reduce(Op.zero(x.builder()), scalars(add, Type.S32), (0,)),
        "computation.*f32.*i32",
    ),
    "loop": (
        lambda x: x.while_loop(scalars(lambda a: a, count=1), scalars(lambda a: a, count=1)),
        r"takes \(f32\[2,3\]\)",
    ),
    "branches": (
        lambda x: (x.reduce_all(Op.zero(x.builder()), scalars(add)) > 0).mkconditional(
            (x,), lambda a: a, lambda a: a.transpose((1, 0))
        ),
        "same shapes",
    ),
    "dynamic": (lambda x: x.set_dimension_size(x, 0), "fixed sizes"),
    "type": (lambda x: x.cast("f31"), "'f31'"),
    "constant": (lambda x: Op.constant(x.builder(), torch.ones(2).to(torch.float8_e5m2)), "Type"),
    "index of a dimension": (lambda x: x.slice_in_dim(0, 1, 5), "dimno"),
    "padding": (lambda x: x.reduce_window(x, scalars(add), (1, 1), (1, 1), "sane"), "integers"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    function, message = ERRORS[name]
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        function(param())


def test_errors_of_calls():
    with pytest.raises(RuntimeError, match="parameters 0 to 1"):
        param(1).build("c")
    op = xor.register("xla::wrong", lambda x: x + 1)
    with pytest.raises(TypeError, match="keyword"):
        op(1.0)
    with pytest.raises(RuntimeError, match="xla::wrong.*cpu"):
        op(torch.ones(2))
    function = xb.xla_computation_as_func(param().build("c"))
    with pytest.raises(RuntimeError, match=r"f32\[2,3\]"):
        function(torch.ones(3, 2, device="xla"))
    with pytest.raises(RuntimeError, match="1 tensors, got 2"):
        function(A.to("xla"), A.to("xla"))
    with pytest.raises(TypeError, match="truth value"):
        xor.register("xla::truth", lambda x: x if x > 0 else x)(A.to("xla"))
    with pytest.raises(TypeError, match="shape"):
        xb.mkparam(xb.create_builder("b"), 0, 3)
    with pytest.raises(TypeError, match="text"):
        xb.mkop("Transpose", (param(),), permutation=["a", "b"])
