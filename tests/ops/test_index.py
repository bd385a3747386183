"""Indexing, gather and scatter, embeddings: every rule against PyTorch's CPU result.

Units: dispatch/record/mask_index.
"""

import itertools
import warnings

import pytest
import torch
import torch.nn.functional as F

from .harness import check

FLOATS = (torch.float32, torch.bfloat16, torch.float64)


def values(*shape):
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, generator=generator)


def integers(high, *shape, dtype=torch.int64):
    generator = torch.Generator().manual_seed(high + sum(shape))
    return torch.randint(high, shape, generator=generator).to(dtype)


def distinct(high, n):
    return torch.randperm(high, generator=torch.Generator().manual_seed(high))[:n]


X = values(4, 5, 6)
SCALAR = torch.tensor(3.0)
EMPTY = torch.empty(0, 3)
I3 = torch.tensor([3, 0, 2])
J3 = torch.tensor([1, 1, -1])
TABLE = torch.tensor([[0, 1], [3, -2]])
NONE = torch.tensor([], dtype=torch.int64)
MASK = values(4, 5) > 0.3

READS = {
    "one index": lambda x, i, j: x[i],
    "second dimension": lambda x, i, j: x[:, j],
    "adjacent": lambda x, i, j: x[:, i, j],
    "apart": lambda x, i, j: x[i, :, j],
    "apart, after a slice": lambda x, i, j: x[i, 1:3, j],
    "all": lambda x, i, j: x[i, j, i],
    "broadcast": lambda x, i, j: x[i[:, None], j],
    "with an integer": lambda x, i, j: x[i, 2],
    "with None": lambda x, i, j: x[None, i, ..., j],
    "table": lambda x, i, j: x[torch.stack([i, j])],
    "int32": lambda x, i, j: x[i.int(), j.int()],
    "nothing": lambda x, i, j: x[i[:0]],
    "unsafe_index": lambda x, i, j: torch.ops.aten._unsafe_index(x, [None, i, j]),
    "index_select": lambda x, i, j: x.index_select(1, i),
    "index_select of one": lambda x, i, j: x.index_select(1, i[0]),
    "take": lambda x, i, j: x.take(i * j * 3),
    "take_along_dim": lambda x, i, j: x.take_along_dim(i.view(1, 3, 1), 1),
}


@pytest.mark.parametrize("fn", READS.values(), ids=READS)
def test_reads(fn):
    check(fn, X, I3, J3, dtypes=FLOATS)
    check(fn, X.permute(1, 0, 2).contiguous().permute(1, 0, 2), I3, J3)
    check(fn, X > 0, I3, J3)
    check(fn, (X * 10).long(), I3, J3)


def test_reads_of_scalars_and_empty_tensors():
    check(lambda x, i: (x.take(i), x.index_select(0, i), x.gather(0, i)), SCALAR, torch.tensor([0]))
    check(lambda x, i: (x.gather(0, i), x[..., None][i]), SCALAR, torch.tensor(0))
    check(lambda x, i: (x[:, i], x[:, i[:0]], x[i[:0]], x.index_select(1, i)), EMPTY, I3[1:])


WRITES = {
    "index_put": lambda x, v, i, j: x.index_put((i,), v[0]),
    "index_put of one value": lambda x, v, i, j: x.index_put((i, j), v[0, 0, 0]),
    "index_put apart": lambda x, v, i, j: torch.ops.aten.index_put(x, [i, None, j], v[0, 0, :5]),
    "index_put broadcast": lambda x, v, i, j: x.index_put((i[:, None], j[:2]), v[0, :3, :1, None]),
    "accumulate": lambda x, v, i, j: x.index_put((j,), v[0], accumulate=True),
    "accumulate, both": lambda x, v, i, j: x.index_put((i, j), v[0, :1], accumulate=True),
    "unsafe_index_put": lambda x, v, i, j: torch.ops.aten._unsafe_index_put(x, [None, i], v[0, 0]),
    "setitem": lambda x, v, i, j: setitem(x, (i, slice(1, 3), j), v[0, 0, :2]),
    "setitem of an int": lambda x, v, i, j: setitem(x, (i, 2), 7.5),
    "index_add": lambda x, v, i, j: x.index_add(0, torch.cat([i, i]), v.repeat(6, 1, 1)),
    "index_add with alpha": lambda x, v, i, j: x.index_add(
        1, i, v[:, :3].repeat(4, 1, 1), alpha=-2
    ),
    "index_copy": lambda x, v, i, j: x.index_copy(2, i, v[..., :3].repeat(4, 1, 1)),
    "index_fill": lambda x, v, i, j: x.index_fill(1, j, 2.5),
    "index_fill with a tensor": lambda x, v, i, j: x.index_fill(1, i, v[0, 0, 0]),
    "put": lambda x, v, i, j: x.put(i * 7, v[0, 0, :3]),
    "put with accumulate": lambda x, v, i, j: x.put(j, v[0, 0, :3], accumulate=True),
}


