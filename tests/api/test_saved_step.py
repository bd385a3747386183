"""torch_xla.saved_step: steps as folders, trained on in Python and by examples/runner.

Units: dispatch/functions/recorded_step.
"""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import torch_xla
import torch_xla.core.xla_model as xm
from tests.api.saved_steps import (
    assert_equal,
    cnn,
    dropout,
    inputs_of,
    losses_in,
    made,
    mlp,
    on_xla,
    save_batches,
    tensors_of,
    training,
    transformer,
)
from torch_xla import _XLAC, saved_step

TOLERANCE = {"rtol": 1e-5, "atol": 1e-7}  # the program computes without PyTorch's kernels


# --- training on --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [mlp, cnn, transformer])
def test_the_runner_trains_on_as_python_does(case, tmp_path, step_runner):
    model, optimizer, step, batches = made(case)
    for batch in batches[:2]:
        step(*on_xla(batch))
    before = tensors_of(model, optimizer)
    gradients = [p.grad for p in model.parameters()]
    random_state = xm.get_rng_state()
    folder = tmp_path / "step"
    saved_step.save(step, folder, on_xla(batches[0]))
    assert_equal(tensors_of(model, optimizer), before)
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert xm.get_rng_state() == random_state

    state = {n for n, i in inputs_of(folder).items() if i["kind"] == "state"}
    assert state == before.keys()
    assert ("random_state" in inputs_of(folder)) == (case is transformer)
    assert_equal(
        {n: t for n, t in load_file(folder / "state.safetensors").items() if n in state}, before
    )

    save_batches(tmp_path / "data.safetensors", batches[2:])
    out = tmp_path / "out.safetensors"
    done = step_runner(
        folder, "--steps", "10", "--data", tmp_path / "data.safetensors", "--save", out
    )
    losses = losses_in(done.stdout)
    assert len(losses) == 10

    # The same program in Python.
    again = saved_step.load(folder)
    assert [again(x, y).item() for x, y in batches[2:]] == losses
    assert_equal(load_file(out), {n: t.cpu() for n, t in again.state.items()})

    # The training itself.
    expected = [step(*on_xla(batch)).item() for batch in batches[2:]]
    torch.testing.assert_close(losses, expected, **TOLERANCE)
    after, found = tensors_of(model, optimizer), load_file(out)
    for name, value in after.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)
    if case is transformer:
        assert found["random_state"].item() == xm.get_rng_state()


def test_the_runner_begins_with_a_saved_state(tmp_path, step_runner):
    model, optimizer, step, batches = made(dropout)
    step(*on_xla(batches[0]))
    folder = tmp_path / "step"
    saved_step.save(step, folder, on_xla(batches[0]))
    whole = losses_in(step_runner(folder, "--steps", "4").stdout)
    state = tmp_path / "state.safetensors"
    first = losses_in(step_runner(folder, "--steps", "2", "--save", state).stdout)
    rest = losses_in(step_runner(folder, "--steps", "2", "--state", state).stdout)
    assert first + rest == whole
    assert len(set(whole)) == 4

    # A loaded step saves itself with its state.
    again = saved_step.load(folder)
    first = [again(*batches[0]).item() for _ in range(2)]
    again.save(folder)
    assert first + losses_in(step_runner(folder, "--steps", "2").stdout) == whole


def test_without_steps_the_state_stays(tmp_path, step_runner):
    _, _, step, batches = made(mlp)
    step(*on_xla(batches[0]))
    saved_step.save(step, tmp_path / "step", on_xla(batches[0]))
    out = tmp_path / "out.safetensors"
    assert step_runner(tmp_path / "step", "--steps", "0", "--save", out).stdout == ""
    assert_equal(load_file(out), load_file(tmp_path / "step" / "state.safetensors"))


def test_a_loaded_step_keeps_its_state_once(tmp_path):
    """Its buffers are taken over, and a tensor that somebody holds is not."""
    x = torch.ones(4, device="xla")

    def step(y):
        x.mul_(y)
        return x.sum()

    two = torch.full((4,), 2.0)
    saved_step.save(step, tmp_path / "step", (two,))
    again = saved_step.load(tmp_path / "step")
    held = again.state["x"]
    copy_of_it, view = held.clone(), held[:2]
    assert [again(two).item() for _ in range(3)] == [8, 16, 32]
    assert held.cpu().tolist() == [8] * 4
    assert view.cpu().tolist() == [8] * 2
    assert copy_of_it.cpu().tolist() == [1] * 4
    assert x.cpu().tolist() == [1] * 4
    pending = held + 1  # is computed from what was there
    again(two)
    assert pending.cpu().tolist() == [9] * 4


