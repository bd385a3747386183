"""Records exported programs: their operators run once, on placeholders, and give StableHLO."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind
from torch.utils import _pytree as pytree

from torch_xla import _XLAC
from torch_xla._src.export import dynamic as export_dynamic
from torch_xla._src.export.bundle import (
    InputLocation,
    StableHLOFunc,
    StableHLOFunctionMeta,
    StableHLOModelBundle,
    VariableSignature,
    VariableType,
)
from torch_xla.experimental.mark_pattern_utils import StableHLOCompositeBuilder
from torch_xla.experimental.stablehlo_custom_call import stablehlo_custom_call

# A program cannot fail: it goes on where these would raise.
_CHECKS = (
    torch.ops.aten._assert_async.default,
    torch.ops.aten._assert_async.msg,
    torch.ops.aten._assert_scalar.default,
)
_FRAME = re.compile(r'File "(.*)", line (\d+), in (.*)')


class XLAExportInterpreter(torch.fx.Interpreter):
    """Runs the graph of an exported program on tensors of `xla`.

    Args:
        module: The graph; those of its higher-order operators run in the same way.
        device: The device on which the graph makes tensors, whatever device it names.
        custom_ops_allowed_in_graph: Namespaces of operators that become calls of their names.
        gm_serializer: Accepted for older programs.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        device: torch.device | str,
        custom_ops_allowed_in_graph: set[str] | None = None,
        gm_serializer: Any = None,
    ) -> None:
        super().__init__(_without_checks(module))
        self._device = torch.device(device)
        self._as_calls = custom_ops_allowed_in_graph or set()

    def run(self, *args: Any, **options: Any) -> Any:
        """Runs the graph, as torch.fx.Interpreter does."""
        try:
            return super().run(*args, **options)
        finally:
            _XLAC._set_place([])

    def run_node(self, n: torch.fx.Node) -> Any:
        """Runs a node; what it records has the line of the model that the node is of."""
        _XLAC._set_place(_frames_of(n))
        self._current = n
        return super().run_node(n)

    def call_function(self, target: Any, args: tuple, kwargs: dict) -> Any:
        """Calls an operator on this device: the model may have been exported on another."""
        args, kwargs = pytree.tree_map_only(torch.device, lambda _: self._device, (args, kwargs))
        if target is torch.ops.higher_order.wrap_with_autocast:
            args = (self._device.type, *args[1:])
        schema = getattr(target, "_schema", None)
        if schema is not None and schema.name.startswith("quantized_decomposed::"):
            return self._composite(target, args, kwargs)
        # A factory, which makes tensors on the CPU where none is named.
        if schema is not None and kwargs.get("device") is None:
            names = [argument.name for argument in schema.arguments]
            if "device" in names and not any(
                isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((args, kwargs))
            ):
                kwargs = {**kwargs, "device": self._device}
        if isinstance(target, torch._ops.OpOverload):
            if target.namespace in self._as_calls:
                return self._custom_call(target, args, kwargs)
            _check_kernel(target)
        try:
            return super().call_function(target, args, kwargs)
        except RuntimeError:
            # A result may have other strides than on the device of the export.
            if target is not torch.ops.aten.view.default or self._writes():
                raise
            return super().call_function(torch.ops.aten.reshape.default, args, kwargs)

    def _custom_call(self, target: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Any:
        """A call of what another compiler has under the operator's name."""
        leaves = pytree.tree_leaves((args, kwargs))
        others = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        if others:
            raise ValueError(
                f"{target}: expected tensors only, since its namespace is one of "
                f"custom_ops_allowed_in_graph, got {others} too. A call of its name has no place "
                "for other arguments."
            )
        values, spec = pytree.tree_flatten(self._current.meta["val"])
        results = stablehlo_custom_call(
            leaves, str(target), [v.shape for v in values], [v.dtype for v in values]
        )
        return pytree.tree_unflatten([results] if len(values) == 1 else results, spec)

    def _writes(self) -> bool:
        """True if the graph has operators that write, maybe through a view."""
        schemas = (getattr(node.target, "_schema", None) for node in self.graph.nodes)
        return any(schema is not None and schema.is_mutable for schema in schemas)

    def _composite(self, target: Any, args: tuple, kwargs: dict) -> Any:
        """Calls an operator whose name and numbers other compilers may want to know."""
        names = [argument.name for argument in target._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        tensors = {n: v for n, v in given.items() if isinstance(v, torch.Tensor)}
        numbers = {
            name: str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value
            for name, value in given.items()
            if name not in tensors and value is not None
        }
        name = target._schema.name.replace("::", ".")
        builder = StableHLOCompositeBuilder(name, numbers)
        marked = builder.mark_inputs(*tensors.values())
        marked = marked if isinstance(marked, tuple) else (marked,)
        given.update(zip(tensors, marked, strict=True))
        results = super().call_function(target, (), given)
        if isinstance(results, torch.Tensor):
            return builder.mark_outputs(results)
        return results

    def get_attr(self, target: Any, args: tuple, kwargs: dict) -> Any:
        """Values that the graph holds: tensors are moved, subgraphs run as this graph does."""
        value = super().get_attr(target, args, kwargs)
        if isinstance(value, torch.Tensor):
            return value.to(self._device)
        if isinstance(value, torch.fx.GraphModule):
            inner = XLAExportInterpreter(value, self._device, self._as_calls)
            return lambda *inputs: inner.run(*inputs, enable_io_processing=False)
        return value


# By what an operator computes on xla: a kernel of its own, or others that it is made of.
_KERNELS = ("XLA", "CompositeImplicitAutograd", "CompositeExplicitAutograd")


def _check_kernel(target: torch._ops.OpOverload) -> None:
    """Refuses a custom operator that has a kernel for other devices only."""
    if target.namespace in ("aten", "prims", "prim"):
        return
    if any(torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), k) for k in _KERNELS):
        return
    raise NotImplementedError(
        f"{target}: expected an operator of PyTorch operators, or with a kernel for xla, got one "
        f"that exists on other devices only: a program cannot hold it. Register one with "
        f'torch.library.impl("{target.name()}", "XLA"), or name {target.namespace} in '
        "StableHLOExportOptions.custom_ops_allowed_in_graph, for a call of its name."
    )


