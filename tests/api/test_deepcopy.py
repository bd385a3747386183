"""copy.deepcopy: copies share memory where the tensors do, and not with them.

Units: _src/patches/pickling.
"""

import copy

import torch

import torch_xla  # noqa: F401


def described(tensors):
    return [(t.detach().cpu().resolve_conj(), t.stride(), t.storage_offset()) for t in tensors]


def both(program):
    got, want = program("xla"), program("cpu")
    assert len(got) == len(want) > 0
    for ours, theirs in zip(described(got), described(want), strict=True):
        torch.testing.assert_close(ours[0], theirs[0])
        assert ours[1:] == theirs[1:]


def test_views():
    def program(device):
        a = torch.arange(12.0, device=device).view(3, 4)
        tensors = [a[1:3], a, a.t(), a[:1].expand(3, 4), a.view(torch.int32), a[::2, 1::2]]
        copies = copy.deepcopy(tensors)
        copies[0].add_(10)
        return [*copies, *tensors]

    both(program)


def test_parts_of_complex_numbers():
    def program(device):
        a = torch.arange(12.0, device=device).view(3, 4)
        c = torch.complex(a, a + 20)
        tensors = [c.real, c.imag[1:, ::2], c, torch.view_as_real(c)[..., 0]]
        for order in (tensors, tensors[::-1]):
            copies = copy.deepcopy(order)
            copies[0].mul_(2)
            copies[-1].add_(10)
            tensors = [*tensors, *copies]
        return tensors

    both(program)


def test_a_part_takes_all_its_memory_along():
    def program(device):
        part = copy.deepcopy(torch.arange(12.0, device=device).view(3, 4)[1:, ::2])
        return part, torch.empty(0, device=device).set_(part.untyped_storage())

    both(program)


def test_gradients_and_attributes():
    def program(device):
        x = torch.ones(4, device=device).requires_grad_()
        x.sum().backward()
        x.note = "kept"
        made = copy.deepcopy({"x": x, "again": [x, x.detach()[1:]]})
        assert made["x"] is made["again"][0]
        assert made["x"].note == "kept"
        assert made["x"].requires_grad
        assert made["x"].is_leaf
        with torch.no_grad():
            made["x"].mul_(3)
        (made["x"] * 2).sum().backward()
        return made["x"], made["again"][1], made["x"].grad, x, x.grad

    both(program)


def test_small_ones():
    def program(device):
        z, e = torch.tensor(2.0, device=device), torch.empty(0, device=device)
        made = copy.deepcopy([z, z.view(1), e, torch.complex(z, z).conj()])
        made[1].fill_(5)
        return [*made, *copy.deepcopy(list(torch.zeros(2, 0, device=device)))]

    both(program)


def test_copies_of_copies():
    def program(device):
        a = torch.zeros(4, device=device)
        pairs = [[a, a[1:]]]
        for step in range(3):
            pairs.append(copy.deepcopy(pairs[-1]))
            pairs[-1][1].add_(step + 1)
        return [t for pair in pairs for t in pair]

    both(program)


def test_what_shows_memory_otherwise():
    """Elements several times, or not as they lie there."""

    def program(device):
        b = torch.arange(4.0, device=device)
        z = torch.complex(b, b + 1)
        several_times = b[:2].expand(2, 2), b.as_strided((2, 2), (1, 1))
        made = [copy.deepcopy((t, b)) for t in several_times]
        made[0][0][0, 0] = 7
        values = [t * 1 for t in copy.deepcopy([z, z.conj(), z.conj().imag, z.real, z.imag])]
        values += [t * 1 for t in copy.deepcopy((z.conj(), z))]
        return [t for pair in made for t in pair] + values

    both(program)
