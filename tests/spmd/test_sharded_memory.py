"""Modules that begin on "meta" are made in parts: never a whole parameter on each device.

The memory of eight CPU devices is the host's, so that all parts together are the parameters once.
"""

from __future__ import annotations

import pytest

from .test_spmd_models import run  # noqa: F401

MEMORY = """
def status(key):
    "In MiB."
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024

def make(size=1024, layers=64):
    return nn.Sequential(*[nn.Linear(size, size, bias=False) for _ in range(layers)])

mesh = xs.Mesh(np.arange(8), (8,), ("fsdp",))
(torch.ones(8, 8, device="xla") + 1).cpu()
"""


def test_the_random_numbers_are_those_of_one_device(run):  # noqa: F811
    run("""
    mesh = xs.Mesh(np.arange(8), (8,), ("fsdp",))
    def make():
        return nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Embedding(24, 8))
    def fill(modules):
        torch_xla.manual_seed(3)
        for module in modules:
            module.reset_parameters()
    with torch.device("meta"):
        empty = make()
    split = FSDPv2(empty, mesh)
    for name, t in split.state_dict().items():
        assert t.device == device, name
    whole = make().to("xla")
    fill(split.module)
    fill(whole)
    for (name, p), q in zip(split.state_dict().items(), whole.state_dict().values(), strict=True):
        torch.testing.assert_close(p.cpu(), q.cpu(), rtol=0, atol=0, msg=name)
    assert all("devices=" in spec(p) for p in split.parameters())
    """)


@pytest.mark.process_memory
@pytest.mark.parametrize("how", ["loaded", "drawn"])
def test_the_peak_is_the_parameters_and_little_more(run, tmp_path, how):  # noqa: F811
    run(
        MEMORY
        + """
torch.save(make().state_dict(), path)
with torch.device("meta"):
    model = make()
total = sum(p.nbytes for p in model.parameters()) / 2**20
assert total == 256
before = status("RssAnon")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak begins anew
model = FSDPv2(model, mesh)
if how == "loaded":
    model.load_state_dict(torch.load(path, mmap=True))
else:
    for layer in model.module:
        layer.reset_parameters()
torch_xla.sync(wait=True)
held = status("RssAnon") - before
assert held < total * 1.125 + 48, (held, total)
if how == "drawn":  # the pages of a file count, too; the system may take them back
    peak = status("VmHWM") - status("RssFile") - before
    assert peak < total * 1.125 + 64, (peak, total)
assert all("devices=" in spec(p) for p in model.parameters())
""",
        how=how,
        path=str(tmp_path / "state.pt"),
    )
