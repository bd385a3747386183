"""torch.compile(backend="openxla") of networks: graphs are counted, memory comes back, no crash."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_xla
import torch_xla.debug.metrics as met
from benchmarks.networks import ResNet18
from torch_xla import _XLAC


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch_xla.sync(wait=True)


def close(found, expected, tolerance=1e-3):
    assert found.device.type == "xla"
    torch.testing.assert_close(
        found.detach().cpu(), expected.detach(), rtol=tolerance, atol=tolerance
    )


def runs():
    return (met.metric_data("ExecuteTime") or (0,))[0]


def compiles():
    return met.counter_value("UncachedCompile") or 0


def resnet():
    """In float64: batch norms of a few elements make much of a rounding."""
    torch.manual_seed(0)
    on_cpu = ResNet18().double()
    return on_cpu, copy.deepcopy(on_cpu).to("xla")


def test_resnet_in_inference():
    on_cpu, on_xla = resnet()
    run = torch.compile(on_xla.eval(), backend="openxla")
    on_cpu.eval()
    with torch.no_grad():
        for i in range(3):
            x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
            on_device = x.to("xla")
            torch_xla.sync()
            before = runs(), compiles()
            y = run(on_device)
            assert (runs() - before[0], compiles() - before[1]) == (1, int(i == 0))
            close(y, on_cpu(x), 1e-6)


def test_resnet_in_training():
    """A step is one program, the optimizer's part in it."""
    on_cpu, on_xla = resnet()
    run = torch.compile(on_xla, backend="openxla")
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.01) for m in (on_xla, on_cpu))
    for step in range(4):
        x, target = torch.randn(4, 3, 32, 32).double(), torch.randint(10, (4,))
        on_device = x.to("xla"), target.to("xla")
        torch_xla.sync()
        before = runs(), compiles()
        F.cross_entropy(run(on_device[0]), on_device[1]).backward()
        ours.step()
        ours.zero_grad()
        torch_xla.sync()
        if step > 1:
            assert (runs() - before[0], compiles() - before[1]) == (1, 0)
        F.cross_entropy(on_cpu(x), target).backward()
        theirs.step()
        theirs.zero_grad()
    for name, expected in on_cpu.state_dict().items():
        close(on_xla.state_dict()[name], expected, 1e-6)


def test_a_compiled_optimizer():
    """The step of the optimizer as a graph of torch.compile, too."""
    torch.manual_seed(0)
    on_cpu = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    on_xla = copy.deepcopy(on_cpu).to("xla")
    run = torch.compile(on_xla, backend="openxla")
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (on_xla, on_cpu))
    update = torch.compile(ours.step, backend="openxla", fullgraph=False)
    for step in range(5):
        x, target = torch.randn(4, 8), torch.randint(4, (4,))
        on_device = x.to("xla"), target.to("xla")
        torch_xla.sync()
        before = runs(), compiles()
        F.cross_entropy(run(on_device[0]), on_device[1]).backward()
        update()
        ours.zero_grad()
        torch_xla.sync()
        if step > 2:
            assert (runs() - before[0], compiles() - before[1]) == (1, 0)
        F.cross_entropy(on_cpu(x), target).backward()
        theirs.step()
        theirs.zero_grad()
    for name, expected in on_cpu.state_dict().items():
        close(on_xla.state_dict()[name], expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ],
    ids=["sgd", "momentum", "dampening", "adam", "adagrad"],
)
def test_a_compiled_optimizer_with_a_schedule(make):
    """After one on the CPU: torch._dynamo has code for it already, and starts its trace over."""
    x, weight = torch.randn(2, 3), torch.randn(2, 3)
    ended = []
    for device, backend in (("cpu", "aot_eager"), ("xla", "openxla")):
        model = nn.Linear(3, 2)
        with torch.no_grad():
            model.weight.copy_(weight), model.bias.zero_()
        model.to(device)
        optimizer = make(model.parameters())
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        step = torch.compile(optimizer.step, backend=backend)
        for _ in range(5):
            model(x.to(device)).square().sum().backward()
            step()
            schedule.step()
            optimizer.zero_grad()
        ended.append(model.weight.detach())
    close(ended[1], ended[0])


def test_the_device_inside(recwarn):
    def function(x):
        y = torch.ones(3, device=torch_xla.device()) * 2
        return x + y + torch.arange(3, device=torch_xla.device())

    x = torch.zeros(3)
    run = torch.compile(function, backend="openxla", fullgraph=True)
    for _ in range(2):
        close(run(x.to("xla")), torch.tensor([2.0, 3.0, 4.0]))
    by_index = torch.compile(
        lambda x: x + torch.ones(3, device=torch_xla.device(0)), backend="openxla", fullgraph=True
    )
    close(by_index(x.to("xla")), torch.ones(3))
    assert not [w for w in recwarn if "trace" in str(w.message)]


