"""LSTM, GRU and plain RNN modules against PyTorch's CPU result."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torch_xla
import torch_xla.debug.metrics as met

from .harness import DEVICE, assert_same

R = torch.randn
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
RNN_RELU = lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k)  # noqa: E731
MODULES = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN, "relu": RNN_RELU}


def leaf(x):
    return None if x is None else x.detach().to(DEVICE).requires_grad_(x.requires_grad)


def compare(module, x, state=None, **tolerances):
    """Results and gradients of parameters, input and initial state."""
    tolerances = tolerances or TOLERANCE
    twin = copy.deepcopy(module).to(DEVICE)
    x = x.requires_grad_()
    states = state if isinstance(state, tuple) else (state,) if state is not None else ()
    states = [s.requires_grad_() for s in states]
    x_xla, states_xla = leaf(x), [leaf(s) for s in states]

    def run(m, x, states):
        given = () if not states else (tuple(states),) if len(states) == 2 else (states[0],)
        y, last = m(x, *given)
        return [y, *(last if isinstance(last, tuple) else (last,))]

    expected, actual = run(module, x, states), run(twin, x_xla, states_xla)
    assert_same(actual, expected, **tolerances)
    weights = [torch.rand(e.shape).to(e.dtype) for e in expected]
    sum((e * w).sum() for e, w in zip(expected, weights, strict=True)).backward()
    sum((a * w.to(DEVICE)).sum() for a, w in zip(actual, weights, strict=True)).backward()
    torch_xla.sync()
    pairs = [(x_xla, x), *zip(states_xla, states, strict=True)]
    pairs += zip(twin.parameters(), module.parameters(), strict=True)
    for a, e in pairs:
        torch.testing.assert_close(a.grad.cpu(), e.grad, **tolerances)


@pytest.mark.parametrize("mode", MODULES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bidirectional": True},
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        {"bias": False},
    ],
    ids=str,
)
def test_modules(mode, options):
    compare(MODULES[mode](5, 7, **options), R(4, 3, 5))


@pytest.mark.parametrize("mode", MODULES)
def test_initial_state(mode):
    state = (R(2, 3, 7), R(2, 3, 7)) if mode == "lstm" else R(2, 3, 7)
    compare(MODULES[mode](5, 7, num_layers=2), R(4, 3, 5), state)


@pytest.mark.parametrize("mode", MODULES)
def test_one_step_and_unbatched(mode):
    compare(MODULES[mode](5, 7), R(1, 1, 5))
    compare(MODULES[mode](5, 7), R(4, 5))


def test_float64():
    compare(nn.LSTM(5, 7, bidirectional=True).double(), R(4, 3, 5).double(), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_bfloat16(mode):
    module = MODULES[mode](5, 7).bfloat16()
    compare(module, R(4, 3, 5).bfloat16(), rtol=5e-2, atol=5e-2)


def test_projections():
    compare(nn.LSTM(5, 7, proj_size=3), R(4, 3, 5))


@pytest.mark.parametrize("mode", MODULES)
def test_packed_sequences(mode):
    module = MODULES[mode](5, 7)
    twin = copy.deepcopy(module).to(DEVICE)
    x, lengths = R(4, 3, 5), torch.tensor([4, 2, 1])
    expected, _ = pad_packed_sequence(module(pack_padded_sequence(x, lengths))[0])
    packed = pack_padded_sequence(x.to(DEVICE), lengths)
    actual, _ = pad_packed_sequence(twin(packed)[0])
    assert_same(actual, expected, **TOLERANCE)


def test_inference_keeps_nothing():
    module = nn.LSTM(5, 7, num_layers=2, dropout=0.5).eval()
    twin, x = copy.deepcopy(module).to(DEVICE), R(4, 3, 5)
    expected = module(x)[0]
    with torch.no_grad():
        assert_same(twin(x.to(DEVICE))[0], expected, **TOLERANCE)
    with torch.inference_mode():
        assert_same(twin(x.to(DEVICE))[0], expected, **TOLERANCE)


def test_dropout_between_layers():
    twin = nn.GRU(5, 7, num_layers=2, dropout=0.9).to(DEVICE)
    x = R(4, 3, 5).to(DEVICE)
    first, second = twin(x)[0].detach().cpu(), twin(x)[0].detach().cpu()
    assert not torch.equal(first, second)
    twin.eval()
    assert torch.equal(twin(x)[0].detach().cpu(), twin(x)[0].detach().cpu())


def test_one_call_a_layer():
    twin, x = nn.LSTM(5, 7, num_layers=2).to(DEVICE), R(40, 3, 5).to(DEVICE)
    before = [met.counter_value(f"xla::rnn_layer{s}") or 0 for s in ("", "_backward")]
    twin(x)[0].sum().backward()
    after = [met.counter_value(f"xla::rnn_layer{s}") or 0 for s in ("", "_backward")]
    assert [b - a for a, b in zip(before, after, strict=True)] == [2, 2]


def test_part_of_the_results():
    """Only the last state is used: the other results have no gradient."""
    module = nn.LSTM(5, 7)
    twin, x = copy.deepcopy(module).to(DEVICE), R(4, 3, 5)
    module(x)[1][1].sum().backward()
    twin(x.to(DEVICE))[1][1].sum().backward()
    torch_xla.sync()
    for a, e in zip(twin.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), e.grad, **TOLERANCE)


@pytest.mark.parametrize("mode", MODULES)
def test_twice_differentiable(mode):
    module = MODULES[mode](3, 4).double()
    twin, x = copy.deepcopy(module).to(DEVICE), R(3, 2, 3).double()

    def second(m, x):
        x = x.detach().requires_grad_()
        # PyTorch's fused CPU kernels refuse a second derivative; its unrolled form allows it.
        with torch.backends.mkldnn.flags(enabled=False):
            y = m(x)[0].sin().sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), [x, *m.parameters()])

    assert_same(second(twin, x.to(DEVICE)), second(module, x))


def test_wrong_sizes_name_the_sizes():
    twin = nn.LSTM(5, 7).to(DEVICE)
    with pytest.raises(RuntimeError, match="Expected hidden\\[0\\] size"):
        twin(R(4, 3, 5).to(DEVICE), (R(1, 2, 7).to(DEVICE), R(1, 3, 7).to(DEVICE)))


def test_under_functorch():
    module = nn.GRU(3, 4)
    twin, x = copy.deepcopy(module).to(DEVICE), R(3, 2, 3)
    of_cpu = torch.func.grad(lambda x: module(x)[0].sum())(x)
    assert_same(torch.func.grad(lambda x: twin(x)[0].sum())(x.to(DEVICE)), of_cpu, **TOLERANCE)


LAYERS = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 3, "batch_first": True, "bias": False},
    {"bidirectional": True, "batch_first": True},
]


@pytest.mark.parametrize("batch", [1, 8, 17])
@pytest.mark.parametrize("options", LAYERS)
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)]
)
def test_inference_of_lstm(batch, options, dtype):
    """Without gradients all layers are one call: on the CPU PyTorch's, in parts of the batch."""
    module = nn.LSTM(6, 5, dtype=dtype, **options).eval()
    twin = copy.deepcopy(module).to(DEVICE)
    states = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    x = R((batch, 7, 6) if options.get("batch_first") else (7, batch, 6), dtype=dtype)
    h, c = R(states, batch, 5, dtype=dtype), R(states, batch, 5, dtype=dtype)
    for given in ((), ((h, c),)):
        given_xla = [tuple(t.to(DEVICE) for t in state) for state in given]
        for x_xla in (x.to(DEVICE), x.to(DEVICE) * 1):
            before = met.counter_value("xla::lstm") or 0
            with torch.no_grad():
                y, last = module(x, *given)
                y_xla, last_xla = twin(x_xla, *given_xla)
            assert met.counter_value("xla::lstm") == before + 1
            text = torch_xla._XLAC._get_stablehlo([y_xla, *last_xla])
            assert ("aten::lstm.input" in text) == (batch >= 8 and dtype == torch.float32)
            assert_same([y_xla, *last_xla], [y, *last], **TOLERANCE)
            assert [t.stride() for t in (y_xla, *last_xla)] == [t.stride() for t in (y, *last)]


