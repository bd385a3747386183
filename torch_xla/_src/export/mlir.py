"""StableHLO programs through jaxlib's MLIR: portable artifacts, and programs of dynamic sizes.

jaxlib is optional (`pip install torch_xla[export]`): texts need none of this.
"""

from __future__ import annotations

import ctypes
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any


def string(text: str) -> str:
    """A text as MLIR writes it: in quotes, what is not printable ASCII as bytes of UTF-8."""
    plain = range(0x20, 0x7F)
    written = (
        chr(b) if b in plain and chr(b) not in '"\\' else f"\\{b:02X}" for b in text.encode()
    )
    return f'"{"".join(written)}"'


def float32(value: float) -> str:
    """The number of 32 bits that is nearest, for dense<..> or before ` : f32`."""
    nearest = ctypes.c_float(value)
    if math.isfinite(nearest.value):
        return f"{nearest.value:.8e}"
    return f"0x{int.from_bytes(bytes(nearest), sys.byteorder):08X}"


def dictionary(entries: Mapping[str, str]) -> str:
    """Attributes by their names, sorted: `{"axis" = 1 : i64}`."""
    return "{" + ", ".join(f"{string(n)} = {entries[n]}" for n in sorted(entries)) + "}"


def artifact(text: str, version: str | None = None) -> bytes:
    """A program as a portable artifact, MLIR bytecode that every StableHLO since `version` reads.

    Args:
        text: The StableHLO module.
        version: Such as "1.9.0"; by default the one of the installed jaxlib.

    Raises:
        ImportError: jaxlib is not installed.
        ValueError: StableHLO has no such version, or what the program needs is newer.
    """
    with _mlir() as mlir:
        version = version or mlir.stablehlo.get_current_version()
        module = mlir.ir.Module.parse(text)
        _to_stablehlo(mlir, module)
        try:
            return mlir.stablehlo.serialize_portable_artifact(module, version)
        except ValueError as error:
            raise ValueError(
                f"stablehlo: expected a program that StableHLO {version} has, and a version from "
                f"{mlir.stablehlo.get_minimum_version()} to "
                f"{mlir.stablehlo.get_current_version()}: {error}."
            ) from error


def text_of(bytecode: bytes) -> str:
    """The text of a portable artifact.

    Raises:
        ImportError: jaxlib is not installed.
    """
    with _mlir() as mlir:
        return str(mlir.stablehlo.deserialize_portable_artifact(mlir.context, bytecode))


def refined(program: str | bytes, types: Sequence[str]) -> str:
    """A program of dynamic sizes as one of static sizes.

    Args:
        program: The text or the portable artifact.
        types: The types of its arguments, such as "tensor<2x3xf32>".

    Raises:
        ImportError: jaxlib is not installed.
        ValueError: The program does not take arguments of these types.
    """
    with _mlir() as mlir:
        if isinstance(program, bytes):
            module = mlir.stablehlo.deserialize_portable_artifact(mlir.context, program)
        else:
            module = mlir.ir.Module.parse(program)
            _to_stablehlo(mlir, module)
        _run(
            mlir,
            module,
            "func.func(stablehlo-legalize-composite-to-call)",
            "inline",
            f"stablehlo-refine-arguments{{types={','.join(types)}}}",
            "stablehlo-refine-shapes",
            "func.func(stablehlo-canonicalize-dynamism)",
        )
        return str(module)


def text_of_hlo(proto: bytes) -> str:
    """The StableHLO text of a serialized `xla.HloModuleProto`.

    Raises:
        ImportError: jaxlib is not installed.
        ValueError: It is no such module.
    """
    with _mlir() as mlir:
        try:
            return str(mlir.ir.Module.parse(mlir.hlo_to_stablehlo(proto)))
        except Exception as error:
            raise ValueError(f"xla_builder: expected an HloModuleProto: {error}") from error


# An array's element type by XLA's name, and its sizes.
ArrayType = tuple[str, list[int]]


