"""FSDP among processes: each form against one process with averaged gradients, in float64;
checkpoints of one number of processes in another; memory.
"""

from __future__ import annotations

import pytest

HEAD = """
import copy, functools, os, pickle
import torch, torch_xla
import torch.nn.functional as F
from torch import nn
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr
from torch_xla.distributed.fsdp import (
    XlaFullyShardedDataParallel as FSDP, checkpoint_module, load_sharded_model_checkpoints,
    load_sharded_optimizer_checkpoints, wrap)

rank, count = xr.global_ordinal(), xr.world_size()

class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up = nn.Linear(size, 3 * size)
        self.down = nn.Linear(3 * size, size, bias=False)
        self.frozen = nn.Parameter(torch.randn(size), requires_grad=False)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x)))) * (1 + 0.1 * self.frozen)

class Net(nn.Module):
    def __init__(self, size=6):
        super().__init__()
        self.embed = nn.Embedding(11, size)
        self.blocks = nn.ModuleList([Block(size) for _ in range(2)])
        self.attention = nn.MultiheadAttention(size, 2, batch_first=True)
        self.head = nn.Linear(size, 11, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x + self.attention(x, x, x)[0])

policy = functools.partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls={Block})
inside = lambda m, *args, **kwargs: FSDP(checkpoint_module(m), *args, **kwargs)
outside = lambda m, *args, **kwargs: checkpoint_module(FSDP(m, *args, **kwargs))

def batch(of, step):
    generator = torch.Generator().manual_seed(10 * step + of)
    return torch.randint(0, 11, (2, 5), generator=generator)

def loss_of(model, tokens):
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

torch.manual_seed(3)
net = Net().double()
"""

FORMS = """
def reference(accumulate, clip):
    model = copy.deepcopy(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(2):
        optimizer.zero_grad()
        for part in range(accumulate):
            for of in range(count):
                (loss_of(model, batch(of, step + 7 * part)) / count).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip) if clip else torch.zeros(())
        optimizer.step()
        losses.append(norm)
    return model.state_dict(), torch.stack(losses)

references = {args: reference(*args) for args in ((1, None), (1, 0.05), (2, None))}

def train(form, accumulate=1, clip=None):
    form = dict(form)
    make = form.pop("make", FSDP)
    model = make(copy.deepcopy(net), **form)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    norms = []
    for step in range(2):
        optimizer.zero_grad()
        for part in range(accumulate):
            tokens = batch(rank, step + 7 * part).to("xla")
            if part < accumulate - 1:
                with model.no_sync():
                    loss_of(model, tokens).backward()
            else:
                loss_of(model, tokens).backward()
        norms.append(model.clip_grad_norm_(clip) if clip else torch.zeros(()))
        optimizer.step()
        torch_xla.sync()
    state, expected = references[accumulate, clip]
    torch.testing.assert_close(torch.stack([n.cpu().double() for n in norms]), expected.double())
    # What each rank has is the same, and that of one process.
    gathered = {}
    for name, shard in model.get_original_names_and_sharded_parameters():
        if "flat_param" not in name:
            whole = xm.all_gather(shard.detach())
            gathered[name] = whole.cpu().reshape(-1)[: state[name].numel()].view(state[name].shape)
    for name, value in gathered.items():
        torch.testing.assert_close(value, state[name], rtol=1e-7, atol=1e-9)
    return model, len(gathered)

def nested(model, **kwargs):
    for i in range(2):
        model.blocks[i] = FSDP(model.blocks[i], **kwargs)
    return FSDP(model, **kwargs)

forms = {
    "plain": {},
    "nested": {"make": nested},
    "zero-2": {"auto_wrap_policy": policy, "reshard_after_forward": False},
    "zero-3": {"auto_wrap_policy": policy, "disable_reshard_on_root": False},
    "no barriers": {"auto_wrap_policy": policy, "optimization_barrier_in_forward": False,
                    "optimization_barrier_in_backward": False},
    "checkpoint inside": {"auto_wrap_policy": policy, "auto_wrapper_callable": inside},
    "checkpoint outside": {"auto_wrap_policy": policy, "auto_wrapper_callable": outside},
    "rows": {"auto_wrap_policy": policy, "shard_param_on_dim_0": True},
    "together": {"auto_wrap_policy": policy, "coalesce_all_gather_ops": True,
                 "reduce_scatter_bucket_size_mb": 1, "sync_on_finalization": True},
}
for name, form in forms.items():
    _, checked = train(form)
    assert checked == 18, (name, checked)
train(forms["zero-3"], clip=0.05)
for name in ("zero-2", "together"):
    train(forms[name], accumulate=2)
flat, _ = train({"flatten_parameters": True, "auto_wrap_policy": policy})
whole = {}
for name, shard in flat.get_original_names_and_sharded_parameters():
    whole[name] = xm.all_gather(shard.detach()).cpu()
for prefix in ("", "blocks.0."):
    names, shapes, numels = (flat if not prefix else flat.blocks[0]).module.metadata(0)
    for n, shape, piece in zip(names, shapes, whole[prefix + "flat_param_0"].split(
            numels + [len(whole[prefix + "flat_param_0"]) - sum(numels)])):
        torch.testing.assert_close(
            piece.view(shape), references[1, None][0][prefix + n.removeprefix("_fpw_module.")],
            rtol=1e-7, atol=1e-9)

# The second step of a form has no program of its own; nor does what gathers for no gradient.
met.clear_all()
model, _ = train(forms["zero-3"])
assert met.metric_data("CompileTime") is None and met.counter_value("UncachedCompile") is None
with torch.no_grad():
    found = loss_of(model, batch(rank, 50).to("xla")).item()
plain = copy.deepcopy(net)
plain.load_state_dict(references[1, None][0])
assert abs(found - loss_of(plain, batch(rank, 50)).item()) < 1e-9
print("forms are right")
"""


