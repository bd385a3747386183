"""Views, joins, padding: every rule of the shape family against PyTorch's CPU result."""

import pytest
import torch
import torch.nn.functional as F

from .harness import check

FLOATS = (torch.float32, torch.bfloat16, torch.float64)


def arange(*shape, dtype=torch.float32):
    n = 1
    for size in shape:
        n *= size
    return (torch.arange(n) + 1).reshape(shape).to(dtype)


def signs(*shape):
    return (torch.arange(arange(*shape).numel()) % 3 == 0).reshape(shape)


X = arange(4, 5, 6)
STRIDED = arange(5, 6, 4).permute(2, 0, 1)  # the shape of X, other strides
EMPTY = torch.empty(0, 3)
SCALAR = torch.tensor(3.0)
COMPLEX = torch.complex(arange(3, 4), -arange(3, 4))

VIEWS = {
    "view": lambda x: x.view(20, 6),
    "view of -1": lambda x: x.view(2, -1),
    "unsafe_view": lambda x: torch.ops.aten._unsafe_view(x, [120]),
    "reshape_alias": lambda x: x.reshape(4, 30),
    "select": lambda x: x.select(1, 2),
    "select from the end": lambda x: x[:, -1],
    "slice": lambda x: x[1:3],
    "slice with a step": lambda x: x[:, 1::2, ::3],
    "slice past the end": lambda x: x[2:100, -3:],
    "slice of nothing": lambda x: x[3:1],
    "narrow": lambda x: x.narrow(2, 1, 4),
    "permute": lambda x: x.permute(2, 0, -2),
    "transpose": lambda x: x.transpose(-1, 0),
    "movedim": lambda x: x.movedim(0, 2),
    "expand": lambda x: x[:, :1].expand(-1, 7, -1),
    "expand to more dimensions": lambda x: x.expand(2, 4, 5, 6),
    "squeeze": lambda x: x[:, :1, :1].squeeze(),
    "squeeze one": lambda x: x[:1].squeeze(0),
    "squeeze one that is not 1": lambda x: x.squeeze(0),
    "squeeze several": lambda x: x[:, :1, :1].squeeze((1, 2)),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "diagonal": lambda x: x.diagonal(),
    "diagonal above": lambda x: x.diagonal(2, 1, 2),
    "diagonal below": lambda x: x.diagonal(-1, -1, 0),
    "diagonal outside": lambda x: x.diagonal(9),
    "unfold": lambda x: x.unfold(2, 3, 2),
    "unfold without overlap": lambda x: x.unfold(1, 2, 2),
    "unfold with gaps": lambda x: x.unfold(1, 1, 3),
    "split": lambda x: x.split(2, 1),
    "split by sizes": lambda x: x.split([1, 3, 1], 1),
    "unsafe_split": lambda x: torch.unsafe_split(x, 2, 1),
    "unsafe_split by sizes": lambda x: torch.unsafe_split_with_sizes(x, [1, 4], 1),
    "unbind": lambda x: x.unbind(1),
    "chunk": lambda x: x.chunk(4, 2),
    "detach": lambda x: x.detach() + x,
    "alias": lambda x: torch.ops.aten.alias(x),
    "as_strided": lambda x: x.contiguous().as_strided((3, 4), (7, 1), 2),
    "as_strided transposed": lambda x: x.contiguous().as_strided((4, 3), (1, 7), 2),
    "as_strided diagonal": lambda x: x.contiguous().as_strided((5,), (7,), 1),
    "as_strided windows": lambda x: x.contiguous().as_strided((10, 4), (3, 1), 1),
    "as_strided expanded": lambda x: x.contiguous().as_strided((3, 2, 4), (0, 5, 1)),
    "view_copy": lambda x: torch.view_copy(x, (30, 4)),
    "unflatten": lambda x: x.unflatten(2, (2, 3)),
    "tensor_split": lambda x: x.tensor_split(3, 1),
}


@pytest.mark.parametrize("fn", VIEWS.values(), ids=VIEWS)
def test_views(fn):
    check(fn, X, dtypes=FLOATS)
    check(fn, X.long())


