"""Names that programs for torch_xla 2.x call: each is called, and its value compared."""
# ruff: noqa: F401 - the rows name what is imported

from __future__ import annotations

import importlib
import os

import pytest
import torch

import torch_xla
import torch_xla.amp.syncfree.adam
import torch_xla.amp.syncfree.adamw
import torch_xla.amp.syncfree.sgd
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
import torch_xla.torch_xla as package
import torch_xla.utils.utils as xu
from torch_xla import _XLAC, _patched_functions, stablehlo
from torch_xla._dynamo import config, dynamo_bridge
from torch_xla._internal import neuron_utils
from torch_xla._internal.utils import parse_xla_device
from torch_xla.amp import autocast_mode, syncfree
from torch_xla.core import dynamo_bridge as core_bridge
from torch_xla.core import xla_env_vars
from torch_xla.debug import frame_parser_util, metrics_compare_utils
from torch_xla.distributed.parallel_loader import ParallelLoader, PerDeviceLoader
from torch_xla.distributed.spmd import xla_sharding
from torch_xla.experimental import assume_pure, gradient_accumulation, scan, scan_layers

STACK = [
    "Python Frames:\n", "a (a.py:1)\n", "C++ Frames:\n", "b (b.cpp:2)\n",
    "*** End stack trace ***\n", "\n", "c (c.py:3)",
]  # fmt: skip


def calls(function):
    """The arguments of each call of the function that this one is given."""
    seen = []
    function(lambda *args: seen.append(args))
    return seen


def visited(value, kind=int):
    seen = []
    xu.for_each_instance(value, lambda v: isinstance(v, kind), seen.append)
    return seen


def deduped(*values):
    """The number of those that differ, and all of them again, by their places."""
    deduper = dynamo_bridge.Deduper()
    kept = deduper.dedup(list(values))
    return len(kept), deduper.recover(list(range(len(kept))))


def without_none(values, then=None):
    remover = dynamo_bridge.NoneRemover()
    kept = remover.remove_nones(values)
    return list(kept), remover.add_nones(then or kept)


def returned():
    x, y, made = object(), object(), object()
    handler = dynamo_bridge.SpecialReturnHandler(
        [x, y], [made, x, made, y], [False, True], [(7, 0), (8, 3)]
    )
    # x is an input as it came; y is written, so its new value is computed.
    return handler.addDumbReturn(["x", "y"], ["made", "new y"])


def matched(x):
    """The graph's inputs of ids 3, which it holds, 2 and 1, which are arguments."""
    matcher = dynamo_bridge.GraphInputMatcher({1: 0, 2: 1}, [3, 2, 1], [x, None, None], {1, 2})
    return matcher(["first", "second"])


def leaves_of(tree, others):
    leaves, unflatten = scan.tree_flatten_none(tree)
    return leaves, unflatten(others)


def kept_inputs():
    graph = torch.fx.symbolic_trace(lambda c, x: (c + x, x.sin(), x, c * 2))
    return scan._find_input_activation_aliases(torch.ones(1), torch.ones(1), 1, graph)


def compiled_graph():
    graph = torch.fx.symbolic_trace(lambda c, x: (c + x,))
    compiler, graph_of = scan._make_get_graph_compiler()
    before = graph_of()
    return before, compiler(graph, [])([1, 1]), graph_of() is graph


def same(*names):
    """True if these names are one object."""
    found = [eval(name, globals()) for name in names]
    return all(value is found[0] for value in found)


def nexts(generator):
    first = [generator.next(), next(generator)]
    return first, next(generator, "end"), list(generator)


def patched():
    def old(a, b=2):
        return a

    return _patched_functions._patch_fn(old, lambda a, b=2: b)._orig is old


def set_and_get(setter, getter, *values):
    found = []
    for value in values:
        setter(value)
        found.append(getter())
    return found


def reduced(gradient):
    parameter = torch.nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient
    xm.reduce_gradients(torch.optim.SGD([parameter], 1.0))
    return parameter.grad


def core(text, *remapped):
    os.environ["NEURON_RT_VISIBLE_CORES"] = text
    if not remapped:
        return neuron_utils.get_visible_cores_list()
    neuron_utils.remap_visible_cores(*remapped)
    return os.environ["NEURON_RT_VISIBLE_CORES"]


