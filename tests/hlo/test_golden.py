"""No program changes unseen. `python -m tests.hlo --pin` takes the programs of now for right.

Units: executor/program/lower, executor/program/lowerer.
"""

from __future__ import annotations

import pytest

from tests.hlo import golden
from tests.ops.harness import HAS_BFLOAT16
from torch_xla import _XLAC
from torch_xla.distributed.spmd.auto_sharding import costs, problem, program

# Views by schema, so that no call is recorded under these names; what autograd or PyTorch calls by
# another; what is computed when it is called, since its values tell the shape; and what is always a
# part of another call.
NOT_RECORDED = {
    "aten::_embedding_bag_dense_backward",
    "aten::conj_physical",
    "aten::range",
    "torch_xla::as_strided_update",
    "torch_xla::all_gather",  # tests/spmd
    "torch_xla::all_reduce",
    "torch_xla::all_to_all",
    "torch_xla::collective_broadcast",
    "torch_xla::collective_permute",
    "torch_xla::exchange",  # tests/jobs
    "torch_xla::full_to_shard",
    "torch_xla::mark_manual",
    "torch_xla::masked_select",
    "torch_xla::nonzero",
    "torch_xla::reduce_scatter",
    "torch_xla::shard_to_full",
    "torch_xla::sharding_constraint",
    "torch_xla::unique",
    "torch_xla::user_operation",
}


def test_programs_are_those_that_are_pinned():
    lowered = golden.lower(golden.cases())
    changed = golden.changes(lowered.texts)
    if not HAS_BFLOAT16:
        # Programs call PyTorch's products in bfloat16 where the processor has them.
        names = (" bfloat16 ", "call _grouped_mm")
        changed = [c for c in changed if not any(name in c.partition(":")[0] for name in names)]
    many = f"{len(changed)} programs differ; `python -m tests.hlo` shows all of them.\n"
    assert not changed, many + "\n".join(changed[:20])
    rules = set(_XLAC._xla_lowered_ops())
    assert sorted(rules - lowered.rules) == sorted(NOT_RECORDED), "a rule that no case lowers"


@pytest.mark.slow
def test_auto_sharding_understands_all_programs():
    """Whatever is recorded has choices, of which each says how it splits all that it reads."""
    count = 0
    for text in golden.lower(golden.cases()).texts.values():
        for module in text.split("module @")[1:]:
            read = program.read(_XLAC._read_program("module @" + module))
            leaves, replaces = [None] * len(read.arguments), [-1] * len(read.results)
            made = problem.make(read, (2, 2), costs.MACHINES["TPU"], leaves, replaces)
            for choice in made.choices:
                assert choice.states
                for split in (choice.costs, *choice.uses):
                    assert len(split) == len(choice.states)
            for edge in made.edges:
                assert len(edge.have) == len(made.choices[edge.source].states)
                assert len(edge.want) == len(made.choices[edge.target].states)
            count += 1
    assert count > 3000


def test_a_change_is_seen():
    text = "".join(f"line {i}\n" for i in range(9))
    golden.keep(text)
    before = golden.hash_of(text)
    assert "+another" in golden.difference("x", text + "another\n", before)
    assert "-line 4" in golden.difference("x", text.replace("line 4\n", ""), before)
    assert "not made in this checkout" in golden.difference("x", text, "0" * 16)
    assert "not pinned" in golden.difference("x", text, None)
