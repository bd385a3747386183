"""What tools say of graphs of torch.compile: the user's lines and modules, not those of generated
code."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import torch_xla
from torch_xla import _XLAC


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x).relu()  # the block's line


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)  # the loop's line
        return (x.sin() * x).sum()  # the net's line


def line_of(text):
    with open(__file__) as source:
        [number] = [n for n, line in enumerate(source, 1) if line.rstrip().endswith(f"# {text}")]
    return f"{__file__}:{number} (forward)"


@pytest.fixture
def net():
    torch._dynamo.reset()
    torch.manual_seed(0)
    return Net().to("xla")


def costs(step):
    report = torch_xla.debug.cost(step)
    return {row.name for row in report.lines}, {row.name for row in report.modules}


def test_forward_and_backward_are_of_the_lines_that_were_captured(net):
    compiled = torch.compile(net, backend="openxla")
    x = torch.randn(4, 8, device="xla")

    def step():
        net.zero_grad()
        compiled(x).backward()

    step()
    torch_xla.sync()
    lines, modules = costs(step)
    captured = {line_of("the block's line"), line_of("the net's line")}
    assert captured <= lines
    # The gradient of the loss, a one, is of the call of backward().
    assert all("test_forward_and_backward" in line for line in lines - captured)
    assert {"blocks.0", "blocks.0.linear", "blocks.1.linear"} <= modules


def test_modules_of_a_compiled_function_are_of_their_class(net):
    @torch.compile(backend="openxla")
    def function(x):
        return net(x)

    x = torch.randn(4, 8, device="xla")
    with torch.no_grad():
        function(x)
        torch_xla.sync()
        lines, modules = costs(lambda: function(x))
    assert lines == {line_of("the block's line"), line_of("the net's line")}
    assert {"Net", "Net.blocks.0.linear"} <= modules


def test_stacks_of_frames_lead_to_the_call(net, monkeypatch):
    monkeypatch.setenv("XLA_IR_DEBUG", "1")
    compiled = torch.compile(net, backend="openxla")
    x = torch.randn(4, 8, device="xla")
    loss = compiled(x)
    loss.backward()
    text = _XLAC._get_xla_tensors_text([net.blocks[0].linear.weight.grad])
    frames = [line_of("the block's line"), line_of("the loop's line")]
    assert " < ".join(frames) in text
    assert "eval_with_key" not in text


def test_the_lines_go_with_the_graph(net, monkeypatch):
    dropped = []
    drop = _XLAC._drop_generated_lines
    monkeypatch.setattr(
        _XLAC, "_drop_generated_lines", lambda file: (dropped.append(file), drop(file))
    )
    compiled = torch.compile(net, backend="openxla")
    with torch.no_grad():
        compiled(torch.randn(4, 8, device="xla"))
    assert not dropped
    del compiled
    torch._dynamo.reset()
    gc.collect()
    assert len(dropped) == 1 and "eval_with_key" in dropped[0]