@pytest.mark.parametrize("options", LAYERS)
def test_inference_of_lstm_in_parts(options):
    """Large enough for several threads."""
    module = nn.LSTM(64, 64, **options).eval()
    twin = copy.deepcopy(module).to(DEVICE)
    x = R((33, 20, 64) if options.get("batch_first") else (20, 33, 64))
    with torch.inference_mode():
        y, last = module(x)
        y_xla, last_xla = twin(x.to(DEVICE))
        assert_same([y_xla, *last_xla], [y, *last], **TOLERANCE)


def test_dropout_in_inference():
    """A module that is training drops what is between its layers, with gradients or without."""
    twin = nn.LSTM(5, 7, num_layers=2, dropout=0.9).to(DEVICE)
    x = R(4, 8, 5).to(DEVICE)
    with torch.no_grad():
        first, second = twin(x)[0].cpu(), twin(x)[0].cpu()
        assert not torch.equal(first, second)
        twin.eval()
        assert torch.equal(twin(x)[0].cpu(), twin(x)[0].cpu())


def test_inference_with_wrong_sizes():
    x, state = R(7, 8, 6).to(DEVICE), R(1, 8, 5).to(DEVICE)
    weights = [R(20, 6).to(DEVICE), R(20, 5).to(DEVICE)]

    def call(weights, state=state):
        return torch.lstm(x, [state, state], weights, False, 1, 0.0, False, False, False)

    call(weights)
    with pytest.raises(RuntimeError, match="expected the input's weight of size"):
        call([weights[0][:, :4], weights[1]])
    with pytest.raises(RuntimeError, match="expected a state of size"):
        call(weights, state[:, :4])
