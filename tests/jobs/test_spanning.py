"""Jobs whose plugin makes one client of all processes (tests/cpp/pod_plugin): exchanges are
StableHLO's, and give what they give where the host exchanges.
"""

from __future__ import annotations

import pytest

from tests.jobs import test_c10d, test_collectives, test_ddp

POD = """
import os
from torch_xla.experimental import plugins

class Pod(plugins.DevicePlugin):
    # As plugins of torch_xla 2.9 are.
    def library_path(self):
        return os.environ["POD_PLUGIN"]

    def client_create_options(self):
        return {
            "node_id": int(os.environ.get("RANK", "0")),
            "num_nodes": int(os.environ.get("WORLD_SIZE", "1")),
            "cpu_device_count": int(os.environ.get("POD_DEVICES", "1")),
        }

    def requires_xla_coordinator(self):
        return True

    def physical_chip_count(self):
        return 2

plugins.register_plugin("CPU", Pod())
"""


@pytest.fixture
def pod(jobs, pod_plugin):
    """Runs a script in some processes that have one client, each told of its place."""

    def run(code, ranks=2, devices=1, env=None, **kwargs):
        told = {"POD_PLUGIN": str(pod_plugin), "POD_DEVICES": str(devices), **(env or {})}
        return jobs.by_hand(POD + code, ranks=ranks, env=told, timeout=300, **kwargs)

    return run


PLACES = """
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr
from torch_xla import _XLAC

rank = xr.global_ordinal()
x = torch.full((2,), 1.0 + rank, device="xla")
assert x.device == torch.device("xla:0") and torch_xla.device_count() == 1
assert torch_xla.real_devices() == [f"CPU:{rank}"]
assert xr.global_runtime_device_count() == xr.global_device_count() == xr.world_size() == 2
assert xr.addressable_runtime_device_count() == 1
assert _XLAC._xla_get_num_processes() == 2 and _XLAC._xla_get_process_index() == rank
text = _XLAC._get_stablehlo([xm.all_reduce("sum", x)])
assert "stablehlo.all_reduce" in text and "custom_call" not in text, text
assert xm.all_reduce("sum", x).tolist() == [3.0, 3.0]
# What exchanges nothing is of one process: the other has none of it.
if rank == 0:
    assert (x * 5).sum().item() == 10
loss = xm.all_reduce("sum", (x * x).sum())
torch_xla.sync()
print(f"loss {loss.item()}")
xm.rendezvous("end")
"""


def test_places_and_a_read_of_a_reduced_loss(pod):
    assert [done.stdout for done in pod(PLACES)] == ["loss 10.0\n"] * 2


def test_exchanges_of_two(pod):
    pod(test_collectives.HEAD + test_collectives.ALL)


@pytest.mark.slow
def test_gradients_of_two(pod):
    """Of batches of one size: all ranks have one program."""
    unequal = "sizes = [4 + of for of in range(count)]"
    assert unequal in test_collectives.GRADIENTS
    script = test_collectives.GRADIENTS.replace(unequal, "sizes = [4] * count")
    pod(test_collectives.HEAD + script)


@pytest.mark.slow
def test_groups_of_four(pod):
    """Those that not all are in exchange through the host."""
    pod(test_collectives.HEAD + test_collectives.GROUPS, ranks=4)


@pytest.mark.slow
def test_calls_of_torch_distributed(pod):
    pod(test_c10d.BEGIN.replace("METHOD", "xla://") + test_c10d.CALLS)


@pytest.mark.slow
def test_data_parallel_training(pod):
    """Exchanges of torch.distributed are programs of their own: ranks compute other things."""
    one_program = "assert launches[-2:] == [(1, 0)] * 2 and launches[2][0] == 1, launches"
    assert one_program in test_ddp.DDP
    script = test_ddp.DDP.replace(one_program, "assert launches[-1][1] == 0, launches")
    pod(test_ddp.BEGIN + script + test_ddp.END)


DIFFER = """
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

x = torch.ones(3, device="xla")
total = xm.all_reduce("sum", x * (1.5 if xr.global_ordinal() else x))
try:
    total.cpu()
except RuntimeError as error:
    print(error)
"""


def test_programs_that_differ_are_refused(pod):
    """The ranks exchange the same, and compute something else in the same program."""
    for done in pod(DIFFER, check=False):
        assert "expected the same of all ranks of group [0, 1]" in done.stdout
        assert all(f"rank {rank}: program " in done.stdout for rank in (0, 1))


SPAWNED = """
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp

def run(index):
    x = torch.full((2,), 1.0 + index, device="xla")
    print(xm.all_reduce("sum", x).tolist(), flush=True)

if __name__ == "__main__":
    xmp.spawn(run)
"""


def test_spawned(jobs, pod_plugin):
    done = jobs.spawn(POD + SPAWNED, env={"POD_PLUGIN": str(pod_plugin)})
    assert done.stdout == "[3.0, 3.0]\n" * 2


CUDA = """
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

x = torch.full((2,), 1.0 + xr.global_ordinal(), device="xla")
assert torch_xla.real_devices() == [f"CUDA:{xr.global_ordinal()}"]
print(xm.all_reduce("sum", x).tolist())
"""


def test_the_options_of_gpus_make_one_client(jobs, pod_plugin):
    env = {"PJRT_DEVICE": "CUDA", "PJRT_LIBRARY_PATH": str(pod_plugin)}
    done = jobs.by_hand(CUDA, env=env)
    assert [process.stdout for process in done] == ["[3.0, 3.0]\n"] * 2
