"""Real models on xla follow PyTorch on the CPU for 50 steps, and compile in the first three."""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import torch_xla
import torch_xla.debug.metrics as met

STEPS = 50


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.head = nn.Linear(16 * 7 * 7, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.head(x.flatten(1))


class LSTMClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """The 18-layer residual network (He et al., 2015), its widths divided by `narrow`."""

    def __init__(self, narrow=8, classes=10):
        super().__init__()
        widths = [64 // narrow, 128 // narrow, 256 // narrow, 512 // narrow]
        self.stem = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        blocks, inputs = [], widths[0]
        for i, width in enumerate(widths):
            for stride in (1 if i == 0 else 2, 1):
                blocks.append(BasicBlock(inputs, width, stride))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


def mlp():
    return nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


MODELS = {
    "cnn_batch_norm": (SmallCNN, (8, 1, 28, 28), 10, lambda p: torch.optim.SGD(p, 0.01, 0.9)),
    "lstm": (LSTMClassifier, (6, 7, 8), 4, lambda p: torch.optim.Adam(p, 1e-3)),
    "transformer": (Transformer, (4, 9, 16), 4, lambda p: torch.optim.SGD(p, 0.01)),
    "resnet18": (ResNet18, (4, 3, 64, 64), 10, lambda p: torch.optim.SGD(p, 1e-3, 0.9)),
    "mlp_adamw": (mlp, (16, 12), 4, lambda p: torch.optim.AdamW(p, 1e-3)),
}


def train(name, device):
    make, shape, classes, optimizer_of = MODELS[name]
    torch.manual_seed(0)
    # Batch norm over few samples lets rounding grow from step to step on any backend: in double
    # precision fifty steps stay together.
    dtype = torch.float64 if name == "resnet18" else torch.float32
    model = make().to(dtype).to(device)
    optimizer = optimizer_of(model.parameters())
    data = torch.Generator().manual_seed(1)
    # A few batches met again and again, so that the losses fall.
    batches = [
        (
            torch.randn(shape, generator=data, dtype=dtype),
            torch.randint(classes, shape[:1], generator=data),
        )
        for _ in range(4)
    ]
    losses = []
    for step in range(STEPS):
        x, target = (t.to(device) for t in batches[step % len(batches)])
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.detach())
        if step == 2:
            met.clear_counters()
    return model, [loss.item() for loss in losses]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "resnet18" else n for n in MODELS]
)
def test_losses_follow_the_cpu(name):
    model, losses = train(name, "xla")
    compiled = met.counter_value("UncachedCompile")
    fallbacks = [c for c in met.counter_names() if c.startswith("aten::")]
    reference, expected = train(name, "cpu")
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-3, atol=1e-4)
    assert losses[-1] < losses[0]
    assert compiled is None, "a step after the third was compiled"
    assert fallbacks in ([], ["aten::_local_scalar_dense"])
    for (key, value), (_, want) in zip(
        model.state_dict().items(), reference.state_dict().items(), strict=True
    ):
        torch.testing.assert_close(value.cpu(), want, rtol=1e-2, atol=1e-3, msg=key)