@pytest.mark.parametrize(
    "name",
    [n for n in VIEWS if not n.startswith(("view", "reshape", "unsafe_view", "unflatten"))],
)
def test_views_of_other_strides(name):
    check(VIEWS[name], STRIDED)
    check(VIEWS[name], STRIDED > 30)


def test_views_of_scalars_and_empty_tensors():
    check(lambda x: (x.view(1, 1), x.expand(3), x.unfold(0, 1, 1), x.squeeze(), x.t()), SCALAR)
    check(lambda x: (x.unfold(0, 0, 1), x.unfold(-1, 0, 3)), SCALAR)
    check(lambda x: (x.transpose(0, -1), x.permute(()), x.unsqueeze(0)), SCALAR)
    check(
        lambda x: (x.view(3, 0), x[:, 1], x[:, 1:], x.diagonal(), x.t(), x.expand(2, 0, 3)), EMPTY
    )
    check(lambda x: (x.split(2, 1), x.unbind(1), x.unfold(1, 2, 1)), EMPTY)


DTYPE_VIEWS = [
    (X, torch.int32),
    (X, torch.int16),
    (X, torch.uint8),
    (X, torch.float64),
    (X, torch.complex64),
    (X.double(), torch.float32),
    (X.bfloat16(), torch.int16),
    (X.bfloat16(), torch.int32),
    (X.long(), torch.int8),
    (signs(3, 8), torch.uint8),
    (signs(3, 8), torch.int32),
    (signs(3, 8).to(torch.uint8), torch.bool),
    (COMPLEX, torch.float32),
    (COMPLEX, torch.float64),
    (COMPLEX, torch.int32),
    (COMPLEX.to(torch.complex128), torch.complex64),
    (SCALAR, torch.int32),
]


@pytest.mark.parametrize(
    ("x", "dtype"), DTYPE_VIEWS, ids=[f"{x.dtype}-{d}" for x, d in DTYPE_VIEWS]
)
def test_view_as_dtype(x, dtype):
    check(lambda x: x.view(dtype), x, grad=False)


def test_complex_views():
    check(torch.view_as_real, COMPLEX)
    check(lambda x: torch.view_as_complex(x.unflatten(2, (3, 2))), X)
    check(lambda x: (x.real, x.imag, x.conj() * 2, x.conj().imag * 3), COMPLEX)


SCATTERS = {
    "slice_scatter": (lambda x, y: x.slice_scatter(y, 1, 1, 4), (4, 3, 6)),
    "slice_scatter with a step": (lambda x, y: x.slice_scatter(y, 2, 1, 6, 2), (4, 5, 3)),
    "slice_scatter of all": (lambda x, y: x.slice_scatter(y, 0), (4, 5, 6)),
    "slice_scatter of nothing": (lambda x, y: x.slice_scatter(y, 0, 2, 2), (0, 5, 6)),
    "select_scatter": (lambda x, y: x.select_scatter(y, 1, -2), (4, 6)),
    "diagonal_scatter": (lambda x, y: x.diagonal_scatter(y, 1, 0, 2), (5, 4)),
    "diagonal_scatter below": (lambda x, y: x.diagonal_scatter(y, -2, 1, 0), (6, 3)),
    "as_strided_scatter": (lambda x, y: x.as_strided_scatter(y, (3, 4), (7, 1), 2), (3, 4)),
    "as_strided_scatter transposed": (lambda x, y: x.as_strided_scatter(y, (3, 4), (1, 6)), (3, 4)),
    "as_strided_scatter of one": (lambda x, y: x.as_strided_scatter(y, (), (), 7), ()),
}


