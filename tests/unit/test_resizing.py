"""resize_ and out= tensors of other shapes: memory grows, views of it stay, as on the CPU."""

import warnings

import pytest
import torch

import torch_xla

ROWS = torch.arange(3.0)


def grow_under_views(x):
    row, other = x[1], x.detach()
    x.resize_(3, 7)
    x[0, 1] = 50
    row.add_(100)
    return x[0], x.flatten()[:12], row, other


def grow_transposed(x):
    t = x.t()
    columns = t[1]
    t.resize_(6, 2)
    t.mul_(2)
    return x, t, columns


def grow_and_write_the_old(x):
    other = x.detach()
    x.resize_(5, 6)
    other.mul_(10)
    return x.flatten()[:12], other


def grow_a_view(x):
    v = x[1]
    w = v.resize_(2, 5)
    v[0, 1] = 9
    return x, w[0], w[1, :3]


def shrink_and_grow(x):
    v = x.detach()
    x.resize_(0)
    x.resize_(2, 2)
    x[0, 0] = 7
    return x, v


def grow_twice(x):
    old = x[:, 1]
    x.resize_(14).resize_(20)
    x[5] = 3
    old[2] = -1
    return x[:12], old


def channels_last(x):
    x.resize_((1, 2, 2, 3), memory_format=torch.channels_last)
    return (x,)


def channels_last_of_the_same_size(x):
    y = x.view(1, 2, 2, 3).clone()
    y.resize_((1, 2, 2, 3), memory_format=torch.channels_last)
    return (y,)


def same_size_keeps_strides(x):
    t = x.t()
    t.resize_(4, 3)
    u = x.t().clone(memory_format=torch.preserve_format)
    u.resize_as_(x.t())
    return t, u


def out_into_a_view(x):
    out = x.view(2, 6)[0]
    torch.add(ROWS.to(x.device), 1, out=out)
    return out, x


def out_into_a_longer_view(x):
    out = x[2]
    torch.add(torch.arange(6.0, device=x.device), 1, out=out)
    return out, x


def out_into_a_column(x):
    torch.mul(ROWS[:2].to(x.device), 3, out=x[:, 3])
    return (x,)


def out_into_nothing_of_a_view(x):
    out = x[:0]
    torch.cat([ROWS.to(x.device), ROWS.to(x.device)], out=out)
    return out, x


def out_into_what_others_see(x):
    other = x.detach()
    torch.arange(5.0, out=x)
    return x, other


def out_of_several(x):
    values, indices = x[0], torch.empty(0, dtype=torch.int64, device=x.device)
    torch.sort(ROWS.to(x.device), descending=True, out=(values, indices))
    return values, indices, x


def out_of_a_factory(x):
    out = x[1:]
    torch.linspace(0, 1, 3, out=out)
    return out, x


def out_of_a_factory_with_as_many_elements(x):
    out = x[1:, :2]
    torch.arange(4, out=out)
    return (torch.linspace(0, 1, 4, out=x[0].view(2, 2)), out, x)


def out_of_the_identity(x):
    out = x[1]
    return torch.eye(2, out=out), x


PROGRAMS = [
    grow_under_views,
    grow_transposed,
    grow_and_write_the_old,
    grow_a_view,
    shrink_and_grow,
    grow_twice,
    channels_last,
    channels_last_of_the_same_size,
    same_size_keeps_strides,
    out_into_a_view,
    out_into_a_longer_view,
    out_into_a_column,
    out_into_nothing_of_a_view,
    out_into_what_others_see,
    out_of_several,
    out_of_a_factory,
    out_of_a_factory_with_as_many_elements,
    out_of_the_identity,
]


@pytest.mark.parametrize("synced", [False, True], ids=["pending", "synced"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_resizing(program, synced):
    def run(x):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            results = program(x)
        return results, ["resized" in str(w.message) for w in seen]

    x = torch.arange(12.0).reshape(3, 4).to("xla")
    if synced:
        torch_xla.sync(wait=True)
    (got, got_warnings), (want, want_warnings) = run(x), run(torch.arange(12.0).reshape(3, 4))
    assert got_warnings == want_warnings
    for g, w in zip(got, want, strict=True):
        assert g.stride() == w.stride()
        assert g.storage_offset() == w.storage_offset()
        torch.testing.assert_close(g.cpu(), w)


def test_of_another_dtype():
    for device in ("cpu", "xla"):
        x = torch.arange(4, dtype=torch.int64).to(device)
        out = x[2:]
        torch.arange(3, out=out)
        assert x.tolist() == [0, 1, 0, 1]
        assert out.tolist() == [0, 1, 2]
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.linspace(0, 1, 3, out=out[:0]).tolist()
            torch.add(torch.ones(3, device=device), 0.5, out=out[:0])


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_refusals(device):
    with pytest.raises(RuntimeError, match="Unsupported memory format"):
        torch.zeros(3, device=device).resize_(4, memory_format=torch.preserve_format)
    with pytest.raises(RuntimeError, match="4"):
        torch.zeros(3, device=device).resize_(4, memory_format=torch.channels_last)
