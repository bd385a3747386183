"""The program of every entry of PyTorch's operator database is one that a TPU compiler accepts.

Entries are recorded on the CPU, lowered as for a TPU and compiled by libtpu for a v5e that is not
there. `make test-all` installs libtpu; TPU_LIBRARY_PATH names another one."""

from __future__ import annotations

import os

import pytest
import torch
import torch.utils._pytree as pytree

from tests.ops import database
from tests.ops.database import DEVICE, ENTRIES
from torch_xla import _XLAC
from torch_xla._src.aot.topology import Compiler, Refused
from torch_xla._src.device import plugins

from . import notes

LIBRARY = os.environ.get("TPU_LIBRARY_PATH")
TOPOLOGY = "v5e:2x2"
DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
    torch.complex64,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        LIBRARY is None,
        reason="TPU_LIBRARY_PATH names no libtpu.so. `make test-all` installs one.",
    ),
]


@pytest.fixture(scope="module")
def compiler():
    with Compiler(plugins.of_library(LIBRARY), TOPOLOGY) as made:
        yield made


def refusal_of(compiler: Compiler, text: str) -> str | None:
    try:
        compiler.compile(text)
    except Refused as refusal:
        return str(refusal)
    return None


def program(name: str, dtype: torch.dtype) -> str | None:
    """StableHLO for a TPU of an entry's first sample; None where nothing is computed."""
    sample = next(database.samples(ENTRIES[name], dtype, grad=False))
    results = database.call(ENTRIES[name], sample, DEVICE)
    tensors = [t for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
    tensors = [t for t in tensors if t.device.type == DEVICE]
    return _XLAC._get_stablehlo(tensors, platform="TPU") if tensors else None


def cases() -> list:
    found = []
    for name, entry in ENTRIES.items():
        for dtype in DTYPES:
            if database.applies(entry, dtype, "forward"):
                label = f"{name}-{str(dtype).removeprefix('torch.')}"
                found.append(pytest.param(name, dtype, id=label))
    return found


@pytest.mark.parametrize(("name", "dtype"), cases())
def test_operator(name, dtype, compiler):
    try:
        text = program(name, dtype)
    except NotImplementedError as e:
        assert name in notes.ON_THE_HOST, e
        return
    except TypeError as e:
        assert notes.lacks_a_dtype(name, dtype), e
        assert "expected a dtype that TPU has" in str(e)
        return
    assert name not in notes.ON_THE_HOST, "it has a lowering now"
    assert not notes.lacks_a_dtype(name, dtype), "it has a lowering now"
    refusal = refusal_of(compiler, text) if text is not None else None
    assert refusal is None, refusal


def test_a_crash_of_the_compiler_is_an_answer(compiler):
    """The next program is compiled by a new process."""
    good = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"
    assert refusal_of(compiler, good) is None
    compiler._process.kill()
    assert "ended with status -9" in refusal_of(compiler, good)
    assert refusal_of(compiler, good) is None
    assert "nonsense" in refusal_of(
        compiler, "func.func @main() -> tensor<f32> { %0 = stablehlo.nonsense : tensor<f32> }"
    )
