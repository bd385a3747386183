"""Writes of what was read from the same memory, and into memory that is seen several times."""

import pytest
import torch
import torch.nn.functional as F

import torch_xla  # noqa: F401

ROWS, COLUMNS = 4, 6
LINE = torch.arange(float(ROWS * COLUMNS))
WIDE = torch.randn(10, ROWS * COLUMNS, generator=torch.Generator().manual_seed(0))


# What makes the tensor that is shifted: from a function that sends a tensor to the device.
PRODUCERS = {
    "view": lambda send: send(LINE).view(ROWS, COLUMNS),
    "given": lambda send: send(LINE.view(ROWS, COLUMNS)),
    "add": lambda send: (send(LINE) + 1).view(ROWS, COLUMNS),
    "add_after": lambda send: send(LINE).view(ROWS, COLUMNS) + 1,
    "cumsum": lambda send: torch.ones_like(send(LINE)).cumsum(0).view(ROWS, COLUMNS),
    "embedding": lambda send: F.embedding(send(torch.arange(ROWS)), send(WIDE[:, :COLUMNS])),
    "embedding_view": lambda send: F.embedding(
        send(torch.arange(2)), send(WIDE[:, : ROWS * COLUMNS // 2])
    ).view(ROWS, COLUMNS),
    "index_select": lambda send: send(WIDE).index_select(0, send(torch.tensor([3]))).view(ROWS, -1),
    "index": lambda send: send(WIDE)[send(torch.tensor([3, 1]))].view(-1, COLUMNS),
    "scatter": lambda send: torch.zeros_like(send(WIDE[:ROWS, :COLUMNS])).scatter(
        0, send(torch.zeros(1, COLUMNS, dtype=torch.int64)), send(WIDE[:1, :COLUMNS])
    ),
    "scatter_add": lambda send: (
        send(LINE)
        .view(ROWS, COLUMNS)
        .scatter_add(0, send(torch.zeros(ROWS, COLUMNS, dtype=torch.int64)), send(WIDE[:ROWS, :6]))
    ),
    "put": lambda send: (
        send(LINE)
        .put(send(torch.tensor([1, 2])), send(torch.tensor([5.0, 6.0])))
        .view(ROWS, COLUMNS)
    ),
    "conv1d": lambda send: F.conv1d(send(LINE).view(1, 1, -1), send(torch.ones(1, 1, 1))).view(
        ROWS, COLUMNS
    ),
    "bmm": lambda send: torch.bmm(
        send(LINE).view(1, ROWS, COLUMNS), send(torch.eye(COLUMNS))[None]
    )[0],
    "three": lambda send: send(LINE).view(2, 2, COLUMNS),
    "three_two": lambda send: send(LINE).view(2, 2, COLUMNS).view(ROWS, COLUMNS),
    "transposed": lambda send: send(LINE).view(COLUMNS, ROWS).t(),
    "cat": lambda send: torch.cat([send(LINE)[:12], send(LINE)[12:]]).view(ROWS, COLUMNS),
    "sort": lambda send: send(LINE).sort(descending=True)[0].view(ROWS, COLUMNS),
    "sum": lambda send: send(WIDE).sum(0).view(ROWS, COLUMNS),
    "clone": lambda send: send(LINE).view(ROWS, COLUMNS).clone(),
    "expand": lambda send: send(LINE)[:COLUMNS].expand(ROWS, COLUMNS).contiguous(),
    "int64": lambda send: send(LINE.long()).view(ROWS, COLUMNS),
    "bfloat16": lambda send: send(LINE).bfloat16().view(ROWS, COLUMNS),
    "slice": lambda send: send(WIDE)[1:5, 2 : 2 + COLUMNS],
    "select": lambda send: send(WIDE)[3].view(ROWS, COLUMNS),
    "complex": lambda send: torch.view_as_complex(send(WIDE[:2]).view(ROWS, COLUMNS, 2)),
}


def swap(v):
    first = v[0].clone()
    v[0] = v[1]
    v[1] = first


def step_by_step(v):
    for i in range(1, v.shape[0]):
        v[i] = v[i - 1] + v[i]


SHIFTS = {
    "down": lambda v: v[1:].copy_(v[:-1].clone()),
    "up": lambda v: v[:-1].copy_(v[1:].clone()),
    "down_doubled": lambda v: v[1:].copy_(v[:-1] * 2),
    "add": lambda v: v[1:].add_(v[:-1].clone()),
    "flip": lambda v: v[:2].copy_(v[:2].flip(0)),
    "right": lambda v: v[..., 1:].copy_(v[..., :-1].clone()),
    "left_doubled": lambda v: v[..., :-1].copy_(v[..., 1:] * 2),
    "row": lambda v: v[1].copy_(v[0] * 3),
    "row_turned": lambda v: v[0].copy_(v[0].roll(1, -1)),
    "rolled": lambda v: v[1:].copy_(v.roll(1, 0)[:-1] + v[1:]),
    "transposed": lambda v: v.transpose(0, -1)[1:].copy_(v.transpose(0, -1)[:-1].clone()),
    "flat": lambda v: v.reshape(-1)[1:].copy_(v.reshape(-1)[:-1].clone()),
    "rows_of_flat": lambda v: v[1:].copy_(v.reshape(-1)[: v[1:].numel()].view(v[1:].shape).clone()),
    "index_copy": lambda v: v.index_copy_(
        0, torch.ones(1, dtype=torch.int64, device=v.device), v[1:2].roll(1, -1)
    ),
    "index_add": lambda v: v.index_add_(
        0, torch.ones(1, dtype=torch.int64, device=v.device), v[1:2].roll(1, -1)
    ),
    "swap": swap,
    "step_by_step": step_by_step,
}


def both(producer, shift):
    """What is left after a shift, on both devices; each is a program of its own."""
    results = []
    for device in ("xla", "cpu"):
        v = PRODUCERS[producer](lambda t, device=device: t.clone().to(device))
        SHIFTS[shift](v)
        results.append(v.cpu())
    return results


QUICK = ("view", "add", "embedding", "clone", "sort", "complex")


@pytest.mark.parametrize(
    "producer",
    [p if p in QUICK else pytest.param(p, marks=pytest.mark.slow) for p in PRODUCERS],
)
def test_a_shift_reads_what_was_there_before(producer):
    wrong = []
    for shift in SHIFTS:
        got, want = both(producer, shift)
        if not torch.allclose(got, want, rtol=1e-5, atol=1e-5):
            wrong.append(shift)
    assert wrong == []


def test_a_shift_of_what_is_made_twice():
    v = torch.arange(12.0, device="xla").view(3, 4)
    v[1:] = torch.arange(12.0, device="xla").view(3, 4)[:-1]
    assert v.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7]]


