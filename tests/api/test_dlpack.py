"""Memory shared with other libraries, both ways.

Units: executor/step/external_memory.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from torch.utils import dlpack as torch_dlpack

import torch_xla
from torch_xla.utils import dlpack

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
]

EXPORTS = {
    "torch.from_dlpack": torch.from_dlpack,
    "torch capsule": lambda x: torch.from_dlpack(torch_dlpack.to_dlpack(x)),
    "torch.to_dlpack": lambda x: torch.from_dlpack(torch.to_dlpack(x)),
    "own capsule": lambda x: torch_dlpack.from_dlpack(dlpack.to_dlpack(x)),
    "numpy": lambda x: torch.from_numpy(np.array(np.from_dlpack(x))),
    "method": lambda x: torch.from_dlpack(x.__dlpack__()),
    "versioned": lambda x: torch.from_dlpack(x.__dlpack__(max_version=(1, 0))),
}


def values(dtype, *shape):
    torch.manual_seed(3)
    x = torch.randn(*shape) * 5
    return (x > 0) if dtype is torch.bool else x.to(dtype)


def aligned(*shape):
    """A numpy array whose memory the CPU plugin can use as it is."""
    count = int(np.prod(shape))
    memory = np.zeros(count + 16, dtype=np.float32)
    start = (-memory.ctypes.data % 64) // 4
    return memory[start : start + count].reshape(shape)


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)
def test_exports(export):
    cpu = torch.arange(12.0).reshape(3, 4)
    x = cpu.to("xla") * 2  # still to be computed
    shared = export(x)
    assert shared.device.type == "cpu"
    assert torch.equal(shared, cpu * 2)
    assert torch.equal(x.cpu(), cpu * 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_go_both_ways(dtype):
    cpu = values(dtype, 3, 5)
    shared = torch.from_dlpack(cpu.to("xla"))
    assert shared.dtype == dtype and torch.equal(shared, cpu)
    back = dlpack.from_dlpack(cpu)
    assert back.device.type == "xla" and back.dtype == dtype
    assert torch.equal(back.cpu(), cpu)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3), (2, 3, 4, 5)], ids=str)
def test_shapes(shape):
    cpu = torch.randn(shape)
    assert torch.equal(torch.from_dlpack(cpu.to("xla")), cpu)
    assert torch.equal(dlpack.from_dlpack(cpu).cpu(), cpu)


def test_an_export_is_no_copy():
    x = torch.randn(64, 3, device="xla") + 1
    first, second = torch.from_dlpack(x), np.from_dlpack(x)
    assert first.data_ptr() == second.ctypes.data
    y = dlpack.from_dlpack(first)
    assert torch.from_dlpack(y).data_ptr() == first.data_ptr()


def test_an_import_is_no_copy():
    array = aligned(8, 3)
    array[:] = np.arange(24).reshape(8, 3)
    x = dlpack.from_dlpack(array)
    assert torch.from_dlpack(x).data_ptr() == array.ctypes.data
    assert (x + 1).tolist() == (array + 1).tolist()


def test_imports_of_other_kinds():
    capsule = torch_dlpack.to_dlpack(torch.arange(4.0))
    assert dlpack.from_dlpack(capsule).tolist() == [0, 1, 2, 3]
    transposed = torch.arange(6.0).reshape(2, 3).t()
    assert torch.equal(dlpack.from_dlpack(transposed).cpu(), transposed)
    unaligned = torch.arange(9.0)[1:]
    assert dlpack.from_dlpack(unaligned).tolist() == unaligned.tolist()
    x = torch.arange(3.0, device="xla")
    assert dlpack.from_dlpack(x).tolist() == [0, 1, 2]
    with pytest.raises(Exception, match="dlpack|DLPack|capsule"):
        dlpack.from_dlpack([1, 2])


def test_overwriting_leaves_an_export_as_it_was():
    """Steps reuse the memory of what they overwrite, but not while someone else reads it."""
    x = torch.zeros(1000, device="xla")
    torch_xla.sync()
    held = torch.from_dlpack(x)
    capsule = dlpack.to_dlpack(x)
    pointer = held.data_ptr()
    for step in range(1, 4):
        x.add_(1)
        torch_xla.sync(wait=True)
        assert held.eq(0).all()
        assert x.eq(step).all().item()
    assert torch.from_dlpack(x).data_ptr() != pointer
    assert torch_dlpack.from_dlpack(capsule).eq(0).all()


def test_memory_is_reused_again_when_the_export_is_gone():
    x = torch.zeros(1000, device="xla")
    torch_xla.sync(wait=True)
    held = torch.from_dlpack(x)
    pointer = held.data_ptr()
    del held
    gc.collect()
    x.add_(1)
    torch_xla.sync(wait=True)
    assert torch.from_dlpack(x).data_ptr() == pointer  # donated


def test_a_read_reuses_memory_that_nobody_else_needs():
    x = torch.zeros(1000, device="xla")
    torch_xla.sync(wait=True)
    pointer = torch.from_dlpack(x).data_ptr()
    gc.collect()
    x.add_(1)
    assert x[3].item() == 1
    assert torch.from_dlpack(x).data_ptr() == pointer  # donated
    first, whole = x[:500], x.view(10, 100)
    y = x * 2
    first.add_(1)
    assert y[0].item() == 2
    assert [t.sum().item() for t in (first, x, whole, y)] == [1000, 1500, 1500, 2000]


def test_an_export_outlives_its_tensor():
    x = torch.full((1000,), 7.0, device="xla")
    torch_xla.sync()
    held = torch.from_dlpack(x)
    del x
    gc.collect()
    others = [torch.full((1000,), float(i), device="xla") for i in range(4)]
    torch_xla.sync(wait=True)
    assert held.eq(7).all() and len(others) == 4


def test_overwriting_leaves_imported_memory_as_it_was():
    array = aligned(1000)
    x = dlpack.from_dlpack(array)
    for _ in range(3):
        x.add_(1)
        torch_xla.sync(wait=True)
    assert not array.any()
    assert x.eq(3).all().item()


def test_imported_memory_stays_alive_as_long_as_the_tensor():
    released = []

    class Producer:
        def __init__(self):
            self.tensor = torch.from_numpy(aligned(16)).add_(2)

        def __dlpack__(self, **kwargs):
            return self.tensor.__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

        def __del__(self):
            released.append(True)

    x = dlpack.from_dlpack(Producer())
    gc.collect()
    assert released == [True]  # the object, not its memory
    assert x.eq(2).all().item()


def test_views_are_exported_with_their_own_contents():
    base = torch.arange(12.0, device="xla").reshape(3, 4)
    for view in (base[1], base[:, 1:3], base.t(), base.expand(2, 3, 4), base.flip(0)):
        assert torch.equal(torch.from_dlpack(view), view.cpu())


def test_what_pytorch_refuses_is_refused():
    x = torch.randn(3, device="xla", requires_grad=True)
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(x)
    assert torch.equal(torch.from_dlpack(x.detach()), x.detach().cpu())
    with pytest.raises(TypeError, match="stream"):
        x.detach().__dlpack__(stream="1")


def test_a_copy_on_request():
    x = torch.zeros(8, device="xla")
    assert torch.from_dlpack(x, copy=True).data_ptr() != torch.from_dlpack(x).data_ptr()
    assert torch.from_dlpack(x, device="cpu").device.type == "cpu"


def test_the_device_of_an_export():
    x = torch.zeros(8, device="xla")
    assert x.__dlpack_device__() == (torch_dlpack.DLDeviceType.kDLCPU, 0)


def test_tensors_of_several_devices(run_python):
    run_python(
        """
        import torch, torch_xla
        from torch_xla.utils import dlpack
        x = torch.arange(4.0, device="xla:2") + 1
        assert torch.from_dlpack(x).tolist() == [1, 2, 3, 4]
        with torch.xla.device(1):
            assert dlpack.from_dlpack(torch.ones(3)).device.index == 1
        """,
        env={"CPU_NUM_DEVICES": "4"},
    )


def test_cpu_tensors_are_exported_as_before():
    x = torch.arange(3.0)
    assert torch.from_dlpack(x).data_ptr() == x.data_ptr()
    assert torch_dlpack.from_dlpack(torch_dlpack.to_dlpack(x)).data_ptr() == x.data_ptr()
    assert np.from_dlpack(x).ctypes.data == x.data_ptr()
