"""torch_xla.distributed.xla_multiprocessing in jobs of one process; tests/jobs has the others."""

from __future__ import annotations

import pytest
import torch

import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp


def test_one_process_runs_the_function_here():
    seen = []

    def fn(index, a, b):
        seen.append((index, a, b, (torch.ones(1, device=xm.xla_device()) + index).item()))

    assert xmp.spawn(fn, args=(1, "x"), nprocs=1) is None
    assert xmp.spawn(fn, (2, "y"), 1, join=False, daemon=True, start_method="fork") is None
    assert seen == [(0, 1, "x", 1.0), (0, 2, "y", 1.0)]


def test_an_exception_reaches_the_caller():
    def fn(index):
        raise LookupError("in the replica")

    with pytest.raises(LookupError, match="in the replica"):
        xmp.spawn(fn, nprocs=1)


def test_one_device_is_used_in_this_process(run_python):
    code = """
        import torch_xla.distributed.xla_multiprocessing as xmp
        xmp.spawn(lambda index: print("ran", index))
        """
    env = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1"}
    assert run_python(code, env=env).stdout == "ran 0\n"
    assert run_python(code, env={**env, "CPU_NUM_DEVICES": "2", "XLA_USE_SPMD": "1"}).stdout == (
        "ran 0\n"
    )


def test_model_wrapper_and_serial_executor():
    model = torch.nn.Linear(2, 2)
    weight = model.weight
    moved = xmp.MpModelWrapper(model).to(xm.xla_device())
    assert moved is model and moved.weight is weight and weight.device.type == "xla"
    assert xmp.MpSerialExecutor().run(lambda: 5) == 5
