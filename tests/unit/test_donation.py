"""A run takes over a buffer only when nothing that outlives the run reads it.

Units: executor/run/run.
"""

from __future__ import annotations

import ctypes
import random

import pytest
import torch

import torch_xla


def test_a_read_that_computes_a_part_of_what_waits():
    """The read of an index computes what was written by it, and `w` reads the same view later."""

    def program(device: str):
        torch.manual_seed(0)
        base = torch.randn(5, 8).to(device)
        rows = torch.randn(3, 4).to(device)
        index = torch.tensor([4, 1, 3, 0, 2]).to(device)[:3]
        torch_xla.sync()
        v = base[..., ::2]
        w = v.clone()
        v.index_copy_(0, index, rows)
        w[index[0]] = rows[0]
        return v.cpu(), w.cpu(), base.cpu()

    for got, want in zip(program("xla"), program("cpu"), strict=True):
        assert torch.equal(got, want)


def test_a_read_between_two_users_of_one_call():
    x = torch.arange(8.0, device="xla")
    n = torch.ones(8, device="xla")
    torch_xla.sync()
    shared = x.exp()
    one, other = shared + n, shared * 2
    del shared
    m = n * 3
    x.add_(m)
    both = one + m
    m[0].item()  # computes `both` and the new `x`; `other` still waits for what they were made of
    torch_xla.sync()
    expected = torch.arange(8.0).exp()
    torch.testing.assert_close(other.cpu(), expected * 2)
    torch.testing.assert_close(both.cpu(), expected + 1 + 3)
    assert x.tolist() == [3, 4, 5, 6, 7, 8, 9, 10]


def test_a_view_whose_storage_was_read_alone():
    y = torch.arange(4.0, device="xla")
    torch_xla.sync()
    x = torch.zeros(8, device="xla")
    v = x[::2]
    v.add_(y)
    del y
    assert x.tolist() == [0, 0, 1, 0, 2, 0, 3, 0]
    u = v + 1
    torch_xla.sync()
    assert v.tolist() == [0, 1, 2, 3] and u.tolist() == [1, 2, 3, 4]


def pointer(x: torch.Tensor) -> int:
    return torch.from_dlpack(x).data_ptr()


def test_views_do_not_keep_what_is_overwritten():
    """Parameters that are views of one tensor, as some optimizers keep them, exist once."""
    flat = torch.zeros(64, device="xla")
    parts = [flat[:32], flat[32:].view(4, 8)]
    torch_xla.sync()
    for step in range(1, 4):
        for part in parts:
            part.add_(part.mean() + 1)
        torch_xla.sync(wait=True)
        if step == 1:
            where = pointer(flat)
    assert pointer(flat) == where
    assert flat.tolist() == [7.0] * 64 and parts[1][0].tolist() == [7.0] * 8


def test_calls_with_several_results_do_not_keep_what_is_overwritten():
    def step() -> torch.Tensor:
        values, indices = x.sort()
        x.copy_(values + indices)
        return values

    x = torch.zeros(64, device="xla")
    step()
    torch_xla.sync(wait=True)
    step()[0].item()  # the first run of a program takes nothing over
    torch_xla.sync(wait=True)
    where = pointer(x)
    for _ in range(3):
        values = step()
        assert values[0].item() == 0  # a result of `sort`, beside which `x` is computed
    assert pointer(x) == where


