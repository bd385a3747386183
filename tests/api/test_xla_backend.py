"""The backend `xla` of torch.distributed, in a job of one process."""

from __future__ import annotations

import pytest

CODE = """
import torch
import torch.distributed as dist
import torch_xla.distributed.xla_backend
import torch_xla.runtime as xr

if IN_SPMD:
    xr.use_spmd()
    try:
        dist.init_process_group("xla", init_method="xla://")
    except AssertionError as e:
        assert "not supported with SPMD" in str(e) and "CPU process group" in str(e), e
    else:
        raise AssertionError("expected an error")
    assert not dist.is_initialized()
else:
    dist.init_process_group("xla", init_method="xla://")
    x = torch.ones(3, device="xla")
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    to = [torch.zeros(3, device="xla")]
    dist.all_gather(to, x)
    dist.barrier()
    assert to[0].tolist() == [1, 1, 1]
    dist.destroy_process_group()
assert "xla" in dist.Backend.backend_list
dist.init_process_group("gloo", init_method="xla://")
assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
t = torch.ones(3)
dist.all_reduce(t)
assert t.tolist() == [1, 1, 1]
dist.destroy_process_group()
"""


@pytest.mark.parametrize("spmd", [False, True])
def test_groups_of_one_process(run_python, spmd):
    run_python(
        CODE.replace("IN_SPMD", str(spmd)), env={"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2"}
    )


def test_a_plain_import_registers_it(run_python):
    run_python(
        """
        import torch
        import torch.distributed as dist
        import torch_xla

        assert dist.get_default_backend_for_device("xla") == "xla"
        assert not {"x", "l", "a"} & set(dist.Backend.default_device_backend_map)
        dist.init_process_group(init_method="xla://")  # of whatever device, made when it is used
        t = torch.ones(3)
        dist.all_reduce(t)
        assert t.tolist() == [1, 1, 1]
        """,
        env={"PJRT_DEVICE": "CPU"},
    )
