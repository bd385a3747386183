"""Donation by hand: the next run that reads a tensor may have its memory, though it lives."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla import _XLAC
from torch_xla.experimental.stablehlo_custom_call import stablehlo_custom_call
from torch_xla.utils.buffer_donor_context import alias_with_buffer_donor_config

offer, is_offered = _XLAC._set_buffer_donation, _XLAC._get_buffer_donation
is_gone = _XLAC._is_placecholder
donor = torch.ops.xla.dynamo_set_buffer_donor_
GONE = "given away to the run that was launched at .*test_offers"


@pytest.fixture(autouse=True, params=[False, True], ids=["", "poisoned"])
def poisoned(request, check_donation):
    """Memory that is taken over is overwritten, too: who goes on reading it sees that."""
    _XLAC._xla_set_check_donation(True, request.param)
    yield request.param
    _XLAC._xla_set_check_donation(True)


def data(*values: float) -> torch.Tensor:
    x = torch.tensor(values or (1.0, 2.0, 3.0)).to("xla")
    torch_xla.sync(wait=True)
    return x


def pointer(x: torch.Tensor) -> int:
    return torch.from_dlpack(x).data_ptr()


def check_gone(*tensors: torch.Tensor) -> None:
    for x in tensors:
        with pytest.raises(RuntimeError, match=GONE):
            x.tolist()


def test_data_may_be_offered_and_calls_not():
    met.clear_all()
    x = data()
    assert offer(x, True) is True and is_offered(x) and is_offered(x.detach())
    y = x + 1
    assert offer(y, True) is False and not is_offered(y)
    assert not offer(x[1:], True)
    assert met.counter_value("XlaSetBufferDonation") == 1
    assert offer(x, False) is True and not is_offered(x)
    for function in (is_offered, lambda t: offer(t, True)):
        with pytest.raises(RuntimeError, match="expected an xla tensor, got one on cpu"):
            function(torch.ones(2))
    torch_xla.sync()
    assert x.tolist() == [1, 2, 3] and y.tolist() == [2, 3, 4]


def test_a_sync_takes_it():
    """In the first run of a program, which keeps its inputs, as in the next one, which has them."""
    _XLAC._xla_clear_cached_programs()
    for run in range(3):
        x = data(1.0, 2.0, run)
        alias, view = x.detach(), x[1:]
        met.clear_all()
        donor(x, True)
        y = x * 2.5
        torch_xla.sync(wait=True)
        assert is_gone(x) and is_gone(alias) and is_offered(x)
        assert "  Data Handle: Deleted\n" in _XLAC._get_xla_tensor_debug_info(x)
        check_gone(x, alias, view)
        assert y.tolist() == [2.5, 5, run * 2.5]
        if run == 0:
            assert met.metric_data("InputOutputAliasCount")[1] == 1


def test_the_memory_is_the_results(poisoned):
    for run in range(3):
        x = data(*[float(i) for i in range(64)])
        where = pointer(x)
        offer(x, True)
        y = x.exp2()
        torch_xla.sync(wait=True)
        # The first run of a program takes nothing over, and one that poisons takes copies.
        if run > 0 and not poisoned:
            assert pointer(y) == where
        assert y[:4].tolist() == [1, 2, 4, 8]


def test_what_a_run_does_not_need_stays():
    x = data()
    offer(x, True)
    torch_xla.sync(wait=True)
    y = data(5.0) + 1
    torch_xla.sync(wait=True)
    z = x.sum()  # no result of its type
    torch_xla.sync(wait=True)
    assert is_offered(x) and x.tolist() == [1, 2, 3]
    assert y.tolist() == [6] and z.item() == 6


def test_a_value_that_is_written_is_not_offered():
    x = data()
    offer(x, True)
    x += 1
    assert not is_offered(x)
    for _ in range(2):
        torch_xla.sync(wait=True)
        assert not is_offered(x) and not is_gone(x) and x.tolist() == [2, 3, 4]
    assert not is_offered(x.clone())


def test_reads_take_it_where_that_is_said():
    for with_donors, sync_data, takes in [
        (False, False, False),
        (False, True, True),
        (True, False, True),
        (True, True, True),
    ]:
        x = data()
        offer(x, True)
        y = x * 4
        with alias_with_buffer_donor_config(with_donors):
            _XLAC._xla_sync_multi([y], [], True, sync_data)
        assert is_gone(x) == takes
        assert y.tolist() == [4, 8, 12]
        if not takes:
            assert x.tolist() == [1, 2, 3]
    x = data()
    offer(x, True)
    assert (x * 4).tolist() == [4, 8, 12] and x.tolist() == [1, 2, 3]


def test_what_waits_and_is_not_run_keeps_it():
    x = data()
    offer(x, True)
    y, z = x * 4, (x + 5).sum()
    _XLAC._xla_sync_multi([y], [], True, True)
    assert not is_gone(x) and z.item() == 21 and y.tolist() == [4, 8, 12]


def test_memory_that_others_have_stays():
    x = data()
    lent = torch.from_dlpack(x)
    offer(x, True)
    y = x * 4
    torch_xla.sync(wait=True)
    assert not is_gone(x) and x.tolist() == lent.tolist() == [1, 2, 3] and y.tolist() == [4, 8, 12]
    borrowed = _XLAC._xla_borrow(torch.tensor([1.0, 2.0]))
    offer(borrowed, True)
    y = borrowed + 1
    torch_xla.sync(wait=True)
    assert borrowed.tolist() == [1, 2] and y.tolist() == [2, 3]


def test_nothing_is_taken_without_donation(monkeypatch):
    monkeypatch.setenv("XLA_NO_DONATION", "1")
    x = data()
    offer(x, True)
    y = x * 4
    torch_xla.sync(wait=True)
    assert x.tolist() == [1, 2, 3] and y.tolist() == [4, 8, 12]


def given_away() -> torch.Tensor:
    x = data()
    offer(x, True)
    y = x * 4
    torch_xla.sync(wait=True)
    assert is_gone(x) and y[0].item() == 4
    return x


def test_a_sync_of_what_needs_it_raises_once():
    x = given_away()
    other = data(7.0)
    needs, fine = x + 1, other * 2
    with pytest.raises(RuntimeError, match=GONE):
        torch_xla.sync()
    torch_xla.sync()
    assert fine.tolist() == [14]
    check_gone(needs, x)
    with pytest.raises(RuntimeError, match=GONE):
        (x * other).tolist()
    with pytest.raises(RuntimeError, match=GONE):
        str(x)


def test_it_may_be_written_anew():
    x = given_away()
    x.copy_(torch.tensor([7.0, 8.0, 9.0]))
    assert x.tolist() == [7, 8, 9] and not is_gone(x) and not is_offered(x)


def test_backward_passes_that_need_it():
    x = data().requires_grad_()
    y = x.exp()
    torch_xla.sync(wait=True)
    offer(y.detach(), True)
    z = y.detach() * 2
    torch_xla.sync(wait=True)
    y.sum().backward()
    with pytest.raises(RuntimeError, match=GONE):
        torch_xla.sync()
    check_gone(x.grad)
    assert z[0].item() > 5


def test_a_run_that_is_refused_takes_nothing():
    x = data()
    offer(x, True)
    y = torch.rand(1 << 42, device="xla").sort().values[:3] + x * 2
    with pytest.raises(torch.OutOfMemoryError):
        torch_xla.sync(wait=True)
    assert not is_gone(x) and x.tolist() == [1, 2, 3]
    torch_xla.sync()
    assert is_offered(x) and not is_gone(x)
    del y


@contextlib.contextmanager
def paused():
    _XLAC._xla_set_background("pause")
    try:
        yield
    finally:
        _XLAC._xla_set_background("")


def test_a_run_that_waits_has_it():
    _XLAC._xla_clear_cached_programs()
    x = data()
    offer(x, True)
    with paused():
        y = x * 3.25
        torch_xla.sync()
        assert _XLAC._xla_num_deferred_runs() == 1 and is_gone(x)
        needs = x + 1
        with pytest.raises(RuntimeError, match=GONE):
            torch_xla.sync()
    assert y.tolist() == [3.25, 6.5, 9.75]
    check_gone(x, needs)


def test_a_run_that_waits_and_is_given_up_gives_it_back():
    x = data()
    offer(x, True)
    y = x * 5.5
    bad = stablehlo_custom_call((y,), "no_such_target", [y.shape], [y.dtype], api_version=2)
    with paused():
        torch_xla.sync()
        assert _XLAC._xla_num_deferred_runs() == 1 and is_gone(x)
    with pytest.raises(RuntimeError, match="no_such_target"):
        torch_xla.sync(wait=True)
    del bad
    assert not is_gone(x) and is_offered(x)
    assert y.tolist() == [5.5, 11, 16.5] and x.tolist() == [1, 2, 3]
    z = x * 2
    torch_xla.sync(wait=True)
    assert is_gone(x) and z.tolist() == [2, 4, 6]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_that_fails(run_python, fault_plugin, is_first):
    """It gives back what is still there: the first run of a program takes nothing over."""
    run_python(
        f"""
        import pytest, torch, torch_xla
        from tests import fault_plugin
        from torch_xla import _XLAC

        def offered():
            x = torch.tensor([1.0, 2.0, 3.0]).to("xla")
            torch_xla.sync(wait=True)
            _XLAC._set_buffer_donation(x, True)
            return x

        if not {is_first}:
            y = offered() * 3
            torch_xla.sync(wait=True)
        x = offered()
        y = x * 3
        fault_plugin.arm(fault_plugin.RUN, 1, late=True)
        with pytest.raises(RuntimeError, match="launched at"):
            torch_xla.sync(wait=True)
        if {is_first}:
            assert not _XLAC._is_placecholder(x) and x.tolist() == [1, 2, 3]
        else:
            assert _XLAC._is_placecholder(x)
            with pytest.raises(RuntimeError, match="given away"):
                x.tolist()
        """,
        env={"PJRT_DEVICE": "CPU", "PJRT_LIBRARY_PATH": str(fault_plugin)},
    )


def test_in_graphs_of_torch_compile():
    def f(x, y):
        donor(x, True)
        return x * 2 + y

    g = torch.compile(f, backend="openxla")
    y = data(1.0, 1.0, 1.0)
    met.clear_all()
    for i in range(3):
        x = data(0.0, 1.0, i)
        assert g(x, y).tolist() == [1, 3, 2 * i + 1]
        assert is_gone(x) and not is_gone(y)
        check_gone(x)
    assert met.counter_value("XlaSetBufferDonation") == 3
    torch._dynamo.reset()


def test_arguments_of_graphs_that_are_offered_outside():
    g = torch.compile(lambda x: x * 2 + 1, backend="openxla")
    for i in range(4):
        x = data(0.0, i)
        if i % 2:
            offer(x, True)
        assert g(x).tolist() == [1, 2 * i + 1]
        assert is_gone(x) == bool(i % 2)
        if not i % 2:
            assert x.tolist() == [0, i]
    torch._dynamo.reset()


def test_the_operator_elsewhere():
    """Its result is a copy, as its schema says, which autograd knows."""
    x = torch.ones(2)
    assert torch.equal(donor(x, True), x)
    x = data(1.0, 2.0).requires_grad_()
    y = donor(x, True)
    assert y is not x and y.data_ptr() != x.data_ptr()
    (y * y).sum().backward()
    assert x.grad.tolist() == [2, 4]
    with FakeTensorMode():
        assert donor(torch.empty(3, device="xla"), True).shape == (3,)


def test_it_is_a_part_of_the_hash():
    x = data()
    y = x * 5

    def hashes():
        plain = _XLAC._get_graph_hash([y])
        with alias_with_buffer_donor_config(True):
            return plain, _XLAC._get_graph_hash([y])

    before = hashes()
    offer(x, True)
    offered = hashes()
    offer(x, False)
    assert before[0] == before[1] == offered[0] != offered[1] and hashes() == before


def test_calls_that_give_away_are_not_replayed(monkeypatch):
    monkeypatch.setenv("XLA_REPLAY", "1")

    def step(x):
        donor(x, True)
        return x * 2

    g = torch_xla.compile(step)
    for i in range(4):
        x = data(1.0, i)
        y = g(x)
        torch_xla.sync(wait=True)
        assert is_gone(x) and y.tolist() == [2, 2 * i]
