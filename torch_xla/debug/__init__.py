"""Functions that explain a run: where it waits, what is compiled again, what it costs, what it
keeps in memory and where it goes wrong. docs/debugging.md shows them at work."""

from torch_xla._src.insight.cost import Cost, Machine, Row, cost  # noqa: F401
from torch_xla._src.insight.exchanges import (  # noqa: F401
    Exchanged,
    exchange_report,
    exchanges,
)
from torch_xla._src.insight.explain import (  # noqa: F401
    Recompile,
    Wait,
    recompiles,
    wait_report,
    waits,
)
from torch_xla._src.insight.faults import Fault, Statistics, first_fault  # noqa: F401
from torch_xla._src.insight.kept_runs import keep_runs  # noqa: F401
from torch_xla._src.insight.memory_snapshot import (  # noqa: F401
    LiveTensor,
    MemorySnapshot,
    Temporaries,
    memory_snapshot,
)
from torch_xla._src.insight.programs import CompiledProgram, programs  # noqa: F401
from torch_xla._src.insight.recording import Recording, record  # noqa: F401
from torch_xla._src.insight.scopes import named_modules  # noqa: F401
from torch_xla._src.report.file import report  # noqa: F401
from torch_xla._src.submodules import importer as _importer

__getattr__ = _importer(__name__)
