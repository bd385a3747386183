"""Functions that are recorded once and called often, and the tensors around them.

Units: dispatch/functions/recording, dispatch/functions/draws.
"""

import threading

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla import _XLAC


def close(found, expected):
    torch.testing.assert_close(found.cpu(), expected)


def traced(body, *arguments):
    functions = _XLAC._TracedFunctions()
    functions.trace(body, *arguments)
    return functions


def runs():
    return (met.metric_data("ExecuteTime") or (0,))[0]


def test_a_view_made_outside_stays_readable():
    weight = torch.arange(6.0, device="xla")
    view = weight[1:4]
    torch_xla.sync()
    functions = traced(lambda x: [x + view], torch.ones(3, device="xla"))
    close(view, torch.arange(1.0, 4.0))
    close(functions.call(torch.ones(3, device="xla"))[0], torch.arange(2.0, 5.0))
    close(view * 2, torch.arange(1.0, 4.0) * 2)


def test_a_view_read_before_is_read_again():
    weight = torch.arange(6.0, device="xla")
    view = weight[1:4]
    total = view.sum()
    torch_xla.sync()
    functions = traced(lambda x: [x + view], torch.ones(3, device="xla"))
    close(functions.call(torch.ones(3, device="xla"))[0], torch.arange(2.0, 5.0))
    close(total, torch.tensor(6.0))


def test_what_waits_is_computed_once_with_the_first_call():
    pending = torch.arange(4.0, device="xla").sin()
    halves = (torch.arange(8.0, device="xla") * 3).chunk(2)
    values, indices = torch.tensor([3.0, 1.0, 2.0, 0.0], device="xla").sort()  # two results
    body = lambda x: [x + pending + halves[1] + values + indices]  # noqa: E731
    expected = torch.ones(4) + torch.arange(4.0).sin() + torch.arange(4.0, 8.0) * 3
    expected = expected + torch.arange(4.0) + torch.tensor([3.0, 1.0, 2.0, 0.0]).sort()[1]
    before = runs()
    functions = traced(body, torch.ones(4, device="xla"))
    assert runs() == before
    assert "sin" in torch_xla._XLAC._get_xla_tensors_text([pending])
    for _ in range(3):
        close(functions.call(torch.ones(4, device="xla"))[0], expected)
    assert "sin" not in torch_xla._XLAC._get_xla_tensors_text([pending])
    assert "sort" not in torch_xla._XLAC._get_xla_tensors_text([values + 1])
    close(pending, torch.arange(4.0).sin())


def test_random_numbers_recorded_before_stay_what_they_are():
    torch.manual_seed(3)
    noise = torch.rand(4, device="xla")
    functions = traced(lambda x: [x + noise], torch.zeros(4, device="xla"))
    first = functions.call(torch.zeros(4, device="xla"))[0]
    close(first, noise.cpu())
    close(functions.call(torch.zeros(4, device="xla"))[0], noise.cpu())


@pytest.mark.parametrize("state", ["data", "pending", "empty", "view"])
def test_writing_another_tensor_is_refused(state):
    buffer = torch.empty(4, device="xla") if state == "empty" else torch.ones(4, device="xla")
    if state == "pending":
        buffer = buffer + 1
    target = buffer[:2] if state == "view" else buffer
    if state in ("data", "view"):
        torch_xla.sync()
    expected = None if state == "empty" else buffer.clone()

    def body(x):
        target.add_(x[: len(target)]) if state != "empty" else target.fill_(3)
        return [x * 2]

    with pytest.raises(RuntimeError, match="write its arguments.*Pass that tensor"):
        traced(body, torch.ones(4, device="xla"))
    close(buffer, torch.zeros(4) if expected is None else expected.cpu())
    close(buffer.add_(1), (torch.zeros(4) if expected is None else expected.cpu()) + 1)


def test_tensors_made_inside_are_written():
    def body(x):
        total = torch.empty(4, device="xla")
        total.copy_(x)
        total[1:3] += torch.tensor([5.0, 6.0]).to("xla")
        return [total]

    functions = traced(body, torch.ones(4, device="xla"))
    close(functions.call(torch.zeros(4, device="xla"))[0], torch.tensor([0.0, 5.0, 6.0, 0.0]))


def test_gradients_inside():
    def body(x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return list(torch.autograd.grad((x.sin() * x).sum(), x))

    x = torch.linspace(0, 1, 5)
    functions = traced(body, x.to("xla"))
    close(functions.call(x.to("xla"))[0], x.cos() * x + x.sin())


def test_what_other_threads_recorded_is_not_recorded_again():
    made = {}

    def record():
        torch.manual_seed(5)
        made["noise"] = torch.rand(4, device="xla")

    record()  # this thread has a block of ids, and the other gets a higher one
    thread = threading.Thread(target=record)
    thread.start()
    thread.join()
    functions = traced(lambda x: [x + made["noise"]], torch.zeros(4, device="xla"))
    first = functions.call(torch.zeros(4, device="xla"))[0]
    close(first, made["noise"].cpu())
    close(functions.call(torch.zeros(4, device="xla"))[0], made["noise"].cpu())


def test_one_program_for_a_region_that_calls_it_first():
    scale = torch.compile(lambda x, y: (x * y).sin(), backend="openxla")

    @torch_xla.compile(full_graph=True)
    def step(x):
        return scale(x, x + 1) + 1

    x = torch.linspace(0, 1, 5)
    for _ in range(2):
        close(step(x.to("xla")), (x * (x + 1)).sin() + 1)


def test_a_function_inside_a_function():
    outer = torch.arange(4.0, device="xla") * 2  # waits

    def body(x):
        y = x.cos()
        inner = traced(lambda z: [z * y + outer, y + 1], x)
        return list(inner.call(x + 1))

    functions = traced(body, torch.zeros(4, device="xla"))
    x = torch.linspace(0, 1, 4)
    for _ in range(2):
        product, cosine = functions.call(x.to("xla"))
        close(product, (x + 1) * x.cos() + torch.arange(4.0) * 2)
        close(cosine, x.cos() + 1)


def test_a_result_that_was_there_before():
    pending = torch.arange(4.0, device="xla") + 1
    functions = traced(lambda x: [pending, x + pending], torch.ones(4, device="xla"))
    same, total = functions.call(torch.ones(4, device="xla"))
    close(same, torch.arange(1.0, 5.0))
    close(total, torch.arange(2.0, 6.0))


def test_tensors_that_leak_say_so():
    leaked = []

    def body(x):
        leaked.append(x + 1)
        return [x * 2]

    traced(body, torch.ones(3, device="xla"))
    with pytest.raises(RuntimeError, match="placeholder"):
        leaked[0].cpu()
    with pytest.raises(RuntimeError, match="placeholder"):
        traced(lambda x: [x + leaked[0]], torch.ones(3, device="xla")).call(
            torch.ones(3, device="xla")
        )
    torch_xla.sync()
