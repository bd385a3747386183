"""torch.nn.GRU is a class of its own once torch_xla is imported, as in torch_xla 2.9."""

from __future__ import annotations

import copy
import io
import logging

import torch
from torch import nn

from torch_xla._src.old_names import gru
from torch_xla.experimental.gru import GRU


def test_the_original_is_kept():
    assert nn.GRU is GRU and issubclass(GRU, nn.GRU._orig)
    assert nn.GRU._orig.__module__ == "torch.nn.modules.rnn"
    made = nn.GRU(3, 4)
    assert type(made) is GRU and isinstance(made, nn.RNNBase) and repr(made) == "GRU(3, 4)"


def test_it_is_put_there_once():
    original = nn.GRU._orig
    gru.install()
    assert nn.GRU is GRU and nn.GRU._orig is original


def test_two_directions_are_the_originals(caplog):
    with caplog.at_level(logging.WARNING):
        made = nn.GRU(3, 4, bidirectional=True)
    assert type(made) is nn.GRU._orig and made.bidirectional
    assert "bidirectional" in caplog.text
    caplog.clear()
    assert type(nn.GRU(3, 4, bidirectional=False)) is GRU and not caplog.text


def test_values_copies_and_files():
    torch.manual_seed(0)
    x = torch.randn(5, 2, 3)
    gru = nn.GRU(3, 4, num_layers=2, batch_first=True)
    original = nn.GRU._orig(3, 4, num_layers=2, batch_first=True)
    original.load_state_dict(gru.state_dict())
    wanted = original(x)
    file = io.BytesIO()
    torch.save(gru, file)
    file.seek(0)
    for module in (gru, copy.deepcopy(gru), torch.load(file, weights_only=False)):
        found = module.to("xla")(x.to("xla"))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-6)
