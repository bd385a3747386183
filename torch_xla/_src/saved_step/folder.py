"""The folder of a saved step: docs/saved_steps.md describes its files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torch_xla._src.export import mlir
from torch_xla._src.export.bundle import dtype_name

FORMAT = "torch_xla.saved_step"
VERSION = 1
RANDOM = "random_state"  # the name of the random state
RESERVED = (RANDOM, "__metadata__")  # names that no other state has

_MANIFEST, _TEXT, _BYTECODE = "step.json", "step.mlir", "step.bytecode"
_STATE, _EXAMPLE = "state.safetensors", "example.safetensors"


@dataclasses.dataclass
class Input:
    """An input of the program. `kind` is "argument", "state" or "random"."""

    kind: str
    name: str
    dtype: str
    shape: list[int]

    @classmethod
    def of(cls, kind: str, name: str, tensor: torch.Tensor, **more: Any) -> Any:
        return cls(kind, name, dtype_name(tensor.dtype), list(tensor.shape), **more)

    def check(self, tensor: Any) -> None:
        """Raises a ValueError where the tensor is another than this."""
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"saved_step: expected a tensor as {self.name}, got {tensor!r}.")
        if dtype_name(tensor.dtype) != self.dtype or list(tensor.shape) != self.shape:
            raise ValueError(
                f"saved_step: expected {self.dtype} {self.shape} as {self.name}, got "
                f"{dtype_name(tensor.dtype)} {list(tensor.shape)}. Save the step for it."
            )


@dataclasses.dataclass
class Output(Input):
    """An output of the program. `kind` is "result", "state" or "random".

    `replaces` is the place of the input of which this is the new value, and whose buffer it takes.
    """

    replaces: int | None = None


@dataclasses.dataclass
class Manifest:
    """The inputs and outputs of a program, in its order.

    Attributes:
        name: The step's function.
        inputs: The arguments, the state, and the random state if the step draws from it.
        outputs: The results, then new state.
        constants: The numbers and texts among the arguments of the example call.
        compile_options: Of PJRT platforms, the compiler's flags that programs are compiled with.
        sha256: Of the program's files, and of "interface", which is inputs and outputs. Earlier
            folders have none.
    """

    name: str
    inputs: list[Input]
    outputs: list[Output]
    constants: dict[str, Any]
    compile_options: dict[str, dict[str, Any]]
    sha256: dict[str, str] = dataclasses.field(default_factory=dict)

    def sealed(self, programs: Mapping[str, bytes]) -> Manifest:
        """The same for these files of the program."""
        sums = {name: hashlib.sha256(program).hexdigest() for name, program in programs.items()}
        return dataclasses.replace(self, sha256={**sums, "interface": self._interface_sum()})

    def _interface_sum(self) -> str:
        entries = [dataclasses.asdict(entry) for entry in (*self.inputs, *self.outputs)]
        return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        fields = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        for output in fields["outputs"]:
            if output["replaces"] is None:
                del output["replaces"]
        return json.dumps(fields, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, path: Path) -> Manifest:
        try:
            fields = json.loads(text)
            if fields.pop("format") != FORMAT:
                raise ValueError(f"it is not a {FORMAT}")
            if (version := fields.pop("version")) != VERSION:
                raise ValueError(f"it has version {version}; this torch_xla reads {VERSION}")
            fields["inputs"] = [Input(**i) for i in fields["inputs"]]
            fields["outputs"] = [Output(**o) for o in fields["outputs"]]
            manifest = cls(**fields)
            places = range(len(manifest.inputs))
            if any(o.replaces not in places for o in manifest.replacing()):
                raise ValueError("an output replaces an input that is not there")
            if manifest.sha256.get("interface", seal := manifest._interface_sum()) != seal:
                raise ValueError("its inputs or outputs are not those that were saved")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"saved_step: expected {path} to describe a step, got {error!r}."
            ) from error
        return manifest

    def replacing(self) -> list[Output]:
        return [o for o in self.outputs if o.replaces is not None]


def check(folder: str | os.PathLike) -> None:
    """Raises where a step cannot be written, before anything is done."""
    _safetensors()
    path = Path(folder)
    if path.exists() and not (path / _MANIFEST).exists():
        if not path.is_dir() or any(path.iterdir()):
            raise FileExistsError(
                f"saved_step: expected a folder that is empty, new or holds a saved step, got "
                f"{path}. Name another one."
            )


def programs(text: str) -> dict[str, bytes]:
    """The files of a program, the one that is run first."""
    files = {_BYTECODE: mlir.artifact(text, None)} if mlir.is_installed() else {}
    return {**files, _TEXT: text.encode()}


def write(
    folder: str | os.PathLike,
    manifest: Manifest,
    programs: Mapping[str, bytes],
    state: Mapping[str, torch.Tensor],
    example: Mapping[str, torch.Tensor],
) -> None:
    """Writes the files to a folder beside it, which then takes its place."""
    manifest = manifest.sealed(programs)
    path = Path(os.path.abspath(folder))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as work:
        new, old = Path(work, "new"), Path(work, "old")
        new.mkdir()
        (new / _MANIFEST).write_text(manifest.to_json())
        for name, program in programs.items():
            (new / name).write_bytes(program)
        for name, tensors in ((_STATE, state), (_EXAMPLE, example)):
            # Each of its own memory: the format has no tensors that share.
            apart = {n: t.detach().contiguous().clone() for n, t in tensors.items()}
            try:
                _safetensors().save_file(apart, new / name)
            except KeyError as error:
                raise ValueError(
                    f"saved_step: expected tensors of dtypes that safetensors has, got {error}."
                ) from error
        if path.exists():
            path.rename(old)
        try:
            new.rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise
        shutil.rmtree(old, ignore_errors=True)


def read(
    folder: str | os.PathLike,
) -> tuple[Manifest, dict[str, bytes], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The manifest, the program's files, and state and example, in the program's order."""
    path = Path(folder)
    manifest = Manifest.from_json((path / _MANIFEST).read_text(), path / _MANIFEST)
    arguments = [i for i in manifest.inputs if i.kind == "argument"]
    others = [i for i in manifest.inputs if i.kind != "argument"]
    names = [name for name in (_BYTECODE, _TEXT) if (path / name).exists() or name == _TEXT]
    files = {name: (path / name).read_bytes() for name in names}
    for name, program in files.items():
        seal = hashlib.sha256(program).hexdigest()
        if manifest.sha256.get(name, seal) != seal:
            raise ValueError(
                f"saved_step: expected {path / name} as it was saved, got other bytes. Save the "
                "step again."
            )
    return manifest, files, _tensors(path / _STATE, others), _tensors(path / _EXAMPLE, arguments)


def _tensors(path: Path, inputs: list[Input]) -> dict[str, torch.Tensor]:
    if not path.exists():
        raise FileNotFoundError(f"saved_step: expected the file {path}, found none.")
    try:
        found = _safetensors().load_file(path)
    except Exception as error:
        raise ValueError(f"saved_step: expected tensors in {path}, got {error!r}.") from error
    for i in inputs:
        if i.name not in found:
            raise ValueError(f"saved_step: expected the tensor {i.name} in {path}, found none.")
        i.check(found[i.name])
    return {i.name: found[i.name] for i in inputs}


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            "saved_step: expected the package safetensors, which the weights are written with. "
            "Install it: pip install torch_xla[export]."
        ) from error
    return safetensors.torch
