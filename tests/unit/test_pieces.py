"""Programs with equal parts run in pieces, with the values of the program compiled whole.

Units: executor/program/repeats, executor/program/stretch, executor/run/launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
from torch_xla import _XLAC

Tensors = list[torch.Tensor]
# Calls of a part, parts, elements that a part gives, calls that need not be compiled.
USUAL, SMALL, WHOLE = (8, 4, 1 << 18, 800), (8, 4, 1, 24), (8, 4, 1, 1 << 40)


@pytest.fixture(autouse=True)
def _limits() -> Iterator[None]:
    _XLAC._xla_clear_cached_programs()
    _XLAC._xla_set_piece_limits(*SMALL)
    yield
    _XLAC._xla_set_piece_limits(*USUAL)


def compute(outputs: Tensors) -> list[int]:
    """The executable of each piece of the program that computes the outputs."""
    torch_xla.sync(wait=True)
    return _XLAC._xla_programs()[0]["pieces"]


def repeats(pieces: list[int]) -> list[int]:
    """How often each executable runs that runs more than once."""
    return [n for n in (pieces.count(i) for i in sorted(set(pieces))) if n > 1]


class Layer(nn.Module):
    def __init__(self, size: int = 16, dropout: float = 0) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(size), nn.Linear(2 * size, size)
        self.inner, self.dropout = nn.Linear(size, 2 * size), dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(self.norm(x))
        h = 0.5 * h * (1 + torch.tanh(0.8 * (h + 0.04 * h.pow(3))))
        return x + F.dropout(self.out(h), self.dropout)


def step(layers: int, dropout: float = 0) -> Tensors:
    torch.manual_seed(1)
    model = nn.Sequential(*[Layer(dropout=dropout) for _ in range(layers)]).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    x = torch.randn(4, 16).to("xla")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return [loss.detach(), *(p.detach() for p in model.parameters())]


def in_both(make: Callable[[], Tensors], limits: tuple[int, ...] = SMALL) -> Tensors:
    """The values of a program in pieces, which are those of the whole."""
    found = []
    for chosen in (limits, WHOLE):
        _XLAC._xla_clear_cached_programs()
        _XLAC._xla_set_piece_limits(*chosen)
        outputs = make()
        assert bool(repeats(compute(outputs))) == (chosen != WHOLE)
        found.append([t.cpu() for t in outputs])
    _XLAC._xla_set_piece_limits(*SMALL)
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)
    return found[0]


def test_layers_run_one_executable():
    few, many = (compute(step(n)) for n in (6, 12))
    # Forward, backward and the optimizer, but for what is at their ends.
    assert len(repeats(few)) >= 3 and all(4 <= times <= 6 for times in repeats(few))
    assert len(repeats(many)) >= 3 and all(10 <= times <= 12 for times in repeats(many))
    assert len(set(few)) == len(set(many))  # as much to compile


def test_a_step_has_the_values_of_the_whole():
    in_both(lambda: step(6))


def test_random_numbers_are_those_of_the_whole():
    values = in_both(lambda: step(6, dropout=0.5))
    assert values[0] != step(6)[0].cpu()


def test_values_are_the_cpus():
    torch.manual_seed(0)
    layers = nn.Sequential(*[Layer() for _ in range(8)])
    x = torch.randn(4, 16)
    wanted = layers(x)
    wanted.sum().backward()
    gradients = [p.grad.clone() for p in layers.parameters()]
    layers.zero_grad()
    layers.to("xla")
    got = layers(x.to("xla"))
    got.sum().backward()
    outputs = [got.detach(), *(p.grad for p in layers.parameters())]
    assert len(repeats(compute(outputs))) >= 2
    for value, right in zip(outputs, [wanted.detach(), *gradients], strict=True):
        torch.testing.assert_close(value.cpu(), right, rtol=1e-4, atol=1e-5)


def test_a_layer_that_differs_is_none_of_the_parts():
    def make() -> Tensors:
        torch.manual_seed(0)
        x = torch.randn(4, 16).to("xla")
        layers = [Layer().to("xla") for _ in range(13)]
        with torch.no_grad():
            for i, layer in enumerate(layers):
                x = layer(x)
                if i == 5:
                    x = x.flip(0)
        return [x]

    in_both(make)
    _XLAC._xla_clear_cached_programs()
    assert sorted(repeats(compute(make()))) in ([5, 7], [6, 7], [6, 6])


def test_python_numbers_are_inputs_of_a_part():
    def make() -> Tensors:
        x, w = torch.arange(6.0).to("xla"), torch.eye(6).to("xla").flip(0)
        for i in range(12):
            x = w @ (x * (1 + i / 7) - i).sin() + i % 3
        return [x]

    (got,) = in_both(make, (4, 4, 1, 12))
    want = torch.arange(6.0)
    for i in range(12):
        want = (want * (1 + i / 7) - i).sin().flip(0) + i % 3
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_what_all_parts_share():
    def make() -> Tensors:
        torch.manual_seed(0)
        x, bias = torch.randn(4, 16).to("xla"), torch.randn(16).to("xla")
        shift = bias * 2 + 1  # before the layers, and fused into each
        layers = [Layer().to("xla") for _ in range(6)]
        with torch.no_grad():
            for layer in layers:
                x = layer(x) + shift
        return [x]

    in_both(make)


def test_what_parts_give_is_read_anywhere():
    def make() -> Tensors:
        torch.manual_seed(0)
        x = torch.randn(4, 16).to("xla")
        layers = [Layer().to("xla") for _ in range(6)]
        seen = []
        with torch.no_grad():
            for layer in layers:
                seen.append(x)
                x = layer(x)
            first = seen[1] * 2 + seen[4]  # of two of the parts alone
        return [x, first, seen[3]]

    in_both(make)


def test_parts_that_read_parts_before_the_last():
    def make() -> Tensors:
        torch.manual_seed(0)
        a, b = torch.randn(2, 4, 16).to("xla")
        layers = [Layer().to("xla") for _ in range(8)]
        with torch.no_grad():
            for layer in layers:
                a, b = layer(a) + b, a
        return [a, b]

    in_both(make)


def test_writes_to_a_shared_buffer():
    """As of a cache of keys and values: each layer writes its rows."""

    def make() -> Tensors:
        torch.manual_seed(0)
        x, cache = torch.randn(4, 16).to("xla"), torch.zeros(8, 4, 16).to("xla")
        rows = torch.arange(8)[:, None, None].to("xla")
        layers = [Layer().to("xla") for _ in range(8)]
        with torch.no_grad():
            for i, layer in enumerate(layers):
                x = layer(x)
                cache.add_((rows == i) * x)
                x = x + cache.mean(0)
        return [x, cache]

    in_both(make)


def test_a_failure_in_a_layer_names_its_line():
    torch.manual_seed(0)
    x = torch.randn(4, 16).to("xla")
    layers = [Layer().to("xla") for _ in range(6)]
    matrices = [torch.eye(4).to("xla") * (torch.nan if i == 3 else 1) for i in range(6)]
    with torch.no_grad():
        for layer, matrix in zip(layers, matrices, strict=True):
            x = layer(x * torch.linalg.svdvals(matrix)[:, None])
    line = test_a_failure_in_a_layer_names_its_line.__code__.co_firstlineno + 7
    with pytest.raises(torch.linalg.LinAlgError, match=f"svd(.|\n)*test_pieces.py:{line}"):
        x.cpu()


def test_what_the_compiler_refuses_stays_recorded():
    wanted = [t.cpu() for t in step(6)]
    _XLAC._xla_clear_cached_programs()
    outputs = step(6)
    torch_xla.set_custom_compile_options({"xla_no_such_flag": True})
    try:
        with pytest.raises(RuntimeError, match="xla_no_such_flag"):
            torch_xla.sync(wait=True)
    finally:
        torch_xla.set_custom_compile_options({})
    assert repeats(compute(outputs))
    for output, value in zip(outputs, wanted, strict=True):
        assert torch.equal(output.cpu(), value)


def test_state_is_still_given_away():
    """Donated parameters and moments are updated in their memory by a part."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Layer() for _ in range(6)]).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    x = torch.randn(4, 16).to("xla")
    places = []
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        torch_xla.sync(wait=True)
        places.append({torch.from_dlpack(p.detach()).data_ptr() for p in model.parameters()})
    assert repeats(_XLAC._xla_programs()[0]["pieces"])
    assert places[2] == places[3]


