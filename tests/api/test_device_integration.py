"""What PyTorch's own utilities ask of a device: that xla answers, and with the right values."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import torch_xla
import torch_xla.debug.metrics as met

# What callers in PyTorch and in libraries take from a device's module.
NAMES = """
    is_available is_initialized _initialized _is_in_bad_fork init device_count current_device
    set_device device device_of synchronize get_rng_state set_rng_state get_rng_state_all
    set_rng_state_all manual_seed manual_seed_all seed seed_all initial_seed default_generators
    _get_generator current_stream default_stream set_stream stream Stream StreamContext Event
    memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_stats
    reset_peak_memory_stats mem_get_info empty_cache get_device_name get_device_properties
    is_bf16_supported get_amp_supported_dtype
""".split()


@pytest.mark.parametrize("name", NAMES)
def test_the_module_has(name):
    assert hasattr(torch.xla, name)
    assert torch.get_device_module("xla") is torch.get_device_module("xla:0") is torch.xla


def test_the_module_answers():
    assert torch.xla.device_count() == torch_xla.device_count()
    assert torch.xla.get_device_properties().name == torch.xla.get_device_name()
    assert torch.xla.get_device_properties("xla:0").total_memory > 0
    assert set(torch.xla.memory_stats()) >= {"allocated_bytes.all.current"}
    assert torch.xla.memory_reserved() > 0
    torch.xla.reset_peak_memory_stats()
    assert torch.bfloat16 in torch.xla.get_amp_supported_dtype()
    with pytest.raises(AttributeError, match=r"torch\.xla.*no_such_name"):
        torch.xla.no_such_name  # noqa: B018


@pytest.mark.parametrize("order", ["after", "before"])
def test_programs_that_register_a_module_of_their_own(run_python, order):
    """As programs did when torch_xla brought none."""
    run_python(
        """
        import os, torch
        if os.environ["ORDER"] == "after":
            import torch_xla
        from types import ModuleType
        own = ModuleType("own")
        own.answer = lambda: 42
        own.device_count = lambda: 7
        torch._register_device_module("xla", own)
        import torch_xla
        torch._register_device_module("xla", torch_xla)
        torch._register_device_module("xla", torch.xla)
        assert torch.xla.answer() == 42 and torch.xla.step is torch_xla.step
        assert torch.xla.device_count() == 1 and torch.get_device_module("xla") is torch.xla
        assert not hasattr(torch.xla, "no_such_name")
        with torch.random.fork_rng(devices=[0], device_type="xla"):
            torch.rand(2, device="xla")
        try:
            torch._register_device_module("cpu", own)
        except RuntimeError as error:
            assert "already been registered" in str(error)
        else:
            raise AssertionError("PyTorch's error for other devices is gone")
        """,
        env={"ORDER": order},
    )


def test_accelerators_are_those_of_pytorch():
    assert torch.accelerator.current_accelerator() is None or (
        torch.accelerator.current_accelerator().type != "xla"
    )


# --- memory of the host ----------------------------------------------------------------------


def test_pinning_is_no_work():
    cpu = torch.arange(3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch: naming a device is deprecated
        assert cpu.pin_memory("xla").tolist() == cpu.tolist()
        assert cpu.pin_memory("xla").to("xla", non_blocking=True).tolist() == cpu.tolist()
    assert not cpu.to("xla").is_pinned()
    assert torch.ones(2, device="xla", pin_memory=True).tolist() == [1, 1]


def test_a_loader_that_pins():
    data = torch.utils.data.TensorDataset(torch.arange(6.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = torch.utils.data.DataLoader(
            data, batch_size=2, pin_memory=True, pin_memory_device="xla"
        )
        batches = [batch.to("xla").tolist() for (batch,) in loader]
    assert batches == [[0, 1], [2, 3], [4, 5]]


def test_record_stream_does_nothing():
    x = torch.arange(3.0, device="xla")
    assert x.record_stream(torch.xla.current_stream()) is None
    x[1:].record_stream(torch.Stream("xla"))
    assert x.tolist() == [0, 1, 2]


# --- recomputation ---------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 8), nn.Dropout(0.3)
        )

    def forward(self, x):
        return x + self.layers(x)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("autocast", [False, True])
def test_checkpoint_draws_the_same_dropout_again(reentrant, autocast):
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Block() for _ in range(3))).to("xla")
    data = torch.randn(4, 8, device="xla")

    def gradients(run):
        blocks.zero_grad()
        x = data.clone().requires_grad_()
        torch.manual_seed(5)
        with torch.autocast("xla", enabled=autocast):
            out = run(x)
        out.square().sum().backward()
        torch_xla.sync()
        return [out.detach().cpu(), x.grad.cpu(), *(p.grad.cpu() for p in blocks.parameters())]

    def recomputed(x):
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return x

    plain, again = gradients(blocks), gradients(recomputed)
    for a, b in zip(plain, again, strict=True):
        torch.testing.assert_close(a, b)
    assert all(a.abs().sum() > 0 for a in plain)
    sequential = gradients(lambda x: checkpoint_sequential(blocks, 2, x, use_reentrant=reentrant))
    for a, b in zip(plain, sequential, strict=True):
        torch.testing.assert_close(a, b)


def test_checkpoint_compiles_once():
    blocks = nn.Sequential(Block(), Block()).to("xla")
    x = torch.randn(4, 8, device="xla", requires_grad=True)
    for step in range(5):
        if step == 2:
            met.clear_all()
        checkpoint(blocks, x, use_reentrant=False).sum().backward()
        torch_xla.sync()
    assert not met.counter_value("UncachedCompile")


def test_saved_tensors_wait_on_the_cpu():
    x = torch.randn(3, device="xla", requires_grad=True)
    with torch.autograd.graph.save_on_cpu(pin_memory=False, device_type="xla"):
        y = (x * x).sum()
    y.backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


# --- torch._dynamo ---------------------------------------------------------------------------


def test_dynamo_knows_the_device(run_python):
    for first in ("import torch_xla", "import torch._dynamo.device_interface"):
        run_python(
            f"""
            import sys
            import torch
            {first}
            import torch_xla
            if {first!r} == "import torch_xla":
                assert "torch._dynamo" not in sys.modules  # importing it takes a second
            from torch._dynamo.device_interface import get_interface_for_device
            interface = get_interface_for_device("xla")
            assert get_interface_for_device(torch.device("xla:0")) is interface
            assert interface.is_available() and interface.device_count() == 1
            assert interface.current_device() == 0
            assert interface.maybe_exchange_device(-1) == interface.exchange_device(0) == 0
            assert interface.current_stream() == torch.xla.current_stream()
            assert issubclass(interface.Event, torch.Event)
            assert issubclass(interface.Stream, torch.Stream)
            assert interface.is_dtype_supported(torch.bfloat16)
            assert interface.get_device_properties(0).name == torch.xla.get_device_name()
            assert not interface.is_triton_capable()
            interface.synchronize()
            with interface.device(0):
                pass
            # PyTorch's own stay.
            assert get_interface_for_device("cpu").is_available()
            """
        )


def test_compiled_functions_run_with_streams():
    @torch.compile(backend="eager")
    def f(x):
        return x * torch.xla.device_count() + 1

    x = torch.arange(3.0, device="xla")
    assert f(x).tolist() == [1, 2, 3]


# --- modules and optimizers ------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.norm(self.embedding(x)))


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_an_optimizer_may_be_built_before_or_after_the_move(make):
    torch.manual_seed(0)
    model, x, y = Tied(), torch.randint(7, (5,)), torch.randint(7, (5,))

    def train(when, device):
        m = copy.deepcopy(model)
        if when == "after":
            m.to(device)
        optimizer = make(m.parameters(), lr=0.1)
        if when == "before":
            m.to(device)
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(m(x.to(device)), y.to(device)).backward()
            optimizer.step()
            torch_xla.sync()
        assert m.head.weight is m.embedding.weight
        return [p.detach().cpu() for p in m.parameters()]

    expected = train("after", "cpu")
    for when in ("before", "after"):
        torch.testing.assert_close(train(when, "xla"), expected)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_an_optimizer_with_state_moves_with_its_model(make):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    x = torch.randn(3, 4)

    def train(m, device, optimizer):
        for _ in range(2):
            optimizer.zero_grad()
            m(x.to(device)).square().sum().backward()
            optimizer.step()

    def run(device):
        m = copy.deepcopy(model)
        momentum = {"momentum": 0.9} if make is torch.optim.SGD else {}
        optimizer = make(m.parameters(), lr=0.1, **momentum)
        train(m, "cpu", optimizer)
        m.to(device)
        train(m, device, optimizer)
        return [p.detach().cpu() for p in m.parameters()]

    torch.testing.assert_close(run("xla"), run("cpu"))


# --- distributed code that needs a device's module --------------------------------------------


def test_fsdp_takes_the_module():
    from torch.distributed.fsdp._common_utils import _FSDPDeviceHandle

    handle = _FSDPDeviceHandle.from_device(torch.device("xla"))
    assert handle.is_available()
    assert handle.current_device() == 0
    stream = handle.Stream()
    with handle.stream(stream):
        x = torch.ones(2, device="xla")
    stream.wait_stream(handle.current_stream())
    assert x.tolist() == [1, 1]


def test_a_distributed_checkpoint_of_one_process(tmp_path):
    import torch.distributed.checkpoint as dcp

    model = Tied().to("xla")
    expected = {k: v.cpu() for k, v in model.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it runs in one process
        dcp.save(model.state_dict(), checkpoint_id=str(tmp_path / "d"), no_dist=True)
        other = Tied().to("xla")
        state = other.state_dict()
        dcp.load(state, checkpoint_id=str(tmp_path / "d"), no_dist=True)
    other.load_state_dict(state)
    for name, value in other.state_dict().items():
        assert value.device.type == "xla" and torch.equal(value.cpu(), expected[name]), name
