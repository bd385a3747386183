"""What a training step sends between devices, of which kinds and how many bytes: read from the
compiled program.

Units: _src/insight/split_parameters.
"""

from __future__ import annotations

import pytest

from .test_spmd_training import run  # noqa: F401

STEP = """
import collections
import tests.spmd.training as training
from torch_xla.distributed.spmd.debugging import collectives

torch.set_default_dtype(torch.float32)
training.WIDTH, training.WORDS = 64, 128

def sent(kind, mesh, batch, wrap=split_parameters):
    "The bytes of each kind in a step, the largest one, the number of each kind, the parameters'."
    over = mesh_of(mesh)
    model = wrap(build(kind), over)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.loss(batch, 0, "xla", batch_splitter(over)).backward()
    optimizer.step()
    torch_xla.sync()
    total, count = collections.Counter(), collections.Counter()
    for name, size in collectives():
        total[name] += size
        count[name] += 1
    largest = max(size for _, size in collectives())
    return dict(total), largest, dict(count), sum(p.nbytes for p in model.parameters())
"""


@pytest.fixture
def send(run):  # noqa: F811
    """Runs code with `sent`; fails where XLA says that it makes a value whole on each device."""

    def send(code):
        done = run(STEP + code)
        assert "Involuntary full rematerialization" not in done.stderr, done.stderr

    return send


@pytest.mark.slow
def test_data_parallelism_sends_gradients(send):
    send("""
for batch in (16, 64):
    total, _, count, parameters = sent("transformer", "data", batch)
    # The embedding is the output layer too, and its two gradients are summed apart.
    twice = training.WORDS * training.WIDTH * 4
    assert set(total) == {"all-reduce"}, total
    assert 0 <= total["all-reduce"] - parameters - twice < 64, (total, parameters)
""")


@pytest.mark.slow
def test_fully_sharded_parameters_are_gathered_once(send):
    send("""
for batch in (64, 256):
    total, largest, count, parameters = sent("transformer", "fsdp", batch, fully_sharded)
    twice = training.WORDS * training.WIDTH * 4
    assert set(total) == {"all-gather", "all-reduce"}, total
    assert total["all-gather"] == parameters, (total, parameters)
    assert 0 <= total["all-reduce"] - parameters - twice < 64, (total, parameters)
""")


@pytest.mark.slow
def test_tensor_parallelism_sends_activations(send):
    send("""
for batch in (16, 32):
    total, largest, count, _ = sent("transformer", "model", batch)
    activations = batch * 11 * training.WIDTH * 4
    assert "all-gather" not in total, total
    assert activations <= largest < 1.05 * activations, (largest, activations)
    # Forward two a layer and that of the embedding, backward as many.
    assert total["all-reduce"] <= 11.5 * activations, total["all-reduce"] / activations
    assert sum(total.values()) <= 20 * activations, sum(total.values()) / activations
""")


def test_experts_send_tokens(send):
    send("""
for batch in (16, 64):
    total, _, count, _ = sent("experts", "expert", batch)
    slots = 8 * batch * training.WIDTH * 4
    assert set(total) == {"all-reduce"}, total
    assert total["all-reduce"] < slots / 2, (total, slots)
""")


@pytest.mark.slow
def test_a_recurrent_layer_sends_gradients(send):
    send("""
small, large = (sent("lstm", "data", batch)[0] for batch in (16, 64))
assert small == large, (small, large)
""")


@pytest.mark.slow
def test_a_convolution_sends_gradients(send):
    send("""
small, large = (sent("cnn", "data", batch)[0] for batch in (16, 64))
assert small == large, (small, large)
""")


def test_layers_over_images_leave_the_batch_where_it_is(run):  # noqa: F811
    """What is sent are gradients, and the statistics of batch norms."""
    run("""
from torch import nn
from torch_xla.distributed.spmd.debugging import collectives
mesh = xs.Mesh(np.arange(8), (8,), ("data",))
IMAGES = 16, 8, 12, 12
layers = {
    nn.Conv2d(8, 16, 3, padding=1): 0, nn.Conv2d(8, 16, 3, stride=2): 0,
    nn.Conv2d(8, 8, 3, groups=8, stride=2, padding=1): 0, nn.Conv2d(8, 16, 3, groups=4): 0,
    nn.Conv2d(8, 16, 3, groups=8): 0, nn.ConvTranspose2d(8, 8, 3, groups=2): 0,
    nn.ConvTranspose2d(8, 4, 2, stride=2): 0,
    nn.BatchNorm2d(8): 5 * 8, nn.GroupNorm(2, 8): 0, nn.MaxPool2d(2): 0,
    nn.MaxPool2d(3, 2, 1): 0, nn.AvgPool2d(2): 0, nn.AdaptiveAvgPool2d(1): 0, nn.ReLU(): 0,
}
for layer, elements in layers.items():
    x = torch.randn(*IMAGES, dtype=torch.float32)
    want_x = x.clone().requires_grad_()
    plain = copy.deepcopy(layer).float()
    (plain(want_x) ** 3).mean().backward()
    layer = layer.float().to("xla")
    for p in layer.parameters():
        xs.mark_sharding(p, mesh, (None,) * p.dim())
    x = x.to("xla").requires_grad_()
    xs.mark_sharding(x, mesh, ("data", None, None, None))
    torch_xla.sync()
    (layer(x) ** 3).mean().backward()
    torch_xla.sync()
    sent = sum(size for _, size in collectives())
    gradients = sum(p.nbytes for p in layer.parameters())
    assert gradients <= sent <= gradients + 4 * elements + 16, (layer, sent, gradients)
    torch.testing.assert_close(x.grad.cpu(), want_x.grad, rtol=1e-4, atol=1e-6)
    for p, q in zip(layer.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-4, atol=1e-5)
""")
