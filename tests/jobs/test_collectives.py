"""Exchanges of `xm` and `core.functions` among processes: each knows what all have, and expects
what PyTorch makes of it on the CPU. Processes take seconds to start: each test is many cases.
"""

from __future__ import annotations

HEAD = """
import os
import torch, torch_xla
import torch.nn as nn
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla import _XLAC

rank, count = xr.global_ordinal(), xr.world_size()

def data(of, *shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(100 * seed + of)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, 7, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

def all_of(*shape, ranks=None, **kwargs):
    return [data(of, *shape, **kwargs) for of in (range(count) if ranks is None else ranks)]

def same(found, expected, exact=True):
    assert found.dtype == expected.dtype and found.shape == expected.shape, (found, expected)
    tolerance = {"rtol": 0, "atol": 0} if exact else {}
    torch.testing.assert_close(found.cpu(), expected, **tolerance)

def raises(kind, text, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"expected {kind.__name__}: {text}")
"""

ALL = """
# all_reduce: kinds, dtypes, scales, one and lists
folds = {"sum": torch.add, "mul": torch.mul, "min": torch.minimum, "max": torch.maximum}
bits = {"and": torch.bitwise_and, "or": torch.bitwise_or}
def fold(kind, values):
    total = values[0]
    for value in values[1:]:
        total = {**folds, **bits}[kind](total, value)
    return total
floats = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
whole = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
cases = [(k, d) for k in folds for d in floats + whole]
cases += [(k, d) for k in bits for d in whole + [torch.bool]]
cases += [("min", torch.bool), ("max", torch.bool), ("sum", torch.complex64)]
found = [xm.all_reduce(kind, data(rank, 3, 2, dtype=d).to("xla")) for kind, d in cases]
for (kind, dtype), value in zip(cases, found):
    if dtype is torch.bool and kind in folds:
        expected = fold({"min": "and", "max": "or"}[kind], all_of(3, 2, dtype=dtype))
    else:
        expected = fold(kind, all_of(3, 2, dtype=dtype))
    same(value, expected)
x = data(rank, 4).to("xla")
same(xm.all_reduce("sum", x, scale=0.25), sum(all_of(4)) * 0.25)
same(xm.all_reduce("sum", x, pin_layout=False), sum(all_of(4)))
same(x, data(rank, 4))
i = data(rank, 4, dtype=torch.int64).to("xla")
same(xm.all_reduce("sum", i, scale=0.5), (sum(all_of(4, dtype=torch.int64)) * 0.5).long())
# in place: a list, views, an integer among them, a leaf that wants a gradient
leaf = nn.Parameter(data(rank, 2, 2, seed=1).to("xla"))
base = data(rank, 3, 4, seed=2).to("xla")
given = (x, i, leaf, base[:, 1], x.new_empty(0))
assert xm.all_reduce(xm.REDUCE_SUM, given, scale=0.5) is given
same(x, sum(all_of(4)) * 0.5)
same(i, (sum(all_of(4, dtype=torch.int64)) * 0.5).long())
same(leaf.detach(), sum(all_of(2, 2, seed=1)) * 0.5)
expected = data(rank, 3, 4, seed=2)
expected[:, 1] = sum(all_of(3, 4, seed=2))[:, 1] * 0.5
same(base, expected)
assert xm.all_reduce("sum", []) == []

# all_gather
x = data(rank, 2, 3).to("xla")
for dim in (0, 1, -1):
    same(xm.all_gather(x, dim), torch.cat(all_of(2, 3), dim))
out = torch.zeros(2 * count, 3, device="xla")
assert xm.all_gather(x, output=out) is out
same(out, torch.cat(all_of(2, 3)))
pair = xm.all_gather([x, x[0]], dim=-1)
same(pair[0], torch.cat(all_of(2, 3), 1))
same(pair[1], torch.cat([d[0] for d in all_of(2, 3)]))
b = data(rank, 5, dtype=torch.bool).to("xla")
same(xm.all_gather(b), torch.cat(all_of(5, dtype=torch.bool)))
many = xm.all_gather_bucketized([x, b, x * 2], bucket_cap_mb=1)
same(many[2], torch.cat(all_of(2, 3)) * 2)
raises(ValueError, "an output of shape", xm.all_gather, x, output=torch.zeros(3, device="xla"))

# reduce_scatter
x = data(rank, 2 * count, 3).to("xla")
total = sum(all_of(2 * count, 3))
same(xm.reduce_scatter("sum", x, 0.5, 0, count), total.chunk(count)[rank] * 0.5)
y = data(rank, 3, 2 * count).to("xla")
largest = fold("max", all_of(3, 2 * count))
same(xm.reduce_scatter("max", y, 1.0, -1, count), largest.chunk(count, 1)[rank])
outs = [torch.zeros(2, 3, device="xla"), torch.zeros(2, 3, device="xla")]
assert xm.reduce_scatter("sum", [x, x * 2], 1.0, 0, count, output=outs) is outs
same(outs[1], total.chunk(count)[rank] * 2)
parts = xm.reduce_scatter_bucketized("sum", [x] * 3, 1.0, 0, count)
same(parts[2], total.chunk(count)[rank])
raises(ValueError, f"to divide into {count} parts", xm.reduce_scatter, "sum", y, 1.0, 0, count)
raises(ValueError, f"a group, {count}, got 1", xm.reduce_scatter, "sum", x, 1.0, 0, 1)

# all_to_all, permutations, broadcasts
same(
    xm.all_to_all(x, 0, 1, count),
    torch.cat([d.chunk(count)[rank] for d in all_of(2 * count, 3)], 1),
)
same(
    xm.all_to_all(y, -1, 0, count),
    torch.cat([d.chunk(count, 1)[rank] for d in all_of(3, 2 * count)]),
)
turned = xm.collective_permute(x, [(of, (of + 1) % count) for of in range(count)])
same(turned, data((rank - 1) % count, 2 * count, 3))
one = xm.collective_permute(x, [[0, 1]])
same(one, data(0, 2 * count, 3) if rank == 1 else torch.zeros(2 * count, 3))
raises(ValueError, "to get at most one", xm.collective_permute, x, [[0, 1], [1, 1]])
raises(ValueError, "to send at most one", xm.collective_permute, x, [[0, 1], [0, 0]])
xm.collective_broadcast([x, i, b], root_ordinal=1)
same(x, data(1, 2 * count, 3))
same(b, data(1, 5, dtype=torch.bool))
raises(ValueError, "a root_ordinal of", xm.collective_broadcast, [x], count)
raises(ValueError, "expected groups of the replicas", xm.all_reduce, "sum", x, groups=[[0, count]])
raises(ValueError, "of one size", xm.all_reduce, "sum", x, groups=[[0, 1], []])

# by the names of the extension, with tokens
from torch_xla import _XLAC
token, context = xm._get_all_reduce_token()
assert context.device == "xla:0" and _XLAC._get_all_reduce_token("xla:0") is token
x, y = data(rank, 2 * count, 3).to("xla"), data(rank, 4, 3, seed=7).to("xla")
every, others = all_of(2 * count, 3), all_of(4, 3, seed=7)
same(_XLAC._xla_all_reduce("sum", x, 0.5, [], True), sum(every) * 0.5)
copies = [x.clone(), y.clone()]
assert _XLAC._xla_all_reduce_inplace("max", copies, 1.0, [[0, 1]], True) is None
same(copies[0], fold("max", every)), same(copies[1], fold("max", others))
same(_XLAC._xla_all_gather(y, 1, count, [], True, None, None), torch.cat(others, 1))
first, second, last = _XLAC._xla_all_gather_coalesced([x, y], token, 0, count, [], True)
same(first, torch.cat(every)), same(second, torch.cat(others))
assert last is token
into = torch.empty(4 * count, 3, device="xla")
assert _XLAC._xla_all_gather_out(into, y, token, 0, count, [], True) is token
same(into, torch.cat(others))
part = slice(2 * rank, 2 * rank + 2)
one, again = _XLAC._xla_reduce_scatter("sum", x, token, 0.5, 0, count, [], True, None, None)
assert again is token
same(one, (sum(every) * 0.5)[part])
both = _XLAC._xla_reduce_scatter_coalesced("sum", [x, x * 2], token, 1.0, 0, count, [], True)
same(both[0], sum(every)[part]), same(both[1], 2 * sum(every)[part])
into = [torch.empty(2, 3, device="xla")]
_XLAC._xla_reduce_scatter_coalesced_out("sum", into, [x], token, 1.0, 0, count, [], True)
same(into[0], sum(every)[part])
swapped, _ = _XLAC._xla_all_to_all(x, token, 0, 0, count, [], True)
same(swapped, torch.cat([e.chunk(count)[rank] for e in every]))
moved, _ = _XLAC._xla_collective_permute(y, token, [[0, 1], [1, 0]])
same(moved, others[1 - rank])
if rank == 0:
    sent, _ = _XLAC._xla_send(y, token, 77)
    assert sent is y
else:
    same(_XLAC._xla_recv(torch.empty_like(y), token, 77)[0], others[0])
assert _XLAC._xla_set_replication_devices(["xla:0"]) is None
# channels that know their ends, in any order
for way in (1, -1):
    of = {30: (x, every[0]), 31: (y, others[0])}
    for channel in list(of)[:: 1 if rank == 0 else way]:
        tensor, sent = of[channel]
        if rank == 0:
            xm.send(tensor, channel)
        else:
            same(xm.recv(torch.empty_like(tensor), channel), sent)
raises(ValueError, "a channel from 0 to 2147483646, got channel -1", xm.send, x, -1)

# models
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to("xla")
xm.broadcast_master_param(model)
torch.manual_seed(0)
for p, q in zip(model.parameters(), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).parameters()):
    same(p.detach(), q.detach())
"""