def test_a_loss_of_several_results_that_is_read_before_the_sync():
    """As cross entropy is: its call gives the weight too."""
    w = torch.zeros(4, 5, device="xla", requires_grad=True)
    labels = torch.arange(4, device="xla")
    optimizer = torch.optim.SGD([w], lr=0.1)

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(w, labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    losses = [step() for _ in range(2)]
    torch_xla.sync(wait=True)
    where = pointer(w.detach())
    losses += [step() for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert pointer(w.detach()) == where


def test_updates_of_one_type_stay_in_their_places():
    """The compiler copies what changes places: key and value caches, parameters."""
    rows = torch.ones(4, 8, device="xla")
    caches = [torch.zeros(4, 16, 8, device="xla") for _ in range(4)]
    weights = [torch.zeros(16, 8, device="xla", requires_grad=True) for _ in range(4)]
    optimizer = torch.optim.AdamW(weights, lr=0.1, weight_decay=0.0)

    def step() -> list[int]:
        for k in (2, 0, 3, 1):
            caches[k][:, 3] = rows * k
        optimizer.zero_grad()
        sum(w.sum() * k for k, w in enumerate(weights, 1)).backward()
        optimizer.step()
        torch_xla.sync(wait=True)
        return [pointer(x.detach()) for x in caches + weights]

    step()
    where = step()
    assert [step() for _ in range(3)] == [where] * 3
    assert [cache[0, 3, 0].item() for cache in caches] == [0, 1, 2, 3]


def write(rng: random.Random, tensors: list[torch.Tensor]) -> None:
    target, other = rng.choice(tensors), rng.choice(tensors)
    other = other.flatten()[: target.numel()].clone()
    if other.numel() == target.numel():
        kind = rng.randrange(4)
        if kind == 0:
            target.add_(other.view(target.shape))
        elif kind == 1:
            target.copy_(other.view(target.shape) * 0.5)
        elif kind == 2:
            target.copy_(other.sort()[0].view(target.shape))
        else:
            target.mul_(-0.5)


def step(rng: random.Random, tensors: list[torch.Tensor]) -> list[float]:
    """One random step: what it reads."""
    kind = rng.randrange(10)
    chosen = rng.choice(tensors)
    if kind <= 3:
        write(rng, tensors)
    elif kind == 4:
        tensors.append(chosen * 0.5 + 1)
    elif kind == 5:
        tensors.append(chosen.flatten()[:: rng.choice([1, 2])])
    elif kind == 6:
        tensors.extend(part for part in chosen.flatten().chunk(2) if part.numel())
    elif kind == 7 and len(tensors) > 4:
        tensors.pop(rng.randrange(len(tensors)))
    elif kind == 8:
        return chosen.flatten()[:3].tolist()
    elif rng.random() < 0.5:
        return [chosen.sum().item()]
    return []


@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 80))]
)
def test_random_programs(seed):
    def program(device: str) -> list[list[float]]:
        rng = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        tensors = [torch.randn(8, generator=generator).to(device) for _ in range(3)]
        read = []
        for _ in range(40):
            read.append(step(rng, tensors))
            if rng.random() < 0.1:
                torch_xla.sync()
        return read + [t.flatten().tolist() for t in tensors]

    for got, want in zip(program("xla"), program("cpu"), strict=True):
        assert got == pytest.approx(want, rel=1e-4, abs=1e-4)


@pytest.fixture
def poison():
    """What runs take over is overwritten."""
    torch_xla._XLAC._xla_set_check_donation(True, poison=True)
    yield
    torch_xla._XLAC._xla_set_check_donation(True)


def memory(x: torch.Tensor) -> torch.Tensor:
    """The memory of x, which neither PJRT nor the graph knows to be read."""
    size = x.numel() * x.element_size()
    return torch.frombuffer((ctypes.c_char * size).from_address(pointer(x)), dtype=x.dtype)


WRONG = {torch.float32: torch.nan, torch.bfloat16: torch.nan, torch.int64: ~3, torch.uint8: 252}


@pytest.mark.parametrize("dtype", WRONG)
def test_a_hidden_reader_is_found(poison, dtype):
    def three() -> torch.Tensor:
        x = torch.ones(5000, dtype=dtype).to("xla")
        x.mul_(3)
        torch_xla.sync(wait=True)
        return x

    x = three()
    x.add_(1)  # the first run of a program takes nothing over
    torch_xla.sync(wait=True)
    x = three()
    hidden = memory(x)
    assert hidden.unique().tolist() == [3]
    x.add_(1)
    torch_xla.sync(wait=True)
    torch.testing.assert_close(
        hidden, torch.full((5000,), WRONG[dtype], dtype=dtype), equal_nan=True
    )
    assert x.cpu().unique().tolist() == [4]


def test_an_honest_reader_of_poisoned_memory(poison):
    """A call that is recorded or runs before the memory is taken over reads what it held then."""
    n = 256  # the thread sanitizer takes minutes for copies of megabytes that it takes for races
    x = torch.ones(n, n, device="xla")
    torch_xla.sync()
    for step in range(1, 4):
        product = x @ x
        torch_xla.sync()  # reads x, and may not have ended when x is overwritten
        lent = torch.from_dlpack(product)
        x.add_(1)
        product.mul_(2)  # its memory is lent
        torch_xla.sync()
        assert lent.unique().tolist() == [n * step**2]
        assert product.cpu().unique().tolist() == [2 * n * step**2]
    assert x.cpu().unique().tolist() == [4]