def test_a_few_small_layers_are_compiled_whole():
    _XLAC._xla_set_piece_limits(*USUAL)
    assert compute(step(3)) == []


def test_a_loop_that_the_compiler_fuses_is_compiled_whole():
    x = torch.ones(1 << 18).to("xla")
    for _ in range(60):
        x = (x * 2 + 1).abs() * 0.25 - x
    assert compute([x]) == []


def test_small_parts_are_compiled_whole():
    def make() -> Tensors:
        x = torch.ones(8, 8).to("xla")
        for _ in range(150):
            x = (torch.tanh(x @ x) + 1).sin() * 0.1 - x.cos() + x * 2
        return [x]

    assert repeats(compute(make()))
    _XLAC._xla_clear_cached_programs()
    _XLAC._xla_set_piece_limits(*USUAL)
    assert compute(make()) == []


def test_a_flag_turns_pieces_off(run_python):
    run_python(
        f"""
        from tests.unit.test_pieces import step, compute, repeats
        from torch_xla import _XLAC
        _XLAC._xla_set_piece_limits{SMALL}
        assert not compute(step(6))
        """,
        {"XLA_COMPILE_IN_PIECES": "0"},
    )


def test_another_value_of_the_flag_is_an_error(run_python):
    run_python(
        f"""
        import pytest
        from tests.unit.test_pieces import step, compute
        from torch_xla import _XLAC
        _XLAC._xla_set_piece_limits{SMALL}
        with pytest.raises(ValueError, match="expected auto, 1 or 0, got 'always'"):
            compute(step(6))
        """,
        {"XLA_COMPILE_IN_PIECES": "always"},
    )


