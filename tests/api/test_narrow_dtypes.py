"""XLA_USE_BF16, XLA_DOWNCAST_BF16 and XLA_USE_32BIT_LONG: what the device holds is narrower than
what PyTorch sees.

Units: executor/run/array_types.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torch_xla
import torch_xla.core.xla_model as xm

DEVICE = "xla"


def held(tensor: torch.Tensor) -> str:
    """The types in the program that adds a tensor to itself."""
    return xm.get_stablehlo([tensor + tensor])


@pytest.mark.parametrize(
    "flag, dtype, narrow, name",
    [
        ("XLA_USE_BF16", torch.float32, torch.bfloat16, "bf16"),
        ("XLA_USE_BF16", torch.float64, torch.bfloat16, "bf16"),
        ("XLA_DOWNCAST_BF16", torch.float32, torch.bfloat16, "bf16"),
        ("XLA_DOWNCAST_BF16", torch.float64, torch.float32, "f32"),
        ("XLA_USE_32BIT_LONG", torch.int64, torch.int32, "i32"),
    ],
)
def test_the_device_holds_another_dtype(monkeypatch, flag, dtype, narrow, name):
    monkeypatch.setenv(flag, "1")  # read when a tensor is made, not at import
    x = torch.tensor([1.0001, 2.7, -300.3], dtype=torch.float64).to(dtype)
    y = x.to(DEVICE)
    assert y.dtype == dtype and (y * 2).dtype == dtype
    assert f"tensor<3x{name}>" in held(y)
    assert torch.equal(y.cpu(), x.to(narrow).to(dtype))
    assert torch.equal((y * 2).cpu(), (x.to(narrow) * 2).to(dtype))


def test_other_dtypes_stay(monkeypatch):
    for flag in ("XLA_USE_BF16", "XLA_USE_32BIT_LONG"):
        monkeypatch.setenv(flag, "1")
    for dtype in (torch.float16, torch.int16, torch.uint8, torch.bool, torch.complex64):
        x = torch.tensor([0, 1, 3]).to(dtype)
        assert torch.equal(x.to(DEVICE).cpu(), x)


def test_tensors_made_under_other_flags_meet(monkeypatch):
    x = torch.tensor([1.001, 2.002, 3.003])
    exact = x.to(DEVICE)
    monkeypatch.setenv("XLA_USE_BF16", "1")
    rounded = x.to(DEVICE)
    both = exact + rounded
    assert both.tolist() == (x.bfloat16() * 2).tolist()
    # In place: the buffer of the exact one has another size than its new value.
    exact.add_(1)
    torch_xla.sync()
    assert exact.tolist() == (x.bfloat16() + 1).tolist()
    monkeypatch.delenv("XLA_USE_BF16")
    assert (rounded + 0.001).tolist() == (x.bfloat16().float() + 0.001).tolist()


def test_other_libraries_get_the_dtype_they_see(monkeypatch):
    monkeypatch.setenv("XLA_USE_BF16", "1")
    x = torch.tensor([1.0, 2.5, -3.0], device=DEVICE)
    assert torch.from_dlpack(x).tolist() == [1, 2.5, -3]


def test_numbers_are_not_rounded(monkeypatch):
    monkeypatch.setenv("XLA_USE_BF16", "1")
    x = torch.tensor([3.0], device=DEVICE)
    # 1.001 is 1 in bfloat16; the product is rounded once.
    assert (x * 1.001 - x).item() == (torch.tensor(3.003).bfloat16() - 3).item()
    assert (x * 1000.7).item() == torch.tensor(3 * 1000.7).bfloat16().item()


@pytest.mark.parametrize("kernels", ["auto", "none", "all"])
@pytest.mark.parametrize("flag", ["XLA_USE_BF16", "XLA_USE_32BIT_LONG"])
def test_training(monkeypatch, flag, kernels):
    monkeypatch.setenv(flag, "1")
    monkeypatch.setenv("XLA_HOST_KERNELS", kernels)
    torch.manual_seed(0)
    images, labels = torch.randn(8, 1, 8, 8), torch.randint(0, 4, (8,))

    def losses(device: str) -> list[float]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 3),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(72, 4),
        ).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        found = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    tolerance = 5e-2 if flag == "XLA_USE_BF16" else 1e-4
    torch.testing.assert_close(losses(DEVICE), losses("cpu"), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kernels", ["auto", "none", "all"])
def test_indices_of_32_bits(monkeypatch, kernels):
    monkeypatch.setenv("XLA_USE_32BIT_LONG", "1")
    monkeypatch.setenv("XLA_HOST_KERNELS", kernels)
    x = torch.tensor([[3.0, 1.0, 2.0], [0.5, 0.25, 4.0]])
    i = torch.tensor([[2, 0], [1, 1]])

    def results(x: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
        return [
            x.argmax(1), *x.sort(1), *x.topk(2, 1), x.gather(1, i), x[i[1], i[0]], x.cumsum(1),
            x.scatter_add(1, i, x[:, :2]), F.embedding(i, x.t()), F.one_hot(i, 3), i.cumsum(0),
            i.sum(), i.bincount() if i.dim() == 1 else i.flatten().bincount(), x.nonzero(),
            torch.arange(5, device=x.device), *F.max_pool2d(x[None], 2, 1, return_indices=True),
            i.unique(), torch.searchsorted(x.sort(1).values, x), i % 2, i // 2, i << 3,
            torch.tril_indices(3, 3, device=x.device), x.median(1).indices, i.bitwise_xor(5),
        ]  # fmt: skip

    for actual, expected in zip(results(x.to(DEVICE), i.to(DEVICE)), results(x, i), strict=True):
        torch.testing.assert_close(actual.cpu(), expected)