def test_exchanges_of_two(jobs):
    jobs.by_hand(HEAD + ALL, timeout=300)


GROUPS = """
pairs = [[2, 0], [1, 3]]
mine = next(g for g in pairs if rank in g)
place = mine.index(rank)
x = data(rank, 4, 3).to("xla")
same(xm.all_reduce("sum", x, groups=pairs), sum(all_of(4, 3, ranks=mine)))
same(xm.all_gather(x, 1, groups=pairs), torch.cat(all_of(4, 3, ranks=mine), 1))
same(xm.reduce_scatter("sum", x, 1.0, 0, 2, groups=pairs),
     sum(all_of(4, 3, ranks=mine)).chunk(2)[place])
same(xm.all_to_all(x, 0, 0, 2, groups=pairs),
     torch.cat([d.chunk(2)[place] for d in all_of(4, 3, ranks=mine)]))
y = x.clone()
xm.collective_broadcast([y], root_ordinal=0, groups=pairs)  # the second of each group
same(y, data(mine[1], 4, 3))
same(xm.all_reduce("sum", x, groups=[[r] for r in range(4)], scale=2.0), data(rank, 4, 3) * 2)
same(xm.all_reduce("sum", x), sum(all_of(4, 3)), exact=False)
# channels: 0 sends to 3, which sends back what it got, doubled; step by step
if rank in (0, 3):
    for _ in range(2):
        if rank == 0:
            assert xm.send(x, 5) is x
            same(xm.recv(torch.zeros(4, 3, device="xla"), 6), data(0, 4, 3) * 2)
        else:
            got = xm.recv(x, 5)
            xm.send(got * 2, 6)
            same(got, data(0, 4, 3))
# groups of some: the others do not call it
if rank in (1, 2):
    same(xm.all_gather(x, groups=[[2, 1]]), torch.cat([data(2, 4, 3), data(1, 4, 3)]))
else:
    raises(ValueError, f"with this process's rank, {rank}", xm.all_gather, x, groups=[[2, 1]])
same(xm.collective_permute(x, [[3, 1], [1, 2]]),
     {1: data(3, 4, 3), 2: data(1, 4, 3)}.get(rank, torch.zeros(4, 3)))
p = nn.Parameter(torch.zeros(3, device="xla"))
optimizer = torch.optim.SGD([p], lr=1.0)
p.grad = data(rank, 3).to("xla")
assert xm.optimizer_step(optimizer, groups=pairs, barrier=True) is None
same(p.detach(), -sum(all_of(3, ranks=mine)) / 2)
"""