def setitem(x, key, value):
    y = x * 1
    y[key] = value
    return y


@pytest.mark.parametrize("fn", WRITES.values(), ids=WRITES)
def test_writes(fn):
    check(fn, X, values(1, 5, 6), I3, J3, dtypes=FLOATS)
    check(fn, (X * 9).long(), (values(1, 5, 6) * 9).long(), I3, J3)


def test_writes_of_booleans():
    v = values(1, 5, 6) > 0
    check(lambda x, v, i: x.index_put((i,), v[0]), X > 0, v, I3)
    check(lambda x, v, i: x.index_put((i,), v[0], accumulate=True), X > 0, v, I3)
    check(lambda x, v, i: x.index_copy(0, i, v.expand(3, 5, 6)), X > 0, v, I3)
    check(lambda x, i: x.index_fill(0, i, True), X > 0, I3)


def test_writes_into_scalars_and_empty_tensors():
    zero = torch.tensor([0])
    check(lambda x, i: x.index_add(0, i, x * 3), SCALAR, zero[0])
    check(lambda x, i: x.index_copy(0, i, -x), SCALAR, zero[0])
    check(lambda x, i: x.index_fill(0, i, 2), SCALAR, zero)
    check(lambda x, i: x.put(i, -x), SCALAR, zero[0])
    check(lambda x, i: (x.index_put((i[:0],), x[i[:0]]), x.index_add(0, i[:0], x)), EMPTY, zero)


MASKED = {
    "one value": lambda x, m, v: setitem(x, m, 2.5),
    "a row": lambda x, m, v: setitem(x, m, v),
    "a column": lambda x, m, v: setitem(x, m, v[:, :1]),
    "rows in order": lambda x, m, v: setitem(x, m, x[m] * 2),
    "in the middle": lambda x, m, v: setitem(x, (slice(None), m[0]), 3.0),
    "rows in the middle": lambda x, m, v: setitem(x, (slice(None), m[1]), x[:, m[1]] - 1),
    "all of it": lambda x, m, v: setitem(x, x > 0.5, 0.0),
    "first dimension": lambda x, m, v: setitem(x, m[:, 0], v),
    "accumulate": lambda x, m, v: x.index_put((m,), v, accumulate=True),
    "uint8": lambda x, m, v: setitem(x, m.to(torch.uint8), v),
    "nothing": lambda x, m, v: setitem(x, m & ~m, 1.5),
}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("fn", MASKED.values(), ids=MASKED)
def test_writes_under_a_mask(fn):
    check(fn, X, MASK, values(1, 6), dtypes=FLOATS)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_masks_of_bytes_are_deprecated(device):
    def calls(x, mask):
        yield lambda: x[mask]
        yield lambda: x[mask, :, mask[:3]]
        yield lambda: x.index_put_((mask,), x[:2].clone(), accumulate=True)
        yield lambda: setitem(x, mask, x[:2] * 2)
        yield lambda: x.index_put_((mask * 0,), x[:0].clone(), accumulate=True)
        yield lambda: x[mask.bool()]

    x = torch.zeros(4, 2, 3, device=device)
    mask = torch.tensor([1, 0, 1, 0], dtype=torch.uint8, device=device)
    counts = []
    for call in calls(x, mask):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            call()
        counts.append(sum("torch.uint8 is now deprecated" in str(w.message) for w in seen))
    assert counts == [1, 2, 1, 1, 1, 0]


def test_one_value_under_a_mask_is_converted():
    def fill(x):
        y = x.clone()
        y[y > 0] = torch.tensor(7, device=x.device)
        return y

    check(fill, X)


def test_masked_scatter():
    check(lambda x, m, s: x.masked_scatter(m, s), X, X > 0, values(130))
    check(lambda x, m, s: x.masked_scatter(m, s), X, X[0] > 0, values(10, 12))
    check(lambda x, m, s: x.masked_scatter(m, s), X > 0, X[:, :1] > 0, values(120) > 0)
    check(lambda x, m: x.masked_scatter(m, x), EMPTY, EMPTY > 0)


@pytest.mark.parametrize("size", [0, 3, 40])
def test_nonzero_static(size):
    check(lambda m: torch.nonzero_static(m, size=size, fill_value=-7), MASK)
    check(lambda m: torch.nonzero_static(m, size=size), MASK[0, 0])


