"""Models of `torchvision` and `timm`, small ones with random weights."""

from __future__ import annotations

from typing import Any

import torch

from .training import Case

CLASSES = 5


class Classifier(torch.nn.Module):
    """A model of images with its loss."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.model(images)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def prepared(model: torch.nn.Module, size: int) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Without what draws at random: two devices draw differently."""
    for module in model.modules():
        for name in ("p", "drop_prob", "drop_rate"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    batch = {"images": torch.randn(4, 3, size, size), "labels": torch.randint(0, CLASSES, (4,))}
    return Classifier(model), batch


def from_torchvision(
    name: str, size: int = 64, dtype: torch.dtype = torch.float32, **own: Any
) -> Case:
    def build() -> tuple[torch.nn.Module, dict[str, Any]]:
        import torchvision

        return prepared(torchvision.models.get_model(name, num_classes=CLASSES, **own), size)

    return Case(f"torchvision {name}", "torchvision", build, dtype=dtype)


def from_timm(name: str, size: int = 64, dtype: torch.dtype = torch.float32, **own: Any) -> Case:
    def build() -> tuple[torch.nn.Module, dict[str, Any]]:
        import timm

        return prepared(timm.create_model(name, num_classes=CLASSES, **own), size)

    return Case(f"timm {name}", "timm", build, dtype=dtype)


CASES = [
    from_torchvision("alexnet"),
    from_torchvision("mnasnet0_5", dtype=torch.float64),
    from_torchvision("mobilenet_v2", dtype=torch.float64),
    from_torchvision("mobilenet_v3_small"),
    from_torchvision("regnet_y_400mf", dtype=torch.float64),
    from_torchvision("resnet18", dtype=torch.float64),
    from_torchvision("shufflenet_v2_x0_5", dtype=torch.float64),
    from_torchvision("squeezenet1_1"),
    from_torchvision("swin_t"),
    from_torchvision("vit_b_32", image_size=64),
    from_timm("convnext_atto"),
    from_timm("deit_tiny_patch16_224", img_size=64),
    from_timm("gmlp_ti16_224", img_size=64),
    from_timm("lcnet_050"),
    from_timm("mobilenetv3_small_050"),
    from_timm("poolformer_s12"),
    from_timm("regnetx_002"),
    from_timm("repvgg_a0", dtype=torch.float64),
    from_timm("resnet10t"),
    from_timm("vit_tiny_patch16_224", img_size=64),
    from_timm("xcit_nano_12_p16_224", img_size=64),
]
