"""The setting of earlier versions for arguments that a program may take over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch_xla import _XLAC


@contextmanager
def alias_with_buffer_donor_config(should_alias: bool = True) -> Iterator[None]:
    """Sets within a block whether marked tensors may be taken over, which is accepted.

    Programs take over the memory of what nobody needs after them, and only that, marked or not
    (docs/architecture/executor_run.md): the setting changes none.

    Args:
        should_alias: What `_XLAC._xla_get_enable_alias_with_buffer_donor_config` gives meanwhile.
    """
    before = _XLAC._xla_get_enable_alias_with_buffer_donor_config()
    _XLAC._xla_set_enable_alias_with_buffer_donor_config(should_alias)
    try:
        yield
    finally:
        _XLAC._xla_set_enable_alias_with_buffer_donor_config(before)
