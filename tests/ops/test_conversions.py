"""Conversions between dtypes, of numbers that the other dtype holds and of those that it does not.

What a float becomes that an integer does not hold is undefined in C++; on the CPU it is what c10
defines and its processors do: through int32 (through int64 for uint8, uint32 and int64), of which
the low bits stay. Only uint32 differs there between the vectorized and the plain loop; the plain
loop is the definition.
"""

from __future__ import annotations

import pytest
import torch

import torch_xla  # noqa: F401

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
INTEGERS += [torch.uint16, torch.uint32, torch.uint64, torch.bool]
INF, NAN = float("inf"), float("nan")
VALUES = [NAN, INF, -INF, 0.0, -0.0, 0.9, -0.9, -1.0, -1.5, 127.0, 128.0, 255.5, 256.0, 300.0]
VALUES += [-129.0, -300.0, 32768.0, 65535.0, 65536.0, 70000.0, -40000.0, 2.0**31 - 128, 2.0**31]
VALUES += [-(2.0**31), -(2.0**31) - 256, 2.0**31 - 0.5, -(2.0**31) - 0.5, 3000000001.0]
VALUES += [-3000000001.0, 2.0**32, 2.0**33 + 5, 9e18, -9e18, 2.0**63, -(2.0**63), 9.3e18, -1e19]
VALUES += [1.8e19, 2.0**64, 2e19, 1e30, -1e30]


def converted(x: torch.Tensor, dtype: torch.dtype) -> list:
    """One by one: the loop that is not vectorized."""
    return [x[i].to(dtype).item() for i in range(len(x))]


@pytest.mark.parametrize("integer", INTEGERS, ids=str)
@pytest.mark.parametrize("floating", FLOATS, ids=str)
def test_floats_to_integers(floating: torch.dtype, integer: torch.dtype):
    x = torch.tensor(VALUES, dtype=torch.float64).to(floating)
    expected = converted(x, integer)
    assert x.to("xla").to(integer).tolist() == expected
    written = torch.zeros(len(x), dtype=integer, device="xla")
    written.copy_(x.to("xla"))
    assert written.tolist() == expected
    assert x.repeat(50).to("xla").to(integer).tolist() == expected * 50
    assert [v.to("xla").to(integer).item() for v in x] == expected
    # Values that the compiler knows: it must not have rules of its own.
    parts = []
    for value in x.double().tolist():
        parts.append(torch.full((3,), value, dtype=torch.float64, device="xla"))
    made = torch.stack(parts).to(floating).to(integer)
    assert made.tolist() == [[value] * 3 for value in expected]


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("integer", INTEGERS[:5], ids=str)
def test_complex_numbers_to_integers(integer: torch.dtype):
    x = torch.complex(torch.tensor(VALUES), torch.ones(len(VALUES)))
    expected = converted(x, integer)
    assert x.to("xla").to(integer).tolist() == expected


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.complex64], ids=str)
def test_to_float8(dtype: torch.dtype):
    """float8_e4m3fn has no infinity, and what takes its place depends on the version of PyTorch."""
    narrow = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
    numbers = [0.0, 1.0, 0.07, -3.3, 200.0, 447.0, 448.0, 460.0, 464.0, 470.0, 480.0, 500.0, -500.0]
    x = torch.tensor([*numbers, 1e9, -1e9, 70000.0, INF, -INF, NAN], dtype=torch.float64).to(dtype)
    for to in narrow:
        expected, found = x.to(to).float(), x.to("xla").to(to).cpu().float()
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        made = torch.stack([torch.full((2,), v, dtype=dtype, device="xla") for v in x.tolist()])
        found = made.to(to).cpu().float()
        torch.testing.assert_close(found[:, 1], expected, rtol=0, atol=0, equal_nan=True)


LARGE = 2**64 - 5
UNSIGNED = {
    "full": lambda d: torch.full((2,), LARGE, dtype=torch.uint64, device=d),
    "of floats": lambda d: torch.full((2,), LARGE, dtype=torch.float64, device=d),
    "of no dtype": lambda d: torch.full((2,), LARGE, device=d),
    "fill_": lambda d: torch.zeros(2, dtype=torch.uint64, device=d).fill_(LARGE),
    "compared": lambda d: torch.zeros(2, dtype=torch.uint64, device=d) == LARGE,
    "added to floats": lambda d: torch.zeros(2, device=d) + LARGE,
    "multiplied": lambda d: torch.ones(2, dtype=torch.int64, device=d) * LARGE,
    "limit": lambda d: torch.ones(2, dtype=torch.int64, device=d).clamp(max=LARGE),
    "0-dim": lambda d: torch.ones(2, device=d) * torch.tensor(LARGE, dtype=torch.uint64),
}


