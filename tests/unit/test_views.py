"""Views and writes through views: random programs of views, writes and syncs, against the CPU."""

import random

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met


def some_view(choose, t):
    """A random view of `t`: its name and the function that takes it."""
    rank, views = t.dim(), [("detach", lambda x: x.detach())]
    at = choose.randint(0, rank)
    views.append(("unsqueeze", lambda x: x.unsqueeze(at)))
    if rank > 0:
        dim = choose.randrange(rank)
        size = t.shape[dim]
        index = choose.randrange(size)
        views.append(("select", lambda x: x.select(dim, index)))
        if size > 1:
            start = choose.randrange(size - 1)
            stop, step = choose.randint(start + 1, size), choose.randint(1, 2)
            cut = (slice(None),) * dim + (slice(start, stop, step),)
            views.append(("slice", lambda x: x[cut]))
        else:
            views.append(("squeeze", lambda x: x.squeeze(dim)))
        if size > 2:
            views.append(("unfold", lambda x: x.unfold(dim, 2, 2)))
        if t.is_contiguous():
            views.append(("view", lambda x: x.view(-1)))
    if rank > 1:
        order = list(range(rank))
        choose.shuffle(order)
        views.append(("permute", lambda x: x.permute(order)))
        views.append(("transpose", lambda x: x.transpose(0, -1)))
        views.append(("diagonal", lambda x: x.diagonal(0, 0, 1)))
    if rank > 0 and t.stride(-1) == 1 and t.shape[-1] == 2 and t.dtype == torch.float32:
        aligned = t.storage_offset() % 2 == 0 and all(s % 2 == 0 for s in t.stride()[:-1])
        if aligned:
            views.append(("complex real", lambda x: torch.view_as_complex(x).real))
            views.append(("bits", lambda x: x.view(torch.float64).view(torch.float32)))
    if t.is_contiguous() and t.storage_offset() == 0 and t.numel() >= 4:
        views.append(("as_strided", lambda x: x.as_strided((2, 2), (2, 1), x.storage_offset())))
    return choose.choice(views)


def some_write(choose, t):
    values = torch.tensor([choose.uniform(-2, 2) for _ in range(t.numel())]).reshape(t.shape)
    writes = [
        ("add_", lambda x: x.add_(values.to(x.device))),
        ("mul_", lambda x: x.mul_(1.5)),
        ("copy_", lambda x: x.copy_(values.to(x.device))),
        ("fill_", lambda x: x.fill_(0.25)),
        ("zero_", lambda x: x.zero_()),
        ("relu_", lambda x: x.relu_()),
        ("addcmul_", lambda x: x.addcmul_(values.to(x.device), values.to(x.device), value=0.5)),
        ("clamp_", lambda x: x.clamp_(-1, 1)),
    ]
    if t.dim() > 0 and t.shape[0] > 1:
        # Values that were read from the memory that is written.
        last = t.shape[0] - 1
        at = torch.tensor([choose.randrange(last + 1)])
        writes += [
            ("shift", lambda x: x[1:].copy_(x[:-1].clone())),
            ("shift back", lambda x: x[:-1].copy_(x[1:] * 2)),
            ("flip", lambda x: x.copy_(x.flip(0))),
            ("row", lambda x: x[last].copy_(x[0] + x[last])),
            ("index_put_", lambda x: x.index_put_((at.to(x.device),), x[:1] - 1)),
            ("index_copy_", lambda x: x.index_copy_(0, at.to(x.device), x[:1].roll(1, -1))),
            ("expand", lambda x: x[0].expand_as(x)[last].mul_(0.5)),
        ]
    return choose.choice(writes)


def run_program(seed):
    choose = random.Random(seed)
    shape = [choose.randint(1, 4) for _ in range(choose.randint(1, 3))]
    base = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    if choose.random() < 0.2 and base.dim() == 3:
        base = base.unsqueeze(0).to(memory_format=torch.channels_last)
    on_cpu, on_xla, program = [base.clone()], [base.to("xla")], []
    for _ in range(8):
        i = choose.randrange(len(on_cpu))
        if choose.random() < 0.55:
            name, take = some_view(choose, on_cpu[i])
            on_cpu.append(take(on_cpu[i]))
            on_xla.append(take(on_xla[i]))
            program.append(f"t{len(on_cpu) - 1} = {name}(t{i})")
            got, want = on_xla[-1], on_cpu[-1]
            assert got.shape == want.shape, program
            assert got.stride() == want.stride(), program
            assert got.storage_offset() == want.storage_offset(), program
        else:
            name, write = some_write(choose, on_cpu[i])
            write(on_cpu[i])
            write(on_xla[i])
            program.append(f"{name}(t{i})")
        if choose.random() < 0.1:
            torch_xla.sync()
            program.append("sync()")
    for i, (got, want) in enumerate(zip(on_xla, on_cpu, strict=True)):
        torch.testing.assert_close(got.cpu(), want, msg=lambda m, i=i: f"t{i} of {program}: {m}")


@pytest.mark.parametrize("block", range(2))
def test_random_programs(block):
    for seed in range(block * 50, block * 50 + 50):
        run_program(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(2, 24))
