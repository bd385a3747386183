"""torch_xla.core.xla_model and functions, of one replica: collectives, random state, copies."""

from __future__ import annotations

import collections
import os

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla import _XLAC


def test_reductions_have_gradients():
    x = torch.tensor([[1.0, 2.0]], device="xla", requires_grad=True)
    y = xf.all_reduce(xm.REDUCE_SUM, x * 3, scale=0.5)
    z = xf.all_gather(y, dim=1)
    w = xf.AllReduceSumLayer.apply(z)
    assert w.tolist() == [[1.5, 3.0]]
    (w * torch.tensor([1.0, 10.0], device="xla")).sum().backward()
    assert x.grad.tolist() == [[1.5, 15.0]]
    assert torch.autograd.gradcheck(
        lambda t: xf.all_gather(xf.all_reduce("max", t), -1) ** 2,
        torch.randn(2, 3, dtype=torch.float64, device="xla").requires_grad_(),
    )
    with pytest.raises(ValueError, match="expected groups"):
        xf.all_reduce(xm.REDUCE_SUM, x, groups=[[0, 1]])


@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 5), (6, 4, 3, 2)])
def test_sync_batch_norm_is_a_batch_norm_here(shape):
    norm = xf.SyncBatchNorm(4, eps=1e-3, momentum=0.2)
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
    expected = kind(4, eps=1e-3, momentum=0.2)
    norm.load_state_dict(expected.state_dict())
    norm.to("xla")
    for _ in range(2):
        a = torch.randn(shape, requires_grad=True)
        x = a.detach().to("xla").requires_grad_()
        torch.testing.assert_close(norm(x).cpu(), expected(a))
        norm(x).square().sum().backward()
        expected(a).square().sum().backward()
        torch.testing.assert_close(x.grad.cpu(), a.grad)
    norm.eval(), expected.eval()
    torch.testing.assert_close(norm(x).cpu(), expected(a))
    assert "eps=0.001, momentum=0.2" in repr(norm)
    with pytest.raises(ValueError, match="at least 2 dimensions, got 1"):
        norm(torch.ones(4, device="xla"))


def test_exchanges_of_one_replica():
    x = torch.arange(4.0, device="xla").reshape(2, 2)
    for y in (
        xm.all_to_all(x, 0, 1, 1, groups=[[0]]),
        xm.collective_permute(x, [[0, 0]]),
        xm.all_gather(x, channel_id=1, use_global_device_ids=True),
        xm._all_gather_using_all_reduce(x, 1),
        xm.reduce_scatter(xm.REDUCE_SUM, x, 1.0, 0, 1, channel_id=3),
    ):
        y += 1  # a tensor of its own
        assert torch.equal(y.cpu(), torch.arange(1.0, 5).reshape(2, 2))
    assert x.sum().item() == 6
    assert xm.collective_permute(x, []).sum().item() == 0
    out = torch.zeros(2, 2, device="xla")
    assert xm.reduce_scatter(xm.REDUCE_MAX, x, 2.0, -1, 1, output=out) is out
    assert out.tolist() == [[0, 2], [4, 6]]


def test_buckets_hold_no_more_than_their_size():
    tensors = [torch.full((n << 18,), float(n), device="xla") for n in (1, 2, 5, 1, 1)]  # in MiB
    lists = []

    def double(inputs, outputs):
        lists.append(len(inputs))
        return [x * 2 for x in inputs]

    results = xm.CoalescingBuckets(double, tensors, bucket_cap_mb=3)()
    assert lists == [2, 1, 2]
    assert [r[0].item() for r in results] == [2, 4, 10, 2, 2]
    small = [torch.ones(2, device="xla") * i for i in range(3)]
    outs = [torch.zeros(2, device="xla") for _ in small]
    gathered = xm.all_gather_bucketized(small, output=outs, bucket_cap_mb=1)
    assert [a is b for a, b in zip(gathered, outs, strict=True)] == [True] * 3
    assert [o[0].item() for o in outs] == [0, 1, 2]
    scattered = xm.reduce_scatter_bucketized("sum", small, 0.5, 0, 1)
    assert [s[0].item() for s in scattered] == [0, 0.5, 1]
    for cap in (0, 1):
        xm.all_reduce_bucketized_gradients(small, 2.0, None, True, bucket_cap_mb=cap)
    assert [s[0].item() for s in small] == [0, 4, 8]
    with pytest.raises(ValueError, match="an output for each of 5 inputs, got 1"):
        xm.CoalescingBuckets(double, tensors, outs[:1])