def test_pieces_come_from_the_disk(run_python, tmp_path):
    code = f"""
        import torch, torch_xla
        from tests.unit.test_pieces import step, compute, repeats
        from torch_xla import _XLAC
        import torch_xla.debug.metrics as met
        _XLAC._xla_set_piece_limits{SMALL}
        torch_xla.sync()
        outputs = step(6)
        assert repeats(compute(outputs))
        print(outputs[0].item(), met.counter_value("UncachedCompile"))
    """
    env = {"XLA_PERSISTENT_CACHE_PATH": str(tmp_path / "cache")}
    first, again = (run_python(code, env).stdout.split() for _ in range(2))
    assert first[0] == again[0]
    assert first[1] != "None" and again[1] == "None"


def test_out_of_memory_between_pieces_is_told(run_python):
    """The last piece fails, and is reported once."""
    done = run_python(
        """
        import torch, torch_xla
        from torch_xla import _XLAC
        _XLAC._xla_set_piece_limits(2, 4, 1, 4)
        x = torch.ones(8, 8, device="xla")
        torch_xla.sync()
        y = x
        for i in range(8):
            y = ((y @ x).sin() + i).cos()
        y = y.reshape(8, 8, 1, 1).expand(8, 8, 1 << 17, 1 << 17).clone()
        try:
            torch_xla.sync(wait=True)
        except torch.OutOfMemoryError as e:
            print("told", "Out of memory" in str(e))
        print(len(_XLAC._xla_programs()[0]["pieces"]) > 8)
        del y
        torch_xla.sync(wait=True)
        print((x @ x).sum().item())
        """
    )
    assert done.stdout.split() == ["told", "True", "True", "512.0"]


