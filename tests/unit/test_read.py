"""What Python numbers alone tell is read without a wait for what the device works on."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch.utils import dlpack

import torch_xla
import torch_xla.debug.metrics as met


def runs() -> int:
    data = met.metric_data("ExecuteTime")
    return 0 if data is None else data[0]


def positions(start: int, device: str, length: int = 6) -> torch.Tensor:
    return torch.arange(length, device=device) + start


def is_packed(position_ids: torch.Tensor) -> bool:
    """As transformers asks at each step of each model."""
    steps = torch.diff(position_ids, prepend=position_ids[:1] - 1)
    return not bool((((steps != 1).cumsum(-1))[-1] == 0).all())


def test_what_came_twice_is_not_run_again():
    for start in (3, 5):
        for time in range(4):
            p = positions(start, "xla")
            before = runs()
            assert not is_packed(p)
            assert runs() - before == (1 if time < 2 else 0)
            assert p.tolist() == positions(start, "cpu").tolist()
            assert runs() - before == (1 if time < 2 else 0)  # it has come along


def test_other_numbers_give_other_values():
    for start in (1, 2, 1, 2, 1, 2, 3):
        assert positions(start, "xla").sum().item() == positions(start, "cpu").sum().item()
    signs = [torch.full((2,), zero, device="xla").signbit().tolist() for zero in (0.0, -0.0) * 4]
    assert signs == [[False, False], [True, True]] * 4


def test_more_numbers_than_are_kept():
    for _ in range(3):
        for start in range(20):
            assert positions(start, "xla").tolist() == list(range(start, start + 6))


def test_what_needs_data_goes_on_waiting():
    table = torch.arange(20.0)
    on_xla = table.to("xla")
    for start in (1, 1, 1, 2):
        p = positions(start, "xla")
        rows = on_xla[p] * 2
        assert not is_packed(p)
        assert torch_xla._XLAC._check_tensor_need_materialization([rows]) == [True]
        assert torch.equal(rows.cpu(), table[positions(start, "cpu")] * 2)


def test_reads_wait_for_no_run(run_python, fault_plugin):
    done = run_python(
        """
        import torch, torch_xla
        from tests import fault_plugin

        def positions():
            p = torch.arange(6, device="xla") + 2
            return bool((p > 1).all()), p

        x = torch.ones(8, device="xla")
        for _ in range(2):
            assert positions()[0]
            x += positions()[1].sum()
            torch_xla.sync(wait=True)
            x += 1
            torch_xla.sync(wait=True)
        fault_plugin.hold(fault_plugin.END)
        x += 1
        torch_xla.sync()
        answer, p = positions()
        print(answer, p.tolist(), fault_plugin.num_held())
        fault_plugin.release()
        print(x.tolist()[0])
        """,
        env={"PJRT_DEVICE": "CPU", "PJRT_LIBRARY_PATH": str(fault_plugin)},
    )
    assert done.stdout.split("\n")[:2] == ["True [2, 3, 4, 5, 6, 7] 1", "58.0"]


def test_results_are_tensors_of_their_own():
    def once() -> tuple[torch.Tensor, torch.Tensor]:
        p = positions(4, "xla")
        assert p.sum().item() == 39
        return p, positions(4, "cpu")

    kept = [once() for _ in range(5)]
    for i, (p, expected) in enumerate(kept):
        p += i
        expected += i
        p[1:3] *= 2
        expected[1:3] *= 2
    torch_xla.sync()
    for p, expected in kept:
        assert torch.equal(p.cpu(), expected)
    assert once()[0].tolist() == [4, 5, 6, 7, 8, 9]


def test_every_way_out_of_one_that_is_remembered():
    def one() -> torch.Tensor:
        p = positions(7, "xla")
        assert p.max().item() == 12
        return p

    for _ in range(3):
        one()
    expected = list(range(7, 13))
    assert dlpack.from_dlpack(dlpack.to_dlpack(one())).tolist() == expected
    assert copy.deepcopy(one()).tolist() == expected
    assert one().view(2, 3)[1].tolist() == expected[3:]
    assert (one() + 1).tolist() == [x + 1 for x in expected]
    assert one().numpy(force=True).tolist() == expected
    assert torch.ones(20, device="xla")[one()].sum().item() == 6
    assert one().clone().tolist() == expected


def test_written_and_read_in_turns():
    for device in ("cpu", "xla"):
        seen = []
        for _ in range(4):
            p = torch.arange(4, device=device)
            view = p[1:]
            p += 1
            seen.append(view.tolist())
            view *= 3
            seen += [p.tolist(), (p % 2 == 0).tolist(), view.sum().item()]
            p.zero_()
            seen.append(bool((view == 0).all()))
        if device == "cpu":
            expected = seen
    assert seen == expected


def test_loops_that_count_on_the_device_keep_their_program():
    before = met.metric_data("CompileTime")[0] if met.metric_data("CompileTime") else 0
    count = torch.zeros((), dtype=torch.long, device="xla")
    while (count < 12).item():
        count = count + 1
    assert count.item() == 12
    assert met.metric_data("CompileTime")[0] - before <= 4


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randint(100, (50,), device="xla"),
        lambda: torch.randperm(50, device="xla"),
    ],
)
def test_what_is_drawn_differs(make):
    drawn = [tuple(make().tolist()) for _ in range(6)]
    assert len(set(drawn)) == 6


def test_large_values_and_floats_run_each_time():
    for make in (
        lambda: torch.arange(100_000, device="xla") + 1,
        lambda: torch.full((4,), 0.5, device="xla") + 1,
    ):
        for _ in range(4):
            before = runs()
            make().cpu()
            assert runs() == before + 1


def test_dropped_programs_forget():
    for _ in range(3):
        assert positions(9, "xla").tolist() == list(range(9, 15))
    torch_xla._XLAC._xla_clear_cached_programs()
    before = runs()
    assert positions(9, "xla").tolist() == list(range(9, 15))
    assert runs() == before + 1


def test_threads():
    wrong = []

    def work(start: int) -> None:
        for i in range(60):
            p = positions(start + i % 3, "xla")
            if is_packed(p) or p.tolist() != list(range(start + i % 3, start + i % 3 + 6)):
                wrong.append((start, i))

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
