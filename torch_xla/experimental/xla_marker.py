"""Marks around the operators that exported programs show as one: a StableHLO composite.

`mark_pattern_utils.StableHLOCompositeBuilder` places them.
"""

from __future__ import annotations

import dataclasses
import json
from json import JSONEncoder
from typing import Any

import torch

from torch_xla._src.export import mlir


@dataclasses.dataclass
class BoundaryMetadata:
    """The contents of a mark.

    Attributes:
        name: The composite's name.
        pos: The tensor's position among the inputs or outputs.
        id: The same for all marks of one composite, and for no others of a program.
        is_input: Whether the tensor goes in.
        attr: The composite's attributes; the mark of an output has them.
    """

    name: str
    pos: int
    id: str
    is_input: bool = True
    attr: dict[Any, Any] | None = None


class BoundaryMetadataSerializer(JSONEncoder):
    """Writes BoundaryMetadata as JSON."""

    def default(self, obj: Any) -> Any:
        if isinstance(obj, BoundaryMetadata):
            return dataclasses.asdict(obj)
        return super().default(obj)


_LISTS = ({int}, {float}, {bool})  # the types of their items


def _assert_valid_composite_attr(attr: dict[Any, Any] | None) -> None:
    """Raises ValueError unless all names are texts and all values have a form in MLIR."""
    if attr is None:
        return
    if not isinstance(attr, dict):
        raise ValueError(f"composite: expected a dict of attributes, got {type(attr).__name__}.")
    for name, value in attr.items():
        if not isinstance(name, str):
            raise ValueError(f"composite: expected a text as an attribute's name, got {name!r}.")
        is_list = isinstance(value, (list, tuple)) and {type(v) for v in value} in _LISTS
        if not is_list and type(value) not in (bool, int, float, str):
            raise ValueError(
                f"composite: expected an int, float, bool, text or list of numbers or bools of one "
                f"type as the attribute {name}, got {value!r}."
            )
        numbers = [v for v in (value if is_list else [value]) if isinstance(v, int)]
        if any(not -(2**63) <= v < 2**63 for v in numbers):
            raise ValueError(
                f"composite: expected integers of 64 bits as the attribute {name}, got {value!r}."
            )


def serialize_composite_attr(attr: dict[Any, Any] | None) -> str:
    """Attributes as one text, which an operator's argument can be."""
    _assert_valid_composite_attr(attr)
    return json.dumps(attr or {})


def deserialize_composite_attr(attr: str) -> dict[Any, Any]:
    """The attributes of a text that `serialize_composite_attr` has made."""
    return json.loads(attr)


def _mlir(value: Any) -> str:
    """A value as an MLIR attribute."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value} : i64"
    if isinstance(value, float):
        return f"{mlir.float32(value)} : f32"
    if isinstance(value, str):
        return mlir.string(value)
    kind = {bool: "i1", int: "i64", float: "f32"}[type(value[0])]
    items = ", ".join(_mlir(v).split(" ")[0] for v in value)
    return f"dense<[{items}]> : tensor<{len(value)}x{kind}>"


def mlir_dictionary(attr: dict[Any, Any]) -> str:
    """Attributes as an MLIR dictionary: `{axis = 1 : i64}`."""
    return mlir.dictionary({name: _mlir(value) for name, value in attr.items()})


def mark_tensor(
    x: torch.Tensor,
    name: str,
    pos: int,
    id: str,
    is_input: bool,
    attr: dict[Any, Any] | None = None,
) -> torch.Tensor:
    """A tensor of the same values, which a composite begins or ends with.

    Raises:
        ValueError: An attribute has no form in MLIR.
    """
    return torch.ops.xla.mark_tensor(x, name, pos, id, is_input, serialize_composite_attr(attr))


def mark_tensor_meta(
    x: torch.Tensor, name: str, pos: int, id: str, is_input: bool, attr: str = ""
) -> torch.Tensor:
    return torch.empty_like(x)


def mark_tensor_xla(
    x: torch.Tensor, name: str, pos: int, id: str, is_input: bool, attr: str = ""
) -> torch.Tensor:
    attributes = deserialize_composite_attr(attr) if attr else {}
    text = mlir_dictionary(attributes) if attributes else ""
    return torch.ops.torch_xla.mark_tensor(x, name, pos, id, is_input, text)


def _mark_tensor_elsewhere(x: torch.Tensor, *mark: Any, **named: Any) -> torch.Tensor:
    return x.clone()


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return grad, None, None, None, None, None


_library = torch.library.Library("xla", "FRAGMENT")
_library.define(
    'mark_tensor(Tensor x, str name, int pos, str id, bool is_input, str attr="") -> Tensor'
)
_library.impl("mark_tensor", _mark_tensor_elsewhere, "CompositeExplicitAutograd")
_library.impl("mark_tensor", mark_tensor_meta, "Meta")
_library.impl("mark_tensor", mark_tensor_xla, "XLA")
torch.library.register_autograd("xla::mark_tensor", _backward, lib=_library)
