"""Operators over lists: the same results as on the CPU, each recorded as one node.

Units: dispatch/record/list_write.
"""

from __future__ import annotations

import pytest
import torch

import torch_xla
from tests.ops.harness import assert_same, check, to_xla
from torch_xla.debug import metrics

DEVICE = "xla"
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def lists(count: int, dtype: torch.dtype = torch.float32, positive: bool = False):
    """`count` lists of tensors of five shapes."""
    generator = torch.Generator().manual_seed(count)
    shapes = [(), (1,), (3, 4), (0, 2), (2, 3, 5)]
    made = [[torch.randn(s, generator=generator) for s in shapes] for _ in range(count)]
    if positive:
        made = [[t.abs() * 0.5 + 0.2 for t in one] for one in made]
    return [[t.to(dtype) for t in one] for one in made]


UNARY = [
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor",
    "frac", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt",
    "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
]  # fmt: skip
SCALARS = [0.5, -1.25, 2.0, 3.0, 0.75]
BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "clamp_min", "clamp_max", "pow"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype):
    (xs,) = lists(1, dtype, positive=True)
    check(getattr(torch, f"_foreach_{name}"), xs, grad=False)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, dtype):
    xs, ys = lists(2, torch.float32, positive=True)
    if dtype == torch.int64:
        xs, ys = ([(t * 10).round() for t in one] for one in (xs, ys))
    xs, ys = ([t.to(dtype) for t in one] for one in (xs, ys))
    fn = getattr(torch, f"_foreach_{name}")
    scalars = [2, 3, 1, 4, 5] if dtype == torch.int64 else [0.5, 1.25, 2.0, 3.0, 0.75]
    check(lambda a, b: [fn(a, b), fn(a, scalars[0]), fn(a, scalars)], xs, ys, grad=False)


