"""The results of an export: programs, what each takes and returns, weights; and their files."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from json import JSONEncoder
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_xla._src.export import mlir

_TYPES = {
    torch.bool: "i1",
    torch.uint8: "ui8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint16: "ui16",
    torch.uint32: "ui32",
    torch.uint64: "ui64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "complex<f32>",
    torch.complex128: "complex<f64>",
    torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e5m2: "f8E5M2",
    torch.float8_e4m3fnuz: "f8E4M3FNUZ",
    torch.float8_e5m2fnuz: "f8E5M2FNUZ",
}


_MLIR_BYTECODE = b"ML\xefR"  # how each begins


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`"""
    return str(dtype).removeprefix("torch.")


def type_of(tensor: torch.Tensor) -> str:
    """A tensor's type in StableHLO: `tensor<2x3xf32>`"""
    return type_text(tensor.shape, _TYPES[tensor.dtype])


def type_text(sizes: Sequence[int], element: str) -> str:
    return f"tensor<{''.join(f'{size}x' for size in sizes)}{element}>"


def _get_numpy_dtype(dtype: torch.dtype) -> Any:
    """The dtype that NumPy has for one of PyTorch's.

    Raises:
        TypeError: NumPy has none, as for bfloat16.
    """
    return torch.empty(0, dtype=dtype).numpy().dtype.type


class VariableType(enum.Enum):
    """The model's name for a program's argument."""

    INPUT_ARG = "input_arg"
    PARAMETER = "parameter"  # parameters and buffers
    CONSTANT = "constant"


@dataclasses.dataclass
class InputLocation:
    """Where a program's argument comes from."""

    type_: VariableType
    position: int = -1  # among the flat arguments, or the constants
    name: str = ""  # of a parameter or buffer

    @classmethod
    def input_arg(cls, position: int) -> InputLocation:
        return cls(VariableType.INPUT_ARG, position)

    @classmethod
    def parameter(cls, name: str) -> InputLocation:
        return cls(VariableType.PARAMETER, name=name)

    @classmethod
    def constant(cls, position: int) -> InputLocation:
        return cls(VariableType.CONSTANT, position)

    def __str__(self) -> str:
        if self.type_ == VariableType.PARAMETER:
            return f"the parameter {self.name}"
        return (
            f"{'argument' if self.type_ == VariableType.INPUT_ARG else 'constant'} {self.position}"
        )


@dataclasses.dataclass
class VariableSignature:
    """The type of an argument or a result.

    Attributes:
        shape: Its sizes; a dynamic dimension has 0.
        dtype: PyTorch's name.
        dynamic_dims: The dynamic dimensions.
        dynamic_sizes: Of an argument's, as [name, factor, offset]: that many times the size of
            this name, and some more.
    """

    shape: list[int]
    dtype: str
    dynamic_dims: list[int] = dataclasses.field(default_factory=list)
    dynamic_sizes: dict[str, list[Any]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, tensor: torch.Tensor, dynamic_dims: list[int] | None = None) -> VariableSignature:
        dynamic_dims = dynamic_dims or []
        shape = [0 if i in dynamic_dims else int(tensor.shape[i]) for i in range(tensor.dim())]
        return cls(shape, dtype_name(tensor.dtype), dynamic_dims)

    def fits(self, tensor: torch.Tensor) -> bool:
        return (
            dtype_name(tensor.dtype) == self.dtype
            and len(tensor.shape) == len(self.shape)
            and all(
                i in self.dynamic_dims or size == expected
                for i, (size, expected) in enumerate(zip(tensor.shape, self.shape, strict=True))
            )
        )

    def __str__(self) -> str:
        sizes = ["?" if i in self.dynamic_dims else str(s) for i, s in enumerate(self.shape)]
        return f"shape [{', '.join(sizes)}] ({self.dtype})"