@pytest.mark.parametrize("shape", [(1, 3), (4, 1), (1, 1)])
def test_as_strided_scatter_into_repeated_elements(shape):
    x = torch.arange(float(shape[0] * shape[1])).view(shape)
    for size, stride, offset in ((2,), (1,), 0), ((2, 2), (1, 2), 3), ((4, 3), (1, 4), 0):
        check(
            lambda x, y, w=(size, stride, offset): x.expand(4, 3).as_strided_scatter(y, *w),
            x,
            -torch.arange(1.0, 1 + torch.Size(size).numel()).view(size),
            grad=False,
        )


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_as_strided_scatter_into_a_window_that_repeats_elements(device):
    x = torch.zeros(8, device=device)
    for size, stride in ((3, 4), (0, 1)), ((4, 2), (1, 0)):
        with pytest.raises(RuntimeError, match="refers to a single memory location"):
            x.as_strided_scatter(torch.ones(size, device=device), size, stride)
    for size, stride in ((1, 4), (0, 1)), ((0, 4), (0, 1)), ((2, 2), (1, 1)):
        y = x.as_strided_scatter(torch.ones(size, device=device), size, stride)
        assert y.sum().item() == (torch.Size(size).numel() and size[0] + size[1] - 1)


@pytest.mark.parametrize(("fn", "shape"), SCATTERS.values(), ids=SCATTERS)
def test_writes_through_views(fn, shape):
    check(fn, X, -arange(*shape), dtypes=FLOATS)
    check(fn, X > 50, arange(*shape) > 3)


def test_strided_writes_into_other_layouts():
    def write(x):
        y = x * 2
        y.as_strided((3, 4), (5, 1), 3).mul_(3)
        return y

    check(write, X)
    check(write, STRIDED)
    check(lambda x: x.clone().as_strided((2, 6), (9, 1), 3), STRIDED)


CATS = {
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "cat of one": lambda x: torch.cat([x]),
    "cat with promotion": lambda x: torch.cat([x, (x > 3).to(torch.uint8), x.double()], -1),
    "cat with an empty one": lambda x: torch.cat([x.new_empty(0), x, x[:0]], 0),
    "stack": lambda x: torch.stack([x, x + 1, -x], -1),
    "stack with promotion": lambda x: torch.stack([x, x.double()]),
    "hstack": lambda x: torch.hstack([x, x]),
    "dstack": lambda x: torch.dstack([x[0], x[1]]),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat to more dimensions": lambda x: x[0].repeat(2, 3, 1, 2),
    "repeat zero times": lambda x: x[0].repeat(0, 1),
    "tile": lambda x: x.tile(2),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "flip": lambda x: x.flip(0, -1),
    "flip of nothing": lambda x: x.flip(()),
    "roll": lambda x: x.roll((2, -8), (0, 2)),
    "roll of all": lambda x: x.roll(7),
    "roll by a whole turn": lambda x: x.roll(10, 1),
    "rot90": lambda x: x.rot90(1, (1, 2)),
    "rot90 twice": lambda x: x.rot90(2, (0, 2)),
    "rot90 backwards": lambda x: x.rot90(-1, (1, 2)),
    "block_diag": lambda x: torch.block_diag(x[0], x[1, 0], x[2, 0, 0], x[3].double()),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x.transpose(0, 1)[:, :, :4], 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x.transpose(0, 2), 5),
    "trace": lambda x: x[0].trace(),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[1, :, 0], indexing="ij"),
}


@pytest.mark.parametrize("fn", CATS.values(), ids=CATS)
def test_joins(fn):
    check(fn, X, dtypes=FLOATS)
    check(fn, STRIDED.contiguous().long())


def test_joins_of_scalars_and_empty_tensors():
    check(
        lambda x: (torch.stack([x, x]), x.repeat(3), x.repeat(2, 2), x.flip(()), x.roll(1)), SCALAR
    )
    check(lambda x: (torch.cat([x, x]), torch.stack([x, x], 1), x.flip(0), x.roll(1, 0)), EMPTY)
    check(lambda x: (x.repeat(2, 2), torch.block_diag(x, x), x.rot90()), EMPTY)
    check(
        lambda m: (torch.cat([m, ~m]), m.flip(0), m.repeat(2, 1), torch.stack([m, m])), signs(3, 4)
    )


def test_repeat_interleave_of_known_size():
    repeats = torch.tensor([2, 0, 3, 1, 0])
    check(lambda r: torch.repeat_interleave(r, output_size=6), repeats)
    check(lambda x, r: x.repeat_interleave(r, 1, output_size=6), X, repeats)


