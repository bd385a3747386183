"""Several Python threads record, read, sync and differentiate on one device at the same time."""

from __future__ import annotations

import copy
import threading
import time

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla.core import dynamo_bridge

SECONDS = 0.6  # for a test that repeats as often as it can
DEADLINE = 600.0  # under a sanitizer, on a busy machine


def run_threads(*bodies):
    """Starts the bodies together, waits for all of them and raises what the first one raised."""
    start = threading.Barrier(len(bodies))
    errors = []

    def call(body):
        start.wait()
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + DEADLINE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    if errors:
        raise errors[0]


def until(seconds, least=3):
    """Counts up for this long, and at least to `least`."""
    deadline = time.monotonic() + seconds
    step = 0
    while step < least or time.monotonic() < deadline:
        yield step
        step += 1


def program(x, step):
    """Views, writes through them, reductions and a changing number."""
    y = x * (step + 1.5)
    y.t()[1:].add_(x.t()[:-1])
    y[:, 0] = y.sum(1)
    z = torch.softmax(y, 1) @ x.t()
    return z + y.mean(), y


def make(seed, shape=(4, 6)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def close(got, want):
    torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [2, 4])
def test_independent_tensors(threads):
    def body(seed):
        source = make(seed)
        x, on_cpu = source.to("xla"), source.clone()
        for step in until(SECONDS):
            got, want = program(x, step), program(on_cpu, step)
            if step % 3 == seed % 3:
                torch_xla.sync()
            for g, w in zip(got, want, strict=True):
                close(g, w)

    run_threads(*[lambda seed=i: body(seed) for i in range(threads)])


def test_recording_while_another_thread_syncs():
    """A step that is half recorded may be run by the other threads, at any point."""
    done = threading.Event()

    def many_writes(step, device):
        x = torch.zeros(8, device=device)
        for i in range(12):
            x = x + i
            x[i % 8] += step
        return x

    def record():
        try:
            for step in until(SECONDS):
                close(many_writes(step, "xla"), many_writes(step, "cpu"))
        finally:
            done.set()

    def sync():
        while not done.is_set():
            torch_xla.sync()

    run_threads(record, sync, sync)


def test_shared_input_and_shared_constant():
    shared = make(0).to("xla")
    on_cpu = make(0)

    def body(seed):
        weight = make(seed, (6, 5))
        on_xla = weight.to("xla")
        for step in until(SECONDS):
            close((shared * step) @ on_xla, (on_cpu * step) @ weight)
            if seed == 1:
                torch_xla.sync()
            view = shared[1:, ::2]
            close(view + step, on_cpu[1:, ::2] + step)

    run_threads(*[lambda seed=i: body(seed) for i in range(3)])
    close(shared, on_cpu)


def test_in_place_updates_of_one_tensor():
    """Every update takes effect once, whichever thread runs it: sums of whole numbers commute."""
    counter = torch.zeros(4, 4, device="xla")
    own, everywhere = [0] * 4, [0] * 4

    def body(thread):
        for step in until(SECONDS):
            counter[thread].add_(1)
            own[thread] += 1
            if step % 5 == 4:
                counter.add_(1)
                everywhere[thread] += 1
            if step % (7 + thread) == 0:
                torch_xla.sync()
            if step % 11 == 10:
                counter[thread].sum().item()

    run_threads(*[lambda i=i: body(i) for i in range(4)])
    for thread in range(4):
        assert counter[thread].tolist() == [own[thread] + sum(everywhere)] * 4