@dataclasses.dataclass
class StableHLOFunctionMeta:
    """A program's arguments and results.

    Attributes:
        name: The method's name.
        stablehlo_version: The version that its bytecode is for; empty: that of the writer.
        input_signature: The types of its arguments.
        output_signature: The types of the tensors among the model's results.
        input_locations: Where the arguments come from, in their order.
        unused_inputs: What the model has and the program does not need.
        input_pytree_spec: The structure of the model's (args, kwargs).
        output_pytree_spec: The structure of the model's results.
        mutations: What the model writes; the new values follow the results.
        other_inputs: Flat arguments that are no tensors, by their position among all.
        other_results: Results that are no tensors, by their position among all.
        size_ranges: The least and the largest value (or None) of each dynamic size, by its name.
        sha256: In a folder, of the program's files, by their suffix.
    """

    name: str
    stablehlo_version: str
    input_signature: list[VariableSignature]
    output_signature: list[VariableSignature]
    input_locations: list[InputLocation]
    unused_inputs: list[tuple[InputLocation, VariableSignature]]
    input_pytree_spec: pytree.TreeSpec | None = None
    output_pytree_spec: pytree.TreeSpec | None = None
    mutations: list[InputLocation] = dataclasses.field(default_factory=list)
    other_inputs: dict[str, Any] = dataclasses.field(default_factory=dict)
    other_results: dict[str, Any] = dataclasses.field(default_factory=dict)
    size_ranges: dict[str, list[int | None]] = dataclasses.field(default_factory=dict)
    sha256: dict[str, str] = dataclasses.field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        self.unused_inputs = [(where, what) for where, what in self.unused_inputs]  # JSON has lists

    def results(self) -> list[Any]:
        """The model's flat results: the signatures of the tensors, and the others themselves."""
        tensors = iter(self.output_signature)
        count = len(self.output_signature) + len(self.other_results)
        return [
            self.other_results[str(i)] if str(i) in self.other_results else next(tensors)
            for i in range(count)
        ]


def check_sizes(
    meta: StableHLOFunctionMeta, arguments: list[tuple[InputLocation, VariableSignature, Any]]
) -> None:
    """Compares the dynamic sizes of a call: those of one name are equal, and within its range.

    Args:
        meta: The program's.
        arguments: Each with where it comes from and what it was exported as.

    Raises:
        ValueError: They are not.
    """
    known: dict[str, tuple[int, str]] = {}
    for at, signature, tensor in arguments:
        for dim, (name, factor, offset) in signature.dynamic_sizes.items():
            size = tensor.shape[int(dim)]
            here = f"dimension {dim} of {at}"
            value, rest = divmod(size - offset, factor)
            expected, where = known.setdefault(name, (value, here))
            if rest or value != expected:
                wanted = (
                    f"size {factor * expected + offset} in {here}, which goes with {where}"
                    if here != where
                    else f"a multiple of {factor}{f', and {offset}' * bool(offset)} in {here}"
                )
                raise ValueError(f"stablehlo: expected {wanted}, got {size}.")
            least, most = meta.size_ranges.get(name, (None, None))
            if (least is not None and value < least) or (most is not None and value > most):
                bounds = [None if b is None else factor * b + offset for b in (least, most)]
                up_to = "" if bounds[1] is None else f" up to {bounds[1]}"
                raise ValueError(
                    f"stablehlo: expected a size from {bounds[0]}{up_to} in {here}, got {size}. "
                    "Export the model for it."
                )


class StableHLOFunc:
    """A program: its text, its bytecode, or both. What lacks is made when it is asked for."""

    def __init__(
        self, meta: StableHLOFunctionMeta, bytecode: bytes | None, text: str | None
    ) -> None:
        self.meta = meta
        self.text = text
        self._bytecode = bytecode

    @property
    def bytecode(self) -> bytes:
        if self._bytecode is None:
            assert self.text is not None
            self._bytecode = mlir.artifact(self.text, self.meta.stablehlo_version or None)
        return self._bytecode

    def text_or_read(self) -> str:
        if self.text is None:
            assert self._bytecode is not None
            self.text = mlir.text_of(self._bytecode)
        return self.text

    def program(self) -> str | bytes:
        """The text or the bytecode; compilers take either."""
        return self.bytecode if self.text is None else self.text


@dataclasses.dataclass
class StableHLOModelBundle:
    """Programs with the values of their weights and constants, as CPU tensors."""

    state_dict: dict[str, Any]
    additional_constants: list[Any]
    stablehlo_funcs: list[StableHLOFunc]

    def value(self, at: InputLocation) -> torch.Tensor:
        if at.type_ == VariableType.CONSTANT:
            return self.additional_constants[at.position]
        if at.name not in self.state_dict:
            raise ValueError(
                f"stablehlo: expected a value of the parameter {at.name}, found none: the program "
                "was exported or saved without weights. Put them into the bundle's state_dict."
            )
        return self.state_dict[at.name]


class StableHLOJSONSerializer(JSONEncoder):
    """Writes StableHLOFunctionMeta as JSON; `stablehlo_obj_hook` reads it."""

    def default(self, obj: Any) -> Any:
        if isinstance(obj, VariableType):
            return {"VariableType": obj.name}
        if isinstance(obj, pytree.TreeSpec):
            return {"TreeSpec": pytree.treespec_dumps(obj)}
        if dataclasses.is_dataclass(obj):
            fields = {f.name: getattr(obj, f.name) for f in dataclasses.fields(obj)}
            return {type(obj).__name__: fields}
        return super().default(obj)


_CLASSES = {c.__name__: c for c in (InputLocation, VariableSignature, StableHLOFunctionMeta)}


