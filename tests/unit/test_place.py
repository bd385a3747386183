"""This process's place in its job, out of the environments of launchers."""

from __future__ import annotations

import re

import pytest

import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla._src.job import place

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "none",
}
SLURM = {
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "gpu[07-09],login1",
    "SLURM_JOB_ID": "123",
    "SLURM_STEP_ID": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    for name in {*TORCHRUN, *SLURM, *OPEN_MPI, "XLA_JOB_STORE", "PMIX_NAMESPACE"}:
        monkeypatch.delenv(name, raising=False)


def set_all(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "variables, expected, launcher, address",
    [
        ({}, (0, 1, 0, 1, 0), "", "127.0.0.1"),
        ({"WORLD_SIZE": "1", "RANK": "0"}, (0, 1, 0, 1, 0), "the environment", "127.0.0.1"),
        ({"WORLD_SIZE": ""}, (0, 1, 0, 1, 0), "", "127.0.0.1"),
        (TORCHRUN, (5, 8, 1, 4, 1), "torchrun", "10.0.0.1"),
        ({**TORCHRUN, "XLA_JOB_STORE": "a:1"}, (5, 8, 1, 4, 1), "xmp.spawn", "10.0.0.1"),
        ({**SLURM, **TORCHRUN}, (5, 8, 1, 4, 1), "torchrun", "10.0.0.1"),
        # set by hand: all on this host, or one on each
        ({"WORLD_SIZE": "2", "RANK": "1"}, (1, 2, 1, 2, 0), "the environment", "127.0.0.1"),
        (
            {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "pod-0"},
            (1, 2, 0, 1, 1),
            "the environment",
            "pod-0",
        ),
        (SLURM, (4, 5, 0, 1, 2), "SLURM", "gpu07"),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_NODEID": "0",
          "SLURM_STEP_TASKS_PER_NODE": "1"}, (0, 1, 0, 1, 0), "SLURM", "gpu07"),
        (OPEN_MPI, (3, 4, 1, 2, 1), "Open MPI", "127.0.0.1"),
    ],
)  # fmt: skip
def test_launchers(monkeypatch, variables, expected, launcher, address):
    set_all(monkeypatch, variables)
    assert place.place() == expected
    assert place.launcher() == launcher and place.master_address() == address
    assert (place.rank(), place.world_size(), place.local_rank()) == expected[:3]
    assert (place.local_world_size(), place.host_index()) == expected[3:]
    assert place.on_one_host() == (expected[1] == expected[3])


def test_a_batch_script_of_slurm_is_one_process(monkeypatch):
    set_all(monkeypatch, {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1"})
    assert place.world_size() == 1


@pytest.mark.parametrize(
    "variables, message",
    [
        ({"WORLD_SIZE": "2"}, "expected RANK beside WORLD_SIZE=2"),
        ({"WORLD_SIZE": "two"}, "expected a number in WORLD_SIZE, got 'two'"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "expected a rank below"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "9"}, "no more on a host than in all"),
    ],
)
def test_contradictions_are_errors(monkeypatch, variables, message):
    set_all(monkeypatch, variables)
    with pytest.raises(ValueError, match=re.escape(message)):
        place.place()


def test_ports(monkeypatch):
    set_all(monkeypatch, SLURM)
    port = place.master_port()
    assert 61440 <= port < 65536
    monkeypatch.setenv("SLURM_STEP_ID", "1")
    assert place.master_port() != port
    monkeypatch.setenv("MASTER_PORT", "1234")
    assert place.master_port() == 1234


def test_public_functions_need_no_process_group(monkeypatch):
    set_all(monkeypatch, TORCHRUN)
    assert (xr.world_size(), xr.global_ordinal(), xr.local_ordinal()) == (8, 5, 1)
    assert (xr.process_count(), xr.process_index(), xr.local_process_count()) == (8, 5, 4)
    assert (xr.host_index(), xr.get_master_ip()) == (1, "10.0.0.1")
    assert (xm.xrt_world_size(), xm.get_ordinal(), xm.get_local_ordinal()) == (8, 5, 1)
    assert not xm.is_master_ordinal() and not xm.is_master_ordinal(local=False)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("RANK", "4")
    assert xm.is_master_ordinal() and not xm.is_master_ordinal(local=False)