def test_a_barrier_keeps_values_and_gradients():
    w = torch.arange(3.0, device="xla", requires_grad=True)
    i = torch.arange(4, device="xla").view(2, 2).t()
    torch_xla.sync()
    y = w * 2
    z = y.exp()  # keeps its result for backward
    versions = (w._version, z._version)
    xm.optimization_barrier_([w, z, i])
    assert (w._version, z._version) == versions and w.requires_grad and z.grad_fn is not None
    total = z.sum() + i.sum()
    text = _XLAC._get_stablehlo([total])
    barrier, after = text.index("optimization_barrier"), text.index("stablehlo.reduce")
    assert barrier < after and text.count("optimization_barrier") == 1
    total.backward()
    expected = torch.arange(3.0, requires_grad=True)
    (expected * 2).exp().sum().backward()
    torch.testing.assert_close(w.grad.cpu(), expected.grad)
    assert i.tolist() == [[0, 2], [1, 3]] and i.stride() == (1, 2)
    _XLAC._xla_optimization_barrier_([i[0]])  # of a view: the base has it
    assert i.tolist() == [[0, 2], [1, 3]] and total.item() == pytest.approx(
        (expected * 2).exp().sum().item() + 6
    )
    xm.optimization_barrier_([])
    with pytest.raises(RuntimeError, match="device|xla"):
        xm.optimization_barrier_([w, torch.ones(2)])


def test_random_state_is_put_back():
    xm.set_rng_state(5)
    before = xm.get_rng_state()
    with xm.fork_rng():
        first = torch.rand(3, device="xla").tolist()
    assert xm.get_rng_state() == before
    with pytest.raises(KeyError), xm.fork_rng("xla:0"):
        assert torch.rand(3, device="xla").tolist() == first
        raise KeyError
    assert xm.get_rng_state() == before
    with xm.fork_rng(enabled=False):
        torch.rand(3, device="xla")
    assert xm.get_rng_state() != before


def test_keys_and_elements_of_sets_are_converted():
    t = torch.ones(2)
    arena = xm.ToXlaTensorArena(
        lambda tensors: [x.to("xla") for x in tensors], lambda v: isinstance(v, torch.Tensor)
    )
    given = collections.OrderedDict([("a", 1), (t, {torch.zeros(1)}), ("l", [t, (t,)])])
    made = arena.transform(given)
    assert type(made) is collections.OrderedDict and [*made][::2] == ["a", "l"]
    key = [*made][1]
    (element,) = made[key]
    assert key.device.type == element.device.type == "xla"
    assert key.tolist() == [1, 1] and element.tolist() == [0]
    assert made["l"][0] is key and made["l"][1][0] is key  # one tensor, one copy
    assert [*given] == ["a", t, "l"] and t.device.type == "cpu"


def test_choosing_the_device_beforehand(monkeypatch):
    for chosen, expected in ((None, "CPU"), ("0", None)):
        monkeypatch.delenv("PJRT_DEVICE", raising=False)
        if chosen is not None:
            monkeypatch.setenv("PJRT_SELECT_DEFAULT_DEVICE", chosen)
        xr._maybe_select_default_device()
        assert os.environ.get("PJRT_DEVICE") == expected
    monkeypatch.setenv("PJRT_DEVICE", "other")
    xr._maybe_select_default_device()
    assert os.environ["PJRT_DEVICE"] == "other"


def test_view_sharing_is_found():
    x = torch.arange(4.0, device="xla")
    xm.check_view_sharing({"a": x, "b": [x, x.clone()], "c": x.cpu(), "d": 1})
    for y in (x[1:], x.view(2, 2), x.detach()):
        with pytest.raises(RuntimeError, match="share no memory.*Clone one of them"):
            xm.check_view_sharing([x, {"y": y}])
    cpu = torch.arange(4.0)
    with pytest.raises(RuntimeError, match="cpu"):
        xm.check_view_sharing((cpu, cpu[:2]))