def test_many_random_programs(block):
    for seed in range(block * 50, block * 50 + 50):
        run_program(seed)


def both(program):
    """Runs a program of one tensor on both devices and compares what it returns."""
    want = program(torch.arange(24.0).reshape(4, 6))
    got = program(torch.arange(24.0).reshape(4, 6).to("xla"))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.cpu(), w)


def test_write_through_slice_of_transpose_of_view():
    def program(x):
        before = x[1]
        x.view(6, 4).t()[1:3].mul_(10)
        return x, before, x[1]

    both(program)


def test_writes_under_masks_and_indices():
    def program(x):
        x[x > 12] = 0.5
        x[torch.tensor([0, 2], device=x.device)] += 1
        x[1, ::2] = torch.tensor([7.0, 8.0, 9.0], device=x.device)
        return x, x[x > 3]

    both(program)


def test_copied_windows_show_what_lies_in_gaps():
    def program(x):
        gaps, turned = x[:, ::2], x.t()
        out = torch.empty(0, device=x.device)
        torch.as_strided_copy(gaps, (3,), (1,), 2, out=out)
        of_gaps = torch.as_strided_copy(gaps, (2, 2), (1, 2), 1)
        return of_gaps, torch.as_strided_copy(turned, (2, 3), (1, 2)), out

    both(program)


OVER_OTHER_ELEMENTS = {
    "as integers": lambda x: x.view(torch.int32),
    "halves": lambda x: x.view(torch.float16),
    "doubles": lambda x: x.view(torch.float64)[:, 1:],
    "complex": lambda x: x.view(torch.complex64),
    "there and back": lambda x: x.view(torch.int16).view(torch.float32),
    "of a transpose": lambda x: x.t().view(torch.int32),
}


@pytest.mark.parametrize("name", OVER_OTHER_ELEMENTS)
def test_windows_of_memory_of_another_dtype(name):
    def program(x):
        y = OVER_OTHER_ELEMENTS[name](x)
        y.fill_diagonal_(1)
        stride, offset = y.stride(), y.storage_offset()
        window = torch.as_strided(y, (2, 2), (stride[1], stride[0]), offset + 1)
        window.add_(1)
        alike = torch.empty(0, dtype=y.dtype, device=x.device)
        alike.set_(y.untyped_storage(), offset, (3, 2), (1, 3))
        alike[1:].mul_(2)
        return x, y, window, alike

    both(program)


def test_a_window_over_a_rest_of_memory():
    def program(x):
        y = torch.zeros(0, dtype=torch.float64, device=x.device)
        five = x.flatten()[:5].clone()
        y.set_(five.untyped_storage(), 0, (2,), (1,))
        y[1] = 3
        return five, y

    both(program)


def test_a_window_of_an_inference_tensor_is_one():
    for device in ("cpu", "xla"):
        with torch.inference_mode():
            t = torch.zeros(4, 4, device=device)
            t.fill_diagonal_(1)
            t.as_strided((2,), (1,)).add_(1)
        assert t.as_strided((2,), (1,)).is_inference()
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            t.fill_diagonal_(1)
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            t.as_strided((2,), (1,)).add_(1)


@pytest.mark.parametrize("view", [lambda t: t.view(torch.int32), lambda t: t.view(2, -1)])
@pytest.mark.parametrize("inside", [True, False])
def test_views_of_inference_tensors(view, inside):
    def program(x):
        with torch.inference_mode():
            t = x * 1
        with torch.inference_mode(inside):
            found = view(t)
        return [torch.tensor(found.is_inference()), found]

    both(program)


def test_set_data_of_a_view_that_was_overtaken():
    def program(x):
        leaf = x[0].clone().requires_grad_()
        first, second = leaf.view(2, 3).unbind()
        with torch.no_grad():
            torch._foreach_mul_([leaf], 2.0)
        second.data = first  # asks nothing of the view's gradient, which is an error by now
        return [leaf.detach(), second.data]

    both(program)


def test_a_detached_inference_tensor_may_be_written():
    """Refused, as views of it are; the CPU's has a version counter."""

    def program(x):
        with torch.inference_mode():
            t = x * 2
        d = t.detach()
        d.mul_(2)
        return [torch.tensor([d.is_inference(), d._version]), d, t]

    both(program)


def test_set_data_of_an_inference_tensor():
    def program(x):
        y, z = x * 2, x * 3
        with torch.inference_mode():
            made = x[:2] * 5
        y.data = made
        z.data = made.detach()
        return y, z, torch.tensor(y.is_inference()), z * 2

    both(program)


def test_set_data_and_resize():
    def program(x):
        y = torch.zeros(3, device=x.device)
        y.set_(x)
        y[0, 0] = 100
        z = torch.ones(2, 3, device=x.device)
        z.data = x[:2]
        z.add_(1)
        w = torch.ones(2, 2, device=x.device)
        w.resize_(2)
        return x, y, z, w

    both(program)


