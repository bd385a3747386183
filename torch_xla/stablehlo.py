"""Models of `torch.export` as StableHLO programs, for any compiler.

    exported = torch.export.export(model, (x,))
    program = exported_program_to_stablehlo(exported)
    print(program.get_stablehlo_text())
    y = program(x)
    program.save("folder")
    again = StableHLOGraphModule.load("folder")

docs/export.md describes the options and the files.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from torch_xla import _XLAC
from torch_xla._src.export import bundle as _files
from torch_xla._src.export import mlir as _mlir
from torch_xla._src.export import recording as _recording
from torch_xla._src.export.bundle import (  # noqa: F401
    InputLocation,
    StableHLOFunc,
    StableHLOFunctionMeta,
    StableHLOJSONSerializer,
    StableHLOModelBundle,
    VariableSignature,
    VariableType,
    _get_numpy_dtype,
    _iter_dir,
    stablehlo_obj_hook,
)
from torch_xla._src.export.recording import XLAExportInterpreter  # noqa: F401
from torch_xla.experimental import xla_marker, xla_mlir_debuginfo  # noqa: F401
from torch_xla.experimental.stablehlo_custom_call import (  # noqa: F401
    extract_custom_call_outputs_shape_dtype,
    stablehlo_custom_call,
)
from torch_xla.experimental.unbounded_dynamism_export import (  # noqa: F401
    exported_program_has_symbolic_input_shape,
    process_exported_program_with_symbolic_input,
)

if TYPE_CHECKING:
    from torch.export import ExportedProgram

# Operators that an exported program is decomposed of before it is recorded: none. All of ATen is
# recorded as it is.
_extra_decompositions: dict[Any, Any] = {}


@dataclasses.dataclass
class StableHLOExportOptions:
    """Options of an export.

    Attributes:
        include_human_readable_text: Whether `save` writes the text beside the bytecode.
        override_tracing_arguments: Positional arguments whose shapes the program is made for, in
            place of those that the model was exported with.
        override_tracing_kwargs: The keyword arguments that go with those.
        save_weights: Whether `save` writes the weights.
        inline_all_constant: Whether the program holds the tensors that the model holds and its
            state dict does not; otherwise they are arguments of `VariableType.CONSTANT`.
        export_weights: Whether the result holds the weights. The program takes them either way.
        custom_ops_allowed_in_graph: Namespaces of custom operators, each of which becomes a
            `stablehlo.custom_call` of its name, such as `@my.op.default`. Other custom operators
            with a kernel for xla, or composed of others, are recorded as what they compute.
        export_node_metadata: Whether each operation carries the lines of the model that it comes
            from, as its location.
        stablehlo_version: The StableHLO version of the bytecode, such as "1.9.0"; by default the
            one of the installed jaxlib.
    """

    include_human_readable_text: bool = True
    override_tracing_arguments: tuple[Any, ...] | None = None
    override_tracing_kwargs: Mapping[str, Any] | None = None
    save_weights: bool = True
    inline_all_constant: bool = True
    export_weights: bool = True
    custom_ops_allowed_in_graph: set[str] = dataclasses.field(default_factory=set)
    export_node_metadata: bool = False
    stablehlo_version: str | None = None


class StableHLOGraphModule:
    """StableHLO programs with their weights, ready to be run."""

    def __init__(self, bundle: StableHLOModelBundle):
        self._bundle = bundle
        self._functions = {f.meta.name: f for f in bundle.stablehlo_funcs}
        self._default = bundle.stablehlo_funcs[0].meta.name
        self._programs: dict[Any, _XLAC._LoadedProgram] = {}
        # On the device: weights that were used, and what the programs have made of them.
        self._held: dict[Any, torch.Tensor] = {}
        self._written: set[Any] = set()

    @property
    def bundle(self) -> StableHLOModelBundle:
        """The programs, what each takes and returns, and the weights."""
        return self._bundle

    def evaluate(
        self, method_name: str | None, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs a method on this process's device.

        Args:
            method_name: The method; without one, the first.
            args: The positional arguments, as the exported model took them.
            kwargs: The keyword arguments.

        Returns:
            What the model returned, on `xla` if an argument is there, else on the CPU. Buffers that
            the model writes have their new values at the next call, and in what `save` writes.

        Raises:
            ValueError: There is no such method, or the arguments are others than were exported.
        """
        function = self._function(method_name)
        meta = function.meta
        flat = _flatten(meta, args, kwargs)
        on_cpu = all(a.device.type != "xla" for a in flat if isinstance(a, torch.Tensor))
        given = [self._argument(flat, at) for at in meta.input_locations]
        _check_arguments(meta, flat, given)
        results = self._program(function, given)(given)
        for at, value in zip(
            meta.mutations, results[len(results) - len(meta.mutations) :], strict=True
        ):
            self._write(flat, at, value)
        tensors = iter(r.cpu() if on_cpu else r for r in results)
        leaves = [next(tensors) if isinstance(r, VariableSignature) else r for r in meta.results()]
        if meta.output_pytree_spec is None:
            return leaves
        return pytree.tree_unflatten(leaves, meta.output_pytree_spec)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the first method (`evaluate`)."""
        return self.evaluate(None, args, kwargs)

    def get_stablehlo_text(self, method_name: str | None = None) -> str:
        """The StableHLO text of a method: a module whose function is `main`.

        Raises:
            ImportError: The program was loaded without its text, and jaxlib is not installed.
        """
        return self._function(method_name).text_or_read()

    def get_stablehlo_bytecode(self, method_name: str | None = None) -> bytes:
        """A method as a portable artifact of StableHLO: MLIR bytecode.

        Raises:
            ImportError: jaxlib is not installed.
        """
        return self._function(method_name).bytecode

    def save(
        self, directory_path: str | os.PathLike[str], options: StableHLOExportOptions | None = None
    ) -> None:
        """Writes the programs and weights to a folder; `load` reads them.

        Without jaxlib only the texts of the programs are written.

        Args:
            directory_path: The folder, which is made if need be.
            options: `include_human_readable_text` and `save_weights` say what is written.

        Raises:
            ImportError: Only the bytecode is asked for, and jaxlib is not installed.
        """
        bundle = copy.copy(self._bundle)
        bundle.state_dict = dict(bundle.state_dict)
        bundle.additional_constants = list(bundle.additional_constants)
        for key in self._written:
            table = bundle.state_dict if isinstance(key, str) else bundle.additional_constants
            table[key] = self._held[key].cpu()
        _save_program_bundle(bundle, directory_path, options)

    @classmethod
    def load(cls, directory_path: str | os.PathLike[str]) -> StableHLOGraphModule:
        """Reads what `save` has written.

        Raises:
            FileNotFoundError: The folder has no functions.
        """
        return cls(_load_program_bundle(directory_path))

    def _function(self, name: str | None) -> StableHLOFunc:
        name = name or self._default
        if name not in self._functions:
            raise ValueError(
                f"stablehlo: expected a method that was exported, one of "
                f"{sorted(self._functions)}, got {name!r}."
            )
        return self._functions[name]

    def _argument(self, flat: Sequence[Any], at: InputLocation) -> torch.Tensor:
        if at.type_ == VariableType.INPUT_ARG:
            given = flat[at.position]
            if not isinstance(given, torch.Tensor):
                raise ValueError(
                    f"stablehlo: expected a tensor as argument {at.position}, got {given!r}."
                )
            return given.detach().to("xla")
        key = _key(at)
        if key not in self._held:
            self._held[key] = self._bundle.value(at).to("xla")
        return self._held[key]

    def _write(self, flat: Sequence[Any], at: InputLocation, value: torch.Tensor) -> None:
        if at.type_ == VariableType.INPUT_ARG:
            with torch.no_grad():
                flat[at.position].copy_(value)
        else:
            self._held[_key(at)] = value
            self._written.add(_key(at))

    def _program(self, function: StableHLOFunc, given: list[torch.Tensor]) -> Any:
        key = (function.meta.name, given[0].device if given else None)
        types = None
        if any(s.dynamic_dims for s in function.meta.input_signature):
            types = tuple(_files.type_of(g) for g in given)
        if (key, types) not in self._programs:
            program = function.program()
            if types is not None:
                program = _mlir.refined(program, types)
            program = program.encode() if isinstance(program, str) else program
            device = str(given[0].device) if given else "xla"
            self._programs[key, types] = _XLAC._LoadedProgram(
                program, given, function.meta.name, device
            )
        return self._programs[key, types]


def _key(at: InputLocation) -> str | int:
    """Names a weight or constant in the bundle's table of them."""
    return at.name if at.type_ == VariableType.PARAMETER else at.position