CORES = (ValueError, "NEURON_RT_VISIBLE_CORES: expected")
NO_NAME = (AttributeError, "no attribute 'no_such_name'")

# What is called, and what it gives or raises; `x` is [[0, 1], [2, 3]] on xla.
ROWS = [
    # torch_xla
    ("torch_xla.xm is xm", True),
    ("torch_xla.no_such_name", (AttributeError, "module 'torch_xla' has no attribute 'no_such_")),
    ("same('torch_xla.save_as_stablehlo', 'stablehlo.save_as_stablehlo')", True),
    ("torch_xla.save_torch_model_as_stablehlo is stablehlo.save_torch_model_as_stablehlo", True),
    ("[n for n in package.__all__ if getattr(package, n) is not getattr(torch_xla, n)]", []),
    ("calls(lambda f: torch_xla.launch(f, args=('a', 2)))", [(0, "a", 2)]),
    ("calls(lambda f: torch_xla.launch(f, debug_single_process=True))", [(0,)]),
    ("torch_xla._set_missing_flags(['--a=1', 'b=2'], (('a', 3), ('b', 4), ('c', 'd')))",
     ["--a=1", "b=2", "--c=d"]),
    ("torch_xla._setup_debug_env()", (-1, "")),
    ("torch_xla._fd, torch_xla._tmp_fname, torch_xla._summarize_fn_tracker()", (-1, "", None)),
    ("torch_xla._setup_xla_flags() or torch_xla._setup_libtpu_flags()", None),
    ("torch_xla._setup_default_env() or torch_xla._init_xla_lazy_backend()", None),
    ("torch_xla._found_libtpu is torch_xla._setup_tpu_vm_library_path()", True),
    ("torch_xla._found_libneuronxla is torch_xla._aws_ec2_inf_trn_init()", True),
    ("torch_xla._found_libneuronxla", False),
    ("_patched_functions.clip_grad_norm_ is torch.nn.utils.clip_grad_norm_", True),
    ("_patched_functions._apply_patches() or _patched_functions.clip_grad_norm_ is "
     "torch.nn.utils.clip_grad_norm_", True),  # once more changes nothing
    ("patched()", True),
    ("_patched_functions._patch_fn(lambda a, b=2: a, lambda a: a)",
     (RuntimeError, r"expected a function of \(a, b=2\)")),
    ("{k: v for k, v in vars(xla_env_vars).items() if k.isupper() and k != v}",
     {"TPU_MESH_CTLER_ADDR": "TPU_MESH_CONTROLLER_ADDRESS",
      "TPU_MESH_CTLER_PORT": "TPU_MESH_CONTROLLER_PORT"}),
    ("xla_env_vars.PJRT_DEVICE", "PJRT_DEVICE"),
    ("parse_xla_device('TPU:13')", ("TPU", 13)),
    *((f"parse_xla_device({bad!r})", (ValueError, "expected a name such as 'TPU:3'"))
      for bad in ("TPU", "TPU:", ":1", "TPU:x")),
    ("autocast_mode.autocast is torch_xla.amp.autocast", True),
    ("syncfree.adam.Adam is syncfree.Adam", True),
    ("syncfree.adamw.AdamW is syncfree.AdamW", True),
    ("syncfree.sgd.SGD is syncfree.SGD", True),
    # core.xla_model and runtime
    ("xm.xla_rendezvous(b'a', tag='here')", [b"a"]),
    ("xm.xla_replication_devices()", ["CPU:0"]),
    ("xm.xla_real_devices()", ["CPU:0"]),
    ("xm.set_replication(xm.xla_device(), ['CPU:0']) or xm.set_replication(xm.xla_device(), None)",
     None),
    ("xm.set_replication('xla:0', ['CPU:0', 'CPU:1'])",
     (NotImplementedError, "expected one device, got 2")),
    ("xm.xla_device_kind(), xm.xla_device_kind('xla:0')", ("cpu", "cpu")),
    ("xm._xla_real_device('xla:0')", "CPU:0"),
    ("calls(lambda f: (xm.add_step_closure(f, args=(1,)), xm._run_step_closures()))", [(1,)]),
    ("xm._get_device_context() is xm._get_device_context(torch_xla.device())", True),
    ("xm._DEVICE_CONTEXTS[xm._get_device_context().device].device", "xla:0"),
    ("isinstance(xm._get_device_context(), xm.DeviceContext)", True),
    ("xm.all_to_all(x, 0, 0, 2)", (ValueError, "split_count.*1, got 2")),
    ("xm.all_to_all(x, 2, 0, 1)", (IndexError, r"all_to_all.*\(2, 2\), got 2")),
    ("xm.collective_permute(x, [[0, 1]])", (ValueError, "replicas below 1")),
    ("xm.collective_permute(x, [[0, 0], [0, 0]])", (ValueError, "at most one")),
    ("xm.reduce_scatter('sum', x, 1.0, 0, 4)", (ValueError, "shard_count.*1, got 4")),
    ("xm.reduce_scatter('mean', x, 1.0, 0, 1)", (ValueError, "got 'mean'")),
    ("xr.global_runtime_device_attributes()[0]['name']", "CPU:0"),
    ("xr.runtime_device_attributes('xla:0') == xr.global_runtime_device_attributes()[0]", True),
    ("xr.is_bf16_supported()", True),
    ("xm.REDUCE_MUL, xm.REDUCE_AND, xm.REDUCE_OR, xm.REDUCE_MIN, xm.REDUCE_MAX, xm.REDUCE_SUM",
     ("mul", "and", "or", "min", "max", "sum")),
    ("[xm.all_reduce(kind, x) for kind in ('mul', 'and', 'or', 'min', 'max', 'sum')]",
     [[[0, 1], [2, 3]]] * 6),
    ("reduced(x)", [[0, 1], [2, 3]]),
    ("xr._init_world_size_ordinal()", None),
    # utils
    ("xu.as_list(1), xu.as_list((1, 2))", ([1], (1, 2))),
    ("xu.list_copy_append([1], 2)", [1, 2]),
    ("xu.flatten_nested_tuple((1, (2, (3,)), ([4],)))", (1, 2, 3, [4])),
    ("xu.shape([[1, 2, 3], [4, 5, 6]]), xu.shape(1), xu.shape([])", ([2, 3], [], [0])),
    ("xu.check_env_flag('NO_SUCH_FLAG'), xu.check_env_flag('NO_SUCH_FLAG', default='true')",
     (False, True)),
    *((f"os.environ.__setitem__('SOME_FLAG', {text!r}) or xu.check_env_flag('SOME_FLAG')", yes)
      for text, yes in (("1", True), ("on", True), ("Yes", True), ("0", False), ("", False))),
    ("xu.parallel_work(3, lambda a, b: a * b, range(5), [2] * 5)", [0, 2, 4, 6, 8]),
    ("(lambda p: (p.value, p.value))(xu.LazyProperty(iter([1, 2]).__next__))", (1, 1)),
    ("nexts(xu.SampleGenerator('data', 2))", (["data", "data"], "end", ["data", "data"])),
    ("xu.FnDataGenerator(lambda d: d * 2, 2, torch.ones, dims=[1], count=1).next()",
     ([[1], [1]], [[2], [2]])),
    ("visited({1: 2, 30: [40], 'k': (6, {9})})", [1, 2, 30, 40, 6, 9]),
    ("visited({'b': {'c': 'd'}, 'a': ['e']}, str)", ["b", "c", "d", "a", "e"]),
    ("visited([1000, int('1000')])", [1000, 1000]),  # equal, and two objects
    ("visited(5)", [5]),
    ("visited({1: 2}, dict)", [{1: 2}]),
    ("core('3'), core('0-2'), core('0,4-6')", ([3], [0, 1, 2], [0, 4, 5, 6])),
    *((f"core({bad!r})", CORES) for bad in ("3-1", "1-2-3", "a", "1,0-2", "1,")),
    *((f"core('4,6-7', {rank}, {size})", CORES) for rank, size in ((0, 2), (3, 3), (0, 1))),
    ("core('4,6-7', 1, 3)", "6"),
    ("core('6', 0, 1)", "6"),
    ("[[t.tolist() for t in ParallelLoader(cpu_loader=[torch.ones(2)], devices=['xla:0'])"
     ".per_device_loader('xla:0')]]", [[[1, 1]]]),
    ("isinstance(ParallelLoader([torch.ones(2)], ['xla:0']).per_device_loader('xla:0'), "
     "PerDeviceLoader)", True),
    ("ParallelLoader(devices=['xla:0'])", (TypeError, "expected one loader")),
    # debug
    ("frame_parser_util.parse_frame_content('train (train.py:12)\\n')", "train (train.py:12)\n"),
    ("frame_parser_util.parse_frame_content('[TAG aten::nonzero From Thread 12]\\n')",
     'Unlowered Op: "aten::nonzero"\n'),
    ("frame_parser_util.parse_frame_content('Graph Info:\\n')", None),
    ("frame_parser_util.parse_frames(STACK)", {"Python Frames:\na (a.py:1)\n": 1, "c (c.py:3)": 1}),
    ("metrics_compare_utils._metric_str_to_number('much')",
     (ValueError, "expected a number, a duration .* got 'much'")),
    # _dynamo and core.dynamo_bridge
    ("[n for n in core_bridge.__all__ if getattr(core_bridge, n) is not getattr(dynamo_bridge, n)]",
     []),
    ("core_bridge.no_such_name", NO_NAME),
    ("dynamo_bridge.no_such_name", NO_NAME),
    ("config.skip_input_data_check", False),
    ("dynamo_bridge.dynamo_debug, core_bridge.ptxla_debug", (False, False)),
    ("os.environ.__setitem__('XLA_DYNAMO_DEBUG', '1') or "
     "(dynamo_bridge.dynamo_debug, core_bridge.ptxla_debug)", (True, True)),
    ("dynamo_bridge._split_xla_args_tensor_sym_constant((x, 3, torch.ones(1), 2.5))",
     (([[0, 1], [2, 3]], [1]), (3, 2.5))),
    ("str(dynamo_bridge._get_input_arg_device((1, torch.ones(1), [x])))", "xla:0"),
    ("dynamo_bridge._get_input_arg_device((torch.ones(1),))", None),
    ("without_none([None, 1, None, 2, None])", ([1, 2], [None, 1, None, 2, None])),
    ("without_none((1, None, 2), (3, 4))", ([1, 2], (3, None, 4))),
    ("dynamo_bridge.NoneRemover().remove_nones({})",
     (TypeError, "expected a list or a tuple, got a dict")),
    ("deduped(x, STACK, x, x)", (2, [0, 1, 0, 0])),
    ("returned()", [7, "made", "x", 8, "made", "new y"]),
    ("matched(x)", [[[0, 1], [2, 3]], "second", "first"]),
    # experimental
    ("gradient_accumulation.XlaBuildHelper('b').add_param(torch.ones(1), 3)",
     (ValueError, "next number, 0, got 3")),
    ("gradient_accumulation._make_init_grad(torch.nn.Parameter(torch.ones(2)))", [0, 0]),
    ("scan.split([1, 2, 3, 4], 1, 0, 3)", ([1], [], [2, 3, 4])),
    ("scan.split([1, 2, 3], 1)", (ValueError, "parts of 3")),
    ("scan._remove_none([None, 1, None])", [1]),
    ("leaves_of({'a': 1, 'b': (None, 2)}, [3, 4])", ([1, 2], {"a": 3, "b": (None, 4)})),
    ("kept_inputs()", {1: 1}),
    ("compiled_graph()", (None, (2,), True)),
    ("scan._backward_shard_alike(1, 2, lambda c, x: (c, x), None, None)", (1, 2)),
    ("scan.shard_as is xla_sharding.shard_as", True),
    ("scan.no_such_name", NO_NAME),
    ("scan_layers._ensure_same_structure([{'w': x}, {'w': x, 'b': x}])",
     (ValueError, "layer 1, which differs in b")),
    ("assume_pure.make_fake_inputs('text')", "text"),
    ("assume_pure.make_fake_inputs(torch.ones(2, 3)).shape", (2, 3)),
    ("_XLAC._is_placecholder(assume_pure.make_fake_inputs(x))", True),
    # _XLAC
    ("importlib.import_module('_XLAC') is _XLAC", True),
    ("_XLAC.no_such_name", NO_NAME),
    ("_XLAC._xla_get_all_devices(), _XLAC._xla_get_runtime_devices()", (["CPU:0"], ["CPU:0"])),
    ("_XLAC._xla_get_all_runtime_devices(), _XLAC._xla_num_runtime_devices()", (["CPU:0"], 1)),
    ("_XLAC._xla_get_default_device()", "xla:0"),
    ("_XLAC._xla_get_device_hw_type(x), _XLAC._xla_device_kind()", ("CPU", "cpu")),
    ("_XLAC._xla_get_replication_devices(), _XLAC._xla_get_replication_devices_count()", ([], 0)),
    ("_XLAC._xla_get_num_processes(), _XLAC._xla_get_process_index()", (1, 0)),
    ("_XLAC._xla_get_auto_sharding()", False),
    ("_XLAC._check_tensor_need_materialization([torch.ones(2), x, x + 1])", [False, False, True]),
    ("_XLAC._get_seed_info_id()", -127389),
    ("_XLAC._xla_get_tensor_view_alias_id(x[0]) == _XLAC._xla_get_tensor_id(x)", True),
    *((f"_XLAC._get_xla_tensor_shape_type(x.to(torch.{dtype}))", name)
      for dtype, name in (("float32", "f32"), ("bool", "i1"), ("int64", "i64"))),
    ("_XLAC._get_xla_tensor_debug_info(torch.ones(2))", "Not a XLATensor\n"),
    ("_XLAC._get_xla_tensor_dimension_size(x[:1], 1)", 2),
    ("_XLAC._from_dlpack(_XLAC._to_dlpack(x))", [[0, 1], [2, 3]]),
    ("_XLAC._replace_xla_tensor(torch.zeros(2, 2, device='xla'), x)", [[0, 1], [2, 3]]),
    ("sorted(_XLAC._get_git_revs())", ["torch", "xla"]),
    ("set_and_get(_XLAC._set_xla_enable_device_data_cache, "
     "_XLAC._get_xla_enable_device_data_cache, False, True)", [False, True]),
    ("_XLAC._get_all_reduce_token('xla:0') is _XLAC._get_all_reduce_token('xla:0')", True),
    ("isinstance(_XLAC._get_all_reduce_token('xla:0'), _XLAC.IrValue)", True),
    ("(lambda token: _XLAC._set_all_reduce_token('xla:0', token) or "
     "_XLAC._get_all_reduce_token('xla:0') is token)(_XLAC.IrValue())", True),
    ("_XLAC._set_all_reduce_token('xla:0', 3)", (TypeError, "expected an IrValue, got a int")),
    ("_XLAC._xla_cast_int4(x, [-8, 7, 0, 1])", [[-8, 7], [0, 1]]),
    ("str(_XLAC._xla_cast_int4(x, [-8, 7, 0, 1]).dtype)", "torch.int8"),
    ("_XLAC._xla_cast_int4(x, [0, 1, 2, 8])", (ValueError, "4 elements, got 4 from 0 to 8")),
    ("_XLAC._xla_cast_int4(x, [])", (ValueError, "each of 4 elements, got 0")),
    ("_XLAC._xla_dynamic_expand(x[:1], [-1, 2], torch.zeros(3, 2).to('xla'), 0, 0)", [[0, 1]] * 3),
    ("_XLAC._xla_dynamic_view(x, [1, 2], torch.zeros(1, 2).to('xla'), 0, 0, 2)", [[0, 1], [2, 3]]),
]  # fmt: skip


@pytest.fixture
def environment(monkeypatch):
    for name in ("SOME_FLAG", "XLA_DYNAMO_DEBUG", "NEURON_RT_VISIBLE_CORES", "TPU_LIBRARY_PATH"):
        monkeypatch.setenv(name, "")  # so that what a row sets is taken back
        monkeypatch.delenv(name)


def plain(value):
    """Tensors as lists."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if type(value) in (list, tuple):
        return type(value)(plain(v) for v in value)
    return value


@pytest.mark.parametrize(("text", "expected"), ROWS, ids=[text[:60] for text, _ in ROWS])
def test_names(text, expected, environment):
    x = torch.arange(4.0).view(2, 2).to("xla")
    names = {**globals(), "x": x}
    if isinstance(expected, tuple) and expected and isinstance(expected[0], type):
        with pytest.raises(expected[0], match=expected[1]):
            eval(text, names)
    else:
        assert plain(eval(text, names)) == expected
