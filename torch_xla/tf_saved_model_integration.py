"""Exported programs as TensorFlow functions and SavedModels.

Needs tensorflow, whose operation XlaCallModule runs portable artifacts of StableHLO.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import torch

from torch_xla.stablehlo import (
    StableHLOExportOptions,
    StableHLOFunctionMeta,
    StableHLOGraphModule,
    StableHLOModelBundle,
    VariableType,
    exported_program_to_stablehlo,
)

_XLA_CALL_MODULE_VERSION = 5
_DEFAULT_KEY = "serving_default"


def _tensorflow() -> Any:
    try:
        import tensorflow
    except ImportError as error:
        raise ImportError(
            "tf_saved_model_integration: expected tensorflow, which runs and saves the functions, "
            "found none. Run: pip install tensorflow"
        ) from error
    return tensorflow


def _arguments(
    meta: StableHLOFunctionMeta, bundle: StableHLOModelBundle, given: tuple[Any, ...]
) -> list[Any]:
    tf = _tensorflow()
    arguments = []
    for at in meta.input_locations:
        if at.type_ == VariableType.INPUT_ARG:
            arguments.append(given[at.position])
        else:
            arguments.append(tf.constant(bundle.value(at).numpy()))
    return arguments


def make_tf_function(
    stablehlo_program: StableHLOGraphModule, bundle: StableHLOModelBundle | None = None
) -> Callable[..., Any]:
    """A TensorFlow function of a program's flat arguments; it returns the list of its tensors.

    Args:
        stablehlo_program: What `exported_program_to_stablehlo` gave.
        bundle: Other weights, by the same names.

    Raises:
        ImportError: tensorflow or jaxlib is not installed.
    """
    tf = _tensorflow()
    bundle = bundle or stablehlo_program.bundle
    function = stablehlo_program.bundle.stablehlo_funcs[0]
    meta = function.meta
    shapes = [
        [None if i in s.dynamic_dims else size for i, size in enumerate(s.shape)]
        for s in meta.output_signature
    ]

    def call(*given: Any) -> list[Any]:
        return tf.raw_ops.XlaCallModule(
            args=_arguments(meta, bundle, given),
            version=_XLA_CALL_MODULE_VERSION,
            Tout=[tf.dtypes.as_dtype(s.dtype) for s in meta.output_signature],
            Sout=shapes,
            function_list=[],
            module=function.bytecode,
        )

    return call


def _input_signature(meta: StableHLOFunctionMeta) -> list[Any]:
    tf = _tensorflow()
    places = itertools.chain(
        zip(meta.input_locations, meta.input_signature, strict=True), meta.unused_inputs
    )
    by_position = {
        at.position: tf.TensorSpec(
            shape=[None if i in s.dynamic_dims else size for i, size in enumerate(s.shape)],
            dtype=tf.dtypes.as_dtype(s.dtype),
            name=f"args_{at.position}",
        )
        for at, s in places
        if at.type_ == VariableType.INPUT_ARG
    }
    return [by_position[i] for i in sorted(by_position)]


def save_stablehlo_graph_as_tf(
    stablehlo_program: StableHLOGraphModule,
    path: str | os.PathLike[str],
    serving_key: str = _DEFAULT_KEY,
    function_alias: str = "",
) -> None:
    """Writes a program as a SavedModel.

    Args:
        stablehlo_program: What `exported_program_to_stablehlo` gave.
        path: The folder.
        serving_key: The signature's name.
        function_alias: A name for the function, which tools can look for.

    Raises:
        ImportError: tensorflow or jaxlib is not installed.
        NotImplementedError: The model writes buffers, which a SavedModel of it would lose.
    """
    tf = _tensorflow()
    meta = stablehlo_program.bundle.stablehlo_funcs[0].meta
    if meta.mutations:
        raise NotImplementedError(
            "save_stablehlo_graph_as_tf: expected a model that writes nothing, got one that writes "
            f"{', '.join(map(str, meta.mutations))}. Call eval() before the export."
        )
    module = tf.Module()
    module.f = tf.function(
        make_tf_function(stablehlo_program), input_signature=_input_signature(meta)
    )
    signatures = {serving_key: module.f.get_concrete_function()}
    aliases = {function_alias: module.f} if function_alias else None
    tf.saved_model.save(
        module,
        os.fspath(path),
        signatures=signatures,
        options=tf.saved_model.SaveOptions(function_aliases=aliases),
    )


def save_torch_module_as_tf_saved_model(
    torch_model: torch.nn.Module,
    args: tuple[Any, ...],
    saved_model_dir: str | os.PathLike[str],
    serving_key: str = _DEFAULT_KEY,
    function_alias: str = "",
) -> None:
    """`torch.export.export`, then `save_stablehlo_graph_as_tf`."""
    _tensorflow()
    options = StableHLOExportOptions(include_human_readable_text=False)
    program = exported_program_to_stablehlo(torch.export.export(torch_model, args), options)
    save_stablehlo_graph_as_tf(program, saved_model_dir, serving_key, function_alias)
