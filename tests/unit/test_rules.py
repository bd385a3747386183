"""Every lowering rule is reached by a call, and every view that is lowered can be written."""

from torch_xla import _XLAC


def test_no_rule_is_dead():
    assert len(_XLAC._xla_lowered_ops()) > 500
    _XLAC._xla_check_rules()