REDUCTIONS = ["prod", "mean", "amax", "amin"]


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_index_reduce(reduce, include_self):
    def fn(x, i, s):
        return x.index_reduce(1, i, s, reduce, include_self=include_self)

    index = torch.tensor([1, 3, 1, 0])
    check(fn, X, index, values(4, 4, 6), dtypes=FLOATS)
    check(fn, (X * 9).long(), index, (values(4, 4, 6) * 9).long())


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", *REDUCTIONS])
def test_scatter_reduce(reduce, include_self):
    def fn(x, i, s):
        return x.scatter_reduce(1, i, s, reduce, include_self=include_self)

    check(fn, X, integers(5, 3, 7, 2), values(3, 7, 2), dtypes=FLOATS)
    # PyTorch has no gradient where src is larger than index.
    check(fn, X, integers(5, 3, 7, 2), values(4, 8, 6), grad=False)
    check(fn, (X * 9).long(), integers(5, 4, 3, 6), (values(4, 8, 6) * 9).long())


ALONG = {
    "gather": lambda x, i, s: x.gather(1, i % 5),
    "gather in the last": lambda x, i, s: x.gather(-1, i),
    "gather, sparse": lambda x, i, s: x.gather(0, i % 4),
    "scatter": lambda x, i, s: x.scatter(1, i[:, :1] % 5, s),
    "scatter of a value": lambda x, i, s: x.scatter(2, i, 2.5),
    "scatter add": lambda x, i, s: x.scatter(1, i % 5, s, reduce="add"),
    "scatter multiply": lambda x, i, s: x.scatter(1, i % 5, s, reduce="multiply"),
    "scatter add of a value": lambda x, i, s: x.scatter(0, i % 4, 2, reduce="add"),
    "scatter multiply by a value": lambda x, i, s: x.scatter(0, i % 4, 3, reduce="multiply"),
    "scatter_add": lambda x, i, s: x.scatter_add(2, i, s),
    "nothing": lambda x, i, s: x.scatter_add(2, i[:0], s),
}
NO_GRADIENT = ("scatter add", "scatter multiply", "nothing")
WITH_GRADIENT = ALONG | {"scatter": lambda x, i, s: x.scatter(1, i[:, :1] % 5, s[:, :1])}


@pytest.mark.parametrize("name", ALONG)
def test_along_a_dimension(name):
    grad = not name.startswith(NO_GRADIENT)
    # PyTorch has no gradient where src is larger than index.
    check(ALONG[name], X, integers(6, 3, 4, 2), values(4, 6, 6), dtypes=FLOATS, grad=False)
    if grad:
        check(WITH_GRADIENT[name], X, integers(6, 3, 4, 2), values(3, 4, 2), dtypes=FLOATS)
    check(ALONG[name], (X * 9).long(), integers(6, 4, 5, 6), (values(4, 6, 6) * 9).long())


def test_scatter_of_booleans():
    check(
        lambda x, i, s: x.scatter(1, i, s), X > 0, distinct(5, 3).expand(4, 3).unsqueeze(2), X < 0
    )
    check(lambda x, i: x.scatter(1, i, True), X > 0, integers(5, 3, 4, 2))


# --- tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", [None, 2, -1])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_embedding(padding, by_frequency):
    def fn(table, index):
        return F.embedding(index, table, padding_idx=padding, scale_grad_by_freq=by_frequency)

    check(fn, values(10, 3), integers(10, 4, 7), dtypes=FLOATS)
    check(fn, values(10, 3), integers(10, 5, dtype=torch.int32))
    check(fn, values(10, 3), NONE)


def test_embedding_with_max_norm():
    def fn(table, index):
        table = table.clone()
        return F.embedding(index, table, max_norm=1.0, norm_type=1.5), table

    check(fn, values(10, 3), integers(10, 4, 7), grad=False)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_embedding_bag(mode, padding):
    def fn(table, index, offsets, last):
        return F.embedding_bag(
            index, table, offsets, mode=mode, padding_idx=padding, include_last_offset=last
        )

    offsets = torch.tensor([0, 3, 3, 7, 12])
    check(fn, values(10, 3), integers(10, 12), offsets, False, dtypes=(None, torch.float64))
    check(fn, values(10, 3), integers(10, 12), offsets, True)
    check(lambda t, i: F.embedding_bag(i, t, mode=mode), values(10, 3), integers(10, 4, 3))


def test_embedding_bag_with_weights():
    def fn(table, weights, index, offsets):
        return F.embedding_bag(
            index, table, offsets, mode="sum", per_sample_weights=weights, padding_idx=1
        )

    check(fn, values(10, 3), values(12), integers(10, 12), torch.tensor([0, 3, 3, 7]))


