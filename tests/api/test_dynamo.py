"""`torch_xla._dynamo`: the parts of its bridge, and what users are told of graphs."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla import _XLAC
from torch_xla._dynamo import config, dynamo_bridge
from torch_xla._dynamo.dynamo_backend2 import _dynamo_backend, dynamo_backend
from torch_xla.core import dynamo_bridge as core_bridge


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch_xla.sync(wait=True)


def traced(function):
    return torch.fx.symbolic_trace(function)


def close(found, expected):
    assert found.device.type == "xla"
    torch.testing.assert_close(found.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)


def test_extract_compiled_graph():
    graph = traced(lambda x, y: (x @ y).relu())
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    run = core_bridge.extract_compiled_graph(graph, (x.to("xla"), y.to("xla")))
    for _ in range(2):
        before = met.counter_value("xla::traced_function") or 0
        close(run(x.to("xla"), y.to("xla")), (x @ y).relu())
        assert met.counter_value("xla::traced_function") == before + 1


def test_graphs_of_a_graph():
    """Submodules with the arguments that they were run with."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = traced(lambda x: x + 1), traced(lambda x, n: x * n)

        def forward(self, x):
            return self.second(self.first(x), 3)

    class Whole(torch.fx.Tracer):
        def is_leaf_module(self, module, name):
            return isinstance(module, torch.fx.GraphModule)

    two = Two()
    graph = torch.fx.GraphModule(two, Whole().trace(two))
    x = torch.randn(4).to("xla")
    dynamo_bridge.InputCollector(graph).run(x)
    assert two.first.xla_args[0] is x and two.second.xla_args[1] == 3
    close(dynamo_bridge.extract_internal(two.first)(x), x.cpu() + 1)
    known = {}
    made = dynamo_bridge.extract_graph_helper(two.second, known)
    assert dynamo_bridge.extract_graph_helper(two.second, known) is made
    assert list(known) == [(3,)]
    close(made[0](x, 3), x.cpu() * 3)


def test_arguments_and_their_device(run_python):
    x = torch.ones(2, device="xla")
    tensors, numbers = dynamo_bridge._split_xla_args_tensor_sym_constant((x, 3, torch.ones(1), 2.5))
    assert tensors[0] is x and len(tensors) == 2 and numbers == (3, 2.5)
    assert dynamo_bridge._get_input_arg_device((1, torch.ones(1), [x])) == x.device
    assert dynamo_bridge._get_input_arg_device((torch.ones(1),)) is None
    done = run_python(
        """
        import torch, torch_xla
        from torch_xla._dynamo import dynamo_bridge
        graph = torch.fx.symbolic_trace(lambda x, y: x + y)
        try:
            args = torch.ones(1, device="xla:0"), torch.ones(1, device="xla:1")
            dynamo_bridge.extract_compiled_graph(graph, args)
        except RuntimeError as error:
            print(error)
        """,
        env={"CPU_NUM_DEVICES": "2"},
    )
    assert "xla:0, xla:1" in done.stdout


def test_written_arguments_get_their_values_back():
    x, y = torch.ones(2, device="xla"), torch.zeros(2, device="xla")
    clones = [x.clone(), y.clone()]
    torch_xla.sync()
    x.add_(1)
    dynamo_bridge._clear_pending_irs_on_args([x, y], clones)
    assert x.tolist() == [1, 1] and y.tolist() == [0, 0]


def test_host_calls_are_found_and_run_apart():
    def function(x):
        y = torch.sin(x) @ x
        n = torch.ops.aten._local_scalar_dense(torch.ops.aten.sum(y))
        return torch.cos(y) * n + 1, y

    graph = traced(function)
    x = torch.randn(4, 4)
    on_xla = x.to("xla")
    collector = dynamo_bridge.UnsupportedNodesCollector(graph)
    collector.run(on_xla)
    assert [n.name for n in collector.get_unsupported_nodes()] == ["_local_scalar_dense"]
    assert "aten::_local_scalar_dense" in dynamo_bridge.get_fallback_ops()
    run = dynamo_bridge.partition_fx_graph_for_cpu_fallback(graph, (on_xla,), (on_xla,), (on_xla,))
    for _ in range(2):
        before = met.counter_value("xla::traced_function") or 0
        found, expected = run(on_xla), function(x)
        assert met.counter_value("xla::traced_function") == before + 2
        for f, e in zip(found, expected, strict=True):
            close(f, e)


