"""Programs of others as computations of `torch_xla.core.xla_builder`. jaxlib reads them."""

from __future__ import annotations

import hashlib
from typing import Any

from torch_xla._src.builder import ops as builder_ops
from torch_xla._src.builder.shapes import mkshape
from torch_xla._src.export import mlir


def from_hlo(name: str, proto: bytes) -> Any:
    """A serialized `xla.HloModuleProto` as a computation.

    Raises:
        ImportError: jaxlib is not installed.
        ValueError: The text is no such module.
    """
    return from_stablehlo(name, mlir.text_of_hlo(proto))


def from_stablehlo(name: str, text: str) -> Any:
    """A StableHLO module's function `main` as a computation.

    Raises:
        ImportError: jaxlib is not installed.
        ValueError: The module has no such function, or a type that PyTorch lacks.
    """
    # Equal programs are one function of the program that calls them.
    function = f"module_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    code, parameters, results = mlir.as_functions(text, function)
    shapes = [mkshape(*parameter) for parameter in parameters]

    def call(builder: Any, *ops: builder_ops.Op) -> builder_ops.Op:
        return builder_ops.mkop(
            "ModuleFunction",
            ops,
            builder=builder,
            function=function,
            text=code,
            result_types=" ".join(dtype for dtype, _ in results),
            result_sizes=[n for _, sizes in results for n in (len(sizes), *sizes)],
        )

    builder = builder_ops.create_builder(name)
    ops = [builder_ops.mkparam(builder, i, shape) for i, shape in enumerate(shapes)]
    return call(builder, *ops).build(name)