@pytest.mark.parametrize("n", [0, 4])
@pytest.mark.parametrize("dtypes", itertools.product((torch.int32, torch.int64), repeat=2))
def test_bags_of_integers_of_two_dtypes(dtypes, n):
    def bags(table, weights):
        index = torch.arange(n, device=table.device).to(dtypes[0])
        ends = torch.tensor([0, n // 2, n], device=table.device).to(dtypes[1])
        return F.embedding_bag(index, table, ends, mode="sum", per_sample_weights=weights)

    check(bags, values(5, 2), values(n))


def test_one_hot():
    check(lambda i: F.one_hot(i, 7), integers(7, 3, 4))
    check(lambda i: F.one_hot(i, 7), NONE)


SPARSE = {
    "embedding": lambda w, i: F.embedding(i, w, sparse=True),
    "with padding": lambda w, i: F.embedding(i, w, padding_idx=3, sparse=True),
    "sum of bags": lambda w, i: F.embedding_bag(i, w, mode="sum", sparse=True),
    "mean of bags": lambda w, i: F.embedding_bag(i, w, mode="mean", sparse=True),
    "bags with padding": lambda w, i: F.embedding_bag(i, w, padding_idx=3, sparse=True),
    "bags of one list": lambda w, i: F.embedding_bag(i.flatten(), w, i[0, :2] * 0, sparse=True),
    "weighted bags": lambda w, i: F.embedding_bag(
        i, w, mode="sum", per_sample_weights=w[i][..., 0].detach(), sparse=True
    ),
}


@pytest.mark.parametrize("name", SPARSE)
def test_gradients_of_sparse_embeddings_are_dense(name):
    index = torch.tensor([[3, 1, 3], [0, 4, 1]])
    table, gradients = values(6, 4), []
    for device in ("cpu", "xla"):
        weight = table.clone().to(device).requires_grad_()
        result = SPARSE[name](weight, index.to(device))
        (result * torch.arange(4.0).to(device)).sum().backward()
        gradients.append(weight.grad)
    assert gradients[0].is_sparse and not gradients[1].is_sparse
    torch.testing.assert_close(gradients[1].cpu(), gradients[0].to_dense())


def test_unsafe_masked_indices_past_the_ends():
    """They mean the elements at the ends, whatever the mask."""
    x, values = torch.randn(5, 4), torch.randn(6, 6)
    rows, columns = torch.tensor([-9, -6, -1, 0, 4, 8])[:, None], torch.tensor([-5, 0, 3, 4, 7, 2])
    mask = torch.arange(36).view(6, 6) % 5 != 0
    aten = torch.ops.aten

    def read(x, mask, rows, columns):
        return aten._unsafe_masked_index(x, mask, [rows, columns], 2.5)

    def add(x, mask, rows, columns, values):
        return aten._unsafe_masked_index_put_accumulate(x, mask, [rows, columns], values)

    check(read, x, mask, rows, columns)
    check(add, x, mask, rows, columns, values)


@pytest.mark.parametrize("place", ["cpu", "xla"])
def test_masks_of_more_dimensions_than_the_tensor_are_refused(place):
    """`place` is that of the tensor: one without dimensions may be a number of the CPU."""
    mask, five = torch.tensor([True, False, True, True, False]), torch.ones(5)
    for x in (torch.tensor(2.0), torch.ones(5)):
        if x.dim() and place == "cpu":
            continue
        masks = [mask, mask.expand(5, 5)] if x.dim() == 0 else [mask.expand(5, 5)]
        for m in masks:
            with pytest.raises(IndexError):
                torch.index_put(x, (m,), five)
            with pytest.raises(IndexError):
                torch.index_put(x.to(place), (m.to("xla"),), five.to("xla"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("number", [3 + 0j, 1 + 2j])
def test_complex_numbers_fill_real_tensors_where_they_are_real(dtype, number):
    def put(x, mask, number):
        x[mask] = number
        return x

    def fill(x, mask, number):
        return x.index_fill(0, mask.nonzero()[:, 0], number)

    x = torch.tensor([1, 2, -3, 4], dtype=dtype)
    for write in (put, fill):
        for n in (torch.tensor(number), torch.tensor([number])[0]):
            given = (x.clone(), x > 0, n)
            try:
                want = write(*given)
            except RuntimeError as error:
                with pytest.raises(RuntimeError) as found:
                    write(*(t.to("xla") for t in (x.clone(), x > 0, n)))
                assert str(found.value).splitlines()[0] == str(error)
                continue
            got = write(*(t.to("xla") for t in (x.clone(), x > 0, n)))
            assert torch.equal(got.cpu(), want) and want.tolist() == [3, 3, -3, 3]
