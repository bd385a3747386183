"""use_spmd(auto=True): programs are split as an integer program chooses, and compute the same.

Units: executor/compile/unplanned.
"""

from __future__ import annotations

import pytest

from .test_sharding import EIGHT, runner

PRELUDE = """
import torch_xla.runtime as xr
xr.use_spmd(auto=True)
import copy
from tests.spmd.training import *
from torch_xla.distributed.spmd import auto_sharding
from torch_xla.distributed.spmd.debugging import collectives

torch.set_default_dtype(torch.float64)
spec = torch_xla._XLAC._get_xla_sharding_spec

def close(x, y, what):
    x, y = x.detach().cpu(), y.detach()
    scale = y.abs().max().clamp(min=1e-4)  # what cancels is noise
    assert ((x - y).abs().max() / scale) < 1e-9, (what, x, y)

def train(plain, model, optimizer, steps=4, batch=16):
    "Trains both, and holds losses, gradients and parameters to each other."
    pairs = [(plain, "cpu", optimizer(plain.parameters())),
             (model, "xla", optimizer(model.parameters()))]
    for step in range(steps):
        losses = []
        for m, device, o in pairs:
            o.zero_grad()
            loss = m.loss(batch, step, device, lambda t: t)
            loss.backward()
            o.step()
            torch_xla.sync()
            losses.append(loss)
        close(losses[1], losses[0], f"loss of step {step}")
    for (name, p), q in zip(plain.named_parameters(), model.parameters()):
        close(q.grad, p.grad, f"gradient of {name}")
        close(q, p, name)
"""


@pytest.fixture
def run(run_python):
    """Runs code in an SPMD process of eight devices that splits by itself."""
    return runner(run_python, PRELUDE, timeout=800)


def test_planned_programs_come_from_the_disk(run, tmp_path):
    code = """
    import torch_xla.debug.metrics as met
    plain = build("cnn")
    # The bias of a convolution before a batch norm has rounding for a gradient, which a small eps
    # makes as large as any.
    optimizer = lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-6)
    train(plain, copy.deepcopy(plain).to("xla"), optimizer, steps=2)
    assert len(auto_sharding.plans()) > 0
    print("compiled", met.counter_value("UncachedCompile") or 0)
    """
    env = {"XLA_PERSISTENT_CACHE_PATH": str(tmp_path / "cache")}
    assert "compiled 0" not in run(code, env).stdout
    assert "compiled 0" in run(code, env).stdout


@pytest.mark.parametrize(
    "kind",
    [
        "cnn",
        "transformer",
        pytest.param("lstm", marks=pytest.mark.slow),
        pytest.param("experts", marks=pytest.mark.slow),
    ],
)
def test_training_is_that_of_the_cpu(run, kind):
    run(
        """
        plain = build(kind)
        model = copy.deepcopy(plain).to("xla")
        train(plain, model, lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-6))
        assert auto_sharding.plans(), "nothing was worth a plan"
        """,
        kind=kind,
    )


@pytest.mark.slow
def test_with_little_memory_parameters_are_split(run):
    run(
        """
        plain = build("transformer")
        model = copy.deepcopy(plain).to("xla")
        whole = sum(p.numel() * 8 for p in model.parameters())
        auto_sharding.enable(memory=4 * whole / 2 + 40e3)
        train(plain, model, lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-6))
        held = {name: spec(p) for name, p in model.named_parameters()}
        split = sum(p.numel() for name, p in model.named_parameters()
                    if held[name] not in ("", "{replicated}"))
        assert split * 8 > whole / 2, held
        assert {kind for kind, _ in collectives()}, "parts of parameters are sent to nobody"
        plan = auto_sharding.plans()[-1]
        assert plan.bytes <= 4 * whole / 2 + 40e3
        """
    )


def test_distribute_module_with_auto_policy(run_python):
    run_python(
        """
        import copy, torch, torch_xla
        from torch.distributed.tensor import DeviceMesh, distribute_module
        from torch_xla.distributed.spmd import auto_policy, auto_sharding
        import torch_xla.runtime as xr

        torch.manual_seed(0)
        from torch.nn import Linear, ReLU, Sequential

        plain = Sequential(Linear(64, 256), ReLU(), Linear(256, 64))
        mesh = DeviceMesh("xla", list(range(xr.global_runtime_device_count())))
        model = distribute_module(copy.deepcopy(plain), mesh, auto_policy)
        x = torch.randn(16, 64)
        torch.testing.assert_close(model(x.to("xla")).cpu(), plain(x))
        assert torch_xla._XLAC._xla_get_auto_sharding() and xr.is_spmd()
        plan = auto_sharding.plans()[-1]
        assert plan.mesh == {"0": 8} and list(plan.alternatives) == [(8,)], plan
        """,
        env=EIGHT,
    )


def test_what_is_marked_stays_as_it_is(run):
    run(
        """
        mesh = xs.Mesh(range(8), (2, 4), ("rows", "columns"))
        w, b = torch.randn(64, 128), torch.randn(128)
        marked = xs.mark_sharding(w.to("xla"), mesh, ("columns", None))
        x = torch.randn(32, 64)
        y = torch.relu(x.to("xla") @ marked + b.to("xla"))
        torch_xla.sync()
        close(y, torch.relu(x @ w + b), "y")
        plan = auto_sharding.plans()[-1]
        assert plan.mesh == {"rows": 2, "columns": 4}, plan
        assert ("f64[64, 128]", ("columns", None)) in [(r.type, r.spec) for r in plan.rows]
        expected = "{devices=[4,1,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate}"
        assert spec(marked) == expected, spec(marked)
        """
    )


