"""Residual networks (He et al., Deep Residual Learning for Image Recognition, 2015)."""

from torch import nn

# The kind of block, and how many of them each stage has.
_NETWORKS = {
    "resnet18": (1, (2, 2, 2, 2)),
    "resnet34": (1, (3, 4, 6, 3)),
    "resnet50": (4, (3, 4, 6, 3)),
    "resnet101": (4, (3, 4, 23, 3)),
    "resnet152": (4, (3, 8, 36, 3)),
}
NAMES = list(_NETWORKS)


def convolution(*args):
    made = nn.Conv2d(*args, bias=False)
    nn.init.kaiming_normal_(made.weight, mode="fan_out", nonlinearity="relu")
    return made


class Block(nn.Module):
    """Two 3 x 3 convolutions, or one between two of 1 x 1 (`expansion` 4), beside a short cut."""

    def __init__(self, channels, width, stride, expansion):
        super().__init__()
        kernels = [(1, 1), (3, stride), (1, 1)] if expansion > 1 else [(3, stride), (3, 1)]
        sizes = [channels, *[width] * (len(kernels) - 1), width * expansion]
        layers = []
        for (kernel, step), before, after in zip(kernels, sizes, sizes[1:], strict=False):
            layers += [convolution(before, after, kernel, step, kernel // 2)]
            layers += [nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers[:-1])
        self.short_cut = nn.Identity()
        if stride != 1 or channels != sizes[-1]:
            self.short_cut = nn.Sequential(
                convolution(channels, sizes[-1], 1, stride), nn.BatchNorm2d(sizes[-1])
            )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.layers(x) + self.short_cut(x))


class ResNet(nn.Module):
    """Takes images `[N, 3, H, W]`, gives `[N, classes]`."""

    def __init__(self, expansion, counts, classes=1000, block=Block):
        super().__init__()
        stem = [convolution(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        self.stem = nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1))
        stages, channels = [], 64
        for stage, count in enumerate(counts):
            width, blocks = 64 << stage, []
            for place in range(count):
                stride = 2 if stage and not place else 1
                blocks.append(block(channels, width, stride, expansion))
                channels = width * expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x):
        return self.classifier(self.stages(self.stem(x)).mean((2, 3)))


def make(name, classes=1000, block=Block):
    """The network of this name; `block` makes its blocks, as one that wraps them does."""
    return ResNet(*_NETWORKS[name], classes, block)