def test_expanded_views_refuse_writes_as_pytorch_does():
    x = torch.zeros(3, 1, device="xla").expand(3, 4)
    with pytest.raises(RuntimeError, match="more than one element"):
        x.add_(1)


def test_inplace_views():
    def program(x):
        y = x.clone()
        y.t_().unsqueeze_(0).squeeze_(0).transpose_(0, 1)
        y.mul_(2)
        return x, y

    both(program)


def test_strides_are_pytorchs():
    x = torch.zeros(2, 3, 4, device="xla")
    assert x.permute(2, 0, 1).contiguous().stride() == (6, 3, 1)
    assert x.to(memory_format=torch.contiguous_format).is_contiguous()
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.transpose(0, 2).view(-1)


def test_offsets_count_elements_of_the_view():
    def offsets(device):
        z = torch.zeros(4, 3, dtype=torch.complex64, device=device)
        x = torch.zeros(4, 4, device=device)
        views = [
            z[1:].real,
            z[2].imag,
            torch.view_as_real(z[1:]),
            x[1:].view(torch.float64),
            x[2:].view(torch.int16),
            x[1].view(torch.uint8)[3:],
            torch.view_as_complex(x.view(4, 2, 2)[1:]),
        ]
        return [
            (v.storage_offset(), v.stride(), v.data_ptr() - v.untyped_storage().data_ptr())
            for v in views
        ]

    assert offsets("xla") == offsets("cpu")


def test_unfold_of_a_number():
    def program(x):
        number = x[0, 1]
        return number.unfold(0, 0, 1), number.unfold(0, 1, 1)

    both(program)


def test_steps_in_place_leave_no_trace():
    x = torch.zeros(1, 3, device="xla")
    for step in range(8):
        if step == 2:
            met.clear_all()
        x.squeeze_(0)
        x.add_(1)
        x.unsqueeze_(0).t_().t_()
        torch_xla.sync()
    assert x.tolist() == [[8, 8, 8]]
    assert not met.counter_value("UncachedCompile")


LEADING_BACK = {
    "x[:]": lambda x: x[:],
    "x[0:3]": lambda x: x[0:3],
    "alias": torch.ops.aten.alias,
    "expand": lambda x: x.expand(3, 2),
    "expanded and selected": lambda x: x[None].expand(4, 3, 2)[1],
    "dtype": lambda x: x.view(torch.int32).view(torch.float32),
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x)),
    "split": lambda x: x.split(3)[0],
    "unfold": lambda x: x.unfold(0, 3, 1)[0].t(),
    "as_strided": lambda x: x.as_strided(x.shape, x.stride(), x.storage_offset()),
}


@pytest.mark.parametrize("part", [False, True], ids=["whole", "part"])
@pytest.mark.parametrize("name", LEADING_BACK)
def test_views_that_lead_back_compile_once(name, part):
    base = torch.zeros(7, 2, device="xla")
    x = base[2:5] if part else base.narrow(0, 0, 3).clone()
    for step in range(6):
        if step == 2:
            met.clear_all()
        x = LEADING_BACK[name](x)
        x.add_(1)
        torch_xla.sync()
    assert not met.counter_value("UncachedCompile")
    assert x.tolist() == [[6, 6]] * 3
    assert base[2:5].tolist() == (x.tolist() if part else [[0, 0]] * 3)


def test_what_leads_back_to_memory_but_not_to_its_values():
    def program(x):
        z = torch.complex(x, x + 1)
        conjugate = z.conj()
        again = conjugate.t().t()[:].view(z.shape)
        there = conjugate.conj()[:]
        conjugate[0] += 1j
        halves = torch.view_as_real(z)[..., 1].neg() * 1
        negative = torch._neg_view(x)[:]
        negative[1] = 5
        return z, conjugate, again, there, halves, negative, x

    both(program)


def test_views_of_views_are_one():
    def program(x):
        y = x.view(2, 12).view(3, 8).unsqueeze(0).squeeze(0).t().t()
        y[1] = 5
        z = x.t().unsqueeze(0).permute(2, 0, 1).transpose(0, 2).permute(1, 2, 0)
        z.mul_(2)
        return x, y, z, x.t().transpose(0, 1), z.transpose(0, 1).transpose(1, 2)

    both(program)


def test_long_chains_of_views():
    x = torch.arange(6.0, device="xla").view(2, 3)
    for _ in range(100_001):
        x.t_()
    x.add_(1)
    y = torch.arange(20_001.0, device="xla")
    for _ in range(2_000):
        y = y[1:].detach()
    y.add_(1)
    assert x.tolist() == [[1, 4], [2, 5], [3, 6]]
    z = torch.zeros(200_001, device="xla")
    for _ in range(200_000):
        z = z[1:].detach()
    del z


def test_addresses_of_live_tensors_stay_apart():
    kept = [torch.zeros(1000, device="xla") for _ in range(50)]
    for _ in range(20):
        torch.empty(2**53, device="xla")
    kept += [torch.zeros(1000, device="xla") for _ in range(50)]
    starts = sorted(t.data_ptr() for t in kept)
    assert all(b - a >= 4000 for a, b in zip(starts, starts[1:], strict=False))
