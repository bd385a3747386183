"""FSDP in one process: forms against the plain module, and checkpoints of ranks that are made here.

tests/jobs/test_fsdp.py has several processes.
"""

from __future__ import annotations

import copy
import functools
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.distributed.fsdp import (
    XlaFullyShardedDataParallel as FSDP,
)
from torch_xla.distributed.fsdp import (
    checkpoint_module,
    consolidate_sharded_model_checkpoints,
    consolidate_sharded_state_dicts,
    load_sharded_model_checkpoints,
    load_sharded_optimizer_checkpoints,
    utils,
    wrap,
)
from torch_xla.distributed.fsdp._full_values import _Part, _view
from torch_xla.distributed.fsdp.xla_flatten_params_wrapper import (
    FlatParameter,
    XlaFlattenParamsWrapper,
)


class Block(nn.Module):
    def __init__(self, size=5):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up = nn.Linear(size, 3 * size)
        self.down = nn.Linear(3 * size, size, bias=False)
        self.frozen = nn.Parameter(torch.randn(size), requires_grad=False)

    def forward(self, x, scale=None):
        return x + self.down(torch.relu(self.up(self.norm(x)))) * (1 + 0.1 * self.frozen.tanh())


class Net(nn.Module):
    """Tied weights, attention, a recurrent layer, buffers, frozen parameters."""

    def __init__(self, size=5):
        super().__init__()
        self.embed = nn.Embedding(11, size)
        self.blocks = nn.ModuleList([Block(size) for _ in range(2)])
        self.attention = nn.MultiheadAttention(size, 1, batch_first=True)
        self.recurrent = nn.GRU(size, size, batch_first=True)
        self.norm = nn.BatchNorm1d(size)
        self.head = nn.Linear(size, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, scale=None)
        x = x + self.attention(x, x, x)[0]
        x = self.norm(self.recurrent(x)[0].transpose(1, 2)).transpose(1, 2)
        return self.head(x)


POLICY = functools.partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls={Block})


def wrapped_inside(module, *args, **kwargs):
    return FSDP(checkpoint_module(module), *args, **kwargs)


def train(model, steps, device):
    torch.manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        tokens = torch.randint(0, 11, (2, 4)).to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        torch_xla.sync()
    return torch.stack(losses).cpu()


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().double()


@pytest.fixture(scope="module")
def expected(net):
    model = copy.deepcopy(net)
    return train(model, 2, "cpu"), model.state_dict()


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"flatten_parameters": True, "auto_wrap_policy": POLICY},
        {"reshard_after_forward": False, "auto_wrap_policy": POLICY},
        {
            "disable_reshard_on_root": False,
            "auto_wrap_policy": POLICY,
            "auto_wrapper_callable": wrapped_inside,
        },
        {
            "auto_wrap_policy": POLICY,
            "auto_wrapper_callable": lambda *args, **kw: checkpoint_module(FSDP(*args, **kw)),
            "optimization_barrier_in_forward": False,
            "optimization_barrier_in_backward": False,
        },
        {"shard_param_on_dim_0": True, "sync_on_finalization": True},
        {"reduce_scatter_bucket_size_mb": 1, "coalesce_all_gather_ops": True},
    ],
    ids=lambda form: "-".join(form) or "plain",
)
def test_a_form_trains_as_the_module_does(net, expected, form):
    model = FSDP(copy.deepcopy(net), **form)
    losses, state = expected
    torch.testing.assert_close(train(model, 2, "xla"), losses, rtol=1e-10, atol=0)
    whole = consolidate_sharded_state_dicts([model.state_dict()], model.get_shard_metadata())
    assert whole.keys() >= {name for name in state if name != "head.weight"}
    for name, value in whole.items():
        torch.testing.assert_close(value.cpu(), state[name], rtol=1e-8, atol=1e-9)


# Ranks without a job: what they hold, and their files


def shard_of(model, rank, ranks, **options):
    return FSDP(
        model, sharding_groups=[[0]], sharding_rank=rank, sharding_world_size=ranks, **options
    )


def save_ranks(net, folder, ranks, **options):
    for rank in range(ranks):
        model = shard_of(copy.deepcopy(net), rank, ranks, **options)
        data = {"model": model.state_dict(), "shard_metadata": model.get_shard_metadata()}
        xm.save(data, str(folder / f"c_rank-{rank}-of-{ranks}.pth"), master_only=False)


