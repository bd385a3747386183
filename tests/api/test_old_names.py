"""Names that programs for torch_xla 2.x call: each is called, and its value compared."""
# ruff: noqa: F401 - the rows name what is imported

from __future__ import annotations

import importlib
import os
import re

import numpy as np
import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

import torch_xla
import torch_xla.amp.syncfree.adam
import torch_xla.amp.syncfree.adamw
import torch_xla.amp.syncfree.sgd
import torch_xla.core.functions as xf
import torch_xla.core.xla_builder as xb
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.experimental.spmd_fully_sharded_data_parallel as fsdpv2
import torch_xla.experimental.xla_dynamic_reshape_ops as reshape_ops
import torch_xla.experimental.xla_mlir_debuginfo as debuginfo
import torch_xla.experimental.xla_quantized_matmul as quantized_matmul
import torch_xla.runtime as xr
import torch_xla.torch_xla as package
import torch_xla.utils.utils as xu
from torch_xla import _XLAC, _patched_functions, backends, stablehlo
from torch_xla._dynamo import config, dynamo_bridge
from torch_xla._internal import jax_workarounds, neuron, neuron_utils, tpu
from torch_xla._internal.utils import parse_xla_device
from torch_xla.amp import autocast_mode, syncfree
from torch_xla.core import dynamo_bridge as core_bridge
from torch_xla.core import xla_env_vars
from torch_xla.debug import (
    frame_parser_util,
    metrics_compare_utils,
    metrics_saver,
    model_comparator,
    profiler,
)
from torch_xla.distributed import data_parallel
from torch_xla.distributed.fsdp import utils as fsdp_utils
from torch_xla.distributed.fsdp import wrap as fsdp_wrap
from torch_xla.distributed.parallel_loader import ParallelLoader, PerDeviceLoader, PerDeviceQueue
from torch_xla.distributed.spmd import api as spmd_api
from torch_xla.distributed.spmd import xla_sharding
from torch_xla.experimental import (
    assume_pure,
    fori_loop,
    gradient_accumulation,
    mark_pattern_utils,
    quantized,
    scan,
    scan_layers,
    stablehlo_custom_call,
    xla_marker,
)
from torch_xla.experimental.distributed_checkpoint import _helpers as helpers
from torch_xla.experimental.distributed_checkpoint import planners
from torch_xla.utils import keyd_queue

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


def with_environment(context, name):
    before = os.environ.get(name)
    with context():
        inside = os.environ.get(name)
    return before, inside, os.environ.get(name)


def exported():
    return torch.export.export(torch.nn.ReLU(), (torch.tensor([-1.0, 1.0]),))


def saved_and_loaded():
    bundle = stablehlo._exported_program_to_stablehlo_bundle(exported())
    with xu.TmpFolder() as folder:
        stablehlo._save_program_bundle(bundle, folder)
        loaded = stablehlo._load_program_bundle(folder)
    return [type(b) is stablehlo.StableHLOModelBundle for b in (bundle, loaded)]


def compared(*tensors):
    with xu.TmpFolder() as folder:
        for i, tensor in enumerate(tensors):
            torch.save(tensor, f"{folder}/{i}.pt")
        names = sorted(model_comparator._collect_saved_tensors(folder))
        return names, model_comparator.tensor_file_compare(f"{folder}/0.pt", f"{folder}/1.pt")


