"""Models to export, small and of all kinds, and another program that runs them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla.stablehlo as stablehlo
from benchmarks.networks import BasicBlock
from torch_xla.stablehlo import (
    StableHLOExportOptions,
    StableHLOGraphModule,
    exported_program_to_stablehlo,
)


def exported(
    model: nn.Module, args: tuple, options: StableHLOExportOptions | None = None, **kwargs: Any
) -> StableHLOGraphModule:
    return exported_program_to_stablehlo(torch.export.export(model, args, **kwargs), options)


def function_of(program: StableHLOGraphModule) -> stablehlo.StableHLOFunc:
    return program.bundle.stablehlo_funcs[0]


class Jax:
    """The PJRT client for the CPU inside jaxlib, which JAX runs its programs on."""

    def __init__(self) -> None:
        pytest.importorskip("ml_dtypes", reason="jaxlib's buffers need it")
        from jaxlib import xla_client

        self._xla = xla_client
        self._client = xla_client.make_cpu_client()
        self._devices = self._client.devices()[:1]

    def run(self, program: bytes, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        from jaxlib import _jax

        executable = self._client.compile_and_load(
            program, self._xla.DeviceList(tuple(self._devices)), self._xla.CompileOptions()
        )
        buffers = [
            self._client.buffer_from_pyval(a.detach().numpy(), self._devices[0]) for a in args
        ]
        results = executable.execute_sharded(buffers).disassemble_into_single_device_arrays()
        return [torch.from_dlpack(_jax.buffer_to_dlpack_managed_tensor(r[0])) for r in results]


def flat_arguments(program: StableHLOGraphModule, args: tuple) -> list[torch.Tensor]:
    return stablehlo._extract_call_parameters(args, function_of(program).meta, program.bundle)


class OfTransformers(nn.Module):
    """The logits or last states of one of `transformers`, with random weights."""

    def __init__(self, kind: str, **settings: Any) -> None:
        super().__init__()
        import transformers

        kind_of_model = getattr(transformers, kind)
        self.model = kind_of_model(kind_of_model.config_class(**settings))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x, return_dict=False)[0]


SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
TEXT = dict(vocab_size=99, use_cache=False)


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(50, 8)
        self.dense = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.dense(self.bags(x)))


class Sequence2D(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.log_softmax(self.head(self.rnn(x)[0].amax(1)), -1)


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.GroupNorm(2, 8),
        nn.GELU(),
        nn.ConvTranspose2d(8, 3, 4, 2, 1),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Sigmoid(),
    )


@dataclasses.dataclass
class Example:
    model: Callable[[], nn.Module]
    x: Callable[[], torch.Tensor]


def tokens() -> torch.Tensor:
    return torch.randint(99, (2, 7))


def images() -> torch.Tensor:
    return torch.randn(2, 3, 16, 16)


MODELS = {
    "mlp": Example(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)),
        lambda: torch.randn(5, 6),
    ),
    "resnet": Example(lambda: nn.Sequential(BasicBlock(3, 8, 1), BasicBlock(8, 16, 2)), images),
    "lstm": Example(Sequence2D, lambda: torch.randn(2, 5, 6)),
    "encoder": Example(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2),
        lambda: torch.randn(2, 5, 16),
    ),
    "autoencoder": Example(autoencoder, images),
    "recommender": Example(Recommender, lambda: torch.randint(50, (4, 6))),
    "bert": Example(lambda: OfTransformers("BertModel", **SMALL, vocab_size=99), tokens),
    "gpt2": Example(
        lambda: OfTransformers("GPT2LMHeadModel", n_layer=2, n_embd=32, n_head=4, **TEXT), tokens
    ),
    "llama": Example(
        lambda: OfTransformers("LlamaForCausalLM", **SMALL, num_key_value_heads=2, **TEXT), tokens
    ),
    "vit": Example(
        lambda: OfTransformers("ViTModel", **SMALL, image_size=16, patch_size=4), images
    ),
    "mixer": Example(lambda: OfTransformers("FNetModel", **SMALL, vocab_size=99), tokens),
}
