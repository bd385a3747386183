"""The answer to `init_method="xla://"`, by the names of 2.9."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from torch_xla.distributed.xla_backend import pjrt_rendezvous_handler

__all__ = ["DummyStore", "_store", "pjrt_rendezvous_handler"]

# 2.9 keeps its store here; the job's is in `_src/job/store.py`.
_store = None


class DummyStore(dist.Store):
    """A store without keys, for a group whose members need not meet."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__()
