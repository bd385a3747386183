"""What devices exchange, told by mesh axes."""

import pytest

from torch_xla import _XLAC
from torch_xla._src.aot.collectives import Collective, Mesh, summed


def mesh_of(text: str) -> Mesh:
    return Mesh(*_XLAC._read_program(f"module @m {{\n  sdy.mesh @mesh = {text}\n}}\n")["mesh"])


PLAIN = mesh_of('<["data"=2, "model"=4]>')
PERMUTED = mesh_of('<["a"=2, "b"=2], device_ids=[3, 1, 2, 0]>')


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ([[0, 1, 2, 3], [4, 5, 6, 7]], ("model",)),
        ([[4, 5, 6, 7], [3, 2, 1, 0]], ("model",)),  # in any order
        ([[0, 4], [1, 5], [2, 6], [3, 7]], ("data",)),
        ([[0, 1, 2, 3, 4, 5, 6, 7]], ("data", "model")),
        ([[0, 1], [2, 3], [4, 5], [6, 7]], ()),  # a part of an axis
        ([], ()),
    ],
)
def test_groups_are_told_as_axes(groups, axes):
    assert PLAIN.axes_of("all-reduce", groups) == axes


def test_the_meshs_own_order_of_devices():
    assert PERMUTED.axes_of("all-gather", [[3, 1], [2, 0]]) == ("b",)
    assert PERMUTED.axes_of("all-gather", [[3, 2], [1, 0]]) == ("a",)
    assert PERMUTED.axes_of("all-gather", [[3, 0], [1, 2]]) == ()


def test_pairs_tell_the_axes_along_which_they_differ():
    assert PLAIN.axes_of("collective-permute", [[0, 1], [1, 2], [2, 3], [3, 0]]) == ("model",)
    assert PLAIN.axes_of("collective-permute", [[0, 4], [4, 0]]) == ("data",)
    assert PLAIN.axes_of("collective-permute", [[0, 5]]) == ("data", "model")


def test_equal_ones_are_summed_and_the_largest_comes_first():
    model, data = [[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]]
    found = [
        ("all-reduce", 8, 1, data, "f", "f.py:3"),
        ("all-gather", 100, 1, model, "f", "f.py:4"),
        ("all-reduce", 16, 3, data, "f", "f.py:3"),  # in a loop
        ("all-reduce", 32, 1, model, "f", "f.py:3"),
    ]
    assert summed(found, PLAIN) == [
        Collective("all-gather", ("model",), "f", "f.py:4", 1, 100),
        Collective("all-reduce", ("data",), "f", "f.py:3", 4, 56),
        Collective("all-reduce", ("model",), "f", "f.py:3", 1, 32),
    ]