# --- what steps may be --------------------------------------------------------------------------


def check(step, args, tmp_path, step_runner, steps=3, tensors=lambda: [], **named):
    """Saves a step, trains on in the runner and in Python, and compares all results."""
    folder = tmp_path / "step"
    before = [t.detach().cpu().clone() for t in tensors()]
    saved_step.save(step, folder, args, named)
    for now, value in zip(tensors(), before, strict=True):
        assert torch.equal(now.detach().cpu(), value)
    out = tmp_path / "out.safetensors"
    printed = step_runner(folder, "--steps", str(steps), "--save", out).stdout
    again = saved_step.load(folder)
    arguments = {n: t for n, t in load_file(folder / "example.safetensors").items()}
    for i in range(steps):
        expected = step(*args, **named)
        found = again(**arguments)
        flat = expected if isinstance(expected, dict) else {"result": expected}
        if isinstance(expected, (tuple, list)):
            flat = {f"result.{n}": t for n, t in enumerate(expected)}
        found = found if isinstance(found, dict) else {"result": found}
        for name, value in flat.items():
            torch.testing.assert_close(found[name].cpu(), value.detach().cpu(), **TOLERANCE)
            if value.dtype == torch.float32 and value.numel() == 1:
                assert losses_in(printed, name)[i] == found[name].item()
    assert_equal(load_file(out), {n: t.cpu() for n, t in again.state.items()})
    return again


def test_tied_frozen_and_repeated_parameters(tmp_path, step_runner):
    torch.manual_seed(0)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 6)
            self.twice = nn.Linear(6, 6)
            self.frozen = nn.Linear(6, 6).requires_grad_(False)
            self.head = nn.Linear(6, 10, bias=False)
            self.head.weight = self.embed.weight
            self.unused = nn.Linear(3, 3)

        def forward(self, x):
            return self.head(self.frozen(self.twice(self.twice(self.embed(x)))))

    model, optimizer, step = training(Tied(), torch.optim.AdamW, lr=0.01)
    x, y = torch.arange(8).to("xla"), torch.arange(8).to("xla") % 3
    step(x, y)
    again = check(step, (x, y), tmp_path, step_runner, tensors=lambda: list(model.parameters()))
    parameters = {n for n in again.state if not n.startswith("optimizer.")}
    assert parameters == {f"model.{n}" for n, _ in model.named_parameters() if "unused" not in n}
    kinds = json.loads((tmp_path / "step" / "step.json").read_text())
    written = {kinds["inputs"][o["replaces"]]["name"] for o in kinds["outputs"] if "replaces" in o}
    assert "model.frozen.weight" not in written and "model.embed.weight" in written


def test_two_models_of_a_trainer(tmp_path, step_runner):
    torch.manual_seed(0)

    class Trainer:
        def __init__(self):
            self.nets = {"a": nn.Linear(4, 3).to("xla"), "b": nn.Linear(3, 2).to("xla")}
            self.optimizers = [
                torch.optim.Adam(self.nets["a"].parameters(), lr=0.1),
                torch.optim.SGD(self.nets["b"].parameters(), lr=0.1, momentum=0.9),
            ]
            self.ema = nn.Parameter(torch.zeros(3, 4, device="xla"), requires_grad=False)

        @torch_xla.compile
        def step(self, batch, *, scale):
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            outputs = self.nets["b"](self.nets["a"](batch["image"]).tanh())
            loss = F.mse_loss(outputs, batch["target"]) * scale
            loss.backward()
            for optimizer in self.optimizers:
                optimizer.step()
            with torch.no_grad():
                self.ema.lerp_(self.nets["a"].weight, 0.1)
            return {"loss": loss, "outputs": outputs}

    trainer = Trainer()
    batch = {"image": torch.randn(5, 4).to("xla"), "target": torch.randn(5, 2).to("xla")}
    trainer.step(batch, scale=0.5)
    again = check(trainer.step, (batch,), tmp_path, step_runner, scale=0.5)
    assert {"nets.a.weight", "nets.b.bias", "optimizers.0.state.1.exp_avg_sq", "ema"} <= {
        *again.state
    }
    described = json.loads((tmp_path / "step" / "step.json").read_text())
    assert described["constants"] == {"scale": 0.5}
    assert [i["name"] for i in described["inputs"][:2]] == ["batch.image", "batch.target"]


