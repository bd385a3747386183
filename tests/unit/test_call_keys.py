"""Calls that differ in anything are different calls, whichever of them was recorded first.

Units: dispatch/record/recorder.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from torch_xla import _XLAC

# An argument that is part of the program, and two values of it that look alike to a careless key.
Call = Callable[[torch.Tensor, object], torch.Tensor]
PAIRS: dict[str, tuple[Call, object, object]] = {
    "divisor of a mean, 17 or none": (
        lambda x, d: F.avg_pool2d(x[None, None], 2, divisor_override=d),
        None,
        17,
    ),
    "end of a slice, 17 or none": (
        lambda x, end: torch.slice_scatter(x, torch.zeros_like(x[:, :end]), 1, None, end),
        None,
        17,
    ),
    "start of a slice, 17 or none": (
        lambda x, start: torch.slice_scatter(x, torch.zeros_like(x[:, start:]), 1, start, None),
        None,
        17,
    ),
    "correction, 17 or none": (lambda x, c: torch.var(x, dim=1, correction=c), None, 17),
    "exponent 0 of an integer": (lambda x, e: x.long().pow(e), 0, 0.0),
    "exponent 2 of an integer": (lambda x, e: x.long().pow(e), 2, 2.0),
    "exponent true": (lambda x, e: x.pow(e), True, 3),
    "exponent false": (lambda x, e: x.pow(e), False, 2),
    "norm true": (lambda x, p: x.norm(p), True, 3),
    "norm false": (lambda x, p: x.norm(p), False, 2),
    "norm 0": (lambda x, p: x.norm(p), 0, 0.0),
    "norm none": (lambda x, p: x.norm(p), None, 17),
    "exponent of minus zero": (lambda x, e: torch.copysign(x, e), 0.0, -0.0),
    "dimension or list of one": (lambda x, d: torch.logsumexp(x, d), 0, [0]),
    "sum of all or of one": (lambda x, d: torch.sum(x, d), None, [0]),
    "sort, stable or not": (lambda x, s: torch.sort(x, stable=s)[0], None, False),
}


@pytest.mark.parametrize("order", ["as written", "turned round"])
@pytest.mark.parametrize("name", PAIRS)
def test_arguments_that_look_alike_are_told_apart(name: str, order: str):
    function, *values = PAIRS[name]
    turned = order == "turned round"
    # Sizes that no other test has: what is recorded first is remembered.
    rows = 40 + 2 * list(PAIRS).index(name) + turned
    x = torch.randn(rows, 34) + 3
    for value in reversed(values) if turned else values:
        expected, got = function(x, value), function(x.to("xla"), value)
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got.cpu(), expected)


def test_static_values_of_every_kind_have_keys_of_their_own():
    """Through an operator that takes a number of any kind and has no meaning for the kind."""
    x = torch.randn(3, 5, device="xla")
    exponents = [False, True, 0, 1, 2, 3, 17, 0.0, -0.0, 2.0, 3.0, 17.0, 3j, 3 + 0j]
    keys = {repr(e): _XLAC._get_graph_hash([x.pow(e)]) for e in exponents}
    assert len(set(keys.values())) == len(exponents)
    for a, b in itertools.combinations(keys, 2):
        assert keys[a] != keys[b], (a, b)


def test_results_beyond_65536_have_keys_of_their_own():
    parts = torch.arange(65540, device="xla").unbind()
    hashes = {_XLAC._get_graph_hash([parts[i] + parts[j]]) for i, j in [(0, 1), (65536, 1)]}
    assert len(hashes) == 2


@pytest.fixture
def default_of_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


UNDER_A_DEFAULT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "comparison with a number": lambda x: x < 16777219.5,
    "equality with a number": lambda x: x == 16777219.5,
    "search for a number": lambda x: torch.searchsorted(x, 16777219.5),
    "PyTorch's kernel of integers": torch.special.bessel_j0,
    "PyTorch's kernel of two": lambda x: torch.special.chebyshev_polynomial_t(x, x - 16777213),
    "list": lambda x: torch._foreach_div([x, x], 0.3)[1],
}


@pytest.mark.parametrize("name", UNDER_A_DEFAULT)
def test_the_default_dtype_is_that_of_the_call(name: str, default_of_float64):
    function = UNDER_A_DEFAULT[name]
    x = torch.tensor([16777215, 16777219])
    on_xla = x.to("xla")
    expected, got = function(x), function(on_xla)
    torch.set_default_dtype(torch.float32)
    assert not torch.equal(function(x), expected) or name == "list"
    torch.testing.assert_close(got.cpu(), expected)
    torch.testing.assert_close(function(on_xla).cpu(), function(x))
