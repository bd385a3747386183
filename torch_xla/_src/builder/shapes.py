"""Element types and shapes of computations that users build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_xla import _XLAC


class Type:
    """XLA's names of element types."""

    F32 = "f32"
    F64 = "f64"
    BF16 = "bf16"
    F16 = "f16"
    U8 = "u8"
    S8 = "s8"
    U16 = "u16"
    S16 = "s16"
    U32 = "u32"
    S32 = "s32"
    U64 = "u64"
    S64 = "s64"
    C64 = "c64"
    C128 = "c128"
    PRED = "pred"


XLA_PT_TYPE_MAP = {
    Type.F32: torch.float32,
    Type.F64: torch.float64,
    Type.BF16: torch.bfloat16,
    Type.F16: torch.float16,
    Type.U8: torch.uint8,
    Type.S8: torch.int8,
    Type.U16: torch.uint16,
    Type.S16: torch.int16,
    Type.U32: torch.uint32,
    Type.S32: torch.int32,
    Type.U64: torch.uint64,
    Type.S64: torch.int64,
    Type.C64: torch.complex64,
    Type.C128: torch.complex128,
    Type.PRED: torch.bool,
}
PT_XLA_TYPE_MAP = {dtype: name for name, dtype in XLA_PT_TYPE_MAP.items()}


class Shape:
    """The element type and sizes of an array, or a tuple of shapes.

    Args:
        shape: As the extension has it: a dictionary of `type` and `sizes`, or a list of shapes.
    """

    def __init__(self, shape: Any):
        self._shape = shape

    @classmethod
    def create(
        cls, dtype: str, sizes: Sequence[int], dynamic_dimensions: Sequence[bool] | None = None
    ) -> Shape:
        """The shape of an array. Only shapes without dynamic dimensions can be used."""
        dynamic = tuple(dynamic_dimensions or (False,) * len(sizes))
        return cls({"type": str(dtype), "sizes": tuple(sizes), "dynamic_dimensions": dynamic})

    @property
    def shape(self) -> dict[str, Any] | Sequence[Any]:
        return self._shape

    def is_tuple(self) -> bool:
        return not isinstance(self._shape, dict)

    def tuple_size(self) -> int:
        return len(self._tuple("tuple_size"))

    def tuple_shape(self, index: int) -> Shape:
        return Shape(self._tuple("tuple_shape")[index])

    def is_dynamic(self) -> bool:
        return any(self.dynamic_dimensions)

    def as_scalar(self) -> Shape:
        """The shape of a scalar of this element type."""
        return Shape.create(self.dtype, ())

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self._array("sizes")["sizes"]

    @property
    def dynamic_dimensions(self) -> tuple[bool, ...]:
        return self._array("dynamic_dimensions").get("dynamic_dimensions", ())

    @property
    def dtype(self) -> str:
        return self._array("dtype")["type"]

    def _array(self, what: str) -> dict:
        if self.is_tuple():
            raise RuntimeError(
                f"Shape.{what}: expected the shape of an array, got a tuple. Take tuple_shape(i)."
            )
        return self._shape

    def _tuple(self, what: str) -> Sequence:
        if not self.is_tuple():
            raise RuntimeError(f"Shape.{what}: expected a tuple, got {self}.")
        return self._shape

    def __str__(self) -> str:
        if self.is_tuple():
            return f"({', '.join(str(Shape(part)) for part in self._shape)})"
        return f"{self.dtype}[{','.join(map(str, self.sizes))}]"

    def __repr__(self) -> str:
        return f"Shape({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


def raw(shape: Any) -> Any:
    """A shape as the extension has it."""
    if isinstance(shape, Shape):
        return shape.shape
    if isinstance(shape, dict):
        return shape
    if not isinstance(shape, (list, tuple)):
        raise TypeError(
            f"xla_builder: expected a shape, got a {type(shape).__name__}. mkshape makes one."
        )
    return [raw(part) for part in shape]


def mkshape(
    dtype: str, sizes: Sequence[int], dynamic_dimensions: Sequence[bool] | None = None
) -> Shape:
    return Shape.create(dtype, sizes, dynamic_dimensions)


def tensor_shape(tensor: Any, device: str = "") -> Any:
    """The shape of a tensor, or the list of those of several; `device` means nothing here."""
    if isinstance(tensor, (list, tuple)):
        return [tensor_shape(t, device) for t in tensor]
    return Shape(_XLAC._xla_op_tensor_shape(tensor, str(device)))