def test_state_of_all_kinds(tmp_path, step_runner):
    """Integers, bools, bfloat16, 0-dimensional and empty tensors, other strides, views, a state
    that is a result, states that change places."""
    torch.manual_seed(0)
    count = torch.zeros((), dtype=torch.int64, device="xla")
    flags = torch.tensor([True, False, True], device="xla")
    half = torch.ones(3, dtype=torch.bfloat16, device="xla")
    small = torch.tensor([250, 3], dtype=torch.uint8, device="xla")
    empty = torch.ones(0, 4, device="xla")
    image = torch.randn(2, 3, 4, 4).to("xla").to(memory_format=torch.channels_last)
    flat = torch.arange(12.0).to("xla")
    rows = [flat[:4], flat[4:].view(2, 4)]
    one, other = torch.full((3,), 1.0).to("xla"), torch.full((3,), 2.0).to("xla")
    never = torch.empty(2, device="xla")
    constant = torch.randn(3).to("xla")

    def step(x, mask):
        count.add_(1)
        flags.logical_xor_(mask)
        half.mul_(1.5)
        small.add_(5)
        empty.add_(1)
        image.mul_(x[0, 0])
        rows[0].add_(1)
        rows[1][:, 1:3].mul_(2)
        kept = one.clone()
        one.copy_(other)
        other.copy_(kept)
        never.add_(1)
        return (
            (flat.sum() + image.sum() + half.float().sum()) * count,
            count, flags, half, small, empty, image, rows[1].t(), one, constant, x,
        )  # fmt: skip

    x = torch.randn(4, 2).to("xla").t()
    mask = torch.tensor([True, True, False])
    again = check(
        step, (x, mask.to("xla")), tmp_path, step_runner,
        tensors=lambda: [count, flags, half, small, empty, image, flat, one, other, constant],
    )  # fmt: skip
    assert again.state["flat"].shape == (12,)
    assert again.state["small"].dtype == torch.uint8


def test_names_that_are_taken(tmp_path, step_runner):
    random_state = torch.zeros(3, device="xla")
    others = {"__metadata__": torch.zeros(2, device="xla"), 'é "': torch.zeros(1, device="xla")}

    def step():
        random_state.add_(torch.rand(3, device="xla"))
        for other in others.values():
            other.add_(1)
        return {"loss": [random_state.sum(), 3, None]}

    folder = tmp_path / "step"
    saved_step.save(step, folder)
    again = saved_step.load(folder)
    assert {*again.state} == {
        "random_state", "random_state.2", "others.__metadata__", "others.é \"",
    }  # fmt: skip
    done = step_runner(folder, "--steps", "2", "--save", tmp_path / "out")
    assert losses_in(done.stdout, "loss.0") == [again()["loss.0"].item() for _ in range(2)]
    assert_equal(load_file(tmp_path / "out"), {n: t.cpu() for n, t in again.state.items()})
    step()
    assert random_state.sum().item() == pytest.approx(losses_in(done.stdout, "loss.0")[0])


def test_a_step_of_nothing(tmp_path, step_runner):
    saved_step.save(lambda: None, tmp_path / "step")
    assert step_runner(tmp_path / "step", "--steps", "2").stdout == "step 1:\nstep 2:\n"
    assert saved_step.load(tmp_path / "step")() == {}


