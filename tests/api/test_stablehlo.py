"""torch_xla.stablehlo: exported models as StableHLO programs, and that others run them.

Units: dispatch/functions/exported_function, _src/export.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.stablehlo as stablehlo
from torch_xla import _XLAC
from torch_xla._src.export import mlir
from torch_xla.stablehlo import (
    StableHLOExportOptions,
    StableHLOGraphModule,
    VariableType,
    exported_program_to_stablehlo,
)

from .exported_models import MODELS, Jax, exported, flat_arguments, function_of


@pytest.fixture(scope="module")
def jax() -> Jax:
    return Jax()


class Kitchen(nn.Module):
    """Parameters, buffers that are saved and not saved, constants, and results of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.unused = nn.Parameter(torch.randn(2))
        self.register_buffer("offset", torch.arange(8.0), persistent=False)
        self.scale = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, x: torch.Tensor, times: int = 2, extra: torch.Tensor | None = None) -> Any:
        y = self.norm(self.linear(x)) + self.offset + torch.arange(8) * times
        if extra is not None:
            y = y + extra
        return {"y": F.gelu(y), "more": (y.sum(0), times, None)}, self.scale * torch.ones(3)


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(3, 4)


@pytest.fixture
def kitchen() -> Kitchen:
    torch.manual_seed(0)
    return Kitchen()


def test_an_exported_model_runs_again(kitchen, x):
    program = exported(copy.deepcopy(kitchen).eval(), (x,))
    text = program.get_stablehlo_text("forward")
    assert text.startswith("module @torch_xla {")
    assert "func.func @main(" in text and "custom_call" not in text
    torch.testing.assert_close(program(x), kitchen.eval()(x))
    # Results are where the arguments are.
    assert program(x)[1].device.type == "cpu"
    on_device = program(x.to("xla"))
    assert on_device[1].device.type == "xla"
    torch.testing.assert_close(on_device[0]["y"].cpu(), kitchen(x)[0]["y"])


def test_what_a_program_takes(kitchen, x):
    meta = function_of(exported(kitchen.eval(), (x,))).meta
    names = [at.name for at in meta.input_locations if at.type_ == VariableType.PARAMETER]
    assert "linear.weight" in names and "offset" not in names
    assert meta.input_locations[-1] == stablehlo.InputLocation.input_arg(0)
    assert meta.input_signature[-1] == stablehlo.VariableSignature([3, 4], "float32")
    assert [r.shape for r in meta.output_signature] == [[3, 8], [8], [3]]
    unused = {at.name for at, _ in meta.unused_inputs}
    assert unused == {"unused", "norm.num_batches_tracked"}


def test_keyword_arguments_and_what_is_no_tensor(kitchen, x):
    kitchen.eval()
    extra = torch.randn(8)
    program = exported(kitchen, (x,), kwargs={"extra": extra, "times": 3})
    wanted = kitchen(x, times=3, extra=extra)
    torch.testing.assert_close(program(x, times=3, extra=extra), wanted)
    torch.testing.assert_close(program(x, extra=extra, times=3), wanted)
    with pytest.raises(ValueError, match="expected 3 as argument"):
        program(x, extra=extra, times=4)
    with pytest.raises(ValueError, match="structure that was exported"):
        program(x)
    wrong = r"expected shape \[3, 4\] \(float32\) as argument 0, got shape \[2, 4\] \(float32\)"
    with pytest.raises(ValueError, match=wrong):
        program(x[:2], extra=extra, times=3)
    with pytest.raises(ValueError, match="one of \\['forward'\\], got 'backward'"):
        program.get_stablehlo_text("backward")


