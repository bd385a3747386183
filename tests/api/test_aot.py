"""torch_xla.aot without a compiler: the programs that it compiles, made of weights that take no
memory, and its errors. tests/tpu/test_aot.py compiles."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_xla
from torch_xla import _XLAC, aot
from torch_xla._src.aot import figures as aot_figures
from torch_xla._src.aot import programs as aot_programs
from torch_xla._src.device import plugins
from torch_xla._src.saved_step.folder import Input
from torch_xla.debug import metrics


def text_of(step, *args, platform="TPU", **kwargs):
    return aot_programs.of_call(step, args, kwargs, platform)


def training(device, size=8, optimizer=torch.optim.AdamW, **options):
    with torch.device(device):
        model = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))
    updates = optimizer(model.parameters(), **options)

    def step(x):
        updates.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        updates.step()
        return loss

    return step, model, updates


def kinds(ports):
    return [(p.kind, p.name) for p in ports]


def allocations():
    return metrics.counter_value("CreateDataHandles")


def test_a_training_step_of_weights_on_meta():
    """The weights would take 2 TB."""
    step, model, updates = training("meta", 1 << 18)
    weights = list(model.parameters())
    before = allocations()
    program = text_of(step, torch.empty(2, 1 << 18, device="meta"))
    assert allocations() == before
    state = [i for i in program.inputs if i.kind == "state"]
    assert ("argument", "x") in kinds(program.inputs)
    assert {"model.0.weight", "updates.state.0.exp_avg", "updates.state.3.step"} <= {
        i.name for i in state
    }
    assert kinds(program.outputs)[0] == ("result", "result")
    # All state is new in place of the old one.
    replaced = {program.inputs[o.replaces].name for o in program.outputs if o.replaces is not None}
    assert replaced == {i.name for i in state}
    assert program.text.count("tf.aliasing_output") == len(state)
    # Nothing of it is left.
    assert all(a is b for a, b in zip(weights, model.parameters(), strict=True))
    assert {(p.device.type, type(p), p.requires_grad) for p in weights} == {
        ("meta", nn.Parameter, True)
    }
    assert not updates.state and updates.param_groups[0]["fused"] is None
    assert all(p.grad is None for p in weights)


def test_the_program_is_that_of_weights_on_xla():
    programs = []
    for device in ("meta", "cpu", "xla"):
        step, model, _ = training(device)
        if device == "xla":
            torch_xla.sync()
        programs.append(text_of(step, torch.randn(2, 8)))
    assert programs[0] == programs[1] == programs[2]


def test_weights_with_values_keep_them():
    step, model, updates = training("cpu")
    x = torch.randn(2, 8)
    step(x).detach()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    gradients = [p.grad for p in model.parameters()]
    averages = [updates.state[p]["exp_avg"].clone() for p in model.parameters()]
    program = text_of(step, x)
    assert "updates.state.2.exp_avg_sq" in [i.name for i in program.inputs]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]) and tensor.device.type == "cpu"
    for p, gradient, average in zip(model.parameters(), gradients, averages, strict=True):
        assert p.grad is gradient
        assert torch.equal(updates.state[p]["exp_avg"], average)
    step(x)  # trains on
    assert not torch.equal(model[0].weight, before["0.weight"])


def test_fake_weights_and_arguments():
    with FakeTensorMode():
        model = nn.Linear(8, 8)
        x = torch.randn(2, 8)
    program = text_of(model, x)
    assert kinds(program.inputs) == [
        ("argument", "input"),
        ("state", "weight"),
        ("state", "bias"),
    ]
    assert type(model.weight).__name__ == "FakeTensor" and model.weight.device.type == "cpu"
    with FakeTensorMode(), pytest.raises(RuntimeError, match="outside of FakeTensorMode"):
        text_of(model, x)


def test_gradients_that_are_accumulated():
    model = nn.Linear(8, 8, device="meta")

    def step(x):
        model(x).sum().backward()

    program = text_of(step, torch.empty(2, 8, device="meta"))
    replaced = {program.inputs[o.replaces].name for o in program.outputs}
    assert replaced == {"model.weight.grad", "model.bias.grad"}
    assert model.weight.grad is None


def test_tied_weights_and_views_of_one_memory():
    with torch.device("meta"):
        model = nn.ModuleList([nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)])
        model[1].weight = model[0].weight
        memory = torch.empty(4, 8)
    a, b = memory[:2], memory[2:]

    def step(tokens):
        a.add_(1)
        return model[1](model[0](tokens)) + b.sum()

    tokens = torch.empty(4, dtype=torch.long, device="meta")
    program = text_of(step, tokens)
    assert [i.shape for i in program.inputs if i.kind == "state"] == [[32], [16, 8]]
    assert a.device.type == b.device.type == "meta"


def test_random_numbers_are_drawn_from_an_input():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    program = text_of(model, torch.empty(2, 8, device="meta"))
    assert kinds(program.inputs)[-1] == ("random", "random_state")
    assert program.outputs[-1].replaces == len(program.inputs) - 1


def test_compiled_functions_and_other_arguments():
    model = nn.Linear(8, 8, device="meta")

    @torch_xla.compile
    def step(batch, scale, *, bias=None):
        return {"out": model(batch["x"]) * scale + (0 if bias is None else bias)}

    batch = {"x": torch.empty(2, 8, device="meta")}
    program = text_of(step, batch, 3.0, bias=torch.empty(8))
    assert kinds(program.inputs)[:2] == [("argument", "batch.x"), ("argument", "bias")]
    assert kinds(program.outputs) == [("result", "out")]


def test_exported_programs():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.norm = nn.BatchNorm2d(4)
            self.table = torch.arange(4.0)

        def forward(self, x):
            return self.norm(self.conv(x)) + self.table.view(4, 1, 1)

    exported = torch.export.export(Net(), (torch.randn(2, 3, 8, 8),))
    before = {n: t.clone() for n, t in exported.state_dict.items()}
    program = aot_programs.of_exported(exported, "TPU")
    assert ("argument", "x") in kinds(program.inputs)
    assert ("state", "conv.weight") in kinds(program.inputs)
    replaced = {program.inputs[o.replaces].name for o in program.outputs if o.replaces is not None}
    assert replaced == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert program.text.count("tf.aliasing_output") == 3
    assert all(torch.equal(t, before[n]) for n, t in exported.state_dict.items())


def test_exported_programs_of_dynamic_sizes_are_refused():
    batch = torch.export.Dim("batch")
    exported = torch.export.export(
        nn.Linear(4, 4), (torch.randn(2, 4),), dynamic_shapes=({0: batch},)
    )
    with pytest.raises(ValueError, match="static sizes, got the dynamic input 'input'"):
        aot_programs.of_exported(exported, "TPU")


def test_the_program_is_of_the_platform():
    def product(x):
        return x @ x

    x = torch.empty(4, 4, dtype=torch.long, device="meta")
    # libtpu takes no products of 64-bit integers.
    assert (
        "tensor<4x4xi64>, tensor<4x4xi64>) -> tensor<4x4xi64>"
        in text_of(product, x, platform="CUDA").text
    )
    assert "tensor<4x4xi64>, tensor<4x4xi64>) -> tensor<4x4xi64>" not in text_of(product, x).text
    with pytest.raises(TypeError, match="expected a dtype that TPU has, got complex128"):
        text_of(product, torch.empty(4, 4, dtype=torch.complex128, device="meta"))


def test_what_waits_is_the_program_that_a_barrier_launches():
    step, _, _ = training("xla", optimizer=torch.optim.SGD, lr=0.1)
    x = torch.randn(2, 8, device="xla")
    step(x)
    torch_xla.sync()
    with pytest.raises(RuntimeError, match="wait to be computed, got none"):
        aot_programs.waiting("TPU")
    loss = step(x)
    before = allocations()
    program = aot_programs.waiting("TPU")
    assert program.text.count("tf.aliasing_output") == 4
    assert allocations() == before
    torch_xla.sync()
    assert loss.isfinite().item()


def test_steps_that_are_not_one_program_are_refused_at_their_line():
    model = nn.Linear(8, 8, device="meta")

    def step(x):
        return model(x) * model(x).sum().item()

    line = step.__code__.co_firstlineno + 1
    with pytest.raises(RuntimeError, match=rf"test_aot.py:{line}\.$") as error:
        text_of(step, torch.empty(2, 8, device="meta"))
    assert str(error.value).startswith("aot.compile: expected 'test_steps_that_are")
    assert model.weight.device.type == "meta"


def test_weights_in_a_graph_are_refused():
    model = nn.Linear(8, 8)
    loss = model(torch.randn(2, 8)).sum()
    with pytest.raises(RuntimeError, match="no earlier call refers to, got 'weight'"):
        text_of(model, torch.randn(2, 8))
    loss.backward()  # as if nothing had been
    assert model.weight.grad is not None


def test_what_cannot_be_compiled():
    with pytest.raises(TypeError, match="expected a function, a module or an exported program"):
        text_of(3)


def test_without_libtpu(monkeypatch):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.delenv("PJRT_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(plugins.TpuPlugin, "search", lambda self, tried: None)
    with pytest.raises(aot.NoCompiler, match="Run: pip install libtpu"):
        aot.compile(nn.Linear(2, 2, device="meta"), torch.empty(2, device="meta"))


@pytest.mark.parametrize("plugin", ["CPU", plugins.find("CPU").library_path])
def test_plugins_that_compile_only_for_what_is_there(plugin):
    with pytest.raises(aot.NoCompiler, match="devices that are not there.*pip install libtpu"):
        aot.compile(nn.Linear(2, 2, device="meta"), torch.empty(2), plugin=plugin)


@pytest.mark.parametrize(
    ("topology", "error"), [("", aot.UnknownTopology), (" ", aot.UnknownTopology), (5, TypeError)]
)
def test_a_topology_has_a_name(topology, error):
    model = nn.Linear(2, 2, device="meta")
    with pytest.raises(error, match="aot.compile: expected the name of a topology"):
        aot.compile(model, torch.empty(2, device="meta"), topology=topology)


@pytest.fixture
def run_command(run_python, tmp_path):
    """Runs `python -m torch_xla.aot` with a script."""

    def run(script, *options):
        path = tmp_path / "script.py"
        path.write_text(script)
        code = f"""
            import runpy, sys
            sys.argv[1:] = {[str(path), *options]!r}
            runpy.run_module("torch_xla.aot", run_name="__main__", alter_sys=True)
        """
        return run_python(code, env={"PJRT_DEVICE": "CPU"}, check=False)

    return run


def test_the_command_says_what_it_lacks(run_command):
    result = run_command("raise SystemExit('ran')", "--plugin", "CPU")
    assert result.returncode == 2
    assert "devices that are not there" in result.stderr and "ran" not in result.stderr
    result = run_command("", "--plugin", "NOWHERE")
    assert result.returncode == 2 and "PJRT_DEVICE=NOWHERE" in result.stderr


def test_programs_that_run_are_lowered_for_another_platform_too(run_python):
    done = run_python("""