def test_forms_of_two(jobs):
    for done in jobs.by_hand(HEAD + FORMS, timeout=300):
        assert "forms are right" in done.stdout


HYBRID = """
# Two groups of two shard; ranks with the same shard average.
model = FSDP(copy.deepcopy(net), auto_wrap_policy=policy, sharding_groups=[[0, 1], [2, 3]],
             sharding_rank=rank % 2, sharding_world_size=2, replication_groups=[[0, 2], [1, 3]])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
one = copy.deepcopy(net)
of_one = torch.optim.SGD(one.parameters(), lr=0.1)
for step in range(2):
    for of in range(count):
        (loss_of(one, batch(of, step)) / count).backward()
    loss_of(model, batch(rank, step).to("xla")).backward()
    expected = nn.utils.clip_grad_norm_(one.parameters(), 0.2)
    torch.testing.assert_close(model.clip_grad_norm_(0.2).cpu(), expected)
    of_one.step(), optimizer.step()
    of_one.zero_grad(), optimizer.zero_grad()
state = one.state_dict()
for name, shard in model.get_original_names_and_sharded_parameters():
    whole = xm.all_gather(shard.detach(), groups=[[0, 1], [2, 3]]).cpu()
    torch.testing.assert_close(whole[: state[name].numel()].view(state[name].shape), state[name])

# Narrow dtypes: full values and gradients in bfloat16, sums in float32.
small = FSDP(copy.deepcopy(net).float(), auto_wrap_policy=policy, compute_dtype=torch.bfloat16,
             fp32_reduce_scatter=True)
loss = loss_of(small, batch(rank, 0).to("xla"))
loss.backward()
average = xm.all_reduce("sum", loss.detach().float(), scale=1 / count).item()
expected = sum(loss_of(net, batch(of, 0)) for of in range(count)).item() / count
assert loss.dtype == torch.bfloat16 and abs(average - expected) < 0.05, (average, expected)
assert {p.grad.dtype for p in small.params_with_grad} == {torch.float32}

# A checkpoint of four, for two and for all kinds of wrappers.
folder = os.environ["FOLDER"]
four = FSDP(copy.deepcopy(net), auto_wrap_policy=policy)
optimizer = torch.optim.Adam(four.named_parameters())
loss_of(four, batch(rank, 0).to("xla")).backward()
optimizer.step()
data = {"model": four.state_dict(), "shard_metadata": four.get_shard_metadata(),
        "optimizer": optimizer.state_dict()}
xm.save(data, f"{folder}/c_rank-{rank}-of-{count}.pth", master_only=False)
back = FSDP(Net().double(), auto_wrap_policy=policy)
loaded = torch.load(f"{folder}/c_rank-{rank}-of-{count}.pth")
back.load_state_dict(loaded["model"])
again = torch.optim.Adam(back.named_parameters())
again.load_state_dict(loaded["optimizer"])
for m, o in ((four, optimizer), (back, again)):
    o.zero_grad()
    loss_of(m, batch(rank, 1).to("xla")).backward()
    o.step()
for p, q in zip(four.parameters(), back.parameters()):
    assert torch.equal(p, q)
# All with the gradients of one batch, so that another number of ranks has the same.
loss_of(four, batch(0, 1).to("xla")).backward()
optimizer.step()
data = {"model": four.state_dict(), "shard_metadata": four.get_shard_metadata(),
        "optimizer": optimizer.state_dict()}
xm.save(data, f"{folder}/c_rank-{rank}-of-{count}.pth", master_only=False)
optimizer.zero_grad()
loss_of(four, batch(0, 3).to("xla")).backward()
optimizer.step()
print("loss", loss_of(four, batch(0, 5).to("xla")).item())
"""