def test_graphs_without_host_calls_stay_whole():
    def function(x):
        return x.add_(1) * 2

    x = torch.ones(3).to("xla")
    run = dynamo_bridge.partition_fx_graph_for_cpu_fallback(traced(function), (x,), (x,), (x,))
    assert x.tolist() == [1, 1, 1]  # looking at it has not written it
    assert run(x).tolist() == [4, 4, 4] and x.tolist() == [2, 2, 2]


def test_constructors_move_to_xla():
    def function(x):
        index = torch.ops.aten.full.default([2], 1, dtype=torch.int64, device="cpu")
        return torch.ops.aten.index.Tensor(x, [index])

    x = torch.arange(4.0)
    graph = make_fx(function, tracing_mode="fake")(x.to("xla"))
    dynamo_bridge.XLAConstructorMoverPass()(graph.graph)
    graph.recompile()
    (made,) = (n for n in graph.graph.nodes if n.target == torch.ops.aten.full.default)
    assert torch.device(made.kwargs["device"]).type == "xla"
    close(graph(x.to("xla")), x[[1, 1]])


@pytest.mark.parametrize("backend", [dynamo_backend, _dynamo_backend])
def test_backends_as_functions(backend):
    layer = nn.Linear(3, 2)
    on_xla = nn.Linear(3, 2).to("xla")
    on_xla.load_state_dict(layer.state_dict())
    x = torch.randn(4, 3)
    if backend is dynamo_backend:
        run = torch.compile(on_xla, backend=backend)
        run(x.to("xla")).sum().backward()
        layer(x).sum().backward()
        close(on_xla.weight.grad, layer.weight.grad)
    else:
        run = backend(traced(lambda x: F.relu(x)), (x.to("xla"),))
        close(run([x.to("xla")]), x.relu())


def test_buffer_donors_are_a_setting():
    from torch_xla.utils.buffer_donor_context import alias_with_buffer_donor_config

    get = _XLAC._xla_get_enable_alias_with_buffer_donor_config
    with pytest.raises(KeyError), alias_with_buffer_donor_config():
        assert get()
        with alias_with_buffer_donor_config(False):
            assert not get()
        raise KeyError
    assert not get()


def test_what_is_printed_of_graphs(monkeypatch, capfd):
    def function(x):
        return x.sin() + 1

    run = torch.compile(function, backend="openxla")
    run(torch.ones(2).to("xla"))
    assert "dynamo" not in capfd.readouterr().err
    torch._dynamo.reset()
    monkeypatch.setenv("XLA_DYNAMO_DEBUG", "1")
    monkeypatch.setenv("XLA_EXPLAIN", "0")
    for size in (2, 2, 3):
        run(torch.ones(size, 4).to("xla"))
    err = capfd.readouterr().err
    assert "2 operations of 1 arguments" in err
    assert "version 1, of (float32[2,4]), was recorded in" in err and "float32[3,4]" in err
    assert len(err.splitlines()) == 4  # two graphs, as dynamo makes the second one for all sizes

    def needs_values(x):
        return torch.ops.aten._local_scalar_dense(x.sum()) * x

    graph = traced(needs_values)
    dynamo_bridge.extract_compiled_graph(graph, ())(torch.ones(2).to("xla"))
    assert "is recorded at each call, since" in capfd.readouterr().err


def test_shapes_that_change_again_and_again_are_named():
    run = torch.compile(lambda x, y: x.sin() @ y, backend="openxla", dynamic=True)
    y = torch.ones(4, 4).to("xla")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for size in range(2, 12):
            run(torch.ones(size, 4).to("xla"), y)
    told = [str(w.message) for w in caught if "torch.compile" in str(w.message)]
    assert len(told) == 1
    assert "dimension 0 of argument" in told[0] and "2, 3, 4, 5, 6, 7" in told[0]


