"""torch.set_float32_matmul_precision reaches the programs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from torch_xla import _XLAC

XLA_NAMES = {"highest": "HIGHEST", "high": "HIGH", "medium": "DEFAULT"}


@pytest.fixture(autouse=True)
def precision(monkeypatch):
    monkeypatch.setenv("XLA_HOST_KERNELS", "none")  # lowerings, as other devices have them
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def products():
    x = torch.ones(2, 3, 5, 5, device="xla")
    return x @ x, F.conv2d(x, torch.ones(4, 3, 3, 3, device="xla"))


@pytest.mark.parametrize("name", XLA_NAMES)
def test_products_have_the_precision_that_was_set(name):
    torch.set_float32_matmul_precision(name)
    for product in products():
        lines = _XLAC._get_stablehlo([product]).splitlines()
        (line,) = [t for t in lines if "precision_config" in t]
        assert line.count(f"#stablehlo<precision {XLA_NAMES[name]}>") == 2


def test_the_default_is_the_highest_and_a_change_makes_another_program():
    hashes = set()
    for name in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(name)
        hashes.add(_XLAC._get_graph_hash(list(products())))
    assert len(hashes) == 3
    torch.set_float32_matmul_precision("highest")
    assert _XLAC._get_graph_hash(list(products())) in hashes
