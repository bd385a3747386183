"""Programs of replicas, which exchange values with the same program in other processes."""

from __future__ import annotations

import pytest

from tests.spmd.test_exchanges import PRELUDE


@pytest.mark.parametrize("process", [0, 1])
def test_replicas_exchange(run_python, half_plugin, process):
    """Each of two processes has one device; both hold the same."""
    code = (
        f"device = 'xla:1'\n{PRELUDE}"
        + """
value = torch.randn(4, 2)
t = value.to(device)
BOTH = ([0, 1], 2, True)
for made, expected in [
    (ops.all_reduce(t, "add", 1.0, [], 2, True), value * 2),
    (ops.all_reduce(t, "multiply", 0.5, *BOTH), value ** 2 / 2),
    (ops.all_reduce(t, "add", 1.0, [0, 1], 1, True), value),
    (ops.all_gather(t, 1, *BOTH), torch.cat([value, value], 1)),
    (ops.all_to_all(ops.all_gather(t, 0, *BOTH), 0, 1, *BOTH), torch.cat([value, value], 1)),
    (ops.collective_broadcast(t, *BOTH), value),
    (ops.collective_permute(t, [0, 1, 1, 0], True), value),
]:
    torch.testing.assert_close(made.cpu(), expected)

leaf = value.to(device).requires_grad_()
(ops.all_reduce(leaf, "add", 1.0, *BOTH) * leaf).sum().backward()
torch.testing.assert_close(leaf.grad.cpu(), value * 4)
# A training step, whose gradients are averaged.
w = torch.ones(2, 3, device=device, requires_grad=True)
reference = torch.ones(2, 3, requires_grad=True)
for weight, x in ((w, t), (reference, value)):
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        (x @ weight).pow(2).mean().backward()
        if weight is w:
            w.grad = ops.all_reduce(w.grad, "add", 0.5, *BOTH)
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
torch.testing.assert_close(w.detach().cpu(), reference.detach())
"""
    )
    env = {"PJRT_LIBRARY_PATH": str(half_plugin), "HALF_PLUGIN_PROCESS": str(process)}
    run_python(code, env={"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"} | env, timeout=300)


def test_one_process_is_one_replica(run_python):
    run_python(
        PRELUDE
        + """
t = torch.arange(4.0, device="xla")
assert ops.all_reduce(t, "add", 2.0, [], 1, True).tolist() == [0, 2, 4, 6]
refused(ValueError, lambda: ops.all_reduce(t, "add", 1.0, [0, 1], 2, True).cpu(),
        "expected groups of the 1 replica(s) of this job", "got replica 1")
""",
        env={"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1"},
    )