def test_ranks_hold_their_part(net):
    whole = sum(p.numel() for p in net.parameters())
    for options in ({}, {"flatten_parameters": True}):
        held = [
            sum(
                p.numel()
                for p in shard_of(
                    copy.deepcopy(net), 1, n, _shard_size_multiple=1, **options
                ).parameters()
            )
            for n in (1, 2, 4)
        ]
        assert held[0] == whole
        assert all(abs(held[i] - whole / n) <= 20 for i, n in ((1, 2), (2, 4)))


@pytest.mark.parametrize(
    "options",
    [
        {"auto_wrap_policy": POLICY},
        {"flatten_parameters": True, "auto_wrap_policy": POLICY},
        {"shard_param_on_dim_0": True},
    ],
    ids=["pieces", "flat", "rows"],
)
def test_checkpoints_become_one_and_are_loaded_by_other_ranks(net, tmp_path, options):
    net = copy.deepcopy(net)
    save_ranks(net, tmp_path, 3, **options, buffer_dtype=torch.float32)
    state, path = consolidate_sharded_model_checkpoints(f"{tmp_path}/c", "_rank-*-of-*.pth")
    assert path == f"{tmp_path}/c_consolidated.pth"
    in_memory, no_path = consolidate_sharded_model_checkpoints(
        f"{tmp_path}/c", "_rank-*-of-*.pth", save_model=False
    )
    assert no_path is None
    by_hand = consolidate_sharded_state_dicts(
        *(lambda c: ([x["model"] for x in c], c[0]["shard_metadata"]))(
            [torch.load(f"{tmp_path}/c_rank-{r}-of-3.pth") for r in range(3)]
        )
    )
    for found in (state, in_memory, by_hand, torch.load(path)["model"]):
        fresh = Net().double()
        missing, unexpected = fresh.load_state_dict(found, strict=False)
        assert missing in ([], ["head.weight"]) and not unexpected
        for name, value in fresh.state_dict().items():
            assert torch.equal(value, net.state_dict()[name])
    # Other ranks, and other wrappers, load the files as they are, or the model's.
    for other in ({}, {"flatten_parameters": True}, {"shard_param_on_dim_0": True}):
        models = [shard_of(Net().double(), rank, 2, **other) for rank in range(2)]
        for model in models:
            load_sharded_model_checkpoints(model, f"{tmp_path}/c", "_rank-*-of-*.pth")
        check(models, net)
        models = [shard_of(Net().double(), rank, 2, **other) for rank in range(2)]
        for model in models:
            assert model.load_state_dict(net.state_dict()) == ([], [])
        check(models, net)


def named_adam(model):
    """An optimizer in two groups, of parameters with names."""
    named = list(model.named_parameters())
    first = [pair for pair in named if "norm" in pair[0]]
    rest = [pair for pair in named if "norm" not in pair[0]]
    groups = [{"params": first, "lr": 0.1}, {"params": rest, "weight_decay": 0.5}]
    return torch.optim.Adam(groups, lr=0.01)


def named_foreach_adam(model):
    """One whose counts of steps are on the CPU."""
    return torch.optim.Adam(model.named_parameters(), lr=0.01, foreach=True)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def step_by_own_values(model, optimizer, times=2):
    """Gradients are the parameters themselves: each element's state depends on it alone."""
    for _ in range(times):
        for p in model.parameters():
            p.grad = p.detach() * 0.5 if p.requires_grad else None
        optimizer.step()