IN_PLACE = [
    lambda xs, ys, zs: torch._foreach_add_(xs, ys, alpha=0.5),
    lambda xs, ys, zs: torch._foreach_mul_(xs, 1.5),
    lambda xs, ys, zs: torch._foreach_sub_(xs, SCALARS),
    lambda xs, ys, zs: torch._foreach_div_(xs, zs),
    lambda xs, ys, zs: torch._foreach_neg_(xs),
    lambda xs, ys, zs: torch._foreach_abs_(xs),
    lambda xs, ys, zs: torch._foreach_add_(xs, 0.5),
    lambda xs, ys, zs: torch._foreach_sqrt_(xs),
    lambda xs, ys, zs: torch._foreach_lerp_(xs, ys, 0.1),
    lambda xs, ys, zs: torch._foreach_addcmul_(xs, ys, zs, 0.25),
    lambda xs, ys, zs: torch._foreach_addcdiv_(xs, ys, zs, SCALARS),
    lambda xs, ys, zs: torch._foreach_clamp_min_(xs, -0.5),
    lambda xs, ys, zs: torch._foreach_maximum_(ys, zs),
    lambda xs, ys, zs: torch._foreach_copy_(zs, xs),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place(dtype):
    def update(xs, ys, zs):
        for step in IN_PLACE:
            step(xs, ys, zs)
            # In one program XLA keeps what lies between two steps in float32.
            if dtype is torch.bfloat16:
                torch_xla.sync()
        return xs, ys, zs

    xs, ys = lists(2, dtype)
    (zs,) = lists(1, dtype, positive=True)
    check(update, xs, ys, zs, grad=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_three_lists(dtype):
    xs, ys = lists(2, dtype)
    (zs,) = lists(1, dtype, positive=True)

    def all_of(xs, ys, zs):
        return [
            torch._foreach_addcmul(xs, ys, zs, 0.5),
            torch._foreach_addcmul(xs, ys, zs, SCALARS),
            torch._foreach_addcmul(xs, ys, zs, torch.tensor(SCALARS)),
            torch._foreach_addcdiv(xs, ys, zs, 0.5),
            torch._foreach_addcdiv(xs, ys, zs, SCALARS),
            torch._foreach_addcdiv(xs, ys, zs, torch.tensor(SCALARS)),
            torch._foreach_addcdiv(xs, ys, zs),
            torch._foreach_lerp(xs, ys, 0.3),
            torch._foreach_lerp(xs, ys, 0.7),
            torch._foreach_lerp(xs, ys, zs),
            torch._foreach_lerp(xs, ys, SCALARS),
        ]

    check(all_of, xs, ys, zs, grad=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", [0, 1, 2, 3, float("inf"), -float("inf")])
def test_norm(order, dtype):
    xs = [t for t in lists(1, dtype)[0] if t.numel() != 0]
    check(lambda xs: torch._foreach_norm(xs, order), xs, grad=False)


def test_norm_of_other_dtype():
    (xs,) = lists(1, torch.bfloat16)
    check(lambda xs: torch._foreach_norm(xs, 2, dtype=torch.float32), xs, grad=False)


def test_other_forms():
    xs, ys = lists(2, positive=True)
    full = [t for t in xs if t.numel() != 0]

    def all_of(xs, ys, full):
        zeroed = [x.clone() for x in xs]
        torch._foreach_zero_(zeroed)
        return [
            torch._foreach_pow(2.0, xs),
            torch._foreach_pow(xs, ys),
            torch._foreach_pow(xs, 2),
            torch._foreach_pow(xs, [2, 0.5, 1, 3, -1]),
            torch._foreach_mul(xs, ys[0]),
            torch._foreach_add(xs, ys[0], alpha=2.0),
            torch._foreach_div(xs, ys[0]),
            torch._foreach_max(full),
            zeroed,
        ]

    check(all_of, xs, ys, full, grad=False)


def test_numbers_and_tensors_of_the_cpu():
    (xs,) = lists(1)
    on_xla = to_xla(xs)
    half = torch.tensor(0.5)
    assert_same(torch._foreach_mul(on_xla, half), torch._foreach_mul(xs, half))
    steps, on_xla = [torch.zeros(()) for _ in range(3)], [torch.zeros((), device=DEVICE)] * 1
    torch._foreach_add_(steps, 1)
    torch._foreach_add_(on_xla, torch.tensor(1.0), alpha=1.0)
    assert_same(on_xla, steps[:1])
    integers = [torch.arange(4), torch.arange(3)]
    assert_same(torch._foreach_add(to_xla(integers), 0.5), torch._foreach_add(integers, 0.5))
    assert_same(torch._foreach_div(to_xla(integers), 2), torch._foreach_div(integers, 2))


def test_copy_from_the_cpu_and_between_dtypes():
    targets = [
        torch.zeros(2, 3, device=DEVICE),
        torch.zeros(4, device=DEVICE, dtype=torch.bfloat16),
    ]
    sources = [torch.randn(2, 3), torch.randn(4)]
    torch._foreach_copy_(targets, sources)
    assert_same(targets, [sources[0], sources[1].bfloat16()])


def test_views_are_written_through():
    base = torch.zeros(4, 3, device=DEVICE)
    rows = [base[0], base[2], base.t()[1]]
    torch._foreach_add_(rows, [torch.ones(3, device=DEVICE)] * 2 + [torch.ones(4, device=DEVICE)])
    expected = torch.zeros(4, 3)
    for view in (expected[0], expected[2], expected.t()[1]):
        view.add_(1)
    assert_same(base, expected)


def test_lists_that_overlap_are_written_in_order():
    def update(x):
        y = x * 1
        torch._foreach_add_([y[:2], y[1:3], y], 1)
        torch._foreach_mul_([y, y], [2, 3])
        # The second element reads what the first has written.
        torch._foreach_add_([y[0], y[1]], [y[3], y[0]])
        torch._foreach_mul_([y[2], y[3]], y[0, 0])
        return y

    check(update, torch.arange(12.0).reshape(4, 3), grad=False)


def test_views_of_one_buffer_stay_one_node():
    flat = torch.arange(12.0).to(DEVICE)
    parts = [flat[:4], flat[8:], flat[4:8]]
    metrics.clear_counters()
    torch._foreach_add_(parts, [part.clone() for part in parts])
    assert metrics.counter_value("xla::_foreach_add_") == 1
    assert metrics.counter_value("xla::add_") is None
    assert_same(flat, torch.arange(12.0) * 2)


def test_errors_name_the_shapes():
    # PyTorch's shape functions and its CPU kernels say it in different words.
    xs = [torch.ones(3, device=DEVICE)]
    with pytest.raises(RuntimeError, match=r"(?s)broadcast.*4.*3|size.*3.*must match.*4"):
        torch._foreach_add(xs, [torch.ones(4, device=DEVICE)])


def test_each_call_is_one_node_and_numbers_do_not_recompile():
    xs = to_xla([torch.randn(5, 5) for _ in range(20)])
    ys = to_xla([torch.randn(5, 5) for _ in range(20)])
    compiled = None
    for step in range(1, 5):
        metrics.clear_counters()
        torch._foreach_mul_(xs, 1.0 / step)
        torch._foreach_addcdiv_(xs, ys, ys, [0.1 * step * k for k in range(20)])
        assert metrics.counter_value("xla::_foreach_mul_") == 1
        assert metrics.counter_value("xla::_foreach_addcdiv_") == 1
        assert metrics.counter_value("xla::mul") is None
        torch_xla.sync()
        if step > 2:
            assert metrics.counter_value("UncachedCompile") is None, compiled


@pytest.mark.parametrize("order", [float("inf"), -float("inf"), 2])
def test_gradient_of_a_wider_norm_of_complex_numbers(order):
    def norms(x):
        return [n.sin() for n in torch._foreach_norm([x], order, dtype=torch.complex128)]

    check(norms, torch.randn(5, 4, dtype=torch.complex64))