@pytest.mark.parametrize("name", UNSIGNED)
def test_numbers_larger_than_int64(name: str):
    try:
        expected = UNSIGNED[name]("cpu")
    except RuntimeError as error:
        with pytest.raises(type(error)) as found:
            UNSIGNED[name]("xla")
        assert str(found.value) == str(error)
    else:
        torch.testing.assert_close(UNSIGNED[name]("xla").cpu(), expected)


FACTORS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]


@pytest.mark.parametrize("dtype", FACTORS, ids=str)
def test_what_is_multiplied_by_a_truth_value_keeps_nan(dtype: torch.dtype):
    x = torch.tensor([NAN, INF, -INF, 1.0, NAN]).to(dtype)
    mask = torch.tensor([False, False, True, True, True])
    y, on_xla = x.to("xla"), mask.to("xla")
    products = [
        (x * mask, y * on_xla),
        (x * mask.to(dtype), y * on_xla.to(dtype)),
        (x * (x != x), y * (y != y)),
        (x * x.isnan().logical_not(), y * y.isnan().logical_not()),
        (x.clone().mul_(mask), y.clone().mul_(on_xla)),
        (torch.addcmul(x, x, mask.to(dtype)), torch.addcmul(y, y, on_xla.to(dtype))),
    ]
    for expected, got in products:
        torch.testing.assert_close(got.cpu(), expected, equal_nan=True)


def test_gradient_of_nansum_where_the_root_has_none():
    gradients = []
    for device in ("cpu", "xla"):
        x = torch.tensor([4.0, -1.0, 9.0, 0.0], device=device, requires_grad=True)
        (x**0.5).nansum().backward()
        gradients.append(x.grad.cpu())
    torch.testing.assert_close(gradients[1], gradients[0], equal_nan=True)


def test_erf_and_gelu_at_the_ends():
    x = torch.tensor([-INF, -100.0, -10.0, -6.0, -4.0, -3.9, -3.5, 3.5, 3.9, 4.0, 6.0, NAN])
    y = x.to("xla")
    torch.testing.assert_close(torch.erf(y).cpu(), torch.erf(x), rtol=3e-7, atol=0, equal_nan=True)
    assert torch.erf(y)[:3].tolist() == [-1.0, -1.0, -1.0]
    for approximate in ("none", "tanh"):
        expected = torch.nn.functional.gelu(x.double(), approximate=approximate).float()
        got = torch.nn.functional.gelu(y, approximate=approximate).cpu()
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6, equal_nan=True)
        assert got[0].isnan() and got[1] == 0 and got[2] == 0


@pytest.mark.parametrize("dtype", [torch.complex32, torch.float8_e8m0fnu])
def test_tensors_of_dtypes_that_xla_lacks_are_refused_when_they_are_made(dtype: torch.dtype):
    """They were refused when they were computed, with all that was recorded beside them."""
    halves = torch.ones(2, 2, device="xla", dtype=torch.float16)
    bytes_ = torch.ones(4, device="xla", dtype=torch.uint8)
    kept = torch.zeros(2, device="xla")
    ways = [
        lambda: torch.empty(2, device="xla", dtype=dtype),
        lambda: torch.empty_like(kept, dtype=dtype),
        lambda: torch.zeros(2, device="xla", dtype=dtype),
        lambda: halves.to(dtype),
        lambda: kept.copy_(halves[0].to(dtype)),
        lambda: bytes_.view(dtype),
        lambda: torch.ones(2).to(dtype).to("xla"),
    ]
    if dtype == torch.complex32:
        ways += [lambda: torch.view_as_complex(halves), lambda: halves + 1j]
    for way in ways:
        with pytest.raises(RuntimeError, match="expected a dtype that XLA has"):
            way()
    assert kept.tolist() == [0, 0] and (halves + 1).tolist() == [[2, 2], [2, 2]]