def as_functions(text: str, name: str) -> tuple[str, list[ArrayType], list[ArrayType]]:
    """The functions of a module as private ones, of which `main` has this name.

    Returns:
        Their text, and the types of what `main` takes and gives.

    Raises:
        ImportError: jaxlib is not installed.
        ValueError: There is no function `main`, or it has other types than arrays of fixed sizes.
    """
    with _mlir() as mlir:
        module = mlir.ir.Module.parse(text)
        _to_stablehlo(mlir, module)
        _run(mlir, module, "inline")
        functions = {
            mlir.ir.StringAttr(op.attributes["sym_name"]).value: op.operation
            for op in module.body.operations
            if op.operation.name == "func.func"
        }
        if "main" not in functions:
            raise ValueError(f"xla_builder: expected a function main, got {list(functions)}.")
        for symbol, function in functions.items():
            function.attributes["sym_visibility"] = mlir.ir.StringAttr.get("private")
            for attributes in ("arg_attrs", "res_attrs"):  # of another caller
                if attributes in function.attributes:
                    del function.attributes[attributes]
            new = name if symbol == "main" else f"{name}.{symbol}"
            function.attributes["sym_name"] = mlir.ir.StringAttr.get(new)
        # The verifier would miss functions by their names of before, and print another form.
        code = "\n".join(f.get_asm(assume_verified=True).strip() for f in functions.values())
        for symbol in functions:  # where others of the module name it
            if symbol != "main":
                new = f"{name}.{symbol}"
                new = new if re.fullmatch(r"[A-Za-z_][\w$.]*", new) else f'"{new}"'
                code = re.sub(rf"@{re.escape(symbol)}\b", f"@{new}", code)
        main = mlir.ir.FunctionType(
            mlir.ir.TypeAttr(functions["main"].attributes["function_type"]).value
        )
        return code, [_array(mlir, t) for t in main.inputs], [_array(mlir, t) for t in main.results]


def _array(mlir: SimpleNamespace, given: Any) -> ArrayType:
    if mlir.ir.RankedTensorType.isinstance(given):
        array = mlir.ir.RankedTensorType(given)
        element = str(array.element_type)
        name = _XLA_NAMES.get(element, element.replace("ui", "u").replace("i", "s"))
        if array.has_static_shape:
            return name, list(array.shape)
    raise ValueError(f"xla_builder: expected arrays of fixed sizes, got {given}.")


_XLA_NAMES = {"i1": "pred", "complex<f32>": "c64", "complex<f64>": "c128"}


def is_installed() -> bool:
    """True if there is a jaxlib whose MLIR has StableHLO."""
    try:
        _import()
    except ImportError:
        return False
    return True


def _run(mlir: SimpleNamespace, module: Any, *passes: str) -> None:
    pipeline = f"builtin.module({','.join(passes)})"
    try:
        mlir.passmanager.PassManager.parse(pipeline).run(module.operation)
    except mlir.ir.MLIRError as error:
        raise ValueError(f"stablehlo: {error}") from error


def _to_stablehlo(mlir: SimpleNamespace, module: Any) -> None:
    """Replaces what is CHLO, which XLA has beside StableHLO."""
    _run(mlir, module, "func.func(chlo-legalize-to-stablehlo,shape-legalize-to-stablehlo)")
    # Shapes of dynamic sizes come as index numbers there, which an artifact has not.
    casts = []

    def visit(operation: Any) -> Any:
        if operation.name == "builtin.unrealized_conversion_cast":
            casts.append(operation)
        return mlir.ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for cast in casts:
        cast.results[0].replace_all_uses_with(cast.operands[0])
        cast.erase()


def _import() -> SimpleNamespace:
    try:
        from jaxlib import _jax  # type: ignore[attr-defined]
        from jaxlib.mlir import ir, passmanager
        from jaxlib.mlir._mlir_libs import _jax_mlir_ext, _stablehlo  # type: ignore[attr-defined]
        from jaxlib.mlir.dialects import chlo, stablehlo
    except ImportError as error:
        raise ImportError(
            "stablehlo: expected jaxlib, whose MLIR writes bytecode and knows dynamic sizes, found "
            f"none ({error}). Run: pip install torch_xla[export]"
        ) from error
    return SimpleNamespace(
        ir=ir,
        passmanager=passmanager,
        stablehlo=stablehlo,
        chlo=chlo,
        hlo_to_stablehlo=_jax.mlir.hlo_to_stablehlo,
        register_dialects=_jax_mlir_ext.register_dialects,
        register_passes=_stablehlo.register_stablehlo_passes,
    )


@contextmanager
def _mlir() -> Iterator[SimpleNamespace]:
    mlir = _import()
    mlir.register_passes()
    with mlir.ir.Context() as context:
        registry = mlir.ir.DialectRegistry()
        mlir.register_dialects(registry)
        context.append_dialect_registry(registry)
        context.load_all_available_dialects()
        mlir.stablehlo.register_dialect(context)
        mlir.chlo.register_dialect(context)
        mlir.context = context
        with mlir.ir.Location.unknown(context):
            yield mlir
