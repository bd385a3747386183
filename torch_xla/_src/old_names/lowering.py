"""`_XLAC.lowering`: graphs of tensors as HLO, which are not run."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_xla import _XLAC
from torch_xla._src.old_names import extension_graphs, hlo_proto


class LoweringContext:
    """The program that computes tensors, for other compilers.

        context = LoweringContext("step")
        context.build([loss])
        hlo, inputs = context.hlo(), context.parameter_id_tensor_mapping()

    Its parameters are the data that the graph reads, and where it draws random numbers, after those
    its seeds, s64[number of draws], which no mapping has.

    Args:
        name: What it is called.
    """

    def __init__(self, name: str = "LoweringContext"):
        self._name = name
        self._hlo = b""
        self._parameters: list[torch.Tensor] = []
        self._ids: dict[int, int] = {}

    def build(self, tensors: Sequence[torch.Tensor]) -> None:
        """Lowers the graph of tensors, of which at least one waits; they go on waiting.

        Raises:
            RuntimeError: None waits.
        """
        pending = extension_graphs.pending_of(tensors)
        if not pending:
            raise RuntimeError(
                "LoweringContext: expected tensors that wait to be computed, got none. Build it "
                "before torch_xla.sync()."
            )
        parameters = extension_graphs.leaves_of(tensors)
        with extension_graphs.constant_numbers():
            program = _XLAC._get_xla_tensors_hlo_proto(pending)
        self._hlo = hlo_proto.renamed(program, self._name)
        self._parameters = parameters
        self._ids = {_XLAC._xla_get_tensor_id(t): i for i, t in enumerate(parameters)}

    def buildforiloop(
        self, tensors: Sequence[torch.Tensor], additional_inputs: Sequence[torch.Tensor] = ()
    ) -> None:
        """`build`; the program also takes what a loop carries along unchanged, and returns it."""
        self.build([*tensors, *(t.detach().clone() for t in additional_inputs)])

    def hlo(self) -> bytes:
        """The serialized `xla.HloModuleProto`, before the compiler's optimizations."""
        self._check()
        return self._hlo

    def hlo_text(self) -> str:
        """The same in protobuf's text format: `name: "step"`, `opcode: "add"`."""
        self._check()
        return hlo_proto.text_of(self._hlo)

    def hlo_json(self) -> str:
        """The same as JSON: `hostProgramShape`, `computations`."""
        self._check()
        return hlo_proto.json_of(self._hlo)

    def parameter_id_tensor_mapping(self) -> dict[int, torch.Tensor]:
        """By number, copies of the parameters on the CPU."""
        values = _XLAC._xla_get_cpu_tensors(self._parameters) if self._parameters else []
        return dict(enumerate(values))

    def device_parameter_id_tensor_mapping(self) -> dict[int, torch.Tensor]:
        """By number, the parameters. They share memory with the program's tensors."""
        return dict(enumerate(self._parameters))

    def tensor_parameter_id(self, tensor: torch.Tensor) -> int:
        """The number of the parameter that a tensor is, or -1."""
        return self._ids.get(_XLAC._xla_get_tensor_id(tensor), -1)

    def set_name_string(self, name: str) -> None:
        self._name = name

    def get_name_string(self) -> str:
        return self._name

    def _check(self) -> None:
        if not self._hlo:
            raise RuntimeError(
                f"LoweringContext: expected that {self._name!r} has been built, got no program. "
                "Call build(tensors) first."
            )
