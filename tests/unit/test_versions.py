"""Version counters and what autograd is told of writes: as on the CPU."""

import pytest
import torch

import torch_xla


def versions(device, call, count=2):
    tensors = [torch.ones(3, device=device) for _ in range(count)]
    others = [torch.ones(3, device=device) * 2 for _ in range(count)]
    call(tensors, others)
    return [t._version for t in tensors]


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: torch._foreach_add_(a, 1.0),
        lambda a, b: torch._foreach_add_(a, b),
        lambda a, b: torch._foreach_mul_(a, b),
        lambda a, b: torch._foreach_mul_(a, 3.0),
        lambda a, b: torch._foreach_addcmul_(a, b, b, value=0.5),
        lambda a, b: torch._foreach_addcdiv_(a, b, b, value=0.5),
        lambda a, b: torch._foreach_lerp_(a, b, 0.5),
        lambda a, b: torch._foreach_zero_(a),
        lambda a, b: torch._foreach_sqrt_(a),
        lambda a, b: torch._foreach_copy_(a, b),
        lambda a, b: torch._foreach_mul_([a[0], a[0]], 2.0),
        lambda a, b: torch._foreach_add(a, b),
    ],
)
def test_lists_that_are_written_count(call):
    assert versions("xla", call) == versions("cpu", call)


def test_a_value_that_backward_needs_is_missed():
    for device in ("cpu", "xla"):
        w = torch.ones(2, device=device, requires_grad=True)
        y = w * 2
        z = y.pow(2).sum()
        with torch.no_grad():
            torch._foreach_mul_([y], 10.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()


@pytest.mark.parametrize("make", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_a_step_counts(make):
    w = torch.nn.Linear(3, 3).to("xla")
    optimizer = getattr(torch.optim, make)(w.parameters(), lr=0.1)
    x = torch.ones(2, 3, device="xla", requires_grad=True)
    loss, again = w(x).sum(), (w(x).tanh() @ w.weight).sum()
    loss.backward()
    before = w.weight._version
    optimizer.step()
    assert w.weight._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        again.backward()


@pytest.mark.parametrize("make", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop"])
@pytest.mark.parametrize("how", ["default", "fused", "foreach"])
def test_a_step_leaves_gradients_alone(make, how):
    options = {} if how == "default" else {how: True}
    if make == "RMSprop" and options.pop("fused", None):
        pytest.skip("PyTorch has no fused RMSprop")
    counts = []
    for device in ("cpu", "xla"):
        w = torch.nn.Linear(3, 3).to(device)
        optimizer = getattr(torch.optim, make)(w.parameters(), lr=0.1, **options)
        w(torch.ones(2, 3, device=device)).sum().backward()
        before = w.weight.grad.clone()
        optimizer.step()
        optimizer.step()
        assert torch.equal(w.weight.grad, before)
        step = optimizer.state[w.weight].get("step", torch.tensor(0))
        counts.append([p.grad._version for p in w.parameters()] + [step._version])
    assert counts[1] == counts[0]


def test_gradients_that_are_unscaled_count():
    w = torch.ones(3, device="xla").requires_grad_()
    w.grad = torch.full((3,), 8.0, device="xla")
    optimizer = torch.optim.Adam([w], lr=0.1, fused=True)
    scale = torch.tensor(4.0, device="xla")
    optimizer.grad_scale, optimizer.found_inf = scale, torch.tensor(0.0, device="xla")
    optimizer.step()
    assert w.grad._version == 1
    assert w.grad.tolist() == [2, 2, 2]


def test_clipped_gradients_count():
    for foreach in (True, False):
        p = torch.ones(3, device="xla", requires_grad=True)
        (p * 5).sum().backward()
        torch.nn.utils.clip_grad_norm_([p], 1.0, foreach=foreach)
        assert p.grad._version > 0


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_do_not_count(training):
    for device in ("cpu", "xla"):
        norm = torch.nn.BatchNorm1d(3).to(device).train(training)
        before = [norm.running_mean._version, norm.running_var._version]
        norm(torch.ones(4, 3, device=device))
        assert [norm.running_mean._version, norm.running_var._version] == before


def test_a_written_view_has_the_gradient_of_the_write():
    grads = []
    for device in ("cpu", "xla"):
        x = torch.arange(1.0, 5.0, device=device).requires_grad_()
        y = x * 1
        v = y[:2]
        torch._foreach_mul_([v], 0.5)
        (v.sum() + y.sum()).backward()
        grads.append(x.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("copied", [True, False])
def test_linear_copies_an_input_that_is_no_stack_of_rows(bias, copied):
    grads = []
    for device in ("cpu", "xla"):
        layer = torch.nn.Linear(4, 3, bias=bias)
        torch.nn.init.constant_(layer.weight, 0.5)
        layer.to(device)
        x = torch.arange(24.0, device=device).reshape(2, 3, 4)
        x = x.transpose(0, 1) if copied else x
        y = layer(x).sum()
        x.mul_(2)
        if copied:
            y.backward()
            grads.append(layer.weight.grad.cpu())
        else:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.backward()
    if copied:
        torch.testing.assert_close(grads[1], grads[0])


def test_inference_tensors():
    with torch.inference_mode():
        a = [torch.ones(3, device="xla")]
        torch._foreach_mul_(a, 2.0)
    assert a[0].tolist() == [2, 2, 2]
    torch_xla.sync()
