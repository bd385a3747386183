"""Parts whose interface may still change, and old names of parts that have moved."""

import os as _os
from types import TracebackType as _TracebackType

from torch_xla._src.submodules import importer as _importer
from torch_xla.experimental.eager import compile, eager_mode, eager_mode_context, is_eager_mode

__getattr__ = _importer(__name__)


class host_fallback:
    """Decides what happens where an operator can only run on the host.

    Such an operator has no lowering, no decomposition and no kernel that the device's programs can
    call; or its result's shape depends on values. Its inputs are then fetched, PyTorch's CPU kernel
    runs, and the results are uploaded. The metrics count it as ``aten::<operator>``.

    Args:
        mode: ``"allow"``, ``"warn"`` (the default: once per operator, at the line of the call) or
            ``"error"`` (NotImplementedError).

    A call takes effect at once and for the whole process; ``with host_fallback("error"):`` ends it
    with the block. The environment variable ``XLA_HOST_FALLBACK`` is the same setting.

    Raises:
        ValueError: another mode.
    """

    def __init__(self, mode: str) -> None:
        if mode not in ("allow", "warn", "error"):
            raise ValueError(f"host_fallback: expected 'allow', 'warn' or 'error', got {mode!r}.")
        self._previous = _os.environ.get("XLA_HOST_FALLBACK")
        _os.environ["XLA_HOST_FALLBACK"] = mode

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: _TracebackType | None,
    ) -> None:
        if self._previous is None:
            del _os.environ["XLA_HOST_FALLBACK"]
        else:
            _os.environ["XLA_HOST_FALLBACK"] = self._previous
