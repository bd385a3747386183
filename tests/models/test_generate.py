"""`generate()` of transformers gives the CPU's tokens."""

from __future__ import annotations

import pytest
import torch

from torch_xla.debug import metrics

transformers = pytest.importorskip("transformers")

STATIC = {"cache_implementation": "static"}
WAYS = {
    "greedy": {},
    "static cache": STATIC,
    "most likely of a sample": {"do_sample": True, "top_k": 1, **STATIC},
    "beams": {"num_beams": 2},
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.LlamaForCausalLM(config).eval()


def generate(model: torch.nn.Module, device: str, **how) -> torch.Tensor:
    ids = torch.arange(3, 17).view(2, 7).to(device)
    mask = torch.ones_like(ids)
    model = model.to(device)
    return model.generate(ids, attention_mask=mask, max_new_tokens=4, **how).cpu()


@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_those_of_the_cpu(model, way):
    expected = generate(model, "cpu", **WAYS[way])
    assert torch.equal(generate(model, "xla", **WAYS[way]), expected)
    compiled = metrics.counter_value("UncachedCompile")
    assert torch.equal(generate(model, "xla", **WAYS[way]), expected)
    assert metrics.counter_value("UncachedCompile") == compiled


def test_samples_come_from_the_seed(model):
    def sample(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return generate(model, "xla", do_sample=True, temperature=2.0, top_p=0.9, **STATIC)

    first = sample(1)
    assert first.shape == (2, 11) and first.min() >= 0 and first.max() < 99
    assert torch.equal(sample(1), first)
    assert any(not torch.equal(sample(seed), first) for seed in (2, 3))