def train(device, seed, steps, after_step):
    """Losses and parameters of some steps of a small model; the same on each device."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(make(seed * 10 + i, p.shape) * 0.3)
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, target = make(seed, (8, 6)).to(device), torch.arange(8).remainder(3).to(device)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        after_step(loss)
    return [*losses, *model.parameters()]


def compare_training(threads, steps, after_step):
    want = [train("cpu", seed, steps, lambda loss: None) for seed in range(threads)]
    got = [None] * threads

    def body(seed):
        got[seed] = train("xla", seed, steps, after_step)

    run_threads(*[lambda seed=i: body(seed) for i in range(threads)])
    for g, w in zip(got, want, strict=True):
        for a, b in zip(g, w, strict=True):
            close(a, b)


def test_training_in_two_threads_that_sync():
    # Few steps: a sync runs what the other thread has recorded so far, a new program nearly always.
    compare_training(2, 3, lambda loss: torch_xla.sync())


def test_training_in_four_threads_that_read_their_losses():
    compare_training(4, 3, lambda loss: loss.item())


def test_backward_beside_recording():
    """PyTorch differentiates tensors of a device on a thread of its own."""
    weight = make(1, (6, 6))

    def on_the_cpu(step):
        leaf = weight.clone().requires_grad_()
        return torch.autograd.grad((make(step % 5) @ leaf).tanh().pow(2).sum(), leaf)[0]

    # PyTorch's own first call, made by two threads at once, was off by 6e-4 in one run of 240.
    on_the_cpu(0)

    def differentiate():
        on_xla = weight.to("xla").requires_grad_()
        for step in until(SECONDS):
            x = make(step % 5).to("xla")
            (grad,) = torch.autograd.grad((x @ on_xla).tanh().pow(2).sum(), on_xla)
            if step % 2 == 0:
                torch_xla.sync()
            close(grad, on_the_cpu(step))

    def record():
        x, on_cpu = make(7).to("xla"), make(7)
        for step in until(SECONDS):
            got, want = program(x, step), program(on_cpu, step)
            close(got[0], want[0])

    run_threads(differentiate, differentiate, record)


def test_gradients_of_several_threads_add_up():
    """Backward passes at the same time accumulate into one leaf."""
    weight = make(3, (6, 6))
    on_xla, on_cpu = weight.to("xla").requires_grad_(), weight.clone().requires_grad_()
    passes = 15

    def body(seed):
        for step in range(passes):
            x = make(100 * seed + step).to("xla")
            (x @ on_xla).sin().sum().backward()
            if step % 4 == seed:
                torch_xla.sync()

    run_threads(*[lambda seed=i: body(seed) for i in range(3)])
    for seed in range(3):
        for step in range(passes):
            (make(100 * seed + step) @ on_cpu).sin().sum().backward()
    close(on_xla.grad, on_cpu.grad)


class Doubled(torch.autograd.Function):
    """Python inside of the backward pass, which reads a value and runs a backward pass itself."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad((inner * inner).sum(), inner)
        assert torch.equal(slope.cpu(), (x * 2).cpu())
        return grad * 2


def test_python_in_the_backward_pass_of_several_threads():
    def body(seed):
        for step in until(SECONDS):
            x = make(seed + step).to("xla").requires_grad_()
            Doubled.apply(x * 3).sum().backward()
            if step % 2 == 0:
                torch_xla.sync()
            assert x.grad.eq(6).all().item()

    run_threads(*[lambda seed=i: body(seed) for i in range(3)])


def test_first_compilations_and_long_tail_at_the_same_time():
    """Shape memos, decompositions, host fallbacks and the program cache fill from all threads."""
    calls = [
        lambda x: torch.special.i0e(x),
        lambda x: torch.nonzero(x > 0).sum(0),
        lambda x: torch.linalg.qr(x @ x.t() + 4 * torch.eye(4, device=x.device))[0].abs(),
        lambda x: torch.nn.functional.huber_loss(x, x * 0.5),
        lambda x: torch.cdist(x, x + 1),
        lambda x: x.unique().sum(),
        lambda x: torch.nn.functional.pixel_shuffle(x.reshape(1, 4, 2, 3), 2),
        lambda x: torch.logcumsumexp(x, 1),
    ]

    def body(seed):
        for i in range(len(calls)):
            call = calls[(i + 2 * seed) % len(calls)]
            x = make(seed)
            close(call(x.to("xla")).float(), call(x).float())
            torch_xla.sync()

    run_threads(*[lambda seed=i: body(seed) for i in range(4)])


def test_tensors_die_in_another_thread():
    handed, done = [], threading.Event()

    def produce():
        try:
            x = make(2).to("xla").requires_grad_()
            for step in until(SECONDS):
                y = (x * step).exp()
                handed.append((y, y.t()[1:], y.sum()))
                del y
                while len(handed) > 64:  # a consumer that compiles is slower
                    time.sleep(0.001)
        finally:
            done.set()

    def consume():
        while not done.is_set() or handed:
            if handed:
                y, view, total = handed.pop()
                assert view.shape == (5, 4)
                if len(handed) % 4 == 0:
                    close(y.sum(), total.detach().cpu())
                del y, view, total
            else:
                time.sleep(0.001)

    def sync():
        while not done.is_set():
            torch_xla.sync()

    run_threads(produce, consume, sync)


