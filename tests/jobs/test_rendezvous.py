"""Barriers with payloads, reductions on the host and saving, in jobs of several processes.

Units: _src/job/rendezvous.
"""

from __future__ import annotations

CODE = """
import os, sys, time
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr

rank, count = xr.global_ordinal(), xr.world_size()
data = bytes([rank, 0, 255]) * 5
assert xm.rendezvous("first", data) == tuple(bytes([r, 0, 255]) * 5 for r in range(count))
assert xm.rendezvous("empty") == (b"",) * count
assert xm.xla_rendezvous(data, tag="first") == [bytes([r, 0, 255]) * 5 for r in range(count)]
for turn in range(20):
    assert xm.rendezvous("again", str(turn).encode()) == (str(turn).encode(),) * count

# some of them; each alone
if rank < 2:
    assert xm.rendezvous("two", b"%d" % rank, replicas=[1, 0]) == (b"0", b"1")
if rank in (0, count - 1):
    assert xm.rendezvous("two", b"%d" % rank, [0, count - 1]) == (b"0", b"%d" % (count - 1))
assert xm.rendezvous("alone", b"a", [rank]) == (b"a",)
for wrong in ([(rank + 1) % count], [rank, rank], [rank, count], [-1, rank]):
    try:
        xm.rendezvous("wrong", replicas=wrong)
    except ValueError as error:
        assert f"this process's rank {rank} among them" in str(error), error
    else:
        raise AssertionError("expected an error")

# it waits, and marks a step before and after
begun = time.monotonic()
if rank == 0:
    time.sleep(0.5)
t = torch.ones(3, device="xla") + rank
steps = met.counter_value("MarkStep") or 0
xm.rendezvous("late")
assert rank == 0 or time.monotonic() - begun > 0.4
assert (met.counter_value("MarkStep") or 0) == steps + 2
assert torch_xla._XLAC._get_xla_tensors_text([t]).count("device_data"), "it has run"

# any data
data = {"t": t, "all": [rank, ("x", t * 2)], "p": torch.nn.Parameter(t)}
def gather(parts):
    assert [part["all"][0] for part in parts] == list(range(count))
    assert all(part["t"].device.type == part["p"].device.type == "cpu" for part in parts)
    return sum(part["t"] + part["all"][1][1] for part in parts)
total = sum(3 * (1 + r) for r in range(count))
assert xm.mesh_reduce("any", data, gather).tolist() == [total] * 3
assert xm.mesh_reduce("number", rank, max) == count - 1
assert xm.mesh_reduce("large", torch.full((300000,), float(rank)), lambda ts: sum(ts)[-1]) == sum(
    range(count)
)

# saving: the first one writes, and all may read after it
xm.save({"t": t}, "saved.pt", global_master=True)  # both hosts have this folder
assert torch.load("saved.pt")["t"].tolist() == [1, 1, 1]
xm.rendezvous("was read")
xm.save({"t": t}, f"saved{rank}.pt", master_only=False)
assert torch.load(f"saved{(rank + 1) % count}.pt")["t"].tolist() == [1 + (rank + 1) % count] * 3

try:
    xm.rendezvous("here" if rank else "there")
except RuntimeError as error:
    assert "'here'" in str(error) and "'there'" in str(error) and "rank 0" in str(error), error
    print("both are named")
else:
    raise AssertionError("expected an error")
"""


def test_two(jobs):
    assert [done.stdout for done in jobs.by_hand(CODE)] == ["both are named\n"] * 2


def test_four_under_torchrun(jobs):
    done = jobs.torchrun(CODE, ranks=2, hosts=2)
    assert "".join(process.stdout for process in done) == "both are named\n" * 4
