"""Each recorded call knows the user's line, without any flag."""

from __future__ import annotations

import gc
import inspect
import threading
import weakref

import pytest
import torch

import torch_xla
from torch_xla import _XLAC


def line_of(function, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def lines_of(tensor: torch.Tensor, operator: str) -> list[str]:
    """Where the calls of the operator were recorded that the tensor is made of."""
    text = _XLAC._get_xla_tensors_text([tensor])
    return [line.split("  // ")[1] for line in text.splitlines() if f"= {operator}(" in line]


def place(function, text: str) -> str:
    return f"{__file__}:{line_of(function, text)} ({function.__qualname__})"


class Sine(torch.nn.Module):
    def forward(self, x):
        y = x.sin()  # another line than its user's
        return y


def test_a_call_is_found_at_its_line():
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    y = (
        x.cos()  # of a statement over lines
        + 1
    )
    here = test_a_call_is_found_at_its_line
    assert lines_of(y, "aten::cos") == [place(here, "x.cos()  #")]
    assert lines_of(y, "aten::add.Scalar") + lines_of(y, "aten::add.Tensor")


def test_frames_of_pytorch_are_not_the_users():
    x = torch.ones(3, device="xla")
    model = torch.nn.Sequential(torch.nn.Softplus(), Sine())
    y = model(x)  # the line of softplus
    assert lines_of(y, "aten::sin") == [place(Sine.forward, "x.sin()")]
    here = place(test_frames_of_pytorch_are_not_the_users, "y = model(x)  #")
    assert lines_of(y, "aten::softplus") == [here]


def test_views_writes_and_casts_have_lines():
    x = torch.ones(4, 4, device="xla")
    torch_xla.sync()
    x.t()[1:].mul_(2)  # a write through views
    y = x.to(torch.float64)  # a cast
    text = _XLAC._get_xla_tensors_text([y])
    calls = [line for line in text.splitlines() if " = aten::" in line]
    assert len(calls) >= 3
    assert all(__file__ in line for line in calls), text
    here = test_views_writes_and_casts_have_lines
    assert lines_of(y, "aten::mul.Tensor") == [place(here, "mul_(2)  #")]


def test_a_view_has_the_line_that_made_it():
    x = torch.ones(4, 4, device="xla")
    torch_xla.sync()
    part = x[1:]  # the view
    turned = part.t()  # a view of it
    y = turned + 1  # what reads them
    here = test_a_view_has_the_line_that_made_it
    assert lines_of(y, "aten::slice.Tensor") == [place(here, "x[1:]  #")]
    transposes = lines_of(y, "aten::t") + lines_of(y, "aten::permute")
    assert transposes == [place(here, "part.t()  #")]
    # A view that is read again, of what was written meanwhile, is still of its line.
    x.add_(1)
    z = part * 2
    assert lines_of(z, "aten::slice.Tensor") == [place(here, "x[1:]  #")]


def test_the_gradient_of_a_view_has_the_line_that_made_it():
    x = torch.ones(4, 4, device="xla", requires_grad=True)
    torch_xla.sync()
    part = x[1:]  # the view
    other = x[2:]  # another
    y = part.sum() + other.sum()  # what reads them
    y.backward()
    here = test_the_gradient_of_a_view_has_the_line_that_made_it
    lines = lines_of(x.grad, "aten::slice_backward")
    assert sorted(lines) == [place(here, "x[1:]  #"), place(here, "x[2:]  #")]


def test_loops_and_generators():
    def steps(x):
        for _ in range(3):
            yield x.tan()  # in a generator

    results = list(steps(torch.ones(3, device="xla")))
    expected = f"{__file__}:{line_of(test_loops_and_generators, 'x.tan()  #')}"
    for result in results:
        (line,) = lines_of(result, "aten::tan")
        assert line.startswith(expected)


def test_a_gradient_has_the_line_of_its_forward_call():
    x = torch.ones(3, device="xla", requires_grad=True)
    torch_xla.sync()
    a = x.sin()  # whose gradient is a product with cos
    b = a.exp()  # whose gradient is a product with the result
    b.sum().backward()
    here = test_a_gradient_has_the_line_of_its_forward_call
    assert lines_of(x.grad, "aten::cos") == [place(here, "x.sin()  #")]
    products = set(lines_of(x.grad, "aten::mul.Tensor"))
    assert products == {place(here, "x.sin()  #"), place(here, "a.exp()  #")}


def test_a_sum_of_gradients_has_the_line_of_the_newer_one():
    x = torch.ones(3, device="xla", requires_grad=True)
    x.grad = torch.ones(3, device="xla")
    torch_xla.sync()
    torch.sin(x).sum().backward()
    here = place(test_a_sum_of_gradients_has_the_line_of_the_newer_one, "torch.sin(x)")
    assert lines_of(x.grad, "aten::add.Tensor") == [here]
    y = torch.exp(x)
    (y * y).sum().backward()
    there = place(test_a_sum_of_gradients_has_the_line_of_the_newer_one, "torch.exp(x)")
    assert lines_of(x.grad, "aten::add.Tensor")[-1] == there


def test_a_second_gradient_has_the_line_of_its_forward_call():
    x = torch.ones(3, device="xla", requires_grad=True)
    y = x.sin()  # twice differentiated
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    here = test_a_second_gradient_has_the_line_of_its_forward_call
    assert set(lines_of(second, "aten::neg")) == {place(here, "x.sin()  #")}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad.sinh()


def test_a_backward_of_the_user_has_its_own_line():
    x = torch.ones(3, device="xla", requires_grad=True)
    Doubled.apply(x).sum().backward()
    assert lines_of(x.grad, "aten::sinh") == [place(Doubled.backward, "grad.sinh()")]


def test_threads_have_their_own_lines():
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    found = {}

    def first():
        found["first"] = [lines_of(x.sin(), "aten::sin") for _ in range(200)]  # of first

    def second():
        found["second"] = [lines_of(x.sin(), "aten::sin") for _ in range(200)]  # of second

    threads = [threading.Thread(target=f) for f in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("first", "second"):
        line = line_of(test_threads_have_their_own_lines, f"# of {name}")
        assert all(len(lines) == 1 for lines in found[name])
        assert {lines[0].split(" (")[0] for lines in found[name]} == {f"{__file__}:{line}"}


def test_code_that_is_made_and_gone():
    """Code objects at one address after another: none is taken for the one before it."""
    x = torch.ones(3, device="xla")
    for i in range(300):
        scope = {"x": x}
        exec(compile("\n" * i + "y = x.sin()", f"made_{i}.py", "exec"), scope)
        (line,) = lines_of(scope["y"], "aten::sin")
        assert line == f"made_{i}.py:{i + 1} (<module>)"
        del scope


def test_code_objects_are_released():
    x = torch.ones(3, device="xla")
    marks = []
    for i in range(3000):
        scope = {"x": x}
        exec(compile("def f(): return x.sin()", f"released_{i}.py", "exec"), scope)
        scope["f"]()
        marks.append(weakref.ref(scope["f"].__code__))
        del scope
    gc.collect()
    assert not any(mark() is not None for mark in marks)


def test_a_line_outlives_its_code():
    scope = {"x": torch.ones(3, device="xla")}
    exec(compile("def f():\n  return x.sin()\ny = f()", "gone.py", "exec"), scope)
    mark = weakref.ref(scope.pop("f").__code__)
    gc.collect()
    assert mark() is None
    assert lines_of(scope["y"], "aten::sin") == ["gone.py:2 (f)"]


def test_a_kernel_that_fails_names_the_line_of_its_call():
    bad = torch.full((3, 3), torch.nan, device="xla")
    result = torch.linalg.svdvals(bad)  # fails when it runs
    with pytest.raises(torch.linalg.LinAlgError) as caught:
        result.cpu()
    here = place(test_a_kernel_that_fails_names_the_line_of_its_call, "svdvals(bad)  #")
    assert str(caught.value).endswith(f"\nThe call that failed was recorded at {here}.")
