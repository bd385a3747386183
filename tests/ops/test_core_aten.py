"""Every core ATen operator, the set that torch.export emits: none runs on the host, each gives
PyTorch's values. The calls are those that PyTorch's operator database makes on the CPU."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .database import ENTRIES, samples
from .harness import assert_same, nothing_on_the_host, to_xla

aten = torch.ops.aten
CALLS_OF_AN_OVERLOAD = 3
SAMPLES_OF_AN_ENTRY = 3

# Their results depend on a generator, or on nothing: shapes and dtypes are compared.
WITHOUT_FIXED_VALUES = {
    aten.bernoulli.p,
    aten.empty.memory_format,
    aten.empty_permuted.default,
    aten.empty_strided.default,
    aten.native_dropout.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    aten.rand.default,
    aten.randn.default,
    aten.randperm.default,
}
# Results after the first are notes for the gradient; each device of PyTorch has its own.
FIRST_RESULT_ONLY = {
    aten._embedding_bag.default,
    aten._native_batch_norm_legit_no_training.default,
}
# Their results have a shape or a Python value that only the data tells.
VALUE_DEPENDENT = {aten._local_scalar_dense.default, aten.nonzero.default}
# They read the metadata of a tensor, which PyTorch keeps.
METADATA = {
    aten.sym_is_contiguous.default,
    aten.sym_numel.default,
    aten.sym_size.int,
    aten.sym_storage_offset.default,
    aten.sym_stride.int,
}

x = torch.linspace(-2, 2, 2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
n = torch.arange(-4, 8).reshape(3, 4)
ones = torch.ones(3)
# Core operators that the first samples of the database do not reach.
BY_HAND = {
    aten._native_batch_norm_legit.no_stats: [(x, ones, ones, True, 0.1, 1e-5)],
    aten._native_batch_norm_legit_no_training.default: [
        (x, ones, ones, ones * 0.5, ones * 2, 0.1, 1e-5)
    ],
    aten.adaptive_avg_pool1d.default: [(x[0], [2])],
    aten.any.dims: [(n > 5, [0, 1]), (n > 5, [1], True)],
    aten.avg_pool1d.default: [(x[0], [2], [2], [1])],
    aten.bitwise_and.Scalar: [(n, 6)],
    aten.bitwise_or.Scalar: [(n, 6)],
    aten.bitwise_xor.Scalar: [(n, 6)],
    aten.copy.default: [(x, x[:, :1]), (n, ones[:, None] * 2.5)],
    aten.div.Scalar_mode: [(x, 0.3), (n, 3)],
    aten.fmod.Scalar: [(x, 0.3), (n, 3)],
    aten.native_dropout.default: [(x, 0.5, True)],
    aten.randperm.default: [(7,)],
    aten.reflection_pad2d.default: [(x, [1, 2, 3, 0])],
    aten.reflection_pad3d.default: [(x, [1, 2, 3, 0, 1, 1])],
    aten.replication_pad3d.default: [(x, [1, 2, 3, 0, 1, 1])],
    aten.upsample_bilinear2d.vec: [(x, [7, 9], False, None), (x, None, True, [1.5, 2.0])],
    aten.upsample_nearest2d.vec: [(x, [7, 9], None), (x, None, [1.5, 2.0])],
    aten.var.dim: [(x, [1, 2]), (x, [3], False, True)],
}
KEYWORDS = {
    aten.div.Scalar_mode: {"rounding_mode": "floor"},
    aten.randperm.default: {"device": torch.device("cpu")},
}


def core_overloads() -> list[torch._ops.OpOverload]:
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace != "aten" or not hasattr(aten, packet):
            continue
        operator = getattr(getattr(aten, packet), overload or "default", None)
        functional = operator is not None and not operator._schema.is_mutable
        if functional and torch.Tag.core in operator.tags:
            found.append(operator)
    return sorted(found, key=str)


CORE = core_overloads()


class Recorder(TorchDispatchMode):
    """Keeps the arguments of the first calls of each core operator."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, list[tuple[Any, Any]]] = defaultdict(list)
        self._core = frozenset(CORE)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in self._core and len(self.calls[function]) < CALLS_OF_AN_OVERLOAD:
            copies = pytree.tree_map_only(
                torch.Tensor, lambda t: t.detach().clone(), (args, dict(kwargs))
            )
            self.calls[function].append(copies)
        return function(*args, **kwargs)


def run_forward_and_backward(entry: Any, sample: Any) -> None:
    results = entry(sample.input, *sample.args, **sample.kwargs)
    outputs = [t for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
    outputs = [t for t in outputs if t.requires_grad]
    if outputs:
        torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])


@pytest.fixture(scope="module")
def calls() -> dict[Any, list[tuple[Any, Any]]]:
    recorder = Recorder()
    for entry in ENTRIES.values():
        # In this order: the first calls are kept, and whole numbers have ties.
        for dtype in (torch.float32, torch.int64):
            if dtype not in entry.supported_dtypes("cpu"):
                continue
            grad = dtype.is_floating_point and entry.supports_autograd
            for sample in itertools.islice(samples(entry, dtype, grad), SAMPLES_OF_AN_ENTRY):
                with recorder:
                    run_forward_and_backward(entry, sample)
    for operator, by_hand in BY_HAND.items():
        recorder.calls[operator] += [(args, KEYWORDS.get(operator, {})) for args in by_hand]
    return recorder.calls


def on_xla(value: Any) -> Any:
    device = torch.device("cpu")
    value = pytree.tree_map_only(
        torch.device, lambda d: torch.device("xla") if d == device else d, value
    )
    return to_xla(value)


@pytest.mark.filterwarnings("ignore")  # of samples that use what PyTorch deprecates
@pytest.mark.parametrize("operator", CORE, ids=str)
def test_core_operator(operator, calls):
    if operator in METADATA:
        pytest.skip("reads metadata")
    assert calls.get(operator), "no call of it is known: give one in BY_HAND"
    expected = [operator(*args, **kwargs) for args, kwargs in calls[operator]]
    if operator in VALUE_DEPENDENT:
        actual = [operator(*on_xla(args), **on_xla(kwargs)) for args, kwargs in calls[operator]]
    else:
        with nothing_on_the_host():
            actual = [operator(*on_xla(args), **on_xla(kwargs)) for args, kwargs in calls[operator]]
    if operator in WITHOUT_FIXED_VALUES:
        shapes = [[(t.shape, t.dtype) for t in pytree.tree_leaves(r)] for r in (actual, expected)]
        assert shapes[0] == shapes[1]
    else:
        if operator in FIRST_RESULT_ONLY:
            actual, expected = [r[0] for r in actual], [r[0] for r in expected]
        assert_same(actual, expected)
