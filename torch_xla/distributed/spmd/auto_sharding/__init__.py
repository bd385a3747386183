"""Auto-sharding: how a program is split among the devices, chosen by an integer program."""

from torch_xla.distributed.spmd.auto_sharding.planner import (
    Plan,
    compile_for,
    enable,
    is_enabled,
    plans,
)
from torch_xla.distributed.spmd.auto_sharding.solve import DoesNotFit