def test_a_first_part_that_reads_one_value_twice():
    """The others read two: their program is not the first one's."""

    def run(x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(12):
            y = (torch.sin(y @ x) + torch.cos(y)) @ x
        return y

    x = torch.randn(8, 8) / 4
    found = run(x.to("xla"))
    assert repeats(compute([found])) == [5]
    torch.testing.assert_close(found.cpu(), run(x))


def test_a_first_part_that_computes_one_value_anew_twice():
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(8):
            a, b = y.abs() + 1, x.abs() + 1
            y = torch.tanh(a @ b) * 2 + torch.sin(b @ a).cos() - 0.5
        return y

    x = torch.randn(8, 8) / 4
    found = run(x.to("xla"))
    assert repeats(compute([found]))
    torch.testing.assert_close(found.cpu(), run(x))


@pytest.mark.parametrize("odd", [0, 3, 7])
def test_a_part_that_reads_twice_what_it_updates(odd):
    def run(kept: Tensors, given: Tensors, weight: torch.Tensor) -> Tensors:
        for i, (k, g) in enumerate(zip(kept, given, strict=True)):
            g = k if i == odd else g
            k.copy_(torch.tanh(k @ weight) * torch.sin(g @ weight).cos() + 0.5 * g.square() - 0.25)
        return kept

    tensors = [[torch.randn(8, 8) for _ in range(8)] for _ in range(2)]
    weight = torch.randn(8, 8)
    moved = [[t.to("xla") for t in some] for some in tensors]
    there = weight.to("xla")
    torch_xla.sync(wait=True)
    found = run(*moved, there)
    assert repeats(compute(found))
    for a, b in zip(found, run(*tensors, weight), strict=True):
        torch.testing.assert_close(a.cpu(), b)


def compiled_step(layers: int, dropout: float = 0) -> Tensors:
    """As `step`, the model a function of torch.compile: a call of the graph for each pass."""
    torch.manual_seed(1)
    torch._dynamo.reset()
    model = nn.Sequential(*[Layer(dropout=dropout) for _ in range(layers)]).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, foreach=False)
    x = torch.randn(4, 16).to("xla")
    loss = torch.compile(model, backend="openxla")(x).square().mean()
    loss.backward()
    optimizer.step()
    return [loss.detach(), *(p.detach() for p in model.parameters())]


@pytest.fixture
def everywhere(monkeypatch):
    monkeypatch.setenv("XLA_COMPILE_IN_PIECES", "1")


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("dropout", [0, 0.5])
def test_functions_of_torch_compile(dropout):
    outputs = compiled_step(6, dropout)
    torch_xla.sync(wait=True)
    (counts,) = [repeats(p["pieces"]) for p in _XLAC._xla_programs() if repeats(p["pieces"])]
    assert sum(count >= 5 for count in counts) >= 2  # of the forward and of the backward pass
    _XLAC._xla_clear_cached_programs()
    _XLAC._xla_set_piece_limits(*WHOLE)
    for found, wanted in zip(outputs, compiled_step(6, dropout), strict=True):
        torch.testing.assert_close(found.cpu(), wanted.cpu(), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("everywhere")
def test_numbers_within_a_function_of_torch_compile():
    """Parts take other numbers, and a call of the graph its own beside them."""
    torch._dynamo.reset()

    @torch.compile(backend="openxla")
    def run(x, weight):
        for i in range(8):
            x = torch.tanh(x @ weight + 0.1 * i).clamp(min=-0.5 - i, max=2) * (1 - 0.05 * i) + i
        return x

    x, weight = torch.randn(4, 16), torch.randn(16, 16) / 4
    found = run((x.to("xla") * 1.5 - 0.25), weight.to("xla")) * 0.75 + 2
    torch_xla.sync(wait=True)
    assert any(repeats(p["pieces"]) for p in _XLAC._xla_programs())
    plain = run._torchdynamo_orig_callable
    torch.testing.assert_close(found.cpu(), plain(x * 1.5 - 0.25, weight) * 0.75 + 2)


def test_functions_of_torch_compile_are_whole_unless_it_is_asked_for():
    compiled_step(6)
    torch_xla.sync(wait=True)
    assert not any(repeats(p["pieces"]) for p in _XLAC._xla_programs())


@pytest.mark.usefixtures("everywhere")
def test_a_function_that_gives_one_value_twice():
    torch._dynamo.reset()

    @torch.compile(backend="openxla")
    def run(x):
        y = x
        for _ in range(8):
            y = (torch.sin(y @ x) + torch.cos(y)) @ x
        return y, y.clone(), y.detach(), x, x.clone()

    x = torch.randn(8, 8) / 4
    found, wanted = run(x.to("xla")), run._torchdynamo_orig_callable(x)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.cpu(), b)