def _flatten(
    meta: StableHLOFunctionMeta, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> list[Any]:
    kwargs = dict(kwargs or {})
    expected = meta.input_pytree_spec
    if expected is None:
        return [*args, *kwargs.values()]
    given = (tuple(args), kwargs)
    try:
        flat = expected.flatten_up_to(given)  # keys of dicts in the order of the export
    except ValueError as error:
        raise ValueError(
            f"stablehlo: expected arguments of the structure that was exported, {expected}, got "
            f"{pytree.tree_structure(given)}."
        ) from error
    for position, value in meta.other_inputs.items():
        if flat[int(position)] != value:
            raise ValueError(
                f"stablehlo: expected {value!r} as argument {position}, which the model was "
                f"exported with, got {flat[int(position)]!r}. Export it for that."
            )
    return flat


def _check_arguments(
    meta: StableHLOFunctionMeta, flat: Sequence[Any], given: Sequence[torch.Tensor]
) -> None:
    for at, expected, tensor in zip(meta.input_locations, meta.input_signature, given, strict=True):
        if not expected.fits(tensor):
            raise ValueError(
                f"stablehlo: expected {expected} as {at}, got shape {list(tensor.shape)} "
                f"({str(tensor.dtype).removeprefix('torch.')}). Export the model for it."
            )
    all_arguments = list(zip(meta.input_locations, meta.input_signature, given, strict=True))
    for at, signature in meta.unused_inputs:
        if at.type_ == VariableType.INPUT_ARG and isinstance(flat[at.position], torch.Tensor):
            all_arguments.append((at, signature, flat[at.position]))
    _files.check_sizes(meta, all_arguments)


def _extract_call_parameters(
    args: Sequence[Any], meta: StableHLOFunctionMeta, bundle: StableHLOModelBundle
) -> list[Any]:
    """The program's arguments, in its order: flat arguments, weights and constants."""
    return [
        args[at.position] if at.type_ == VariableType.INPUT_ARG else bundle.value(at)
        for at in meta.input_locations
    ]


def _extract_input_args(
    exported_model: ExportedProgram, options: StableHLOExportOptions
) -> list[Any]:
    """The flat arguments that the program is recorded for."""
    args, kwargs = options.override_tracing_arguments, options.override_tracing_kwargs
    if args is None and kwargs is None:
        return _recording.example_inputs(exported_model)
    flat, spec = pytree.tree_flatten((tuple(args or ()), dict(kwargs or {})))
    if spec != exported_model.call_spec.in_spec:
        raise ValueError(
            f"stablehlo: expected override_tracing_arguments and override_tracing_kwargs of the "
            f"structure {exported_model.call_spec.in_spec}, got {spec}."
        )
    return flat


def _run_decompositions(exported_model: ExportedProgram) -> ExportedProgram:
    return exported_model.run_decompositions(_extra_decompositions)


def _exported_program_to_stablehlo_bundle(
    exported_model: ExportedProgram, options: StableHLOExportOptions | None = None
) -> StableHLOModelBundle:
    options = options or StableHLOExportOptions()
    return _recording.bundle_of(
        exported_model,
        _extract_input_args(exported_model, options),
        inline_constants=options.inline_all_constant,
        with_weights=options.export_weights,
        with_locations=options.export_node_metadata,
        version=options.stablehlo_version,
        as_calls=options.custom_ops_allowed_in_graph,
    )


def exported_program_to_stablehlo(
    exported_model: ExportedProgram, options: StableHLOExportOptions | None = None
) -> StableHLOGraphModule:
    """Records an exported program as StableHLO.

    Nothing is computed, and weights are not copied. Dimensions that were exported as dynamic are
    `?` in the text.

    Args:
        exported_model: What `torch.export.export` gave.
        options: What is kept; see StableHLOExportOptions.

    Raises:
        NotImplementedError: An operator runs only as a kernel of PyTorch's, or does not take the
            dynamic size; the message names it and its line.
    """
    return StableHLOGraphModule(_exported_program_to_stablehlo_bundle(exported_model, options))


def save_as_stablehlo(
    exported_model: ExportedProgram,
    stablehlo_dir: str | os.PathLike[str],
    options: StableHLOExportOptions | None = None,
) -> None:
    """`exported_program_to_stablehlo`, then `save`."""
    exported_program_to_stablehlo(exported_model, options).save(stablehlo_dir, options)


def save_torch_model_as_stablehlo(
    torchmodel: torch.nn.Module,
    args: tuple[Any, ...],
    path: str | os.PathLike[str],
    options: StableHLOExportOptions | None = None,
) -> None:
    """`torch.export.export`, then `save_as_stablehlo`."""
    save_as_stablehlo(torch.export.export(torchmodel, tuple(args)), path, options)


def _save_program_bundle(
    bundle: StableHLOModelBundle,
    stablehlo_dir: str | os.PathLike[str],
    options: StableHLOExportOptions | None = None,
) -> None:
    options = options or StableHLOExportOptions()
    _files.save(bundle, stablehlo_dir, options.include_human_readable_text, options.save_weights)


def _load_program_bundle(stablehlo_dir: str | os.PathLike[str]) -> StableHLOModelBundle:
    return _files.load(stablehlo_dir)