PADS = {
    "constant": (lambda x: F.pad(x, (1, 2), value=3.5), (4, 5, 6)),
    "constant in all dimensions": (lambda x: F.pad(x, (1, 0, 2, 2, 0, 3)), (4, 5, 6)),
    "constant that crops": (lambda x: F.pad(x, (-1, 2, 1, -2), value=-1.0), (4, 5, 6)),
    "reflect 1d": (lambda x: F.pad(x, (3, 2), "reflect"), (2, 3, 6)),
    "reflect 1d, one side": (lambda x: F.pad(x, (0, 5), "reflect"), (3, 6)),
    "reflect 2d": (lambda x: F.pad(x, (1, 2, 3, 0), "reflect"), (2, 3, 5, 6)),
    "reflect 3d": (lambda x: F.pad(x, (1, 2, 0, 1, 2, 2), "reflect"), (1, 2, 3, 4, 5)),
    "replicate 1d": (lambda x: F.pad(x, (3, 2), "replicate"), (2, 3, 6)),
    "replicate 1d that crops": (lambda x: F.pad(x, (-1, 2), "replicate"), (2, 3, 6)),
    "replicate 2d": (lambda x: F.pad(x, (1, 0, 7, 2), "replicate"), (2, 3, 5, 6)),
    "replicate 3d": (lambda x: F.pad(x, (1, 2, 0, 1, 2, 2), "replicate"), (1, 2, 3, 4, 5)),
    "circular": (lambda x: F.pad(x, (3, 2), "circular"), (2, 3, 6)),
}


@pytest.mark.parametrize(("fn", "shape"), PADS.values(), ids=PADS)
def test_padding(fn, shape):
    check(fn, arange(*shape) / 7, dtypes=FLOATS)


def test_constant_padding_of_other_dtypes():
    check(lambda x: F.pad(x, (1, 2), value=3), X.long())
    check(lambda x: F.pad(x, (1, 2), value=True), signs(3, 4))
    check(lambda x: F.pad(x, (1, 2, 0, 1), value=2), EMPTY)


PATCHES = {
    "im2col": lambda x: F.unfold(x, 3, padding=1),
    "im2col with strides": lambda x: F.unfold(x, (2, 3), dilation=(3, 1), stride=(2, 3)),
    "im2col unbatched": lambda x: F.unfold(x[0], (4, 2), padding=(0, 2), dilation=2, stride=2),
    "col2im": lambda x: F.fold(x.reshape(2, 12, 21), (4, 9), (2, 3)),
    "col2im with strides": lambda x: F.fold(
        x.reshape(2, 18, 14), (4, 11), (1, 3), stride=(3, 1), dilation=(1, 2)
    ),
    "col2im with padding": lambda x: F.fold(x.reshape(2, 18, 14), (2, 7), 3, padding=1),
}


@pytest.mark.parametrize("fn", PATCHES.values(), ids=PATCHES)
def test_patches(fn):
    check(fn, arange(2, 3, 12, 7) / 50, dtypes=FLOATS)


@pytest.mark.parametrize(("size", "step"), [(100, 1), (3, 100), (70, 3), (3, 2), (130, 40)])
def test_long_windows(size, step):
    check(lambda x: x.unfold(1, size, step), arange(2, 300) / 99)


@pytest.mark.parametrize("strides", [(14, 2), (1, 8)], ids=["rows", "columns"])
def test_windows_on_memory_with_gaps(strides):
    def window(x):
        gaps = torch.empty_strided((3, 5), strides, device=x.device).copy_(x)
        return gaps.as_strided((2, 3), strides, strides[0]), gaps.as_strided((3,), strides[:1])

    check(window, torch.rand(3, 5))
    with pytest.raises(RuntimeError, match="expected a base that fills its memory"):
        window(torch.rand(3, 5, device="xla"))[0].zero_()


def test_a_window_beyond_the_memory_is_refused_at_the_call():
    x = torch.zeros(4, 4, device="xla")
    with pytest.raises(RuntimeError, match="requiring a storage size of 1604 are out of bounds"):
        torch.as_strided_scatter(x, torch.ones(1, 1, device="xla"), (1, 1), (1, 1), 400)
    with pytest.raises(RuntimeError, match="requiring a storage size of 1604 are out of bounds"):
        x.as_strided((1, 1), (1, 1), 400)