def test_what_does_not_fit_raises_and_stays_recorded(run):
    run(
        """
        auto_sharding.enable(memory=1000)
        w, x = torch.randn(256, 256), torch.randn(32, 256)
        y = x.to("xla") @ w.to("xla")
        try:
            torch_xla.sync()
            raise AssertionError("a plan in 1000 bytes")
        except auto_sharding.DoesNotFit as e:
            assert "fit 1,000 bytes on each device" in str(e), e
        auto_sharding.enable()
        close(y, x @ w, "y")
        """
    )


def test_one_device_is_planned_for_nothing(run):
    run(
        """
        x = torch.randn(64, 64)
        y = x.to("xla") @ x.to("xla")
        close(y, x @ x, "y")
        assert auto_sharding.plans() == []
        """,
        env={"CPU_NUM_DEVICES": "1"},
    )


def test_data_that_is_made_in_the_program(run):
    """Nothing of it is on the devices before: the plan splits what is computed alone."""
    run(
        """
        torch.manual_seed(1)
        w = torch.randn(64, 256, device="xla")
        x = torch.rand(128, 64, device="xla")
        y = torch.relu(x @ w).sum(1)
        torch_xla.sync()
        assert auto_sharding.plans() and collectives() == [], collectives()
        close(y, torch.relu(x.cpu() @ w.cpu()).sum(1), "y")
        """
    )


def test_the_mesh_of_the_environment(run):
    run(
        """
        x = torch.randn(32, 64)
        y = x.to("xla") @ x.T.to("xla")
        torch_xla.sync()
        plan = auto_sharding.plans()[-1]
        assert plan.mesh == {"x": 4, "y": 2}, plan
        text = str(plan)
        assert "mesh (x=4, y=2)" in text and "f64[32, 64]" in text, text
        """,
        env={"XLA_AUTO_SPMD_MESH": "4,2"},
    )
    run(
        """
        x = torch.randn(32, 64)
        y = x.to("xla") @ x.T.to("xla")
        try:
            torch_xla.sync()
            raise AssertionError("a mesh of 9 devices")
        except ValueError as e:
            assert str(e).startswith("XLA_AUTO_SPMD_MESH: expected one or two sizes"), e
        """,
        env={"XLA_AUTO_SPMD_MESH": "3,3"},
    )


def test_steps_after_the_first_are_not_planned_again(run):
    run(
        """
        import torch_xla.debug.metrics as met
        model = build("transformer").to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            optimizer.zero_grad()
            model.loss(16, step, "xla", lambda t: t).backward()
            optimizer.step()
            torch_xla.sync()
            if step == 2:
                planned, compiled = len(auto_sharding.plans()), met.counter_value("UncachedCompile")
        assert len(auto_sharding.plans()) == planned
        assert met.counter_value("UncachedCompile") == compiled
        """
    )


def test_of_the_plans_that_compile_the_fastest_is_taken(run):
    """For chips that are not there; what the compiler refuses is none."""
    run(
        """
        import types
        from torch_xla import aot
        from torch_xla._src.aot import programs as aot_programs
        from torch_xla.distributed.spmd.auto_sharding import planner

        planner._WITHIN = 100.0  # all meshes
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
            x = torch.empty(32, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        class Compiler:
            target = "TPU"
            chip = aot.Chip("eight", "tpu", "fake", 8, None, 1e12, 1e11)

            def __init__(self, seconds):
                self.seconds, self.asked = seconds, []

            def compile(self, program):
                sizes = auto_sharding.plans()[-1].sizes
                self.asked.append(sizes)
                if sizes not in self.seconds:
                    raise aot.Refused(f"no {sizes}")
                return types.SimpleNamespace(
                    kernel_seconds=self.seconds[sizes], sending_seconds=0.5, sizes=sizes)

        def program(platform):
            return aot_programs.of_call(step, [x], {}, platform)

        def chosen(seconds):
            compiler = Compiler(seconds)
            made = auto_sharding.compile_for(compiler, program)
            assert sorted(compiler.asked) == [(2, 4), (4, 2), (8,)], compiler.asked
            return made.sizes

        for fastest in ((8,), (2, 4), (4, 2)):
            seconds = {(8,): 3.0, (2, 4): 3.0, (4, 2): 3.0, fastest: 1.0}
            count = len(auto_sharding.plans())
            assert chosen(seconds) == fastest
            plan = auto_sharding.plans()[-1]
            assert len(auto_sharding.plans()) == count + 1 and plan.sizes == fastest
            assert plan.estimates == {k: v + 0.5 for k, v in seconds.items()}
            del seconds[fastest]
            assert chosen(seconds) != fastest
            assert fastest not in auto_sharding.plans()[-1].estimates
        count = len(auto_sharding.plans())
        try:
            chosen({})
        except aot.Refused as error:
            assert "no (" in str(error)
        else:
            raise AssertionError
        assert len(auto_sharding.plans()) == count
        """
    )