@pytest.mark.parametrize(
    ("options", "others", "make"),
    [
        ({"auto_wrap_policy": POLICY}, [{}, {"shard_param_on_dim_0": True}], named_adam),
        ({"flatten_parameters": True}, [{"flatten_parameters": True}], adam),
        ({"flatten_parameters": True}, [{}, {"auto_wrap_policy": POLICY}], named_foreach_adam),
        ({"auto_wrap_policy": POLICY}, [{"auto_wrap_policy": POLICY}], adam),
    ],
    ids=["other-wrappers", "flat", "flat-to-others", "no-names"],
)
def test_optimizer_state_is_loaded_by_other_ranks(net, tmp_path, options, others, make):
    net = copy.deepcopy(net)
    for rank in range(3):
        model = shard_of(copy.deepcopy(net), rank, 3, **options)
        optimizer = make(model)
        step_by_own_values(model, optimizer)
        data = {
            "model": model.state_dict(),
            "shard_metadata": model.get_shard_metadata(),
            "optimizer": optimizer.state_dict(),
        }
        xm.save(data, f"{tmp_path}/c_rank-{rank}-of-3.pth", master_only=False)
    step_by_own_values(net, make(net), 4)
    for form in others:
        models = [shard_of(Net().double(), rank, 2, **form) for rank in range(2)]
        for model in models:
            load_sharded_model_checkpoints(model, f"{tmp_path}/c", "_rank-*-of-*.pth")
            optimizer = make(model)
            for group in optimizer.param_groups:
                group["lr"] = 7.0  # loaded
            load_sharded_optimizer_checkpoints(model, optimizer, f"{tmp_path}/c")
            step_by_own_values(model, optimizer)
        check(models, net, rtol=1e-12)
    # What cannot be told apart is refused.
    model = shard_of(Net().double(), 0, 2)
    wrong = [adam(model) if make is named_adam else named_adam(model)]
    if make is adam:
        wrong.append(torch.optim.Adam([*model.parameters()][1:]))
    for optimizer in wrong:
        with pytest.raises(ValueError, match="load_sharded_optimizer_checkpoints: expected"):
            load_sharded_optimizer_checkpoints(model, optimizer, f"{tmp_path}/c")


def check(models, net, rtol=0.0):
    whole = consolidate_sharded_state_dicts(
        [m.state_dict() for m in models], models[0].get_shard_metadata()
    )
    for name, value in whole.items():
        torch.testing.assert_close(value.cpu(), net.state_dict()[name], rtol=rtol, atol=0)


def test_the_command(net, tmp_path):
    save_ranks(net, tmp_path, 2)
    out = subprocess.run(
        [sys.executable, "-m", "torch_xla.distributed.fsdp.consolidate_sharded_ckpts"]
        + ["--ckpt_prefix", f"{tmp_path}/c", "--ckpt_suffix", "_rank-*-of-*.pth"]
        + ["--save_path", f"{tmp_path}/whole.pth"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.splitlines() == [
        f"found 2 checkpoint files in {tmp_path}/c_rank-*-of-*.pth",
        f"saved consolidated model to {tmp_path}/whole.pth",
    ]
    Net().double().load_state_dict(torch.load(f"{tmp_path}/whole.pth")["model"], strict=False)


MEMORY = """
import sys, threading, time
import torch
from torch_xla.distributed.fsdp import consolidate_sharded_model_checkpoints

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) >> 10

peak, done = [0], threading.Event()
def watch():
    while not done.wait(0.001):
        peak[0] = max(peak[0], anonymous())

torch.ones(1 << 20).add(1).sum()
before = anonymous()
thread = threading.Thread(target=watch)
thread.start()
state, _ = consolidate_sharded_model_checkpoints(sys.argv[1], "_rank-*.pth")
done.set(), thread.join()
assert all(state[f"{i}.weight"].eq(i).all() for i in range(6))
print(peak[0] - before)
"""


def test_consolidation_takes_the_memory_of_a_part_of_a_tensor(tmp_path):
    model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(6)))  # of 16 MiB
    with torch.no_grad():
        for i, layer in enumerate(model):
            layer.weight.fill_(i)
    save_ranks(model, tmp_path, 2)
    command = [sys.executable, "-c", MEMORY, f"{tmp_path}/c"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(out.splitlines()[-1]) <= 20  # MiB, of 96


def test_wrong_checkpoints_are_errors(net, tmp_path):
    with pytest.raises(FileNotFoundError, match="expected files .*none"):
        consolidate_sharded_model_checkpoints(f"{tmp_path}/c")
    save_ranks(net, tmp_path, 3)
    (tmp_path / "c_rank-1-of-3.pth").unlink()
    with pytest.raises(ValueError, match=r"ranks 0 to 2, got those of ranks \[0, 2\]"):
        consolidate_sharded_model_checkpoints(f"{tmp_path}/c")
    model = FSDP(Net())
    state = net.state_dict()
    state.pop("norm.weight")
    with pytest.raises(RuntimeError, match=r"missing: \['norm.weight'\], not of the model: \[\]"):
        model.load_state_dict(state)
    before = model.state_dict()[model.sharded_params[0]._name].clone()
    state["more"] = torch.ones(1)
    assert model.load_state_dict(state, strict=False) == (["norm.weight"], ["more"])
    assert not torch.equal(before, model.sharded_params[0])
    with pytest.raises(RuntimeError, match=r"norm.bias of shape \[5\], got \[6\]"):
        model.load_state_dict({**net.state_dict(), "norm.bias": torch.ones(6)})


# Arguments


def test_modules_on_meta_are_filled_before_they_are_cut():
    with torch.device("meta"):
        model = nn.Sequential(Block(4), nn.Linear(4, 4), nn.MultiheadAttention(4, 2))
    model[0].frozen = nn.Parameter(torch.zeros(4), requires_grad=False)
    wrapped = FSDP(copy.deepcopy(model[1]))
    assert wrapped.weight.isnan().all() and wrapped(torch.ones(2, 4, device="xla")).shape == (2, 4)
    assert wrapped.sharded_params[0].abs().max() > 0
    FSDP(copy.deepcopy(model[2]))
    with torch.device("meta"):
        bare = nn.Sequential()
        bare.register_parameter("p", nn.Parameter(torch.zeros(3)))
    with pytest.raises(ValueError, match="reset_parameters, got Sequential. Give param_init_fn"):
        FSDP(bare)

    def fill(module):
        module.p = nn.Parameter(torch.full((3,), 2.0))

    assert FSDP(bare, param_init_fn=fill).sharded_params[0][:4].tolist() == [2, 2, 2, 0]
    with pytest.raises(TypeError, match="param_init_fn: expected a function"):
        with torch.device("meta"):
            FSDP(nn.Linear(2, 2), param_init_fn=3)


def test_dtypes():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].register_buffer("steps", torch.zeros(2, dtype=torch.float64))
    model = FSDP(
        module,
        compute_dtype=torch.bfloat16,
        fp32_reduce_scatter=True,
        buffer_dtype=torch.float32,
    )
    out = model(torch.ones(3, 4, device="xla"))
    out.sum().backward()
    assert out.dtype == torch.bfloat16
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
    assert model[1].steps.dtype == torch.float32
    buffers = model.get_shard_metadata()["buffer_info"]
    assert buffers == {"_fsdp_wrapped_module.1.steps": {"_orig_dtype": torch.float64}}
    with pytest.raises(ValueError, match="compute_dtype: expected one of"):
        FSDP(nn.Linear(2, 2), compute_dtype=torch.int32)


