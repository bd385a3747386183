"""0-dimensional tensors of the CPU among tensors of the device, which PyTorch takes for numbers.

The list of the calls that take one is PyTorch's: its tensors of `meta` and its fake ones of CUDA
are asked, entry by entry of the operator database, each argument in turn."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

import torch_xla

from . import database, database_notes
from .database import ENTRIES
from .harness import DEVICE, check

SAMPLES = 2
# What PyTorch says of tensors that are not all on one device.
OF_DEVICES = ("same device", "expected device", "DeviceType")


def with_number(sample: SampleInput, number: int, device: str) -> Any:
    """The arguments of a sample on the device, but for one: a 0-dimensional tensor of the CPU."""
    nest = (sample.input, list(sample.args), dict(sample.kwargs))
    leaves, spec = pytree.tree_flatten(nest)
    held = leaves[number].detach().flatten()[0].clone()
    there = pytree.tree_leaves(database.moved(nest, device))
    return pytree.tree_unflatten([*there[:number], held, *there[number + 1 :]], spec)


def calls(entry: OpInfo) -> Iterator[tuple[SampleInput, int]]:
    """Of the first samples, each tensor that holds values and has others beside it."""
    for sample in itertools.islice(database.samples(entry, torch.float32, False), SAMPLES):
        leaves = pytree.tree_leaves((sample.input, list(sample.args), dict(sample.kwargs)))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        if len(places) > 1:
            yield from ((sample, i) for i in places if leaves[i].numel() > 0)


def outcome(entry: OpInfo, sample: SampleInput, number: int, device: str) -> Any:
    """What the call gives, or the exception."""
    try:
        first, args, kwargs = with_number(sample, number, device)
        return entry.op(first, *args, **kwargs)
    except Exception as e:
        return e


def read(result: Any) -> Any:
    """On the CPU; an exception where reading it raises one."""
    try:
        return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().cpu(), result)
    except Exception as e:
        return e


def answers(entry: OpInfo, sample: SampleInput, number: int) -> list[Any]:
    """Those of two devices that compute nothing."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = outcome(entry, sample, number, "cuda")
    return [outcome(entry, sample, number, "meta"), fake]


def is_of_devices(answer: Any) -> bool:
    return isinstance(answer, Exception) and any(words in str(answer) for words in OF_DEVICES)


def fault_of_refusal(found: Exception, expected: Any, asked: list[Any]) -> str:
    words = f"{type(found).__name__}: {found}"
    if "meta" in str(found):
        return f"expected words that do not name meta, got {words}"
    if isinstance(expected, Exception):
        return ""
    if any(not isinstance(answer, Exception) for answer in asked):
        return words
    if not ("cpu" in words and DEVICE in words) and is_of_devices(found):
        return f"expected words that name both devices, got {words}"
    return ""


def is_sound(refusal: Exception) -> bool:
    """Some kernels of the CPU fail at their own checks of what is the same on all devices."""
    return "INTERNAL ASSERT" not in str(refusal)


def faults(name: str, sample: SampleInput, number: int) -> str:
    entry = ENTRIES[name]
    expected = outcome(entry, sample, number, "cpu")
    asked = answers(entry, sample, number)
    found = outcome(entry, sample, number, DEVICE)
    if isinstance(found, Exception):
        return fault_of_refusal(found, expected, asked)
    found = read(found)
    if isinstance(expected, Exception):
        refused = isinstance(found, Exception) or not is_sound(expected)
        return "" if refused else f"expected {expected}, got a result"
    if all(map(is_of_devices, asked)):
        return f"expected {asked[0]}, got a result"
    if not database.has_values(entry) or torch.Tag.nondeterministic_seeded in tags(entry):
        return ""
    tolerances = database_notes.tolerances(name, torch.float32) or {"rtol": 1e-4, "atol": 1e-4}
    try:
        torch.testing.assert_close(found, expected, equal_nan=True, **tolerances)
    except AssertionError as e:
        return str(e)
    return ""


def tags(entry: OpInfo) -> set[torch.Tag]:
    packet = getattr(torch.ops.aten, entry.aten_name or "", None)
    overloads = packet.overloads() if packet is not None else []
    return {tag for o in overloads for tag in getattr(packet, o).tags}


# Their operators take what these tests give them otherwise than a tensor of the device.
LEFT_OUT = {
    "_unsafe_masked_index_put_accumulate": "a compiler's own operator, which looks at nothing",
    "histogramdd": "PyTorch's own kernel looks at shapes only where all tensors are on one device",
    "nn.functional.linear_cross_entropy.chunked": "gathers by classes, as fakes let pass",
    "nn.functional.linear_cross_entropy.chunked_none": "gathers by classes, as fakes let pass",
    "nn.functional.multi_head_attention_forward": "draws random numbers",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name
        for name, entry in ENTRIES.items()
        if database.applies(entry, torch.float32, "forward") and name not in LEFT_OUT
    ],
)
def test_what_pytorch_takes(name):
    entry = ENTRIES[name]
    found = [(number, faults(name, sample, number)) for sample, number in calls(entry)]
    wrong = [f"argument {number}: {words}" for number, words in found if words]
    assert not wrong, "\n".join(wrong)


MASK, X = torch.tensor([True, False]), torch.tensor([1.0, -2.0])
NUMBER = torch.tensor(2.0)

CALLS = {
    "in the second place": lambda x, mask: torch.where(mask, x, NUMBER),
    "in the first place": lambda x, mask: torch.where(mask, NUMBER, x),
    "in both": lambda x, mask: torch.where(mask, NUMBER, torch.tensor(3)),
    "a condition": lambda x, mask: torch.where(torch.tensor(True), x, x * 2),
    "of double": lambda x, mask: torch.where(mask, x, torch.tensor(0.1, dtype=torch.float64)),
    # PyTorch has no gradient of a real tensor here.
    "complex": lambda x, mask: x * x.detach().where(mask, torch.tensor(1j)).imag,
    "as a method": lambda x, mask: x.where(mask, NUMBER),
    "another number": lambda x, mask: x.where(mask, NUMBER + 1),
    "bounds": lambda x, mask: torch.clamp(x, torch.tensor(-1.0), NUMBER),
    "a quotient": lambda x, mask: torch.addcdiv(x, NUMBER, x, value=2),
    "an edge": lambda x, mask: torch.searchsorted(x.sort().values, torch.tensor(0.5)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_numbers_of_the_cpu(call):
    check(call, X, MASK)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_numbers_of_the_cpu_in_a_graph(call):
    torch._dynamo.reset()
    compiled = torch.compile(call, backend="openxla")
    x = X.to(DEVICE).requires_grad_()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Found tensor")
        found = compiled(x, MASK.to(DEVICE))
    torch.testing.assert_close(found.detach().cpu(), call(X, MASK))


def test_another_number_is_the_same_program():
    x, mask = X.to(DEVICE), MASK.to(DEVICE)
    before = None
    for number in (2.0, 3.0, -1.0):
        found = torch.where(mask, x, torch.tensor(number))
        torch_xla.sync()
        assert found.cpu().tolist() == [1, number]
        compiled = torch_xla.debug.metrics.counter_value("UncachedCompile")
        assert before in (None, compiled)
        before = compiled
