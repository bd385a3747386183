"""torch.compile, torch.export and make_fx over views of tensors that need a gradient."""

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import torch_xla  # noqa: F401

VIEWS = {
    "view": lambda x: x.view(2, 3),
    "reshape": lambda x: x.reshape(3, 2),
    "flatten": lambda x: x.view(2, 3).flatten(),
    "transpose": lambda x: x.view(2, 3).transpose(0, 1),
    "permute": lambda x: x.view(1, 2, 3).permute(2, 0, 1),
    "t": lambda x: x.view(2, 3).t(),
    "select": lambda x: x.view(2, 3)[1],
    "slice": lambda x: x[1:4],
    "expand": lambda x: x.expand(2, 6),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "squeeze": lambda x: x.view(1, 6).squeeze(0),
    "diagonal": lambda x: x.view(2, 3).diagonal(),
    "unfold": lambda x: x.unfold(0, 2, 2),
    "split": lambda x: x.split(2)[1],
    "unbind": lambda x: x.view(2, 3).unbind()[1],
    "as_strided": lambda x: x.as_strided((2, 2), (3, 1)),
}


def everything(x):
    total = 0.0
    for view in VIEWS.values():
        y = view(x)
        total = total + (y * torch.arange(float(y.numel()), device=x.device).view(y.shape)).sum()
    return total


def value_and_gradient(f, device):
    x = torch.arange(6.0, device=device).requires_grad_()
    y = f(x)
    y.backward()
    return y.detach().cpu(), x.grad.cpu()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_views(backend):
    torch._dynamo.reset()
    got = value_and_gradient(torch.compile(everything, backend=backend), "xla")
    torch.testing.assert_close(got, value_and_gradient(everything, "cpu"))


def test_symbolic_traces_of_views():
    x = torch.arange(6.0, device="xla").requires_grad_()
    for mode in ("symbolic", "fake", "real"):
        traced = make_fx(everything, tracing_mode=mode)(x)
        torch.testing.assert_close(traced(x), everything(x))


def test_aot_function():
    from functorch.compile import aot_function, nop

    got = value_and_gradient(aot_function(everything, fw_compiler=nop, bw_compiler=nop), "xla")
    torch.testing.assert_close(got, value_and_gradient(everything, "cpu"))


def test_a_compiled_transformer_layer_trains():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(2, 3, 8)

    def gradients(device, compiled):
        for p in layer.parameters():
            p.grad = None
        torch._dynamo.reset()
        model = layer.to(device)
        run = torch.compile(model, backend="aot_eager") if compiled else model
        run(x.to(device)).square().sum().backward()
        return [p.grad.cpu() for p in model.parameters()]

    want = gradients("cpu", compiled=False)
    torch.testing.assert_close(gradients("xla", compiled=True), want, rtol=1e-4, atol=1e-4)


def test_export_of_a_convolutional_net():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)).to("xla")
    batch = torch.randn(2, 1, 6, 6, device="xla")
    program = torch.export.export(net, (batch,))
    torch.testing.assert_close(program.module()(batch), net(batch))


def test_functionalize_of_a_batch():
    from torch.func import functionalize, jvp, vmap

    def writes(row):
        made = row.clone()
        made[:2].add_(1)
        made.view(2, 2).mul_(2)
        return made

    def along(row):
        return jvp(writes, (row,), (row,))[1]

    x = torch.arange(12.0).view(3, 4)
    for call in writes, along:
        want = torch.stack([call(row) for row in x])
        torch.testing.assert_close(vmap(functionalize(call))(x.to("xla")).cpu(), want)
        torch.testing.assert_close(functionalize(vmap(call))(x.to("xla")).cpu(), want)