def stablehlo_obj_hook(dct: dict) -> Any:
    """For `json.load`: makes what StableHLOJSONSerializer has written."""
    if len(dct) != 1:
        return dct
    (name, value), *_ = dct.items()
    if name == "VariableType":
        return VariableType[value]
    if name == "TreeSpec":
        return pytree.treespec_loads(value)
    if name in _CLASSES and isinstance(value, dict):
        return _CLASSES[name](**value)
    return dct


def _iter_dir(path: str | os.PathLike) -> Iterator[tuple[str, Path]]:
    """The names and paths of a folder's entries, sorted."""
    for entry in sorted(Path(path).iterdir()):
        yield entry.name, entry


def save(
    bundle: StableHLOModelBundle, folder: str | os.PathLike, with_text: bool, with_weights: bool
) -> None:
    files: dict[str, Any] = {}
    for function in bundle.stablehlo_funcs:
        programs = {}
        if not with_text or mlir.is_installed():
            programs["bytecode"] = function.bytecode
        if with_text:
            programs["mlir"] = function.text_or_read().encode()
        sums = {suffix: _sum(program) for suffix, program in programs.items()}
        meta = dataclasses.replace(function.meta, sha256=sums)
        programs["meta"] = json.dumps(meta, cls=StableHLOJSONSerializer, indent=1).encode()
        files |= {f"{meta.name}.{suffix}": content for suffix, content in programs.items()}

    folder = Path(folder)
    functions = folder / "functions"
    functions.mkdir(parents=True, exist_ok=True)
    for meta_file in functions.glob("*.meta"):  # what is left of an earlier save would be read
        for suffix in (".mlir", ".bytecode", ".meta"):
            meta_file.with_suffix(suffix).unlink(missing_ok=True)
    for name, content in files.items():
        (functions / name).write_bytes(content)
    torch.save(bundle.additional_constants, folder / "constants.pt")
    if with_weights:
        torch.save(bundle.state_dict, folder / "weights.pt")


def _sum(program: bytes) -> str:
    return hashlib.sha256(program).hexdigest()


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Names the file in the error of one that is damaged."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(
            f"stablehlo: expected {path} as StableHLOGraphModule.save has written it, got a "
            f"damaged file ({type(error).__name__}: {error}). Export the model again."
        ) from error


def _read_meta(path: Path) -> StableHLOFunctionMeta:
    meta = json.loads(path.read_text(), object_hook=stablehlo_obj_hook)
    if not isinstance(meta, StableHLOFunctionMeta):
        raise TypeError(f"it holds a {type(meta).__name__}, not the types of a program")
    signatures = [
        *meta.input_signature,
        *meta.output_signature,
        *(s for _, s in meta.unused_inputs),
    ]
    locations = [*meta.input_locations, *meta.mutations, *(at for at, _ in meta.unused_inputs)]
    for part, kind in ((signatures, VariableSignature), (locations, InputLocation)):
        for item in part:
            if not isinstance(item, kind):
                raise TypeError(f"it holds {item!r} in the place of a {kind.__name__}")
    return meta


def _read_program(path: Path, meta: StableHLOFunctionMeta) -> bytes:
    program = path.read_bytes()
    suffix = path.suffix[1:]
    if suffix == "bytecode" and not program.startswith(_MLIR_BYTECODE):
        raise TypeError("it is no MLIR bytecode")
    seal = _sum(program)
    if meta.sha256.get(suffix, seal) != seal:  # folders of torch_xla 2.9 have none
        raise ValueError("its bytes are not those that were saved")
    return program


def load(folder: str | os.PathLike) -> StableHLOModelBundle:
    folder = Path(folder)
    functions = []
    for name, path in _iter_dir(folder / "functions"):
        if not name.endswith(".meta"):
            continue
        bytecode, text = path.with_suffix(".bytecode"), path.with_suffix(".mlir")
        if not bytecode.exists() and not text.exists():
            raise FileNotFoundError(
                f"stablehlo: expected the program {bytecode} or {text} beside {path}, found none."
            )
        with _reading(path):
            meta = _read_meta(path)
        function = StableHLOFunc(meta, None, None)
        if bytecode.exists():
            with _reading(bytecode):
                function = StableHLOFunc(meta, _read_program(bytecode, meta), None)
        if text.exists():
            with _reading(text):
                function.text = _read_program(text, meta).decode()
        functions.append(function)
    if not functions:
        raise FileNotFoundError(
            f"stablehlo: expected a folder that StableHLOGraphModule.save has written, found no "
            f"function in {folder}."
        )
    weights, constants = folder / "weights.pt", folder / "constants.pt"
    bundle = StableHLOModelBundle({}, [], functions)
    with _reading(constants):
        bundle.additional_constants = torch.load(constants)
    if weights.exists():
        with _reading(weights):
            bundle.state_dict = torch.load(weights)
    return bundle