import torch, torch_xla
from torch_xla import _XLAC
_XLAC._lower_also_for("TPU")
w = torch.ones(4, 4, dtype=torch.long, device="xla")
for _ in range(3):
    w.copy_(w @ w)
    torch_xla.sync()
try:
    print(torch.linalg.eigvals(torch.eye(2, device="xla")).real.sum().item())
except NotImplementedError as error:
    print(error)
for name, text, refusal in _XLAC._take_also_lowered():
    print(name, "aliasing" in text, refusal.partition(":")[0])
    assert refusal or _XLAC._read_program(text)["mesh"] is None  # as the compiler asks
assert _XLAC._take_also_lowered() == []
""")
    assert done.stdout.splitlines() == [
        "2.0",
        "sync False ",
        "sync True ",
        "read False aten",
    ]


def test_memory_figures_of_the_compilers_words():
    said = (
        "Ran out of memory on HBM, the total memory required for HLO temporaries (21.97G) exceeds "
        "available HBM (15.75G)."
    )
    assert aot_figures.memory_figures(said) == (round(21.97 * 2**30), round(15.75 * 2**30))
    said = "Ran out of memory in memory space hbm. Used 17.00G of 15.75G hbm. Exceeded hbm"
    assert aot_figures.memory_figures(said) == (17 * 2**30, round(15.75 * 2**30))
    assert aot_figures.memory_figures("no memory") == (None, None)


def test_the_largest_buffers():
    def step(x, w):
        return (x @ w).softmax(-1)

    args = torch.empty(64, 32, device="meta"), torch.empty(32, 1000, device="meta")
    program = text_of(step, *args)
    read = _XLAC._read_program(program.text)
    largest = aot_figures.largest_buffers(read, program.inputs, 100)
    sizes = {b.what: (b.type, b.bytes) for b in largest}
    assert sizes["argument w"] == ("float32[32, 1000]", 128_000)
    assert sizes["dot_general"] == ("f32[64, 1000]", 256_000)
    assert [b.bytes for b in largest] == sorted((b.bytes for b in largest), reverse=True)
    text = """module @m {
  func.func public @main(%0: tensor<2x3xcomplex<f32>>, %1: tensor<i1>) -> (tensor<f32>) {
    %2 = "stablehlo.foo"(%0) : (tensor<2x3xcomplex<f32>>) -> tensor<2xbf16> loc("x" : 1)
  }
}
"""
    read = _XLAC._read_program(text)
    assert [(b.what, b.bytes) for b in aot_figures.largest_buffers(read, None)] == [
        ("argument 0", 48),
        ("foo", 4),
        ("argument 1", 1),
    ]
    error = aot_figures.does_not_fit("step", "v5e:2x2", "no memory", read, None)
    assert isinstance(error, RuntimeError) and error.largest[0].bytes == 48
    assert re.search(
        r"'step' does not fit on a chip of v5e:2x2: .*48 bytes argument 0", str(error), re.S
    )


def test_sizes_for_people():
    assert [aot_figures.human(s) for s in (5, 2048, 1.5 * 2**30, 2**41)] == [
        "5 bytes",
        "2.00 KiB",
        "1.50 GiB",
        "2.00 TiB",
    ]


def test_figures_of_a_compiler_without_estimates():
    chip = aot.Chip("1x1x1", "cuda", "H200", 1, None, None, None)
    memory = aot.Memory(48, 48, 48, 16, 8, None, {})
    compiled = aot.Compiled(
        "step", chip, memory, None, None, None, None, None, None, {}, None, None, "", b""
    )
    assert compiled.bound is None
    assert str(compiled).splitlines()[1:] == [
        "  memory             72 bytes of unknown",
        "    arguments        48 bytes",
        "    outputs          48 bytes, 48 bytes of it in arguments",
        "    temporaries      16 bytes",
        "    generated code   8 bytes",
        "  operations         unknown",
        "  bytes accessed     unknown",
        "  time               unknown",
    ]


def test_inputs_know_their_names():
    given = [Input("argument", "x", "bfloat16", [2, 3])]
    (buffer,) = aot_figures.largest_buffers({"functions": {"main": ((), ())}}, given)
    assert (buffer.what, buffer.bytes) == ("argument x", 12)
