"""Every test draws the same random inputs, whichever ran before it."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
