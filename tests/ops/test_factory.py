"""Tensors made on the device, against the same call on the CPU."""

import warnings

import pytest
import torch

from torch_xla.debug import metrics

from .harness import DEVICE, Batch, assert_same, nothing_on_the_host

X = torch.arange(12.0).reshape(3, 4)

FACTORIES = {
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "zeros of a dtype": lambda d: torch.zeros(2, 0, dtype=torch.int16, device=d),
    "ones": lambda d: torch.ones(2, 3, dtype=torch.bool, device=d),
    "ones 0-dim": lambda d: torch.ones((), dtype=torch.bfloat16, device=d),
    "full": lambda d: torch.full((2, 3), 2.5, device=d),
    "full of an int": lambda d: torch.full((2,), 7, device=d),
    "full of a bool": lambda d: torch.full((2,), True, device=d),
    "full of a complex": lambda d: torch.full((2,), 1 + 2j, device=d),
    "full of a dtype": lambda d: torch.full((2,), 2.75, dtype=torch.int64, device=d),
    "full of -inf": lambda d: torch.full((3, 3), float("-inf"), device=d),
    "scalar_tensor": lambda d: torch.scalar_tensor(3.5, device=d),
    "arange": lambda d: torch.arange(5, device=d),
    "arange of floats": lambda d: torch.arange(5.5, device=d),
    "arange of a dtype": lambda d: torch.arange(5, dtype=torch.bfloat16, device=d),
    "arange from": lambda d: torch.arange(-2, 5, device=d),
    "arange by": lambda d: torch.arange(3, 20, 4, device=d),
    "arange down": lambda d: torch.arange(1.0, -2.0, -0.3, device=d),
    "arange of long steps": lambda d: torch.arange(0, 1, 0.1, dtype=torch.float64, device=d),
    "arange of nothing": lambda d: torch.arange(0, device=d),
    "arange of int8": lambda d: torch.arange(1, 9, 2, dtype=torch.int8, device=d),
    "arange past 2^53": lambda d: torch.arange(2**60 + 1, 2**60 + 4, device=d),
    "range": lambda d: torch.range(1, 4, 0.5, device=d),
    "linspace": lambda d: torch.linspace(-1, 2.5, 7, device=d),
    "linspace of one": lambda d: torch.linspace(3, 9, 1, device=d),
    "linspace of none": lambda d: torch.linspace(3, 9, 0, device=d),
    "linspace of ints": lambda d: torch.linspace(0, 10, 5, dtype=torch.int64, device=d),
    "linspace down": lambda d: torch.linspace(50, 1, 50, dtype=torch.int32, device=d),
    "linspace between fractions": lambda d: torch.linspace(
        4.3, -3, 50, dtype=torch.int64, device=d
    ),
    "linspace of doubles": lambda d: torch.linspace(0, 1, 11, dtype=torch.float64, device=d),
    "linspace of tensors": lambda d: torch.linspace(torch.tensor(1.0), 4, 5, device=d),
    "logspace": lambda d: torch.logspace(-2, 3, 6, device=d),
    "logspace of base 2": lambda d: torch.logspace(0, 5, 6, base=2.0, device=d),
    "logspace between fractions": lambda d: torch.logspace(
        4.3, 1.2, 4, dtype=torch.int16, device=d
    ),
    "eye": lambda d: torch.eye(3, device=d),
    "eye wide": lambda d: torch.eye(2, 4, dtype=torch.int64, device=d),
    "eye of bools": lambda d: torch.eye(3, 2, dtype=torch.bool, device=d),
    "eye of nothing": lambda d: torch.eye(0, device=d),
    "hann_window": lambda d: torch.hann_window(6, device=d),
    "hamming_window": lambda d: torch.hamming_window(6, periodic=False, device=d),
    "kaiser_window": lambda d: torch.kaiser_window(6, device=d),
    "kaiser_window of a shape": lambda d: torch.kaiser_window(
        9, periodic=False, beta=5.5, device=d
    ),
    "kaiser_window of one": lambda d: torch.kaiser_window(1, dtype=torch.float64, device=d),
    "blackman_window": lambda d: torch.blackman_window(7, device=d),
    "bartlett_window": lambda d: torch.bartlett_window(8, dtype=torch.float64, device=d),
    "vander": lambda d: torch.vander(torch.arange(1.0, 4, device=d)),
    "tensor of numbers": lambda d: torch.tensor([[1.5, 2], [3, 4]], device=d),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factory(name):
    with nothing_on_the_host():
        assert_same(FACTORIES[name](DEVICE), FACTORIES[name]("cpu"))


OUT = {
    "arange": lambda o: torch.arange(1, 8, 2, out=o),
    "arange up to": lambda o: torch.arange(4, out=o),
    "range": lambda o: torch.range(0, 3, out=o),
    "linspace": lambda o: torch.linspace(0, 9, 4, out=o),
    "logspace": lambda o: torch.logspace(0, 2, 4, out=o),
    "eye": lambda o: torch.eye(2, out=o),
    "eye wide": lambda o: torch.eye(2, 3, out=o),
}


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
@pytest.mark.parametrize("name", OUT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_out(name, dtype):
    with nothing_on_the_host():
        result = torch.empty(0, dtype=dtype, device=DEVICE)
        assert OUT[name](result) is result
        assert_same(result, OUT[name](torch.empty(0, dtype=dtype)))


@pytest.mark.parametrize(
    "fill",
    [
        lambda o: torch.arange(5, out=o),
        lambda o: torch.linspace(0, 1, 5, out=o),
        lambda o: torch.ones(5, out=o),
        lambda o: torch.full((5,), 2.5, out=o),
        lambda o: torch.eye(5, 1, out=o),
        lambda o: torch.fft.fftfreq(5, out=o),
        lambda o: torch.fft.rfftfreq(9, 0.5, out=o),
    ],
)
@pytest.mark.parametrize("shape", [(), (2,), (0,), (5,), (5, 1), (2, 2)])
def test_out_of_another_shape(fill, shape):
    def filled(device):
        out = torch.zeros(shape, device=device)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert fill(out) is out
        return out, [str(w.message).partition(" (Triggered internally")[0] for w in seen]

    (there, told), (here, expected) = filled(DEVICE), filled("cpu")
    assert_same(there, here)
    assert there.stride() == here.stride()
    assert told == expected


LIKE = {
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda x: torch.full_like(x, 2.5),
    "full_like of a dtype": lambda x: torch.full_like(x, 3, dtype=torch.int32),
    "zeros_like of a dtype": lambda x: torch.zeros_like(x, dtype=torch.bool),
    "new_zeros": lambda x: x.new_zeros(2, 5),
    "new_ones": lambda x: x.new_ones(2, dtype=torch.int64),
    "new_full": lambda x: x.new_full((3,), 1.5),
    "fill_": lambda x: x.clone().fill_(4.5),
    "fill_ of a tensor": lambda x: x.clone().fill_(x[0, 1]),
    "zero_": lambda x: x.clone().zero_(),
    "fill_ a slice": lambda x: torch.zeros_like(x).index_put_((torch.tensor([1]),), x[2]),
    "fill_diagonal_": lambda x: x.clone().fill_diagonal_(7.0),
}


def test_like():
    with Batch() as batch:
        for name, fn in LIKE.items():
            batch.add(fn, X, label=name, grad=False)
            if name != "fill_ a slice":
                batch.add(fn, X.T.bfloat16(), label=f"{name}, strided", grad=False)


@pytest.mark.parametrize(
    "make",
    [
        torch.zeros_like,
        torch.ones_like,
        torch.empty_like,
        torch.rand_like,
        torch.randn_like,
        lambda x, **to: torch.full_like(x, 2.5, **to),
        lambda x, **to: torch.randint_like(x, 5, **to),
    ],
)
def test_like_on_another_device(make):
    for here, there in ((DEVICE, "cpu"), ("cpu", DEVICE), (DEVICE, "meta"), (DEVICE, DEVICE)):
        for x in (X.to(here), X.to(here).T, X.to(here)[:, ::2]):
            made, expected = make(x, device=there), make(x.cpu())
            assert made.device.type == torch.device(there).type
            assert made.shape == expected.shape and made.stride() == expected.stride()
    torch.testing.assert_close(torch.zeros_like(X.to(DEVICE), device="cpu"), torch.zeros_like(X))
    torch.testing.assert_close(
        torch.full_like(X.to(DEVICE), 3, dtype=torch.int16, device="cpu"),
        torch.full_like(X, 3, dtype=torch.int16),
    )


@pytest.mark.parametrize("layout", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_empty_permuted_is_no_view(layout):
    made = torch.empty_permuted((2, 3, 4), layout, device=DEVICE)
    expected = torch.empty_permuted((2, 3, 4), layout)
    assert made.stride() == expected.stride() and not made._is_view()
    values = torch.arange(24.0).reshape(2, 3, 4)
    assert_same(made.copy_(values), expected.copy_(values))
    with pytest.raises(RuntimeError, match="Duplicate dim"):
        torch.empty_permuted((2, 3, 4), (0, 0, 1), device=DEVICE)


@pytest.mark.parametrize("diagonal", [-10, -3, -1, 0, 1, 2, 10])
def test_triangles(diagonal):
    with nothing_on_the_host(), Batch() as batch:
        for x in (X, X.T, X.reshape(3, 2, 2), X > 3, X.long(), X[:0]):
            label = f"{tuple(x.shape)} {x.dtype}"
            batch.add(lambda x: (x.tril(diagonal), x.triu(diagonal)), x, label=label)


def test_comparisons_of_negative_constants():
    with Batch() as batch:
        for dtype in (torch.int64, torch.int32, torch.int8, torch.float32):
            batch.add(
                lambda x: (
                    torch.zeros_like(x) - 1 >= torch.zeros_like(x),
                    -torch.ones_like(x) < torch.ones_like(x),
                    torch.maximum(-torch.ones_like(x), torch.zeros_like(x)),
                ),
                torch.zeros(1, dtype=dtype),
                label=str(dtype),
                grad=False,
            )


@pytest.mark.parametrize("offset", [-6, -2, -1, 0, 1, 2, 6])
def test_triangle_indices(offset):
    for rows, columns in ((3, 3), (4, 2), (2, 5), (1, 1), (0, 3), (7, 7)):
        for make in (torch.tril_indices, torch.triu_indices):
            expected = make(rows, columns, offset)
            assert_same(make(rows, columns, offset, device=DEVICE), expected)


def test_large_triangle_indices():
    n = 1500
    with nothing_on_the_host():
        assert_same(torch.triu_indices(n, n, 1, device=DEVICE), torch.triu_indices(n, n, 1))


def test_ranges_that_move_do_not_recompile():
    compiled = set()
    for start in (0, 5, 9):
        x = torch.arange(start, start + 4, device=DEVICE) + torch.linspace(
            start, 10, 4, device=DEVICE
        )
        torch.testing.assert_close(
            x.cpu(), torch.arange(start, start + 4) + torch.linspace(start, 10, 4)
        )
        compiled.add(metrics.counter_value("UncachedCompile"))
    assert len(compiled) == 1


def test_fills_that_change_do_not_recompile():
    compiled = set()
    for value in (0.5, 1.5, 2.5):
        x = torch.full((3, 5), value, device=DEVICE) * 2
        assert_same(x, torch.full((3, 5), value) * 2)
        compiled.add(metrics.counter_value("UncachedCompile"))
    assert len(compiled) == 1


def test_uninitialized_memory_is_filled_where_algorithms_are_deterministic():
    """As PyTorch fills it: with nan, or the largest number."""
    made = []
    torch.use_deterministic_algorithms(True)
    try:
        for device in ("cpu", DEVICE):
            for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int8, torch.bool):
                made.append(torch.empty(2, 3, dtype=dtype, device=device))
            made.append(torch.empty_like(made[-5]))
            made.append(made[-6].new_empty(3))
            made.append(torch.empty_strided((2, 3), (1, 2), device=device))
    finally:
        torch.use_deterministic_algorithms(False)
    half = len(made) // 2
    assert_same(made[half:], made[:half])
    assert made[half].isnan().all()