def test_gradients_are_clipped_accumulated_and_divided():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model = FSDP(copy.deepcopy(plain), auto_wrap_policy=wrap.always_wrap_policy)
    xs = torch.randn(3, 2, 4)
    for x in xs:
        plain(x).square().sum().backward()
    with model.no_sync():
        for x in xs[:2]:
            model(x.to("xla")).square().sum().backward()
        assert model.params_with_grad == []
    model(xs[2].to("xla")).square().sum().backward()
    for power in (2.0, torch.inf):
        norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.7, power)
        torch.testing.assert_close(model.clip_grad_norm_(0.7, power).cpu(), norm)
    expected = {name: p.grad for name, p in plain.named_parameters()}
    for name, shard in model.get_original_names_and_sharded_parameters():
        gradient = shard.grad.cpu()[: expected[name].numel()].view(expected[name].shape)
        torch.testing.assert_close(gradient, expected[name])
    with pytest.raises(RuntimeError, match="expected the outermost wrapper"):
        model.module.module[0].clip_grad_norm_(1.0)
    model.set_gradient_divide_factors(2.0, 1.0, recursive=True)
    model.zero_grad()
    model(xs[2].to("xla")).sum().backward()
    halved = [p.grad for p in model.parameters()]
    model.set_gradient_divide_factors(1.0, 1.0, recursive=True)
    model.zero_grad()
    model(xs[2].to("xla")).sum().backward()
    for half, p in zip(halved, model.parameters(), strict=True):
        torch.testing.assert_close(half * 2, p.grad)


def test_a_module_may_write_to_its_input_and_be_called_twice():
    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([2.0]))

        def forward(self, x, out):
            out += 1
            return x * self.w

    model = FSDP(Adds())
    x, out = torch.ones(2, device="xla", requires_grad=True), torch.zeros(2, device="xla")
    (model(x, out) + model(x * 3, out)).sum().backward()
    assert out.tolist() == [2, 2] and x.grad.tolist() == [8, 8]
    assert model.sharded_params[0].grad[0].item() == 8
    with torch.no_grad():
        model.sharded_params[0].mul_(2)
        assert model(x, out).tolist() == [4, 4]


