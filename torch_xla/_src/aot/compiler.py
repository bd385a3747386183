"""A topology's compiler as `torch_xla.aot` uses it: plugins by name, figures, and typed errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch_xla import _XLAC
from torch_xla._src.aot import figures as aot_figures
from torch_xla._src.aot import topology as topology_compiler
from torch_xla._src.aot.collectives import Mesh, summed
from torch_xla._src.aot.figures import Chip, Compiled, Memory, NoCompiler, Refused, UnknownTopology
from torch_xla._src.aot.programs import Program
from torch_xla._src.device import plugins

# These two tell how fast the compiler takes a chip to be.
_SIDE = 8192
_PRODUCT = (
    "func.func @main(%x: T, %y: T) -> T {\n"
    "  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (T, T) -> T\n"
    "  return %0 : T\n}"
).replace("T", f"tensor<{_SIDE}x{_SIDE}xbf16>")
_SUM = "func.func @main(%x: T, %y: T) -> T {\n  %0 = stablehlo.add %x, %y : T\n  return %0 : T\n}"
_TERABYTES = 1 << 42


class TopologyCompiler:
    """Compiles programs for one chip of a topology, or for all where they are partitioned. Make one
    to compile several.

    Args:
        topology: As of `torch_xla.aot.compile`; so are `plugin` and `options`.

    Attributes:
        chip: What programs are compiled for.
        target: The platform whose lowerings they have, such as "TPU".
    """

    def __init__(
        self,
        topology: str = "v5e:2x2",
        plugin: str | os.PathLike | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(topology, str):
            raise TypeError(
                f"aot.compile: expected the name of a topology as a text, such as 'v5e:2x2', got "
                f"{topology!r}."
            )
        if not topology.strip():
            raise UnknownTopology(
                "aot.compile: expected the name of a topology, such as 'v5e:2x2', got an empty one."
            )
        spec = _find(plugin)
        self.target = spec.device_type
        self._compiler = topology_compiler.Compiler(spec, topology, options)
        try:
            self.chip = self._describe(topology, spec)
        except BaseException:
            self._compiler.close()
            raise

    def __enter__(self) -> TopologyCompiler:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends the compiler's process."""
        self._compiler.close()

    def compile(self, program: Program) -> Compiled:
        """Compiles a program; raises as `torch_xla.aot.compile` does."""
        mesh = self._mesh_of(program)
        try:
            figures, executable = self._compiler.compile_and_serialize(program.text)
        except topology_compiler.Refused as refusal:
            raise self._error(program, refusal) from refusal
        cost = figures["cost"]
        flops, accessed = cost.get("flops"), cost.get("bytes accessed")
        chip = self.chip
        return Compiled(
            name=program.name,
            chip=chip,
            memory=Memory.of(figures["memory"]),
            flops=flops,
            bytes_accessed=accessed,
            optimal_seconds=_positive(cost.get("optimal_seconds")),
            compute_seconds=_quotient(flops, chip.flops_per_second),
            memory_seconds=_quotient(accessed, chip.bytes_per_second),
            kernel_seconds=_quotient(_positive(figures["cycles"]), chip.cycles_per_second),
            cost=cost,
            mesh=None if mesh is None else dict(zip(mesh.names, mesh.sizes, strict=True)),
            collectives=[] if mesh is None else summed(figures["collectives"], mesh),
            inputs=program.inputs,
            outputs=program.outputs,
            stablehlo=_XLAC._pretty_stablehlo(program.text),
            executable=executable,
        )

    def _mesh_of(self, program: Program) -> Mesh | None:
        given = _XLAC._read_program(program.text)["mesh"]
        if given is None:
            return None
        mesh = Mesh(*given)
        if mesh.size() != self.chip.count:
            raise Refused(
                f"aot.compile: expected a mesh of the {self.chip.count} devices of "
                f"{self.chip.topology}, got one of {mesh.size()} in {program.name!r}. On CPU, "
                f"CPU_NUM_DEVICES={self.chip.count} makes as many devices."
            )
        return mesh

    def _error(self, program: Program, refusal: topology_compiler.Refused) -> Exception:
        if refusal.code == "RESOURCE_EXHAUSTED":
            return aot_figures.does_not_fit(
                program.name,
                self.chip.topology,
                refusal.text,
                _XLAC._read_program(program.text),
                program.inputs,
            )
        return Refused(
            f"aot.compile: expected a program that the compiler of {self.chip.topology} takes, got "
            f"{program.name!r}, of which it says: {refusal}"
        )

    def _describe(self, topology: str, spec: plugins.PluginSpec) -> Chip:
        try:
            described = self._compiler.describe()
            flops = self._rate(_PRODUCT, "flops")
        except topology_compiler.Refused as refusal:
            raise _topology_error(topology, spec, refusal) from refusal
        kinds = {device["kind"] for device in described["devices"]}
        kind = ", ".join(sorted(kinds))
        clock, link = aot_figures.PUBLISHED.get(kind, (None, None))
        return Chip(
            topology=topology,
            platform=described["platform"],
            kind=kind,
            count=len(described["devices"]),
            memory=self._memory(),
            flops_per_second=flops,
            bytes_per_second=self._rate(
                _SUM.replace("T", f"tensor<{_SIDE}x{_SIDE}xf32>"), "bytes accessed"
            ),
            cycles_per_second=clock,
            link_bytes_per_second=link,
        )

    def _rate(self, stablehlo: str, of: str) -> float | None:
        cost = self._compiler.compile(stablehlo)["cost"]
        seconds, amount = _positive(cost.get("optimal_seconds")), _positive(cost.get(of))
        return _quotient(amount, seconds)

    def _memory(self) -> int | None:
        """The memory for programs, read from the refusal of one that is too large for any chip."""
        try:
            self._compiler.compile(_SUM.replace("T", f"tensor<{_TERABYTES}xi8>"))
        except topology_compiler.Refused as refusal:
            return aot_figures.memory_figures(refusal.text)[1]
        return None


