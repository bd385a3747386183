"""The pipelines of diffusers, unmodified: only the device changes. `make test-all` installs it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torch_xla.debug import metrics

pytestmark = pytest.mark.slow
diffusers = pytest.importorskip("diffusers")

# With random numbers in each step, with the last results, and with neither.
SCHEDULERS = ("EulerAncestralDiscreteScheduler", "DPMSolverMultistepScheduler", "DDIMScheduler")


def stable_diffusion(scheduler: str) -> torch.nn.Module:
    """A small one with random weights; the text is given as its embedding."""
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        norm_num_groups=8,
    )
    vae = diffusers.AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=8,
    )
    noise = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
    made = diffusers.StableDiffusionPipeline(
        vae=vae.eval(),
        text_encoder=None,
        tokenizer=None,
        unet=unet.eval(),
        scheduler=getattr(diffusers, scheduler)(**noise),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    made.set_progress_bar_config(disable=True)
    return made


def images(pipeline: Callable, device: str) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    text, nothing = (torch.randn(1, 7, 32, generator=g).to(device) for _ in range(2))
    made = pipeline.to(device)(
        prompt_embeds=text,
        negative_prompt_embeds=nothing,
        generator=g,
        num_inference_steps=5,
        output_type="pt",
    )
    return made.images.cpu()


@pytest.mark.filterwarnings("ignore:.*is outdated", "ignore:.*has not set the configuration")
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_images_are_those_of_the_cpu(scheduler):
    expected = images(stable_diffusion(scheduler), "cpu")
    assert expected.shape == (1, 3, 32, 32) and expected.std() > 0.05
    pipeline = stable_diffusion(scheduler)
    torch.testing.assert_close(images(pipeline, "xla"), expected, atol=1e-4, rtol=1e-4)
    images(pipeline, "xla")  # what the first one left behind is known from here on
    compiled = metrics.counter_value("UncachedCompile")
    torch.testing.assert_close(images(pipeline, "xla"), expected, atol=1e-4, rtol=1e-4)
    assert metrics.counter_value("UncachedCompile") == compiled
    fallbacks = [n for n in metrics.counter_names() if n.startswith("aten::")]
    assert set(fallbacks) <= {"aten::_local_scalar_dense", "aten::nonzero"}