def built():
    """A computation by the extension's own functions."""
    builder = _XLAC._xla_op_create_builder("builder")
    given = _XLAC._xla_op_param(builder, 0, {"type": "f32", "sizes": (2,)})
    double = _XLAC._xla_op_create(_XLAC._xla_op_builder(given), "Add", [given, given], {})
    computation = _XLAC._xla_op_build("double", double)
    kinds = [type(v).__name__ for v in (builder, double, computation)]
    return kinds, _XLAC._xla_op_shape(double)["sizes"], computation.name()


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
    ("xla_env_vars.PJRT_DEVICE, xla_env_vars.LOCAL_WORLD_SIZE, xla_env_vars.TPU_NUM_DEVICES",
     ("PJRT_DEVICE", "LOCAL_WORLD_SIZE", "TPU_NUM_DEVICES")),
    ("_patched_functions._pathch_module(int, type('New', (), {}))._orig is int", True),
    ("backends._DEFAULT, backends._HIGH, backends._HIGHEST", ("default", "high", "highest")),
    ("jax_workarounds.maybe_get_torchax()", None),
    ("with_environment(jax_workarounds.jax_env_context, 'SKIP_MEGASCALE_PJRT_CLIENT')",
     (None, "true", None)),
    ("os.environ.update(MASTER_ADDR='fe80::1') or neuron.set_rt_root_comm_id() or "
     "(neuron.get_master_worker_ip(), os.environ['NEURON_RT_ROOT_COMM_ID'])",
     ("fe80::1", "[fe80::1]:62182")),
    ("os.environ.update(MASTER_ADDR='a') or neuron.configure_pjrt_environment() or "
     "os.environ['NEURON_RT_ROOT_COMM_ID']", "a:62182"),
    ("neuron.initialize_env(2, 3) or "
     "(os.environ['NEURON_PJRT_PROCESS_INDEX'], os.environ['NEURON_RT_VISIBLE_CORES'])",
     ("2", "2")),
    ("neuron.set_envvar_defaults() or os.environ['ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB']", "50"),
    ("neuron_utils.convert_range('2-4')", [2, 3, 4]),
    ("tpu._using_env_vars()", False),
    ("os.environ.update(TPU_WORKER_ID='3') or tpu.build_tpu_env_from_vars()['WORKER_ID']", "3"),
    ("tpu._ACCELERATOR_TYPE_TO_HOST_BOUNDS['v3-32']", "2,2,1"),
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
    ("xr._init_world_size_ordinal(), xr._WORLD_SIZE, xr._ORDINAL", (None, None, None)),
    ("xf.AllReduce.apply(x, 'sum', 2.0, None)", [[0, 2], [4, 6]]),
    ("xf.AllGather.apply(x, 0)", [[0, 1], [2, 3]]),
    ("[len(m) for m in (xb._PT_XLA_TYPE_MAP, xb._XLA_PT_TYPE_MAP)]", [15, 15]),
    ("xb.XlaCallable(lambda a, b: (a + b, a))(x, x)", ([[0, 2], [4, 6]], [[0, 1], [2, 3]])),
    ("issubclass(xb.XlaCallable, xb.CompiledCallableWithCache)", True),
    ("issubclass(xb.JaxCallable, xb.CompiledCallableWithCache)", True),
    ("xb.FlattenedInputFunc(lambda a, b=1: a).preprocess(([x],), {'b': 2})", [[[0, 1], [2, 3]]]),
    ("issubclass(xb.JaxFlattenedInputFunc, xb.FlattenedInputFunc)", True),
    ("str(xb.mkleaf('Constant', xb.create_builder('b'), value=torch.ones(2)).shape())", "f32[2]"),
    ("data_parallel.Context('xla:0').getattr_or('a', lambda: 3), "
     "data_parallel.ThreadResult().result",
     (3, None)),
    ("fsdp_wrap._wrap(torch.nn.ReLU(), torch.nn.Sequential)[0].__class__ is torch.nn.ReLU", True),
    ("fsdp_wrap.always_wrap_policy()", True),
    ("fsdp_wrap.recursive_wrap(torch.nn.Sequential(torch.nn.Linear(1, 1)), "
     "fsdp_wrap.always_wrap_policy, torch.nn.Sequential, set(), set())[1]", 2),
    ("spmd_api.convert_to_xla_partition_spec(x, [Shard(1), Replicate()])", (None, 0)),
    ("xs.xla_patched_nn_linear_forward(torch.nn.Linear(2, 1), torch.ones(3, 2)).shape", (3, 1)),
    ("xla_sharding.unwrap_sharded_tensor(x)", [[0, 1], [2, 3]]),
    ("PerDeviceQueue('xla:0', 2, 3).queue.max_size()", 3),
    ("fsdp_wrap.lambda_auto_wrap_policy(None, False, 0, lambda m: m is None)", True),
    ("fsdp_utils._xla_patched_nn_linear_forward(torch.nn.Linear(2, 1), torch.ones(3, 2)).shape",
     (3, 1)),
    ("xla_sharding._translate_named_partition_spec(xs.Mesh([0], (1, 1), ('a', 'b')), "
     "('b', None, ('a',)))", (1, None, (0,))),
    ("xla_sharding._generate_logical_mesh(np.arange(4), [2, 2], np.array([[2, 2]])).tolist()",
     [[0, 1], [2, 3]]),
    ("xla_sharding.aot_mark_sharding_fake(x, '', '').shape", (2, 2)),
    ("fsdpv2._prepare_spmd_partition_spec(x), fsdpv2._prepare_spmd_partition_spec("
     "torch.ones(2, 3), 'data', True)", (("fsdp", None), (None, ("data", "fsdp")))),
    # utils
    ("xu.as_list(1), xu.as_list((1, 2))", ([1], (1, 2))),
    ("xu.list_copy_append([1], 2)", [1, 2]),
    ("xu.flatten_nested_tuple((1, (2, (3,)), ([4],)))", (1, 2, 3, [4])),
    ("xu.shape([[1, 2, 3], [4, 5, 6]]), xu.shape(1), xu.shape([])", ([2, 3], [], [0])),
    ("xu.check_env_flag('NO_SUCH_FLAG'), xu.check_env_flag('NO_SUCH_FLAG', default='true')",
     (False, True)),
    *((f"os.environ.__setitem__('SOME_FLAG', {text!r}) or xu.check_env_flag('SOME_FLAG')", yes)
      for text, yes in (("1", True), ("on", True), ("Yes", True), ("0", False), ("", False))),
    ("xu.get_print_fn(False) is xu.null_print, xu.get_print_fn(True) is xu.eprint", (True, True)),
    ("xu.null_print('a', sep='')", None),
    ("keyd_queue.QueueBase(3).max_size()", 3),
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
    ("metrics_compare_utils._compute_aggregates({'a': [1.0, None, 3.0], 'b': [None]})",
     {"a": {"mean": 2.0, "stddev": 1.0}}),
    ("metrics_compare_utils._regex_matches_groupdict('(?P<n>[0-9]+)s', '3S')", {"n": "3"}),
    ("metrics_compare_utils._regex_matches_groupdict('(?P<n>[0-9]+)s', 'x')", None),
    ("metrics_saver._counter() + 1 == metrics_saver._counter()", True),
    ("metrics_saver._get_metrics_file(), metrics_saver._extract_metrics_file()", (None, None)),
    ("model_comparator._index_of(torch.Size([2, 3]), 4)", (1, 1)),
    ("model_comparator._is_master_ordinal()", True),
    ("model_comparator._parse_path('/a/b-c-3-7.pt'), model_comparator._parse_path('x-1.pt')",
     ((7, 3, "b-c"), (-1, 1, "x"))),
    ("model_comparator._parse_path('other.pt')", (ValueError, "a file that save\\(\\) wrote")),
    ("model_comparator._get_save_dir(), model_comparator._SAVE_DIR, model_comparator._STEP",
     (None, None, None)),
    ("compared(torch.zeros(2), torch.zeros(2))", (["0.pt", "1.pt"], "")),
    ("'(1,): 0.0 != 1.0' in compared(torch.zeros(2), torch.tensor([0.0, 1.0]))[1]", True),
    ("re.match(metrics_compare_utils._COUNTER_REGEX, 'Counter: a  Value: 3').groups()",
     ("a", "3")),
    ("profiler._TRACER_MARKED_STEP", False),
    ("profiler._ProfileState().profile_session", None),
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
    ("assume_pure.assume_pure_torch(lambda a: a * 2)(x)", [[0, 2], [4, 6]]),
    ("fori_loop._xla_while_loop_wrapper(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), "
     "(torch.tensor(0, device='xla'), x))", (3, [[0, 8], [16, 24]])),
    ("mark_pattern_utils._get_uuid() != mark_pattern_utils._get_uuid()", True),
    ("quantized._check_scale_zp(x, torch.ones(3), torch.ones(3), 0, torch.int8)",
     (ValueError, "expected 2 scales and zero points, got 3 and 3")),
    ("stablehlo_custom_call.to_device_backward(None, x)", [[0, 1], [2, 3]]),
    ("stablehlo_custom_call.to_host_backward(None, x)", [[0, 1], [2, 3]]),
    ("reshape_ops.dynamic_expand_meta(x[:1], [-1, 2], torch.zeros(3), 0, 0).shape", (3, 2)),
    ("reshape_ops.dynamic_expand_xla(x[:1], [-1, 2], torch.zeros(2), 0, 0)", [[0, 1], [0, 1]]),
    ("reshape_ops.dynamic_view_meta(x, [1, 2], torch.zeros(1), 0, 0, 2).shape", (2, 2)),
    ("reshape_ops.dynamic_view_xla(x, [1, 1], torch.zeros(2), 0, 0, 2)", [[0], [1], [2], [3]]),
    ("xla_marker._assert_valid_composite_attr({'a': [1, 2], 'b': 'c'})", None),
    ("xla_marker._assert_valid_composite_attr({'a': object()})", (ValueError, "attribute a, got")),
    ("xla_marker.mark_tensor_meta(x, 'n', 0, '1', True).shape", (2, 2)),
    ("xla_marker.mark_tensor_xla(x, 'n', 0, '1', True)", [[0, 1], [2, 3]]),
    ("debuginfo.write_mlir_debuginfo_meta(x, 'here').shape", (2, 2)),
    ("debuginfo.write_mlir_debuginfo_tensor(x, 'here')", [[0, 1], [2, 3]]),
    ("quantized_matmul._check_per_channel_quant_weight_dtype_shapes(2, 3, "
     "torch.ones(3, 2, dtype=torch.int8), torch.ones(3), None)", None),
    ("quantized_matmul._check_per_channel_quant_weight_dtype_shapes(2, 3, "
     "torch.ones(3, 2), torch.ones(3), None)", (ValueError, "a weight of int8, got torch.float32")),
    ("quantized_matmul._check_blockwise_quant_weight_dtype_shapes(4, 3, 3, "
     "torch.ones(3, 2), torch.ones(3), None)", (ValueError, "block size that divides 4 inputs")),
    ("stablehlo._get_numpy_dtype(torch.int16) is np.int16", True),
    ("stablehlo._extract_input_args(exported(), stablehlo.StableHLOExportOptions("
     "override_tracing_arguments=(torch.ones(2),)))", [[1, 1]]),
    ("stablehlo._run_decompositions(exported()).module()(torch.tensor([-2.0, 3.0]))", [0, 3]),
    ("saved_and_loaded()", [True, True]),
    ("helpers._is_sharded_tensor(x), helpers._keep_visiting_tensors(x)", (False, True)),
    ("helpers._unwrap_xla_sharded_tensor(x)", [[0, 1], [2, 3]]),
    ("calls(lambda f: helpers._traverse_state_dict({'a': {'b': 1}, 'c': [2]}, f))",
     [(("a", "b"), 1), (("c",), [2])]),
    ("helpers.narrow_tensor_by_index(torch.arange(4), [1], [2])", [1, 2]),
    ("tuple(planners._create_chunk_from_shard_index([slice(1, 3)]).sizes)", (2,)),
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
    ("_XLAC._xla_get_default_device(), _XLAC._xla_get_devices(), _XLAC._xla_num_devices()",
     ("xla:0", ["xla:0"], 1)),
    ("_XLAC._xla_get_device_attributes('xla:0')['name']", "CPU:0"),
    ("_XLAC._get_use_eager_mode()", False),
    ("_XLAC._get_xla_sharding_specs([x])", [""]),
    ("_XLAC._clear_xla_counters(), _XLAC._clear_xla_metrics()", (None, None)),
    ("_XLAC._xla_metric_names() == sorted(_XLAC._xla_metric_names())", True),
    ("_XLAC._clear_xla_counters() or _XLAC._xla_add_to_counter('a', 2) or "
     "_XLAC._short_xla_metrics_report(['a'], [])", "Counter: a\n  Value: 2\n"),
    ("_XLAC._clear_xla_counters() or _XLAC._xla_add_to_counter('a', 2) or "
     "_XLAC._xla_counter_names()", ["a"]),
    ("_XLAC._clear_xla_counters() or _XLAC._xla_add_to_counter('a', 2) or "
     "'Counter: a\\n  Value: 2\\n' in _XLAC._xla_metrics_report()", True),
    ("set_and_get(_XLAC._xla_set_enable_alias_with_buffer_donor_config, "
     "_XLAC._xla_get_enable_alias_with_buffer_donor_config, True, False)", [True, False]),
    ("built()", (["XlaBuilder", "XlaOp", "XlaComputation"], (2,), "double")),
    ("_XLAC._xla_metric_data('no such metric')", None),
    ("_XLAC._xla_memory_info('xla:0')", {}),
    ("_XLAC._xla_clear_sharding(x)", None),
    ("_XLAC._is_placecholder(_XLAC._xla_create_placeholder_tensor({'type': 'f32', 'sizes': (2,)}))",
     True),
    ("_XLAC._xla_op_tensor_shape(x, '')['sizes']", (2, 2)),
    ("'f32[2,2]' in _XLAC._xla_computation_text(xb.create_computation("
     "'double', lambda a: a + a, [xb.tensor_shape(x)]))", True),
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
    ("(lambda pair: pair[0] is _XLAC._get_all_reduce_token(pair[1].device))"
     "(xm._get_all_reduce_token())", True),
    ("_XLAC._xla_all_reduce('sum', x, 2.0, [], True)", [[0, 2], [4, 6]]),
    ("_XLAC._xla_all_gather_coalesced([x], 5, 0, 1, [], True)[1]", 5),
    ("_XLAC._xla_cast_int4(x, [-8, 7, 0, 1])", [[-8, 7], [0, 1]]),
    ("str(_XLAC._xla_cast_int4(x, [-8, 7, 0, 1]).dtype)", "torch.int8"),
    ("_XLAC._xla_cast_int4(x, [0, 1, 2, 8])", (ValueError, "4 elements, got 4 from 0 to 8")),
    ("_XLAC._xla_cast_int4(x, [])", (ValueError, "each of 4 elements, got 0")),
    ("_XLAC._xla_dynamic_expand(x[:1], [-1, 2], torch.zeros(3, 2).to('xla'), 0, 0)", [[0, 1]] * 3),
    ("_XLAC._xla_dynamic_view(x, [1, 2], torch.zeros(1, 2).to('xla'), 0, 0, 2)", [[0, 1], [2, 3]]),
]  # fmt: skip


@pytest.fixture
def environment(monkeypatch):
    names = "SOME_FLAG XLA_DYNAMO_DEBUG TPU_LIBRARY_PATH TPU_SKIP_MDS_QUERY TPU_WORKER_ID "
    names += "NEURON_RT_VISIBLE_CORES NEURON_RT_ROOT_COMM_ID NEURON_PJRT_PROCESS_INDEX MASTER_ADDR "
    names += "ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB XLA_METRICS_FILE SKIP_MEGASCALE_PJRT_CLIENT"
    for name in names.split():
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