# --- expanded memory -------------------------------------------------------------------------


def write(program):
    """Runs a program that returns tensors on both devices and compares them."""
    for got, want in zip(program("xla"), program("cpu"), strict=True):
        torch.testing.assert_close(got.cpu(), want, equal_nan=True)


def test_a_row_of_an_expanded_tensor():
    def program(device):
        h = torch.zeros(1, 1, 4, device=device).expand(1, 3, 4)
        h[:, 2] = 1
        b = torch.zeros(3, device=device)
        v = b.expand(2, 3)
        v[1, 0] = 5
        v[1:2].add_(torch.tensor([[1.0, 2.0, 3.0]], device=device))
        row = v[0]
        row.mul_(2)
        return h, b, v, row

    write(program)


def test_other_views_of_an_expanded_tensor():
    def program(device):
        b = torch.arange(3.0, device=device)
        e = b.expand(3, 3)
        diagonal = e.diagonal()
        diagonal.copy_(torch.tensor([7.0, float("nan"), -0.0], device=device))
        c = torch.zeros(2, 1, device=device)
        c.expand(2, 4).t()[3].copy_(torch.tensor([1.0, 2.0], device=device))
        d = torch.zeros(2, device=device)
        nested = d.expand(3, 2)[1:, :1].expand(4, 2, 1)
        nested[3, 1] = 9
        z = torch.zeros(2, dtype=torch.complex64, device=device)
        torch.view_as_real(z.expand(3, 2))[2, 1, 1] = 4
        i = torch.zeros(2, dtype=torch.int32, device=device)
        i.expand(2, 2)[1] = torch.tensor([3, -4], dtype=torch.int32, device=device)
        m = torch.zeros(2, dtype=torch.bool, device=device)
        m.expand(2, 2)[1, 0] = True
        return b, e, diagonal, c, d, nested, z, i, m

    write(program)


def test_fills_of_an_expanded_tensor():
    def program(device):
        b = torch.zeros(3, device=device)
        b.expand(2, 3).fill_(4)
        c = torch.zeros(3, device=device)
        mask = torch.tensor([[True, False, False], [False, True, False]], device=device)
        c.expand(2, 3).masked_fill_(mask, 6)
        return b, c

    write(program)


