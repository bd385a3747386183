from __future__ import annotations

import importlib.util

import torch

_libraries: list[torch.library.Library] = []


def repair_torchvision() -> None:
    """Makes a torchvision importable that was built for another torch, such as a CUDA one next to
    a torch for the CPU: its compiled part does not load. Its models are Python; what stops the
    import is the names of two operators."""
    if importlib.util.find_spec("torchvision") is None or _libraries:
        return
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _libraries.append(library)
        import torchvision  # noqa: F401


def pytest_configure() -> None:
    repair_torchvision()  # transformers and timm import it
