"""What PyTorch, the plugin, Python and the C library promise nobody, and this project depends on.

docs/leaning.md lists it and names the test that fails when a thing moves; messages say what to do.
"""

from __future__ import annotations

import importlib
import inspect
import io
import pickle
import pkgutil
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_xla
import torch_xla.runtime as xr
from torch_xla import _XLAC
from torch_xla._src.device import plugins

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "leaning.md"
OURS = Path(torch_xla.__file__).parent
TORCH = Path(torch.__file__).parent

on_the_cpu = pytest.mark.skipif(xr.device_type() != "CPU", reason="about the CPU plugin")


def is_ours(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and Path(code.co_filename).is_relative_to(OURS)


def signature(function: Callable) -> str:
    """The parameters of a function, or of what it wraps, without their types."""
    found = inspect.signature(inspect.unwrap(function))
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def registrations(operator: str) -> list[str]:
    """All kernels of an operator as the dispatcher describes them, the shadowed ones too."""
    return torch._C._dispatch_dump(operator).splitlines()


# --- the page --------------------------------------------------------------------------------

ROW = re.compile(r"^\| (?!-|What)(.+) \|$", re.M)


def rows() -> list[list[str]]:
    return [row.split(" | ") for row in ROW.findall(PAGE.read_text())]


def test_each_row_names_tests_that_exist():
    assert len(rows()) > 40
    for row in rows():
        assert len(row) == 5, f"docs/leaning.md: expected five cells, got {row}. Mend the row."
        named = re.findall(r"`([^`]+)`", row[3])
        assert named or "the build" in row[3], f"docs/leaning.md: no test in {row[0]}. Name one."
        for name in named:
            path, _, test = name.rpartition("::")
            text = (ROOT / (path or "tests/unit/test_leaning.py")).read_text()
            definition = f"TEST({test.replace('.', ', ')})" if path.endswith(".cpp") else f"{test}("
            assert definition in text, f"docs/leaning.md: there is no test {name}. Name another."


def test_each_test_has_its_row():
    told = set(re.findall(r"`(test_\w+)`", " ".join(row[3] for row in rows())))
    text = Path(__file__).read_text()
    for name in re.findall(r"^def (test_\w+)", text.partition("\nPRIVATE")[2], re.M)[1:]:
        assert name in told, f"docs/leaning.md has no row for {name}. Add one."


# What is private by its name or place. More may be: who adds such a thing adds a row.
PRIVATE = [
    ("csrc", r"\bat::native::\w+"),
    ("csrc", r"\bat::(?:meta|cpu|compositeexplicitautograd)::\w+"),
    ("csrc", r"(?<=<)ATen/native/[\w/]+\.h"),
    ("csrc", r"(?<=<)torch/csrc/[\w/]+\.h"),
    ("csrc", r"(?<=<)c10/core/impl/\w+\.h"),
    ("csrc", r"(?<=<)internal/\w+\.h"),
    ("csrc", r"(?<=gnu::weak\]\] )(?:int|void) \w+"),
    ("csrc", r"\bxla_[a-z]+_[a-z_]+(?=\")"),
    ("csrc", r"/proc/[\w/]+"),
    ("torch_xla", r"\btorch(?:\.(?!xla\b)[A-Za-z]\w*)*\._[a-z]\w*(?:\.\w+)*"),
]
# Names of this project's that look alike.
NOT_PRIVATE = {
    "at::native::name",  # a macro's argument
    "xla_fallback",
    "xla_graph_executor",
}


def test_the_page_names_all_that_the_sources_lean_on():
    page = PAGE.read_text()
    missing = set()
    for folder, pattern in PRIVATE:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix not in (".cpp", ".h", ".py"):
                continue
            # Without what is said in prose: comments and docstrings name things, too.
            text = re.sub(r"(//|#(?!include)).*|\"\"\"[\s\S]*?\"\"\"", "", path.read_text())
            for found in re.findall(pattern, text):
                name = re.sub(r"^(int|void) ", "", found)
                last = re.split(r"\.(?!h$)|::|/(?!proc)", name)[-1]
                known = name in page or (last.startswith("_") and last in page)
                if name not in NOT_PRIVATE and not known and f"`{last}`" not in page:
                    missing.add(f"{name} ({path.relative_to(ROOT)})")
    assert not missing, f"docs/leaning.md: add a row, and a test, for {sorted(missing)}"


# --- Python functions and classes that are replaced -----------------------------------------

# What each took when its wrapper was written; three dots: a function of C++, which does not tell.
PATCHED = """
torch.nn.Module._apply(self, fn, recurse=True)
torch._register_device_module(device_type, module)
torch.random._seed_custom_device(seed)
torch._utils._rebuild_device_tensor_from_cpu_tensor(data, dtype, device, requires_grad)
torch._utils._rebuild_tensor(storage, storage_offset, size, stride)
torch._utils._rebuild_tensor_v3(storage, storage_offset, size, stride, requires_grad,
    backward_hooks, dtype, metadata=None)
torch.Tensor.__deepcopy__(self, memo)
torch.Tensor.__dlpack__(self, *, stream=-1, max_version=None, dl_device=None, copy=None)
torch.Tensor.__dlpack_device__(self)
torch.to_dlpack(...)
torch.utils.dlpack.to_dlpack(...)
torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False,
    foreach=None)
torch.nn.utils.clip_grad.clip_grad_norm_(parameters, max_norm, norm_type=2.0,
    error_if_nonfinite=False, foreach=None)
torch.optim.Adam._init_group(self, group, params_with_grad, grads, exp_avgs, exp_avg_sqs,
    max_exp_avg_sqs, state_steps)
torch.optim.SGD._init_group(self, group, params, grads, momentum_buffer_list)
torch.optim.Adagrad._init_group(self, group, params_with_grad, grads, state_sums, state_steps)
torch.utils._foreach_utils._get_foreach_kernels_supported_devices()
torch.utils._foreach_utils._get_fused_kernels_supported_devices()
torch.optim.optimizer._get_capturable_supported_devices(supports_xla=True)
torch._subclasses.fake_tensor.FakeTensor.__new__(...)
torch.nn.SyncBatchNorm.forward(self, input)
torch.UntypedStorage.resize_(...)
torch.distributed.monitored_barrier(group=None, timeout=None, wait_all_ranks=False)
torch.distributed.split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None,
    group_desc=None, backend=None)
"""
PATCHED = re.findall(r"^(\S+?)\.(\w+)(\(.*\))$", PATCHED.replace("\n    ", " "), re.M)


def resolve(path: str) -> Any:
    if path in sys.modules:
        return sys.modules[path]
    module, _, name = path.rpartition(".")
    return getattr(sys.modules[module], name)


@pytest.mark.parametrize("path, name, takes", PATCHED, ids=lambda v: v.partition("(")[0])
def test_patched_functions_are_as_they_were_wrapped(path, name, takes):
    function = getattr(resolve(path), name)
    # torch._dynamo wraps some of them once more when it first compiles.
    function = getattr(function, "_torchdynamo_orig_callable", function)
    assert is_ours(function), (
        f"{path}.{name} is not the one of torch_xla/_src any more. Find out who replaced it after "
        "`import torch_xla`, or whether `setup.install` still runs."
    )
    if takes != "(...)":
        assert signature(function) == takes, (
            f"PyTorch's {path}.{name} takes {signature(function)}, the wrapper was written for "
            f"{takes}. Read PyTorch's, adapt the wrapper in torch_xla/_src, then the text here."
        )


def test_lists_of_devices_are_extended_wherever_they_are_named():
    names = [
        "_get_foreach_kernels_supported_devices",
        "_get_fused_kernels_supported_devices",
        "_get_capturable_supported_devices",
    ]
    modules = [f"torch.optim.{m.name}" for m in pkgutil.iter_modules(torch.optim.__path__)]
    found = set()
    for module in [importlib.import_module(m) for m in ["torch.utils._foreach_utils", *modules]]:
        for name in names:
            if hasattr(module, name):
                found.add(name)
                with torch.no_grad():
                    assert "xla" in getattr(module, name)(), (
                        f"{module.__name__}.{name}() does not name xla. Add the module to "
                        "torch_xla/_src/patches/optim_defaults.py: install."
                    )
    assert found == set(names), (
        f"torch.optim has none of {set(names) - found} any more. Find out how it chooses its "
        "implementations now, and give torch_xla/_src/patches/optim_defaults.py that."
    )


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_optimizers_take_their_fused_form(name):
    w = torch.ones(3, device="xla", requires_grad=True)
    optimizer = getattr(torch.optim, name)([w], lr=0.1)
    w.sum().backward()
    optimizer.step()
    assert optimizer.param_groups[0]["fused"] is True, (
        f"torch.optim.{name} takes no fused step on xla by itself. Compare `_init_group` and "
        "`step` with torch_xla/_src/patches/optim_defaults.py: _preferring_fused."
    )


def test_a_tensor_that_requires_a_gradient_needs_its_own_loading():
    x = torch.ones(3, device="xla", requires_grad=True)
    try:
        loaded = pickle.loads(pickle.dumps(x))
        assert loaded.requires_grad and loaded.device.type == "xla"
    except (RuntimeError, AssertionError) as error:
        pytest.fail(
            f"An xla tensor that requires a gradient does not come back from pickle ({error}). "
            "Wrap what Tensor.__reduce_ex__ names for xla in torch_xla/_src/patches/pickling.py."
        )
    original = inspect.unwrap(torch._utils._rebuild_device_tensor_from_cpu_tensor)
    with pytest.raises(RuntimeError):
        original(torch.ones(3, requires_grad=True), torch.float32, "xla", True)
        pytest.fail("PyTorch loads such tensors by itself now. Drop the patch of pickling.py.")


# --- private Python names that are called ----------------------------------------------------


def test_implementations_can_be_swapped():
    message = (
        "torch_xla/_src/patches/module_identity.py needs this to keep Parameters the same objects. "
        "Read torch.utils.swap_tensors, which does the same, and follow it."
    )
    one, other = torch.ones(2), torch.ones(3, device="xla")
    assert not torch._has_compatible_shallow_copy_type(one, other), message
    torch._C._swap_tensor_impl(one, other)
    assert one.device.type == "xla" and other.device.type == "cpu", message
    w = torch.nn.Parameter(torch.ones(3))
    before = w._use_count()
    y = w * 2
    assert (before, w._use_count()) == (1, 2), message
    y.sum().backward()
    for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        descriptor = getattr(torch.Tensor, hooks, None)
        assert inspect.isdatadescriptor(descriptor), f"Tensor.{hooks}: " + message


@pytest.mark.parametrize("zipped", [True, False])
def test_storages_carry_notes_through_loading(zipped):
    """`torch.load` hands over a storage, and builds tensors on that very object."""
    file = io.BytesIO()
    torch.save(torch.arange(4.0), file, _use_new_zipfile_serialization=zipped)
    file.seek(0)
    message = (
        "torch_xla/_src/patches/loading.py notes on a storage where its tensors go. Read "
        "torch.serialization and torch._utils._rebuild_tensor for what they pass on now."
    )
    if zipped:
        loaded = torch.load(file, map_location="xla")
        assert loaded.device.type == "xla" and loaded.tolist() == [0, 1, 2, 3], message
    else:  # `_torch_load_uninitialized` tells that format
        with pytest.raises(RuntimeError, match="expected a file in the format of PyTorch 1.6"):
            torch.load(file, map_location="xla")
            pytest.fail(message)


def test_storages_of_one_memory_have_one_address():
    x = torch.ones(4, device="xla")
    assert x.untyped_storage()._cdata == x[1:].untyped_storage()._cdata != 0, (
        "`UntypedStorage._cdata` tells torch_xla/_src/patches/pickling.py which tensors share "
        "memory. Find what torch.storage uses in its place."
    )
    assert x.untyped_storage()._cdata != x.clone().untyped_storage()._cdata


def test_decompositions_are_found():
    from torch._decomp import decomposition_table

    message = (
        "torch_xla/_src/decompositions.py looks operators up in PyTorch's table. Without "
        "it they run on the host. Find the table's new place and its keys."
    )
    assert torch.ops.aten.diag_embed.default in decomposition_table, message
    assert len(decomposition_table) > 500, message
    # Of these the decomposition calls the operator itself.
    assert hasattr(torch.ops.prims, "bessel_j0") and not hasattr(torch.ops.prims, "diag_embed"), (
        "torch.ops.prims tells operators that decompose into themselves. " + message
    )


def test_the_scaler_is_the_one_that_was_extended():
    scaler = torch.amp.GradScaler
    source = inspect.getsource(scaler)
    takes = "(self, optimizer, optimizer_state, *args, **kwargs)"
    for name in ("_step_supports_amp_scaling", "found_inf_per_device", "grad_scale", "found_inf"):
        assert name in source, (
            f"torch.amp.GradScaler does not name {name} any more. Compare it with "
            "torch_xla/amp/grad_scaler.py, amp/syncfree and _src/patches/optim_defaults.py."
        )
    assert signature(scaler._maybe_opt_step) == takes, (
        "torch.amp.GradScaler._maybe_opt_step has other arguments, or is gone. Adapt the override "
        "in torch_xla/amp/grad_scaler.py."
    )


def test_version_counters_can_be_kept():
    x = torch.ones(3, device="xla")
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter((x,)):
        x.add_(1)
    assert x._version == 0, (
        "xm.optimization_barrier_ writes without counting. Find what replaces "
        "torch.autograd._unsafe_preserve_version_counter."
    )


def test_dynamo_asks_a_device_for_nothing_new(run_python):
    """Names that the interface had when ours was written, ours aside."""
    run_python(
        """
        import torch_xla
        from torch._dynamo.device_interface import DeviceInterface, get_interface_for_device
        ours = get_interface_for_device("xla")
        known = {"get_device_properties", "is_dtype_supported", "is_triton_capable"}
        known |= {"raise_if_triton_unavailable"}
        asked = {name for name in vars(DeviceInterface) if not name.startswith("__")}
        new = asked - set(vars(ours)) - known
        new |= {n for n in vars(DeviceInterface.Worker) if n not in vars(ours.Worker)}
        assert not new, (
            f"torch._dynamo asks a device for {new}. Answer it in torch_xla/_src/dynamo/device.py, "
            "or add it to the known names if PyTorch's own answer is right for xla."
        )
        gone = {n for n in vars(ours) if not n.startswith("__")} - asked
        assert not gone, f"torch._dynamo does not ask for {gone} any more. Drop it there."
        """
    )


# Files of PyTorch's that treat xla apart; of each it was read what that means.
NAMES_XLA = {
    "_functorch/fx_minifier.py",  # writes scripts that import torch_xla
    "_library/custom_ops.py",  # a docstring
    "_subclasses/fake_tensor.py",  # devices whose index may be missing
    "_subclasses/meta_utils.py",  # functional tensors of xla are ours by themselves
    "_tensor.py",  # __deepcopy__, __reduce_ex__, __dlpack__: pickling.py and dlpack.py
    "_tensor_str.py",  # prints by way of the CPU
    "amp/autocast_mode.py",  # dtypes of autocast
    "cuda/amp/common.py",  # asks whether torch_xla is installed
    "distributed/device_mesh.py",  # chooses no device for xla
    "distributed/fsdp/sharded_grad_scaler.py",  # a device that it takes
    "distributed/tensor/_api.py",  # calls torch_xla.distributed.spmd, which there is not yet
    "library.py",  # a docstring
    "optim/optimizer.py",  # capturable optimizers
}


def test_pytorch_treats_xla_apart_where_it_did():
    aside = ("testing/", "_inductor/", "_dynamo/", "include/")
    found = set()
    for path in TORCH.rglob("*.py"):
        name = path.relative_to(TORCH).as_posix()
        if not name.startswith(aside) and re.search(
            r"""["']xla["']|torch_xla""", path.read_text(errors="ignore")
        ):
            found.add(name)
    assert found == NAMES_XLA, (
        f"PyTorch treats xla apart in {sorted(found - NAMES_XLA)} too, and in "
        f"{sorted(NAMES_XLA - found)} no more. Read what it means there, then change the list."
    )


# --- the dispatcher --------------------------------------------------------------------------


def has_shadowed_kernel(operator: str) -> bool:
    return any("RegisterMeta" in r and r.startswith("Meta") for r in registrations(operator))


def test_cpp_shape_functions_lie_under_those_of_python():
    shadowed = {
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and has_shadowed_kernel(name)
    }
    assert len(shadowed) > 600 and {"aten::add.Tensor", "aten::_softmax"} <= shadowed, (
        f"Only {len(shadowed)} operators have a C++ Meta kernel whose description says "
        "'RegisterMeta'. Look at torch._C._dispatch_dump('aten::add.Tensor') for the words of now "
        "and put them into csrc/dispatch/calls/meta.cpp: cpp_meta_kernel."
    )


def entered(call: Callable[[], Any]) -> set[str]:
    """Files of PyTorch's whose Python functions a call enters."""
    files = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(str(TORCH)):
            files.add(Path(frame.f_code.co_filename).name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


SHADOWED = {
    "add": lambda x: x + x,
    "sin": lambda x: x.sin(),
    "sum": lambda x: x.sum(1),
    "softmax": lambda x: torch.softmax(x, -1),
    "mm": lambda x: x @ x,
    "gather": lambda x: x.gather(0, x.long()),
}


def test_shapes_are_found_without_python():
    x = torch.ones(41, 41, device="xla")  # of a shape that no call before had
    by_python = entered(lambda: torch.cholesky_solve(x, x))
    assert "_meta_registrations.py" in by_python, (
        "cholesky_solve, which had no C++ Meta kernel, is not asked in Python any more. Choose "
        "another such operator, so that this test can see Python being entered."
    )
    for name, call in SHADOWED.items():
        files = entered(lambda call=call: call(x))
        assert not files, (
            f"{name}: its shape comes from Python ({files}), thirty times slower. See "
            "test_cpp_shape_functions_lie_under_those_of_python."
        )


def test_isin_of_a_number_is_corrected():
    found = torch.isin(3, torch.arange(5, device="xla"))
    assert found.shape == () and found.item(), (
        "isin(number, tensor) has another shape than the CPU's. csrc/dispatch/calls/meta.cpp takes "
        "Python's Meta function for it, since the C++ one answers [0]; ask both again."
    )


def test_autograd_of_other_devices_is_what_ours_hides():
    """dispatch/calls/composite.h: by_pytorch reaches PyTorch's kernels by the key AutogradOther."""
    checked = 0
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        ours = [r for r in registrations(name) if r.startswith("AutogradXLA")]
        if not ours or "csrc/dispatch" not in ours[0]:
            continue
        lines = torch._C._dispatch_dump_table(name).splitlines()
        table = dict(line.split(": ", 1) for line in lines if ": " in line)
        checked += 1
        assert table.get("AutogradOther") == table["AutogradCUDA"], (
            f"{name}: AutogradOther has {table.get('AutogradOther')}, other devices have "
            f"{table['AutogradCUDA']}. Let by_pytorch reach the latter."
        )
    assert checked > 40


def test_linear_has_the_gradient_function_that_is_filled_by_hand():
    x = torch.ones(2, 3, device="xla", requires_grad=True)
    w = torch.ones(4, 3, device="xla", requires_grad=True)
    node = F.linear(x, w, torch.ones(4, device="xla", requires_grad=True)).grad_fn
    message = (
        "Compare dispatch/composites/linear.cpp: gradient_of with PyTorch's VariableType for "
        "linear, and fill the fields of now."
    )
    assert node.name() == "LinearBackward0" and len(node.next_functions) == 3, message
    saved = {name for name in dir(node) if name.startswith("_saved_")}
    assert saved == {"_saved_input", "_saved_weight"}, f"LinearBackward0 keeps {saved}. " + message
    assert node._saved_input.data_ptr() == x.data_ptr(), message
    assert node._saved_weight.data_ptr() == w.data_ptr(), message


def test_backward_has_a_thread_for_each_device():
    seen = []
    x = torch.ones(3, device="xla", requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: seen.append(threading.get_ident()))
    y.sum().backward()
    assert len(seen) == 1 and seen[0] != threading.get_ident(), (
        "PyTorch runs the backward pass of xla on the calling thread now. If that is so for good, "
        "csrc/dispatch/device/autograd_threads.cpp has nothing to wait for and can go."
    )


def test_tensors_tell_their_layout_as_pytorchs_do():
    """What `lazy::TensorImpl` writes into fields of c10::TensorImpl that have no setter."""
    formats = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    cases = [
        ((2, 3, 4, 5), None),
        ((2, 1, 1, 1), None),
        ((2, 3, 4, 5), (60, 1, 15, 3)),
        ((2, 3, 4, 5, 6), (360, 1, 90, 18, 3)),
        ((3, 4), (1, 3)),
        ((3, 4), (8, 2)),
        ((3, 4), (0, 1)),
        ((0, 4), (1, 7)),
        ((), None),
    ]
    for sizes, strides in cases:
        told = []
        for device in ("cpu", "xla"):
            t = torch.empty(sizes, device=device)
            if strides is not None:
                t = torch.empty_strided(sizes, strides, device=device)
            told.append(
                [t.is_contiguous(memory_format=f) for f in formats]
                + [t.stride(), torch.empty_like(t).stride(), t.numel(), t.dim()]
            )
        assert told[1] == told[0], (
            f"{sizes}, {strides}: xla tells {told[1]}, the CPU {told[0]}. Compare the fields of "
            "c10::TensorImpl with csrc/lazy/geometry.cpp: LayoutProbe and TensorImpl::set_geometry."
        )


def test_addresses_are_none_of_a_process():
    address = torch.ones(100, device="xla").untyped_storage().data_ptr()
    highest = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "[vsyscall]" not in line:  # of the kernel's half
            highest = max(highest, int(line.split()[0].split("-")[1], 16))
    assert highest <= 1 << 48 <= address < 1 << 63, (
        f"This process has memory up to {highest:#x}, and xla storages begin at {address:#x}. Let "
        "csrc/lazy/tensor.cpp: address_range begin above what processes can have."
    )


def test_strides_survive_a_move_in_both_directions():
    x = torch.arange(6.0).reshape(2, 3).t()
    there = x.to("xla")
    assert there.stride() == x.stride() == there.cpu().stride(), (
        "PyTorch's _to_copy and empty_like take xla for a device without strides; ours, in "
        "csrc/dispatch/memory.cpp, are not reached. Look at _dispatch_dump('aten::_to_copy')."
    )
    kernels = [r for r in registrations("aten::_to_copy") if re.match(r"CPU\b", r)]
    assert len(kernels) == 1 and "csrc/dispatch" in kernels[0], (
        f"aten::_to_copy has the CPU kernels {kernels}. PyTorch had none; take its own for all "
        "that does not go to xla, in csrc/dispatch/memory.cpp: to_copy."
    )


# Beginnings of names, in the code.
BEGINNINGS = {"aten::_foreach_", "aten::_foreach_addc", "aten::_fused_"}


def test_operators_that_the_code_names_exist():
    overloads = set(torch._C._dispatch_get_all_op_names())
    known = overloads | {name.split(".")[0] for name in overloads} | BEGINNINGS
    for path in sorted((ROOT / "csrc").rglob("*.[ch]*")):
        for name in re.findall(r'"((?:aten|mkldnn)::[\w.]+)"', path.read_text()):
            assert name in known or f"{name}_" in known, (  # some have a form in place alone
                f"{path.relative_to(ROOT)} names {name}, which this PyTorch does not have: what it "
                "says there has no effect. Find the operator's new name, or drop the line."
            )


def test_schemas_are_told_by_the_names_of_their_arguments():
    fused = {"_fused_adam": True, "_fused_adamw": True, "_fused_adagrad": True, "_fused_sgd": False}
    for name, counts_steps in fused.items():
        schemas = [getattr(torch.ops.aten, n).default._schema for n in (name, f"{name}_")]
        functional, in_place = ([a.name for a in s.arguments] for s in schemas)
        assert functional == in_place and in_place[:2] == ["self", "grads"], (
            f"aten::{name}_ takes {in_place}, aten::{name} {functional}. dispatch/calls/plan.cpp "
            "(find_twin) and ops/optim.cpp (fused_step_on_host) expect self, grads, .. of both."
        )
        assert "grad_scale" in in_place and ("state_steps" in in_place) == counts_steps, (
            f"aten::{name}_ takes {in_place}. dispatch/calls/plan.cpp: make_plan tells what it "
            "writes by `grads`, `state_steps` and `grad_scale`; give it the names of now."
        )
    twins = torch._C._dispatch_get_all_op_names()
    for twin in ("aten::__ilshift__.Tensor", "aten::__lshift__.Tensor", "aten::normal_functional"):
        assert twin in twins, f"{twin} is gone: adapt csrc/dispatch/calls/plan.cpp: find_twin."
    for name in ("cumprod.out", "cumsum.out", "prod.int_out", "sum.IntList_out"):
        packet, overload = name.split(".")
        names = [
            a.name for a in getattr(getattr(torch.ops.aten, packet), overload)._schema.arguments
        ]
        assert "dtype" in names, f"aten::{name} has no dtype: see plan.cpp: computes_as_out."


# --- words of messages -----------------------------------------------------------------------


def test_assertions_of_shape_functions_are_runtime_errors():
    """A Meta function in Python that asserts, of an operator that has none in C++."""
    assert not has_shadowed_kernel("aten::mode"), "Choose an operator without a C++ Meta kernel."

    def asserts(self):
        raise AssertionError("words of this test")

    library = torch.library.Library("aten", "IMPL", "Meta")
    try:
        library.impl("mode", asserts, allow_override=True)
        x = torch.ones(43, 43, device="xla")
        with pytest.raises(Exception) as caught:
            torch.mode(x)
    finally:
        library._destroy()
    assert type(caught.value) is RuntimeError and str(caught.value) == "words of this test", (
        f"An assertion of a Meta function arrives as {caught.value!r}. Look at how pybind11 writes "
        "such an error and adapt kAssertion in csrc/dispatch/calls/meta.cpp."
    )


FLOATS, DOUBLES = torch.ones(3, 3), torch.ones(3, 3, dtype=torch.float64)

# A call that PyTorch's CPU kernel refuses for its dtypes in each of the words.
REFUSED = {
    "dtype": lambda t: torch.mm(t(FLOATS), t(DOUBLES)),
    "scalar type": lambda t: t(FLOATS).index_add(0, t(torch.tensor([0])), t(DOUBLES[:1])),
    "same type": lambda t: F.embedding_bag(
        t(torch.tensor([0, 1])),
        t(FLOATS),
        t(torch.tensor([0])),
        mode="sum",
        per_sample_weights=t(DOUBLES[0, :2]),
    ),
    "scalar_type": lambda t: torch.logcumsumexp(t(FLOATS), 0, out=t(DOUBLES.clone())),
    "out type": lambda t: torch.where(t(FLOATS > 0), t(FLOATS), t(FLOATS), out=t(DOUBLES.clone())),
    "output type": lambda t: t(torch.ones(3, dtype=torch.int32)).mul_(t(FLOATS[0])),
    "can't be cast": lambda t: torch.add(t(FLOATS), 1.0, out=t(FLOATS.int())),
    "not supported for": lambda t: torch.ceil(t(FLOATS + 1j)),
}


def test_the_words_for_dtypes_are_all_tried():
    source = (ROOT / "csrc" / "dispatch" / "judge" / "cpu_kernel.cpp").read_text()
    words = set(re.findall(r'says\("([^"]+)"\)', source))
    assert words == set(REFUSED), (
        f"dispatch/judge/cpu_kernel.cpp: blames_dtypes looks for {words}. Give REFUSED a call for "
        "each of them."
    )


@pytest.mark.parametrize("word", REFUSED)
def test_refused_dtypes_are_told_by_their_words(word):
    errors = []
    for device in ("cpu", "xla"):
        with pytest.raises(Exception) as caught:
            REFUSED[word](lambda t, device=device: t.to(device))
        errors.append(caught.value)
    assert word in str(errors[0]), (
        f"PyTorch's CPU kernel says {str(errors[0])!r}, without '{word}'. Put its new words into "
        "csrc/dispatch/judge/cpu_kernel.cpp: blames_dtypes."
    )
    assert type(errors[1]) is type(errors[0]), (
        f"xla raises {errors[1]!r}, the CPU {errors[0]!r}. See csrc/dispatch/judge/cpu_kernel.cpp."
    )


# --- the plugin ------------------------------------------------------------------------------


@on_the_cpu
def test_the_compiler_gets_its_options(run_python, tmp_path):
    """By their names, in a message that is written field by field (pjrt/compile_options.cpp)."""
    run_python(
        """
        import torch, torch_xla
        (torch.ones(7, device="xla").max() + 1).item()
        """,
        env={"XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_disable_hlo_passes=no-such-pass"},
    )
    options = "".join(path.read_text() for path in tmp_path.glob("*.debug_options"))
    message = (
        "The compiler was not told so. Compare csrc/pjrt/compile_options.cpp with "
        "xla/pjrt/proto/compile_options.proto, and csrc/executor/run/runtime.cpp with the flags of "
        "xla/debug_options_flags.cc."
    )
    assert "xla_cpu_enable_fast_min_max: false" in options, message
    for name in ("no-such-pass", "reshape-mover"):
        assert f'xla_disable_hlo_passes: "{name}"' in options, message


@on_the_cpu
def test_the_plugin_has_the_names_that_it_is_told():
    library = Path(plugins.find().library_path).read_bytes()
    for name in (b"reshape-mover", b"Out of memory allocating", b"xla_dump_hlo_as_proto"):
        known = name in library
        assert known, (
            f"The plugin does not know '{name.decode()}' any more. Find its name of now: of the "
            "pass for csrc/executor/run/runtime.cpp, of the message for csrc/pjrt/plugin.cpp, of "
            "the flag for csrc/executor/insight/hlo_dump.cpp."
        )


def test_the_headers_of_handlers_are_those_that_all_plugins_take():
    spec = importlib.util.find_spec("jaxlib")
    if spec is None:
        pytest.skip("jaxlib, of which the build takes headers, is not here")
    header = Path(spec.submodule_search_locations[0]) / "include/xla/ffi/api/c_api.h"
    version = re.findall(r"#define XLA_FFI_API_(?:MAJOR|MINOR) (\d+)", header.read_text())
    assert version == ["0", "1"], (
        f"The FFI headers are of version {'.'.join(version)}. Plugins refuse handlers that are "
        "newer than they are: build with jaxlib 0.8.0, whose headers are 0.1."
    )


@on_the_cpu
def test_kernels_of_pytorch_run_in_programs(monkeypatch):
    monkeypatch.setenv("XLA_HOST_KERNELS", "all")
    x = torch.randn(3, 47)
    y = x.to("xla") @ x.to("xla").t()
    message = (
        "A product is not computed by the handler that is registered by csrc/pjrt/ffi_extension.h. "
        "Compare that struct with xla/pjrt/c/pjrt_c_api_ffi_extension.h."
    )
    assert "torch_xla.host_kernel" in _XLAC._get_stablehlo([y]), message
    torch.testing.assert_close(y.cpu(), x @ x.t(), msg=message)