@pytest.mark.parametrize("where", ["arguments", "module", "inside"])
def test_the_default_backend_names_ours(where):
    if where == "arguments":
        run, x = torch.compile(torch.sin), torch.ones(2).to("xla")
    elif where == "module":
        run, x = torch.compile(nn.Linear(2, 2).to("xla")), torch.ones(2).to("xla")
    else:
        run, x = torch.compile(lambda x: x.to("xla") + 1), torch.ones(2)
    with pytest.raises(Exception, match='xla.*inductor.*backend="openxla"'):
        run(x)


def test_inductor_is_left_alone_elsewhere():
    from torch._inductor import compile_fx

    from torch_xla._src.dynamo import backends as dynamo_backends

    graph = traced(lambda x: x + 1)
    assert not dynamo_backends._is_on_xla(graph, [torch.ones(2), 3])
    assert compile_fx.compile_fx.__wrapped__.__name__ == "compile_fx"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_backends_that_run_operators(backend):
    layer = nn.Linear(3, 2)
    on_xla = nn.Linear(3, 2).to("xla")
    on_xla.load_state_dict(layer.state_dict())
    x = torch.randn(4, 3)
    for module, device in ((torch.compile(on_xla, backend=backend), "xla"), (layer, "cpu")):
        module(x.to(device)).tanh().sum().backward()
    close(on_xla.weight.grad, layer.weight.grad)


def graphs():
    return met.counter_value("DynamoExtractCompiledGraph") or 0


def test_graphs_are_counted():
    """Once each: another shape is another program of the graph."""
    run = torch.compile(lambda x: x * 2, backend="openxla", dynamic=True)
    with torch.no_grad():
        for size in (3, 4, 5):
            before = graphs()
            run(torch.ones(size, device="xla"))
            assert graphs() - before == int(size == 3)


def test_runs_of_graphs_are_timed():
    """What is taken and given by each call."""
    names = ("RunCachedGraphInputData", "RunCachedGraphOutputData", "ExecuteTime")
    run = torch.compile(lambda x, y: (x.sin() + y, y * 2), backend="openxla")
    x, y = torch.ones(3).to("xla"), torch.ones(3).to("xla")
    torch_xla.sync(wait=True)
    met.clear_all()
    for calls in (1, 2, 3):
        run(x, y)[0].cpu()
        assert [met.metric_data(name)[0] for name in names] == [calls] * 3
    assert "Metric: RunCachedGraphInputData" in met.metrics_report()


def test_a_model_on_the_host_runs_there_and_is_warned_of():
    model = torch.nn.Linear(3, 2)
    x = torch.randn(4, 3)
    with torch.no_grad(), pytest.warns(UserWarning) as warned:
        found = torch.compile(model, backend="openxla")(x)
    torch.testing.assert_close(found, model(x).detach())
    told = [str(w.message) for w in warned if "Found tensor" in str(w.message)]
    text = (
        "Found tensor with shape {} on cpu. Please move all tensors to xla device to execute on "
        "XLA device."
    )
    assert told == [text.format(torch.Size(size)) for size in ((2, 3), (2,), (4, 3))]


def test_inputs_of_both_devices_are_refused():
    run = torch.compile(lambda x, y: x + y, backend="openxla")
    with pytest.raises(Exception, match="at least two devices, xla:0 and cpu"):
        run(torch.ones(3, device="xla"), torch.ones(3))


def test_inputs_that_wait_may_be_refused(monkeypatch):
    run = torch.compile(lambda x: x * 2, backend="openxla")
    x = torch.ones(3).to("xla")
    with torch.no_grad():
        assert run(x + 1).tolist() == [4, 4, 4]
        monkeypatch.setattr(config, "skip_input_data_check", True)
        assert run(x).tolist() == [2, 2, 2]
        with pytest.raises(
            RuntimeError, match="input data to dynamo graph can not be a pending ir"
        ):
            run(x + 1)