def held():
    gc.collect()
    torch_xla.sync(wait=True)
    torch.ones(1, device="xla").sin()  # what threads without Python's lock let go
    gc.collect()
    return _XLAC._xla_live_storages(""), len(_XLAC._xla_programs())


@pytest.mark.slow
def test_reset_gives_everything_back():
    """Rounds of compiling, training and resetting hold no more tensors and programs than one."""

    def round_(i):
        layer = nn.Linear(4, 3 + i % 2).to("xla")
        run = torch.compile(lambda x: layer(x).relu() * i, backend="openxla")
        run(torch.ones(2, 4, device="xla")).sum().backward()
        torch_xla.sync()
        torch._dynamo.reset()

    for i in range(3):
        round_(i)
    first = held()
    for i in range(30):
        round_(i)
    storages, programs = held()
    assert storages <= first[0] + 2
    assert programs <= first[1] + 4


# Nothing that a user types may end the process.


class ByData(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        if x.sum() > 0:
            x = self.layer(x)
        n = int(x.argmax())
        mask = x > x.mean().item()
        return x[mask].sum() + n + x.nonzero().shape[0] + sum(x.flatten().tolist()[:2])


@pytest.mark.parametrize("backend", ["openxla", "openxla_eval", "aot_eager", "eager"])
def test_code_that_depends_on_data(backend):
    on_cpu = ByData()
    on_xla = copy.deepcopy(on_cpu).to("xla")
    run = torch.compile(on_xla, backend=backend)
    with torch.no_grad():
        for sign in (1, -1, 1):
            x = torch.randn(3, 4).abs() * sign
            close(run(x.to("xla")), on_cpu(x))


@torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
def test_captured_scalars():
    """Values that become numbers of the graph."""

    def function(x):
        return x * x.sum().item() + x[x > 0].sum()

    run = torch.compile(function, backend="openxla")
    for _ in range(2):
        x = torch.randn(5)
        close(run(x.to("xla")), function(x))


FAKE = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu and numpy": lambda x: x.cpu().numpy(),
    "print": lambda x: repr(x),
    "bool": lambda x: bool(x.sum() > 0),
    "index": lambda x: [1, 2, 3][x[0].long()],
    "format": lambda x: f"{x.sum()}",
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "dlpack": lambda x: torch.utils.dlpack.to_dlpack(x),
    "data_ptr": lambda x: x.data_ptr(),
    "deepcopy": lambda x: copy.deepcopy(x),
    "set_": lambda x: x.set_(torch.ones(2, device=x.device)),
    "storage": lambda x: list(x.untyped_storage())[:1],
    "xla tensor": lambda x: x + torch.ones(3, device="xla"),
    "cpu tensor": lambda x: x + torch.ones(3),
    "text": lambda x: _XLAC._get_xla_tensors_text([x]),
    "identity": lambda x: _XLAC._xla_get_tensor_id(x),
    "sync": lambda x: torch_xla.sync(),
    "sync of it": lambda x: _XLAC._xla_sync_multi([x], []),
    "backward": lambda x: (x.requires_grad_() * 2).sum().backward(),
    "to cpu": lambda x: x.to("cpu"),
    "to xla": lambda x: x.to("xla"),
    "random": lambda x: torch.rand(3, device="xla"),
    "unique": lambda x: x.unique(),
    "user computation": lambda x: __import__(
        "torch_xla.core.xla_op_registry", fromlist=["register"]
    ).register("f", lambda a: a)(x),
}


def test_fake_tensors_end_no_process(run_python):
    """Each either gives something or raises; a process of its own tells a crash."""
    done = run_python(
        """
        import torch, torch_xla
        from torch._subclasses.fake_tensor import FakeTensorMode
        from tests.api.test_openxla_networks import FAKE
        real = torch.tensor([1.0, 2.0, 3.0], device="xla")
        for name, use in FAKE.items():
            for make in (lambda m: torch.ones(3, device="xla"), lambda m: m.from_tensor(real)):
                for inside in (True, False):
                    mode = FakeTensorMode(allow_non_fake_inputs=name == "xla tensor")
                    with mode:
                        x = make(mode)
                    print("try", name, inside, flush=True)
                    try:
                        if inside:
                            with mode:
                                use(x)
                        else:
                            use(x)
                    except Exception as error:
                        text = str(error)[:80].replace(chr(10), " ")
                        print("  raised", type(error).__name__, text)
        assert real.tolist() == [1.0, 2.0, 3.0]
        print("end")
        """,
        check=False,
    )
    ended = done.returncode == 0 and done.stdout.endswith("end\n")
    assert ended, done.stdout[-300:] + done.stderr[-2000:]