def test_others_record_and_sync_while_one_waits():
    """What waits for the device stops nobody else."""
    x = torch.randn(1000, 1000, device="xla")
    y = torch.ones(8, device="xla")
    torch_xla.sync(wait=True)

    def launch():
        z = x
        for _ in range(40):  # some 200 ms
            z = z @ x / 40
        torch_xla.sync()

    launch()  # compiles
    y.add_(1)
    torch_xla.sync(wait=True)
    waiting, done = threading.Event(), threading.Event()
    syncs = 0

    def wait():
        launch()
        waiting.set()
        xm.wait_device_ops()
        done.set()

    def work():
        nonlocal syncs
        waiting.wait()
        time.sleep(0.05)  # the other one waits by now
        while not done.is_set():
            y.add_(1)
            torch_xla.sync()
            syncs += 1

    run_threads(wait, work)
    assert syncs > 10
    assert y.tolist() == [2.0 + syncs] * 8


@pytest.mark.parametrize("backend", [None, "openxla"])
def test_a_thread_compiles_for_other_sizes_while_results_are_read(backend):
    """docs/persistent_cache.md: what a thread has compiled serves all."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(40)]
    reference = nn.Sequential(*layers)
    net = copy.deepcopy(reference).to("xla")
    model = torch.compile(net, backend=backend) if backend else net
    small = torch.randn(4, 16)

    def results(x):
        with torch.no_grad():
            return model(x.to("xla")).cpu()

    def differ(x):
        with torch.no_grad():
            return (results(x) - reference(x)).abs().max() > 1e-5

    def reads_while_compiling(large):
        compiled = threading.Event()
        read = 0

        def compile_ahead():
            try:
                results(torch.zeros_like(large))
            finally:  # the other ends either way, and the error is told
                compiled.set()

        def go_on():
            nonlocal read
            while not compiled.is_set():
                assert not differ(small)
                read += 1

        run_threads(compile_ahead, go_on)
        return read

    assert not differ(small)
    for rows in range(32, 62):  # a busy machine may keep the reader from its turn
        large = torch.randn(rows, 16)
        read = reads_while_compiling(large)
        if read > 3:
            break
    assert read > 3  # one is under way when the compiler begins, one when it ends
    before = met.counter_value("UncachedCompile")
    assert not differ(large)
    assert met.counter_value("UncachedCompile") == before


def test_threads_make_the_first_call_of_a_compiled_graph(monkeypatch):
    """PyTorch's own helper has no lock there."""
    extract = dynamo_bridge.extract_compiled_graph
    extracted = []

    def slowly(*args):
        extracted.append(args)
        time.sleep(0.2)
        return extract(*args)

    monkeypatch.setattr(dynamo_bridge, "extract_compiled_graph", slowly)
    x = torch.randn(5)
    graph = torch.fx.symbolic_trace(lambda x: x.exp() * 2)
    compiled = torch._dynamo.lookup_backend("openxla_eval")(graph, [x.to("xla")])

    def call():
        close(compiled(x.to("xla")), x.exp() * 2)

    run_threads(call, call, call)
    assert len(extracted) == 1


@pytest.mark.filterwarnings("ignore:torch.compile. a graph has been compiled")
def test_threads_call_a_compiled_graph_with_sizes_of_their_own():
    """The versions of a graph may move in memory while another thread launches one."""
    torch._dynamo.reset()
    weight = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    on_xla = weight.to("xla")

    @torch.compile(backend="openxla", dynamic=True)
    def function(x):
        return torch.tanh(x @ on_xla) + x.shape[0]

    def body(first):
        def call():
            for step in range(40):
                x = make(step, (first + step % 12, 8))
                with torch.no_grad():
                    close(function(x.to("xla")), torch.tanh(x @ weight) + x.shape[0])

        return call

    run_threads(*(body(first) for first in (2, 14, 26)))
