"""Operators refuse the memory and the shapes to write to that PyTorch's CPU kernels refuse."""

import warnings

import pytest
import torch

import torch_xla  # noqa: F401


def expanded(device):
    return torch.zeros(3, 1, device=device).expand(3, 4)


def ones(*size, device):
    return torch.ones(*size, device=device)


def mask(*size, device):
    return torch.ones(*size, dtype=torch.bool, device=device)


def positions(device, count=6):
    return torch.arange(count, device=device)


def first(device):
    return torch.zeros(1, dtype=torch.int64, device=device)


# Writes into memory that is seen several times.
EXPANDED = {
    "add_": lambda d: expanded(d).add_(1.0),
    "addmm_": lambda d: ones(3, 1, device=d).expand(3, 3).addmm_(*[ones(3, 3, device=d)] * 2),
    "cumprod_": lambda d: expanded(d).cumprod_(0),
    "cumsum_": lambda d: expanded(d).cumsum_(0),
    "index_add_": lambda d: expanded(d).index_add_(0, first(d), ones(1, 4, device=d)),
    "index_fill_": lambda d: expanded(d).index_fill_(0, first(d), 1.0),
    "index_put_": lambda d: expanded(d).index_put_((first(d),), ones(1, 4, device=d)),
    "masked_fill_": lambda d: expanded(d).masked_fill_(mask(3, 4, device=d), 1.0),
    "masked_scatter_": lambda d: expanded(d).masked_scatter_(
        mask(3, 4, device=d), ones(3, 4, device=d)
    ),
    "put_": lambda d: expanded(d).put_(first(d), ones(1, device=d)),
    "renorm_": lambda d: expanded(d).renorm_(2, 0, 1.0),
    "scatter_": lambda d: expanded(d).scatter_(0, first(d)[None], 1.0),
}
# Reads, while it writes, what it writes.
SHARED = {
    "cat": lambda d, x: torch.cat([x[:3], x[3:]], out=x),
    "gather": lambda d, x: torch.gather(x, 0, x, out=x),
    "index_add_": lambda d, x: x.index_add_(0, x, x.clone()),
    "index_add_source": lambda d, x: x.index_add_(0, positions(d, 3), x[:3]),
    "index_copy_": lambda d, x: x.index_copy_(0, positions(d, 3), x[3:]),
    "index_copy_other": lambda d, x: x[:3].index_copy_(0, positions(d, 3), x[3:]),
    "index_fill_": lambda d, x: x.index_fill_(0, x[:2], 7),
    "index_put_": lambda d, x: x.index_put_((x,), x.clone()),
    "index_put_values": lambda d, x: x.index_put_((positions(d, 3),), x[:3]),
    "index_put_row": lambda d, x: x.index_put_((positions(d, 3),), x[0]),
    "index_select": lambda d, x: torch.index_select(x, 0, positions(d), out=x),
    "masked_fill_": lambda d, x: (x[1:] > 2).masked_fill_((x > 2)[:-1], False),
    "put_": lambda d, x: x.put_(positions(d, 3), x[3:]),
    "put_index": lambda d, x: x.put_(x, x.clone()),
    "scatter_": lambda d, x: x.scatter_(0, x, x.clone()),
    "scatter_add_": lambda d, x: x.scatter_add_(0, positions(d), x),
    "scatter_other": lambda d, x: x[:3].scatter_(0, positions(d, 3), x[3:]),
    "take": lambda d, x: torch.take(x, positions(d), out=x),
}
# What comes has another shape than what it is written to.
SHAPES = {
    "masked_fill_": lambda d: ones(1, device=d).masked_fill_(mask(2, 1, device=d), 2.0),
    "masked_fill_tensor": lambda d: ones(1, device=d).masked_fill_(
        mask(2, 1, device=d), ones((), device=d)
    ),
    "masked_fill_scalar": lambda d: ones((), device=d).masked_fill_(mask(3, device=d), 2.0),
    "masked_scatter_": lambda d: ones(1, 3, device=d).masked_scatter_(
        mask(2, 3, device=d), ones(6, device=d)
    ),
    "add_": lambda d: ones(1, device=d).add_(ones(3, device=d)),
    "put_more": lambda d: ones(3, device=d).put_(first(d), ones(3, device=d)),
    "put_into_nothing": lambda d: ones(0, device=d).put_(first(d), ones(1, device=d)),
}


def outcome(write):
    """The value, or the error's class and, where it speaks of memory, its words; and warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            told = write().cpu().tolist()
        except (RuntimeError, IndexError) as error:
            text = str(error)
            told = type(error), text if text.startswith("unsupported operation") else ""
    return told, [str(w.message).partition(" (Triggered")[0] for w in caught]


@pytest.mark.parametrize("write", EXPANDED.values(), ids=EXPANDED)
def test_memory_that_is_seen_several_times(write):
    torch.set_warn_always(True)
    try:
        assert outcome(lambda: write("xla")) == outcome(lambda: write("cpu"))
    finally:
        torch.set_warn_always(False)


@pytest.mark.parametrize("write", SHARED.values(), ids=SHARED)
def test_memory_that_is_read_while_it_is_written(write):
    assert outcome(lambda: write("xla", positions("xla"))) == outcome(
        lambda: write("cpu", positions("cpu"))
    )


@pytest.mark.parametrize("write", SHAPES.values(), ids=SHAPES)
def test_results_of_another_shape(write):
    got, want = outcome(lambda: write("xla")), outcome(lambda: write("cpu"))
    assert got == want
    assert got[0][0] in (RuntimeError, IndexError)


def test_a_refused_write_leaves_the_tensor_as_it_was():
    x = torch.ones(1, device="xla")
    larger = mask(2, 1, device="xla")
    x.masked_fill(larger, 2.0)  # the same call, out of place
    with pytest.raises(RuntimeError, match="output with shape"):
        x.masked_fill_(larger, 2.0)
    assert x.tolist() == [1.0]