def test_groups_of_four(jobs):
    jobs.by_hand(HEAD + GROUPS, ranks=4, timeout=300)


GRADIENTS = """
# core.functions
x = data(rank, 3).double().to("xla").requires_grad_()
own = data(rank, 3, seed=1).double()
for kind in ("sum", "mul", "min", "max"):
    y = xf.all_reduce(kind, x, scale=0.5)
    everyone = [d.double().requires_grad_() for d in all_of(3)]
    total = {"sum": torch.sum, "mul": torch.prod, "min": torch.amin, "max": torch.amax}[kind](
        torch.stack(everyone), 0) * 0.5
    torch.testing.assert_close(y.detach().cpu(), total.detach())
    (gradient,) = torch.autograd.grad((y * own.to("xla")).sum(), x)
    (expected,) = torch.autograd.grad((total * own).sum(), everyone[rank])
    torch.testing.assert_close(gradient.cpu(), expected)
raises(TypeError, "integers or booleans for 'or'", xf.all_reduce, "or", x)
z = data(rank, 2, 3).to("xla").requires_grad_()
g = xf.all_gather(z, dim=-1)
same(g.detach(), torch.cat(all_of(2, 3), 1))
g.square().sum().backward()
same(z.grad, 2 * data(rank, 2, 3))
(xf.AllReduceSumLayer.apply(z.detach().requires_grad_()) * 1).sum().backward()
a = data(rank, 2, 3).to("xla").requires_grad_()
(xf.AllReduceSumLayer.apply(a) * (rank + 1)).sum().backward()
same(a.grad, torch.full((2, 3), float(sum(range(1, count + 1)))))
weight, wide = data(0, 5, 4 * count), data(rank, 4 * count, 6, seed=3)
for split in (1, 2):
    product = xf.distributed_mm(weight[:, 4 * rank : 4 * rank + 4].to("xla"), wide.to("xla"), split)
    torch.testing.assert_close(product.cpu(), weight @ wide)
raises(ValueError, f"an input of {4 * count} rows", xf.distributed_mm,
       weight[:, :4].to("xla"), wide[1:].to("xla"))

# SyncBatchNorm of unequal batches: as the batch norm of all of them together
for shape in ((3,), (3, 4), (3, 2, 2)):
    sizes = [4 + of for of in range(count)]
    batches = [data(of, n, *shape, seed=5).double() for of, n in enumerate(sizes)]
    plain = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d}[len(shape)](3).double()
    nn.init.normal_(plain.weight, generator=torch.Generator().manual_seed(3))
    norm = xf.SyncBatchNorm(3).double()
    norm.load_state_dict(plain.state_dict())
    norm.to("xla")
    whole = torch.cat(batches).requires_grad_()
    mine = batches[rank].to("xla").requires_grad_()
    for _ in range(2):
        expected, found = plain(whole), norm(mine)
    parts = expected.split(sizes)
    torch.testing.assert_close(found.detach().cpu(), parts[rank].detach())
    (expected ** 3).sum().backward()
    (found ** 3).sum().backward()
    torch.testing.assert_close(mine.grad.cpu(), whole.grad.split(sizes)[rank])
    xm.all_reduce("sum", [norm.weight.grad, norm.bias.grad])
    torch.testing.assert_close(norm.weight.grad.cpu(), plain.weight.grad)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(norm.state_dict()[name].cpu(), value)
    norm.eval(), plain.eval()
    torch.testing.assert_close(norm(mine).detach().cpu(), plain(batches[rank]).detach())

# training: as one process with averaged gradients, by reduce_gradients, in buckets, by hand
def step(model, batches, scale=1.0):
    for batch in batches:
        (model(batch).square().mean() * scale).backward()

torch.manual_seed(0)
one = nn.Sequential(nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 3)).double()
unused = nn.Parameter(torch.ones(2))
state = {k: v.clone() for k, v in one.state_dict().items()}
for way in ("", "1", "by hand"):
    one.load_state_dict(state)
    many = nn.Sequential(nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 3)).double()
    many.load_state_dict(state)
    many.to("xla")
    optimizers = [
        torch.optim.Adam([*m.parameters(), u], lr=0.01)
        for m, u in ((one, unused), (many, unused.detach().to("xla").requires_grad_()))
    ]
    os.environ["ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB"] = way if way != "by hand" else ""
    for i in range(3):
        batches = [data(of, 4, 300, seed=10 + i).double() for of in range(count)]
        optimizers[0].zero_grad(), optimizers[1].zero_grad()
        step(one, batches, 1 / count)
        optimizers[0].step()
        step(many, [batches[rank].to("xla")])
        if way == "by hand":
            gradients = xm._fetch_gradients(optimizers[1])
            xm.all_reduce("sum", gradients, scale=1 / count)
            optimizers[1].step()
        else:
            xm.optimizer_step(optimizers[1])
        loss = xm.all_reduce("sum", many(batches[rank].to("xla")).sum().detach())
        torch_xla.sync()
        assert abs(loss.item() - sum(one(b).sum() for b in batches).item()) < 1e-6
    for p, q in zip(many.parameters(), one.parameters()):
        torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-9, atol=1e-12)
"""


def test_gradients_of_two(jobs):
    jobs.by_hand(HEAD + GRADIENTS, timeout=300)


ONE = """
x = torch.ones(2, 2, device="xla")
xm.all_reduce("sum", [x]), xm.collective_broadcast([x])
raises(ValueError, "of several replicas, got one", xm.send, x, 0)
assert xm.all_reduce("sum", x) is not x
text = _XLAC._get_stablehlo([xm.all_reduce("sum", x), xm.all_gather(x), xm.all_to_all(x, 0, 0, 1)])
assert "all_reduce" not in text and "custom_call" not in text, text
"""


def test_one_process_exchanges_nothing(jobs):
    jobs.by_hand(HEAD + ONE, ranks=1)