TWO = """
folder = os.environ["FOLDER"]
for form in ({}, {"flatten_parameters": True}, {"shard_param_on_dim_0": True}):
    model = FSDP(Net().double(), auto_wrap_policy=policy, **form)
    load_sharded_model_checkpoints(model, f"{folder}/c", "_rank-*-of-4.pth")
    optimizer = torch.optim.Adam(model.named_parameters())
    load_sharded_optimizer_checkpoints(model, optimizer, f"{folder}/c", "_rank-*-of-4.pth")
    loss_of(model, batch(0, 3).to("xla")).backward()
    optimizer.step()
    print("loss", loss_of(model.eval(), batch(0, 5).to("xla")).item())
"""


def losses(done):
    lines = [line for process in done for line in process.stdout.splitlines()]
    return {round(float(line.split()[1]), 12) for line in lines if line.startswith("loss ")}


@pytest.mark.slow
def test_hybrid_of_four_and_its_checkpoint_for_two(jobs, tmp_path):
    env = {"FOLDER": str(tmp_path)}
    found = losses(jobs.by_hand(HEAD + HYBRID, ranks=4, env=env, timeout=300))
    assert len(found) == 1
    assert losses(jobs.by_hand(HEAD + TWO, env=env, timeout=300)) == found


ZERO = """
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer as Zero

net.scalar = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
def run(model, tokens):
    return loss_of(model, tokens) * (1 + model.scalar)

expected = copy.deepcopy(net)
of_one = torch.optim.Adam(expected.parameters(), lr=0.01)
norms = []
for step in range(3):
    of_one.zero_grad()
    for part in range(2):
        for of in range(count):
            (run(expected, batch(of, step + 7 * part)) / count).backward()
    norms.append(nn.utils.clip_grad_norm_(expected.parameters(), 0.1))
    of_one.step()

def make(**kwargs):
    model = copy.deepcopy(net).to("xla")
    return model, Zero(model.parameters(), torch.optim.Adam, optimizer_dtype=torch.float64,
                       max_norm=0.1, lr=0.01, **kwargs)

def train(model, optimizer, steps):
    found = []
    for step in steps:
        optimizer.zero_grad()
        def closure():
            for part in range(2):
                loss = run(model, batch(rank, step + 7 * part).to("xla"))
                loss.backward()
            return loss
        assert optimizer.step(closure).dim() == 0
        torch_xla.sync()
        found.append(optimizer.grad_norm.cpu())
    return found

for form in ({}, {"bucket_cap_mb_all_gather": 1, "bucket_cap_mb_reduce_scatter": 1},
             {"use_grad_acc_hook": True, "higher_cc_precision": True, "lazy_init": True}):
    model, optimizer = make(**form)
    if form.get("lazy_init"):
        optimizer.sharding_groups = [[1, 0]]
        optimizer.init_zero()
    torch.testing.assert_close(torch.stack(train(model, optimizer, range(3))), torch.stack(norms))
    for p, q in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-8, atol=1e-10)
    optimizer.remove_hooks()

# State: each rank has its part; a job goes on from it.
model, optimizer = make(save_master_weights=True)
train(model, optimizer, range(2))
saved = copy.deepcopy(optimizer.state_dict())
size = sum(v.numel() for s in saved["base_state"].values() for v in s.values())
assert size < 1.2 * sum(p.numel() for p in model.parameters())  # two moments, in halves
def on_cpu(state):
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), state)

both = [pickle.loads(payload) for payload in xm.rendezvous("zero", pickle.dumps(on_cpu(saved)))]
again, other = make(save_master_weights=True)
other.load_state_dict(saved)
assert torch.equal(again.embed.weight, model.embed.weight)
train(again, other, [2])
for p, q in zip(again.parameters(), expected.parameters()):
    torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-8, atol=1e-10)

# Of a job of two for one of one, whose state is for a job of two again.
alone, one = make(save_master_weights=True, sharding_groups=[[0], [1]])
one.load_sharded_state_dicts(both)
for i, p in enumerate(alone.parameters()):
    if one.state_dict()["base_state"].get(i):
        assert one.state_dict()["base_state"][i]["exp_avg"].numel() == p.numel()
assert torch.equal(alone.embed.weight, model.embed.weight)
again, other = make(save_master_weights=True)
try:
    other.load_sharded_state_dicts(both[:1])
    raise AssertionError
except ValueError as error:
    assert "expected the state dicts of all ranks" in str(error), error
other.load_sharded_state_dicts([on_cpu(one.state_dict())])
train(again, other, [2])
for p, q in zip(again.parameters(), expected.parameters()):
    torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-8, atol=1e-10)

# Narrow parameters, wide ones in the optimizer
small = nn.Linear(3, 2).to(torch.bfloat16).to("xla")
wide = Zero(small.parameters(), torch.optim.SGD, lr=1e-3, grad_clipping=False)
assert {p.dtype for g in wide.base_optimizer.param_groups for p in g["params"]} == {torch.float32}
for _ in range(4):
    small(torch.ones(1, 3, dtype=torch.bfloat16, device="xla")).sum().backward()
    wide.step()
assert small.weight.dtype == torch.bfloat16
try:
    Zero(nn.Linear(2, 2).parameters(), torch.optim.SGD, lr=1.0)
except ValueError as error:
    assert "expected parameters on xla" in str(error)
print("zero is right")
"""


def test_zero_redundancy_optimizer_of_two(jobs):
    for done in jobs.by_hand(HEAD + ZERO, timeout=300):
        assert "zero is right" in done.stdout


MEMORY = """
with torch.device("meta"):
    big = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.Tanh()) for _ in range(6)))
model = FSDP(big, auto_wrap_policy=functools.partial(
    wrap.transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear}))
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(8, 1024, device="xla")
for _ in range(2):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    torch_xla.sync(wait=True)
held = [*model.parameters(), *(v for s in optimizer.state.values() for v in s.values())]
print(sum(t.numel() * t.element_size() for t in held))
"""


def test_each_of_several_holds_its_part(jobs):
    held = {}
    for ranks in (1, 2):
        done = jobs.by_hand(HEAD + MEMORY, ranks=ranks, timeout=300)
        held[ranks] = [int(d.stdout.splitlines()[-1]) for d in done]
    whole = 6 * (1024 * 1024 + 1024) * 4 * 3
    assert abs(held[1][0] - whole) < 0.01 * whole
    assert all(abs(h - whole / 2) < 0.01 * whole for h in held[2])