def _positive(value: float | None) -> float | None:
    """A figure; compilers that have none say so by zero or less."""
    return value if value is not None and value > 0 else None


def _quotient(of: float | None, by: float | None) -> float | None:
    return None if of is None or by is None else of / by


def _find(plugin: str | os.PathLike | None) -> plugins.PluginSpec:
    try:
        if plugin is not None and os.path.isfile(plugin):
            return plugins.of_library(os.fspath(plugin))
        return plugins.find(os.fspath(plugin) if plugin is not None else "TPU")
    except plugins.PluginError as error:
        raise NoCompiler(f"aot.compile: expected a plugin that compiles, got: {error}") from error


def _topology_error(
    topology: str, spec: plugins.PluginSpec, refusal: topology_compiler.Refused
) -> Exception:
    if refusal.code == "UNIMPLEMENTED":
        return NoCompiler(
            f"aot.compile: expected a plugin that compiles for devices that are not there, got "
            f"{spec.library_path}, which says: {refusal} libtpu does (pip install libtpu)."
        )
    if refusal.method != "PJRT_TopologyDescription_Create":
        return NoCompiler(
            f"aot.compile: expected a compiler for {topology}, got {spec.library_path}, which "
            f"says: {refusal}"
        )
    accepted = ""
    if spec.device_type == "TPU":
        accepted = (
            " For TPUs it is a chip and the sizes of a box of them, such as v4:2x2x1, v5e:2x2, "
            "v5p:2x2x1, v6e:2x4 or tpu7x:2x2x1; 1x1, or a multiple of 2 in the first two sizes."
        )
    return UnknownTopology(
        f"aot.compile: expected a topology that the plugin knows, got {topology!r}.{accepted} The "
        f"plugin says: {refusal.text}"
    )