def _without_checks(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The module, or one whose graph lacks checks and what only they ask for."""
    if not any(node.target in _CHECKS for node in module.graph.nodes):
        return module
    graph = copy.deepcopy(module.graph)
    for node in reversed(graph.nodes):
        is_number = node.target is torch.ops.aten.item.default or (
            getattr(node.target, "__module__", "") in ("_operator", "torch")
        )
        if node.target in _CHECKS or (is_number and not node.users):
            graph.erase_node(node)
    return torch.fx.GraphModule(module, graph)


def _frames_of(node: torch.fx.Node) -> list[tuple[str, int, str]]:
    """The lines of the model, innermost first."""
    lines = _FRAME.findall(node.meta.get("stack_trace") or "")
    return [(file, int(line), function) for file, line, function in reversed(lines)]


def example_inputs(program: ExportedProgram) -> list[Any]:
    """The flat arguments that the program was exported with; tensors are fake."""
    return [
        node.meta["val"] if "val" in node.meta else None
        for node, spec in zip(_placeholders(program), _inputs(program), strict=True)
        if spec.kind == InputKind.USER_INPUT
    ]


def _placeholders(program: ExportedProgram) -> list[torch.fx.Node]:
    return [node for node in program.graph.nodes if node.op == "placeholder"]


def _inputs(program: ExportedProgram) -> list[InputSpec]:
    return program.graph_signature.input_specs


def dynamic_dims_of(tensor: torch.Tensor) -> list[int]:
    """The dimensions whose sizes are dynamic."""
    return [i for i, size in enumerate(tensor.shape) if export_dynamic.is_dynamic(size)]


def like(tensor: torch.Tensor, size_of: Callable[[Any], int] = int) -> torch.Tensor:
    """A tensor of these sizes and strides that has no memory."""
    return torch.empty_strided(
        [size_of(size) for size in tensor.shape],
        [size_of(stride) for stride in tensor.stride()],
        dtype=tensor.dtype,
        device="meta",
    )


@dataclasses.dataclass
class Input:
    """A placeholder of the graph."""

    spec: InputSpec
    value: Any  # a tensor, or what is no tensor
    location: InputLocation
    inlined: bool = False  # its value is a part of the program

    @property
    def name(self) -> str:
        """That of the argument, parameter or buffer."""
        is_argument = self.location.type_ == VariableType.INPUT_ARG
        return self.spec.arg.name if is_argument else str(self.spec.target)

    @property
    def is_argument(self) -> bool:
        return isinstance(self.value, torch.Tensor) and not self.inlined


@dataclasses.dataclass
class _Recorded:
    """A recorded program. `dynamic_results` are the dynamic dimensions of results by position."""

    text: str
    arguments: list[Input]
    unused: list[Input]
    written: list[Input]
    results: list[Any]  # tensors of no memory, and what is no tensor
    dynamic_results: dict[int, list[int]] = dataclasses.field(default_factory=dict)


def inputs_of(
    program: ExportedProgram, flat: Sequence[Any], inline_constants: bool
) -> tuple[list[Input], list[torch.Tensor]]:
    """The placeholders, and the values of those that are constants and not inlined."""
    given = iter(enumerate(flat))
    inputs: list[Input] = []
    constants: list[torch.Tensor] = []
    for spec in _inputs(program):
        target = spec.target or ""  # of an argument there is none
        if spec.kind == InputKind.USER_INPUT:
            position, value = next(given)
            inputs.append(Input(spec, value, InputLocation.input_arg(position)))
        elif target in program.state_dict:
            value = program.state_dict[target]
            inputs.append(Input(spec, value, InputLocation.parameter(target)))
        elif isinstance(constant := program.constants.get(target), torch.Tensor):
            value = constant.detach()
            if inline_constants:
                location = InputLocation.parameter(target)
            else:
                location = InputLocation.constant(len(constants))
                constants.append(value.cpu())
            inputs.append(Input(spec, value, location, inline_constants))
        else:
            raise NotImplementedError(
                f"stablehlo: expected tensors and numbers as inputs of the exported program, got "
                f"{spec.kind.name.lower()} {spec.target}. Export a model without it."
            )
    return inputs, constants


def _record(
    program: ExportedProgram,
    inputs: list[Input],
    with_locations: bool,
    as_calls: set[str],
    size_of: Callable[[Any], int] | None = None,
) -> _Recorded:
    """Records the graph on placeholders. `size_of` gives the sizes of dynamic inputs."""
    is_dynamic, size_of = size_of is not None, size_of or int
    results: list[Any] = []
    inlined: dict[int, torch.Tensor] = {}

    def body(placeholders: list[torch.Tensor]) -> list[torch.Tensor]:
        given = iter(placeholders)
        placed: list[Any] = []
        for i, input in enumerate(inputs):
            if input.is_argument:
                placed.append(next(given))
            elif input.inlined:
                placed.append(inlined.setdefault(i, input.value.to("xla", copy=True)))
            elif isinstance(input.value, torch.SymInt):
                placed.append(size_of(input.value))
            else:
                placed.append(input.value)
        results[:] = run(program, inputs, placed, as_calls)
        return [r for r in results if isinstance(r, torch.Tensor)]

    all_arguments = [i for i in inputs if i.is_argument]
    placeholders = [like(i.value, size_of) for i in all_arguments]
    kept = [i for i, a in enumerate(all_arguments) if dynamic_dims_of(a.value)]
    text, arguments, written = _XLAC._export_function(
        placeholders, kept, body, with_locations, is_dynamic
    )
    # A constant that the model writes is state of it: it cannot be a part of the program.
    state = [i for i, tensor in inlined.items() if tensor._version > 0]
    if state:
        for i in state:
            inputs[i].inlined = False
        return _record(program, inputs, with_locations, as_calls, size_of)
    results = [like(r) if isinstance(r, torch.Tensor) else r for r in results]
    return _Recorded(
        text=text,
        arguments=[all_arguments[i] for i in arguments],
        unused=[a for i, a in enumerate(all_arguments) if i not in arguments],
        written=[all_arguments[i] for i in written],
        results=results,
    )


def run(
    program: ExportedProgram,
    inputs: list[Input],
    placed: list[Any],
    as_calls: set[str] | None = None,
) -> list[Any]:
    """Runs the graph on `placed`, values on xla of its inputs, and writes to those; gives the
    results of the model."""
    with torch.no_grad():
        interpreter = XLAExportInterpreter(program.graph_module, "xla", as_calls)
        outputs = interpreter.run(*placed, enable_io_processing=False)
        return list(_written_back(program, inputs, placed, outputs))


def _written_back(
    program: ExportedProgram, inputs: list[Input], placed: list[Any], outputs: Sequence[Any]
) -> Iterator[Any]:
    """The results of the model; those that are new values of its inputs are written there."""
    by_target = {input.spec.target: value for input, value in zip(inputs, placed, strict=True)}
    by_name = {input.spec.arg.name: value for input, value in zip(inputs, placed, strict=True)}
    for spec, output in zip(program.graph_signature.output_specs, outputs, strict=True):
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
            by_target[spec.target].copy_(output)
        elif spec.kind == OutputKind.USER_INPUT_MUTATION:
            by_name[spec.target].copy_(output)
        else:
            yield output


def _signature_of(tensor: torch.Tensor) -> VariableSignature:
    dynamic = dynamic_dims_of(tensor)
    signature = VariableSignature.of(tensor, dynamic)
    for dim in dynamic:
        size: Any = tensor.shape[dim]  # a SymInt
        line = export_dynamic.line_of(size)
        if line is not None:
            signature.dynamic_sizes[str(dim)] = list(line)
    return signature


def bundle_of(
    program: ExportedProgram,
    flat: Sequence[Any],
    *,
    inline_constants: bool,
    with_weights: bool,
    with_locations: bool,
    version: str | None,
    as_calls: set[str],
) -> StableHLOModelBundle:
    """Records a program for these flat arguments."""
    inputs, constants = inputs_of(program, flat, inline_constants)
    if any(i.is_argument and dynamic_dims_of(i.value) for i in inputs):
        recorded = export_dynamic.record(
            program,
            lambda size_of: _record(program, inputs, True, as_calls, size_of),
            with_locations,
        )
    else:
        recorded = _record(program, inputs, with_locations, as_calls)
    meta = StableHLOFunctionMeta(
        name="forward",
        stablehlo_version=version or "",
        input_signature=[_signature_of(a.value) for a in recorded.arguments],
        output_signature=[
            VariableSignature.of(r, recorded.dynamic_results.get(i))
            for i, r in enumerate(recorded.results)
            if isinstance(r, torch.Tensor)
        ],
        input_locations=[a.location for a in recorded.arguments],
        unused_inputs=[(a.location, _signature_of(a.value)) for a in recorded.unused],
        input_pytree_spec=program.call_spec.in_spec,
        output_pytree_spec=program.call_spec.out_spec,
        mutations=[w.location for w in recorded.written],
        other_inputs={
            str(i.location.position): i.value
            for i in inputs
            if i.location.type_ == VariableType.INPUT_ARG and not isinstance(i.value, torch.Tensor)
        },
        size_ranges=export_dynamic.ranges_of(program),
        other_results={
            str(i): r for i, r in enumerate(recorded.results) if not isinstance(r, torch.Tensor)
        },
    )
    weights = {}
    if with_weights:
        weights = {
            i.location.name: i.value.detach().cpu()
            for i in inputs
            if i.is_argument and i.location.type_ == VariableType.PARAMETER
        }
    return StableHLOModelBundle(weights, constants, [StableHLOFunc(meta, None, recorded.text)])
