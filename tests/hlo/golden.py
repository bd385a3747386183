"""Programs of operators and models, pinned by hash. Few are compiled: where values tell a shape.

Each line of golden.txt names a case and the hash of its texts: what the CPU's compiler would be
given, and a TPU's. The texts are kept under build/hlo by their hash, so that a change shows as a
diff where the texts of before were made in this checkout.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import random
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from benchmarks.models import MODELS
from tests.hlo.calls import CALLS, Operands
from tests.ops import database
from torch_xla import _XLAC

GOLDEN = Path(__file__).with_name("golden.txt")
TEXTS = Path(__file__).parents[2] / "build" / "hlo"
PLATFORMS = ("CPU", "TPU")
# Three samples in the first dtype that an entry has, one in the others.
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool)
# Their samples are in the order of a set, which differs from process to process.
UNSTEADY = ("meshgrid.list_of_tensors", "meshgrid.variadic_tensors")


@dataclass
class Case:
    name: str
    outputs: Callable[[], list[torch.Tensor]]


def tensors_in(nest: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(nest)
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.device.type == "xla"]


def _results(entry: Any, sample: Any, grad: bool) -> list[torch.Tensor]:
    call = database.Call.of(entry, sample, "xla")
    outputs = tensors_in(call.run(entry))
    inputs = [t for t in tensors_in(call.tensors) if t.requires_grad]
    made = [y for y in outputs if y.requires_grad and (y.is_floating_point() or y.is_complex())]
    if not grad or not inputs or not made:
        return outputs
    sums = [torch.view_as_real(y).sum() if y.is_complex() else y.sum() for y in made]
    grads = torch.autograd.grad(sums, inputs, allow_unused=True)
    return outputs + [g for g in grads if g is not None]


def _of_database(title: str, entry: Any) -> Iterator[Case]:
    count = 3
    for dtype in DTYPES:
        if dtype not in entry.supported_dtypes("cpu"):
            continue
        grad = (
            dtype == torch.float32
            and entry.supports_autograd
            and title not in database.FOREACH_ENTRIES
        )
        random.seed(0)
        torch.manual_seed(0)
        samples = list(database.samples(entry, dtype, grad))
        places = {0, len(samples) // 2, len(samples) - 1} if count == 3 else {0}
        count = 1
        for i in sorted(places):
            name = f"{title} {str(dtype).removeprefix('torch.')} {i}"
            yield Case(name, lambda i=i, s=samples, g=grad: _results(entry, s[i], g))


def _step(make: Callable[[], torch.nn.Module], shape: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = make().to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x, target = torch.randn(shape).to("xla"), torch.randint(10, shape[:1]).to("xla")
    loss = torch.nn.functional.cross_entropy(model(x), target)
    loss.backward()
    optimizer.step()
    return [loss.detach(), *tensors_in(model.state_dict()), *tensors_in(optimizer.state_dict())]


def cases() -> Iterator[Case]:
    for title, entry in itertools.chain(database.ENTRIES.items(), database.FOREACH_ENTRIES.items()):
        if title not in UNSTEADY:
            yield from _of_database(title, entry)
    for name, call in CALLS.items():
        yield Case(f"call {name}", lambda call=call: tensors_in(call(Operands())))
    for name, (make, shape, _) in MODELS.items():
        yield Case(f"model {name}", lambda make=make, shape=shape: _step(make, shape))


def _words(refusal: Exception) -> str:
    return f"{type(refusal).__name__}: {str(refusal).splitlines()[0]}\n"


def text_of(outputs: list[torch.Tensor]) -> str:
    """The programs for each platform, or why there is none."""
    texts = []
    for platform in PLATFORMS:
        try:
            texts.append(_XLAC._get_stablehlo(outputs, platform))
        except (RuntimeError, TypeError) as refusal:
            texts.append(_words(refusal))
    return "".join(f"// {p}\n{t}" for p, t in zip(PLATFORMS, texts, strict=True))


@dataclass
class Lowered:
    texts: dict[str, str]  # by the name of the case
    rules: set[str]  # operators that were recorded


def lower(chosen: Iterator[Case]) -> Lowered:
    lowered = Lowered({}, set())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in chosen:
            torch.manual_seed(0)
            try:
                outputs = case.outputs()
            except (RuntimeError, IndexError) as refusal:  # samples of dtypes have such
                if case.name.startswith(("call ", "model ")):
                    raise
                lowered.texts[case.name] = _words(refusal)
                continue
            if not outputs:
                continue
            lowered.texts[case.name] = text_of(outputs)
            recorded = _XLAC._get_xla_tensors_text(outputs)
            lowered.rules |= set(re.findall(r"= ([\w:.]+)\(", recorded))
    return lowered


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def keep(text: str) -> None:
    TEXTS.mkdir(parents=True, exist_ok=True)
    path = TEXTS / hash_of(text)
    if not path.exists():
        path.write_text(text)


def pinned() -> dict[str, str]:
    lines = GOLDEN.read_text().splitlines() if GOLDEN.exists() else []
    return {name: digest for name, digest in (line.rsplit(" ", 1) for line in lines)}


def pin(texts: dict[str, str]) -> None:
    lines = [f"{name} {hash_of(text)}\n" for name, text in sorted(texts.items())]
    GOLDEN.write_text("".join(lines))


def changes(texts: dict[str, str]) -> list[str]:
    """How programs differ from those that are pinned. Keeps their texts."""
    before, changed = pinned(), []
    for name, text in texts.items():
        keep(text)
        if before.get(name) != hash_of(text):
            changed.append(difference(name, text, before.get(name)))
    gone = sorted(before.keys() - texts.keys())
    return changed + [f"{name}: pinned, and no case any more" for name in gone]


def difference(name: str, text: str, before: str | None) -> str:
    """How a program differs from the pinned one."""
    if before is None:
        return f"{name}: not pinned"
    old = TEXTS / before
    if not old.exists():
        return f"{name}: {before} -> {hash_of(text)}; its text before was not made in this checkout"
    lines = difflib.unified_diff(
        old.read_text().splitlines(), text.splitlines(), "before", "now", lineterm="", n=2
    )
    return "\n".join([f"{name}:", *itertools.islice(lines, 60)])