def test_keys_of_dicts_in_any_order(x):
    class Difference(nn.Module):
        def forward(self, d: dict) -> dict:
            return {"z": d["x"] - d["y"]["b"][0], "a": d["y"]["a"]}

    given = {"x": x, "y": {"a": x * 2, "b": [x + 1]}}
    program = exported(Difference(), (given,))
    other = {"y": {"b": [x + 1], "a": x * 2}, "x": x}
    for arguments in (given, other):
        result = program(arguments)
        torch.testing.assert_close(result, Difference()(given))
        assert list(result) == ["z", "a"]
    for wrong in ({"x": x}, {"x": x, "y": {"a": x, "b": x}}, {"x": x, "y": {"a": x, "c": [x]}}):
        with pytest.raises(ValueError, match="structure that was exported"):
            program(wrong)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.ops.aten.select_copy.int(x, 1, -1) + 1,
        lambda x: torch.ops.aten.slice_copy.Tensor(x, 1, 1, 3, 2) + 1,
        lambda x: torch.ops.aten.split_copy.Tensor(x, 2, 1),
    ],
    ids=["select", "slice", "split"],
)
def test_copies_of_views(function, x):
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    program = exported(Model(), (x,))
    torch.testing.assert_close(program(x), function(x))
    y, z = x.clone().requires_grad_(), x.to("xla").requires_grad_()
    a, b = (pytree.tree_leaves(function(t)) for t in (y, z))
    assert [t.stride() for t in a] == [t.stride() for t in b]
    sum(t.square().sum() for t in a).backward()
    sum(t.square().sum() for t in b).backward()
    torch.testing.assert_close(z.grad.cpu(), y.grad)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("functions/forward.meta", lambda b: b[: len(b) // 2]),
        ("functions/forward.meta", lambda b: b"[1, 2]"),
        ("functions/forward.meta", lambda b: b.replace(b'"InputLocation"', b'"Elsewhere"')),
        ("functions/forward.mlir", lambda b: b"\xff" + b),
        ("functions/forward.mlir", lambda b: b[: len(b) // 2]),
        ("functions/forward.mlir", lambda b: b.replace(b"add", b"mul", 1)),
        ("functions/forward.bytecode", lambda b: b""),
        ("functions/forward.bytecode", lambda b: b[: len(b) // 2]),
        ("functions/forward.bytecode", lambda b: b[:-9] + bytes([b[-9] ^ 1]) + b[-8:]),
        ("weights.pt", lambda b: b[: len(b) // 2]),
        ("weights.pt", lambda b: b"junk"),
        ("constants.pt", lambda b: b""),
    ],
)
def test_damaged_files_are_named(kitchen, x, tmp_path, name, damage):
    exported(kitchen.eval(), (x,)).save(tmp_path)
    path = tmp_path / name
    if not path.exists():
        pytest.skip("jaxlib writes it")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="damaged file") as raised:
        StableHLOGraphModule.load(tmp_path)
    assert str(path) in str(raised.value)


def test_a_folder_that_is_saved_to_again(kitchen, x, tmp_path):
    """Nothing of what was there before is taken for a part of what is saved."""
    exported(kitchen.eval(), (x,)).save(tmp_path)
    (tmp_path / "functions" / "other.txt").write_text("not ours")

    class Negated(torch.nn.Module):
        def forward(self, x):
            return -x

    options = StableHLOExportOptions(include_human_readable_text=False)
    exported(Negated(), (x,)).save(tmp_path, options)
    torch.testing.assert_close(StableHLOGraphModule.load(tmp_path)(x), -x)
    assert (tmp_path / "functions" / "other.txt").exists()

    class Largest(torch.nn.Module):
        def forward(self, x):
            return x.max(0)

    program = exported(Largest(), (x,))
    with pytest.raises(NotImplementedError, match="serializ"):  # PyTorch's, of such a tuple
        program.save(tmp_path)
    torch.testing.assert_close(StableHLOGraphModule.load(tmp_path)(x), -x)


def test_folders_without_sums_of_their_files_are_read(kitchen, x, tmp_path):
    """As torch_xla 2.9 and earlier ones of ours have written them."""
    exported(kitchen.eval(), (x,)).save(tmp_path)
    path = tmp_path / "functions" / "forward.meta"
    meta = json.loads(path.read_text())
    assert meta["StableHLOFunctionMeta"].pop("sha256")
    path.write_text(json.dumps(meta))
    torch.testing.assert_close(StableHLOGraphModule.load(tmp_path)(x), kitchen(x))


def test_a_folder_without_programs_is_named(kitchen, x, tmp_path):
    exported(kitchen.eval(), (x,)).save(tmp_path)
    for path in (tmp_path / "functions").glob("forward.*"):
        if path.suffix != ".meta":
            path.unlink()
    with pytest.raises(FileNotFoundError, match="forward.mlir beside .*forward.meta, found none"):
        StableHLOGraphModule.load(tmp_path)


def test_buffers_that_a_model_writes(kitchen, x, tmp_path):
    program = exported(copy.deepcopy(kitchen), (x,))
    for _ in range(2):
        torch.testing.assert_close(program(x), kitchen(x))
    program.save(tmp_path)
    state = StableHLOGraphModule.load(tmp_path).bundle.state_dict
    torch.testing.assert_close(state["norm.running_var"], kitchen.norm.running_var)
    assert state["norm.num_batches_tracked"] == 2


def test_state_that_is_not_saved(x):
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * self.calls

    program = exported(Counter(), (x,))
    for times in (1, 2, 3):
        torch.testing.assert_close(program(x), x * times)


def test_arguments_that_a_model_writes(x):
    class Adds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1) * 2

    program = exported(Adds(), (x.clone(),))
    given = x.clone()
    torch.testing.assert_close(program(given), (x + 1) * 2)
    torch.testing.assert_close(given, x + 1)


@pytest.mark.parametrize("with_text", [True, False])
def test_save_and_load(kitchen, x, tmp_path, with_text):
    kitchen.eval()
    options = StableHLOExportOptions(include_human_readable_text=with_text)
    ep = torch.export.export(kitchen, (x,))
    stablehlo.save_as_stablehlo(ep, tmp_path / "a", options)
    files = {name for name, _ in stablehlo._iter_dir(tmp_path / "a" / "functions")}
    texts = {"forward.mlir"} if with_text else set()
    assert files == {"forward.bytecode", "forward.meta"} | texts
    loaded = StableHLOGraphModule.load(tmp_path / "a")
    torch.testing.assert_close(loaded(x), kitchen(x))
    assert "@main" in loaded.get_stablehlo_text()
    again = exported_program_to_stablehlo(ep)
    assert function_of(loaded).meta == function_of(again).meta
    stablehlo.save_torch_model_as_stablehlo(kitchen, (x,), tmp_path / "b")
    torch.testing.assert_close(StableHLOGraphModule.load(tmp_path / "b")(x), kitchen(x))
    with pytest.raises(FileNotFoundError):
        StableHLOGraphModule.load(tmp_path)


def test_metadata_as_json(kitchen, x):
    meta = function_of(exported(kitchen.eval(), (x,))).meta
    written = json.dumps(meta, cls=stablehlo.StableHLOJSONSerializer)
    assert json.loads(written, object_hook=stablehlo.stablehlo_obj_hook) == meta


def test_programs_without_weights(kitchen, x, tmp_path):
    kitchen.eval()
    program = exported(kitchen, (x,), StableHLOExportOptions(export_weights=False))
    with pytest.raises(ValueError, match="expected a value of the parameter linear.weight"):
        program(x)
    program.bundle.state_dict.update(kitchen.state_dict())
    torch.testing.assert_close(program(x), kitchen(x))
    options = StableHLOExportOptions(save_weights=False)
    exported(kitchen, (x,)).save(tmp_path, options)
    assert StableHLOGraphModule.load(tmp_path).bundle.state_dict == {}


def test_constants_as_arguments(kitchen, x):
    kitchen.eval()
    program = exported(kitchen, (x,), StableHLOExportOptions(inline_all_constant=False))
    kinds = [at.type_ for at in function_of(program).meta.input_locations]
    assert kinds.count(VariableType.CONSTANT) == len(program.bundle.additional_constants) == 2
    torch.testing.assert_close(program(x), kitchen(x))
    flat = stablehlo._extract_call_parameters([x], function_of(program).meta, program.bundle)
    assert flat[-1] is x and len(flat) == len(kinds)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int16,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.complex64,
        torch.float8_e4m3fn,
    ],
    ids=str,
)
def test_constants_of_a_dtype(dtype):
    values = torch.tensor([[0, 1, 1], [1, 0, 0]]) * 2.5

    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.many, self.one = values.to(dtype), values[0, 1].to(dtype)
            self.none = values[:0].to(dtype)

        def forward(self, x: torch.Tensor) -> Any:
            return self.many.to(x.dtype) + x, self.one.clone(), self.none.clone()

    x = torch.randn(2, 3, dtype=torch.complex64 if dtype.is_complex else torch.float32)
    program = exported(Holds(), (x,))
    assert len(function_of(program).meta.input_locations) == 1
    for found, wanted in zip(program(x), Holds()(x), strict=True):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        torch.testing.assert_close(found.to(x.dtype), wanted.to(x.dtype))


def test_weights_are_not_copied(kitchen, x):
    state = exported(kitchen, (x,)).bundle.state_dict
    assert state["linear.weight"].data_ptr() == kitchen.linear.weight.data_ptr()


def test_other_arguments_to_record(x):
    options = StableHLOExportOptions(override_tracing_arguments=(torch.randn(7, 4),))
    model = nn.Linear(4, 2)
    program = exported(model, (x,), options)
    assert "tensor<7x4xf32>" in program.get_stablehlo_text()
    y = torch.randn(7, 4)
    torch.testing.assert_close(program(y), model(y))


def test_random_numbers_are_constants(x):
    model = nn.Dropout(0.5)
    state = xm.get_rng_state()
    program = exported(model, (x,))
    assert xm.get_rng_state() == state
    assert torch.equal(program(x), program(x))
    assert set((program(x) / x).unique().tolist()) <= {0.0, 2.0}


def test_results_of_named_tuples(x):
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.max(0)

    torch.testing.assert_close(exported(Model(), (x,))(x), x.max(0))


def test_exports_in_eager_mode_and_under_no_grad(kitchen, x):
    kitchen.eval()
    with torch_xla.experimental.eager_mode_context(True), torch.no_grad():
        program = exported(kitchen, (x,))
        torch.testing.assert_close(program(x), kitchen(x))


def test_parts_without_gradient(x):
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = x * torch.ones(4)
            return y + 1

    torch.testing.assert_close(exported(Model(), (x,))(x), x + 1)


def test_casts_and_autocast(x):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.linear(x)
            return y, x.to(torch.float64) + torch.ones(4, dtype=torch.float64)

    model = Model()
    program = exported(model, (x,))
    torch.testing.assert_close(program(x), model(x), rtol=1e-2, atol=1e-2)
    assert "bf16" in program.get_stablehlo_text()


def test_views_that_the_strides_of_the_export_allow():
    def attention(q: torch.Tensor) -> torch.Tensor:
        # On the CPU the result is as the transposed queries lie.
        y = F.scaled_dot_product_attention(*(q.transpose(1, 2),) * 3).transpose(1, 2)
        return y.view(2, 5, 12)

    class Model(nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return attention(q)

    q = torch.randn(2, 5, 3, 4)
    torch.testing.assert_close(exported(Model(), (q,))(q), attention(q))
    writes = exported(nn.Sequential(Model(), nn.ReLU()), (q,))
    torch.testing.assert_close(writes(q), attention(q).relu())
    # A write through the view would be lost.
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        exported(nn.Sequential(Model(), nn.ReLU(inplace=True)), (q,))


def test_branches(x):
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            def positive(x):
                return x.log(), x.sum()

            def negative(x):
                return x * 2, x.prod()

            return torch.cond(x.sum() > 0, positive, negative, (x,))

    program = exported(Model(), (x,))
    for y in (x.abs(), -x.abs()):
        torch.testing.assert_close(program(y), Model()(y), equal_nan=True)


DECOMPOSITIONS = {
    "inv": torch.linalg.inv,
    "cholesky": torch.linalg.cholesky,
    "solve": lambda a: torch.linalg.solve(a, a[:, :2]),
    "qr": lambda a: torch.linalg.qr(a)[1],
    "eigvalsh": torch.linalg.eigvalsh,
    "svdvals": torch.linalg.svdvals,
    "det": torch.linalg.det,
}


@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_decompositions_of_matrices(name, x):
    class Model(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return DECOMPOSITIONS[name](a)

    a = x @ x.T + torch.eye(3)
    program = exported(Model(), (a,))
    assert "custom_call" not in program.get_stablehlo_text()
    torch.testing.assert_close(program(a), Model()(a), rtol=1e-4, atol=1e-4)
    # A program goes on where PyTorch raises, but only programs do.
    program(torch.zeros(3, 3))
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.inv(torch.zeros(3, 3, device="xla")).cpu()


def test_checks_of_values(x):
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._check((x < 100).all().item())
            return x * 2

    torch.testing.assert_close(exported(Model(), (x,))(x), x * 2)


def test_an_update_by_what_it_replaces_is_no_update_in_place():
    class Shifts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            y[:, 1:] = y[:, :-1].clone()
            return y

    text = exported(Shifts(), (torch.randn(3, 4),)).get_stablehlo_text()
    assert "scatter" in text and "dynamic_update_slice" not in text


def test_a_program_from_a_file(kitchen, x, tmp_path):
    torch.export.save(torch.export.export(kitchen.eval(), (x,)), tmp_path / "model.pt2")
    program = exported_program_to_stablehlo(torch.export.load(tmp_path / "model.pt2"))
    torch.testing.assert_close(program(x), kitchen(x))


def test_after_decompositions(kitchen, x):
    ep = torch.export.export(copy.deepcopy(kitchen), (x,)).run_decompositions()
    program = exported_program_to_stablehlo(ep)
    for _ in range(2):
        torch.testing.assert_close(program(x), kitchen(x))


def test_an_interpreter_of_its_own(kitchen, x):
    ep = torch.export.export(nn.Linear(4, 2), (x,))
    weights = [ep.state_dict[s.target].to("xla") for s in ep.graph_signature.input_specs[:2]]
    interpreter = stablehlo.XLAExportInterpreter(ep.graph_module, "xla", set(), None)
    (y,) = interpreter.run(*weights, x.to("xla"), enable_io_processing=False)
    assert "linear.py" in _XLAC._get_xla_tensors_text([y])
    torch.testing.assert_close(y.cpu(), ep.module()(x).detach())
    z = y + 1
    assert Path(__file__).name in _XLAC._get_xla_tensors_text([z])  # its lines have ended


# --- errors --------------------------------------------------------------------------------


class Eigenvalues(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(x)


def test_an_operator_that_only_pytorch_has():
    with pytest.raises(NotImplementedError) as raised:
        exported(Eigenvalues(), (torch.randn(3, 3),))
    message = str(raised.value)
    assert message.startswith("aten::_linalg_eigvals: expected an operator that every")
    assert f"{Path(__file__).name}:" in message and "(forward)" in message


def test_a_model_that_needs_values(x):
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.nonzero()

    with pytest.raises((NotImplementedError, RuntimeError), match="nonzero"):
        exported(Model(), (x,))


def test_without_jaxlib(kitchen, x, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxlib.mlir", None)
    kitchen.eval()
    program = exported(kitchen, (x,))
    torch.testing.assert_close(program(x), kitchen(x))
    with pytest.raises(ImportError, match=r"pip install torch_xla\[export\]"):
        program.get_stablehlo_bytecode()
    with pytest.raises(ImportError, match=r"pip install torch_xla\[export\]"):
        program.save(tmp_path, StableHLOExportOptions(include_human_readable_text=False))
    program.save(tmp_path)
    torch.testing.assert_close(StableHLOGraphModule.load(tmp_path)(x), kitchen(x))


# --- bytecode and the recorded graph -----------------------------------------------------------


def test_bytecode_of_a_version(kitchen, x):
    kitchen.eval()
    options = StableHLOExportOptions(stablehlo_version="1.0.0")
    bytecode = exported(kitchen, (x,), options).get_stablehlo_bytecode()
    assert bytecode.startswith(b"ML\xefR") and b"StableHLO_v1.0.0" in bytecode
    assert "stablehlo.dot_general" in mlir.text_of(bytecode) and "chlo" not in mlir.text_of(
        bytecode
    )
    with pytest.raises(ValueError, match="a version from"):
        mlir.artifact("module {}", "99.0.0")


def test_locations_of_the_model(kitchen, x):
    assert "loc(" not in exported(kitchen, (x,)).get_stablehlo_text()
    options = StableHLOExportOptions(export_node_metadata=True)
    text = exported(kitchen, (x,), options).get_stablehlo_text()
    dot = next(line for line in text.splitlines() if "dot_general" in line)
    assert Path(__file__).name in dot and "aten::linear" in dot


def test_lines_in_the_recorded_graph(monkeypatch):
    a = torch.ones(3, device="xla") * 2
    assert "loc(" not in xm.get_stablehlo([a])
    monkeypatch.setenv("XLA_HLO_DEBUG", "1")
    assert f"{Path(__file__).name}" in xm.get_stablehlo([a])


def test_recorded_graph_for_any_compiler():
    a = torch.randn(4, 4, device="xla")
    torch_xla.sync()
    b, c = a * 2.5, torch.special.zeta(a, a)
    text = xm.get_stablehlo([b])
    assert "@main(%arg0: tensor<4x4xf32>)" in text and "<2.5" in text and "zeta" not in text
    assert "multiply" in xm.get_stablehlo() and "zeta" in xm.get_stablehlo()
    d = torch.linalg.qr(a)[0]
    assert "host_kernel" not in xm.get_stablehlo([d])
    bytecode = xm.get_stablehlo_bytecode([b])
    assert "stablehlo.multiply" in mlir.text_of(bytecode)
    assert b"StableHLO_v" in xm.get_stablehlo_bytecode()
    assert c.shape == (4, 4)
    with pytest.raises(NotImplementedError, match=f"linalg_eig.*{Path(__file__).name}"):
        xm.get_stablehlo([torch.linalg.eigvals(a)])


# --- proof by others ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_jax_runs_what_is_exported(name, jax):
    torch.manual_seed(0)
    model, x = MODELS[name].model().eval(), MODELS[name].x()
    with torch.no_grad():
        wanted = model(x)
    program = exported(model, (x,))
    (found,) = jax.run(program.get_stablehlo_bytecode(), flat_arguments(program, (x,)))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(program(x), wanted, rtol=1e-4, atol=1e-5)
    assert "custom_call" not in program.get_stablehlo_text()


def test_compilations_are_counted_as_those_of_stablehlo():
    counts = [(_XLAC._xla_counter_value(n) or 0) for n in ("StableHloCompile", "UncachedCompile")]
    y = torch.full((3, 17), 2.0, device="xla").cosh()
    torch_xla.sync(wait=True)
    now = [_XLAC._xla_counter_value(n) for n in ("StableHloCompile", "UncachedCompile")]
    assert now[1] > counts[1] and now[0] - counts[0] == now[1] - counts[1]
    torch.testing.assert_close(y.cpu(), torch.full((3, 17), 2.0).cosh())


@pytest.mark.parametrize(
    ("function", "constant"),
    [
        (lambda x: x + 1, "dense<1.000000e+00> : tensor<4x3xf32>"),
        (lambda x: x * 2.5 - 1, "dense<2.500000e+00> : tensor<4x3xf32>"),
        (lambda x: x.clamp(-0.1, 0.7), "dense<0.699999988> : tensor<4x3xf32>"),
        (lambda x: (x * 10).to(torch.int32) + 3, "dense<3> : tensor<4x3xi32>"),
        (lambda x: x.to(torch.bfloat16) * 0.1, "dense<1.000000e-01> : tensor<4x3xf32>"),
        (lambda x: x.masked_fill(x > 0.5, float("inf")), "dense<0x7F800000> : tensor<4x3xf32>"),
        (lambda x: torch.where(x > 0, 7, x), "dense<7.000000e+00> : tensor<4x3xf32>"),
        (lambda x: x.cumsum(0) / (2**53 + 1), None),
        (lambda x: (x + 2j).abs(), None),
    ],
)
def test_numbers_are_constants_of_the_type_in_which_they_are_used(function, constant):
    x = torch.rand(4, 3)
    out = function(x.to("xla"))
    text = xm.get_stablehlo([out])
    if constant is not None:
        assert f"stablehlo.constant {constant}" in text
        assert not re.search(r"stablehlo.constant dense<\S+> : tensor<[if]64>", text), text
    if mlir.is_installed():
        with mlir._mlir() as m:
            assert str(m.ir.Module.parse(text)) == text
    leaves = _XLAC._get_tensors_xla_device_data_node([out])[1]
    (found,) = _XLAC._run_stablehlo(text, leaves)
    torch.testing.assert_close(found.cpu(), function(x))