def test_the_learning_rate_as_a_tensor(tmp_path, step_runner):
    torch.manual_seed(0)
    model = nn.Linear(4, 2).to("xla")
    rate = torch.tensor(0.1, device="xla")
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)

    @torch_xla.compile
    def step(x, new_rate):
        rate.copy_(new_rate)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    x, rates = torch.randn(3, 4), [torch.tensor(0.1 * 0.5**i) for i in range(5)]
    step(x.to("xla"), rates[0].to("xla"))
    saved_step.save(step, tmp_path / "step", (x, rates[0]))
    save_batches(tmp_path / "data", [(x, r) for r in rates], ("x", "new_rate"))
    done = step_runner(tmp_path / "step", "--steps", "5", "--data", tmp_path / "data")
    expected = [step(x.to("xla"), r.to("xla")).item() for r in rates]
    torch.testing.assert_close(losses_in(done.stdout), expected, **TOLERANCE)


def test_gradients_that_are_accumulated_are_state(tmp_path, step_runner):
    model = nn.Linear(3, 1).to("xla")
    x = torch.randn(5, 3).to("xla")

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return model.weight.grad.sum()

    step(x)
    again = check(step, (x,), tmp_path, step_runner, tensors=lambda: [model.weight.grad])
    assert {*again.state} == {"model.weight", "model.bias", "model.weight.grad", "model.bias.grad"}


def test_autocast_and_loss_scaling(tmp_path, step_runner):
    from torch_xla.amp import GradScaler

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler(init_scale=8.0, growth_interval=2)

    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast("xla", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    x, y = torch.randn(6, 8).to("xla"), torch.randint(4, (6,)).to("xla")
    step(x, y)
    before = dict(scaler.__dict__)
    saved_step.save(step, tmp_path / "step", (x, y))
    assert dict(scaler.__dict__) == before
    losses = losses_in(step_runner(tmp_path / "step", "--steps", "5").stdout)
    expected = [step(x, y).item() for _ in range(5)]
    torch.testing.assert_close(losses, expected, rtol=1e-2, atol=1e-3)
    assert {"scaler._scale", "scaler._growth_tracker"} <= inputs_of(tmp_path / "step").keys()


def test_steps_in_eager_mode_and_uncompiled(tmp_path, step_runner):
    from torch_xla.experimental import eager_mode_context

    with eager_mode_context(True):
        model, _, step, batches = made(mlp)
        batch = on_xla(batches[0])
        step(*batch)
        check(step, batch, tmp_path, step_runner, tensors=lambda: list(model.parameters()))


def test_loops_and_checkpoints_within_a_step(tmp_path, step_runner):
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to("xla")
    optimizer = torch.optim.Adagrad(model.parameters())

    def step(x):
        optimizer.zero_grad()
        y = checkpoint(model, x, use_reentrant=False, preserve_rng_state=False)
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        zero = torch.zeros((), device="xla")
        with torch.no_grad():
            _, doubled = torch._higher_order_ops.while_loop(
                lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (zero, loss.detach())
            )
        return doubled

    x = torch.randn(3, 4).to("xla")
    step(x)
    check(step, (x,), tmp_path, step_runner)


def test_a_compiled_graph_within_a_step(tmp_path, step_runner):
    torch._dynamo.reset()
    scale = torch.full((3,), 2.0).to("xla")
    inner = torch.compile(lambda x: x.sin() * scale, backend="openxla")

    def step(x):
        scale.add_(1)
        return inner(x).sum()

    x = torch.randn(3).to("xla")
    step(x)
    check(step, (x,), tmp_path, step_runner)


# --- what saving leaves alone -------------------------------------------------------------------


def test_saving_leaves_python_alone(tmp_path):
    model, optimizer, _, batches = made(mlp)
    batch = on_xla(batches[0])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, gamma=0.5)
    seen = []

    def step(x, y):
        xm.add_step_closure(lambda: seen.append(1))
        optimizer.zero_grad()
        logits = model(x)
        model.last = logits
        random.random(), torch.rand(1)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    step(*batch)
    torch_xla.sync()
    pending = model(batch[0]).sum()  # reads what the step writes
    before = copy.deepcopy([schedule.state_dict(), random.getstate(), torch.get_rng_state()])
    attributes, groups = dict(model.__dict__), copy.deepcopy(optimizer.state_dict())
    last, versions = model.last, [p._version for p in model.parameters()]
    seen.clear()
    saved_step.save(step, tmp_path / "step", batch)
    after = [schedule.state_dict(), random.getstate(), torch.get_rng_state()]
    assert str(before) == str(after)
    assert dict(model.__dict__) == attributes and model.last is last
    assert str(optimizer.state_dict()["param_groups"]) == str(groups["param_groups"])
    assert [p._version for p in model.parameters()] == versions
    torch_xla.sync()
    assert seen == []
    pending.backward()  # what it saved has not been written