def test_wrong_modules_are_errors():
    with pytest.raises(RuntimeError, match="not wrapped yet"):
        FSDP(FSDP(nn.Linear(2, 2)))
    with pytest.raises(RuntimeError, match="a forward, got ModuleList"):
        FSDP(nn.ModuleList([nn.Linear(2, 2)]))
    with pytest.raises(ValueError, match="without wrapped modules, with auto_wrap_policy"):
        FSDP(nn.Sequential(FSDP(nn.Linear(2, 2))), auto_wrap_policy=wrap.always_wrap_policy)
    with pytest.raises(ValueError, match="sharding_rank and sharding_world_size"):
        FSDP(nn.Linear(2, 2), sharding_groups=[[0]])
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    with pytest.raises(ValueError, match=r"share no parameter.*shape \(2, 2\)"):
        FSDP(tied, auto_wrap_policy=wrap.always_wrap_policy)
    with pytest.raises(ValueError, match="expected to be in .*IDLE"):
        model = FSDP(nn.Linear(2, 2))
        model.assert_state([])


def test_options_that_measure():
    x = torch.ones(2, 3, device="xla")
    model = FSDP(
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)),
        auto_wrap_policy=wrap.always_wrap_policy,
        _debug_dummy_forward_pass=True,
        _debug_dummy_all_gather_op=True,
        _debug_dummy_all_reduce_op=True,
        _debug_dummy_reduce_scatter_op=True,
        _debug_dummy_optimization_barrier_op=True,
    )
    loss = model(x)
    loss.backward()
    assert len(model.params_with_grad) == 4 and loss.dim() == 0
    buckets, parts = utils.BucketizedReduceScatter(1, 1, None, True), []
    buckets(x, parts.append)
    assert parts == []
    buckets(torch.ones(1 << 18, device="xla"), parts.append)
    assert [p.shape for p in parts] == [(2, 3), (1 << 18,)]
    buckets(x, parts.append)
    buckets.flush()
    assert len(parts) == 3


def test_flat_parameters_stand_for_those_of_a_module():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    plain[2].weight = nn.Parameter(plain[0].weight.detach().t().clone())
    flat = XlaFlattenParamsWrapper(copy.deepcopy(plain))
    assert [p.numel() for p in flat.parameters()] == [31]
    assert flat.state_dict().keys() == plain.state_dict().keys()
    assert list(flat.flat_state_dict()) == ["flat_param_0"]
    names, shapes, numels = flat.metadata(0)
    assert names[0] == "_fpw_module.0.weight" and shapes[0] == (4, 3) and numels == [12, 4, 12, 3]
    assert flat.flat_param.metadata() == flat.metadata(0)
    x = torch.randn(2, 3)
    flat(x).square().sum().backward()
    plain(x).square().sum().backward()
    expected = torch.cat([p.grad.reshape(-1) for p in plain.parameters()])
    torch.testing.assert_close(flat.flat_param.grad, expected)
    other = copy.deepcopy(plain)
    with torch.no_grad():
        other[0].weight.mul_(3)
    flat.load_state_dict(other.state_dict())
    torch.testing.assert_close(flat(x), other(x))
    assert flat.flat_param.grad is not None
    flat.load_state_dict(flat.flat_state_dict())
    torch.testing.assert_close(flat(x), other(x))
    assert flat[1] is flat.module[1]
    copied = flat.flat_param.to(torch.float64)
    assert isinstance(copied, FlatParameter) and copied.metadata() == flat.metadata(0)
    with pytest.raises(ValueError, match="at most once"):
        XlaFlattenParamsWrapper(plain, [[plain[0].weight], [plain[0].weight]])


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.view(3, 4),
        lambda x: x.view(3, 4).t(),
        lambda x: x[2:8].view(1, 2, 3).permute(2, 0, 1),
        lambda x: x.view(3, 4)[:, 1],
        lambda x: x[5],
        lambda x: x[3:3],
    ],
)
def test_views_are_found_again(make):
    x = torch.arange(12.0, device="xla")
    view = make(x)
    part = _Part(0, tuple(view.shape), view.stride(), view.storage_offset())
    assert torch.equal(_view(x, part), view)
