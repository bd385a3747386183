"""Helps tests of exported programs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_xla.experimental.unbounded_dynamism_export import wrap_func_as_nn_module
from torch_xla.tf_saved_model_integration import _tensorflow

__all__ = [
    "compare_exported_program_and_saved_model_result",
    "has_tf_package",
    "load_save_model_and_inference",
    "wrap_func_as_nn_module",
]


def has_tf_package() -> bool:
    """True if tensorflow is installed."""
    return importlib.util.find_spec("tensorflow") is not None


def load_save_model_and_inference(path: str, args: tuple[Any, ...]) -> dict[Any, Any]:
    """The results of a SavedModel's default signature for these tensors, by the names of outputs.

    Raises:
        ImportError: tensorflow is not installed.
    """
    tf = _tensorflow()
    function: Callable[..., Any] = tf.saved_model.load(path).signatures["serving_default"]
    given = {f"args_{i}": tf.constant(a.detach().numpy()) for i, a in enumerate(args)}
    return function(**given)


def compare_exported_program_and_saved_model_result(
    ep: torch.export.ExportedProgram,
    saved_model_path: str,
    args: tuple[Any, ...],
    atol: float = 1e-7,
) -> None:
    """Raises AssertionError where an exported program and a SavedModel of it differ.

    Raises:
        ImportError: tensorflow is not installed.
    """
    expected = pytree.tree_leaves(ep.module()(*args))
    found = load_save_model_and_inference(saved_model_path, args)
    for i, tensor in enumerate(expected):
        actual = torch.from_numpy(found[f"output_{i}"].numpy())
        torch.testing.assert_close(actual, tensor, atol=atol, rtol=1e-5)