def test_a_folder_is_replaced_whole(tmp_path, monkeypatch):
    x = torch.ones(3, device="xla")

    def step():
        x.add_(1)
        return x.sum()

    folder = tmp_path / "step"
    saved_step.save(step, folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(FileExistsError, match="Name another"):
        saved_step.save(step, tmp_path / "other")
    step()
    saved_step.save(step, folder)
    assert load_file(folder / "state.safetensors")["x"].tolist() == [2, 2, 2]

    from torch_xla._src.saved_step import folder as step_folder

    step()
    monkeypatch.setattr(step_folder.Manifest, "to_json", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        saved_step.save(step, folder)
    assert load_file(folder / "state.safetensors")["x"].tolist() == [2, 2, 2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "step"]


def test_without_jaxlib_the_text_is_saved_alone(tmp_path, step_runner, monkeypatch):
    from torch_xla._src.export import mlir

    _, _, step, batches = made(mlp)
    step(*on_xla(batches[0]))
    monkeypatch.setattr(mlir, "is_installed", lambda: False)
    saved_step.save(step, tmp_path / "step", on_xla(batches[0]))
    assert sorted(p.name for p in (tmp_path / "step").iterdir()) == [
        "example.safetensors", "state.safetensors", "step.json", "step.mlir",
    ]  # fmt: skip
    losses = losses_in(step_runner(tmp_path / "step", "--steps", "3").stdout)
    again = saved_step.load(tmp_path / "step")
    assert [again(*batches[0]).item() for _ in range(3)] == losses


# --- what is refused ----------------------------------------------------------------------------


def refused(match, step, *args, **kwargs):
    with pytest.raises(RuntimeError, match=match) as raised:
        saved_step.save(step, "never written", args, kwargs)
    assert "saved_step.save: expected" in str(raised.value)
    assert not _XLAC._xla_in_region()
    return str(raised.value)


def test_a_step_that_reads_values():
    x = torch.ones(3, device="xla")
    for read in (lambda: x.sum().item(), lambda: x.cpu(), lambda: print(x), lambda: x.tolist()):
        text = refused("Values cannot be read", lambda read=read: (read(), x + 1)[1])
        assert __file__ in text
    assert x.cpu().tolist() == [1, 1, 1]


def test_a_step_with_an_operator_of_the_host():
    x = torch.ones(3, 3, device="xla")
    text = refused("linalg_eig", lambda: torch.linalg.eigvals(x))
    assert __file__ in text


def test_a_step_without_state_yet():
    _, _, step, batches = made(mlp)
    refused("run the step once", step, *on_xla(batches[0]))
    step(*on_xla(batches[0]))


def test_a_step_that_leaves_new_tensors():
    kept = [torch.ones(3, device="xla")]

    def step(x):
        kept[0] = kept[0] * 0.9 + x
        return kept[0].sum()

    x = torch.ones(3, device="xla")
    refused(r"an earlier call of the step has made \(Float\[3\]\)", step, x)


def test_a_parameter_that_gets_another_memory():
    weight = nn.Parameter(torch.ones(3, device="xla"))
    place = weight.data_ptr()

    def step(x):
        weight.grad = None
        loss = (weight * x).sum()
        loss.backward()
        weight.data = weight.data - 0.5 * weight.grad
        return loss

    refused("an earlier call of the step has made", step, torch.ones(3, device="xla"))
    assert weight.tolist() == [1, 1, 1] and weight.data_ptr() == place and weight.grad is None


def test_a_number_that_python_computes():
    x = torch.ones(3, device="xla")
    numbers = iter([0.1, 0.05, 0.025])
    text = refused("was 0.1 in one call and 0.05 in the next", lambda: x * next(numbers))
    assert __file__ in text
    scale = [1]

    def grows():
        scale[0] += 1
        return x.sum() * torch.full((scale[0],), 2.0, device="xla")

    refused(r"`size` of aten::full is \[3\], was \[2\]", grows)
    refused("brings to xla differs", lambda: x + torch.rand(3).to("xla"))


def test_a_step_that_counts_on_the_host():
    model = nn.Linear(3, 1).to("xla")
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    x = torch.ones(2, 3, device="xla")
    step(x)
    counts = [s["step"].clone() for s in optimizer.state.values()]
    text = refused("A number that Python has computed", step, x)
    assert __file__ in text
    assert [s["step"] for s in optimizer.state.values()] == counts


def test_arguments_that_are_written_or_shared():
    x = torch.ones(3, device="xla")
    refused("writes argument 0", lambda y: y.mul_(2), x)
    refused("argument 1, which shares memory", lambda a, y: x[:2] * y, x + 1, x[:2])


def test_dtypes_that_the_device_does_not_hold(run_python):
    run_python(
        """
        import pytest, torch, torch_xla
        x = torch.ones(3, device="xla")
        with pytest.raises(RuntimeError, match="XLA_USE_BF16"):
            torch_xla.saved_step.save(lambda: x + 1, "never written")
        """,
        env={"XLA_USE_BF16": "1"},
    )


def test_other_refusals():
    x = torch.ones(3, device="xla")
    generator = torch.Generator("xla")
    refused("generator of its own", lambda: torch.rand(3, device="xla", generator=generator))
    refused("leaves the random state", lambda: torch_xla.manual_seed(1))
    refused("a result on cpu", lambda: torch.ones(3))
    refused("another tensor", lambda: x.resize_(5))
    with pytest.raises(RuntimeError, match="outside of a compiled function"):
        torch_xla.compile(lambda: saved_step.save(lambda: x + 1, "never written"))()
    with pytest.raises(TypeError, match="expected a function"):
        saved_step.save(3, "never written")
    with pytest.raises(KeyError, match="mine"):
        saved_step.save(lambda: {}["mine"], "never written")
    wide = torch.ones(2, dtype=torch.complex128, device="xla")
    with pytest.raises(ValueError, match="dtypes that safetensors has, got .*complex128"):
        saved_step.save(lambda: wide.abs(), "never written")
    assert not Path("never written").exists()


def test_numbers_that_the_program_holds_may_be_passed(tmp_path):
    x = torch.ones(3, device="xla")

    def step(x, scale, mode="sum", *, shift=None, on=True, nan=0.0):
        return (x * scale).sum() if mode == "sum" else x

    saved_step.save(step, tmp_path / "a", (x, 2.0, "sum"), {"on": True, "nan": float("nan")})
    again = saved_step.load(tmp_path / "a")
    every = {"scale": 2.0, "mode": "sum", "on": True, "nan": float("nan")}
    for args, named in [
        ((x,), {}), ((x, 2.0), {}), ((x, 2.0, "sum"), {}), ((x, 2.0), {"mode": "sum"}),
        ((x, 2.0, "sum"), {"on": True, "nan": float("nan")}), ((), {"x": x, **every}),
        ((2.0, x, "sum"), {}), ((x,), {"scale": 2.0, "on": True}),
    ]:  # fmt: skip
        assert again(*args, **named).item() == 6, (args, named)
    for args, named, told in [
        ((x, 3.0), {}, "scale = 2.0, which the program holds, got 3.0"), ((x, 2), {}, "got 2"),
        ((x, 2.0, "mean"), {}, "mode = 'sum'"), ((x,), {"on": 1}, "on = True.* got 1"),
        ((x, 2.0, "sum", True, 0.0, 5), {}, "nan = nan.* got 0.0"), ((x, x), {}, "got 2 without"),
        ((x,), {"shift": None}, "shift"), ((2.0,), {}, "got 0 without names"),
        ((x, 2.0, "sum", True, float("nan"), 5), {}, "got 2 without names"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=told):
            again(*args, **named)


def test_what_a_refused_recording_has_made_has_no_value():
    held = [torch.ones(3, device="xla")]

    def step(x):
        held[0] = held[0] + x

    x = torch.ones(3, device="xla")
    refused("an earlier call of the step has made", step, x)
    refused("made by an earlier recording that was refused: make it anew", step, x)
    held[0] = torch.ones(3, device="xla")
    step(x)
    assert held[0].tolist() == [2, 2, 2]
