"""Exported programs with dynamic dimensions: `?` in the text, and PyTorch's values at all sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from torch_xla._src.export import mlir
from torch_xla._src.export.bundle import type_of
from torch_xla.stablehlo import (
    StableHLOExportOptions,
    StableHLOGraphModule,
    exported_program_has_symbolic_input_shape,
    exported_program_to_stablehlo,
)

from .exported_models import MODELS, Jax, flat_arguments, function_of

ROWS = {0: Dim.DYNAMIC}


def some_of(names: Iterable[str]) -> list:
    """The models as parameters; those that `make test` leaves out are marked."""
    return [pytest.param(n, marks=() if n in {"vit", "bert"} else pytest.mark.slow) for n in names]


@pytest.fixture(scope="module")
def jax() -> Jax:
    return Jax()


class Calls(nn.Module):
    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def dynamic(model: nn.Module | Callable, *args: torch.Tensor, shapes: Any = None, **options: Any):
    model = model if isinstance(model, nn.Module) else Calls(model)
    if shapes is None:
        shapes = tuple(ROWS for _ in args)
    if isinstance(model, Calls):
        shapes = (shapes,)
    ep = torch.export.export(model, args, dynamic_shapes=shapes)
    return exported_program_to_stablehlo(ep, StableHLOExportOptions(**options))


def test_sizes_of_one_name_are_compared():
    rows = Dim("rows", min=3, max=8)
    shapes = ({0: rows}, {0: rows})
    a, b = torch.randn(5, 3), torch.randn(5, 4)
    program = dynamic(lambda x, y: torch.cat([x, y[:, :3]]).softmax(0), a, b, shapes=shapes)
    x, y = torch.randn(7, 3), torch.randn(7, 4)
    torch.testing.assert_close(program(x, y), torch.cat([x, y[:, :3]]).softmax(0))
    expected = "expected size 3 in dimension 0 of argument 1, which goes with dimension 0 of .* 0,"
    with pytest.raises(ValueError, match=expected + " got 4"):
        program(torch.zeros(3, 3), torch.zeros(4, 4))
    for size in (2, 9):
        with pytest.raises(ValueError, match=f"expected a size from 3 up to 8 in .*, got {size}"):
            program(torch.zeros(size, 3), torch.zeros(size, 4))


def test_sizes_that_depend_on_each_other_are_compared(tmp_path):
    half = Dim("half")
    shapes = ({0: 2 * half}, {0: half}, {0: half})
    args = torch.randn(6), torch.randn(3, 2), torch.randn(3)  # the last is not used
    model = Calls(lambda x, y, unused: x.reshape(-1, 2) + y)
    ep = torch.export.export(model, args, dynamic_shapes=(shapes,))
    exported_program_to_stablehlo(ep).save(tmp_path)
    program = StableHLOGraphModule.load(tmp_path)
    x, y = torch.randn(8), torch.randn(4, 2)
    torch.testing.assert_close(program(x, y, torch.zeros(4)), x.reshape(-1, 2) + y)
    for sizes, message in (
        ((8, 3, 3), "expected size 4 in dimension 0 of argument 1, .*, got 3"),
        ((8, 4, 5), "expected size 4 in dimension 0 of argument 2, .*, got 5"),
        ((7, 4, 4), "expected a multiple of 2 in dimension 0 of argument 0, got 7"),
    ):
        n, m, k = sizes
        with pytest.raises(ValueError, match=message):
            program(torch.zeros(n), torch.zeros(m, 2), torch.zeros(k))


def main_of(program: StableHLOGraphModule) -> str:
    return next(line for line in program.get_stablehlo_text().splitlines() if "@main(" in line)


@pytest.mark.parametrize("name", some_of(MODELS))
def test_models_of_a_dynamic_batch(name, jax):
    torch.manual_seed(0)
    model, x = MODELS[name].model().eval(), MODELS[name].x()
    program = dynamic(model, x)
    assert "tensor<?x" in main_of(program) and "custom_call" not in program.get_stablehlo_text()
    for size in (2, 5):
        y = torch.cat([x] * 5)[:size]
        with torch.no_grad():
            wanted = model(y)
        torch.testing.assert_close(program(y), wanted, rtol=1e-4, atol=1e-5)
    # A portable artifact of dynamic sizes; JAX's client takes it once they are known.
    args = flat_arguments(program, (y,))
    text = mlir.refined(program.get_stablehlo_bytecode(), [type_of(a) for a in args])
    assert "?" not in text
    (found,) = jax.run(mlir.artifact(text), args)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", some_of(["bert", "gpt2", "llama", "encoder"]))
def test_models_of_a_dynamic_batch_and_length(name):
    torch.manual_seed(0)
    model, x = MODELS[name].model().eval(), MODELS[name].x()
    program = dynamic(model, x, shapes=({0: Dim("batch"), 1: Dim("length", max=64)},))
    assert "tensor<?x?x" in main_of(program)
    for batch, length in ((3, 4), (2, 9)):
        y = torch.cat([torch.cat([x] * 2)[:batch]] * 2, 1)[:, :length]
        torch.testing.assert_close(program(y), model(y).detach(), rtol=1e-4, atol=1e-5)


weight = torch.linspace(-1, 1, 24).reshape(4, 6)
FUNCTIONS = {
    "add": lambda x: x + x.sin(),
    "broadcast": lambda x: x + torch.arange(4.0),
    "outer": lambda x: x[:, None] - x[None],
    "matmul": lambda x: x @ weight,
    "own product": lambda x: x @ x.T,
    "batched product": lambda x: torch.bmm(x[:, :, None], x[:, None]),
    "flatten": lambda x: x.reshape(-1),
    "view": lambda x: x.view(-1, 2, 2).transpose(0, 1),
    "double": lambda x: torch.cat([x, x]),
    "one more": lambda x: torch.cat([x, x[:1]]),
    "stack": lambda x: torch.stack([x, x * 2], 1),
    "repeat": lambda x: x.repeat(3, 2),
    "split": lambda x: x.split(2, 1)[1],
    "rows after the first": lambda x: x[1:],
    "last row": lambda x: x[-1],
    "pad": lambda x: F.pad(x, (1, 1, 2, 0)),
    "flip": lambda x: x.flip(0),
    "where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "softmax": lambda x: x.softmax(1),
    "softmax of rows": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(0),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(0),
    "var": lambda x: x.var(0),
    "max": lambda x: x.max(0),
    "argmax": lambda x: x.argmax(0),
    "norm": lambda x: x.norm(),
    "sort": lambda x: x.sort(dim=0, stable=True),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "batch statistics": lambda x: F.batch_norm(x, None, None, training=True),
    "group_norm": lambda x: F.group_norm(x, 2),
    "arange": lambda x: torch.arange(x.shape[0]) * 2,
    "full": lambda x: x.new_full((x.shape[0], 2), 3.0),
    "eye": lambda x: x @ x.T * torch.eye(x.shape[0]),
    "tril": lambda x: (x @ x.T).tril(),
    "gather": lambda x: x.gather(0, (x[:2] > 0).long()),
    "index": lambda x: x[torch.tensor([1, 0])],
    "embedding": lambda x: F.embedding((x > 0).long(), weight),
    "one_hot": lambda x: F.one_hot((x > 0).long()[:, 0], 3),
    "scaled by the size": lambda x: x * x.shape[0] / 7,
    "gelu": lambda x: F.gelu(x),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(1)),
    "cross_entropy": lambda x: F.cross_entropy(x, (x[:, 0] > 0).long()),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "conv1d": lambda x: F.conv1d(x.T[None], weight.reshape(3, 4, 2)),
    "cumsum": lambda x: x.cumsum(0),
    "cummax": lambda x: x.cummax(0).values,
    "digamma": lambda x: torch.digamma(x.abs() + 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_rows(name):
    torch.manual_seed(0)
    function, x = FUNCTIONS[name], torch.randn(6, 4)
    program = dynamic(function, x)
    assert "tensor<?x4xf32>" in main_of(program)
    assert program.get_stablehlo_bytecode().startswith(b"ML\xefR")
    for size in (2, 3, 8, 300):
        y = torch.randn(size, 4)
        torch.testing.assert_close(program(y), function(y), rtol=1e-5, atol=1e-5)


def test_two_sizes():
    def function(x, y):
        return (x[:, None] * y).flatten(0, 1), x.shape[0] * y.sum()

    shapes = ({0: Dim("a")}, {0: Dim("b")})
    program = dynamic(function, torch.randn(4, 3), torch.randn(5, 3), shapes=shapes)
    assert "multiply" in program.get_stablehlo_text()
    for a, b in ((2, 7), (6, 3)):
        x, y = torch.randn(a, 3), torch.randn(b, 3)
        torch.testing.assert_close(program(x, y), function(x, y))


def test_one_size_of_two_arguments():
    program = dynamic(
        lambda x, y: x @ y.T, torch.randn(4, 3), torch.randn(4, 3), shapes=(ROWS,) * 2
    )
    x, y = torch.randn(6, 3), torch.randn(6, 3)
    torch.testing.assert_close(program(x, y), x @ y.T)
    batch = Dim("batch")
    shapes = ({0: batch}, {0: 2 * batch})
    twice = dynamic(lambda x, y: x.repeat(2, 1) + y, x, y.repeat(2, 1), shapes=shapes)
    torch.testing.assert_close(twice(x[:3], y), x[:3].repeat(2, 1) + y)


def test_a_size_that_the_export_made_static():
    def function(x, y):
        return x + torch.ones(4, 3), y * 2

    shapes = ({0: Dim.AUTO}, {0: Dim.AUTO})
    program = dynamic(function, torch.randn(4, 3), torch.randn(5, 3), shapes=shapes)
    signature = function_of(program).meta.input_signature
    assert [s.dynamic_dims for s in signature] == [[], [0]]
    x, y = torch.randn(4, 3), torch.randn(7, 3)
    torch.testing.assert_close(program(x, y), function(x, y))


def test_signatures_and_files(tmp_path):
    x = torch.randn(4, 3)
    program = dynamic(nn.Linear(3, 2), x)
    meta = function_of(program).meta
    assert meta.input_signature[-1].dynamic_dims == [0] and meta.input_signature[-1].shape == [0, 3]
    assert meta.output_signature[0].dynamic_dims == [0]
    with pytest.raises(ValueError, match=r"expected shape \[\?, 3\] \(float32\)"):
        program(torch.randn(4, 2))
    program.save(tmp_path, StableHLOExportOptions(include_human_readable_text=False))
    loaded = StableHLOGraphModule.load(tmp_path)
    y = torch.randn(9, 3)
    torch.testing.assert_close(loaded(y), program(y))


def test_a_static_program_of_a_dynamic_model():
    model, y = nn.Linear(3, 2), torch.randn(5, 3)
    program = dynamic(model, torch.randn(4, 3), override_tracing_arguments=(y,))
    assert "?" not in program.get_stablehlo_text()
    torch.testing.assert_close(program(y), model(y).detach())


def test_locations():
    text = dynamic(lambda x: x * 2, torch.randn(4, 3)).get_stablehlo_text()
    assert "loc(" not in text
    text = dynamic(lambda x: x * 2, torch.randn(4, 3), export_node_metadata=True)
    assert Path(__file__).name in text.get_stablehlo_text()


def test_has_symbolic_input_shape():
    x = torch.randn(4, 3)
    ep = torch.export.export(nn.Linear(3, 2), (x,))
    assert not exported_program_has_symbolic_input_shape(ep)
    ep = torch.export.export(nn.Linear(3, 2), (x,), dynamic_shapes=(ROWS,))
    assert exported_program_has_symbolic_input_shape(ep)


@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("aten::rand", lambda x: x + torch.rand(x.shape)),
        ("aten::slice", lambda x: x[::2] + 1),
        ("aten::slice", lambda x: x[: x.shape[0] // 2 * 2] + 1),
        ("aten::mul", lambda x: x * x.shape[0] ** 0.5),
    ],
)
def test_what_has_no_dynamic_form(operator, function):
    with pytest.raises(NotImplementedError, match=f"({operator}).*: expected the same") as raised:
        dynamic(function, torch.randn(6, 4))
    assert f"{Path(__file__).name}:" in str(raised.value)


def test_bounded_sizes():
    batch = Dim("batch", min=3, max=9)
    program = dynamic(lambda x: x.sum(0), torch.randn(4, 3), shapes=({0: batch},))
    x = torch.randn(9, 3)
    torch.testing.assert_close(program(x), x.sum(0))
    with pytest.raises(ValueError, match="from 3 to 5"):
        batch = Dim("batch", min=3, max=5)
        dynamic(lambda x: x.sum(0), torch.randn(4, 3), shapes=({0: batch},))