def test_parts_of_overlapping_windows():
    def program(device):
        x = torch.arange(6.0, device=device)
        windows = x.unfold(0, 3, 1)
        windows[1] = torch.tensor([10.0, 20.0, 30.0], device=device)
        y = torch.arange(6.0, device=device)
        strided = y.as_strided((3, 3), (1, 1))
        strided[2].mul_(-1)
        z = torch.arange(4.0, device=device)
        z.as_strided((2, 4), (0, 1))[1, 1:3] = -5
        return x, windows, y, strided, z

    write(program)


def test_gradients_through_a_row_of_an_expanded_tensor():
    def program(device):
        x = torch.arange(3.0, device=device).requires_grad_()
        y = x * 2
        y.expand(2, 3)[1, 0] = 5
        (y * y).sum().backward()
        return (x.grad,)

    write(program)


def message(device, call):
    with pytest.raises(RuntimeError) as caught:
        call(torch.arange(16.0).reshape(4, 4).to(device))
    return str(caught.value).split("\n")[0]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x[1:].add_(x[:-1]),
        lambda x: x.copy_(x.t()),
        lambda x: x.mul_(x[0]),
        lambda x: torch.mul(x[1:], 2, out=x[:-1]),
        lambda x: x[0].expand(3, 4).copy_(x[:3]),
        lambda x: x[0].expand(3, 4).__setitem__((slice(None), 0), x[:3, 0].clone()),
        lambda x: x[0].expand(3, 4).uniform_(),
        lambda x: x[0].expand(3, 4).normal_(),
        lambda x: x[0].expand(3, 4).random_(),
        lambda x: x[0].expand(3, 4).add_(1),
        lambda x: x[0].expand(3, 4).abs_(),
        lambda x: x[0].expand(3, 4).relu_(),
        lambda x: torch.nn.functional.elu(x[0].expand(3, 4), inplace=True),
        lambda x: x[0].expand(3, 4).cumsum_(0),
        lambda x: x[0].expand(3, 4).logical_not_(),
        lambda x: x[0].expand(3, 4).logical_and_(x[1]),
        lambda x: x[0].expand(3, 4).nan_to_num_(),
        lambda x: x[0].expand(3, 4).renorm_(2, 1, 0.5),
        lambda x: x[0].long().expand(3, 4).__ilshift__(1),
        lambda x: x[0].expand(4, 4).addmm_(x, x),
        lambda x: x[0].expand(3, 4).masked_scatter_(x[:3] > 1, x),
        lambda x: x[0].expand(3, 4).scatter_(0, torch.zeros_like(x, dtype=torch.int64)[:1], 1.0),
    ],
)
def test_overlap_that_pytorch_refuses(call):
    assert message("xla", call) == message("cpu", call)


def test_shifts_of_an_expanded_tensor():
    """They are named `__lshift__`, and write nothing."""
    for device in ("cpu", "xla"):
        x = torch.arange(4, device=device).expand(2, 4)
        assert (x << 1).tolist() == [[0, 2, 4, 6]] * 2 and (x >> x).tolist() == [[0] * 4] * 2


def test_writes_that_pytorch_lets_overlap():
    def program(device):
        x = torch.arange(16.0, device=device).reshape(4, 4)
        v = x[0].expand(4, 4)
        v.fill_(2.0)
        v[1:].zero_()
        v.masked_fill_(torch.ones(4, 4, dtype=torch.bool, device=device), 3.0)
        v.index_fill_(0, torch.tensor([1], device=device), 4.0)
        return (x,)

    write(program)


def test_the_same_memory_is_no_overlap():
    def program(device):
        x = torch.arange(16.0, device=device).reshape(4, 4)
        x.copy_(x)
        x.add_(x)
        x[1:].mul_(x[1:])
        torch.add(x, 1, out=x)
        x[2:].copy_(x[:2])
        return (x,)

    write(program)


def test_a_copy_to_itself_is_taken_where_elements_share_memory():
    for device in ("cpu", "xla"):
        shown = torch.arange(4.0, device=device).expand(3, 4)
        assert shown.copy_(shown) is shown and shown._version == 1
        assert shown.cpu().tolist() == [[0.0, 1.0, 2.0, 3.0]] * 3
        with pytest.raises(RuntimeError, match="single memory location"):
            shown.copy_(shown.clone())
