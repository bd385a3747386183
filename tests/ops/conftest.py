"""Every test draws the same random inputs, whichever ran before it; what is wide is halved."""

import zlib
from collections import Counter
from pathlib import Path

import pytest
import torch

# Of a test with more cases than this, half are slow ones: those that `make test-all` runs alone.
WIDE = 24


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    cases = Counter((item.path, item.originalname) for item in here)
    for item in here:
        # By a hash: cases in turn may be the dtypes of one operator.
        is_odd = zlib.crc32(item.nodeid.encode()) % 2 == 1
        if cases[item.path, item.originalname] > WIDE and is_odd:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
