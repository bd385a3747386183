"""The models of the speed targets, small and plain, and how each is fed and trained.

GPT-2, Llama and BERT are those of `transformers`, with random weights: nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY = 8192


class SmallCNN(nn.Module):
    """For 28x28 images with one channel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class LSTMClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(128, 128, num_layers=2, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def deep_mlp() -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)) for _ in range(30)]
    return nn.Sequential(*blocks, nn.Linear(64, 10))


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """The 18-layer network of He et al., Deep Residual Learning for Image Recognition, 2015."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(64)
        blocks, inputs = [], 64
        for i, width in enumerate((64, 128, 256, 512)):
            for stride in (1 if i == 0 else 2, 1):
                blocks.append(BasicBlock(inputs, width, stride))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.inputs(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (query, key, value)))
        return self.output(y.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int, inner: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.inner = nn.LayerNorm(width), inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.inner(self.norm2(x))


def feed_forward(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class ViT(nn.Module):
    """Dosovitskiy et al., An Image is Worth 16x16 Words, 2020; small."""

    def __init__(self, size: int = 112, patch: int = 16, width: int = 192, layers: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 1 + (size // patch) ** 2, width) * 0.02)
        blocks = [TransformerBlock(width, 3, feed_forward(width)) for _ in range(layers)]
        self.blocks, self.norm = nn.Sequential(*blocks), nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


def two_convolutions(inputs: int, outputs: int) -> nn.Module:
    layers = []
    for width in (inputs, outputs):
        layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Ronneberger et al., U-Net, 2015, with padded convolutions; tells the class of an image."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()
        pairs = list(zip(widths, widths[1:], strict=False))
        self.first = two_convolutions(3, widths[0])
        self.down = nn.ModuleList(two_convolutions(a, b) for a, b in pairs)
        self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs))
        self.up = nn.ModuleList(two_convolutions(2 * a, a) for a, _ in reversed(pairs))
        self.head = nn.Conv2d(widths[0], 10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skipped = [self.first(x)]
        for down in self.down:
            skipped.append(down(F.max_pool2d(skipped[-1], 2)))
        x = skipped.pop()
        for grow, up in zip(self.grow, self.up, strict=True):
            x = up(torch.cat([skipped.pop(), grow(x)], 1))
        return self.head(x).mean((2, 3))


class Experts(nn.Module):
    """Two of the feed-forward networks for each token, each with room for a share of the tokens;
    those without a place pass by. Lepikhin et al., GShard, 2020."""

    def __init__(self, width: int, experts: int = 8, inner: int = 512, spare: float = 1.25) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.first = nn.Parameter(torch.randn(experts, width, inner) / width**0.5)
        self.second = nn.Parameter(torch.randn(experts, inner, width) / inner**0.5)
        self.spare = spare

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens, experts = x.flatten(0, -2), self.gate.out_features
        places = int(2 * self.spare * len(tokens) / experts)
        weights, chosen = self.gate(tokens).softmax(-1).topk(2, -1)
        taken = F.one_hot(chosen.t().flatten(), experts)  # first choices first
        place = (taken.cumsum(0) * taken).sum(-1) - 1
        kept = (place < places).to(x.dtype) * weights.t().flatten()
        there = F.one_hot(place.clamp(max=places - 1), places)
        combine = (kept[:, None] * taken)[:, :, None] * there[:, None, :].to(x.dtype)
        combine = combine.view(2, -1, experts, places).sum(0)
        inputs = torch.einsum("tec,tw->ecw", (combine != 0).to(x.dtype), tokens)
        results = F.gelu(inputs @ self.first) @ self.second
        return torch.einsum("tec,ecw->tw", combine, results).view_as(x)


class MixtureOfExperts(nn.Module):
    """A transformer over vectors whose feed-forward parts are experts."""

    def __init__(self, width: int = 192, layers: int = 4) -> None:
        super().__init__()
        blocks = [TransformerBlock(width, 4, Experts(width)) for _ in range(layers)]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x).mean(1))


class Loss(nn.Module):
    """A model with its loss, so that the loss is compiled with it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(x), target)


class LanguageModel(nn.Module):
    """One of `transformers`, by the name of its class; gives logits, or the loss to labels."""

    def __init__(self, kind: str, **settings: int) -> None:
        super().__init__()
        import transformers

        transformers.logging.set_verbosity_error()
        kind_of_model = getattr(transformers, kind)
        config = kind_of_model.config_class(
            vocab_size=VOCABULARY, use_cache=False, bos_token_id=0, eos_token_id=1, **settings
        )
        self.model = kind_of_model(config)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        result = self.model(input_ids=x, labels=labels)
        return result.logits if labels is None else result.loss


def gpt2() -> nn.Module:
    return LanguageModel("GPT2LMHeadModel", n_layer=6, n_embd=384, n_head=6)


def llama() -> nn.Module:
    return LanguageModel(
        "LlamaForCausalLM",
        num_hidden_layers=6,
        hidden_size=384,
        intermediate_size=1024,
        num_attention_heads=6,
        num_key_value_heads=2,
    )


def bert() -> nn.Module:
    return LanguageModel(
        "BertForMaskedLM",
        num_hidden_layers=4,
        hidden_size=256,
        intermediate_size=1024,
        num_attention_heads=4,
    )


@dataclass
class Network:
    """What is measured of a model; the targets are ratios of its time to eager's."""

    title: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    train_target: float | None = None
    infer_target: float | None = None

    @property
    def is_language(self) -> bool:
        return self.make in (gpt2, llama, bert)

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch and what it should give."""
        if self.is_language:
            return torch.randint(VOCABULARY, self.shape), torch.randint(VOCABULARY, self.shape)
        return torch.randn(self.shape), torch.randint(10, self.shape[:1])


NETWORKS = {
    "cnn": Network("small CNN, batch 64", SmallCNN, (64, 1, 28, 28), 1.0, 0.6),
    "mlp": Network("MLP of 30 blocks, batch 16", deep_mlp, (16, 64), 1.0),
    "resnet18": Network("ResNet-18 at 112, batch 8", ResNet18, (8, 3, 112, 112), 0.95),
    "lstm": Network("LSTM 2x128, sequence 32", LSTMClassifier, (16, 32, 128), 1.0, 0.9),
    "gpt2": Network("GPT-2 6x384, 4 x 128 tokens", gpt2, (4, 128), 0.85, 0.8),
    "llama": Network("Llama 6x384, 4 x 128 tokens", llama, (4, 128), 0.95, 0.9),
    "bert": Network("BERT 4x256, 8 x 128 tokens", bert, (8, 128), 0.85, 0.8),
    "vit": Network("ViT 6x192 at 112, batch 8", ViT, (8, 3, 112, 112)),
    "unet": Network("U-Net of 4 levels, batch 4", UNet, (4, 3, 64, 64)),
    "moe": Network("8 experts, 4x192, 8 x 64", MixtureOfExperts, (8, 64, 192)),
}

# Those of plain layers by title: (model, shape of a batch, target of training).
MODELS = {
    n.title: (n.make, n.shape, n.train_target) for n in NETWORKS.values() if not n.is_language
}
